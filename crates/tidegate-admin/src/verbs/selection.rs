//! Owns which live events a change is about, and how a large number of them is changed: in short transactions
//! of a thousand events each, so that drains, producers and other operators can work in between.
//!
//! An event that another transaction has locked at that moment is skipped, and tried again later by its id,
//! so that the other events do not wait for it.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgGroup, Args};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tidegate_core::connect::{Client, Database};
use tidegate_core::error::{Error, Result};
use tidegate_core::event::hex;
use tidegate_core::queue::Statement;
use tokio_postgres::types::ToSql;

use super::{Audit, Skipped, TimeArg, parse_time_arg, report};

/// How many events one transaction changes.
const BATCH: u32 = 1000;

/// How often skipped events are tried again, and how long to wait before each try.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The reported reason when nothing is changed.
const REFUSED: &str =
    "digest: must match the selected events, and these have changed since the dry run";

/// The most ids in each list of a report.
const LISTED: usize = 100;

/// The most events of a request with a digest.
const DIGESTED: u32 = 10_000;

/// Selects live events: by id, or by at least one of kind, correlation id and group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(group(ArgGroup::new("which").args(["ids", "kind", "correlation_id", "group"]).required(true).multiple(true)))]
pub struct Selection {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Option<Vec<i64>>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only the event with this deduplication key; needs --kind.
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Only events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only events in this state: PENDING or PROCESSING.
    #[arg(long)]
    pub status: Option<String>,
    /// Only events created at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_time_arg)]
    pub created_since: Option<TimeArg>,
    /// Only events created before this time, written like --created-since.
    #[arg(long, value_parser = parse_time_arg)]
    pub created_until: Option<TimeArg>,
    /// Maximum number of events to change, 1 to 1000000, lowest ids first [default: 10000]. With --digest at
    /// most 10000.
    #[arg(long)]
    pub limit: Option<u32>,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    #[serde(default)]
    pub dry_run: bool,
    /// Digest from a dry run with --json: change the events only if exactly those of that dry run would be
    /// changed.
    #[arg(long, conflicts_with = "dry_run")]
    pub digest: Option<String>,
}

impl Selection {
    /// Selects these events, if they are live.
    pub fn of(ids: &[i64]) -> Self {
        Self {
            ids: Some(ids.to_vec()),
            ..Self::default()
        }
    }

    /// Returns the exit code of a change of so many events: 1 if the digest does not match, or if the request
    /// names ids and none of these events could be changed.
    pub(super) fn code(&self, report: &Changed, changed: u64) -> u8 {
        u8::from(report.refused.is_some() || (self.ids.is_some() && changed == 0))
    }

    /// The most events to change.
    fn limit(&self) -> Result<u32> {
        let limit = self.limit.unwrap_or(10_000);
        let (most, with) = match self.digest {
            Some(_) => (DIGESTED, " with a digest"),
            None => (1_000_000, ""),
        };
        if (1..=most).contains(&limit) {
            return Ok(limit);
        }
        let text = format!("limit: must be 1 to {most}{with}, got {limit}");
        Err(Error::Invalid(text))
    }
}

/// What the reports on changes of live events have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Changed {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The first 100 of them.
    #[schemars(length(max = 100))]
    pub ids: Vec<i64>,
    /// The selected events, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// How many events were skipped.
    pub skipped_count: u64,
    /// The first 100 of them.
    #[schemars(length(max = 100))]
    pub skipped: Vec<Skipped>,
    /// Whether more events are left, because of the limit. Send the request again for the rest.
    pub limit_reached: bool,
    /// The digest of the ids of a dry run's events. Missing if the limit is above 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why nothing was changed: the request's digest does not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A change of the events of a selection: a statement whose first parameters are those of [`selected!`].
pub(super) struct BulkChange<'a> {
    pub statement: &'static Statement,
    pub select: &'a Selection,
    pub audit: &'a Audit,
    pub values: Vec<&'a (dyn ToSql + Sync)>,
}

/// The arguments that select a page of events, `$1` to `$15`. A time is either an instant or a number of
/// seconds ago.
macro_rules! selected {
    () => {
        "ids => $1, kind => $2, dedup_key => $3, correlation_id => $4, group_key => $5, status => $6,
       created_since => coalesce($7, clock_timestamp() - make_interval(secs => $8)),
       created_until => coalesce($9, clock_timestamp() - make_interval(secs => $10)),
       reason => $11, actor => $12, \"limit\" => $13, after => $14, dry_run => $15"
    };
}

pub(super) use selected;

/// The result for the events of a page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ChangedPage {
    /// How many events the page had.
    matched: u64,
    /// How many were changed, or would be.
    changed: u64,
    /// The first 100 of them; in a dry run all of them, for its digest.
    ids: Vec<i64>,
    /// How many events the page had of each kind.
    kinds: BTreeMap<String, u64>,
    /// How many cancelled events a handler may have been working on.
    begun: u64,
    /// Events that another transaction had locked at that moment, which were skipped; all of them.
    missed: Vec<i64>,
    #[serde(flatten)]
    left: NotRescheduled,
    /// Ids that name no live event.
    skipped: Vec<Skipped>,
    /// The id after which the next page begins; `None` when this was the last page.
    next: Option<i64>,
}

/// Which events were not rescheduled, or will not run. Each list has the first 100 ids.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NotRescheduled {
    /// A worker has leased them.
    pub in_hand: u64,
    in_hand_ids: Vec<i64>,
    /// They would hold up their groups.
    pub too_late: u64,
    too_late_ids: Vec<i64>,
    /// They are rescheduled, and will expire before they start.
    pub past_deadline: u64,
    pub past_deadline_ids: Vec<i64>,
}

/// The results of all pages together.
#[derive(Default)]
pub(super) struct Pages {
    pub report: Changed,
    /// How many events were changed.
    pub changed: u64,
    /// How many of them a handler may have been working on.
    pub begun: u64,
    pub left: NotRescheduled,
    /// All ids that the pages listed.
    every: Vec<i64>,
    missed: Vec<i64>,
}

impl BulkChange<'_> {
    /// Changes the events, or none if the request's digest does not match.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was
    /// changed before the error stays changed.
    pub(super) async fn run(&self, database: &Database) -> Result<Pages> {
        let limit = self.select.limit()?;
        let client = database.session().await?;
        if self.select.dry_run && limit <= DIGESTED {
            return self.look(&client, limit).await;
        }
        let mut all = Pages::default();
        all.report.dry_run = self.select.dry_run;
        if let Some(digest) = &self.select.digest {
            let seen = self.look(&client, limit).await?;
            if seen.report.digest.as_ref() != Some(digest) {
                all.report.refused = Some(REFUSED.to_owned());
                return Ok(all);
            }
            for ids in seen.every.chunks(BATCH as usize) {
                self.walk(&client, &self.exactly(ids), BATCH, &mut all)
                    .await?;
            }
            all.report.limit_reached = seen.report.limit_reached;
        } else {
            self.walk(&client, self.select, limit, &mut all).await?;
        }
        self.again(&client, &mut all).await?;
        Ok(all)
    }

    /// A dry run, with the ids of all its events and their digest.
    async fn look(&self, client: &Client, limit: u32) -> Result<Pages> {
        let select = Selection {
            dry_run: true,
            ..self.select.clone()
        };
        let mut all = Pages::default();
        all.report.dry_run = self.select.dry_run;
        self.walk(client, &select, limit, &mut all).await?;
        all.report.digest = Some(digest(&all.every));
        Ok(all)
    }

    fn exactly(&self, ids: &[i64]) -> Selection {
        Selection {
            dry_run: self.select.dry_run,
            ..Selection::of(ids)
        }
    }

    /// Changes at most `limit` events of the selection, page by page.
    async fn walk(
        &self,
        client: &Client,
        select: &Selection,
        limit: u32,
        all: &mut Pages,
    ) -> Result<()> {
        let mut left = limit;
        let mut next = Some(0);
        while let Some(after) = next.filter(|_| left > 0) {
            let page = self.page(client, select, after, left.min(BATCH)).await?;
            left = left.saturating_sub(u32::try_from(page.matched).unwrap_or(u32::MAX));
            next = page.next;
            all.take(page);
        }
        if let Some(after) = next {
            let look = Selection {
                dry_run: true,
                ..select.clone()
            };
            all.report.limit_reached = self.page(client, &look, after, 1).await?.matched > 0;
        }
        Ok(())
    }

    /// Changes a page of events, at most `most` after an id, in one transaction with its audit row.
    async fn page(
        &self,
        client: &Client,
        select: &Selection,
        after: i64,
        most: u32,
    ) -> Result<ChangedPage> {
        let (since, since_ago) = TimeArg::parts(select.created_since);
        let (until, until_ago) = TimeArg::parts(select.created_until);
        let status = select.status.as_ref().map(|status| status.to_uppercase());
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &select.ids,
            &select.kind,
            &select.dedup_key,
            &select.correlation_id,
            &select.group,
            &status,
            &since,
            &since_ago,
            &until,
            &until_ago,
            &self.audit.reason,
            &self.audit.actor,
            &most,
            &after,
            &select.dry_run,
        ];
        values.extend(&self.values);
        report(client, self.statement, &values).await
    }

    /// Tries again to change the events that another session had locked.
    async fn again(&self, client: &Client, all: &mut Pages) -> Result<()> {
        for _ in 0..ROUNDS {
            let missed = std::mem::take(&mut all.missed);
            if missed.is_empty() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            let mut page = self.page(client, &self.exactly(&missed), 0, 10_000).await?;
            page.kinds.clear();
            all.take(page);
        }
        let missed = std::mem::take(&mut all.missed);
        all.skip(&missed, "another session has locked it; try again");
        Ok(())
    }
}

impl Pages {
    fn take(&mut self, page: ChangedPage) {
        self.changed += page.changed;
        self.begun += page.begun;
        self.every.extend(&page.ids);
        self.missed.extend(page.missed);
        for (kind, count) in page.kinds {
            *self.report.kinds.entry(kind).or_default() += count;
        }
        extend(&mut self.report.ids, page.ids);
        self.report.skipped_count += page.skipped.len() as u64;
        extend(&mut self.report.skipped, page.skipped);
        let left = page.left;
        self.left.in_hand += left.in_hand;
        self.left.too_late += left.too_late;
        self.left.past_deadline += left.past_deadline;
        extend(&mut self.left.past_deadline_ids, left.past_deadline_ids);
        self.report.skipped_count += left.in_hand - left.in_hand_ids.len() as u64;
        self.report.skipped_count += left.too_late - left.too_late_ids.len() as u64;
        self.skip(&left.in_hand_ids, "in a worker's hands");
        self.skip(&left.too_late_ids, "would hold up its group for too long");
    }

    fn skip(&mut self, ids: &[i64], reason: &str) {
        self.report.skipped_count += ids.len() as u64;
        let skipped = ids.iter().map(|id| Skipped {
            id: *id,
            reason: reason.to_owned(),
            by: None,
        });
        extend(&mut self.report.skipped, skipped);
    }
}

/// Computes the digest of ids as a replay's dry run does, in SQL.
fn digest(ids: &[i64]) -> String {
    let texts: Vec<String> = ids.iter().map(i64::to_string).collect();
    hex(&Sha256::digest(texts.join(",")))
}

fn extend<T>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    let room = LISTED.saturating_sub(list.len());
    list.extend(more.into_iter().take(room));
}
