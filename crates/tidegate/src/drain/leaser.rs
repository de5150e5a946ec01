//! Takes events ahead of the handlers, as `walk` decides, and prolongs leases, on a session of its own: a write that waits
//! keeps no lease from being renewed.

use std::time::Duration;

use futures_util::future::{OptionFuture, join, join4, join5};
use uuid::Uuid;

use super::clocks::Reading;
use super::limits::Turn;
use super::scheduling::PAGE;
use super::session::Session;
use super::slots::{SlotAsk, SlotTold};
use super::waiting;
use super::walk::Stretch;
use crate::error::Error;
use crate::queue::{
    self, Claim, DueSchedule, Fired, Firing, Grant, LeaseRequest, LeasedBatch, Released, Walk,
};

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
    pub ask: Ask,
    /// Of which kinds events are asked for.
    pub kinds: Vec<&'static str>,
    /// What is asked of slots.
    pub slots: SlotAsk,
    /// Past which schedule to look for those that are due, if it is time to.
    pub look: Option<i64>,
    /// Behind which waiting event to look for those that wait no more, if it is time to.
    pub waiting: Option<i64>,
    /// All kinds that this program handles.
    pub all_kinds: &'static [&'static str],
    pub first_window: u32,
    /// When it was made: what it prolongs is no older.
    pub sent: Reading,
}

/// What is asked for besides more time.
pub(super) enum Ask {
    Nothing,
    /// More events.
    Events(Stretch),
    /// One event to try this service with.
    Probe(String),
    /// Events that call a limited service.
    Limited(Turn, Stretch),
    /// Places of a limited service, and starts.
    Claim(Claim),
    /// That schedules are fired.
    Fire(Vec<Firing>),
}

impl Ask {
    /// Where events are asked for.
    fn stretch(&self) -> Option<&Stretch> {
        match self {
            Self::Events(stretch) | Self::Limited(_, stretch) => Some(stretch),
            Self::Nothing | Self::Probe(_) | Self::Claim(_) | Self::Fire(_) => None,
        }
    }

    /// Whether events are.
    pub(super) fn leases(&self) -> bool {
        matches!(self, Self::Probe(_)) || self.stretch().is_some()
    }
}

impl LeaseOrder {
    /// The lease that is asked for, if one is.
    fn request(&self, token: Uuid) -> Option<LeaseRequest<'_>> {
        let request = LeaseRequest {
            token,
            worker: self.worker,
            held: &self.trusted,
            over: &self.over,
            timeout: self.timeout,
            kinds: &self.kinds,
            limit: 1,
            bytes: LEASE_BYTES,
            first_window: self.first_window,
            join: None,
            passed_by: &[],
            probe: None,
            walk: Walk::default(),
        };
        if let Ask::Probe(service) = &self.ask {
            return Some(LeaseRequest {
                probe: Some(service),
                ..request
            });
        }
        let stretch = self.ask.stretch()?;
        Some(LeaseRequest {
            limit: stretch.limit,
            join: stretch.join,
            passed_by: &stretch.passed_by,
            walk: stretch.walk,
            ..request
        })
    }
}

/// What came of it.
pub(super) struct Brought {
    /// Lowest id among the delayed events that became ready just before.
    pub promoted: Option<i64>,
    pub batch: LeasedBatch,
    /// What was claimed.
    pub grant: Grant,
    /// Schedules that are due, if they were looked for.
    pub due: Option<Result<Vec<DueSchedule>, Error>>,
    /// What became of those that were to be fired.
    pub fired: Option<Result<Vec<Fired>, Error>>,
    /// What was released of those that waited for others.
    pub released: Option<Result<Released, Error>>,
    pub token: Uuid,
    /// The leases that are still there, each with how often something was taken from it.
    pub renewed: Option<Vec<(Uuid, i32)>>,
    /// What is told of slots.
    pub slots: SlotTold,
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
    let sweeps = unsure || order.ask.stretch().is_some_and(Stretch::is_start);
    let renew = order
        .renews
        .then(|| queue::renew(client, order.worker, &order.held, order.timeout));
    let sweep = sweeps.then(|| queue::sweep(client, order.worker, &order.held));
    let promote = order
        .ask
        .leases()
        .then(|| queue::promote(client, PROMOTE_LIMIT));
    let request = order.request(token);
    let leased = request
        .as_ref()
        .map(|request| queue::lease(client, request));
    let claimed = match &order.ask {
        Ask::Claim(claim) => Some(queue::claim_service(client, order.worker, claim)),
        _ => None,
    };
    let fire = match &order.ask {
        Ask::Fire(firings) => Some(queue::fire_schedules(client, firings)),
        _ => None,
    };
    let look = order
        .look
        .map(|after| queue::due_schedules(client, order.all_kinds, (after, PAGE), None));
    let leasing = join5(
        OptionFuture::from(renew),
        OptionFuture::from(sweep),
        OptionFuture::from(promote),
        OptionFuture::from(leased),
        OptionFuture::from(claimed),
    );
    let slots = order
        .slots
        .ask(client, order.worker, order.timeout, order.all_kinds);
    let release = |after| queue::release_waiting(client, after, waiting::PAGE);
    let release = OptionFuture::from(order.waiting.map(release));
    let (fire, look) = (OptionFuture::from(fire), OptionFuture::from(look));
    let beside = join4(fire, look, release, slots);
    let ((renewed, swept, promoted, batch, grant), (fired, due, released, slots)) =
        join(leasing, beside).await;
    swept.transpose()?;
    let (fired, due, released) = (passes(fired)?, passes(due)?, passes(released)?);
    Ok(Brought {
        renewed: renewed.transpose()?,
        promoted: promoted.transpose()?.and_then(|(_, lowest)| lowest),
        batch: batch.transpose()?.unwrap_or_default(),
        grant: grant.transpose()?.unwrap_or_default(),
        due,
        fired,
        released,
        token,
        slots: slots?,
    })
}

/// Schedules and waiting events keep no drain from draining: what failed is told, unless the connection is lost, which concerns all.
fn passes<T>(answer: Option<Result<T, Error>>) -> Result<Option<Result<T, Error>>, Error> {
    match answer {
        Some(Err(error)) if error.is_connection_lost() => Err(error),
        answer => Ok(answer),
    }
}
