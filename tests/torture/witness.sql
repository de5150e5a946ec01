-- What the checker asks for and the product does not keep. Triggers write it, so that it commits, and is
-- lost, together with what it tells of.
CREATE SCHEMA torture;

CREATE TABLE torture.effect (id bigint NOT NULL, attempt bigint NOT NULL);

CREATE TABLE torture.lease_change (
    position      bigint GENERATED ALWAYS AS IDENTITY,
    by            text NOT NULL DEFAULT current_setting('application_name'),
    transaction   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    snapshot      text,
    id            bigint NOT NULL,
    was           uuid,
    was_running   boolean NOT NULL,
    now           uuid,
    gone          boolean NOT NULL,
    attempts      int NOT NULL,
    max_attempts  int NOT NULL,
    late          boolean NOT NULL,
    error_attempt int
);

-- What the statement that changes a lease can see. Only in a function that is stable is the snapshot of the moment that
-- of the statement around it.
CREATE FUNCTION torture.tell_snapshot() RETURNS trigger STABLE LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('torture.snapshot', pg_current_snapshot()::text, true);
    RETURN NEW;
END $$;

CREATE TRIGGER tell_snapshot BEFORE UPDATE ON tidegate.event_queue
    FOR EACH ROW WHEN (OLD.lease_token IS DISTINCT FROM NEW.lease_token AND NEW.lease_token IS NOT NULL)
    EXECUTE FUNCTION torture.tell_snapshot();

CREATE FUNCTION torture.lease_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO torture.lease_change (id, snapshot, was, was_running, now, gone, attempts, max_attempts, late, error_attempt)
    VALUES (OLD.id, CASE WHEN NEW.lease_token IS NOT NULL THEN current_setting('torture.snapshot') END, OLD.lease_token,
            -- A lease says when it was taken; everything else happens now.
            coalesce(OLD.lease_expires_at > CASE WHEN NEW.lease_token IS NOT NULL THEN NEW.processing_started_at
                                                 ELSE clock_timestamp() END, false),
            NEW.lease_token, false, NEW.attempts, NEW.max_attempts, coalesce(OLD.expires_at <= clock_timestamp(), false),
            CASE WHEN jsonb_array_length(NEW.errors) > jsonb_array_length(OLD.errors)
                 THEN (NEW.errors->-1->>'attempt')::int END);
    RETURN NULL;
END $$;

CREATE TRIGGER lease_changed AFTER UPDATE ON tidegate.event_queue
    FOR EACH ROW WHEN (OLD.lease_token IS DISTINCT FROM NEW.lease_token)
    EXECUTE FUNCTION torture.lease_changed();

CREATE FUNCTION torture.event_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO torture.lease_change (id, was, was_running, gone, attempts, max_attempts, late)
    VALUES (OLD.id, OLD.lease_token, coalesce(OLD.lease_expires_at > clock_timestamp(), false), true,
            OLD.attempts, OLD.max_attempts, coalesce(OLD.expires_at <= clock_timestamp(), false));
    RETURN NULL;
END $$;

CREATE TRIGGER event_ended AFTER DELETE ON tidegate.event_queue
    FOR EACH ROW EXECUTE FUNCTION torture.event_ended();

CREATE VIEW torture.lease_changes AS
SELECT id, by, transaction::text::bigint AS transaction, snapshot, was, was_running, now, gone, attempts, max_attempts,
       late, error_attempt
  FROM torture.lease_change ORDER BY position;

-- Every row that ever came into the log. A partition that is dropped whole removes rows without a word;
-- those must have expired by the time anybody looks.
CREATE TABLE torture.ended (
    log         tidegate.event_log NOT NULL,
    id          bigint NOT NULL,
    removed     boolean NOT NULL DEFAULT false,
    early       boolean NOT NULL DEFAULT false
);
CREATE INDEX ON torture.ended (id);

CREATE FUNCTION torture.log_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO torture.ended (log, id) SELECT l, l.id FROM tidegate.event_log AS l
         WHERE l.id = NEW.id AND l.finished_at = NEW.finished_at;
    ELSE
        UPDATE torture.ended AS e SET removed = true, early = OLD.expires_at > clock_timestamp() WHERE e.id = OLD.id;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER log_changed AFTER INSERT OR DELETE ON tidegate.event_log
    FOR EACH ROW EXECUTE FUNCTION torture.log_changed();

CREATE VIEW torture.rows AS
SELECT id, 'queue' AS place, kind, payload->>'key' AS key, group_key, status, attempts, max_attempts,
       errors->-1->>'code' AS code, NULL::int AS result_attempt, false AS without_lease, replay_of, false AS removed_early
  FROM tidegate.event_queue
UNION ALL
SELECT id, 'log', kind, payload->>'key', group_key, status, attempts, max_attempts, errors->-1->>'code',
       (result->>kind)::int, lease_token IS NULL, replay_of, false
  FROM tidegate.event_log
UNION ALL
SELECT e.id, 'removed', (e.log).kind, (e.log).payload->>'key', (e.log).group_key, (e.log).status, (e.log).attempts,
       (e.log).max_attempts, (e.log).errors->-1->>'code', ((e.log).result->>(e.log).kind)::int,
       (e.log).lease_token IS NULL, (e.log).replay_of,
       e.early OR NOT e.removed AND (e.log).expires_at > clock_timestamp()
  FROM torture.ended AS e
 WHERE NOT EXISTS (SELECT FROM tidegate.event_log AS l WHERE l.id = e.id);
