//! Leases events ahead of the handlers, as `walk` decides, and renews leases. It has a session of its own, so
//! a write that waits never delays a renewal.

use std::time::Duration;

use futures_util::future::{OptionFuture, join3, join5};
use uuid::Uuid;

use super::clocks::Reading;
use super::limits::Turn;
use super::scan::ScanStep;
use super::scheduling::PAGE;
use super::session::Session;
use super::slots::{SlotAnswer, SlotRequest};
use crate::error::Error;
use crate::queue::{
    self, Claim, DueSchedule, Fired, Firing, Grant, LeaseRequest, LeasedBatch, Walk,
};

/// The most delayed events that become ready at once.
const PROMOTE_LIMIT: u32 = 1000;

/// The most bytes of payload in one lease. As many may be in the buffer when the lease is requested. A function of
/// the smallest size can hold both beside the program.
pub(super) const LEASE_BYTES: u64 = 8 << 20;

/// What to request from the database.
pub(super) struct FetchRequest {
    pub worker: Uuid,
    /// The tokens of all leases in the buffer.
    pub held: Vec<Uuid>,
    /// Those of them after which more events of a group may be leased.
    pub trusted: Vec<Uuid>,
    /// Leases that are marked as ended.
    pub over: Vec<Uuid>,
    pub timeout: Duration,
    /// Whether to renew the leases too.
    pub renews: bool,
    pub ask: Target,
    /// The kinds of events to lease.
    pub kinds: Vec<&'static str>,
    /// What to request about slots.
    pub slots: SlotRequest,
    /// If it is time to look for due schedules: the schedule after which to look.
    pub look: Option<i64>,
    /// All kinds that this program handles.
    pub all_kinds: &'static [&'static str],
    pub first_window: u32,
    /// When the order was created. Its renewals count from this time.
    pub sent: Reading,
}

/// What to request besides a renewal.
pub(super) enum Target {
    Nothing,
    /// More events.
    Events(ScanStep),
    /// One event to try this service with.
    Probe(String),
    /// Events that call a limited service.
    Limited(Turn, ScanStep),
    /// Places and starts of a limited service.
    Claim(Claim),
    /// The firing of schedules.
    Fire(Vec<Firing>),
}

impl Target {
    /// Returns where to lease events, if this leases from a walk.
    fn stretch(&self) -> Option<&ScanStep> {
        match self {
            Self::Events(stretch) | Self::Limited(_, stretch) => Some(stretch),
            Self::Nothing | Self::Probe(_) | Self::Claim(_) | Self::Fire(_) => None,
        }
    }

    /// Whether this leases events.
    pub(super) fn leases(&self) -> bool {
        matches!(self, Self::Probe(_)) || self.stretch().is_some()
    }
}

impl FetchRequest {
    /// Returns the request for a lease, if there is one. Over a new connection it keeps the place of the
    /// walk, and nothing of what the walk knew.
    fn request(&self, token: Uuid, begins_anew: bool) -> Option<LeaseRequest<'_>> {
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
            passed_by: &[],
            probe: None,
            walk: Walk::default(),
        };
        if let Target::Probe(service) = &self.ask {
            return Some(LeaseRequest {
                probe: Some(service),
                ..request
            });
        }
        let stretch = self.ask.stretch()?;
        Some(LeaseRequest {
            limit: stretch.limit,
            passed_by: &stretch.passed_by,
            walk: if begins_anew {
                Walk {
                    after: stretch.walk.after,
                    ..Walk::default()
                }
            } else {
                stretch.walk
            },
            ..request
        })
    }
}

/// What an order brought.
pub(super) struct FetchResult {
    /// The lowest id of the delayed events that became ready just before.
    pub promoted: Option<i64>,
    pub batch: LeasedBatch,
    /// What was granted of the claim.
    pub grant: Grant,
    /// The schedules that are due, if it looked for them.
    pub due: Option<Result<Vec<DueSchedule>, Error>>,
    /// The result of the firing.
    pub fired: Option<Result<Vec<Fired>, Error>>,
    pub token: Uuid,
    /// The leases that still exist, each with how often events were taken from it.
    pub renewed: Option<Vec<(Uuid, i32)>>,
    /// The answers about slots.
    pub slots: SlotAnswer,
}

/// The answer, with the session and the order handed back.
pub(super) struct Fetched {
    pub session: Session,
    /// Whether a lease may have been taken whose answer was lost.
    pub unsure: bool,
    pub order: FetchRequest,
    pub brought: Result<FetchResult, Error>,
}

/// Renews leases, makes due events ready, and leases events, with bounded reconnects.
pub(super) async fn lease(mut session: Session, order: FetchRequest) -> Fetched {
    let mut unsure = false;
    let brought = loop {
        match attempt(&mut session, &order, unsure).await {
            Ok(brought) => {
                session.recovered();
                break Ok(brought);
            }
            Err(error) => {
                // A lost attempt may have leased events under its own token, which is not held. A sweep gives
                // them back.
                unsure |= order.ask.leases();
                if let Err(error) = session.retry_after(error).await {
                    break Err(error);
                }
            }
        }
    };
    Fetched {
        session,
        unsure,
        order,
        brought,
    }
}

/// Makes one attempt. All requests travel in one round trip and run in this order.
async fn attempt(
    session: &mut Session,
    order: &FetchRequest,
    unsure: bool,
) -> Result<FetchResult, Error> {
    let begins_anew = session.begins_anew().await?;
    let client = session.client().await?;
    let token = Uuid::new_v4();
    let sweeps = unsure || order.ask.stretch().is_some_and(ScanStep::is_start);
    let renew = order
        .renews
        .then(|| queue::renew(client, order.worker, &order.held, order.timeout));
    let sweep = sweeps.then(|| queue::sweep(client, order.worker, &order.held));
    let promote = order
        .ask
        .leases()
        .then(|| queue::promote(client, PROMOTE_LIMIT));
    let request = order.request(token, begins_anew);
    let over = (request.is_none() && !order.over.is_empty())
        .then(|| queue::remove_ended(client, &order.over));
    let leased = request
        .as_ref()
        .map(|request| queue::lease(client, request));
    let claimed = match &order.ask {
        Target::Claim(claim) => Some(queue::claim_service(client, order.worker, claim)),
        _ => None,
    };
    let fire = match &order.ask {
        Target::Fire(firings) => Some(queue::fire_schedules(client, firings)),
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
    let beside = join3(OptionFuture::from(fire), OptionFuture::from(look), slots);
    let over = OptionFuture::from(over);
    let ((renewed, swept, promoted, batch, grant), (fired, due, slots), over) =
        join3(leasing, beside, over).await;
    swept.transpose()?;
    over.transpose()?;
    let (fired, due) = (passes(fired)?, passes(due)?);
    Ok(FetchResult {
        renewed: renewed.transpose()?,
        promoted: promoted.transpose()?.and_then(|(_, lowest)| lowest),
        batch: batch.transpose()?.unwrap_or_default(),
        grant: grant.transpose()?.unwrap_or_default(),
        due,
        fired,
        token,
        slots: slots?,
    })
}

/// Lets errors of schedules pass, so that they do not stop the drain. Only a lost connection is an error
/// here, because it affects everything.
fn passes<T>(answer: Option<Result<T, Error>>) -> Result<Option<Result<T, Error>>, Error> {
    match answer {
        Some(Err(error)) if error.is_connection_lost() => Err(error),
        answer => Ok(answer),
    }
}
