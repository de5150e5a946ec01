-- The tables of the queue: kinds, live events, leases, the log, the audit trail.
--
-- An event is in hand if, and only if, a row of `lease` names its id. Events themselves carry no mark.
-- Therefore a lease of a thousand events writes one row. The row of an event that succeeds at once is written
-- when the event is published and when it ends. Only its end leaves a dead row version.

-- `@tidegate` stands for the schema's name, in all these files.

-- Every table, every column that people may read, and every function that they may call has its comment, for
-- people who use psql (\d+, \df+) or a database browser. The last file pins the search path of all
-- functions, and takes them from PUBLIC.

-- The schema may belong to another role that has let us create tables in it. Then the schema keeps its own
-- comment.
DO $$
BEGIN
    IF (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = '@tidegate') THEN
        COMMENT ON SCHEMA @tidegate IS
            'The event queue Tidegate. Producers call publish() or publish_many(), people read the views stats, events, ends and '
            'jobs, operators call replay(), requeue(), cancel() and others. What each role may use is in docs/reference/sql.md.';
    END IF;
END $$;

COMMENT ON TABLE @tidegate.queue_migrations IS 'The migrations of the queue''s schema that were applied.';
COMMENT ON COLUMN @tidegate.queue_migrations.version IS 'The number of the migration.';
COMMENT ON COLUMN @tidegate.queue_migrations.name IS 'Its name.';
COMMENT ON COLUMN @tidegate.queue_migrations.applied_on IS 'When it was applied.';
COMMENT ON COLUMN @tidegate.queue_migrations.checksum IS 'A hash of its text.';

-- Every function that takes arguments of people or programs refuses bad ones with this error. A message of
-- null means that nothing is wrong.
CREATE FUNCTION @tidegate.refuse(message text) RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    IF message IS NOT NULL THEN
        RAISE EXCEPTION '%', message USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- What is wrong with a policy.
CREATE FUNCTION @tidegate.policy_refusal(policy jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN policy IS NULL OR jsonb_typeof(policy) <> 'object' THEN 'policy: must be an object of fields' ELSE (
        SELECT CASE WHEN f.low IS NULL
                    THEN 'policy: must have no fields but max_attempts, handler_timeout_ms, backoff_ms, backoff_max_ms, concurrency, '
                         || 'batch, batch_within_ms and give_up_after_ms, got ' || left(jsonb_build_object(p.key, p.value)::text, 100)
                    ELSE format('%s: must be a whole number of %s to %s, got %s', p.key, f.low, f.high, left(p.value #>> '{}', 40)) END
          FROM jsonb_each(policy) AS p
          LEFT JOIN (VALUES (1, 'max_attempts', 1, 1000), (2, 'handler_timeout_ms', 1, 900000), (3, 'backoff_ms', 1, 86400000),
                            (4, 'backoff_max_ms', 1, 86400000), (5, 'concurrency', 1, 10000), (6, 'batch', 1, 1000),
                            (7, 'batch_within_ms', 0, 60000), (8, 'give_up_after_ms', 1000, 316224000000)) AS f(position, field, low, high) ON f.field = p.key
         WHERE CASE WHEN f.low IS NULL OR jsonb_typeof(p.value) <> 'number' OR p.value::text ~ '[.eE-]' THEN true
                    ELSE p.value::numeric NOT BETWEEN f.low AND f.high END
         ORDER BY f.position NULLS FIRST LIMIT 1) END;

CREATE TABLE @tidegate.event_kind (
    kind                text        PRIMARY KEY CHECK (char_length(kind) BETWEEN 1 AND 100),
    -- Ten years at most: a time that cannot be added to a clock would keep every event of the kind from
    -- ending.
    retention_completed interval    NOT NULL DEFAULT '30 days' CHECK (retention_completed BETWEEN '0' AND '3660 days'),
    retention_failed    interval    NOT NULL DEFAULT '90 days' CHECK (retention_failed BETWEEN '0' AND '3660 days'),
    paused              boolean     NOT NULL DEFAULT false,
    registered_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How its events are handled where the defaults do not apply.
    policy              jsonb       NOT NULL DEFAULT '{}' CHECK (@tidegate.policy_refusal(policy) IS NULL)
);
COMMENT ON TABLE @tidegate.event_kind IS
    'The kinds of events that may be published, one row per kind. Registered by `tidegate migrate` and register_kind().';
COMMENT ON COLUMN @tidegate.event_kind.kind IS 'The name of the kind, 1 to 100 characters.';
COMMENT ON COLUMN @tidegate.event_kind.retention_completed IS
    'How long events that ended COMPLETED stay in the log, 0 to 3660 days. Set by set_retention().';
COMMENT ON COLUMN @tidegate.event_kind.retention_failed IS
    'How long events that ended COMPLETED_WITH_ERRORS or FAILED stay in the log, 0 to 3660 days. Set by set_retention().';
COMMENT ON COLUMN @tidegate.event_kind.paused IS
    'True: drains do not lease events of this kind, but they can still be published. Set by pause() and resume().';
COMMENT ON COLUMN @tidegate.event_kind.registered_at IS 'When the kind was registered.';
COMMENT ON COLUMN @tidegate.event_kind.policy IS
    'The policy that the program declares for this kind: an object with some of max_attempts, handler_timeout_ms, '
    'backoff_ms, backoff_max_ms, concurrency, batch, batch_within_ms and give_up_after_ms. Set by register_kind().';

-- Slots at which transactions wait for each other. A publish to a group locks the slot that the hash of the
-- group's key selects. A replay and a step of a cleanup lock slot -1. The rows are locked and never written.
--
-- Advisory locks are not an alternative, because any login may take them. Besides, each one has an entry in
-- the server's lock table, so a transaction that publishes to 10,000 groups would fill the table for every
-- session. A row costs more: 4.9 ms for 1,000 groups instead of 1.6. Publishers to two groups wait for each
-- other if the groups share a slot. The probability of that is 1 in 65,536.
CREATE TABLE @tidegate.mutex (
    -- The hash of a group's key, 0 to 65535; -1 for replays and steps of a cleanup.
    slot integer PRIMARY KEY
);
COMMENT ON TABLE @tidegate.mutex IS
    'Rows that publishers lock, so that the events of a group commit in the order of their ids. Never written; do not '
    'delete rows.';

INSERT INTO @tidegate.mutex SELECT generate_series(-1, 65535);

-- The row of mutex for a group.
CREATE FUNCTION @tidegate.mutex_slot(group_key text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtext(group_key) & 65535;

-- Locks these slots, each named once, until the transaction ends. Every caller takes them in the same order,
-- so two batches never deadlock.
CREATE FUNCTION @tidegate.lock_slots(slots integer[]) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    locked bigint;
BEGIN
    PERFORM FROM @tidegate.mutex AS m WHERE m.slot = ANY (slots) ORDER BY m.slot FOR UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < cardinality(slots) THEN
        RAISE EXCEPTION '@tidegate.mutex: rows are missing; without them, groups would lose their order'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'INSERT INTO @tidegate.mutex SELECT generate_series(-1, 65535) ON CONFLICT DO NOTHING';
    END IF;
END $$;

-- Producers in every language share this one global limit.
CREATE FUNCTION @tidegate.default_max_attempts() RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN 5;
COMMENT ON FUNCTION @tidegate.default_max_attempts IS
    'The default number of attempts of an event. Set by `tidegate migrate` from TIDEGATE_MAX_ATTEMPTS.';

-- The payload is `json`: the stored text is the published text. (`jsonb` keeps numbers as values and prints
-- them in full: a payload of 2.5 KB can become a gigabyte. It also costs 2 us more at the publish and 1.4 us
-- at the lease.) The size is stored in its own column, because the limit on a lease's bytes must not read the
-- payloads that it keeps out of memory. The column is not a generated one: where a table has a BEFORE UPDATE
-- trigger, Postgres computes generated columns anew at every update. It would read the payload, and an event
-- whose payload cannot be read could then not be changed at all.
--
-- No constraint limits the columns, because Postgres reads and plans constraints again for each statement:
-- they took half of a publish. The triggers event_queue_check and event_queue_change limit them.
CREATE TABLE @tidegate.event_queue (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text        NOT NULL,
    payload        json,
    payload_bytes  integer     NOT NULL,
    group_key      text,
    dedup_key      text,
    correlation_id text,
    attempts       integer     NOT NULL DEFAULT 0,
    lapses         integer     NOT NULL DEFAULT 0,
    max_attempts   integer     NOT NULL DEFAULT @tidegate.default_max_attempts(),
    delayed        boolean     NOT NULL DEFAULT false,
    stray          boolean     NOT NULL DEFAULT false,
    kind_known     boolean     NOT NULL DEFAULT false,
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error     text,
    errors         jsonb       NOT NULL DEFAULT '[]',
    -- The work that is already done: {"handlers": {…}, "steps": {…}}. A retry skips it.
    progress       jsonb,
    -- The progress that the running handler reports: {"handler": …, "part": 0.4, "note": …, "at": …}. It is
    -- not in `progress`, because a report each second would write the megabytes of steps again.
    reported       jsonb,
    waits_since    timestamptz,
    parent_id      bigint,
    replay_of      bigint,
    -- The W3C trace context of the publish. The handlers continue the publisher's trace.
    -- <https://www.w3.org/TR/trace-context/#traceparent-header>
    traceparent    text
) WITH (
    -- The table is small and its rows are replaced quickly. Waiting until a fifth of it is dead makes scans
    -- expensive.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE @tidegate.event_queue IS
    'Live events: published and not finished yet. A plain INSERT of kind and payload publishes an event without a group. A '
    'finished event moves to event_log. The table lease says which worker holds an event; the view events shows both.';
COMMENT ON COLUMN @tidegate.event_queue.id IS
    'The event''s id, drawn from a sequence. Later events have higher ids. The ids of one group follow the order of the '
    'commits.';
COMMENT ON COLUMN @tidegate.event_queue.kind IS
    'The kind of the event, which must be registered in event_kind. 1 to 100 characters.';
COMMENT ON COLUMN @tidegate.event_queue.payload IS
    'The payload, as JSON text exactly as it was published, at most 1048576 bytes and without \u0000. Null: no payload.';
COMMENT ON COLUMN @tidegate.event_queue.payload_bytes IS
    'The length of the payload in bytes, computed by the database. Drains use it to limit the size of a lease.';
COMMENT ON COLUMN @tidegate.event_queue.group_key IS
    'Events with the same key run one after the other, in the order in which they were published. 1 to 200 characters. '
    'Null: no order. Only the functions that publish can set it, because the order needs their lock.';
COMMENT ON COLUMN @tidegate.event_queue.dedup_key IS
    'While an event is live, no other of the same kind and key is stored. 1 to 200 characters. Null: no deduplication.';
COMMENT ON COLUMN @tidegate.event_queue.correlation_id IS
    'A text of the publisher, to find related events. It is copied to the log, to follow-ups and into traces. 1 to 200 '
    'characters, or null.';
COMMENT ON COLUMN @tidegate.event_queue.attempts IS
    'How many attempts have ended, with an outcome or because the worker stopped responding.';
COMMENT ON COLUMN @tidegate.event_queue.lapses IS
    'How often the event''s worker has stopped responding since the last attempt with an outcome. An event with lapses runs '
    'alone, and with ten it ends FAILED.';
COMMENT ON COLUMN @tidegate.event_queue.max_attempts IS 'How many attempts the event has before it ends FAILED, 1 to 1000.';
COMMENT ON COLUMN @tidegate.event_queue.delayed IS
    'True while available_at is in the future. Set by triggers; keeps delayed events out of the index of ready ones.';
COMMENT ON COLUMN @tidegate.event_queue.stray IS 'True if the event may be free behind the position of a drain''s walk. Internal.';
COMMENT ON COLUMN @tidegate.event_queue.kind_known IS
    'True if the function that wrote the row has checked the kind. A plain INSERT leaves it false, and a trigger checks. '
    'Internal.';
COMMENT ON COLUMN @tidegate.event_queue.available_at IS 'The event starts no earlier than this. A retry moves it. Default: now.';
COMMENT ON COLUMN @tidegate.event_queue.expires_at IS
    'The deadline: an event that no handler has started by then ends FAILED with the code expired. Null: no deadline.';
COMMENT ON COLUMN @tidegate.event_queue.created_at IS 'When the event was published.';
COMMENT ON COLUMN @tidegate.event_queue.last_error IS 'Code and message of the latest failed attempt. Null: none has failed.';
COMMENT ON COLUMN @tidegate.event_queue.errors IS
    'All errors so far, oldest first: an array of objects with handler, code, message, attempt and at.';
COMMENT ON COLUMN @tidegate.event_queue.progress IS
    'The handlers that have finished and the results of their steps. A retry skips these. Null: nothing yet.';
COMMENT ON COLUMN @tidegate.event_queue.reported IS
    'The progress that the running handler reports: an object with handler, part (0 to 1), note and at. Null: it has '
    'reported nothing.';
COMMENT ON COLUMN @tidegate.event_queue.waits_since IS
    'Since when each attempt has found an outside service down. Null: the latest has not, or there was none.';
COMMENT ON COLUMN @tidegate.event_queue.parent_id IS
    'The id of the event whose handler published this one. Null: a producer published it.';
COMMENT ON COLUMN @tidegate.event_queue.replay_of IS
    'The id of the finished event that this one replays. Null: it is not a replay.';
COMMENT ON COLUMN @tidegate.event_queue.traceparent IS 'The W3C trace context that the event was published under. Null: none.';
COMMENT ON SEQUENCE @tidegate.event_queue_id_seq IS 'Draws the ids of events. last_value is the latest drawn id.';

CREATE INDEX event_queue_ready ON @tidegate.event_queue (id) WHERE NOT delayed;
CREATE INDEX event_queue_due ON @tidegate.event_queue (available_at) WHERE delayed;
-- Finds delayed events whose deadline passes before they start.
CREATE INDEX event_queue_late ON @tidegate.event_queue (expires_at) WHERE delayed AND expires_at IS NOT NULL;
CREATE INDEX event_queue_group ON @tidegate.event_queue (group_key, id) WHERE group_key IS NOT NULL;
CREATE INDEX event_queue_stray ON @tidegate.event_queue (group_key, id) WHERE stray AND group_key IS NOT NULL;
-- Finds the next deadline without reading other events. Most events have no deadline.
CREATE INDEX event_queue_deadline ON @tidegate.event_queue (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX event_queue_correlation ON @tidegate.event_queue (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX event_queue_parent ON @tidegate.event_queue (parent_id) WHERE parent_id IS NOT NULL;
-- Covers live events only: once the first event with a key has ended, the same key creates a new event.
CREATE UNIQUE INDEX event_queue_dedup ON @tidegate.event_queue (kind, dedup_key) WHERE dedup_key IS NOT NULL;
-- Allows one live replay of an event at a time. If two operators replay it concurrently, one wins.
CREATE UNIQUE INDEX event_queue_replay ON @tidegate.event_queue (replay_of) WHERE replay_of IS NOT NULL;

CREATE TABLE @tidegate.service (
    service     text        PRIMARY KEY CHECK (char_length(service) BETWEEN 1 AND 100),
    state       text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'probing', 'paused')),
    -- Since when it has been closed, paused, or neither of them (open or probing).
    since       timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(since)),
    failures    integer     NOT NULL DEFAULT 0 CHECK (failures >= 0),
    holds       integer     NOT NULL DEFAULT 0,
    retry_at    timestamptz CHECK (isfinite(retry_at)),
    -- The number of reports that it has answered. If it has not changed since an event was put back, nothing
    -- has shown in the meantime that the service is up.
    answers     bigint      NOT NULL DEFAULT 0,
    answered_at timestamptz CHECK (isfinite(answered_at)),
    last_error  text,
    kinds       text[]      NOT NULL DEFAULT '{}',
    prober      uuid,
    -- The event that probed it last. The next one in order probes it next.
    probe_id    bigint      NOT NULL DEFAULT 0,
    -- The most events that call it at once, over all drains, and the most that start per second. Null means
    -- no limit.
    max_running integer     CHECK (max_running BETWEEN 1 AND 10000),
    per_second  float8      CHECK (per_second BETWEEN 0.0001 AND 10000),
    next_start  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
COMMENT ON TABLE @tidegate.service IS
    'Outside services that handlers call and that have failed, are limited, or were paused. Read the view services instead.';
COMMENT ON COLUMN @tidegate.service.service IS 'The name of the service, 1 to 100 characters. kind:NAME is the limit of a kind.';
COMMENT ON COLUMN @tidegate.service.state IS
    'closed: it is called. open: it does not answer, and its events wait. probing: one event tries it. paused: an operator '
    'has stopped the calls.';
COMMENT ON COLUMN @tidegate.service.since IS 'Since when it is in this state.';
COMMENT ON COLUMN @tidegate.service.failures IS 'The number of consecutive calls that it has not answered.';
COMMENT ON COLUMN @tidegate.service.holds IS 'The number of consecutive probes that found it still down.';
COMMENT ON COLUMN @tidegate.service.retry_at IS 'When it is tried next. Null: no try is planned.';
COMMENT ON COLUMN @tidegate.service.answers IS 'The number of reports that it has answered.';
COMMENT ON COLUMN @tidegate.service.answered_at IS 'When it last answered.';
COMMENT ON COLUMN @tidegate.service.last_error IS 'The code of the latest failure.';
COMMENT ON COLUMN @tidegate.service.kinds IS 'The kinds of events that have met a failure of the service.';
COMMENT ON COLUMN @tidegate.service.prober IS 'The worker that tries it.';
COMMENT ON COLUMN @tidegate.service.probe_id IS 'The event that tried it last.';
COMMENT ON COLUMN @tidegate.service.max_running IS 'The most events that call it at once, over all drains. Null: any number.';
COMMENT ON COLUMN @tidegate.service.per_second IS
    'The most events that call it that start per second, over all drains. Null: any number.';
COMMENT ON COLUMN @tidegate.service.next_start IS 'The earliest start of the next event that calls it.';

-- The places of a worker that does not renew them in time are free again.
CREATE TABLE @tidegate.service_place (
    service text        NOT NULL,
    worker  uuid        NOT NULL,
    places  integer     NOT NULL CHECK (places BETWEEN 1 AND 10000),
    until   timestamptz NOT NULL,
    PRIMARY KEY (service, worker)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
COMMENT ON TABLE @tidegate.service_place IS 'How many places of a limited service each worker holds.';
COMMENT ON COLUMN @tidegate.service_place.service IS 'The service.';
COMMENT ON COLUMN @tidegate.service_place.worker IS 'The worker.';
COMMENT ON COLUMN @tidegate.service_place.places IS 'How many places it holds.';
COMMENT ON COLUMN @tidegate.service_place.until IS 'When the places become free, unless the worker renews them.';

-- An expired lease holds its events until a sweep breaks it. Therefore no statement of the hot path compares
-- clocks.
CREATE TABLE @tidegate.lease (
    token      uuid           PRIMARY KEY,
    worker     uuid           NOT NULL,
    -- The leased ids. Only those that are still in the queue are in hand, because an end does not shrink this
    -- set.
    ids        int8multirange NOT NULL CHECK (NOT isempty(ids)),
    started_to bigint         NOT NULL CHECK (started_to < 9223372036854775807),
    groups     integer[],
    taken_at   timestamptz    NOT NULL CHECK (isfinite(taken_at)),
    renewed_at timestamptz    NOT NULL CHECK (isfinite(renewed_at)),
    expires_at timestamptz    NOT NULL CHECK (isfinite(expires_at)),
    cuts       integer        NOT NULL DEFAULT 0,
    -- None of its events is left in the queue, so every session treats the lease as gone. Its worker's next
    -- lease removes the row. If the end of its last event removed the row, the row would be locked until the
    -- commit, and concurrent leases could not rely on it.
    ended      boolean        NOT NULL DEFAULT false,
    -- The transaction that took it. A drain that knows that all earlier transactions have ended reads only
    -- from there on, and passes no dead version of an older lease.
    born       xid8           NOT NULL DEFAULT pg_current_xact_id(),
    -- What its walk knew: see lease() and unmarked_events().
    clear_to   bigint         NOT NULL,
    as_of      xid8           NOT NULL,
    -- No event is leased twice, whatever the statements do. The index is one of an expression, so that no
    -- query reads it. Postgres (15.18) loses entries of live rows when the first page of a GiST index is
    -- split while a query looks into the index again and again (gistrescan() keeps killedItems); the
    -- constraint's own looks are safe. There are few leases, so queries read them all.
    CONSTRAINT an_event_is_in_one_lease EXCLUDE USING gist (coalesce(ids, '{}') WITH &&)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE @tidegate.lease IS 'Which worker holds which events, one row per lease. Read the view leases instead.';
COMMENT ON COLUMN @tidegate.lease.token IS 'The lease''s id. Every write of the worker names it.';
COMMENT ON COLUMN @tidegate.lease.worker IS 'The worker that holds it.';
COMMENT ON COLUMN @tidegate.lease.ids IS 'The leased ids, as ranges. Only those that are still in event_queue are in hand.';
COMMENT ON COLUMN @tidegate.lease.started_to IS 'Handlers of events up to this id may have started.';
COMMENT ON COLUMN @tidegate.lease.groups IS 'Hashes of the groups of its events. Null: none has a group.';
COMMENT ON COLUMN @tidegate.lease.taken_at IS 'When the lease was taken.';
COMMENT ON COLUMN @tidegate.lease.renewed_at IS 'When the worker last renewed the lease.';
COMMENT ON COLUMN @tidegate.lease.expires_at IS
    'When the lease runs out if it is not renewed. When all leases of a worker have run out, a sweep breaks them.';
COMMENT ON COLUMN @tidegate.lease.cuts IS 'How often another session has removed events from the lease.';
COMMENT ON COLUMN @tidegate.lease.ended IS 'True: none of its events is left in the queue.';
COMMENT ON COLUMN @tidegate.lease.born IS 'The transaction that took it.';
COMMENT ON COLUMN @tidegate.lease.clear_to IS 'Up to this id, that walk has left no unmarked event of a group behind.';
COMMENT ON COLUMN @tidegate.lease.as_of IS 'That walk has seen all writes of transactions before this one.';

CREATE INDEX lease_born ON @tidegate.lease (born);
CREATE INDEX lease_worker ON @tidegate.lease (worker);

-- Events that operators have taken from a lease, by `requeue` for example, or have ended. From the commit on,
-- the lease's worker can write nothing about them. The next sweep takes them out of the lease, or tells the
-- worker of their end, and removes the row. So an operator locks events, but no lease: however long an
-- operator's transaction stays open, the other events of the lease are started, ended and renewed.
CREATE TABLE @tidegate.lease_cut (
    token  uuid    NOT NULL,
    id     bigint  NOT NULL,
    behind boolean NOT NULL DEFAULT false,
    charged boolean NOT NULL DEFAULT false,
    PRIMARY KEY (token, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
COMMENT ON TABLE @tidegate.lease_cut IS 'Events that operators have taken from a lease and the next sweep takes out of it.';
COMMENT ON COLUMN @tidegate.lease_cut.token IS 'The lease.';
COMMENT ON COLUMN @tidegate.lease_cut.id IS 'The event.';
COMMENT ON COLUMN @tidegate.lease_cut.charged IS 'Its attempt was charged, because it may have been started.';
COMMENT ON COLUMN @tidegate.lease_cut.behind IS 'It leaves because an earlier event of its group was taken.';

-- Finished events: the audit and the dead-letter store. The table is partitioned by the day on which its rows
-- expire, so retention can drop whole partitions instead of single rows. The default partition takes every
-- row without a partition of its own, so a finalize never fails for lack of one.
--
-- The status is one of COMPLETED, COMPLETED_WITH_ERRORS and FAILED. There is no CHECK, because it would take
-- a tenth of the server's time for an end. The functions that end events set valid statuses, and a trigger
-- prevents later changes.
CREATE TABLE @tidegate.event_log (
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
    expires_at            timestamptz NOT NULL,
    -- The lease that finished it. It proves which worker did so if an answer was lost on the way.
    lease_token           uuid,
    parent_id             bigint,
    replay_of             bigint,
    deadline              timestamptz,
    traceparent           text,
    forgotten_at          timestamptz
) PARTITION BY RANGE (expires_at);
COMMENT ON TABLE @tidegate.event_log IS
    'Finished events, kept until their retention is over, in one partition per day of expiry. A finished event never '
    'changes its status; a replay is a new event.';
COMMENT ON COLUMN @tidegate.event_log.payload IS
    'The payload as it was published. Null: there was none, it could not be read, or the event was forgotten.';
COMMENT ON COLUMN @tidegate.event_log.group_key IS 'The group of the event. Null: none, or forgotten.';
COMMENT ON COLUMN @tidegate.event_log.dedup_key IS 'The deduplication key of the event. Null: none, or forgotten.';
COMMENT ON COLUMN @tidegate.event_log.correlation_id IS 'The correlation id of the event. Null: none, or forgotten.';
COMMENT ON COLUMN @tidegate.event_log.status IS
    'COMPLETED: all handlers succeeded. COMPLETED_WITH_ERRORS: a handler rejected the event; errors says why. FAILED: '
    'attempts were spent, the deadline passed, an operator cancelled it, or there was no handler.';
COMMENT ON COLUMN @tidegate.event_log.attempts IS 'How many attempts the event had. A COMPLETED event with none was put off: it only published an event that does the work later.';
COMMENT ON COLUMN @tidegate.event_log.result IS 'The results of the handlers. Null: none.';
COMMENT ON COLUMN @tidegate.event_log.progress IS 'The handlers that had finished, for a replay of only the failed ones.';
COMMENT ON COLUMN @tidegate.event_log.processing_started_at IS 'When the lease that ended it was taken. Null: it was not leased.';
COMMENT ON COLUMN @tidegate.event_log.finished_at IS 'When the event ended.';
COMMENT ON COLUMN @tidegate.event_log.expires_at IS
    'When its retention ends and a cleanup may remove the row. Not the event''s deadline, which is in the column deadline.';
COMMENT ON COLUMN @tidegate.event_log.lease_token IS
    'The lease under which a worker ended it. Null: an operator, a cleanup or the deadline ended it.';
COMMENT ON COLUMN @tidegate.event_log.deadline IS 'The deadline that the event had in event_queue.expires_at. Null: none.';
COMMENT ON COLUMN @tidegate.event_log.forgotten_at IS 'When forget() removed the event''s content. Null: the content is complete.';

-- The row of the log for an event that ends, and the row of the queue for its replay: only these two know the
-- columns of both tables. Postgres writes them out into the statement that calls them, and calls nothing.
-- Therefore an argument must be no subselect and no volatile function.
CREATE FUNCTION @tidegate.log_row(
    event @tidegate.event_queue, status text, attempts integer, errors jsonb, result jsonb, progress jsonb,
    taken_at timestamptz, instant timestamptz, kept_until timestamptz, token uuid
) RETURNS SETOF @tidegate.event_log
    LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT event.id, event.kind, event.payload, event.group_key, event.dedup_key, event.correlation_id, status, attempts,
           event.max_attempts, errors, result, progress, event.created_at, taken_at, instant, kept_until, token,
           event.parent_id, event.replay_of, event.expires_at, event.traceparent, NULL::timestamptz;
END;

CREATE FUNCTION @tidegate.replay_row(
    event @tidegate.event_log, new_id bigint, instant timestamptz, deadline timestamptz, progress jsonb
) RETURNS SETOF @tidegate.event_queue
    LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT new_id, event.kind, event.payload, coalesce(octet_length(event.payload::text), 0), event.group_key, event.dedup_key,
           event.correlation_id, 0, 0, event.max_attempts, false, false, true, instant, deadline, instant, NULL::text, '[]'::jsonb,
           progress, NULL::jsonb, NULL::timestamptz, NULL::bigint, event.id, event.traceparent;
END;

CREATE TABLE @tidegate.event_log_default PARTITION OF @tidegate.event_log DEFAULT;
COMMENT ON TABLE @tidegate.event_log_default IS
    'Rows of the log whose day of expiry has no partition yet. A cleanup moves them. Columns as in event_log.';

CREATE INDEX event_log_id ON @tidegate.event_log (id);
CREATE INDEX event_log_correlation ON @tidegate.event_log (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX event_log_dead ON @tidegate.event_log (finished_at) WHERE status <> 'COMPLETED';
-- Rows arrive in the order in which events finish, so a block range index serves the figures almost for free.
-- A range is 16 pages, because each of a hundred partitions has one that is read for nothing: of five million
-- rows, those of the last hour take 4 ms, and 19 ms with the default of 128 pages. That estimate also made
-- Postgres compile the plan, for 0.4 s.
CREATE INDEX event_log_finished ON @tidegate.event_log USING brin (finished_at) WITH (pages_per_range = 16);
CREATE INDEX event_log_replay ON @tidegate.event_log (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX event_log_parent ON @tidegate.event_log (parent_id) WHERE parent_id IS NOT NULL;

-- Trigger of event_log: refuses changes of a status.
CREATE FUNCTION @tidegate.refuse_status_change() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'event % has ended as %: its status must not change', OLD.id, OLD.status
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER event_log_status_is_final
    BEFORE UPDATE ON @tidegate.event_log
    FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM OLD.status)
    EXECUTE FUNCTION @tidegate.refuse_status_change();

-- The row commits with the work for the message. An event's dedup_key is not enough: it only counts while the
-- event is live, and a message may lead to no event or to several.
CREATE TABLE @tidegate.received (
    -- Where the message came from, such as the ARN of a queue, 1 to 1000 bytes.
    source      text        NOT NULL,
    -- The message's id there, 1 to 500 bytes.
    message_id  text        NOT NULL,
    -- When it was recorded.
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, message_id)
);
COMMENT ON TABLE @tidegate.received IS
    'Messages from outside that receive() has recorded, each once. A cleanup removes them after 15 days.';

CREATE INDEX received_age ON @tidegate.received (received_at);

CREATE TABLE @tidegate.audit (
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
COMMENT ON TABLE @tidegate.audit IS 'The actions of operators and cleanups. Rows are only added; keys of forgotten events leave them.';
COMMENT ON COLUMN @tidegate.audit.id IS 'The id of the entry.';
COMMENT ON COLUMN @tidegate.audit.at IS 'When the action ran.';
COMMENT ON COLUMN @tidegate.audit.session_user_name IS 'The database login that ran it.';
COMMENT ON COLUMN @tidegate.audit.actor IS 'The operator''s name, as the caller gave it, 1 to 200 characters. Null: not given.';
COMMENT ON COLUMN @tidegate.audit.action IS 'The action, such as replay, requeue, cancel, pause, cleanup.';
COMMENT ON COLUMN @tidegate.audit.filter IS 'The arguments of the call, as an object; a key is (forgotten) if its events were.';
COMMENT ON COLUMN @tidegate.audit.ids IS
    'The ids of the changed events. Null or empty: no event was changed, or the ids are not recorded.';
COMMENT ON COLUMN @tidegate.audit.count IS 'How many events or rows were changed.';
COMMENT ON COLUMN @tidegate.audit.reason IS 'The reason, as the caller gave it.';

-- For lists of one operator or one action, newest first.
CREATE INDEX audit_actor ON @tidegate.audit (actor, id);
CREATE INDEX audit_action ON @tidegate.audit (action, id);
-- Finds the entries whose arguments have keys of a forgotten person. Few entries have keys. With fastupdate,
-- each search would read all recent entries with keys (5 ms a key instead of 1, with ten entries a key to
-- change).
CREATE INDEX audit_keys ON @tidegate.audit USING gin (filter jsonb_path_ops) WITH (fastupdate = off)
    WHERE filter ?| ARRAY['group_key', 'dedup_key', 'correlation_id'];

-- Trigger of audit: rows are only added.
CREATE FUNCTION @tidegate.refuse_change() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % is not allowed', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER audit_append_only
    BEFORE DELETE OR TRUNCATE ON @tidegate.audit
    FOR EACH STATEMENT EXECUTE FUNCTION @tidegate.refuse_change();

-- A filter of the audit without the keys of a person.
CREATE FUNCTION @tidegate.without_keys(filter jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN filter || (SELECT coalesce(jsonb_object_agg(k, '(forgotten)'), '{}')
                        FROM unnest(ARRAY['group_key', 'dedup_key', 'correlation_id']) AS k WHERE filter ? k);

-- The one change that is allowed is the one that forget() makes: keys go, and nothing else changes.
CREATE TRIGGER audit_keeps_its_rows
    BEFORE UPDATE ON @tidegate.audit
    FOR EACH ROW WHEN (to_jsonb(NEW) <> to_jsonb(OLD) || jsonb_build_object('filter', @tidegate.without_keys(OLD.filter)))
    EXECUTE FUNCTION @tidegate.refuse_change();

-- Remarks of people on events. They may name a person, so they are not in the audit, which keeps its rows:
-- they go with their event.
CREATE TABLE @tidegate.note (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id bigint      NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor    text,
    "text"   text        NOT NULL
);
COMMENT ON TABLE @tidegate.note IS 'The remarks that note() has written, until their event is forgotten or leaves the log.';

CREATE INDEX note_event ON @tidegate.note (event_id, id);

-- Keeps columns out of Postgres' statistics of a table: ANALYZE copies their most common values, and there
-- they would outlive what is forgotten. The columns are those that a person's data can be in.
CREATE FUNCTION @tidegate.keep_out_of_statistics(of regclass) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    personal name;
BEGIN
    FOR personal IN
        SELECT a.attname FROM pg_attribute AS a
         WHERE a.attrelid = of AND a.attname = ANY (ARRAY['payload', 'result', 'progress', 'reported', 'errors', 'last_error',
                                                          'group_key', 'dedup_key', 'correlation_id', 'filter', 'text'])
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s ALTER COLUMN %I SET STATISTICS 0', of, personal);
    END LOOP;
END $$;

SELECT @tidegate.keep_out_of_statistics(t)
  FROM unnest(ARRAY['@tidegate.event_queue', '@tidegate.event_log', '@tidegate.event_log_default', '@tidegate.audit', '@tidegate.note']::regclass[]) AS t;

-- What the roles may do here; see roles.sql. Publishers may insert the columns that a producer sets: not the
-- group, because the order needs the lock of publish(), nor the deduplication key, because the answer needs
-- the function. (Object mappers send INSERT … RETURNING id. The ids of others' events show only that they
-- exist.) A worker cannot change the content of an event, and whoever only reads sees neither content nor
-- progress. The doctor counts the rows of the default partition.
GRANT INSERT (kind, payload, correlation_id, available_at, expires_at, max_attempts), SELECT (id) ON
    @tidegate.event_queue TO @tidegate_publish;
GRANT SELECT, DELETE, UPDATE (attempts, lapses, delayed, stray, available_at, last_error, errors, progress, reported,
    waits_since) ON @tidegate.event_queue TO @tidegate_drain;
GRANT SELECT ON @tidegate.event_queue, @tidegate.event_log TO @tidegate_operate;
GRANT SELECT (id, kind, payload_bytes, group_key, dedup_key, correlation_id, attempts, lapses, max_attempts, delayed,
    stray, available_at, expires_at, created_at, last_error, waits_since, parent_id, replay_of) ON @tidegate.event_queue
   TO @tidegate_read;
GRANT SELECT, INSERT, UPDATE, DELETE ON @tidegate.lease, @tidegate.service_place TO @tidegate_drain;
GRANT SELECT ON @tidegate.lease, @tidegate.lease_cut, @tidegate.service, @tidegate.service_place, @tidegate.audit
   TO @tidegate_operate, @tidegate_read;
GRANT SELECT, DELETE ON @tidegate.lease_cut TO @tidegate_drain;
GRANT SELECT, INSERT ON @tidegate.event_log TO @tidegate_drain;
GRANT SELECT (id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, created_at,
    processing_started_at, finished_at, expires_at, deadline, parent_id, replay_of) ON @tidegate.event_log
   TO @tidegate_read;
GRANT SELECT ON @tidegate.event_kind TO @tidegate_drain, @tidegate_operate, @tidegate_read;
GRANT SELECT, INSERT, UPDATE ON @tidegate.service TO @tidegate_drain;
GRANT SELECT ON SEQUENCE @tidegate.event_queue_id_seq TO @tidegate_operate, @tidegate_read;
GRANT SELECT (id) ON @tidegate.event_log_default TO @tidegate_operate, @tidegate_read;
GRANT EXECUTE ON FUNCTION @tidegate.default_max_attempts TO @tidegate_publish, @tidegate_drain;
GRANT EXECUTE ON FUNCTION @tidegate.refuse, @tidegate.log_row TO @tidegate_drain;
