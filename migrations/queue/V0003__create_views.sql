-- What people look at: the seeds' `events` for administration, jobs as a client of an HTTP
-- interface sees them, and what is stuck, blocked or slow.

CREATE VIEW tidegate.events AS
SELECT id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts,
       available_at, expires_at, created_at, updated_at, processing_started_at, lease_token,
       lease_expires_at, last_error, errors, progress, parent_id, replay_of
  FROM tidegate.event_queue;

-- `update events set status = 'PENDING' where id = …` requeues: the lease ends, so its worker can
-- finalize nothing any more, and the event runs at the next drain even if its attempts were spent.
CREATE FUNCTION tidegate.update_event() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF (to_jsonb(NEW) - ARRAY['status', 'available_at', 'expires_at', 'max_attempts'])
       <> (to_jsonb(OLD) - ARRAY['status', 'available_at', 'expires_at', 'max_attempts']) THEN
        RAISE EXCEPTION 'events: only status, available_at, expires_at and max_attempts may be updated'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NEW.status IS DISTINCT FROM 'PENDING' AND NEW.status IS DISTINCT FROM OLD.status THEN
        RAISE EXCEPTION 'events.status: PENDING (requeue) is allowed, got %', coalesce(NEW.status, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE tidegate.event_queue AS q
       SET status = NEW.status,
           lease_token = CASE WHEN NEW.status = 'PENDING' THEN NULL ELSE q.lease_token END,
           lease_expires_at = CASE WHEN NEW.status = 'PENDING' THEN NULL ELSE q.lease_expires_at END,
           available_at = CASE WHEN NEW.status = 'PENDING' AND NEW.available_at = OLD.available_at
                               THEN least(q.available_at, clock_timestamp()) ELSE NEW.available_at END,
           expires_at = NEW.expires_at,
           max_attempts = CASE WHEN NEW.status = 'PENDING' THEN greatest(NEW.max_attempts, q.attempts + 1)
                               ELSE NEW.max_attempts END,
           updated_at = clock_timestamp()
     WHERE q.id = OLD.id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER events_update INSTEAD OF UPDATE ON tidegate.events
    FOR EACH ROW EXECUTE FUNCTION tidegate.update_event();

CREATE VIEW tidegate.jobs AS
SELECT id, kind, 'pending'::text AS status, 0 AS status_number, NULL::integer AS status_code,
       correlation_id, group_key, errors, NULL::jsonb AS result, created_at, NULL::timestamptz AS finished_at
  FROM tidegate.event_queue
UNION ALL
SELECT id, kind,
       CASE status WHEN 'COMPLETED' THEN 'processed' WHEN 'COMPLETED_WITH_ERRORS' THEN 'failed'
                   ELSE 'failed_with_error' END,
       CASE status WHEN 'COMPLETED' THEN 1 WHEN 'COMPLETED_WITH_ERRORS' THEN 2 ELSE 3 END,
       CASE status WHEN 'COMPLETED' THEN 200
                   WHEN 'COMPLETED_WITH_ERRORS'
                        THEN CASE WHEN errors->-1->>'code' ~ '^4[0-9][0-9]$' THEN (errors->-1->>'code')::integer ELSE 409 END
                   ELSE 500 END,
       correlation_id, group_key, errors, result, created_at, finished_at
  FROM tidegate.event_log;

-- A lease that ended without a word: its worker died, or froze.
CREATE VIEW tidegate.stuck_events AS
SELECT id, kind, group_key, attempts, max_attempts, processing_started_at, updated_at, lease_expires_at,
       clock_timestamp() - lease_expires_at AS overdue
  FROM tidegate.event_queue
 WHERE lease_expires_at <= clock_timestamp();

-- Groups whose first event waits for a retry or a planned time while others wait behind it.
CREATE VIEW tidegate.blocked_groups AS
SELECT head.group_key, head.id AS head_id, head.kind AS head_kind, head.attempts, head.max_attempts,
       head.available_at, head.last_error, head.created_at,
       (SELECT count(*) FROM tidegate.event_queue AS behind
         WHERE behind.group_key = head.group_key AND behind.id > head.id) AS waiting
  FROM tidegate.event_queue AS head
 WHERE head.delayed
   AND head.group_key IS NOT NULL
   AND NOT EXISTS (SELECT FROM tidegate.event_queue AS ahead
                    WHERE ahead.group_key = head.group_key AND ahead.id < head.id)
   AND EXISTS (SELECT FROM tidegate.event_queue AS behind
                WHERE behind.group_key = head.group_key AND behind.id > head.id);

-- Depth, attempts, latency and failure rate by kind. Figures of finished events cover the last hour.
CREATE VIEW tidegate.stats AS
WITH live AS (
    SELECT kind,
           count(*) FILTER (WHERE status = 'PENDING' AND NOT delayed) AS pending,
           count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
           count(*) FILTER (WHERE delayed) AS delayed,
           max(attempts) AS max_attempts_used,
           extract(epoch FROM clock_timestamp() - min(created_at)) * 1000 AS oldest_age_ms
      FROM tidegate.event_queue GROUP BY kind
), finished AS (
    SELECT kind,
           count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
           count(*) FILTER (WHERE status = 'COMPLETED_WITH_ERRORS') AS completed_with_errors,
           count(*) FILTER (WHERE status = 'FAILED') AS failed,
           avg(attempts) AS attempts_per_event,
           percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY finished_at - created_at) AS latency
      FROM tidegate.event_log
     WHERE finished_at > clock_timestamp() - interval '1 hour'
     GROUP BY kind
)
SELECT kind,
       coalesce(live.pending, 0) AS pending,
       coalesce(live.processing, 0) AS processing,
       coalesce(live.delayed, 0) AS delayed,
       coalesce(live.max_attempts_used, 0) AS max_attempts_used,
       live.oldest_age_ms::bigint AS oldest_age_ms,
       coalesce(finished.completed, 0) AS completed,
       coalesce(finished.completed_with_errors, 0) AS completed_with_errors,
       coalesce(finished.failed, 0) AS failed,
       round(finished.attempts_per_event, 2)::float8 AS attempts_per_event,
       (extract(epoch FROM finished.latency[1]) * 1000)::bigint AS latency_p50_ms,
       (extract(epoch FROM finished.latency[2]) * 1000)::bigint AS latency_p95_ms,
       (extract(epoch FROM finished.latency[3]) * 1000)::bigint AS latency_p99_ms,
       round((finished.completed_with_errors + finished.failed)::numeric
             / nullif(finished.completed + finished.completed_with_errors + finished.failed, 0), 4)::float8 AS failure_rate
  FROM tidegate.event_kind
  FULL JOIN live USING (kind)
  FULL JOIN finished USING (kind);
