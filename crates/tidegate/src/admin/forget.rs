//! The verb `forget`: removes the data of a person from the program's own tables, the queue and its log. It
//! knows only what [`Records`] reports about the program's tables.
//!
//! The follow-ups of an event are forgotten before the event itself. Once an event is forgotten, its group no
//! longer leads to it, and so its follow-ups could not be found either. In this order an interrupted run can
//! simply be started again.

use std::collections::{BTreeMap, BTreeSet};

use crate::connect::Client;

use super::prelude::*;
use super::{Subject, SubjectKeys, parse_subject};
use crate::forget::{Forgotten, Records};
use crate::queue;
use crate::queue::retention::partitions;

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
/// The report of a forget. For a dry run, what it would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ForgetReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Events, live and finished, whose content was removed. Only the record of their processing remains.
    pub forgotten: u64,
    /// How many of them were live, and ended as FAILED with the code `cancelled`.
    pub cancelled: u64,
    /// How many of them a handler may have been working on. What it does to other tables and services is not
    /// undone. Send the request again when the handler must have ended.
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
    FORGET: "forget" [INT8_ARRAY, TEXT, TEXT, BOOL, TEXT_ARRAY, TEXT_ARRAY] =
        "SELECT tidegate.forget($1, $2, $3, $4, $5, $6)::text";

    /// Events of these groups or with these correlation ids, in the queue or in one partition of the log.
    FIND_SUBJECT: "find_subject" [TEXT, TEXT_ARRAY, TEXT_ARRAY] =
        "SELECT tidegate.find_subject($1, $2, $3)";

    /// The follow-ups and replays of events, by id.
    OFFSPRING: "offspring" [INT8_ARRAY, INT8, INT4] = "SELECT tidegate.offspring($1, $2, $3)";
}

impl Verb for ForgetRequest {
    const NAME: &'static str = "forget";

    type Report = ForgetReport;

    parts! { whom; audit }

    /// Removes the data of the person in the request. What was forgotten before an error stays forgotten.
    async fn run(&self, service: &Service) -> Result<ForgetReport> {
        let records = service.records();
        check(self, records)?;
        let mut client = service.database.session().await?;
        let mut report = ForgetReport {
            dry_run: self.dry_run,
            ..ForgetReport::default()
        };
        let of_tables = in_tables(&mut client, records, self, true).await?;
        let mut keys = of_tables.keys;
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
            // Finds events that were published in the meantime, also by handlers that run.
            left.extend(everywhere(&client, &keys).await?);
            is_complete = left.is_empty();
            if is_complete {
                break;
            }
            left = family.forget(left).await?;
        }
        report.incomplete = !is_complete;
        report.tables = if self.dry_run {
            of_tables.tables
        } else {
            let forgotten = in_tables(&mut client, records, self, false).await?;
            forgotten.tables
        };
        Ok(report)
    }
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

fn check(request: &ForgetRequest, records: Option<&dyn Records>) -> Result<()> {
    let invalid = |text: String| Err(Error::Invalid(text));
    let by_keys = request.whom.group.is_some() || request.whom.correlation_id.is_some();
    if !by_keys && request.whom.ids.is_none() && request.whom.subject.is_none() {
        return invalid(
            "group, correlation_id, ids, subject: one of them must be given".to_owned(),
        );
    }
    if let Some(ids) = &request.whom.ids
        && !(1..=10_000).contains(&ids.len())
    {
        return invalid(format!("ids: must be 1 to 10000 ids, got {}", ids.len()));
    }
    let Some(subject) = &request.whom.subject else {
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

async fn in_tables(
    client: &mut Client,
    records: Option<&dyn Records>,
    request: &ForgetRequest,
    dry_run: bool,
) -> Result<Forgotten> {
    let (Some(records), Some(subject)) = (records, &request.whom.subject) else {
        return Ok(Forgotten::default());
    };
    let transaction = client.transaction().await.map_err(Error::at("begin"))?;
    let forgotten = records.forget(&transaction, subject, dry_run).await?;
    transaction.commit().await.map_err(Error::at("commit"))?;
    Ok(forgotten)
}

/// Returns events in the queue and in every partition of the log, with one statement for each.
async fn everywhere(client: &Client, keys: &SubjectKeys) -> Result<Vec<i64>> {
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
    keys: &'a SubjectKeys,
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
