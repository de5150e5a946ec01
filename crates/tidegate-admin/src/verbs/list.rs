//! The verb `list`: lists events, newest first.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_core::connect::Client;
use tidegate_core::queue::{document, documents, registered};

use super::prelude::*;
use super::views::{LISTED, limit, rows};
use super::{TimeArg, event_id, length, parse_time_arg};

/// The states of live and finished events.
const STATUSES: [&str; 5] = [
    "PENDING",
    "PROCESSING",
    "COMPLETED",
    "COMPLETED_WITH_ERRORS",
    "FAILED",
];

/// The most live and the most finished events that one page of a search looks at.
const SEARCHED: u32 = 50_000;

/// Lets a search walk indexes even in a partition of the log that has not been analyzed yet. There the
/// planner expects that a comparison keeps a third of the rows.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off";

/// List events, newest first, live and finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate list --status FAILED --since 2h --limit 20")]
pub struct ListRequest {
    /// Only events in this state: PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = STATUSES, ignore_case = true)]
    pub status: Option<String>,
    /// Only live events, each with the reason why it has not ended.
    #[arg(long)]
    #[serde(default)]
    pub waiting: bool,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Only events whose last error has this code.
    #[arg(long)]
    pub code: Option<String>,
    /// Only events that ended at this time or later, so no live ones: an RFC 3339 time, or a duration such as
    /// 2h for two hours ago.
    #[arg(long, value_parser = parse_time_arg)]
    #[serde(default, deserialize_with = "written")]
    pub since: Option<TimeArg>,
    /// Only events that ended before this time, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    #[serde(default, deserialize_with = "written")]
    pub until: Option<TimeArg>,
    /// Only events created at this time or later, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    #[serde(default, deserialize_with = "written")]
    pub created_since: Option<TimeArg>,
    /// Only events created before this time, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    #[serde(default, deserialize_with = "written")]
    pub created_until: Option<TimeArg>,
    /// Only events with an id lower than this: the next page of a list that ended with this id.
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub before: Option<i64>,
    /// Maximum number of events to list, 1 to 10000.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

impl ListRequest {
    /// The status in upper case, as the database has it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such status.
    fn status(&self) -> Result<Option<&'static str>> {
        let Some(given) = &self.status else {
            return Ok(None);
        };
        let mut known = STATUSES.into_iter();
        let status = known.find(|status| status.eq_ignore_ascii_case(given));
        status.map(Some).ok_or_else(|| {
            let list = STATUSES.join(", ");
            Error::Invalid(format!("status: must be one of {list}, got {given:?}"))
        })
    }

    /// Whether live events, and whether finished ones, are searched one by one, because no index leads to
    /// those that match.
    fn is_searched(&self, status: Option<&str>) -> (bool, bool) {
        let is_any = self.kind.is_none()
            && status.is_none()
            && self.group.is_none()
            && self.code.is_none()
            && [
                self.since,
                self.until,
                self.created_since,
                self.created_until,
            ] == [None; 4];
        // Either every event matches, or an index of both tables leads to the events that do.
        if is_any || self.correlation_id.is_some() {
            return (false, false);
        }
        let is_live = if self.waiting {
            Some(true)
        } else if self.since.is_some() || self.until.is_some() {
            Some(false)
        } else {
            status.map(|status| ["PENDING", "PROCESSING"].contains(&status))
        };
        // Only the live events have an index of groups.
        (
            is_live != Some(false) && self.group.is_none(),
            is_live != Some(true),
        )
    }
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ListReport {
    /// Newest first.
    #[schemars(with = "Vec<rows::ListedEvent>")]
    pub events: Vec<Value>,
    /// The id of the last event, to be used as the `before` of the next page. `None` if there is no next
    /// page.
    pub next: Option<i64>,
}

statements! {
    /// Events, live and logged, newest first. A filter that is null matches all events. Nothing is prepared,
    /// so the planner sees the filters as constants: null filters cost nothing, and the others use their
    /// index. An event that was created after a time also finished after it, so the log's block range index
    /// applies.
    ///
    /// `$1` status, `$2` kind, `$3` limit, `$4` group, `$5` correlation id, `$6` only lower ids, `$7` or `$8`
    /// seconds ago: created at or after, `$9` or `$10` seconds ago: created before, `$11` only higher ids,
    /// which bounds the search, `$12` only live events, each with what it waits for, `$13` or `$14` seconds
    /// ago: ended at or after, `$15` or `$16` seconds ago: ended before, `$17` code.
    LIST: "list" [TEXT, TEXT, INT8, TEXT, TEXT, INT8, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, INT8, BOOL, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, TEXT] = "\
WITH held AS MATERIALIZED (SELECT * FROM @tidegate.held)
SELECT (CASE WHEN $12 THEN to_jsonb(e) || jsonb_build_object('why', @tidegate.why(e.id)) ELSE to_jsonb(e) END)::text
  FROM (SELECT * FROM (
            SELECT id, kind, CASE WHEN id <@ held.ids THEN 'PROCESSING' ELSE 'PENDING' END AS status,
                   attempts + (id <@ held.started AND attempts < max_attempts)::int AS attempts, group_key, correlation_id,
                   created_at, NULL::timestamptz AS finished_at, last_error
              FROM @tidegate.event_queue, held
             WHERE ($1::text IS NULL OR $1 = 'PENDING' AND NOT (id <@ held.ids)
                    OR $1 = 'PROCESSING' AND id >= lower(held.ids) AND id < upper(held.ids) AND id <@ held.ids)
               AND ($2::text IS NULL OR kind = $2)
               AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6)
               AND ($11::bigint IS NULL OR id > $11)
               AND coalesce($13, $15) IS NULL AND coalesce($14, $16) IS NULL
               AND ($17::text IS NULL OR split_part(last_error, ': ', 1) = $17)
               AND (coalesce($7, statement_timestamp() - make_interval(secs => $8)) IS NULL
                    OR created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8)))
               AND (coalesce($9, statement_timestamp() - make_interval(secs => $10)) IS NULL
                    OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY id DESC LIMIT $3) AS live
        UNION ALL
        SELECT * FROM (
            SELECT id, kind, status, attempts, group_key, correlation_id, created_at, finished_at,
                   last_error
              FROM @tidegate.ends
             WHERE $12 IS NOT TRUE AND ($1::text IS NULL OR $1 NOT IN ('PENDING', 'PROCESSING') AND status = $1) AND ($2::text IS NULL OR kind = $2)
               AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6)
               AND ($11::bigint IS NULL OR id > $11)
               AND (coalesce($7, statement_timestamp() - make_interval(secs => $8)) IS NULL
                    OR (created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))
                        AND finished_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8))))
               AND ($17::text IS NULL OR code = $17)
               AND (coalesce($13, statement_timestamp() - make_interval(secs => $14)) IS NULL
                    OR finished_at >= coalesce($13, statement_timestamp() - make_interval(secs => $14)))
               AND (coalesce($15, statement_timestamp() - make_interval(secs => $16)) IS NULL
                    OR finished_at < coalesce($15, statement_timestamp() - make_interval(secs => $16)))
               AND (coalesce($9, statement_timestamp() - make_interval(secs => $10)) IS NULL
                    OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY id DESC LIMIT $3) AS logged
         ORDER BY id DESC LIMIT $3) AS e";

    /// How far back a search reaches: the first id that it does not reach, and when that event was created.
    /// The search looks at the newest `$4` live events (if `$2`) and the newest `$4` finished ones (if `$3`)
    /// below the id `$1`. There is no row if it reaches all events. Only the indexes of the ids are walked.
    SEARCH_FLOOR: "search_floor" [INT8, BOOL, BOOL, INT8] = "\
WITH floor AS MATERIALIZED (
    SELECT greatest((SELECT id FROM @tidegate.event_queue WHERE $2 AND ($1::bigint IS NULL OR id < $1)
                      ORDER BY id DESC OFFSET $4 LIMIT 1),
                    (SELECT id FROM @tidegate.ends WHERE $3 AND ($1::bigint IS NULL OR id < $1)
                      ORDER BY id DESC OFFSET $4 LIMIT 1)) AS id)
SELECT jsonb_build_object('id', floor.id, 'created_at', to_char((SELECT created_at FROM @tidegate.event_queue WHERE id = floor.id
                          UNION ALL SELECT created_at FROM @tidegate.ends WHERE id = floor.id LIMIT 1)
                         AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM floor WHERE floor.id IS NOT NULL";

    /// Those of the events `$1` whose payload contains the text `$2`. Their ids are from `$3` to `$4`, which
    /// bounds the scans of partitions. No other payload is read.
    HOLDING: "holding" [INT8_ARRAY, TEXT, INT8, INT8] = "\
WITH looked_at AS MATERIALIZED (
    SELECT e.id, e.payload
      FROM unnest($1::bigint[]) AS wanted (id)
      JOIN (SELECT id, payload FROM @tidegate.event_queue UNION ALL SELECT id, payload FROM @tidegate.event_log) AS e ON e.id = wanted.id
     WHERE e.id BETWEEN $3 AND $4)
SELECT id::text FROM looked_at WHERE strpos(payload::text, $2) > 0";
}

impl Verb for ListRequest {
    const NAME: &'static str = "list";
    const LOGGED: Option<&'static [&'static str]> = Some(&["next"]);

    type Report = ListReport;

    async fn run(&self, runtime: &Runtime) -> Result<ListReport> {
        let client = runtime.looking().await?;
        page(runtime, &client, self, None, true).await
    }
}

/// A page of events from a search that looks at a limited number of events.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SearchReport {
    /// Newest first.
    pub events: Vec<Value>,
    /// The `before` of the next page. `None` if there is no next page.
    pub next: Option<i64>,
    /// Set if the search ended at its limit before the page was full. The next page continues there.
    pub searched: Option<Searched>,
}

/// Where a search ended at its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Searched {
    /// The most live and the most finished events that it has looked at.
    pub events: u32,
    /// The publish time of the event at which the next page begins, RFC 3339.
    pub back_to: Option<String>,
}

/// Where a bounded search ends: the first id that it does not reach, and when that event was created.
#[derive(Deserialize)]
struct Floor {
    id: i64,
    created_at: Option<String>,
}

impl Runtime {
    /// Returns a page of events, newest first, as [`ListRequest`] does. But it looks at no more than
    /// 50,000 live and 50,000 finished events, so it takes the same time for a queue and a log of
    /// any size.
    ///
    /// # Errors
    /// As the verb `list`. An unknown kind is only refused once all events have been searched.
    pub async fn search(&self, request: &ListRequest) -> Result<SearchReport> {
        let client = self.looking_with(BY_INDEX).await?;
        let floor: Option<Floor> = match request.is_searched(request.status()?) {
            // Every event matches, or an index finds those that do.
            (false, false) => None,
            (live, logged) => {
                let values: &[&(dyn ToSql + Sync)] =
                    &[&request.before, &live, &logged, &i64::from(SEARCHED)];
                document(&client, &SEARCH_FLOOR, values).await?
            }
        };
        let is_all = floor.is_none() && request.before.is_none();
        // The event at the floor itself has not been looked at.
        let above = floor.as_ref().map(|floor| floor.id);
        let page = page(self, &client, request, above, is_all).await?;
        let floor = floor.filter(|_| page.next.is_none());
        let below = floor.as_ref().map(|floor| floor.id.saturating_add(1));
        Ok(SearchReport {
            events: page.events,
            next: page.next.or(below),
            searched: floor.map(|floor| Searched {
                events: SEARCHED,
                back_to: floor.created_at,
            }),
        })
    }

    /// Returns those of these events, live or finished, whose payload contains the text exactly as it is
    /// stored. It reads no other payload.
    ///
    /// # Errors
    /// If the database fails, for example because the login may not read payloads.
    pub async fn holding(&self, ids: &[i64], text: &str) -> Result<BTreeSet<i64>> {
        let client = self.looking_with(BY_INDEX).await?;
        let values: &[&(dyn ToSql + Sync)] = &[&ids, &text, &ids.iter().min(), &ids.iter().max()];
        let holding: Vec<i64> = documents(&client, &HOLDING, values).await?;
        Ok(holding.into_iter().collect())
    }
}

/// Returns a page of events with ids above `above`. `"handled": false` marks an event whose kind the program
/// does not have. `is_all` says whether the request accepts events of any age, so that an empty page means
/// that there are none.
async fn page(
    runtime: &Runtime,
    client: &Client,
    request: &ListRequest,
    above: Option<i64>,
    is_all: bool,
) -> Result<ListReport> {
    let mut events = listed(client, request, above).await?;
    if let (true, true, Some(kind)) = (is_all, events.is_empty(), &request.kind) {
        // The name of an unknown kind is most likely misspelled, so refuse it rather than return an empty
        // page.
        refuse_unknown(client, kind).await?;
    }
    let handled = runtime.handled().await?;
    for event in &mut events {
        let kind = event["kind"].as_str().unwrap_or_default();
        if !handled.contains(&kind) {
            event["handled"] = Value::Bool(false);
        }
    }
    let is_full = events.len() >= request.limit.unwrap_or(LISTED) as usize;
    let last = events.last().and_then(|event| event["id"].as_i64());
    let next = last.filter(|_| is_full);
    Ok(ListReport { events, next })
}

async fn listed(client: &Client, request: &ListRequest, above: Option<i64>) -> Result<Vec<Value>> {
    let (created_since, created_since_ago) = TimeArg::parts(request.created_since);
    let (created_until, created_until_ago) = TimeArg::parts(request.created_until);
    let (since, since_ago) = TimeArg::parts(request.since);
    let (until, until_ago) = TimeArg::parts(request.until);
    let values: &[&(dyn ToSql + Sync)] = &[
        &request.status()?,
        &request.kind,
        &limit(request.limit)?,
        &request.group,
        &request.correlation_id,
        &request.before,
        &created_since,
        &created_since_ago,
        &created_until,
        &created_until_ago,
        &above,
        &request.waiting,
        &since,
        &since_ago,
        &until,
        &until_ago,
        &request.code,
    ];
    documents(client, &LIST, values).await
}

/// The most kinds that an error lists.
const MOST_NAMED: usize = 50;

/// Refuses a kind that is neither registered nor the kind of any event, live or finished: its name is most
/// likely misspelled.
async fn refuse_unknown(client: &Client, kind: &str) -> Result<()> {
    let kinds = registered(client).await?;
    if kinds.iter().any(|known| known == kind) {
        return Ok(());
    }
    let any = ListRequest {
        kind: Some(kind.to_owned()),
        limit: Some(1),
        ..ListRequest::default()
    };
    if !listed(client, &any, None).await?.is_empty() {
        return Ok(());
    }
    let mut named = kinds.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>();
    if kinds.len() > MOST_NAMED {
        named.push(format!("and {} more", kinds.len() - MOST_NAMED));
    }
    let there_are = match named.as_slice() {
        [] => "no kinds are registered".to_owned(),
        _ => format!("the kinds are {}", named.join(", ")),
    };
    Err(Error::Invalid(format!(
        "kind: {kind:?} is not registered, and there are no events of it; {there_are}"
    )))
}
