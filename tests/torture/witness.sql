-- Data that the checker needs but the product does not store. Triggers write it, so it commits or rolls back
-- together with the change it describes.
CREATE SCHEMA torture;

CREATE TABLE torture.effect (id bigint NOT NULL, attempt bigint NOT NULL);

-- Each event that entered a lease, and the event ahead of it in its group at that moment.
CREATE TABLE torture.taken (
    position      bigint GENERATED ALWAYS AS IDENTITY,
    by            text NOT NULL DEFAULT current_setting('application_name'),
    token         uuid NOT NULL,
    worker        uuid NOT NULL,
    id            bigint NOT NULL,
    -- Null if no handler may start: its deadline had passed or its attempts were used up.
    attempt       int,
    ahead         bigint,
    ahead_attempt int,
    together      boolean NOT NULL
);
CREATE INDEX ON torture.taken (by);

-- The nearest live event ahead is enough, because the one before it was checked when that event was leased.
-- The lease locks the worker's own leases, and no other worker can lease the event ahead, so this state holds
-- until the commit.
CREATE FUNCTION torture.lease_taken() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    INSERT INTO torture.taken (token, worker, id, attempt, ahead, ahead_attempt, together)
    SELECT NEW.token, NEW.worker, q.id, torture.attempt(q, NEW.taken_at), ahead.id, ahead.attempt,
           ahead.id IS NULL OR EXISTS (SELECT FROM tidegate.lease AS l WHERE l.worker = NEW.worker AND l.ids @> ahead.id)
      FROM unnest(NEW.ids) AS r
      JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
      LEFT JOIN LATERAL (SELECT b.id, torture.attempt(b, NEW.taken_at) AS attempt FROM tidegate.event_queue AS b
                          WHERE b.group_key = q.group_key AND b.id < q.id ORDER BY b.id DESC LIMIT 1) AS ahead ON true;
    RETURN NULL;
END $$;

-- The attempt that a handler would start under a lease taken at that time.
CREATE FUNCTION torture.attempt(event tidegate.event_queue, taken_at timestamptz) RETURNS int LANGUAGE sql STABLE
RETURN CASE WHEN (event).attempts < (event).max_attempts AND ((event).expires_at IS NULL OR (event).expires_at > taken_at)
            THEN (event).attempts + 1 END;

CREATE TRIGGER lease_taken AFTER INSERT ON tidegate.lease
    FOR EACH ROW EXECUTE FUNCTION torture.lease_taken();

-- Each event that left a lease without having ended.
CREATE TABLE torture.departure (
    position    bigint GENERATED ALWAYS AS IDENTITY,
    by          text NOT NULL DEFAULT current_setting('application_name'),
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    token       uuid NOT NULL,
    worker      uuid NOT NULL,
    id          bigint NOT NULL,
    started     boolean NOT NULL,
    expired     boolean NOT NULL
);

-- Workers that had an expired lease which ended in this transaction.
CREATE TABLE torture.run_out (transaction xid8 NOT NULL DEFAULT pg_current_xact_id(), worker uuid NOT NULL);
CREATE INDEX ON torture.run_out (worker);

-- What operators have taken from leases. It has left at that moment. Only later does a drain remove it from
-- the lease, together with those behind it in its group.
CREATE TABLE torture.cut (token uuid NOT NULL, id bigint NOT NULL, behind boolean NOT NULL);
CREATE INDEX ON torture.cut (token, id);

CREATE FUNCTION torture.lease_cut() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    INSERT INTO torture.cut (token, id, behind) VALUES (NEW.token, NEW.id, NEW.behind);
    INSERT INTO torture.departure (token, worker, id, started, expired)
    SELECT l.token, l.worker, NEW.id, NEW.id <= l.started_to, l.expires_at <= clock_timestamp()
      FROM tidegate.lease AS l WHERE l.token = NEW.token AND NOT NEW.behind;
    RETURN NULL;
END $$;

CREATE TRIGGER lease_cut AFTER INSERT ON tidegate.lease_cut
    FOR EACH ROW EXECUTE FUNCTION torture.lease_cut();

-- The worker started it between the operator's taking and its departure.
CREATE FUNCTION torture.lease_cut_charged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE torture.departure AS d SET started = true, transaction = pg_current_xact_id() WHERE d.token = NEW.token AND d.id = NEW.id;
    RETURN NULL;
END $$;

CREATE TRIGGER lease_cut_charged AFTER UPDATE OF charged ON tidegate.lease_cut
    FOR EACH ROW WHEN (NEW.charged AND NOT OLD.charged) EXECUTE FUNCTION torture.lease_cut_charged();

CREATE FUNCTION torture.lease_left() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    hole CONSTANT int8multirange := CASE WHEN TG_OP = 'DELETE' THEN OLD.ids ELSE OLD.ids - NEW.ids END;
    -- The server's clock may have been changed since the statement began.
    instant CONSTANT timestamptz := greatest(clock_timestamp(), statement_timestamp());
BEGIN
    IF OLD.expires_at <= instant THEN
        INSERT INTO torture.run_out (worker) VALUES (OLD.worker);
    END IF;
    INSERT INTO torture.departure (by, token, worker, id, started, expired)
    SELECT CASE WHEN NEW.cuts > OLD.cuts OR cut.behind
                     -- It was leased while an operator took an earlier event of its group, and leaves with
                     -- that one.
                     OR EXISTS (SELECT FROM torture.cut AS c JOIN tidegate.event_queue AS e ON e.id = c.id
                                 WHERE e.group_key = q.group_key AND e.id < q.id) THEN '' ELSE current_setting('application_name') END,
           OLD.token, OLD.worker, q.id, q.id <= OLD.started_to,
           EXISTS (SELECT FROM torture.run_out AS o WHERE o.worker = OLD.worker AND o.transaction = pg_current_xact_id())
           OR EXISTS (SELECT FROM tidegate.lease AS l WHERE l.worker = OLD.worker AND l.expires_at <= instant)
      FROM unnest(hole) AS r JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
      LEFT JOIN torture.cut AS cut ON cut.token = OLD.token AND cut.id = q.id
     WHERE coalesce(cut.behind, true);
    RETURN NULL;
END $$;

CREATE TRIGGER lease_left AFTER UPDATE OF ids OR DELETE ON tidegate.lease
    FOR EACH ROW EXECUTE FUNCTION torture.lease_left();

-- Each attempt, lapse or error that was written to a live event.
CREATE TABLE torture.charge (
    position      bigint GENERATED ALWAYS AS IDENTITY,
    by            text NOT NULL DEFAULT current_setting('application_name'),
    transaction   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id            bigint NOT NULL,
    attempts_were int NOT NULL,
    attempts      int NOT NULL,
    lapses_were   int NOT NULL,
    lapses        int NOT NULL,
    error_attempt int,
    error_code    text
);

CREATE FUNCTION torture.charged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO torture.charge (id, attempts_were, attempts, lapses_were, lapses, error_attempt, error_code)
    SELECT OLD.id, OLD.attempts, NEW.attempts, OLD.lapses, NEW.lapses, (e.error->>'attempt')::int, e.error->>'code'
      FROM (SELECT CASE WHEN jsonb_array_length(NEW.errors) > jsonb_array_length(OLD.errors)
                        THEN NEW.errors->-1 END AS error) AS e;
    RETURN NULL;
END $$;

CREATE TRIGGER charged AFTER UPDATE ON tidegate.event_queue
    FOR EACH ROW WHEN (OLD.attempts <> NEW.attempts OR OLD.lapses <> NEW.lapses OR OLD.errors <> NEW.errors)
    EXECUTE FUNCTION torture.charged();

-- The state in which each event left the queue.
CREATE TABLE torture.ending (
    position     bigint GENERATED ALWAYS AS IDENTITY,
    id           bigint NOT NULL,
    leased       boolean NOT NULL,
    attempts     int NOT NULL,
    max_attempts int NOT NULL,
    late         boolean NOT NULL
);

CREATE FUNCTION torture.event_ended() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    INSERT INTO torture.ending (id, leased, attempts, max_attempts, late)
    VALUES (OLD.id, EXISTS (SELECT FROM tidegate.lease AS l WHERE l.ids @> OLD.id), OLD.attempts, OLD.max_attempts,
            coalesce(OLD.expires_at <= clock_timestamp(), false));
    RETURN NULL;
END $$;

CREATE TRIGGER event_ended AFTER DELETE ON tidegate.event_queue
    FOR EACH ROW EXECUTE FUNCTION torture.event_ended();

CREATE VIEW torture.takings AS
SELECT by, token, worker, id, attempt, ahead, ahead_attempt, together FROM torture.taken ORDER BY position;
CREATE VIEW torture.departures AS
SELECT by, transaction::text::bigint AS transaction, token, worker, id, started, expired FROM torture.departure ORDER BY position;
CREATE VIEW torture.charges AS
SELECT by, transaction::text::bigint AS transaction, id, attempts_were, attempts, lapses_were, lapses, error_attempt, error_code
  FROM torture.charge ORDER BY position;
CREATE VIEW torture.endings AS
SELECT id, leased, attempts, max_attempts, late FROM torture.ending ORDER BY position;

-- States that must never exist, from one snapshot, for checks under load.
CREATE VIEW torture.breaches AS
SELECT 'I4' AS invariant, format('%s has leased event %s behind %s, which %s has', worker, id, ahead,
                                 coalesce(ahead_worker::text, 'nobody')) AS text
  FROM tidegate.unordered_leases(3)
UNION ALL
SELECT 'J', format('event %s is free behind a walk that takes its group for clear', id) FROM tidegate.unmarked_events(3)
UNION ALL
(SELECT 'I6', format('event %s is in %s leases at once', q.id, count(*))
   FROM tidegate.lease AS l CROSS JOIN LATERAL unnest(l.ids) AS r
   JOIN tidegate.event_queue AS q ON q.id >= lower(r) AND q.id < upper(r)
  GROUP BY q.id HAVING count(*) > 1 LIMIT 3);

-- The attempts that the end of a run interrupted. They are not counted, so they start again.
CREATE FUNCTION torture.cuts(errors jsonb) RETURNS int[] LANGUAGE sql AS $$
    SELECT ARRAY(SELECT (e->>'attempt')::int FROM jsonb_array_elements(errors) AS e WHERE e->>'code' = 'cut')
$$;

-- Every row that was ever in the log. Dropping a whole partition removes rows without a trigger; these must
-- have expired by the time of the check.
CREATE TABLE torture.ended (
    id             bigint NOT NULL,
    kind           text NOT NULL,
    key            text,
    group_key      text,
    status         text NOT NULL,
    attempts       int NOT NULL,
    max_attempts   int NOT NULL,
    code           text,
    cuts           int[] NOT NULL,
    result_attempt int,
    without_lease  boolean NOT NULL,
    replay_of      bigint,
    expires_at     timestamptz NOT NULL,
    removed        boolean NOT NULL DEFAULT false,
    early          boolean NOT NULL DEFAULT false
);
CREATE INDEX ON torture.ended (id);

CREATE FUNCTION torture.log_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO torture.ended (id, kind, key, group_key, status, attempts, max_attempts, code, cuts, result_attempt,
                                   without_lease, replay_of, expires_at)
        VALUES (NEW.id, NEW.kind, NEW.payload->>'key', NEW.group_key, NEW.status, NEW.attempts, NEW.max_attempts,
                NEW.errors->-1->>'code', torture.cuts(NEW.errors), (NEW.result->>NEW.kind)::int, NEW.lease_token IS NULL, NEW.replay_of, NEW.expires_at);
    ELSE
        UPDATE torture.ended AS e SET removed = true, early = OLD.expires_at > clock_timestamp() WHERE e.id = OLD.id;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER log_changed AFTER INSERT OR DELETE ON tidegate.event_log
    FOR EACH ROW EXECUTE FUNCTION torture.log_changed();

CREATE VIEW torture.rows AS
SELECT id, 'queue' AS place, kind, payload->>'key' AS key, group_key, status, attempts, max_attempts,
       errors->-1->>'code' AS code, torture.cuts(errors) AS cuts, NULL::int AS result_attempt, false AS without_lease, replay_of, false AS removed_early
  FROM tidegate.events
UNION ALL
SELECT id, 'log', kind, payload->>'key', group_key, status, attempts, max_attempts, errors->-1->>'code',
       torture.cuts(errors), (result->>kind)::int, lease_token IS NULL, replay_of, false
  FROM tidegate.event_log
UNION ALL
SELECT id, 'removed', kind, key, group_key, status, attempts, max_attempts, code, cuts, result_attempt, without_lease, replay_of,
       early OR NOT removed AND expires_at > clock_timestamp()
  FROM torture.ended AS e
 WHERE NOT EXISTS (SELECT FROM tidegate.event_log AS l WHERE l.id = e.id);
