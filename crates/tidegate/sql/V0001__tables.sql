-- The tables of the queue: kinds, live events, leases, the log, the audit trail.
--
-- An event is in hand if, and only if, a row of `lease` names its id. Events themselves carry no mark. Therefore a lease of a
-- thousand events writes one row. An event's row is written when the event is published and when it ends. Only its end leaves a
-- dead row version.

-- What is wrong with a field of a policy. Null if the field is valid or absent.
CREATE FUNCTION tidegate.policy_field_refusal(policy jsonb, field text, low bigint, high bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN NOT policy ? field THEN NULL
                WHEN jsonb_typeof(policy->field) <> 'number' OR policy->>field ~ '[.eE-]'
                     OR (policy->>field)::numeric NOT BETWEEN low AND high
                THEN format('%s: must be a whole number of %s to %s, got %s', field, low, high, left(policy->>field, 40)) END;

-- What is wrong with the policy of a kind. Null if it is valid.
CREATE FUNCTION tidegate.policy_refusal(policy jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN policy IS NULL OR jsonb_typeof(policy) <> 'object' THEN 'policy: must be an object of fields'
                WHEN policy - ARRAY['max_attempts', 'handler_timeout_ms', 'backoff_ms', 'backoff_max_ms', 'concurrency', 'batch',
                                    'batch_within_ms'] <> '{}'
                THEN 'policy: must have no fields but max_attempts, handler_timeout_ms, backoff_ms, backoff_max_ms, concurrency, batch '
                     || 'and batch_within_ms, got '
                     || left((policy - ARRAY['max_attempts', 'handler_timeout_ms', 'backoff_ms', 'backoff_max_ms', 'concurrency', 'batch',
                                             'batch_within_ms'])::text, 100)
                ELSE coalesce(tidegate.policy_field_refusal(policy, 'max_attempts', 1, 1000),
                              tidegate.policy_field_refusal(policy, 'handler_timeout_ms', 1, 900000),
                              tidegate.policy_field_refusal(policy, 'backoff_ms', 1, 86400000),
                              tidegate.policy_field_refusal(policy, 'backoff_max_ms', 1, 86400000),
                              tidegate.policy_field_refusal(policy, 'concurrency', 1, 10000),
                              tidegate.policy_field_refusal(policy, 'batch', 1, 1000),
                              tidegate.policy_field_refusal(policy, 'batch_within_ms', 0, 60000)) END;

CREATE TABLE tidegate.event_kind (
    kind                text        PRIMARY KEY CHECK (char_length(kind) BETWEEN 1 AND 100),
    -- Ten years at most: a time that cannot be added to a clock would keep every event of the kind from ending.
    retention_completed interval    NOT NULL DEFAULT '30 days' CHECK (retention_completed BETWEEN '0' AND '3660 days'),
    retention_failed    interval    NOT NULL DEFAULT '90 days' CHECK (retention_failed BETWEEN '0' AND '3660 days'),
    paused              boolean     NOT NULL DEFAULT false,
    registered_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How its events are handled where the defaults do not apply. The program declares it, and operators can override it with
    -- set_policy().
    declared            jsonb       NOT NULL DEFAULT '{}' CHECK (tidegate.policy_refusal(declared) IS NULL),
    overridden          jsonb       NOT NULL DEFAULT '{}' CHECK (tidegate.policy_refusal(overridden) IS NULL),
    policy              jsonb       NOT NULL GENERATED ALWAYS AS (declared || overridden) STORED
);

-- Slots at which transactions wait for each other. A publish to a group locks the slot that the hash of the group's key
-- selects. A replay and a step of a cleanup lock slot -1. The rows are locked and never written.
--
-- Advisory locks are not an alternative, because any login may take them. Besides, each one has an entry in the server's lock
-- table, so a transaction that publishes to 10,000 groups would fill the table for every session. A row costs more: 4.9 ms for
-- 1,000 groups instead of 1.6. Publishers to two groups wait for each other if the groups share a slot. The probability of that
-- is 1 in 65,536.
CREATE TABLE tidegate.mutex (
    slot integer PRIMARY KEY
);

INSERT INTO tidegate.mutex SELECT generate_series(-1, 65535);

CREATE FUNCTION tidegate.mutex_slot(group_key text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtext(group_key) & 65535;

-- Locks these slots, each named once, until the transaction ends. Every caller takes them in the same order, so two batches never
-- deadlock.
CREATE FUNCTION tidegate.lock_slots(slots integer[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    locked bigint;
BEGIN
    PERFORM FROM tidegate.mutex AS m WHERE m.slot = ANY (slots) ORDER BY m.slot FOR UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < cardinality(slots) THEN
        RAISE EXCEPTION 'tidegate.mutex: rows are missing; without them, groups would lose their order'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'INSERT INTO tidegate.mutex SELECT generate_series(-1, 65535) ON CONFLICT DO NOTHING';
    END IF;
END $$;

-- `tidegate migrate` replaces this function if TIDEGATE_MAX_ATTEMPTS sets another number. Thus producers in every language share
-- one global limit.
CREATE FUNCTION tidegate.default_max_attempts() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 5;

-- The payload is `json`: the stored text is the published text. (`jsonb` keeps numbers as values and prints them in full: a
-- payload of 2.5 KB can become a gigabyte. It also costs 2 us more at the publish and 1.4 us at the lease.) The size is stored in
-- its own column, because the limit on a lease's bytes must not read the payloads that it keeps out of memory. The column is not a
-- generated one: where a table has a BEFORE UPDATE trigger, Postgres computes generated columns anew at every update. It would read
-- the payload, and an event whose payload cannot be read could then not be changed at all.
CREATE TABLE tidegate.event_queue (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text        NOT NULL,
    payload        json,
    payload_bytes  integer     NOT NULL,
    group_key      text,
    dedup_key      text,
    correlation_id text,
    -- The number of attempts that have ended, with an outcome or because their worker stopped responding.
    attempts       integer     NOT NULL DEFAULT 0,
    -- How often its worker has stopped responding since the last attempt with an outcome. Such an event runs alone.
    lapses         integer     NOT NULL DEFAULT 0,
    max_attempts   integer     NOT NULL DEFAULT tidegate.default_max_attempts(),
    -- Keeps the event out of the index of ready rows until available_at. See the trigger below.
    delayed        boolean     NOT NULL DEFAULT false,
    -- The event may be free behind the cursor of a walk that has passed it. See lease().
    stray          boolean     NOT NULL DEFAULT false,
    -- The writer of the row has checked that the kind is registered. A plain INSERT or COPY leaves it out. See
    -- require_registered().
    kind_known     boolean     NOT NULL DEFAULT false,
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The deadline: a handler starts before this time, or never.
    expires_at     timestamptz,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error     text,
    errors         jsonb       NOT NULL DEFAULT '[]',
    -- The work that is already done: {"handlers": {…}, "steps": {…}}. A retry skips it.
    progress       jsonb,
    -- The progress that the running handler reports: {"handler": …, "part": 0.4, "note": …, "at": …}. It is not in `progress`,
    -- because a report each second would write the megabytes of steps again.
    reported       jsonb,
    parent_id      bigint,
    replay_of      bigint,
    -- The W3C trace context of the publish. The handlers continue the publisher's trace.
    -- <https://www.w3.org/TR/trace-context/#traceparent-header>
    traceparent    text,
    -- The trigger event_queue_refuse checks the publishers' columns first. It also checks the payload's text: a second search for
    -- NUL characters would cost as much as the first.
    CONSTRAINT kind_is_1_to_100_characters CHECK (char_length(kind) BETWEEN 1 AND 100),
    CONSTRAINT payload_is_at_most_1_mib CHECK (payload_bytes <= 1048576),
    CONSTRAINT group_key_is_1_to_200_characters CHECK (char_length(group_key) BETWEEN 1 AND 200),
    CONSTRAINT dedup_key_is_1_to_200_characters CHECK (char_length(dedup_key) BETWEEN 1 AND 200),
    CONSTRAINT correlation_id_is_1_to_200_characters CHECK (char_length(correlation_id) BETWEEN 1 AND 200),
    CONSTRAINT attempts_is_not_negative CHECK (attempts >= 0),
    CONSTRAINT max_attempts_is_1_to_1000 CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT available_at_is_finite CHECK (isfinite(available_at)),
    CONSTRAINT expires_at_is_finite CHECK (isfinite(expires_at)),
    CONSTRAINT errors_is_an_array CHECK (jsonb_typeof(errors) = 'array'),
    CONSTRAINT traceparent_is_w3c CHECK (traceparent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'),
    CONSTRAINT delayed_in_a_group_is_stray CHECK (NOT delayed OR group_key IS NULL OR stray)
) WITH (
    -- The table is small and its rows are replaced quickly. Waiting until a fifth of it is dead makes scans expensive.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX event_queue_ready ON tidegate.event_queue (id) WHERE NOT delayed;
CREATE INDEX event_queue_due ON tidegate.event_queue (available_at) WHERE delayed;
-- Finds delayed events whose deadline passes before they start.
CREATE INDEX event_queue_late ON tidegate.event_queue (expires_at) WHERE delayed AND expires_at IS NOT NULL;
CREATE INDEX event_queue_group ON tidegate.event_queue (group_key, id) WHERE group_key IS NOT NULL;
CREATE INDEX event_queue_stray ON tidegate.event_queue (group_key, id) WHERE stray AND group_key IS NOT NULL;
-- Finds the next deadline without reading other events. Most events have no deadline.
CREATE INDEX event_queue_deadline ON tidegate.event_queue (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX event_queue_correlation ON tidegate.event_queue (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX event_queue_parent ON tidegate.event_queue (parent_id) WHERE parent_id IS NOT NULL;
-- Covers live events only: once the first event with a key has ended, the same key creates a new event.
CREATE UNIQUE INDEX event_queue_dedup ON tidegate.event_queue (kind, dedup_key) WHERE dedup_key IS NOT NULL;
-- Allows one live replay of an event at a time. If two operators replay it concurrently, one wins.
CREATE UNIQUE INDEX event_queue_replay ON tidegate.event_queue (replay_of) WHERE replay_of IS NOT NULL;

-- The triggers keep `delayed` in step with available_at for every writer. Both cost nothing on the hot path: the first fires only
-- for a future time, the second only if a statement assigns available_at.
CREATE FUNCTION tidegate.mark_delayed() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    NEW.delayed := NEW.available_at > clock_timestamp();
    NEW.stray := NEW.stray OR NEW.delayed;
    RETURN NEW;
END $$;

CREATE TRIGGER event_queue_delayed_insert
    BEFORE INSERT ON tidegate.event_queue
    FOR EACH ROW WHEN (NEW.available_at > clock_timestamp())
    EXECUTE FUNCTION tidegate.mark_delayed();

CREATE TRIGGER event_queue_delayed_update
    BEFORE UPDATE OF available_at ON tidegate.event_queue
    FOR EACH ROW EXECUTE FUNCTION tidegate.mark_delayed();

-- Measures the payload of a plain INSERT or COPY. The functions that publish do so themselves, at a tenth of the cost.
CREATE FUNCTION tidegate.measure_payload() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    NEW.payload_bytes := coalesce(octet_length(NEW.payload::text), 0);
    RETURN NEW;
END $$;

CREATE TRIGGER event_queue_measure
    BEFORE INSERT ON tidegate.event_queue
    FOR EACH ROW WHEN (NEW.payload_bytes IS NULL)
    EXECUTE FUNCTION tidegate.measure_payload();

-- Outside services that handlers call and about which anything was reported. See report_service() and claim_service().
CREATE TABLE tidegate.service (
    service     text        PRIMARY KEY CHECK (char_length(service) BETWEEN 1 AND 100),
    state       text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'probing', 'paused')),
    -- Since when it has been closed, paused, or neither of them (open or probing).
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The number of consecutive calls that it has not answered.
    failures    integer     NOT NULL DEFAULT 0,
    -- The number of consecutive probes that found it still down.
    holds       integer     NOT NULL DEFAULT 0,
    retry_at    timestamptz CHECK (isfinite(retry_at)),
    -- The number of reports that it has answered. If it has not changed since an event was put back, nothing has shown in the
    -- meantime that the service is up.
    answers     bigint      NOT NULL DEFAULT 0,
    answered_at timestamptz,
    last_error  text,
    -- Kinds of events that have met the service while it was unavailable.
    kinds       text[]      NOT NULL DEFAULT '{}',
    prober      uuid,
    -- The event that probed it last. The next one in order probes it next.
    probe_id    bigint      NOT NULL DEFAULT 0,
    -- The most events that call it at once, over all drains, and the most that start per second. Null means no limit.
    max_running integer     CHECK (max_running BETWEEN 1 AND 10000),
    per_second  float8      CHECK (per_second BETWEEN 0.0001 AND 10000),
    -- The earliest start of the next call.
    next_start  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- How many of a service's places each worker has. The places of a worker that does not renew them in time are free again.
CREATE TABLE tidegate.service_place (
    service text        NOT NULL,
    worker  uuid        NOT NULL,
    places  integer     NOT NULL CHECK (places > 0),
    until   timestamptz NOT NULL,
    PRIMARY KEY (service, worker)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- Leases and their workers. An expired lease holds its events until a sweep breaks it. Therefore no statement of the hot path
-- compares clocks.
CREATE TABLE tidegate.lease (
    token      uuid           PRIMARY KEY,
    worker     uuid           NOT NULL,
    -- The leased ids. Only those that are still in the queue are in hand, because an end does not shrink this set.
    ids        int8multirange NOT NULL CHECK (NOT isempty(ids)),
    -- Handlers of events up to this id may have started.
    started_to bigint         NOT NULL,
    -- Hashes of the groups of its events; null if none has one.
    groups     integer[],
    taken_at   timestamptz    NOT NULL,
    -- The last renewal by the worker.
    renewed_at timestamptz    NOT NULL,
    expires_at timestamptz    NOT NULL,
    -- How often other sessions have removed events from it.
    cuts       integer        NOT NULL DEFAULT 0,
    -- None of its events is left in the queue, so every session treats the lease as gone. Its worker's next lease removes the
    -- row. If the end of its last event removed the row, the row would be locked until the commit, and concurrent leases could
    -- not rely on it.
    ended      boolean        NOT NULL DEFAULT false,
    -- The transaction that took it. A drain that knows that all earlier transactions have ended reads only from there on, and
    -- passes no dead version of an older lease.
    born       xid8           NOT NULL DEFAULT pg_current_xact_id(),
    -- What its walk knew: see lease() and unmarked_events().
    clear_to   bigint         NOT NULL,
    as_of      xid8           NOT NULL,
    -- No event is leased twice, whatever the statements do.
    CONSTRAINT an_event_is_in_one_lease EXCLUDE USING gist (ids WITH &&)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX lease_born ON tidegate.lease (born);
CREATE INDEX lease_worker ON tidegate.lease (worker);

-- Events that operators have taken from a lease, by `requeue` for example, or have ended. From the commit on, the lease's worker
-- can write nothing about them. The next sweep takes them out of the lease, or tells the worker of their end, and removes the row.
-- So an operator locks events, but no lease: however long an operator's transaction stays open, the other events of the lease are
-- started, ended and renewed.
CREATE TABLE tidegate.lease_cut (
    token  uuid    NOT NULL,
    id     bigint  NOT NULL,
    -- It was not taken itself, but stands behind such an event in its group.
    behind boolean NOT NULL DEFAULT false,
    -- It may have been started before it was taken, so its attempt was charged then.
    charged boolean NOT NULL DEFAULT false,
    PRIMARY KEY (token, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- Finished events: the audit and the dead-letter store. The table is partitioned by the day on which its rows expire, so
-- retention can drop whole partitions instead of single rows. The default partition takes every row without a partition of its
-- own, so a finalize never fails for lack of one.
--
-- The status is one of COMPLETED, COMPLETED_WITH_ERRORS and FAILED. There is no CHECK, because it would take a quarter of the
-- server's cost of an end. The functions that end events set valid statuses, and a trigger prevents later changes.
CREATE TABLE tidegate.event_log (
    id                    bigint      NOT NULL,
    kind                  text        NOT NULL,
    payload               json,
    group_key             text,
    dedup_key             text,
    correlation_id        text,
    status                text        NOT NULL,
    attempts              integer     NOT NULL,
    max_attempts          integer     NOT NULL,
    errors                jsonb       NOT NULL,
    result                jsonb,
    progress              jsonb,
    created_at            timestamptz NOT NULL,
    processing_started_at timestamptz,
    finished_at           timestamptz NOT NULL,
    -- The end of its retention.
    expires_at            timestamptz NOT NULL,
    -- The lease that finished it. It proves which worker did so if an answer was lost on the way.
    lease_token           uuid,
    parent_id             bigint,
    replay_of             bigint,
    -- The live row's expires_at.
    deadline              timestamptz,
    traceparent           text,
    -- When forget() removed its content.
    forgotten_at          timestamptz
) PARTITION BY RANGE (expires_at);

CREATE TABLE tidegate.event_log_default PARTITION OF tidegate.event_log DEFAULT;

CREATE INDEX event_log_id ON tidegate.event_log (id);
CREATE INDEX event_log_correlation ON tidegate.event_log (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX event_log_dead ON tidegate.event_log (finished_at) WHERE status <> 'COMPLETED';
-- Rows arrive in the order in which events finish, so a block range index serves the figures almost for free.
CREATE INDEX event_log_finished ON tidegate.event_log USING brin (finished_at);
CREATE INDEX event_log_replay ON tidegate.event_log (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX event_log_parent ON tidegate.event_log (parent_id) WHERE parent_id IS NOT NULL;

-- An event ends once: its status in the log never changes again. A replay is a new event.
CREATE FUNCTION tidegate.refuse_status_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'event % has ended as %: its status must not change', OLD.id, OLD.status
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER event_log_status_is_final
    BEFORE UPDATE ON tidegate.event_log
    FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM OLD.status)
    EXECUTE FUNCTION tidegate.refuse_status_change();

-- Messages from outside, each taken in once: the row commits with the work for the message. An event's dedup_key is not enough:
-- it only counts while the event is live, and a message may lead to no event or to several.
CREATE TABLE tidegate.received (
    -- The route of the message, such as a queue's ARN, and its id there.
    source      text        NOT NULL,
    message_id  text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, message_id)
);

CREATE INDEX received_age ON tidegate.received (received_at);

CREATE TABLE tidegate.audit (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    session_user_name text   NOT NULL DEFAULT session_user,
    actor        text,
    action       text        NOT NULL,
    filter       jsonb,
    ids          bigint[],
    count        bigint      NOT NULL DEFAULT 0,
    reason       text
);

-- For lists of one operator or one action, newest first.
CREATE INDEX audit_actor ON tidegate.audit (actor, id);
CREATE INDEX audit_action ON tidegate.audit (action, id);
-- Finds the entries whose arguments have keys of a forgotten person. Few entries have keys. With fastupdate, each search would read
-- all recent entries with keys (5 ms a key instead of 1, with ten entries a key to change).
CREATE INDEX audit_keys ON tidegate.audit USING gin (filter jsonb_path_ops) WITH (fastupdate = off)
    WHERE filter ?| ARRAY['group_key', 'dedup_key', 'correlation_id'];

CREATE FUNCTION tidegate.refuse_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % is not allowed', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER audit_append_only
    BEFORE DELETE OR TRUNCATE ON tidegate.audit
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate.refuse_change();

-- The arguments of an action, without the keys by which it found its events.
CREATE FUNCTION tidegate.without_keys(filter jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN filter || (SELECT coalesce(jsonb_object_agg(k, '(forgotten)'), '{}')
                        FROM unnest(ARRAY['group_key', 'dedup_key', 'correlation_id']) AS k WHERE filter ? k);

-- The one change that is allowed is the one that forget() makes: the keys go, and nothing else changes.
CREATE TRIGGER audit_keeps_its_rows
    BEFORE UPDATE ON tidegate.audit
    FOR EACH ROW WHEN (to_jsonb(NEW) <> to_jsonb(OLD) || jsonb_build_object('filter', tidegate.without_keys(OLD.filter)))
    EXECUTE FUNCTION tidegate.refuse_change();
