//! Writes what became of events, many at a time: which go back, which have ended, and which may start.
//!
//! If the database refuses a statement, its events are written one by one, so that one event that cannot be
//! written never keeps another from being written. After a lost connection it is unknown whether the last
//! statement was applied. An end that does not come back is therefore looked up in the log by the token of
//! its lease, and not mistaken for a lost lease.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::connect::Client;
use tidegate_core::error::Error;
use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeasedEvent};
use tidegate_core::progress::Status;
use tidegate_core::queue::{
    self, Completed, Completion, ErrorEntry, Finalization, Follow, InHand, Retried, Returned,
    ServiceReport,
};
use uuid::Uuid;

use super::leases::WindowRaise;
use super::session::Session;
use crate::ending;
use crate::outcome::{HandlerEnd, is_put_off};
use crate::services::Services;

/// With more refusals than this in one round, no single event is at fault. The round ends and is tried again
/// later.
const MOST_REFUSALS: u32 = 64;

/// How the report counts an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedAs {
    /// It was leased to be handled, and ended with this status.
    Handled(Status),
    /// It was leased to be handled, and its handlers put it off.
    PutOff,
    /// It was swept because its deadline had passed.
    Expired,
    /// It was swept because its last attempt was abandoned.
    Abandoned,
    /// An attempt failed, and it went back.
    Retried,
    /// It went back because its handlers want to run later.
    Snoozed,
    /// It went back because it waits for a service.
    Deferred,
    /// It went back without a start.
    Released,
}

impl CountedAs {
    /// Returns how to count an event that these handlers ended.
    pub(super) fn of(status: Status, ends: &[HandlerEnd]) -> Self {
        if is_put_off(ends) {
            Self::PutOff
        } else {
            Self::Handled(status)
        }
    }

    /// Whether the report has counted the event as leased.
    pub(super) fn was_leased(self) -> bool {
        matches!(self, Self::Handled(_) | Self::PutOff)
    }
}

/// An event's end that is to be written, with what the loop must know when it is or cannot be.
pub(super) struct PendingEnd {
    /// Its number among all outcomes.
    pub number: u64,
    pub finalization: Finalization,
    pub counted_as: CountedAs,
    pub group: Option<String>,
    /// The number of its attempt, and how many it may have.
    pub attempt: (u32, u32),
    /// How its handlers ended, which is kept if the end cannot be written. Empty if nothing ran.
    pub work: Vec<HandlerEnd>,
    /// Whether its group stays closed until this is written.
    pub holds_group: bool,
}

impl PendingEnd {
    /// Converts the end into a return of the event to the queue, with the work that is done.
    pub(super) fn into_retry(self, fault: &Fault, charged: bool, delay: Duration) -> Retry {
        Retry {
            retried: Retried {
                lease: self.finalization.lease,
                charged,
                delay,
                errors: vec![ErrorEntry::new(None, fault, self.attempt.0)],
                progress: ending::progress(&self.work),
                deferred: Vec::new(),
            },
            group: self.group,
            leased: self.counted_as.was_leased(),
            number: Some(self.number),
        }
    }
}

/// An event's return to the queue.
pub(super) struct Retry {
    pub retried: Retried,
    pub group: Option<String>,
    /// Whether the report has counted it as leased.
    pub leased: bool,
    /// The number of the end that could not be written.
    pub number: Option<u64>,
}

/// The content of one round of writing.
#[derive(Default)]
pub(super) struct Flush {
    pub ends: Vec<PendingEnd>,
    pub retries: Vec<Retry>,
    /// Events to be given back unchanged.
    pub releases: Vec<LeasedEvent>,
    /// Events that were started after an event that goes back.
    pub ran: Vec<i64>,
    pub unreadable: Vec<Lease>,
    pub starts: Vec<WindowRaise>,
    /// Marks of leases that are to be lowered: the token, the present mark and the new one.
    pub lowered: Vec<(Uuid, i64, i64)>,
    /// Reports about services.
    pub reports: Vec<ServiceReport>,
    /// Leases that have no events left once this is written.
    pub over: HashSet<Uuid>,
    /// The tokens of all leases, when the events in the buffer are to be read again.
    pub reread: Option<Vec<Uuid>>,
    /// Completions up to this number are in this batch or an earlier one.
    pub up_to: u64,
}

impl Flush {
    /// Whether an event leaves our hands without an end, or may have. Then no lease may be under way, because
    /// that lease would count the returned event as ours.
    pub(super) fn is_exclusive(&self) -> bool {
        !self.retries.is_empty() || !self.releases.is_empty() || self.reread.is_some()
    }

    /// Returns how many events it writes an outcome for.
    pub(super) fn outcomes(&self) -> usize {
        self.ends.len() + self.retries.len() + self.releases.len() + self.unreadable.len()
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.outcomes() == 0
            && self.starts.is_empty()
            && self.lowered.is_empty()
            && self.reports.is_empty()
            && self.over.is_empty()
            && self.reread.is_none()
    }
}

/// Why an end cannot be written now. The event goes back with the work that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unwritable {
    pub fault: Fault,
    /// Whether the event is not the cause, and keeps its attempt.
    pub blameless: bool,
}

impl Unwritable {
    /// The database refuses the end with this error.
    fn by(error: &Error) -> Self {
        let reason = format!("the result cannot be stored: {error}");
        Self {
            fault: Fault::new("unwritable", reason),
            blameless: !error.is_bad_data() && !error.is_by_trigger(),
        }
    }

    /// The end needs a lock that another transaction holds.
    fn busy() -> Self {
        let why = "another transaction holds a lock that the end of this event needs";
        Self {
            fault: Fault::new("group_busy", why),
            blameless: true,
        }
    }

    /// An earlier end of the same group cannot be written.
    pub(super) fn behind() -> Self {
        let why = "the result was not stored, because an earlier event of the group is released";
        Self {
            fault: Fault::new("unwritable", why),
            blameless: true,
        }
    }
}

/// What a batch has changed so far.
#[derive(Default)]
pub(super) struct FlushState {
    /// Leases whose plain ends in this batch are all in the log. This is nearly always every lease.
    whole: HashSet<Uuid>,
    /// The other ends that are in the log.
    written: HashSet<Lease>,
    /// Events that have ended FAILED instead of what was to be written: their results cannot be stored, or
    /// the database cannot read what it has stored of them.
    pub failed: HashSet<Lease>,
    /// Ends that cannot be written.
    pub refused: HashMap<Lease, Unwritable>,
    /// All events that left this drain's leases without an end; `None` until the returns are written.
    pub left: Option<HashSet<i64>>,
    /// Retries that the database refuses. These events stay in their leases, which lapse.
    pub stuck: HashSet<i64>,
    /// Events that could not go back, because another session has locked them.
    pub returns_busy: HashSet<i64>,
    /// Leases whose marks were lowered.
    pub lowered: Vec<Uuid>,
    /// The first event of each group whose end could not be written.
    refused_groups: HashMap<String, i64>,
    /// How often events were taken from each lease; `None` for a lease that is gone.
    pub cuts: Vec<(Uuid, Option<i32>)>,
    /// The events that the database knows to be held, if they were read again.
    pub reread: Option<Vec<InHand>>,
    pub published: u64,
    /// Whether a service may be called again, according to the answers to the reports.
    pub service_opened: bool,
    /// How many reports have been answered.
    reported: usize,
    refusals: u32,
}

impl FlushState {
    /// Returns what became of an end, if it is decided.
    pub(super) fn of_end(&self, end: &PendingEnd) -> Option<WriteResult> {
        let lease = &end.finalization.lease;
        if let Some(refusal) = self.refused.get(lease) {
            return Some(WriteResult::Refused(refusal.clone()));
        }
        if self.failed.contains(lease) {
            return Some(WriteResult::FAILED);
        }
        let with_all = end.finalization.is_plain() && self.whole.contains(&lease.token);
        let is_written = with_all || self.written.contains(lease);
        is_written.then_some(WriteResult::Ended(end.counted_as))
    }
}

pub(super) struct FlushResult {
    pub session: Session,
    pub flushed: FlushReport,
}

/// A flush, and what it has changed.
pub(super) struct FlushReport {
    /// What it was to write. Its events are taken out when their changes are known.
    pub flush: Flush,
    pub state: FlushState,
    /// Why not everything was written.
    pub failed: Option<Error>,
    /// How many outcomes it was to write.
    pub outcomes: usize,
    /// The events that were to go back with a retry of their own.
    pub retried: HashSet<i64>,
    /// What became of single events, in this order.
    pub changes: Vec<Change>,
}

impl FlushReport {
    fn new(flush: Flush, state: FlushState, failed: Option<Error>) -> Self {
        let retried = flush.retries.iter().map(|retry| retry.retried.lease.id);
        Self {
            outcomes: flush.outcomes(),
            retried: retried.collect(),
            changes: Vec::with_capacity(flush.outcomes()),
            flush,
            state,
            failed,
        }
    }

    /// Whether everything was written.
    pub(super) fn is_whole(&self) -> bool {
        self.failed.is_none()
    }

    /// Returns the windows that the database knows now.
    pub(super) fn starts(&self) -> &[WindowRaise] {
        if self.is_whole() {
            &self.flush.starts
        } else {
            &[]
        }
    }

    /// Returns the leases whose marks were lowered, with the new marks.
    pub(super) fn lowered(&self) -> impl Iterator<Item = (Uuid, i64)> {
        let lowered = self.flush.lowered.iter();
        let lowered = lowered.filter(|(token, ..)| self.state.lowered.contains(token));
        lowered.map(|(token, _, mark)| (*token, *mark))
    }
}

/// What became of an event.
pub(super) struct Change {
    pub lease: Lease,
    pub group: Option<String>,
    /// Whether the report has counted it as leased.
    pub leased: bool,
    pub result: WriteResult,
    /// Whether its group has waited for this.
    pub opens: bool,
    /// Whether its group was closed until this, and nothing else holds it.
    pub reopens: bool,
}

/// What a flush did with one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteResult {
    /// Its end is written.
    Ended(CountedAs),
    /// Its end cannot be written, and it will go back. Until it has, no later event of its group starts, ends
    /// or commits.
    Refused(Unwritable),
    /// It is in the queue again, ready at once if the flag is set.
    Returned(CountedAs, bool),
    /// It cannot go back, and stays in its lease until the lease lapses.
    Abandoned,
    /// This drain no longer held it when its end or its return was to be written.
    Lost { returned: bool },
}

impl WriteResult {
    /// It has ended FAILED, whatever it was to be.
    pub(super) const FAILED: Self = Self::Ended(CountedAs::Handled(Status::Failed));
}

impl Change {
    pub(super) fn new(
        lease: Lease,
        group: Option<String>,
        leased: bool,
        result: WriteResult,
    ) -> Self {
        Self {
            lease,
            group,
            leased,
            result,
            opens: false,
            reopens: false,
        }
    }
}

/// Writes the content of a flush, with bounded reconnects.
pub(super) async fn flush(
    mut session: Session,
    mut flush: Flush,
    worker: Uuid,
    services: Arc<Services>,
) -> FlushResult {
    // The database locks rows in the order of the arguments, and every statement locks them by id.
    flush
        .ends
        .sort_unstable_by_key(|end| end.finalization.lease);
    let mut flusher = Flusher {
        worker,
        services: &services,
        flush: &flush,
        state: FlushState::default(),
    };
    let failed = loop {
        let tried = match session.client().await {
            Ok(client) => flusher.write(client).await,
            Err(error) => Err(error),
        };
        let Err(error) = tried else {
            session.recovered();
            break None;
        };
        if let Err(error) = session.retry_after(error).await {
            break Some(error);
        }
    };
    let state = flusher.state;
    FlushResult {
        session,
        flushed: FlushReport::new(flush, state, failed),
    }
}

/// One batch that is being written, in as many tries as it takes.
struct Flusher<'a> {
    worker: Uuid,
    services: &'a Services,
    flush: &'a Flush,
    state: FlushState,
}

impl Flusher<'_> {
    /// Writes the parts that are not written yet. Returns to the queue go first, because the locks of a
    /// completion are weaker.
    async fn write(&mut self, client: &Client) -> Result<(), Error> {
        self.report(client).await?;
        if self.state.left.is_none() {
            let mut left = self.release(client).await?;
            left.extend(self.retry(client).await?);
            self.state.left = Some(left);
        }
        if !self.flush.lowered.is_empty() {
            let lowered = queue::take_back_starts(client, self.worker, &self.flush.lowered).await;
            match lowered {
                Ok(lowered) => self.state.lowered = lowered,
                Err(error) => drop(self.note_refusal(error)?),
            }
        }
        for lease in &self.flush.unreadable {
            if self.state.failed.contains(lease) {
                continue;
            }
            match queue::end_unreadable(client, *lease).await {
                Ok(true) => drop(self.state.failed.insert(*lease)),
                Ok(false) => {}
                Err(error) if error.is_lock_timeout() => {
                    self.state.refused.insert(*lease, Unwritable::busy());
                }
                Err(error) => return Err(error),
            }
        }
        self.finalize(client).await?;
        self.complete(client).await?;
        if let (Some(tokens), None) = (&self.flush.reread, &self.state.reread) {
            self.state.reread = Some(queue::in_hand(client, tokens).await?);
        }
        Ok(())
    }

    /// Sends the reports about services. This comes before the retries, because each event that waits for a
    /// service is stored with the number of that service's answers.
    async fn report(&mut self, client: &Client) -> Result<(), Error> {
        for report in self.flush.reports.iter().skip(self.state.reported) {
            match queue::report_service(client, self.worker, report).await {
                Ok(watched) => {
                    let opened = self.services.apply_stored_states(&watched);
                    self.state.service_opened |= opened || report.uncalled.is_some();
                }
                // A name or a code that cannot be stored must not keep the rest from being written.
                Err(error) if error.is_refusal() => {
                    tracing::error!(service = report.service, error = %error, "report of a service is refused");
                }
                Err(error) => return Err(error),
            }
            self.state.reported += 1;
        }
        Ok(())
    }

    /// Returns a retry together with what it must store about the services that it waits for.
    fn noted(&self, retried: &Retried) -> Retried {
        let mut retried = retried.clone();
        for service in &retried.deferred {
            let progress = retried.progress.get_or_insert_default();
            let waited = progress.deferred.entry((*service).to_owned());
            waited.or_default().answers = self.services.answers(service);
        }
        retried
    }

    async fn release(&mut self, client: &Client) -> Result<HashSet<i64>, Error> {
        if self.flush.releases.is_empty() {
            return Ok(HashSet::new());
        }
        let leases: Vec<Lease> = self
            .flush
            .releases
            .iter()
            .map(|event| event.lease)
            .collect();
        let returned = match queue::hand_back(client, self.worker, &leases).await {
            Ok(returned) => returned,
            // Somebody uses one of the leases for longer than a moment.
            Err(error) if error.is_wait() => {
                let busy = leases.iter().map(|lease| lease.id);
                self.state.returns_busy.extend(busy);
                return Ok(HashSet::new());
            }
            Err(error) => return Err(error),
        };
        Ok(self.take_returned(returned))
    }

    fn take_returned(&mut self, returned: Returned) -> HashSet<i64> {
        self.state.returns_busy.extend(returned.busy);
        returned.left.into_iter().collect()
    }

    /// Writes all retries at once. If the database refuses that, writes each by itself.
    async fn retry(&mut self, client: &Client) -> Result<HashSet<i64>, Error> {
        let retries = self.flush.retries.iter();
        let retries: Vec<Retried> = retries.map(|back| self.noted(&back.retried)).collect();
        if retries.is_empty() {
            return Ok(HashSet::new());
        }
        if let Some(left) = self.retry_these(client, &retries).await? {
            return Ok(left);
        }
        let mut left = HashSet::new();
        for retry in &retries {
            match self
                .retry_these(client, std::slice::from_ref(retry))
                .await?
            {
                Some(more) => left.extend(more),
                None => drop(self.state.stuck.insert(retry.lease.id)),
            }
        }
        Ok(left)
    }

    /// Writes these retries. `None` means that the database refuses one of them for what it writes. After any
    /// other refusal they are tried again.
    async fn retry_these(
        &mut self,
        client: &Client,
        retries: &[Retried],
    ) -> Result<Option<HashSet<i64>>, Error> {
        let error = match queue::retry(client, self.worker, retries, &self.flush.ran).await {
            Ok(returned) => return Ok(Some(self.take_returned(returned))),
            Err(error) => error,
        };
        if let [retry] = retries
            && error.is_corruption()
        {
            if queue::end_unreadable(client, retry.lease).await? {
                self.state.failed.insert(retry.lease);
            }
            return Ok(Some(HashSet::new()));
        }
        let refuses_data = error.is_bad_data() || error.is_by_trigger();
        if error.is_wait() || (retries.len() == 1 && !refuses_data) {
            let busy = retries.iter().map(|retry| retry.lease.id);
            self.state.returns_busy.extend(busy);
            return Ok(Some(HashSet::new()));
        }
        let error = self.note_refusal(error)?;
        if let [retry] = retries {
            tracing::error!(event.id = retry.lease.id, error = %error, "retry cannot be stored; the event lapses");
        }
        Ok(None)
    }

    /// Counts a refusal and returns it. Any other error, or one refusal too many, ends this try.
    fn note_refusal(&mut self, error: Error) -> Result<Error, Error> {
        self.state.refusals += 1;
        if !error.is_refusal() || self.state.refusals > MOST_REFUSALS {
            return Err(error);
        }
        Ok(error)
    }

    /// Writes ends that store more than the status. The ends of their groups go the same way, so that the
    /// order in a group is kept if one of them cannot be written.
    async fn finalize(&mut self, client: &Client) -> Result<(), Error> {
        let flush = self.flush;
        let special = flush.ends.iter();
        let special = special.filter(|end| !end.finalization.is_plain());
        let groups: HashSet<&str> = special.filter_map(|end| end.group.as_deref()).collect();
        let of_them = |end: &&PendingEnd| {
            let group = end.group.as_deref();
            !end.finalization.is_plain() || group.is_some_and(|group| groups.contains(group))
        };
        let ends: Vec<&PendingEnd> = flush.ends.iter().filter(of_them).collect();
        self.finalize_in_order(client, &ends).await
    }

    /// Writes ends in the order of their ids, with one statement for all that follow each other in one lease.
    async fn finalize_in_order(
        &mut self,
        client: &Client,
        ends: &[&PendingEnd],
    ) -> Result<(), Error> {
        let same_lease = |one: &&PendingEnd, other: &&PendingEnd| {
            one.finalization.lease.token == other.finalization.lease.token
        };
        for run in ends.chunk_by(same_lease) {
            let token = run[0].finalization.lease.token;
            self.finalize_run(client, token, run).await?;
        }
        Ok(())
    }

    /// Marks an end as one that cannot be written now. Nothing later of its group may be written either.
    fn refuse(&mut self, end: &PendingEnd, refusal: Unwritable) {
        let lease = end.finalization.lease;
        self.state.refused.insert(lease, refusal);
        if let Some(group) = &end.group {
            let groups = &mut self.state.refused_groups;
            let first = groups.entry(group.clone()).or_insert(lease.id);
            *first = lease.id.min(*first);
        }
    }

    /// Whether an end may be written. One that is behind an end of its group that cannot be is marked, too.
    fn is_free(&mut self, end: &PendingEnd) -> bool {
        if self.state.of_end(end).is_some() {
            return false;
        }
        let lease = end.finalization.lease;
        let group = end.group.as_deref();
        let first = group.and_then(|group| self.state.refused_groups.get(group));
        let is_behind = first.is_some_and(|first| lease.id > *first);
        if is_behind {
            self.state.refused.insert(lease, Unwritable::behind());
        }
        !is_behind
    }

    /// Writes the ends of one lease with one statement. If the database refuses it, writes them one by one.
    async fn finalize_run(
        &mut self,
        client: &Client,
        token: Uuid,
        run: &[&PendingEnd],
    ) -> Result<(), Error> {
        let Some(mut error) = self.finalize_these(client, token, run).await? else {
            return Ok(());
        };
        for (at, end) in run.iter().enumerate() {
            if run.len() > 1 {
                match self.finalize_these(client, token, &[end]).await? {
                    Some(of_this) => error = of_this,
                    None => continue,
                }
            }
            if error.is_lock_timeout() {
                // The next ones could wait for as long.
                let rest: Vec<&PendingEnd> = run[at..].to_vec();
                let busy = rest.iter().map(|end| end.finalization.lease.id).collect();
                return self.take_busy(client, &rest, busy).await;
            }
            self.end_refused(client, end, &error).await?;
        }
        Ok(())
    }

    /// Writes ends of one lease. Returns why the database refuses the statement.
    async fn finalize_these(
        &mut self,
        client: &Client,
        token: Uuid,
        ends: &[&PendingEnd],
    ) -> Result<Option<Error>, Error> {
        let mut ends = ends.to_vec();
        ends.retain(|end| self.is_free(end));
        if ends.is_empty() {
            return Ok(None);
        }
        let finals: Vec<&Finalization> = ends.iter().map(|end| &end.finalization).collect();
        match queue::finalize_under(client, token, &finals, Follow::IfFree).await {
            Ok(flushed) => {
                self.state.published += flushed.published;
                self.state.written.extend(flushed.ended);
                self.state.cuts.push((token, flushed.cuts));
                self.take_busy(client, &ends, flushed.busy).await?;
                Ok(None)
            }
            Err(error) if error.is_lock_timeout() => Ok(Some(error)),
            Err(error) => self.note_refusal(error).map(Some),
        }
    }

    /// Marks the ends that need a lock of another session, and looks for those that did not come back.
    async fn take_busy(
        &mut self,
        client: &Client,
        ends: &[&PendingEnd],
        busy: Vec<i64>,
    ) -> Result<(), Error> {
        for end in ends {
            if busy.contains(&end.finalization.lease.id) && self.is_free(end) {
                self.refuse(end, Unwritable::busy());
            }
        }
        let leases = ends.iter().map(|end| end.finalization.lease);
        self.look_up(client, leases).await
    }

    /// Handles a single end that the database refuses. If its own data is the cause, the event fails;
    /// otherwise it goes back.
    async fn end_refused(
        &mut self,
        client: &Client,
        end: &PendingEnd,
        error: &Error,
    ) -> Result<(), Error> {
        let again;
        let mut error = error;
        if error.is_bad_data() {
            let lease = end.finalization.lease;
            tracing::error!(event.id = lease.id, error = %error, "outcome cannot be stored; event fails");
            let failed = unstorable(&end.finalization, error);
            match queue::finalize_under(client, lease.token, &[&failed], Follow::IfFree).await {
                Ok(flushed) => {
                    self.state.failed.extend(flushed.ended);
                    if !flushed.busy.is_empty() {
                        self.refuse(end, Unwritable::busy());
                    }
                    return Ok(());
                }
                Err(refused) => {
                    again = self.note_refusal(refused)?;
                    error = &again;
                }
            }
        }
        self.refuse(end, Unwritable::by(error));
        Ok(())
    }

    /// Writes events that just complete, together with starts and ended leases, with one statement for all
    /// leases.
    async fn complete(&mut self, client: &Client) -> Result<(), Error> {
        let mut by_token: BTreeMap<Uuid, Completion> = BTreeMap::new();
        let mut leases = Vec::new();
        for end in &self.flush.ends {
            let lease = end.finalization.lease;
            if end.finalization.is_plain() && self.is_free(end) {
                leases.push(lease);
                by_token.entry(lease.token).or_default().done.push(lease.id);
            }
        }
        for start in &self.flush.starts {
            let of_lease = by_token.entry(start.token).or_default();
            of_lease.start_to = Some(start.upto);
        }
        for token in &self.flush.over {
            by_token.entry(*token).or_default().over = true;
        }
        let completions: Vec<Completion> = by_token
            .into_iter()
            .map(|(token, completion)| Completion {
                token,
                ..completion
            })
            .collect();
        match queue::complete(client, &completions).await {
            Ok(completed) => {
                self.take_completed(&completions, &completed);
                leases.retain(|lease| !self.state.whole.contains(&lease.token));
                self.look_up(client, leases.into_iter()).await
            }
            Err(error) => {
                self.note_refusal(error)?;
                self.complete_apart(client, &completions, &leases).await
            }
        }
    }

    /// Processes the answer to a completion. If it counts all events of a lease, they have ended.
    fn take_completed(&mut self, completions: &[Completion], completed: &[Completed]) {
        for (completion, answer) in completions.iter().zip(completed) {
            self.state.cuts.push((completion.token, answer.cuts));
            if !completion.done.is_empty() && answer.ended == completion.done.len() as u64 {
                self.state.whole.insert(completion.token);
            }
        }
    }

    /// Looks in the log for ends that did not come back. An earlier try, whose answer was lost, may have
    /// written them.
    async fn look_up(
        &mut self,
        client: &Client,
        leases: impl Iterator<Item = Lease>,
    ) -> Result<(), Error> {
        let state = &self.state;
        let missing = leases
            .filter(|lease| !state.written.contains(lease) && !state.refused.contains_key(lease));
        let missing: Vec<Lease> = missing.collect();
        if !missing.is_empty() {
            let found = queue::finished_under(client, &missing).await?;
            self.state.written.extend(found);
        }
        Ok(())
    }

    /// Ends the events like those that store more than the status. Then writes the starts and the ended
    /// leases.
    async fn complete_apart(
        &mut self,
        client: &Client,
        completions: &[Completion],
        leases: &[Lease],
    ) -> Result<(), Error> {
        let leases: HashSet<Lease> = leases.iter().copied().collect();
        let of_them = |end: &&PendingEnd| leases.contains(&end.finalization.lease);
        let ends: Vec<&PendingEnd> = self.flush.ends.iter().filter(of_them).collect();
        self.finalize_in_order(client, &ends).await?;
        let rest: Vec<Completion> = completions
            .iter()
            .map(|completion| Completion {
                done: Vec::new(),
                ..completion.clone()
            })
            .collect();
        let completed = queue::complete(client, &rest).await?;
        self.take_completed(&rest, &completed);
        Ok(())
    }
}

/// Returns what remains of an end whose result or follow-ups the database refuses.
fn unstorable(end: &Finalization, error: &Error) -> Finalization {
    let attempt = end.errors.last().map_or(0, |entry| entry.attempt);
    let fault = Fault::new(
        "unstorable",
        format!("the outcome cannot be stored: {error}"),
    );
    Finalization {
        errors: vec![ErrorEntry::new(None, &fault, attempt)],
        ran: end.ran,
        ..Finalization::new(end.lease, Status::Failed)
    }
}
