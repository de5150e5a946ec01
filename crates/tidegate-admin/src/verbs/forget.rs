//! The verb `forget`: removes the data of a person from the program's own tables, the queue and its log. The
//! program has declared in the database which functions find and remove what its tables hold.
//!
//! The follow-ups of an event are forgotten before the event itself. Once an event is forgotten, its group no
//! longer leads to it, and so its follow-ups could not be found either. In this order an interrupted run can
//! simply be started again.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::connect::Client;
use tidegate_core::queue;
use tidegate_core::queue::retention::partitions;

use super::prelude::*;

/// How many events one statement takes.
const BATCH: usize = 1000;

/// How often to look for events that were published in the meantime. While producers keep publishing about
/// the person, there are always more.
const ROUNDS: usize = 5;

/// Remove the data about a person from the queue, its log and the program's own tables.
///
/// Live events are cancelled. Payloads, results, progress, error texts, groups and keys are removed. Kinds,
/// times, states and codes stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate forget --group customer-3 --reason 'request 2031-17' --dry-run\n  tidegate forget --subject customer=3 --reason 'request 2031-17'"
)]
pub struct ForgetRequest {
    /// Whom to forget.
    #[command(flatten)]
    #[serde(skip)]
    pub whom: Whom,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    #[serde(default)]
    pub dry_run: bool,
    /// Why, and who. The reason should not name the person.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// Whom to forget: at least one of these.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[group(required = true, multiple = true)]
pub struct Whom {
    /// Forget all events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Forget all events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Option<Vec<i64>>,
    /// Forget this person in the program's own tables, with all their events: NAME=ID, such as customer=3.
    #[arg(long, value_parser = parse_subject)]
    #[serde(default, deserialize_with = "written")]
    pub subject: Option<Subject>,
}

impl std::fmt::Debug for Whom {
    /// Leaves out all of it, because it may identify a person (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Whom")
    }
}

/// The person or thing that data is about, in the program's own terms: `customer=3`.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    /// A name that the program has declared with the SQL function `tidegate.declare_subject`.
    pub name: String,
    /// Its id.
    pub id: String,
}

impl std::fmt::Debug for Subject {
    /// Leaves out the id, which may identify a person (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({:?})", self.name)
    }
}

/// Parses NAME=ID, such as `customer=3`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_subject(text: &str) -> Result<Subject, String> {
    match text.split_once('=') {
        Some((name, id)) if !name.is_empty() && !id.is_empty() => Ok(Subject {
            name: name.to_owned(),
            id: id.to_owned(),
        }),
        _ => Err("must be NAME=ID, such as customer=42".to_owned()),
    }
}

/// The report of a forget. For a dry run, what it would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ForgetReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many events, live and finished, lost their content. Only the record of their processing remains.
    pub forgotten: u64,
    /// How many of them were live, and ended as FAILED with the code `cancelled`.
    pub cancelled: u64,
    /// How many of them may have a running handler. What it does to other tables and services is not
    /// undone. Send the request again after it has ended.
    pub in_hand: u64,
    /// How many events had been forgotten before.
    pub before: u64,
    /// How many ids name no event.
    pub unknown: u64,
    /// Rows of the program's own tables that were removed, by table.
    pub tables: BTreeMap<String, u64>,
    /// Whether new events appeared faster than they could be forgotten, as follow-ups or in the group. Send
    /// the request again.
    pub incomplete: bool,
}

statements! {
    FORGET_SUBJECT: "forget_subject" [TEXT, TEXT, TEXT, TEXT, BOOL] =
        "SELECT @tidegate.forget_subject($1, $2, $3, $4, $5)::text";

    FORGET: "forget" [INT8_ARRAY, TEXT, TEXT, BOOL, TEXT_ARRAY, TEXT_ARRAY] =
        "SELECT @tidegate.forget($1, $2, $3, $4, $5, $6)::text";

    /// Events of these groups or with these correlation ids, in the queue or in one partition of the log.
    FIND_SUBJECT: "find_subject" [TEXT, TEXT_ARRAY, TEXT_ARRAY] =
        "SELECT @tidegate.find_subject($1, $2, $3)";

    /// The follow-ups and replays of events, by id.
    OFFSPRING: "offspring" [INT8_ARRAY, INT8, INT4] = "SELECT @tidegate.offspring($1, $2, $3)";
}

impl Verb for ForgetRequest {
    const NAME: &'static str = "forget";

    type Report = ForgetReport;

    parts! { whom; audit }

    fn check(&self) -> Result<()> {
        let Whom {
            group,
            correlation_id,
            ids,
            subject,
        } = &self.whom;
        let invalid = |text: String| Err(Error::Invalid(text));
        match ids {
            Some(ids) if !(1..=10_000).contains(&ids.len()) => {
                invalid(format!("ids: must be 1 to 10000 ids, got {}", ids.len()))
            }
            None if group.is_none() && correlation_id.is_none() && subject.is_none() => {
                invalid("group, correlation_id, ids, subject: one of them must be given".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// 1 if there was nothing to forget, or if something is left.
    fn code(&self, report: &ForgetReport) -> u8 {
        let rows: u64 = report.tables.values().sum();
        let found = report.forgotten + report.before + rows;
        u8::from(found == 0 || report.incomplete)
    }

    /// What was forgotten before an error stays forgotten.
    async fn run(&self, runtime: &Runtime) -> Result<ForgetReport> {
        let client = runtime.database.session().await?;
        let mut report = ForgetReport {
            dry_run: self.dry_run,
            ..ForgetReport::default()
        };
        let mut keys = self.in_tables(&client, true).await?;
        keys.groups.extend(self.whom.group.clone());
        keys.correlation_ids
            .extend(self.whom.correlation_id.clone());
        let named = self.whom.ids.clone().unwrap_or_default();
        let mut found = everywhere(&client, &keys).await?;
        found.extend(named);
        let mut family = Family {
            client: &client,
            keys: &keys,
            request: self,
            report: &mut report,
        };
        let mut left = family.forget(found).await?;
        let rounds = if self.dry_run { 0 } else { ROUNDS };
        let mut is_complete = self.dry_run;
        for _ in 0..rounds {
            // Events may have been published in the meantime, also by running handlers.
            left.extend(everywhere(&client, &keys).await?);
            is_complete = left.is_empty();
            if is_complete {
                break;
            }
            left = family.forget(left).await?;
        }
        report.incomplete = !is_complete;
        report.tables = if self.dry_run {
            keys.tables
        } else {
            self.in_tables(&client, false).await?.tables
        };
        Ok(report)
    }
}

impl ForgetRequest {
    /// Removes, or finds, what the program's own tables hold about the subject of the request.
    async fn in_tables(&self, client: &Client, dry_run: bool) -> Result<Found> {
        let Some(Subject { name, id }) = &self.whom.subject else {
            return Ok(Found::default());
        };
        let Audit { reason, actor } = &self.audit;
        report(
            client,
            &FORGET_SUBJECT,
            &[name, id, reason, actor, &dry_run],
        )
        .await
    }
}

/// What the program's own tables hold about somebody.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Found {
    /// The groups of the events about this person.
    groups: Vec<String>,
    /// The correlation ids of these events.
    correlation_ids: Vec<String>,
    /// Rows by table.
    tables: BTreeMap<String, u64>,
}

/// The result for events that were to be forgotten.
#[derive(Deserialize)]
struct ForgottenEvents {
    /// How many live events were cancelled.
    cancelled: u64,
    /// How many of them a handler may have been working on.
    in_hand: u64,
    /// How many events have no content left now.
    forgotten: u64,
    /// How many of them had no content before.
    before: u64,
    /// How many ids name no event.
    unknown: u64,
    /// The first 1,000 follow-ups that are not forgotten.
    offspring: Vec<i64>,
}

/// Finds the events of these groups and correlation ids, with one statement for the queue and one for each
/// partition of the log.
async fn everywhere(client: &Client, keys: &Found) -> Result<Vec<i64>> {
    if keys.groups.is_empty() && keys.correlation_ids.is_empty() {
        return Ok(Vec::new());
    }
    // Searches the queue first: an event that ends in the meantime is found in the log.
    let find = async |partition: Option<String>| {
        let values: &[&(dyn ToSql + Sync)] = &[&partition, &keys.groups, &keys.correlation_ids];
        queue::all(client, &FIND_SUBJECT, values).await
    };
    let mut found: Vec<i64> = find(None).await?;
    for partition in partitions(client).await? {
        found.extend(find(Some(partition)).await?);
    }
    Ok(found)
}

/// Forgets events and all their follow-ups.
struct Family<'a> {
    client: &'a Client,
    keys: &'a Found,
    request: &'a ForgetRequest,
    report: &'a mut ForgetReport,
}

impl Family<'_> {
    /// Forgets these events and their follow-ups. Returns follow-ups that have appeared since.
    async fn forget(&mut self, ids: Vec<i64>) -> Result<Vec<i64>> {
        let family = self.grown(ids).await?;
        let mut left = Vec::new();
        // The audit also records that nothing was found.
        let none: [&[i64]; 1] = [&[]];
        let nothing = none.into_iter().filter(|_| family.is_empty());
        for ids in family.rchunks(BATCH).chain(nothing) {
            let done = self.forget_these(ids).await?;
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
    async fn grown(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
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

    async fn offspring(&self, parents: &[i64]) -> Result<Vec<i64>> {
        const PAGE: i32 = 10_000;
        let mut all: Vec<i64> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let values: &[&(dyn ToSql + Sync)] = &[&parents, &after, &PAGE];
            let page: Vec<i64> = queue::all(self.client, &OFFSPRING, values).await?;
            let is_full = page.len() == PAGE as usize;
            all.extend(page);
            if !is_full {
                return Ok(all);
            }
        }
    }

    /// Removes the content of these events, at most 1,000, and cancels those that are live. Their keys leave
    /// the audit, and so do the keys of the request.
    async fn forget_these(&self, ids: &[i64]) -> Result<ForgottenEvents> {
        let Audit { reason, actor } = &self.request.audit;
        let (groups, correlation_ids) = (&self.keys.groups, &self.keys.correlation_ids);
        let values: &[&(dyn ToSql + Sync)] = &[
            &ids,
            reason,
            actor,
            &self.request.dry_run,
            groups,
            correlation_ids,
        ];
        report(self.client, &FORGET, values).await
    }
}
