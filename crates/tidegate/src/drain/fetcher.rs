//! Leases events ahead of the handlers, as `scan` decides, and renews leases. It owns the leasing session, so
//! a write that waits never delays a renewal. Whatever else a drain requests from the database beside its
//! leases travels along: due schedules, places of limited services, the drain's slot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, join, join3, join5};
use tidegate_core::connect::{Client, Database};
use tidegate_core::error::Error;
use tidegate_core::queue::{
    self, Claim, DueSchedule, Fired, Firing, Grant, Kept, LeaseRequest, LeasedBatch, Walk,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::buffer::Buffer;
use super::clocks::Reading;
use super::leases::Leases;
use super::scan::{Scan, ScanStep};
use super::scheduling::{PAGE, Scheduling};
use super::session::{Lane, Session};

/// The most delayed events that become ready at once.
const PROMOTE_LIMIT: u32 = 1000;

/// The most bytes of payload in one lease. As many may be held when the lease is requested. A function of the
/// smallest size can hold both beside the program.
pub(super) const LEASE_BYTES: u64 = 8 << 20;

/// The leasing session, and what leases have shown about the queue.
pub(super) struct Fetcher {
    /// The name of this run in its leases.
    pub worker: Uuid,
    session: Lane<FetchResult>,
    /// How long a lease lasts.
    timeout: Duration,
    /// All kinds that this program handles.
    pub all_kinds: Arc<[&'static str]>,
    pub scan: Scan,
    pub scheduling: Scheduling,
    pub empty: QuietWatch,
    /// Whether the current lease brings events that may start at once.
    brings_window: bool,
    /// Whether the answer to a lease was lost, so that this run may have a lease that it does not know.
    has_unknown: bool,
}

/// What leases have shown about whether the queue is empty.
pub(super) struct QuietWatch {
    pub seen: bool,
    /// When the last lease that was answered was requested.
    looked_at: Instant,
    /// Since when there is no work here either.
    since: Option<Instant>,
    /// Whether the last lease left out kinds for which there was no time.
    pub kinds_left_out: bool,
}

impl QuietWatch {
    pub(super) fn note(&mut self, seen: bool, looked_at: Instant) {
        (self.seen, self.looked_at) = (seen, looked_at);
    }
}

/// A request to the database, with all that travels along.
pub(super) struct FetchRequest {
    pub fetch: FetchKind,
    /// The kinds of events to lease.
    pub kinds: Vec<&'static str>,
    /// If it is time to look for due schedules: the schedule after which to look.
    pub look: Option<i64>,
    /// The slot to renew, if it is time to, and up to which number to count ready events.
    pub keep: Option<(i32, u64)>,
    /// How many of the events may start at once.
    pub window: usize,
    worker: Uuid,
    timeout: Duration,
    all_kinds: Arc<[&'static str]>,
    /// The tokens of all held leases.
    pub held: Vec<Uuid>,
    /// Those of them after which more events of a group may be leased.
    trusted: Vec<Uuid>,
    /// Leases that are marked as ended.
    over: Vec<Uuid>,
    /// Whether to renew the leases too.
    renews: bool,
    /// When the request was made. Its renewals count from this time.
    pub sent: Reading,
}

/// What to request besides a renewal.
pub(super) enum FetchKind {
    Nothing,
    /// More events.
    Events(ScanStep),
    /// One event to try this service with.
    Probe(String),
    /// Events that call a limited service.
    Limited(String, ScanStep),
    /// Places and starts of a limited service.
    Claim(Claim),
    /// The firing of schedules.
    Fire(Vec<Firing>),
}

impl FetchKind {
    /// Returns the service to try and where to lease events, if this leases any.
    fn lease(&self) -> Option<(Option<&str>, Option<&ScanStep>)> {
        match self {
            Self::Events(step) | Self::Limited(_, step) => Some((None, Some(step))),
            Self::Probe(service) => Some((Some(service), None)),
            Self::Nothing | Self::Claim(_) | Self::Fire(_) => None,
        }
    }

    fn leases(&self) -> bool {
        self.lease().is_some()
    }

    /// Whether this leases events from the start of a walk.
    fn is_start(&self) -> bool {
        matches!(self.lease(), Some((_, Some(step))) if step.is_start())
    }
}

impl FetchRequest {
    async fn keep_slot(&self, client: &Client) -> Option<Result<Kept, Error>> {
        let (slot, most) = self.keep?;
        let (timeout, kinds) = (self.timeout, &self.all_kinds);
        Some(queue::keep_slot(client, self.worker, timeout, slot, kinds, most).await)
    }

    /// Returns what to lease over this connection, if this leases anything.
    fn lease(&self, token: Uuid, connection: u32) -> Option<LeaseRequest<'_>> {
        let (probe, step) = self.fetch.lease()?;
        Some(LeaseRequest {
            token,
            worker: self.worker,
            held: &self.trusted,
            over: &self.over,
            timeout: self.timeout,
            kinds: &self.kinds,
            limit: step.map_or(1, |step| step.limit),
            bytes: LEASE_BYTES,
            first_window: u32::try_from(self.window).unwrap_or(u32::MAX),
            passed_by: step.map_or(&[], |step| &step.passed_by),
            probe,
            walk: step.map_or_else(Walk::default, |step| step.walk.over(connection)),
        })
    }
}

/// The answer to a request.
pub(super) struct Fetched {
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
    /// The answer to the renewal of the slot.
    pub kept: Option<Kept>,
    /// Events that have ended because they had waited for a service for too long.
    pub given_up: Vec<i64>,
}

/// The answer, with the session and the request.
pub(super) struct FetchResult {
    session: Session,
    /// Whether a lease may have been taken whose answer was lost.
    is_unsure: bool,
    request: FetchRequest,
    fetched: Result<Fetched, Error>,
}

impl Fetcher {
    pub(super) fn new(
        database: &Database,
        timeout: Duration,
        all_kinds: Arc<[&'static str]>,
        scan: Scan,
    ) -> Self {
        Self {
            worker: Uuid::new_v4(),
            session: Lane::new(database),
            timeout,
            all_kinds,
            scan,
            scheduling: Scheduling::new(),
            empty: QuietWatch {
                seen: false,
                looked_at: Instant::now(),
                since: None,
                kinds_left_out: false,
            },
            brings_window: false,
            has_unknown: false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    /// `None` while a request is under way.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.session.idle()
    }

    /// Returns the time spent waiting for the session.
    pub(super) fn database_time(&self) -> Duration {
        self.session.busy_time()
    }

    /// Whether a lease is under way that brings events which may start at once.
    pub(super) fn brings_window(&self) -> bool {
        self.brings_window
    }

    /// Whether this run may have a lease that it does not know.
    pub(super) fn has_unknown(&self) -> bool {
        self.has_unknown
    }

    /// Returns a request that renews all leases if the oldest renewal was a third of their time ago, and does
    /// nothing else.
    pub(super) fn request(&self, leases: &Leases) -> FetchRequest {
        let sent = Reading::now();
        let oldest = leases.oldest_renewal();
        FetchRequest {
            fetch: FetchKind::Nothing,
            kinds: Vec::new(),
            look: None,
            keep: None,
            window: 0,
            worker: self.worker,
            timeout: self.timeout,
            all_kinds: self.all_kinds.clone(),
            held: leases.tokens(),
            trusted: leases.trusted(),
            over: Vec::new(),
            renews: oldest.is_some_and(|renewed| sent.steady >= renewed + self.timeout / 3),
            sent,
        }
    }

    /// Sends a request, if it requests anything. Returns whether it did.
    pub(super) fn send(&mut self, mut request: FetchRequest, buffer: &mut Buffer) -> bool {
        let leases = request.fetch.leases();
        let beside = request.renews || request.look.is_some() || request.keep.is_some();
        if matches!(request.fetch, FetchKind::Nothing) && !beside {
            return false;
        }
        self.brings_window = leases && request.window > 0;
        if leases || request.renews {
            request.over = buffer.take_ended();
        }
        self.session.send(|session| fetch(session, request).boxed());
        true
    }

    /// Waits for the answer to the current request; for ever if there is none.
    pub(super) async fn fetched(&mut self) -> FetchResult {
        self.session.done().await
    }

    /// # Errors
    /// When the request has failed too often.
    pub(super) fn on_fetched(
        &mut self,
        result: FetchResult,
    ) -> Result<(FetchRequest, Fetched), Error> {
        self.session.put(result.session);
        self.has_unknown |= result.is_unsure;
        self.brings_window = false;
        Ok((result.request, result.fetched?))
    }

    /// Processes the answers about schedules. Returns how many events a firing has published.
    pub(super) fn on_scheduled(&mut self, fetched: &mut Fetched) -> u64 {
        let fired = fetched.fired.take();
        let published = fired.map_or(0, |fired| self.scheduling.fired(fired));
        if let Some(due) = fetched.due.take() {
            self.scheduling.found(due);
        }
        published
    }

    /// Says that there is work, so that the queue does not count as empty.
    pub(super) fn note_busy(&mut self) {
        self.empty.since = None;
    }

    /// Whether nothing has been left to do for as long as `linger`, and the queue was seen empty after that.
    pub(super) fn has_lingered(&mut self, linger: Duration) -> bool {
        let now = Instant::now();
        let over = *self.empty.since.get_or_insert(now) + linger;
        if now < over {
            return false;
        }
        if linger.is_zero() || self.empty.looked_at >= over {
            return true;
        }
        self.scan.start_over();
        false
    }
}

/// Renews leases, makes due events ready, and leases events, with bounded reconnects.
async fn fetch(mut session: Session, request: FetchRequest) -> FetchResult {
    let mut is_unsure = false;
    let fetched = loop {
        match attempt(&mut session, &request, is_unsure).await {
            Ok(fetched) => {
                session.recovered();
                break Ok(fetched);
            }
            Err(error) => {
                // A lost attempt may have leased events under its own token, which is not held. A sweep
                // releases them.
                is_unsure |= request.fetch.leases();
                if let Err(error) = session.retry_after(error).await {
                    break Err(error);
                }
            }
        }
    };
    FetchResult {
        session,
        is_unsure,
        request,
        fetched,
    }
}

/// Makes one attempt. All statements travel in one round trip, and the server runs them in this order.
async fn attempt(
    session: &mut Session,
    request: &FetchRequest,
    is_unsure: bool,
) -> Result<Fetched, Error> {
    let (client, connection) = session.numbered().await?;
    let token = Uuid::new_v4();
    let sweeps = is_unsure || request.fetch.is_start();
    let renew = request
        .renews
        .then(|| queue::renew(client, request.worker, &request.held, request.timeout));
    let sweep = sweeps.then(|| sweep(client, request));
    let lease = request.lease(token, connection);
    let promote = lease
        .is_some()
        .then(|| queue::promote(client, PROMOTE_LIMIT));
    let over = (lease.is_none() && !request.over.is_empty())
        .then(|| queue::remove_ended(client, &request.over));
    let leased = lease.as_ref().map(|lease| queue::lease(client, lease));
    let claimed = match &request.fetch {
        FetchKind::Claim(claim) => Some(queue::claim_service(client, request.worker, claim)),
        _ => None,
    };
    let fire = match &request.fetch {
        FetchKind::Fire(firings) => Some(queue::fire_schedules(client, firings)),
        _ => None,
    };
    let look = request
        .look
        .map(|after| queue::due_schedules(client, &request.all_kinds, after, PAGE, None));
    let leasing = join5(
        OptionFuture::from(renew),
        OptionFuture::from(sweep),
        OptionFuture::from(promote),
        OptionFuture::from(leased),
        OptionFuture::from(claimed),
    );
    let beside = join3(
        OptionFuture::from(fire),
        OptionFuture::from(look),
        request.keep_slot(client),
    );
    let over = OptionFuture::from(over);
    let ((renewed, given_up, promoted, batch, grant), (fired, due, kept), over) =
        join3(leasing, beside, over).await;
    over.transpose()?;
    let (fired, due) = (only_lost_connections(fired)?, only_lost_connections(due)?);
    Ok(Fetched {
        renewed: renewed.transpose()?,
        promoted: promoted.transpose()?.and_then(|(_, lowest)| lowest),
        batch: batch.transpose()?.unwrap_or_default(),
        grant: grant.transpose()?.unwrap_or_default(),
        due,
        fired,
        token,
        kept: kept.transpose()?,
        given_up: given_up.transpose()?.unwrap_or_default(),
    })
}

/// Frees the events of dead workers, and ends those that have waited for a service for too long. A lease that
/// follows may bring what was behind them.
async fn sweep(client: &Client, request: &FetchRequest) -> Result<Vec<i64>, Error> {
    let sweep = queue::sweep(client, request.worker, &request.held);
    let (swept, given_up) = join(sweep, queue::give_up(client)).await;
    swept?;
    given_up
}

/// Keeps errors of schedules from stopping the drain. Only a lost connection does, because it affects
/// everything.
fn only_lost_connections<T>(
    answer: Option<Result<T, Error>>,
) -> Result<Option<Result<T, Error>>, Error> {
    match answer {
        Some(Err(error)) if error.is_connection_lost() => Err(error),
        answer => Ok(answer),
    }
}
