//! Statements for Prometheus. Each reads a bounded number of rows of the queue, whatever its size, and none
//! reads the log. `tidegate_read` may run all of them.

use super::statements;

/// Runs before [`EVENTS`]. If a queue is only a little larger than the sample, the planner prefers to read
/// and sort all of it. It may also not know yet how large the queue is.
pub const WALK: &str = "SET LOCAL enable_seqscan = off";

/// Runs after [`EVENTS`].
pub const AS_USUAL: &str = "SET LOCAL enable_seqscan TO DEFAULT";

statements! {
    /// Live events by kind and state, among the first `$1` by id, and how long the oldest ready one has been
    /// ready. Reading by id costs little and includes the oldest events.
    ///
    /// The state of an event is the first of these that applies: `running` if it is leased; `paused` if its
    /// kind is paused; `waiting_for_service` if its kind needs a service that is not called; `retrying` or
    /// `planned` if its time has not come, after an attempt or without one; otherwise `ready`.
    pub EVENTS: "prometheus_events" [INT8] = "\
WITH held AS MATERIALIZED (
    SELECT ids FROM tidegate.held
), live AS (
    SELECT q.kind, q.id, q.delayed, q.attempts, q.available_at, q.created_at
      FROM tidegate.event_queue AS q ORDER BY q.id LIMIT $1
), stated AS (
    SELECT CASE WHEN k.kind IS NOT NULL THEN q.kind END AS kind, greatest(q.available_at, q.created_at) AS since,
           CASE WHEN q.id <@ held.ids THEN 'running'
                WHEN k.paused THEN 'paused'
                WHEN q.kind = ANY (down.kinds) THEN 'waiting_for_service'
                WHEN NOT q.delayed OR q.available_at <= statement_timestamp() THEN 'ready'
                WHEN q.attempts > 0 THEN 'retrying'
                ELSE 'planned' END AS state
      FROM live AS q
     CROSS JOIN held
     CROSS JOIN (SELECT ARRAY(SELECT unnest(s.kinds) FROM tidegate.service AS s WHERE s.state <> 'closed') AS kinds) AS down
      LEFT JOIN tidegate.event_kind AS k ON k.kind = q.kind)
SELECT s.kind, s.state, count(*),
       greatest(0, extract(epoch FROM statement_timestamp() - min(s.since)))::float8
  FROM stated AS s GROUP BY s.kind, s.state";

    /// All events that have ever ended, by kind, status and latency bucket. All kinds that no program has
    /// registered have the kind null.
    pub ENDED: "prometheus_ended" [] = "\
SELECT k.kind, m.status, m.within_ms, least(sum(m.events), 1e17)::bigint, least(sum(m.attempts), 1e17)::bigint, sum(m.latency_ms)::float8
  FROM tidegate.minute_stats AS m LEFT JOIN tidegate.event_kind AS k ON k.kind = m.kind
 GROUP BY k.kind, m.status, m.within_ms";

    /// Figures that belong to no kind, from at most `$1` events for each figure.
    pub STATE: "prometheus_state" [INT8] = "\
SELECT (SELECT count(*) FROM (SELECT FROM tidegate.stuck_events LIMIT $1) AS stuck),
       (SELECT count(*)
          FROM (SELECT q.id, q.group_key FROM tidegate.event_queue AS q
                 WHERE q.delayed AND q.group_key IS NOT NULL ORDER BY q.available_at LIMIT $1) AS head
         WHERE NOT EXISTS (SELECT FROM tidegate.event_queue AS ahead
                            WHERE ahead.group_key = head.group_key AND ahead.id < head.id)
           AND EXISTS (SELECT FROM tidegate.event_queue AS behind
                        WHERE behind.group_key = head.group_key AND behind.id > head.id)),
       (SELECT count(*)
          FROM (SELECT q.id FROM tidegate.event_queue AS q
                 WHERE q.expires_at > statement_timestamp() AND q.expires_at <= statement_timestamp() + interval '1 hour'
                 ORDER BY q.expires_at LIMIT $1) AS soon
         WHERE NOT soon.id <@ (SELECT h.started FROM tidegate.held AS h)),
       (SELECT extract(epoch FROM r.ended_at)::float8 FROM tidegate.drain_run AS r ORDER BY r.ended_at DESC LIMIT 1),
       (SELECT count(*) FROM tidegate.drain_slot AS s WHERE s.worker IS NOT NULL AND s.until > statement_timestamp()),
       (SELECT max(m.version) FROM tidegate.queue_migrations AS m)";

    /// Outside services, and whether each one is unavailable.
    pub SERVICES: "prometheus_services" [] =
        "SELECT s.service, s.state <> 'closed' FROM tidegate.service AS s ORDER BY s.service LIMIT 1000";
}
