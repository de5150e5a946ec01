//! Owns how the data of a person is removed: from an operator's request, through the program's own tables and
//! the person's events, to a report. It knows no SQL, and it knows only what [`Records`] reports about the
//! program's tables.
//!
//! The follow-ups of an event are forgotten before the event itself. Once an event is forgotten, its group no
//! longer leads to it, and so its follow-ups could not be found either. In this order an interrupted run can
//! simply be started again.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::BoxFuture;
use tokio_postgres::{Client, Transaction};

use crate::connect::Database;
use crate::error::Error;
use crate::operate::{ForgetReport, ForgetRequest, Subject, SubjectKeys};
use crate::queue;
use crate::queue::retention::partitions;

/// How many events one statement takes.
const BATCH: usize = 1000;

/// How often to look for events that were published in the meantime. While producers keep publishing about
/// the person, there are always more.
const ROUNDS: usize = 5;

/// The data about people in a program's own tables: how to remove it, and how long to keep it.
pub trait Records: Send + Sync {
    /// Returns the allowed types of a [`Subject`], such as `patient` or `customer`.
    fn subjects(&self) -> &'static [&'static str];

    /// Removes the data of a subject or, with `dry_run`, reports what would be removed. It is called twice:
    /// before the subject's events are forgotten, to find out which they are, and afterwards.
    fn forget<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        subject: &'a Subject,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Forgotten, Error>>;

    /// Removes some of the rows whose retention is over, as many as fit into a short transaction; with
    /// `dry_run`, counts all of them. A cleanup repeats the call until nothing, or no time, is left. Returns
    /// the number of rows by table.
    fn expire<'a>(
        &'a self,
        client: &'a Client,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<BTreeMap<String, u64>, Error>>;
}

/// What a program's own tables hold about a subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The keys by which the subject's events are found.
    pub keys: SubjectKeys,
    /// Rows removed, by table.
    pub tables: BTreeMap<String, u64>,
}

fn check(request: &ForgetRequest, records: Option<&dyn Records>) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::Invalid(text));
    let by_keys = request.group.is_some() || request.correlation_id.is_some();
    if !by_keys && request.ids.is_none() && request.subject.is_none() {
        return invalid(
            "group, correlation_id, ids, subject: one of them must be given".to_owned(),
        );
    }
    if let Some(ids) = &request.ids
        && !(1..=10_000).contains(&ids.len())
    {
        return invalid(format!("ids: must be 1 to 10000 ids, got {}", ids.len()));
    }
    let Some(subject) = &request.subject else {
        return Ok(());
    };
    let known = records.map_or(&[][..], Records::subjects);
    if known.contains(&subject.name.as_str()) {
        return Ok(());
    }
    if known.is_empty() {
        return invalid("subject: this program keeps nothing of anybody in tables".to_owned());
    }
    let (list, got) = (known.join(", "), &subject.name);
    invalid(format!("subject: must be one of {list}, got {got:?}"))
}

/// Removes the data of the person in the request from the program's tables, the queue and its log.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was forgotten
/// before the error stays forgotten, and the same request can be sent again to continue.
pub(crate) async fn forget(
    database: &Database,
    records: Option<&dyn Records>,
    request: &ForgetRequest,
) -> Result<ForgetReport, Error> {
    check(request, records)?;
    let mut client = database.connect().await?;
    let mut report = ForgetReport {
        dry_run: request.dry_run,
        ..ForgetReport::default()
    };
    let of_tables = in_tables(&mut client, records, request, true).await?;
    let mut keys = of_tables.keys;
    keys.groups.extend(request.group.clone());
    keys.correlation_ids.extend(request.correlation_id.clone());
    if !keys.groups.is_empty() {
        // The schedules come first, so that they publish no more events.
        report.schedules = queue::forget_schedules(&client, &keys.groups, request).await?;
    }
    let named = request.ids.clone().unwrap_or_default();
    let mut found = everywhere(&client, &keys).await?;
    found.extend(named);
    let mut family = Family {
        client: &client,
        keys: &keys,
        request,
        report: &mut report,
    };
    let mut left = family.forget(found).await?;
    let rounds = if request.dry_run { 0 } else { ROUNDS };
    let mut is_complete = request.dry_run;
    for _ in 0..rounds {
        // Finds events that were published in the meantime, including those that running handlers published.
        left.extend(everywhere(&client, &keys).await?);
        is_complete = left.is_empty();
        if is_complete {
            break;
        }
        left = family.forget(left).await?;
    }
    report.incomplete = !is_complete;
    report.tables = if request.dry_run {
        of_tables.tables
    } else {
        let forgotten = in_tables(&mut client, records, request, false).await?;
        forgotten.tables
    };
    Ok(report)
}

async fn in_tables(
    client: &mut Client,
    records: Option<&dyn Records>,
    request: &ForgetRequest,
    dry_run: bool,
) -> Result<Forgotten, Error> {
    let (Some(records), Some(subject)) = (records, &request.subject) else {
        return Ok(Forgotten::default());
    };
    let failed = |stage| move |source| Error::Database { stage, source };
    let transaction = client.transaction().await.map_err(failed("begin"))?;
    let forgotten = records.forget(&transaction, subject, dry_run).await?;
    transaction.commit().await.map_err(failed("commit"))?;
    Ok(forgotten)
}

/// Returns events in the queue and in every partition of the log, with one statement for each.
async fn everywhere(client: &Client, keys: &SubjectKeys) -> Result<Vec<i64>, Error> {
    if keys.groups.is_empty() && keys.correlation_ids.is_empty() {
        return Ok(Vec::new());
    }
    // Searches the queue first: an event that ends in the meantime is found in the log.
    let mut found = queue::find_subject(client, None, keys).await?;
    for partition in partitions(client).await? {
        found.extend(queue::find_subject(client, Some(&partition), keys).await?);
    }
    Ok(found)
}

/// Forgets events and all their follow-ups.
struct Family<'a> {
    client: &'a Client,
    keys: &'a SubjectKeys,
    request: &'a ForgetRequest,
    report: &'a mut ForgetReport,
}

impl Family<'_> {
    /// Forgets these events and their follow-ups. Returns follow-ups that have appeared since.
    async fn forget(&mut self, ids: Vec<i64>) -> Result<Vec<i64>, Error> {
        let family = self.grown(ids).await?;
        let mut left = Vec::new();
        // The audit also records that nothing was found.
        let none: [&[i64]; 1] = [&[]];
        let nothing = none.into_iter().filter(|_| family.is_empty());
        for ids in family.rchunks(BATCH).chain(nothing) {
            let done = queue::forget(self.client, ids, self.keys, self.request).await?;
            self.report.forgotten += done.forgotten;
            self.report.cancelled += done.cancelled;
            self.report.in_hand += done.in_hand;
            self.report.before += done.before;
            self.report.unknown += done.unknown;
            left.extend(done.offspring);
        }
        Ok(left)
    }

    /// Adds all follow-ups of these events, sorted by id. A follow-up has a higher id than its event.
    async fn grown(&self, ids: Vec<i64>) -> Result<Vec<i64>, Error> {
        let mut family = BTreeSet::new();
        let mut fresh = ids;
        loop {
            fresh.retain(|id| family.insert(*id));
            if fresh.is_empty() {
                break;
            }
            let mut next = Vec::new();
            for parents in fresh.chunks(BATCH) {
                next.extend(self.offspring(parents).await?);
            }
            fresh = next;
        }
        Ok(family.into_iter().collect())
    }

    async fn offspring(&self, parents: &[i64]) -> Result<Vec<i64>, Error> {
        const PAGE: i32 = 10_000;
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page = queue::offspring(self.client, parents, after, PAGE).await?;
            let is_full = page.len() == PAGE as usize;
            all.extend(page);
            if !is_full {
                return Ok(all);
            }
        }
    }
}
