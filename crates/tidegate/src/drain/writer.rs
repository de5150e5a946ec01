//! Writes down what became of events, many at a time: what goes back, what has ended, what more is to start.
//!
//! The surprises. What the database refuses is taken apart until the culprit is alone: one event that cannot be
//! written keeps no other one from being written. And after a lost connection nobody knows whether the last statement
//! was applied: an end that does not come back is looked up in the log by its lease's token, so that it is not mistaken
//! for a lost lease.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;
use tokio_postgres::Client;
use uuid::Uuid;

use super::hand::Start;
use super::services::Services;
use super::session::Session;
use crate::error::Error;
use crate::handler::Fault;
use crate::lease::{Lease, LeasedEvent};
use crate::outcome::{HandlerEnd, Status};
use crate::queue::{
    self, Completed, Completion, ErrorEntry, Finalization, Follow, InHand, Retried, ServiceReport,
    ending,
};

/// What is refused oftener than this in one round is no event's fault: the round ends, and is tried again later.
const MOST_REFUSALS: u32 = 64;

/// How the report counts an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// It was leased to be handled, and ended so.
    Handled(Status),
    /// Swept: its deadline had passed.
    Expired,
    /// Swept: abandoned on its last attempt.
    Abandoned,
}

/// An event's end, with what the loop must know when it is written, or cannot be.
pub(super) struct End {
    pub finalization: Finalization,
    pub class: Class,
    pub group: Option<String>,
    /// The attempt it is the end of, and how many there may be.
    pub attempt: (u32, u32),
    /// How its handlers ended, which is kept if the end cannot be written; none if nothing ran.
    pub work: Vec<HandlerEnd>,
    /// Since when one of its follow-ups has waited for another publisher.
    pub busy_since: Option<Instant>,
    /// Its group stays shut until this is written.
    pub holds_group: bool,
}

impl End {
    /// The event's return to the queue instead, with what has been done of it.
    pub(super) fn back(self, fault: &Fault, charged: bool, delay: Duration) -> Back {
        Back {
            retried: Retried {
                lease: self.finalization.lease,
                charged,
                delay,
                errors: vec![ErrorEntry::new(None, fault, self.attempt.0)],
                progress: ending::progress(&self.work),
                deferred: Vec::new(),
            },
            group: self.group,
            leased: matches!(self.class, Class::Handled(_)),
        }
    }
}

/// An event's return to the queue.
pub(super) struct Back {
    pub retried: Retried,
    pub group: Option<String>,
    /// Whether the report has counted it as leased.
    pub leased: bool,
}

/// One round of writing.
#[derive(Default)]
pub(super) struct WriteBatch {
    pub ends: Vec<End>,
    pub retries: Vec<Back>,
    /// To be given back as they are.
    pub releases: Vec<LeasedEvent>,
    /// Started events behind what goes back.
    pub ran: Vec<i64>,
    pub unreadable: Vec<Lease>,
    pub starts: Vec<Start>,
    /// What was learnt of services.
    pub reports: Vec<ServiceReport>,
    /// Leases of which nothing is left once this is written.
    pub over: HashSet<Uuid>,
    /// Tokens of all leases, when it is to be read again what is in hand.
    pub reread: Option<Vec<Uuid>>,
    /// Completions up to this number are in this batch or an earlier one.
    pub up_to: u64,
}

impl WriteBatch {
    /// Whether something leaves our hands without an end, or may have: then no lease may be under way, for it would take
    /// what is given back to be ours.
    pub(super) fn is_exclusive(&self) -> bool {
        !self.retries.is_empty() || !self.releases.is_empty() || self.reread.is_some()
    }

    /// Events whose fate it writes.
    pub(super) fn outcomes(&self) -> usize {
        self.ends.len() + self.retries.len() + self.releases.len() + self.unreadable.len()
    }

    /// Whether there is anything to write.
    pub(super) fn is_empty(&self) -> bool {
        self.outcomes() == 0
            && self.starts.is_empty()
            && self.reports.is_empty()
            && self.over.is_empty()
            && self.reread.is_none()
    }
}

/// What a batch changed so far.
#[derive(Default)]
pub(super) struct Written {
    /// Leases all of whose plain ends in this batch are in the log: nearly always all of them.
    whole: HashSet<Uuid>,
    /// Other ends that are in the log.
    ended: HashSet<Lease>,
    /// Ends that wait for another publisher.
    pub busy: HashSet<i64>,
    /// Ends that the database refuses, with its words.
    pub refused: HashMap<Lease, String>,
    /// Of them, those that are not the event's own fault.
    pub blameless: HashSet<Lease>,
    /// Ends that could not be stored as they were and became FAILED.
    pub unstorable: HashSet<Lease>,
    /// All that left our hands; `None` until that is written.
    pub left: Option<HashSet<i64>>,
    /// Retries that the database refuses: they stay where they are, and lapse.
    pub stuck: HashSet<i64>,
    /// How often something was taken from each lease; nothing of one that is gone.
    pub cuts: Vec<(Uuid, Option<i32>)>,
    pub in_hand: Option<Vec<InHand>>,
    pub published: u64,
    /// A service may be called again, say the answers to reports.
    pub service_opened: bool,
    /// Reports that have been answered.
    reported: usize,
    refusals: u32,
}

impl Written {
    /// Whether this end is in the log.
    pub(super) fn has_ended(&self, end: &Finalization) -> bool {
        let with_all = end.is_plain() && self.whole.contains(&end.lease.token);
        (with_all && !self.refused.contains_key(&end.lease)) || self.ended.contains(&end.lease)
    }

    /// Whether this event was ended without its payload.
    pub(super) fn has_ended_unreadable(&self, lease: &Lease) -> bool {
        self.ended.contains(lease)
    }
}

/// The answer, with the session and the batch handed back.
pub(super) struct Round {
    pub session: Session,
    pub batch: WriteBatch,
    pub written: Written,
    /// Why not everything was written.
    pub failed: Option<Error>,
}

/// Writes a batch, with bounded reconnects.
pub(super) async fn write(
    mut session: Session,
    mut batch: WriteBatch,
    worker: Uuid,
    services: Arc<Services>,
) -> Round {
    // Rows are locked in the order of the arguments, and everybody locks them by id.
    batch
        .ends
        .sort_unstable_by_key(|end| end.finalization.lease);
    let mut writer = Writer {
        worker,
        services: &services,
        batch: &batch,
        written: Written::default(),
    };
    let failed = loop {
        let tried = match session.client().await {
            Ok(client) => writer.write(client).await,
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
    let written = writer.written;
    Round {
        session,
        batch,
        written,
        failed,
    }
}

/// One batch on its way, over as many tries as it takes.
struct Writer<'a> {
    worker: Uuid,
    services: &'a Services,
    batch: &'a WriteBatch,
    written: Written,
}

impl Writer<'_> {
    /// Writes the parts that are not written yet. What goes back goes first: the locks of a completion are weaker.
    async fn write(&mut self, client: &Client) -> Result<(), Error> {
        self.report(client).await?;
        if self.written.left.is_none() {
            let mut left = self.give_back(client).await?;
            left.extend(self.retry(client).await?);
            self.written.left = Some(left);
        }
        for lease in &self.batch.unreadable {
            if !self.written.ended.contains(lease) && queue::end_unreadable(client, *lease).await? {
                self.written.ended.insert(*lease);
            }
        }
        self.finalize(client).await?;
        self.complete(client).await?;
        if let (Some(tokens), None) = (&self.batch.reread, &self.written.in_hand) {
            self.written.in_hand = Some(queue::in_hand(client, tokens).await?);
        }
        Ok(())
    }

    /// Before retries: what a service's answers are counted at is noted with the events that wait for it.
    async fn report(&mut self, client: &Client) -> Result<(), Error> {
        for report in self.batch.reports.iter().skip(self.written.reported) {
            match queue::report_service(client, self.worker, report).await {
                Ok(watched) => self.written.service_opened |= self.services.learn(&watched),
                // A name or a code that cannot be stored is no reason to write nothing else.
                Err(error) if error.is_refusal() => {
                    tracing::error!(service = report.service, error = %error, "report of a service is refused");
                }
                Err(error) => return Err(error),
            }
            self.written.reported += 1;
        }
        Ok(())
    }

    /// A retry, with what it must remember of the services that it waits for.
    fn noted(&self, retried: &Retried) -> Retried {
        let mut retried = retried.clone();
        for service in &retried.deferred {
            let progress = retried.progress.get_or_insert_default();
            let answers = self.services.answers(service);
            progress.deferred.insert((*service).to_owned(), answers);
        }
        retried
    }

    async fn give_back(&mut self, client: &Client) -> Result<HashSet<i64>, Error> {
        if self.batch.releases.is_empty() {
            return Ok(HashSet::new());
        }
        let leases: Vec<Lease> = self
            .batch
            .releases
            .iter()
            .map(|event| event.lease)
            .collect();
        let left = queue::hand_back(client, self.worker, &leases).await?;
        Ok(left.into_iter().collect())
    }

    /// All retries at once; if the database refuses one, each by itself.
    async fn retry(&mut self, client: &Client) -> Result<HashSet<i64>, Error> {
        let retries = self.batch.retries.iter();
        let retries: Vec<Retried> = retries.map(|back| self.noted(&back.retried)).collect();
        if retries.is_empty() {
            return Ok(HashSet::new());
        }
        let error = match queue::retry(client, self.worker, &retries, &self.batch.ran).await {
            Ok(left) => return Ok(left.into_iter().collect()),
            Err(error) => error,
        };
        self.note_refusal(error)?;
        let mut left = HashSet::new();
        for retry in &retries {
            match queue::retry(
                client,
                self.worker,
                std::slice::from_ref(retry),
                &self.batch.ran,
            )
            .await
            {
                Ok(more) => left.extend(more),
                Err(error) => {
                    tracing::error!(event.id = retry.lease.id, error = %error, "retry cannot be stored; the event lapses");
                    self.note_refusal(error)?;
                    self.written.stuck.insert(retry.lease.id);
                }
            }
        }
        Ok(left)
    }

    /// A refusal to take apart; anything else, or too many of them, ends this try.
    fn note_refusal(&mut self, error: Error) -> Result<Error, Error> {
        self.written.refusals += 1;
        if !error.is_refusal() || self.written.refusals > MOST_REFUSALS {
            return Err(error);
        }
        Ok(error)
    }

    /// Whether an end is not decided yet.
    fn is_open(&self, end: &End) -> bool {
        let lease = end.finalization.lease;
        !self.written.has_ended(&end.finalization)
            && !self.written.refused.contains_key(&lease)
            && !self.written.busy.contains(&lease.id)
    }

    /// Ends with something else to store, a statement for each lease.
    async fn finalize(&mut self, client: &Client) -> Result<(), Error> {
        let mut by_token: BTreeMap<Uuid, Vec<&Finalization>> = BTreeMap::new();
        for end in &self.batch.ends {
            if !end.finalization.is_plain() && self.is_open(end) {
                let ends = by_token.entry(end.finalization.lease.token).or_default();
                ends.push(&end.finalization);
            }
        }
        for (token, ends) in by_token {
            self.finalize_apart(client, token, &ends).await?;
        }
        Ok(())
    }

    /// One statement for them all; if the database refuses it, one for each half, until the culprit is alone.
    fn finalize_apart<'a>(
        &'a mut self,
        client: &'a Client,
        token: Uuid,
        ends: &'a [&'a Finalization],
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let error = match queue::finalize_under(client, token, ends, Follow::IfFree).await {
                Ok(flushed) => {
                    self.written.published += flushed.published;
                    self.written.ended.extend(flushed.ended);
                    self.written.busy.extend(flushed.busy);
                    self.written.cuts.push((token, flushed.cuts));
                    return self.look_up(client, ends.iter().map(|end| end.lease)).await;
                }
                Err(error) => self.note_refusal(error)?,
            };
            match ends {
                [] => Ok(()),
                [end] => self.end_refused(client, end, error).await,
                _ => {
                    let (first, second) = ends.split_at(ends.len() / 2);
                    self.finalize_apart(client, token, first).await?;
                    self.finalize_apart(client, token, second).await
                }
            }
        }
        .boxed()
    }

    /// The one whose end the database refuses: it fails, if that is because of its own data; else it goes back.
    async fn end_refused(
        &mut self,
        client: &Client,
        end: &Finalization,
        error: Error,
    ) -> Result<(), Error> {
        let mut error = error;
        if error.is_bad_data() {
            tracing::error!(event.id = end.lease.id, error = %error, "outcome cannot be stored; event fails");
            let failed = unstorable(end, &error);
            match queue::finalize_under(client, end.lease.token, &[&failed], Follow::IfFree).await {
                Ok(flushed) => {
                    self.written.ended.extend(flushed.ended);
                    self.written.unstorable.insert(end.lease);
                    return Ok(());
                }
                Err(again) => error = self.note_refusal(again)?,
            }
        }
        if !error.is_bad_data() && !error.is_by_trigger() {
            self.written.blameless.insert(end.lease);
        }
        self.written.refused.insert(end.lease, error.to_string());
        Ok(())
    }

    /// Events that just complete, with what is to start and what is over: one statement for all leases.
    async fn complete(&mut self, client: &Client) -> Result<(), Error> {
        let mut by_token: BTreeMap<Uuid, Completion> = BTreeMap::new();
        let mut leases = Vec::new();
        for end in &self.batch.ends {
            let lease = end.finalization.lease;
            if end.finalization.is_plain() && self.is_open(end) {
                leases.push(lease);
                by_token.entry(lease.token).or_default().done.push(lease.id);
            }
        }
        for start in &self.batch.starts {
            let of_lease = by_token.entry(start.token).or_default();
            of_lease.start_to = Some(start.upto);
        }
        for token in &self.batch.over {
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
                leases.retain(|lease| !self.written.whole.contains(&lease.token));
                self.look_up(client, leases.into_iter()).await
            }
            Err(error) => {
                self.note_refusal(error)?;
                self.complete_apart(client, &completions).await
            }
        }
    }

    /// Takes in what a completion says. If all of a lease's events were there, they have ended.
    fn take_completed(&mut self, completions: &[Completion], completed: &[Completed]) {
        for (completion, answer) in completions.iter().zip(completed) {
            self.written.cuts.push((completion.token, answer.cuts));
            if !completion.done.is_empty() && answer.ended == completion.done.len() as u64 {
                self.written.whole.insert(completion.token);
            }
        }
    }

    /// Looks in the log for ends that did not come back: an earlier try, whose answer was lost, may have written them.
    async fn look_up(
        &mut self,
        client: &Client,
        leases: impl Iterator<Item = Lease>,
    ) -> Result<(), Error> {
        let missing: Vec<Lease> = leases
            .filter(|lease| {
                !self.written.ended.contains(lease) && !self.written.busy.contains(&lease.id)
            })
            .collect();
        if !missing.is_empty() {
            let found = queue::finished_under(client, &missing).await?;
            self.written.ended.extend(found);
        }
        Ok(())
    }

    /// The same for each half of the events, until the culprit is alone; then what starts and what is over.
    async fn complete_apart(
        &mut self,
        client: &Client,
        completions: &[Completion],
    ) -> Result<(), Error> {
        for completion in completions {
            let plain: Vec<&Finalization> = self
                .batch
                .ends
                .iter()
                .map(|end| &end.finalization)
                .filter(|end| {
                    end.lease.token == completion.token && completion.done.contains(&end.lease.id)
                })
                .collect();
            self.finalize_apart(client, completion.token, &plain)
                .await?;
        }
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

/// What remains of an end whose result or follow-ups the database refuses.
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
