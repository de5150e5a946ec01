-- Fan-in: an event that waits for other events, and starts when all of them have ended, whatever their result.
--
-- The event is in the queue from the start, delayed until it is released. It has its id, its place in its group, its deadline and its
-- deduplication key, and can be cancelled, rescheduled or viewed like any other event. A separate row names its members.
--
-- The functions that end events do nothing for fan-in, because they are the hot path. Instead, drains check for each waiting
-- event whether the member that it waits for is still live: at the start of the drain, once a second, and when the queue looks
-- empty. The check never waits: locked rows are left to a later check.

CREATE TABLE tidegate.fan_in (
    event_id     bigint      PRIMARY KEY,
    members      bigint[]    NOT NULL,
    -- How many members have been found ended, in order, and the next one to wait for. Null when all have ended.
    reached      integer     NOT NULL DEFAULT 0,
    waits_for    bigint,
    -- The event does not start earlier, whatever its members do.
    available_at timestamptz NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    released_at  timestamptz,
    -- The results of its members at that time: [{"id", "kind", "status", "codes"}, …].
    verdicts     jsonb,
    -- When the row is no longer needed.
    keep_until   timestamptz
);

CREATE INDEX fan_in_waiting ON tidegate.fan_in (event_id) WHERE released_at IS NULL;
CREATE INDEX fan_in_over ON tidegate.fan_in (keep_until) WHERE keep_until IS NOT NULL;

-- The start time of an event that is not released yet: never.
CREATE FUNCTION tidegate.unreleased() RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN timestamptz '9999-12-31 00:00:00+00';

-- Returns the fault of a set of ids that an event is to wait for, or null if there is none. Ids that are in no table are refused: an
-- event that another transaction has not committed yet would be considered ended.
CREATE FUNCTION tidegate.members_refusal(members bigint[]) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    unknown bigint[];
BEGIN
    IF cardinality(members) > 10000 OR array_position(members, NULL) IS NOT NULL THEN
        RETURN CASE WHEN cardinality(members) > 10000 THEN 'after: must have at most 10000 ids, got ' || cardinality(members)
                    ELSE 'after: must have no NULL among its ids' END;
    END IF;
    unknown := ARRAY(SELECT m.id FROM unnest(members) AS m(id)
                      WHERE NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = m.id OFFSET 0));
    IF unknown <> '{}' THEN
        unknown := ARRAY(SELECT u.id FROM unnest(unknown) AS u(id)
                          WHERE u.id <> ALL (ARRAY(SELECT (v->>'id')::bigint FROM jsonb_array_elements(tidegate.verdicts(unknown)) AS v
                                                    WHERE v->>'kind' IS NOT NULL))
                          ORDER BY u.id);
    END IF;
    RETURN CASE WHEN unknown <> '{}' THEN format('after: must be ids of committed events, got %s%s', unknown[1],
               CASE WHEN cardinality(unknown) > 1 THEN format(' and %s more', cardinality(unknown) - 1) ELSE '' END) END;
END $$;

-- Makes a new event wait for others.
CREATE FUNCTION tidegate.await_members(id bigint, members bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    each CONSTANT bigint[] := ARRAY(SELECT DISTINCT m FROM unnest(members) AS m ORDER BY m);
BEGIN
    IF each = '{}' THEN
        RETURN;
    END IF;
    INSERT INTO tidegate.fan_in (event_id, members, waits_for, available_at)
    SELECT q.id, each, each[1], q.available_at FROM tidegate.event_queue AS q WHERE q.id = await_members.id;
    UPDATE tidegate.event_queue AS q SET available_at = tidegate.unreleased() WHERE q.id = await_members.id;
END $$;

-- Makes follow-ups wait for other follow-ups of the same event. An event of `ids` whose `waits` names a set waits for the events
-- whose `sets` names the same set. Duplicates of live events are not changed.
CREATE FUNCTION tidegate.await_follow_ups(ids bigint[], created boolean[], sets uuid[], waits uuid[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT tidegate.await_members(w.id, ARRAY(SELECT m.id FROM unnest(ids, sets) AS m(id, set) WHERE m.set = w.set AND m.id <> w.id))
      FROM unnest(ids, created, waits) AS w(id, created, set) WHERE w.created AND w.set IS NOT NULL
$$;

-- Returns the results of events, ordered by id: {"id", "kind", "status", "codes"} each. For an event that is live or in no table any
-- more, it returns only the id. It searches one partition of the log at a time, starting with those of recently finished events.
CREATE FUNCTION tidegate.verdicts(ids bigint[]) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
    AS $$
DECLARE
    query CONSTANT text := 'SELECT json_agg(json_build_object(''id'', l.id, ''kind'', l.kind, ''status'', l.status, ''codes'',
        (SELECT coalesce(json_agg(DISTINCT e->>''code''), ''[]'') FROM jsonb_array_elements(l.errors) AS e)))
        FROM (SELECT * FROM tidegate.%I AS o WHERE o.id = ANY ($1) LIMIT $2) AS l';
    lately CONSTANT text[] := ARRAY(
        SELECT DISTINCT 'event_log_' || to_char((statement_timestamp() + kept.days - d.day * interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')
          FROM (SELECT k.retention_completed FROM tidegate.event_kind AS k UNION SELECT k.retention_failed FROM tidegate.event_kind AS k
                UNION VALUES (interval '30 days'), (interval '90 days')) AS kept(days), generate_series(0, 1) AS d(day));
    left_over bigint[] := ids;
    found jsonb := '[]';
    place text;
    here jsonb;
BEGIN
    FOR place IN SELECT p FROM tidegate.log_places() AS p ORDER BY p = ANY (lately) DESC, p DESC LOOP
        EXIT WHEN left_over = '{}';
        here := tidegate.found_in(place, query, left_over, cardinality(left_over));
        IF here IS NOT NULL THEN
            found := found || here;
            left_over := ARRAY(SELECT u.id FROM unnest(left_over) AS u(id)
                                WHERE u.id <> ALL (ARRAY(SELECT (h->>'id')::bigint FROM jsonb_array_elements(here) AS h)));
        END IF;
    END LOOP;
    RETURN (SELECT coalesce(jsonb_agg(v.verdict ORDER BY v.id), '[]')
              FROM (SELECT (f->>'id')::bigint AS id, f AS verdict FROM jsonb_array_elements(found) AS f
                    UNION ALL
                    SELECT u.id, jsonb_build_object('id', u.id) FROM unnest(left_over) AS u(id)) AS v);
END $$;

-- Returns what an event waited for, as an array of verdicts: those at the time of its release, otherwise the current ones. A replay
-- has those of its original. The array is empty for an event that waited for nothing.
CREATE FUNCTION tidegate.members(id bigint) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    f tidegate.fan_in;
BEGIN
    FOR step IN 1..100 LOOP
        SELECT w.* INTO f FROM tidegate.fan_in AS w WHERE w.event_id = members.id;
        IF FOUND THEN
            RETURN coalesce(f.verdicts, tidegate.verdicts(f.members));
        END IF;
        SELECT q.replay_of INTO members.id FROM tidegate.event_queue AS q WHERE q.id = members.id;
        IF NOT FOUND THEN
            SELECT l.replay_of INTO members.id FROM tidegate.logged(members.id) AS l;
        END IF;
        EXIT WHEN members.id IS NULL;
    END LOOP;
    RETURN '[]';
END $$;

-- Returns the first live member from place `reached` on. It tests one member after the other, because usually the next one is live.
CREATE FUNCTION tidegate.first_live(members bigint[], reached integer, OUT waits_for bigint, OUT now_reached integer)
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    FOR place IN first_live.reached + 1 .. cardinality(members) LOOP
        IF EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = members[place]) THEN
            waits_for := members[place];
            now_reached := place - 1;
            RETURN;
        END IF;
    END LOOP;
    now_reached := cardinality(members);
END $$;

-- Checks up to `most` waiting events behind `after`, ordered by id, and releases those whose members have all ended. `looked_to` is
-- where to continue, or null at the end. `lowest` is the lowest released id, where a scan must begin to find it.
--
-- One call releases events with at most 20,000 members in total. An event that an operator has started or ended no longer waits.
CREATE FUNCTION tidegate.release_waiting(after bigint, most integer, OUT looked_to bigint, OUT released bigint, OUT lowest bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    instant CONSTANT timestamptz := clock_timestamp();
    page record;
    candidate bigint;
    f tidegate.fan_in;
    next record;
    done bigint[] := '{}';
    asked bigint[] := '{}';
    told jsonb;
BEGIN
    released := 0;
    SELECT count(*) AS events, max(p.event_id) AS last, array_agg(p.event_id ORDER BY p.event_id) FILTER (WHERE p.changed) AS changed
      INTO page
      FROM (SELECT w.event_id,
                   NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = w.waits_for OFFSET 0)
                OR NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = w.event_id AND q.delayed OFFSET 0) AS changed
              FROM tidegate.fan_in AS w WHERE w.released_at IS NULL AND w.event_id > release_waiting.after
             ORDER BY w.event_id LIMIT most) AS p;
    IF page.events >= most THEN
        looked_to := page.last;
    ELSE
        DELETE FROM tidegate.fan_in AS w WHERE w.event_id IN (
            SELECT o.event_id FROM tidegate.fan_in AS o WHERE o.keep_until < instant
               AND NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = o.event_id)
             ORDER BY o.keep_until LIMIT 100 FOR UPDATE SKIP LOCKED);
    END IF;
    FOREACH candidate IN ARRAY coalesce(page.changed, '{}'::bigint[]) LOOP
        IF cardinality(asked) >= 20000 THEN
            looked_to := candidate - 1;
            EXIT;
        END IF;
        SELECT w.* INTO f FROM tidegate.fan_in AS w WHERE w.event_id = candidate AND w.released_at IS NULL FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO next FROM tidegate.first_live(f.members, f.reached);
        IF next.waits_for IS NULL OR NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = candidate AND q.delayed) THEN
            -- A publisher, an operator or a cleanup may hold it for any length of time.
            PERFORM FROM tidegate.event_queue AS q WHERE q.id = candidate FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND OR NOT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.id = candidate) THEN
                done := done || candidate;
                asked := asked || f.members;
            END IF;
        ELSE
            UPDATE tidegate.fan_in AS w SET waits_for = next.waits_for, reached = next.now_reached WHERE w.event_id = candidate;
        END IF;
    END LOOP;
    IF done = '{}' THEN
        RETURN;
    END IF;
    told := tidegate.verdicts(ARRAY(SELECT DISTINCT u FROM unnest(asked) AS u));
    WITH verdict AS MATERIALIZED (
        SELECT (v->>'id')::bigint AS id, v AS told FROM jsonb_array_elements(told) AS v
    ), each AS MATERIALIZED (
        SELECT w.event_id, (SELECT jsonb_agg(v.told ORDER BY m.place) FROM unnest(w.members) WITH ORDINALITY AS m(id, place)
                              JOIN verdict AS v ON v.id = m.id) AS verdicts,
               (SELECT greatest(k.retention_completed, k.retention_failed) FROM tidegate.event_queue AS q
                  JOIN tidegate.event_kind AS k ON k.kind = q.kind WHERE q.id = w.event_id) AS kept
          FROM tidegate.fan_in AS w WHERE w.event_id = ANY (done)
    )
    UPDATE tidegate.fan_in AS w
       SET released_at = instant, waits_for = NULL, verdicts = e.verdicts,
           keep_until = instant + coalesce(e.kept, '90 days') + interval '7 days'
      FROM each AS e WHERE w.event_id = e.event_id;
    WITH ready AS (
        UPDATE tidegate.event_queue AS q
           SET available_at = greatest(w.available_at, instant), stray = q.stray OR q.group_key IS NOT NULL
          FROM tidegate.fan_in AS w
         WHERE q.id = w.event_id AND w.event_id = ANY (done) AND q.delayed AND q.available_at = tidegate.unreleased()
        RETURNING q.id)
    SELECT count(*), min(r.id) INTO released, lowest FROM ready AS r;
END $$;

-- A replayed event counts as live again for the events that wait for it, so they wait for the replay instead. This does not apply if
-- the replay is in a group behind an event that itself waits for others, because the two might then wait for each other.
CREATE FUNCTION tidegate.await_replays(originals bigint[], replays bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH pair AS MATERIALIZED (
        SELECT p.original, p.replay FROM unnest(originals, replays) AS p(original, replay)
          JOIN tidegate.event_queue AS r ON r.id = p.replay
         WHERE r.group_key IS NULL OR NOT EXISTS (
               SELECT FROM tidegate.event_queue AS q JOIN tidegate.fan_in AS w ON w.event_id = q.id
                WHERE q.group_key = r.group_key AND q.id < r.id AND w.released_at IS NULL)
    )
    UPDATE tidegate.fan_in AS w
       SET members = (SELECT array_agg(coalesce(p.replay, m.id) ORDER BY m.place) FROM unnest(w.members) WITH ORDINALITY AS m(id, place)
                        LEFT JOIN pair AS p ON p.original = m.id),
           reached = 0
     WHERE w.released_at IS NULL AND w.members && ARRAY(SELECT p.original FROM pair AS p)
$$;

-- The events that wait for others, with their number of members, and the maximum number that have not ended yet.
CREATE VIEW tidegate.waiting AS
SELECT w.event_id AS id, q.kind, q.group_key, q.correlation_id, cardinality(w.members) AS members,
       cardinality(w.members) - w.reached AS left_at_most, w.waits_for, w.created_at, q.expires_at
  FROM tidegate.fan_in AS w JOIN tidegate.event_queue AS q ON q.id = w.event_id
 WHERE w.released_at IS NULL;
