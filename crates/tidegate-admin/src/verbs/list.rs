//! The verb `list`: lists events, newest first.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_core::connect::Client;
use tidegate_core::queue::{document, documents, registered};

use super::prelude::*;
use super::views::{LISTED, limit, rows};
use super::{TimeArg, event_id, length, one_of, parse_time_arg};

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

/// The most dead letters that are sorted for a page. Their rows lie far apart, so each costs a page.
const DEAD_LETTERS: u32 = 10_000;

/// Lets a search walk indexes even in a partition of the log that has not been analyzed yet. There the
/// planner expects that a comparison keeps a third of the rows.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off";

/// List events, newest first, live and finished.
///
/// If a filter has no index, a page ends after 50,000 live and 50,000 finished events, and says so. The next
/// page continues there.
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
    pub since: Option<TimeArg>,
    /// Only events that ended before this time, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    pub until: Option<TimeArg>,
    /// Only events created at this time or later, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    pub created_since: Option<TimeArg>,
    /// Only events created before this time, written like --since.
    #[arg(long, value_parser = parse_time_arg)]
    pub created_until: Option<TimeArg>,
    /// Only events with an id lower than this: the next page of a list that ended with this id.
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub before: Option<i64>,
    /// Maximum number of events to list, 1 to 10000.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

impl ListRequest {
    /// Whether live events, and whether finished ones, are searched one by one, because no index leads to
    /// those that match.
    fn is_searched(&self, status: Option<&str>) -> (bool, bool) {
        let ended = self.since.is_some() || self.until.is_some();
        let created = self.created_since.is_some() || self.created_until.is_some();
        let names = [&self.kind, &self.group, &self.code];
        let is_any = !ended && !created && status.is_none() && names == [&None; 3];
        // Either every event matches, or an index of both tables leads to the events that do.
        if is_any || self.correlation_id.is_some() {
            return (false, false);
        }
        let of_live = status.map(|status| ["PENDING", "PROCESSING"].contains(&status));
        let (live, logged) = match (self.waiting, ended) {
            (true, _) => (true, false),
            (false, true) => (false, true),
            (false, false) => (of_live != Some(false), of_live != Some(true)),
        };
        // Only the live events have an index of groups.
        (live && self.group.is_none(), logged)
    }
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ListReport {
    /// Newest first.
    #[schemars(with = "Vec<rows::ListedEvent>")]
    pub events: Vec<Value>,
    /// The `before` of the next page. `None` if there is no next page.
    pub next: Option<i64>,
    /// Set if the search ended at its limit before the page was full. The next page continues there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searched: Option<Searched>,
}

/// Where a search ended at its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Searched {
    /// The most live and the most finished events that it has looked at.
    pub events: u32,
    /// The publish time of the event at which the next page begins, RFC 3339.
    pub back_to: Option<String>,
}

statements! {
    /// Events, live and logged, newest first. A filter that is null matches all events. Nothing is prepared,
    /// so the planner sees the filters as constants: null filters cost nothing, and the others use their
    /// index. Whether a time is null is asked of its parameters alone, because the planner does not know the
    /// clock. An event that was created after a time also finished after it, so the log's block range index
    /// applies.
    ///
    /// `$1` status, `$2` kind, `$3` limit, `$4` group, `$5` correlation id, `$6` only lower ids, `$7` or `$8`
    /// seconds ago: created at or after, `$9` or `$10` seconds ago: created before, `$11` only higher ids,
    /// which bounds the search, `$12` only live events, each with what it waits for, `$13` or `$14` seconds
    /// ago: ended at or after, `$15` or `$16` seconds ago: ended before, `$17` code, `$18` whether
    /// few finished events match by another index. For these, and for the events of an object, the order
    /// hides the ids from the planner: without statistics of keys it would walk all ids.
    LIST: "list" [TEXT, TEXT, INT8, TEXT, TEXT, INT8, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, INT8, BOOL, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, TEXT, BOOL] = "\
WITH held AS MATERIALIZED (SELECT * FROM @tidegate.held)
SELECT (CASE WHEN $12 THEN to_jsonb(e) || jsonb_build_object('why', @tidegate.why(e.id)) ELSE to_jsonb(e) END)::text
  FROM (SELECT * FROM (
            SELECT id, kind, CASE WHEN id <@ held.ids THEN 'PROCESSING' ELSE 'PENDING' END AS status,
                   attempts + (id <@ held.started AND attempts < max_attempts)::int AS attempts, group_key, correlation_id,
                   created_at, NULL::timestamptz AS finished_at, last_error
              FROM @tidegate.event_queue, held
             WHERE ($1::text IS NULL OR $1 = 'PENDING' AND NOT (id <@ held.ids)
                    OR $1 = 'PROCESSING' AND id >= lower(held.ids) AND id < upper(held.ids) AND id <@ held.ids)
               AND ($2::text IS NULL OR kind = $2) AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6) AND ($11::bigint IS NULL OR id > $11)
               AND coalesce($13, $15) IS NULL AND coalesce($14, $16) IS NULL
               AND ($17::text IS NULL OR split_part(last_error, ': ', 1) = $17)
               AND ($7 IS NULL AND $8 IS NULL OR created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8)))
               AND ($9 IS NULL AND $10 IS NULL OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY CASE WHEN $5::text IS NULL THEN id ELSE id + 0 END DESC LIMIT $3) AS live
        UNION ALL SELECT * FROM (
            SELECT id, kind, status, attempts, group_key, correlation_id, created_at, finished_at, last_error
              FROM @tidegate.ends
             WHERE $12 IS NOT TRUE AND ($1::text IS NULL OR $1 NOT IN ('PENDING', 'PROCESSING') AND status = $1) AND ($2::text IS NULL OR kind = $2)
               AND ($4::text IS NULL OR group_key = $4) AND ($5::text IS NULL OR correlation_id = $5)
               AND ($6::bigint IS NULL OR id < $6) AND ($11::bigint IS NULL OR id > $11)
               AND ($7 IS NULL AND $8 IS NULL OR created_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8)))
               AND ($7 IS NULL AND $8 IS NULL OR finished_at >= coalesce($7, statement_timestamp() - make_interval(secs => $8)))
               AND ($17::text IS NULL OR code = $17)
               AND ($13 IS NULL AND $14 IS NULL OR finished_at >= coalesce($13, statement_timestamp() - make_interval(secs => $14)))
               AND ($15 IS NULL AND $16 IS NULL OR finished_at < coalesce($15, statement_timestamp() - make_interval(secs => $16)))
               AND ($9 IS NULL AND $10 IS NULL OR created_at < coalesce($9, statement_timestamp() - make_interval(secs => $10)))
             ORDER BY CASE WHEN $18 THEN id + 0 ELSE id END DESC LIMIT $3) AS logged
         ORDER BY id DESC LIMIT $3) AS e";

    /// How far back a search reaches: the first id that it does not reach, and when that event was created.
    /// The search looks at the newest `$4` live events (if `$2`) and the newest `$4` finished ones (if `$3`)
    /// below the id `$1`. There is no row if it reaches all events. Only the indexes of the ids are walked.
    SEARCH_FLOOR: "search_floor" [INT8, BOOL, BOOL, INT8] = "\
WITH floor AS MATERIALIZED (
    SELECT greatest((SELECT id FROM @tidegate.event_queue WHERE $2 AND ($1::bigint IS NULL OR id < $1) ORDER BY id DESC OFFSET $4 LIMIT 1),
                    (SELECT id FROM @tidegate.ends WHERE $3 AND ($1::bigint IS NULL OR id < $1) ORDER BY id DESC OFFSET $4 LIMIT 1)) AS id)
SELECT jsonb_build_array(floor.id, to_char((SELECT created_at FROM @tidegate.event_queue WHERE id = floor.id
                          UNION ALL SELECT created_at FROM @tidegate.ends WHERE id = floor.id LIMIT 1) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM floor WHERE floor.id IS NOT NULL";

    /// Whether at most `$6` finished events ended at `$1` or later, or `$2` seconds ago, and before `$3`, or
    /// `$4` seconds ago; with `$5`, only dead letters count.
    FEW: "few" [TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, BOOL, INT8] = "\
SELECT (count(*) <= $6)::text
  FROM (SELECT FROM @tidegate.ends
         WHERE ($1 IS NULL AND $2 IS NULL OR finished_at >= coalesce($1, statement_timestamp() - make_interval(secs => $2)))
           AND ($3 IS NULL AND $4 IS NULL OR finished_at < coalesce($3, statement_timestamp() - make_interval(secs => $4)))
           AND (NOT $5 OR status <> 'COMPLETED') LIMIT $6 + 1) AS found";

    /// The first id of an event that was published a minute after `$1`, or `$2` seconds ago, by halves: ids
    /// follow the clock, but for the moments between an id and its event's time. Null if there is none.
    PUBLISHED: "published" [TIMESTAMPTZ, FLOAT8] = "\
WITH RECURSIVE halves (low, high) AS (
    SELECT least(q.low, l.low), greatest(q.high, l.high) + 1 FROM (SELECT min(id) AS low, max(id) AS high FROM @tidegate.event_queue) AS q,
           (SELECT min(id) AS low, max(id) AS high FROM @tidegate.ends) AS l
    UNION ALL
    SELECT CASE WHEN e.is_earlier THEN middle + 1 ELSE low END, CASE WHEN e.is_earlier THEN high ELSE middle END
      FROM (SELECT low, high, low + (high - low) / 2 AS middle FROM halves WHERE low < high) AS h
      LEFT JOIN LATERAL (SELECT created_at < coalesce($1, statement_timestamp() - make_interval(secs => $2)) + interval '1 minute' AS is_earlier
          FROM ((SELECT id, created_at FROM @tidegate.event_queue WHERE id >= h.middle ORDER BY id LIMIT 1)
                UNION ALL (SELECT id, created_at FROM @tidegate.ends WHERE id >= h.middle ORDER BY id LIMIT 1)) AS next
         ORDER BY id LIMIT 1) AS e ON true)
SELECT max(low)::text FROM halves HAVING max(low) IS NOT NULL";

    /// Those of the events `$1` whose payload contains the text `$2`. Their ids are from `$3` to `$4`, which
    /// bounds the scans of partitions. No other payload is read.
    HOLDING: "holding" [INT8_ARRAY, TEXT, INT8, INT8] = "\
WITH looked_at AS MATERIALIZED (
    SELECT e.id, e.payload FROM unnest($1::bigint[]) AS wanted (id)
      JOIN (SELECT id, payload FROM @tidegate.event_queue UNION ALL SELECT id, payload FROM @tidegate.event_log) AS e ON e.id = wanted.id
     WHERE e.id BETWEEN $3 AND $4)
SELECT id::text FROM looked_at WHERE strpos(payload::text, $2) > 0";
}

impl Verb for ListRequest {
    const NAME: &'static str = "list";
    const LOGGED: Option<&'static [&'static str]> = Some(&["next"]);

    type Report = ListReport;

    async fn run(&self, runtime: &Runtime) -> Result<ListReport> {
        runtime.search(self).await
    }
}

impl Runtime {
    /// Returns a page of events, newest first. It looks at no more than 50,000 live and 50,000 finished
    /// events, so it takes the same time for a queue and a log of any size.
    ///
    /// # Errors
    /// When the database fails. An unknown kind is only refused once all events have been searched.
    pub async fn search(&self, request: &ListRequest) -> Result<ListReport> {
        let client = self.looking_with(BY_INDEX).await?;
        let reach = Reach::of(&client, request).await?;
        let mut events = listed(&client, request, &reach).await?;
        let is_all = reach.floor.is_none() && request.before.is_none();
        if let (true, true, Some(kind)) = (is_all, events.is_empty(), &request.kind) {
            // The name of an unknown kind is most likely misspelled, so refuse it rather than return an empty
            // page.
            refuse_unknown(&client, kind).await?;
        }
        let handled = self.handled().await?;
        for event in &mut events {
            let kind = event["kind"].as_str().unwrap_or_default();
            if !handled.contains(&kind) {
                event["handled"] = Value::Bool(false);
            }
        }
        let is_full = events.len() >= request.limit.unwrap_or(LISTED) as usize;
        let last = events.last().and_then(|event| event["id"].as_i64());
        let floor = reach.floor.filter(|_| !is_full);
        // The event at the floor itself has not been looked at.
        let below = floor.as_ref().map(|(id, _)| id.saturating_add(1));
        Ok(ListReport {
            events,
            next: last.filter(|_| is_full).or(below),
            searched: floor.map(|(_, back_to)| Searched {
                events: SEARCHED,
                back_to,
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

/// Which events one page looks at.
struct Reach {
    /// Only ids below this.
    before: Option<i64>,
    /// Where the search ends: the first id that it does not reach, and when that event was created. `None` if
    /// it looks at all events that may match.
    floor: Option<(i64, Option<String>)>,
    /// Whether an index leads to the few finished events that may match.
    few: bool,
}

impl Reach {
    async fn of(client: &Client, request: &ListRequest) -> Result<Self> {
        let status = one_of(request.status.as_ref(), &STATUSES)?;
        let (live, logged) = request.is_searched(status);
        let few =
            request.correlation_id.is_some() || (logged && few(client, request, status).await?);
        let logged = logged && !few;
        let (mut before, most) = (request.before, i64::from(SEARCHED));
        let floor = async |before: Option<i64>| {
            document(client, &SEARCH_FLOOR, &[&before, &live, &logged, &most]).await
        };
        let mut lowest = floor(before).await?;
        // What ended before a time was also published before it.
        if let (Some(until), Some(_)) = (request.created_until.or(request.until), &lowest) {
            let (until, ago) = TimeArg::parts(Some(until));
            let first: Option<i64> = document(client, &PUBLISHED, &[&until, &ago]).await?;
            before = before.into_iter().chain(first).min();
            lowest = floor(before).await?;
        }
        Ok(Self {
            before,
            floor: lowest,
            few,
        })
    }
}

/// Whether the times of the ends, or the index of dead letters, lead to few finished events.
async fn few(client: &Client, request: &ListRequest, status: Option<&str>) -> Result<bool> {
    let is_dead = status.is_some_and(|status| status != "COMPLETED");
    let from = request.since.or(request.created_since);
    if !is_dead && from.is_none() && request.until.is_none() {
        return Ok(false);
    }
    let (since, since_ago) = TimeArg::parts(from);
    let (until, until_ago) = TimeArg::parts(request.until);
    let most = i64::from(if is_dead { DEAD_LETTERS } else { SEARCHED });
    let values: &[&(dyn ToSql + Sync)] = &[&since, &since_ago, &until, &until_ago, &is_dead, &most];
    Ok(document(client, &FEW, values).await?.unwrap_or_default())
}

async fn listed(client: &Client, request: &ListRequest, reach: &Reach) -> Result<Vec<Value>> {
    let above = reach.floor.as_ref().map(|(id, _)| *id);
    let (created_since, created_since_ago) = TimeArg::parts(request.created_since);
    let (created_until, created_until_ago) = TimeArg::parts(request.created_until);
    let (since, since_ago) = TimeArg::parts(request.since);
    let (until, until_ago) = TimeArg::parts(request.until);
    let values: &[&(dyn ToSql + Sync)] = &[
        &one_of(request.status.as_ref(), &STATUSES)?,
        &request.kind,
        &limit(request.limit)?,
        &request.group,
        &request.correlation_id,
        &reach.before,
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
        &reach.few,
    ];
    documents(client, &LIST, values).await
}

/// The most kinds that an error lists.
const MOST_NAMED: usize = 50;

/// Refuses a kind that is neither registered nor the kind of any of the newest events: its name is most
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
    let reach = Reach::of(client, &any).await?;
    if !listed(client, &any, &reach).await?.is_empty() {
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
        "kind: {kind:?} is not registered, and no event that was searched is of it; {there_are}"
    )))
}
