-- The table of the AI checks, in a schema of its own, like that of the forms system. It exists for three
-- reasons: An event contains only two ids, so the due time of its task must be stored elsewhere. The gate
-- counts rows. And an answer must outlive the log.

CREATE SCHEMA checks;

CREATE TABLE checks.issuing_check (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Either both or neither. A check that another system performs also takes a place at the gate, and
    -- nothing else need be known about it. `INSERT INTO checks.issuing_check DEFAULT VALUES` creates such a
    -- check.
    trigger_id     text,
    application_id text,
    -- PLANNED: not in progress. NEW: in progress, without an answer; only this state counts at the gate.
    -- DONE: answered. OVERDUE: ended without a check.
    work_statusom  text        NOT NULL DEFAULT 'NEW',
    -- The task is overdue after this time. Null means never.
    due_at         timestamptz,
    -- When a NEW row stops counting if nothing else ends it, because its worker died. Null means never, for a
    -- row that another system has inserted.
    place_ends_at  timestamptz,
    -- The complete answer of the AI service.
    answer         jsonb,
    answered_at    timestamptz,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT trigger_is_checked_once_for_an_application UNIQUE (trigger_id, application_id),
    CONSTRAINT ids_are_whole CHECK ((trigger_id IS NULL) = (application_id IS NULL)),
    CONSTRAINT trigger_id_is_1_to_100_characters CHECK (char_length(trigger_id) BETWEEN 1 AND 100),
    CONSTRAINT application_id_is_1_to_100_characters CHECK (char_length(application_id) BETWEEN 1 AND 100),
    CONSTRAINT work_statusom_is_planned_new_done_or_overdue CHECK (work_statusom IN ('PLANNED', 'NEW', 'DONE', 'OVERDUE')),
    CONSTRAINT only_a_new_check_has_a_place CHECK (place_ends_at IS NULL OR work_statusom = 'NEW'),
    CONSTRAINT answer_is_whole CHECK ((answer IS NULL) = (answered_at IS NULL)),
    CONSTRAINT only_a_done_check_has_an_answer CHECK (answer IS NULL OR work_statusom = 'DONE')
);

-- The gate counts only these few rows, however large the table grows.
CREATE INDEX issuing_check_new ON checks.issuing_check (id) WHERE work_statusom = 'NEW';

-- Whether nothing more comes of a check: it was answered, it is overdue, or no event of its application is in
-- the queue. The queue ends events without a handler, such as those that expire.
CREATE FUNCTION checks.is_ended(i checks.issuing_check) RETURNS boolean
    LANGUAGE sql STABLE RETURN
    i.work_statusom IN ('DONE', 'OVERDUE')
    OR (i.work_statusom = 'PLANNED' OR i.place_ends_at < clock_timestamp())
       AND NOT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.group_key = 'application:' || i.application_id);

-- The checks with their state. ENDED: without an answer; the event in the log says why.
CREATE VIEW checks.state AS
SELECT i.trigger_id, i.application_id,
       CASE WHEN i.work_statusom IN ('PLANNED', 'NEW') AND checks.is_ended(i) THEN 'ENDED' ELSE i.work_statusom END AS state,
       i.due_at, i.answer, i.answered_at, i.created_at, i.updated_at
  FROM checks.issuing_check AS i;

-- One row, which a session locks while it counts.
CREATE TABLE checks.gate (
    one boolean PRIMARY KEY DEFAULT true CHECK (one)
);

INSERT INTO checks.gate DEFAULT VALUES;

-- Takes one of `places` for a check, for at most `held_for` seconds. Its row is NEW from then on. This is a
-- function, because counting and taking must be one step that commits before the call to the service, and the
-- count needs a snapshot taken after the lock. `own`: one of the places is that of another check of ours, and
-- is free again soon.
CREATE FUNCTION checks.take_place(
    trigger_id text, application_id text, places integer, held_for double precision
) RETURNS TABLE (taken boolean, at timestamptz, own boolean)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Without the lock, two simultaneous sessions both see one NEW row, and the result is three.
    PERFORM FROM checks.gate FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'checks.gate: its row is missing' USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'INSERT INTO checks.gate DEFAULT VALUES';
    END IF;
    take_place.at := clock_timestamp();
    -- SKIP LOCKED: do not wait for a row that is being finished at this moment.
    UPDATE checks.issuing_check SET work_statusom = 'PLANNED', place_ends_at = NULL, updated_at = take_place.at
     WHERE id IN (SELECT id FROM checks.issuing_check
                   WHERE work_statusom = 'NEW' AND place_ends_at <= take_place.at
                     FOR NO KEY UPDATE SKIP LOCKED);
    -- A check does not wait for itself: after the death of a worker its own row may still be NEW.
    SELECT count(*) < take_place.places, count(i.place_ends_at) > 0 INTO take_place.taken, take_place.own
      FROM checks.issuing_check AS i
     WHERE i.work_statusom = 'NEW'
       AND (i.trigger_id, i.application_id) IS DISTINCT FROM (take_place.trigger_id, take_place.application_id);
    IF take_place.taken THEN
        INSERT INTO checks.issuing_check AS i (trigger_id, application_id, work_statusom, place_ends_at)
        VALUES (take_place.trigger_id, take_place.application_id, 'NEW',
                take_place.at + make_interval(secs => take_place.held_for))
        ON CONFLICT (trigger_id, application_id) DO UPDATE
           SET work_statusom = 'NEW', place_ends_at = excluded.place_ends_at, updated_at = take_place.at
         WHERE i.work_statusom <> 'DONE';
    END IF;
    RETURN NEXT;
END $$;
