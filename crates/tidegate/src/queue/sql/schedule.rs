//! Statements about schedules. Slots are passed as whole seconds since 1970.

use super::statements;

statements! {
    /// Schedules of kinds `$1` with ids above `$2` whose slot has come or is still to be computed, at most
    /// `$3`. The time is the database's clock or, in tests, the second `$4`. Schedules of a paused kind wait
    /// like its events.
    pub DUE_SCHEDULES: "due_schedules" [TEXT_ARRAY, INT8, INT4, FLOAT8] = "\
SELECT s.id, s.name, s.revision, s.cron, extract(epoch FROM s.every)::int8, s.time_zone, s.catch_up,
       extract(epoch FROM s.start_within)::int8, floor(extract(epoch FROM s.since))::int8,
       CASE WHEN isfinite(s.next_at) THEN floor(extract(epoch FROM s.next_at))::int8 END,
       floor(extract(epoch FROM coalesce(to_timestamp($4), statement_timestamp())))::int8
  FROM tidegate.schedule AS s
  JOIN tidegate.event_kind AS k ON k.kind = s.kind AND NOT k.paused
 WHERE NOT s.paused AND s.next_at <= coalesce(to_timestamp($4), statement_timestamp()) AND s.kind = ANY ($1)
   AND s.id + 0 > $2
 ORDER BY s.id + 0 LIMIT $3";

    /// Publishes the events of slots, and advances the schedules to their next slots.
    pub FIRE_SCHEDULES: "fire_schedules" [TEXT] =
        "SELECT f.id, f.published, f.refused FROM tidegate.fire_schedules($1::jsonb) AS f";

    /// The schedules that program `$1` declares, as stored.
    pub DECLARED_SCHEDULES: "declared_schedules" [TEXT] = "\
SELECT s.name, s.kind, s.payload::text, s.cron, extract(epoch FROM s.every)::int8, s.time_zone, s.group_key,
       extract(epoch FROM s.start_within)::int8, s.catch_up
  FROM tidegate.schedule AS s WHERE s.keeper = $1 ORDER BY s.name";

    /// Creates or changes a schedule that program `$1` declares.
    pub PUT_SCHEDULE: "put_schedule" [
        TEXT, TEXT, TEXT, TEXT, TEXT,
        FLOAT8, TEXT, TEXT, FLOAT8, TEXT, TEXT
    ] = "SELECT tidegate.put_schedule($1, $2, $3, $4::json, $5, make_interval(secs => $6), $7, $8, make_interval(secs => $9), $10, $11, NULL)::text";

    /// Removes a schedule that program `$1` no longer declares.
    pub DROP_SCHEDULE: "drop_schedule" [TEXT, TEXT, TEXT] =
        "SELECT tidegate.drop_schedule($1, $2, $3, NULL)::text";

    /// Schedules with a problem: their kind is not registered, they have stopped, they are ahead of the
    /// clock, or they have not fired for `$1` seconds after their slot.
    pub TROUBLED_SCHEDULES: "troubled_schedules" [FLOAT8] = "\
SELECT s.name, CASE WHEN s.problem IS NOT NULL THEN s.problem
                    WHEN k.kind IS NULL THEN 'its kind ' || s.kind || ' is not registered'
                    WHEN s.last_at > statement_timestamp() THEN 'its last slot is in the future: the clock was set back'
                    ELSE 'its slot has been due since ' || to_char(s.next_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') END,
       s.problem IS NULL AND k.kind IS NOT NULL AND coalesce(s.last_at <= statement_timestamp(), true)
  FROM tidegate.schedule AS s LEFT JOIN tidegate.event_kind AS k USING (kind)
 WHERE NOT s.paused AND NOT coalesce(k.paused, false)
   AND (s.problem IS NOT NULL OR k.kind IS NULL OR s.last_at > statement_timestamp()
        OR isfinite(s.next_at) AND s.next_at <= statement_timestamp() - make_interval(secs => $1))
 ORDER BY s.name LIMIT 10";
}
