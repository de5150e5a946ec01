//! Takes events ahead of the handlers, as `walk` decides, and prolongs leases, on a session of its own: a write that waits
//! keeps no lease from being renewed.

use std::time::Duration;

use futures_util::future::{OptionFuture, join4};
use tokio::time::Instant;
use uuid::Uuid;

use super::session::Session;
use super::walk::Stretch;
use crate::error::Error;
use crate::queue::{self, LeaseRequest, LeasedBatch, Walk};

/// Delayed events made ready at once.
const PROMOTE_LIMIT: u32 = 1000;

/// Bytes of payload that one lease brings, and as many may be in hand when it is asked for: what a function of the
/// smallest size can hold beside the program.
pub(super) const LEASE_BYTES: u64 = 8 << 20;

/// What to ask for.
pub(super) struct LeaseOrder {
    pub worker: Uuid,
    /// All tokens with something in hand.
    pub held: Vec<Uuid>,
    /// Of them, those behind which more of a group may be leased.
    pub trusted: Vec<Uuid>,
    /// Leases that are marked as ended.
    pub over: Vec<Uuid>,
    pub timeout: Duration,
    /// Whether the leases are to be prolonged, too.
    pub renews: bool,
    /// Events to lease; nothing is leased without it.
    pub stretch: Option<Stretch>,
    /// A service that is due: one event that waits for it is leased instead.
    pub probe: Option<String>,
    /// Kinds this program knows and has time for.
    pub kinds: Vec<&'static str>,
    pub first_window: u32,
    /// When it was made: what it prolongs is no older.
    pub sent: Instant,
}

impl LeaseOrder {
    /// The lease that is asked for, if one is.
    fn request(&self, token: Uuid) -> Option<LeaseRequest<'_>> {
        let probe = LeaseRequest {
            token,
            worker: self.worker,
            held: &self.trusted,
            over: &self.over,
            timeout: self.timeout,
            kinds: &self.kinds,
            limit: 1,
            bytes: LEASE_BYTES,
            first_window: self.first_window,
            join: false,
            passed_by: &[],
            probe: self.probe.as_deref(),
            walk: Walk::default(),
        };
        let Some(stretch) = &self.stretch else {
            return probe.probe.is_some().then_some(probe);
        };
        Some(LeaseRequest {
            limit: stretch.limit,
            join: stretch.join,
            passed_by: &stretch.passed_by,
            walk: stretch.walk,
            ..probe
        })
    }
}

/// What came of it.
pub(super) struct Brought {
    /// Lowest id among the delayed events that became ready just before.
    pub promoted: Option<i64>,
    pub batch: LeasedBatch,
    pub token: Uuid,
    /// The leases that are still there, each with how often something was taken from it.
    pub renewed: Option<Vec<(Uuid, i32)>>,
}

/// The answer, with the session and the order handed back.
pub(super) struct Arrival {
    pub session: Session,
    pub order: LeaseOrder,
    pub brought: Result<Brought, Error>,
}

/// Renews, promotes what is due and leases, with bounded reconnects.
pub(super) async fn lease(mut session: Session, order: LeaseOrder) -> Arrival {
    let mut unsure = false;
    let brought = loop {
        match attempt(&mut session, &order, unsure).await {
            Ok(brought) => {
                session.recovered();
                break Ok(brought);
            }
            Err(error) => {
                // What the lost try may have taken is under its own token, which is not held: a sweep gives it back.
                unsure = true;
                if let Err(error) = session.retry_after(error).await {
                    break Err(error);
                }
            }
        }
    };
    Arrival {
        session,
        order,
        brought,
    }
}

/// One try. Everything travels together and is done in this order: one round trip.
async fn attempt(
    session: &mut Session,
    order: &LeaseOrder,
    unsure: bool,
) -> Result<Brought, Error> {
    let client = session.client().await?;
    let token = Uuid::new_v4();
    let sweeps = unsure || order.stretch.as_ref().is_some_and(Stretch::is_start);
    let renew = order
        .renews
        .then(|| queue::renew(client, order.worker, &order.held, order.timeout));
    let sweep = sweeps.then(|| queue::sweep(client, order.worker, &order.held));
    let promote = (order.stretch.is_some() || order.probe.is_some())
        .then(|| queue::promote(client, PROMOTE_LIMIT));
    let request = order.request(token);
    let leased = request
        .as_ref()
        .map(|request| queue::lease(client, request));
    let (renewed, swept, promoted, batch) = join4(
        OptionFuture::from(renew),
        OptionFuture::from(sweep),
        OptionFuture::from(promote),
        OptionFuture::from(leased),
    )
    .await;
    swept.transpose()?;
    Ok(Brought {
        renewed: renewed.transpose()?,
        promoted: promoted.transpose()?.and_then(|(_, lowest)| lowest),
        batch: batch.transpose()?.unwrap_or_default(),
        token,
    })
}
