//! Reading for operators, without changes: figures, one event with its lineage, lists.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::lineage::{Lineage, MOST_RELATED, RelatedEvent, arrange};
use crate::error::Error;
use crate::moment::Moment;
use crate::queue::read::parsed;
use crate::queue::{query, sql};

/// Returns depth, attempts, latency and failure rate by kind (C13), one object for each.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn stats(client: &(impl GenericClient + Sync)) -> Result<Vec<Value>, Error> {
    parsed(
        "tidegate.stats",
        &query(client, &sql::look::STATS, &[]).await?,
    )
}

/// The figures of the whole queue that are not sums over its kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overview {
    /// The age of the live event with the lowest id, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
    /// Groups whose first event waits while others wait for it.
    pub blocked_groups: u64,
    /// Events that ended in the last day with a status other than COMPLETED.
    pub dead_letters_last_day: u64,
    /// Events that ended in the last minute.
    pub finished_last_minute: u64,
}

/// Reads the figures that belong to no kind.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn overview(client: &(impl GenericClient + Sync)) -> Result<Overview, Error> {
    let rows = query(client, &sql::look::OVERVIEW, &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Overview::default());
    };
    Ok(Overview {
        oldest_age_ms: row.get::<_, Option<i64>>(0).unwrap_or(0).unsigned_abs(),
        blocked_groups: row.get::<_, i64>(1).unsigned_abs(),
        dead_letters_last_day: row.get::<_, i64>(2).unsigned_abs(),
        finished_last_minute: row.get::<_, i64>(3).unsigned_abs(),
    })
}

/// Returns all columns of one event, with its table in `in`; `None` when there is no such event. A column
/// that this program cannot read is null, and `unreadable` has the reason.
///
/// # Errors
/// When the database fails or does not answer, or [`Error::Unreadable`].
pub async fn show(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Value>, Error> {
    let rows = query(client, &sql::look::SHOW, &[&id]).await?;
    let text = rows.first().map(|row| row.get(0));
    text.map(|text| columns(text).map_err(|why| Error::Unreadable(format!("event {id}: {why}"))))
        .transpose()
}

/// Parses a row's columns one by one. A payload can be stored that no parser here reads: half of a surrogate
/// pair, or thousands of levels.
fn columns(row: &str) -> Result<Value, serde_json::Error> {
    let columns: BTreeMap<String, &RawValue> = serde_json::from_str(row)?;
    let (mut event, mut unreadable) = (Map::new(), Map::new());
    for (name, text) in columns {
        let value = serde_json::from_str(text.get()).unwrap_or_else(|error: serde_json::Error| {
            unreadable.insert(name.clone(), error.to_string().into());
            Value::Null
        });
        event.insert(name, value);
    }
    if !unreadable.is_empty() {
        event.insert("unreadable".to_owned(), unreadable.into());
    }
    Ok(event.into())
}

/// Returns where an event comes from and what followed from it: the events that it follows or replays up to
/// the first, and all events that followed from these or replayed them. `None` when there is no such event.
/// At most 500 events, the nearest ones.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn lineage(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Lineage>, Error> {
    // Reads one more than are shown, to find out whether there are more.
    let limit = i64::try_from(MOST_RELATED).unwrap_or(i64::MAX) + 1;
    let rows = query(client, &sql::look::LINEAGE, &[&id, &limit]).await?;
    let related: Vec<RelatedEvent> = parsed("lineage", &rows)?;
    Ok(arrange(id, related))
}

/// Which events a list holds. A filter that is `None` accepts all events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListFilter<'a> {
    /// Events with this status, live or finished.
    pub status: Option<&'a str>,
    /// Events of this kind.
    pub kind: Option<&'a str>,
    /// Events of this group.
    pub group: Option<&'a str>,
    /// Events with this correlation id.
    pub correlation: Option<&'a str>,
    /// Events created at this time or later.
    pub since: Option<Moment>,
    /// Events created before this time.
    pub until: Option<Moment>,
    /// Events with a lower id: the page after the one that ended there.
    pub before: Option<i64>,
    /// Events with a higher id, which bounds the search.
    pub above: Option<i64>,
}

impl ListFilter<'_> {
    /// Whether live events are searched, and whether finished ones are, without an index that leads to those
    /// that match.
    fn is_searched(&self) -> (bool, bool) {
        let is_any = self.kind.is_none()
            && self.status.is_none()
            && self.group.is_none()
            && self.since.is_none()
            && self.until.is_none();
        // Either every event matches, or an index of both tables leads to the events that do.
        if is_any || self.correlation.is_some() {
            return (false, false);
        }
        let is_live = self
            .status
            .map(|status| ["PENDING", "PROCESSING"].contains(&status));
        // Only the live events have an index of groups.
        (
            is_live != Some(false) && self.group.is_none(),
            is_live != Some(true),
        )
    }
}

/// Where a bounded search ends: the first id that it does not reach, and when that event was created (RFC
/// 3339).
pub(crate) struct SearchFloor {
    pub id: i64,
    pub created_at: Option<String>,
}

/// Returns where a search with this filter ends if it looks at no more than `most` live and `most` finished
/// events. `None` if it reaches all events, or finds by an index those that match.
///
/// # Errors
/// When the database fails or does not answer.
pub(crate) async fn search_floor(
    client: &(impl GenericClient + Sync),
    filter: &ListFilter<'_>,
    most: u32,
) -> Result<Option<SearchFloor>, Error> {
    let (live, logged) = filter.is_searched();
    if !live && !logged {
        return Ok(None);
    }
    let most = i64::from(most);
    let values: &[&(dyn ToSql + Sync)] = &[&filter.before, &live, &logged, &most];
    let rows = query(client, &sql::look::SEARCH_FLOOR, values).await?;
    Ok(rows.first().map(|row| SearchFloor {
        id: row.get(0),
        created_at: row.get(1),
    }))
}

/// Returns the newest events first, live and finished, at most `limit`.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn list(
    client: &(impl GenericClient + Sync),
    filter: &ListFilter<'_>,
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let limit = i64::from(limit);
    let (since, since_ago) = Moment::parts(filter.since);
    let (until, until_ago) = Moment::parts(filter.until);
    let rows = query(
        client,
        &sql::look::LIST,
        &[
            &filter.status,
            &filter.kind,
            &limit,
            &filter.group,
            &filter.correlation,
            &filter.before,
            &since,
            &since_ago,
            &until,
            &until_ago,
            &filter.above,
        ],
    )
    .await?;
    parsed("list", &rows)
}
