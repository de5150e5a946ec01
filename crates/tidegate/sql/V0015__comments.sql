-- Describes every object of the schema, for people who use psql (\d+, \df+) or a database browser. tests/it/contract.rs finds
-- objects without a comment, and arguments that the comment of a public function does not name.

-- The schema may belong to another role that has let us create tables in it. Then the schema keeps its own comment.
DO $$
BEGIN
    IF (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'tidegate') THEN
        COMMENT ON SCHEMA tidegate IS
            'The event queue Tidegate. Producers call publish() or publish_many(), people read the views stats, events, ends and '
            'jobs, operators call replay(), requeue(), cancel() and others. What each role may use is in docs/sql.md.';
    END IF;
END $$;

-- Tables: kinds and events.

COMMENT ON TABLE tidegate.event_kind IS
    'The kinds of events that may be published, one row per kind. `tidegate migrate` registers the kinds that the program '
    'handles.';
COMMENT ON COLUMN tidegate.event_kind.kind IS 'The name of the kind, 1 to 100 characters.';
COMMENT ON COLUMN tidegate.event_kind.retention_completed IS
    'How long events that ended COMPLETED stay in the log, 0 to 3660 days. Set by set_retention().';
COMMENT ON COLUMN tidegate.event_kind.retention_failed IS
    'How long events that ended COMPLETED_WITH_ERRORS or FAILED stay in the log, 0 to 3660 days. Set by set_retention().';
COMMENT ON COLUMN tidegate.event_kind.paused IS
    'True: drains do not lease events of this kind, but they can still be published. Set by pause() and resume().';
COMMENT ON COLUMN tidegate.event_kind.registered_at IS 'When the kind was registered.';
COMMENT ON COLUMN tidegate.event_kind.declared IS
    'The policy that the program declares for this kind: an object with some of max_attempts, handler_timeout_ms, '
    'backoff_ms, backoff_max_ms, concurrency, batch and batch_within_ms.';
COMMENT ON COLUMN tidegate.event_kind.overridden IS
    'The fields of the policy that an operator has set with set_policy(). They override declared.';
COMMENT ON COLUMN tidegate.event_kind.policy IS
    'The policy in effect: the fields of declared, overridden by those of overridden.';

COMMENT ON TABLE tidegate.event_queue IS
    'Live events: published and not finished yet. A plain INSERT of kind and payload publishes an event without a group. A '
    'finished event moves to event_log. The table lease says which worker holds an event; the view events shows both '
    'together.';
COMMENT ON COLUMN tidegate.event_queue.id IS
    'The event''s id, drawn from a sequence. Later events have higher ids. The ids of one group follow the order of the '
    'commits.';
COMMENT ON COLUMN tidegate.event_queue.kind IS
    'The kind of the event, which must be registered in event_kind. 1 to 100 characters.';
COMMENT ON COLUMN tidegate.event_queue.payload IS
    'The payload, as JSON text exactly as it was published, at most 1048576 bytes and without \u0000. Null: no payload.';
COMMENT ON COLUMN tidegate.event_queue.payload_bytes IS
    'The length of the payload in bytes, computed by the database. Drains use it to limit the size of a lease.';
COMMENT ON COLUMN tidegate.event_queue.group_key IS
    'Events with the same key run one after the other, in the order in which they were published. 1 to 200 characters. '
    'Null: no order. Only the functions that publish can set it, because the order needs their lock.';
COMMENT ON COLUMN tidegate.event_queue.dedup_key IS
    'While an event is live, no other event of the same kind and key is stored. 1 to 200 characters. Null: no '
    'deduplication.';
COMMENT ON COLUMN tidegate.event_queue.correlation_id IS
    'A text of the publisher, to find related events. It is copied to the log, to follow-ups and into traces. 1 to 200 '
    'characters, or null.';
COMMENT ON COLUMN tidegate.event_queue.attempts IS
    'How many attempts have ended, with an outcome or because the worker stopped responding.';
COMMENT ON COLUMN tidegate.event_queue.lapses IS
    'How often the event''s worker has stopped responding since the last attempt with an outcome. An event with lapses runs '
    'alone.';
COMMENT ON COLUMN tidegate.event_queue.max_attempts IS 'How many attempts the event has before it ends FAILED, 1 to 1000.';
COMMENT ON COLUMN tidegate.event_queue.delayed IS
    'True while available_at is in the future. Maintained by triggers; keeps delayed events out of the index of ready '
    'events.';
COMMENT ON COLUMN tidegate.event_queue.stray IS 'True if the event may be free behind the position of a drain''s walk. Internal.';
COMMENT ON COLUMN tidegate.event_queue.kind_known IS
    'True if the function that wrote the row has checked the kind. A plain INSERT leaves it false, and a trigger checks. '
    'Internal.';
COMMENT ON COLUMN tidegate.event_queue.available_at IS 'The event starts no earlier than this. A retry moves it. Default: now.';
COMMENT ON COLUMN tidegate.event_queue.expires_at IS
    'The deadline: an event that no handler has started by then ends FAILED with the code expired. Null: no deadline.';
COMMENT ON COLUMN tidegate.event_queue.created_at IS 'When the event was published.';
COMMENT ON COLUMN tidegate.event_queue.last_error IS 'Code and message of the latest failed attempt. Null: none has failed.';
COMMENT ON COLUMN tidegate.event_queue.errors IS
    'All errors so far, oldest first: an array of objects with handler, code, message, attempt and at.';
COMMENT ON COLUMN tidegate.event_queue.progress IS
    'The handlers that have finished and the results of their steps. A retry skips these. Null: nothing yet.';
COMMENT ON COLUMN tidegate.event_queue.reported IS
    'The progress that the running handler reports: an object with handler, part (0 to 1), note and at. Null: it has '
    'reported nothing.';
COMMENT ON COLUMN tidegate.event_queue.parent_id IS
    'The id of the event whose handler published this one. Null: a producer published it.';
COMMENT ON COLUMN tidegate.event_queue.replay_of IS
    'The id of the finished event that this one replays. Null: it is not a replay.';
COMMENT ON COLUMN tidegate.event_queue.traceparent IS 'The W3C trace context that the event was published under. Null: none.';

COMMENT ON TABLE tidegate.event_log IS
    'Finished events, kept until their retention is over, in one partition per day of expiry. A finished event never '
    'changes its status; a replay is a new event.';
COMMENT ON COLUMN tidegate.event_log.id IS 'The id that the event had in event_queue.';
COMMENT ON COLUMN tidegate.event_log.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.event_log.payload IS
    'The payload as it was published. Null: there was none, it could not be read, or the event was forgotten.';
COMMENT ON COLUMN tidegate.event_log.group_key IS 'The group of the event. Null: none, or forgotten.';
COMMENT ON COLUMN tidegate.event_log.dedup_key IS 'The deduplication key of the event. Null: none, or forgotten.';
COMMENT ON COLUMN tidegate.event_log.correlation_id IS 'The correlation id of the event. Null: none, or forgotten.';
COMMENT ON COLUMN tidegate.event_log.status IS
    'COMPLETED: all handlers succeeded. COMPLETED_WITH_ERRORS: a handler rejected the event; errors says why. FAILED: '
    'attempts were spent, the deadline passed, an operator cancelled it, or there was no handler.';
COMMENT ON COLUMN tidegate.event_log.attempts IS 'How many attempts the event had.';
COMMENT ON COLUMN tidegate.event_log.max_attempts IS 'The most attempts that it was allowed.';
COMMENT ON COLUMN tidegate.event_log.errors IS
    'All its errors, oldest first: an array of objects with handler, code, message, attempt and at.';
COMMENT ON COLUMN tidegate.event_log.result IS 'The results of the handlers. Null: none.';
COMMENT ON COLUMN tidegate.event_log.progress IS 'The handlers that had finished, for a replay of only the failed ones.';
COMMENT ON COLUMN tidegate.event_log.created_at IS 'When the event was published.';
COMMENT ON COLUMN tidegate.event_log.processing_started_at IS 'When the lease that ended it was taken. Null: it was not leased.';
COMMENT ON COLUMN tidegate.event_log.finished_at IS 'When the event ended.';
COMMENT ON COLUMN tidegate.event_log.expires_at IS
    'When its retention ends and a cleanup may remove the row. Not the event''s deadline, which is in the column deadline.';
COMMENT ON COLUMN tidegate.event_log.lease_token IS
    'The lease under which a worker ended it. Null: an operator, a cleanup or the deadline ended it.';
COMMENT ON COLUMN tidegate.event_log.parent_id IS
    'The id of the event whose handler published this one. Null: a producer published it.';
COMMENT ON COLUMN tidegate.event_log.replay_of IS
    'The id of the finished event that this one replayed. Null: it was not a replay.';
COMMENT ON COLUMN tidegate.event_log.deadline IS 'The deadline that the event had in event_queue.expires_at. Null: none.';
COMMENT ON COLUMN tidegate.event_log.traceparent IS 'The W3C trace context that the event was published under. Null: none.';
COMMENT ON COLUMN tidegate.event_log.forgotten_at IS 'When forget() removed the event''s content. Null: the content is complete.';

COMMENT ON TABLE tidegate.event_log_default IS
    'Rows of the log whose day of expiry has no partition yet. A cleanup moves them. Columns as in event_log.';

COMMENT ON TABLE tidegate.received IS
    'Messages from outside that receive() has recorded, each once. A cleanup removes them after 15 days.';
COMMENT ON COLUMN tidegate.received.source IS 'Where the message came from, such as the ARN of a queue, 1 to 1000 bytes.';
COMMENT ON COLUMN tidegate.received.message_id IS 'The message''s id there, 1 to 500 bytes.';
COMMENT ON COLUMN tidegate.received.received_at IS 'When it was recorded.';

COMMENT ON TABLE tidegate.audit IS 'The actions of operators and cleanups. Rows are only added; keys of forgotten events leave them.';
COMMENT ON COLUMN tidegate.audit.id IS 'The id of the entry.';
COMMENT ON COLUMN tidegate.audit.at IS 'When the action ran.';
COMMENT ON COLUMN tidegate.audit.session_user_name IS 'The database login that ran it.';
COMMENT ON COLUMN tidegate.audit.actor IS 'The operator''s name, as the caller gave it, 1 to 200 characters. Null: not given.';
COMMENT ON COLUMN tidegate.audit.action IS 'The action, such as replay, requeue, cancel, pause, cleanup.';
COMMENT ON COLUMN tidegate.audit.filter IS 'The arguments of the call, as an object; a key is (forgotten) if its events were.';
COMMENT ON COLUMN tidegate.audit.ids IS
    'The ids of the changed events. Null or empty: no event was changed, or the ids are not recorded.';
COMMENT ON COLUMN tidegate.audit.count IS 'How many events or rows were changed.';
COMMENT ON COLUMN tidegate.audit.reason IS 'The reason, as the caller gave it.';

COMMENT ON TABLE tidegate.schedule IS 'Periodic events: each row is published at its slots, at fixed times or intervals.';
COMMENT ON COLUMN tidegate.schedule.id IS 'A number for internal use.';
COMMENT ON COLUMN tidegate.schedule.name IS 'The name of the schedule: 1 to 100 letters, digits, ''.'', ''_'' and ''-''.';
COMMENT ON COLUMN tidegate.schedule.keeper IS 'The program that declares the schedule. Null: operators keep it, by set_schedule().';
COMMENT ON COLUMN tidegate.schedule.kind IS 'The kind of event that it publishes.';
COMMENT ON COLUMN tidegate.schedule.payload IS 'The payload of each event, at most 65536 bytes. Null: none.';
COMMENT ON COLUMN tidegate.schedule.cron IS 'The cron expression of its slots. Null if every is given.';
COMMENT ON COLUMN tidegate.schedule.every IS 'The time between two slots. Null if cron is given.';
COMMENT ON COLUMN tidegate.schedule.time_zone IS 'The time zone of the cron expression, such as Europe/Berlin.';
COMMENT ON COLUMN tidegate.schedule.group_key IS 'The group of its events. Null: none.';
COMMENT ON COLUMN tidegate.schedule.start_within IS
    'The deadline of each event after its slot: later, it no longer starts. Null: no deadline.';
COMMENT ON COLUMN tidegate.schedule.catch_up IS 'Which missed slots are published: none, the last one, or all.';
COMMENT ON COLUMN tidegate.schedule.paused IS 'True: the schedule publishes no events.';
COMMENT ON COLUMN tidegate.schedule.since IS
    'Slots up to this time are past: the time when the schedule was created, changed or resumed.';
COMMENT ON COLUMN tidegate.schedule.next_at IS 'The next slot. -infinity: the next drain computes it. infinity: there is none.';
COMMENT ON COLUMN tidegate.schedule.last_at IS 'The latest slot for which an event was published.';
COMMENT ON COLUMN tidegate.schedule.last_event_id IS 'The id of that event.';
COMMENT ON COLUMN tidegate.schedule.fired_at IS 'When that event was published.';
COMMENT ON COLUMN tidegate.schedule.problem IS 'Why the schedule stands still. Null: there is no problem.';
COMMENT ON COLUMN tidegate.schedule.revision IS 'Counts the changes of the definition.';

-- Tables: leases, drains and services.

COMMENT ON TABLE tidegate.lease IS 'Which worker holds which events, one row per lease. Read the view leases instead.';
COMMENT ON COLUMN tidegate.lease.token IS 'The lease''s id. Every write of the worker names it.';
COMMENT ON COLUMN tidegate.lease.worker IS 'The worker that holds it.';
COMMENT ON COLUMN tidegate.lease.ids IS 'The leased ids, as ranges. Only those that are still in event_queue are in hand.';
COMMENT ON COLUMN tidegate.lease.started_to IS 'Handlers of events up to this id may have started.';
COMMENT ON COLUMN tidegate.lease.groups IS 'Hashes of the groups of its events. Null: none has a group.';
COMMENT ON COLUMN tidegate.lease.taken_at IS 'When the lease was taken.';
COMMENT ON COLUMN tidegate.lease.renewed_at IS 'When the worker last renewed the lease.';
COMMENT ON COLUMN tidegate.lease.expires_at IS
    'When the lease runs out if it is not renewed. When all leases of a worker have run out, a sweep breaks them.';
COMMENT ON TABLE tidegate.lease_cut IS 'Events that operators have taken from a lease and the next sweep takes out of it.';
COMMENT ON COLUMN tidegate.lease_cut.token IS 'The lease.';
COMMENT ON COLUMN tidegate.lease_cut.id IS 'The event.';
COMMENT ON COLUMN tidegate.lease_cut.charged IS 'Its attempt was charged, because it may have been started.';
COMMENT ON COLUMN tidegate.lease_cut.behind IS 'It leaves because an earlier event of its group was taken.';
COMMENT ON COLUMN tidegate.lease.cuts IS 'How often another session has removed events from the lease.';
COMMENT ON COLUMN tidegate.lease.ended IS 'True: none of its events is left in the queue.';
COMMENT ON COLUMN tidegate.lease.born IS 'The transaction that took it.';
COMMENT ON COLUMN tidegate.lease.clear_to IS 'Up to this id, that walk has left no unmarked event of a group behind.';
COMMENT ON COLUMN tidegate.lease.as_of IS 'That walk has seen all writes of transactions before this one.';

COMMENT ON TABLE tidegate.mutex IS
    'Rows that publishers lock, so that the events of a group commit in the order of their ids. Never written; do not '
    'delete rows.';
COMMENT ON COLUMN tidegate.mutex.slot IS 'The hash of a group''s key, 0 to 65535; -1 for replays and steps of a cleanup.';

COMMENT ON TABLE tidegate.minute_stats IS
    'How many events ended, by minute, kind, status and latency. Written in the transaction that ends the events. Several '
    'rows may have the same key, so always sum them. Minutes older than two hours are merged into hours, and hours older '
    'than two days into days. Kept for ever.';
COMMENT ON COLUMN tidegate.minute_stats.id IS 'The row''s id, without further meaning.';
COMMENT ON COLUMN tidegate.minute_stats.minute IS 'The start of the minute, hour or day (UTC) in which the events ended.';
COMMENT ON COLUMN tidegate.minute_stats.kind IS 'The kind of the events; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN tidegate.minute_stats.status IS 'How they ended: COMPLETED, COMPLETED_WITH_ERRORS or FAILED.';
COMMENT ON COLUMN tidegate.minute_stats.within_ms IS
    'The latency bucket: the events ended within this many milliseconds after their publish, but not within the next '
    'smaller bound. The bounds are 50, 250, 1000, 5000, 30000, 120000, 600000 and 3600000. Null: later than all bounds.';
COMMENT ON COLUMN tidegate.minute_stats.events IS 'The number of events.';
COMMENT ON COLUMN tidegate.minute_stats.attempts IS 'The sum of their attempts.';
COMMENT ON COLUMN tidegate.minute_stats.latency_ms IS 'The sum of their times from publish to end, in milliseconds.';
COMMENT ON TABLE tidegate.drain_run IS
    'Drains of the last week that ran to their end. A drain that was killed or that found no slot has no row.';
COMMENT ON COLUMN tidegate.drain_run.worker IS 'The drain''s name in leases and slots.';
COMMENT ON COLUMN tidegate.drain_run.started_at IS 'When it began.';
COMMENT ON COLUMN tidegate.drain_run.ended_at IS 'When it ended.';
COMMENT ON COLUMN tidegate.drain_run.stop_reason IS 'Why it ended, such as queue_empty or budget_spent.';
COMMENT ON COLUMN tidegate.drain_run.report IS 'Its report.';
COMMENT ON TABLE tidegate.drain_slot IS
    'Slots that limit how many drains run at the same time: a drain has one slot while it runs.';
COMMENT ON COLUMN tidegate.drain_slot.slot IS 'The number of the slot, 1 to 1000.';
COMMENT ON COLUMN tidegate.drain_slot.worker IS 'The drain that has the slot. Null: it is free.';
COMMENT ON COLUMN tidegate.drain_slot.until IS 'When the slot becomes free, unless its drain renews it.';
COMMENT ON COLUMN tidegate.drain_slot.taken_at IS 'When the drain took it.';
COMMENT ON COLUMN tidegate.drain_slot.rate IS 'How many events per second the drain ends. Null: not known yet.';
COMMENT ON COLUMN tidegate.drain_slot.closing IS 'True: the drain has found no event, looks once more and then ends.';

COMMENT ON TABLE tidegate.drain_chain IS 'Chains of drains, in which one drain starts the next, and how far each chain has come.';
COMMENT ON COLUMN tidegate.drain_chain.chain IS 'The chain''s id.';
COMMENT ON COLUMN tidegate.drain_chain.hop IS 'The number of the latest drain of the chain.';
COMMENT ON COLUMN tidegate.drain_chain.worker IS 'The worker id of that drain.';
COMMENT ON COLUMN tidegate.drain_chain.at IS 'When that drain began.';

COMMENT ON TABLE tidegate.wake IS 'When a drain was last woken, in a single row. See should_wake().';
COMMENT ON COLUMN tidegate.wake.one IS 'Always true: there is only one row.';
COMMENT ON COLUMN tidegate.wake.sent_at IS 'When should_wake() last returned true.';
COMMENT ON COLUMN tidegate.wake.asked_at IS 'When a call of should_wake() was last recorded.';

COMMENT ON TABLE tidegate.service IS
    'Outside services that handlers call and that have failed, are limited, or were paused. Read the view services instead.';
COMMENT ON COLUMN tidegate.service.service IS 'The name of the service, 1 to 100 characters. kind:NAME is the limit of a kind.';
COMMENT ON COLUMN tidegate.service.state IS
    'closed: it is called. open: it does not answer, and its events wait. probing: one event tries it. paused: an operator '
    'has stopped the calls.';
COMMENT ON COLUMN tidegate.service.since IS 'Since when it is in this state.';
COMMENT ON COLUMN tidegate.service.failures IS 'The number of consecutive calls that it has not answered.';
COMMENT ON COLUMN tidegate.service.holds IS 'The number of consecutive probes that found it still down.';
COMMENT ON COLUMN tidegate.service.retry_at IS 'When it is tried next. Null: no try is planned.';
COMMENT ON COLUMN tidegate.service.answers IS 'The number of reports that it has answered.';
COMMENT ON COLUMN tidegate.service.answered_at IS 'When it last answered.';
COMMENT ON COLUMN tidegate.service.last_error IS 'The code of the latest failure.';
COMMENT ON COLUMN tidegate.service.kinds IS 'The kinds of events that have met a failure of the service.';
COMMENT ON COLUMN tidegate.service.prober IS 'The worker that tries it.';
COMMENT ON COLUMN tidegate.service.probe_id IS 'The event that tried it last.';
COMMENT ON COLUMN tidegate.service.max_running IS 'The most events that call it at once, over all drains. Null: any number.';
COMMENT ON COLUMN tidegate.service.per_second IS
    'The most events that call it that start per second, over all drains. Null: any number.';
COMMENT ON COLUMN tidegate.service.next_start IS 'The earliest start of the next event that calls it.';

COMMENT ON TABLE tidegate.service_place IS 'How many places of a limited service each worker holds.';
COMMENT ON COLUMN tidegate.service_place.service IS 'The service.';
COMMENT ON COLUMN tidegate.service_place.worker IS 'The worker.';
COMMENT ON COLUMN tidegate.service_place.places IS 'How many places it holds.';
COMMENT ON COLUMN tidegate.service_place.until IS 'When the places become free, unless the worker renews them.';

-- Tables: figures that outlive the log.

COMMENT ON TABLE tidegate.stats_archive IS
    'Counts of events whose log rows a cleanup has removed. Read the view daily_stats instead.';
COMMENT ON COLUMN tidegate.stats_archive.day IS 'The UTC day on which they ended.';
COMMENT ON COLUMN tidegate.stats_archive.kind IS 'Their kind; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN tidegate.stats_archive.status IS 'Their status.';
COMMENT ON COLUMN tidegate.stats_archive.events IS 'How many there were.';
COMMENT ON COLUMN tidegate.stats_archive.attempts IS 'How many attempts they had in all.';
COMMENT ON COLUMN tidegate.stats_archive.latency_ms IS 'The sum of their times from publish to end, in milliseconds.';

COMMENT ON TABLE tidegate.sealed_partition IS
    'Partitions of the log to which no rows are added any more, and which are being counted or have been counted.';
COMMENT ON COLUMN tidegate.sealed_partition.partition IS 'The name of the partition.';
COMMENT ON COLUMN tidegate.sealed_partition.counted_to IS 'Where counting continues. Null: it is complete.';
COMMENT ON COLUMN tidegate.sealed_partition.sealed_at IS 'When counting began.';

COMMENT ON TABLE tidegate.sealed_stats IS 'Counts of the rows of sealed partitions.';
COMMENT ON COLUMN tidegate.sealed_stats.partition IS 'The name of the partition.';
COMMENT ON COLUMN tidegate.sealed_stats.day IS 'The UTC day on which the events ended.';
COMMENT ON COLUMN tidegate.sealed_stats.kind IS 'Their kind.';
COMMENT ON COLUMN tidegate.sealed_stats.status IS 'Their status.';
COMMENT ON COLUMN tidegate.sealed_stats.events IS 'How many there are.';
COMMENT ON COLUMN tidegate.sealed_stats.attempts IS 'How many attempts they had in all.';
COMMENT ON COLUMN tidegate.sealed_stats.latency_ms IS 'The sum of their times from publish to end, in milliseconds.';

COMMENT ON TABLE tidegate.queue_migrations IS 'The migrations of the queue''s schema that were applied.';
COMMENT ON COLUMN tidegate.queue_migrations.version IS 'The number of the migration.';
COMMENT ON COLUMN tidegate.queue_migrations.name IS 'Its name.';
COMMENT ON COLUMN tidegate.queue_migrations.applied_on IS 'When it was applied.';
COMMENT ON COLUMN tidegate.queue_migrations.checksum IS 'A hash of its text.';

-- Views.

COMMENT ON VIEW tidegate.stats IS
    'One row per kind: the live events, and the results of the events that ended within the last hour.';
COMMENT ON COLUMN tidegate.stats.kind IS 'The kind of event; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN tidegate.stats.pending IS 'Events that are ready and not leased.';
COMMENT ON COLUMN tidegate.stats.processing IS 'Leased events.';
COMMENT ON COLUMN tidegate.stats.delayed IS 'Events that wait for their time, a retry, or other events.';
COMMENT ON COLUMN tidegate.stats.max_attempts_used IS 'The most attempts that any live event has had.';
COMMENT ON COLUMN tidegate.stats.oldest_age_ms IS
    'Milliseconds since the oldest live event was published. Null: there are no live events.';
COMMENT ON COLUMN tidegate.stats.completed IS 'Events that ended COMPLETED within the last hour.';
COMMENT ON COLUMN tidegate.stats.completed_with_errors IS 'Events that ended COMPLETED_WITH_ERRORS within the last hour.';
COMMENT ON COLUMN tidegate.stats.failed IS 'Events that ended FAILED within the last hour.';
COMMENT ON COLUMN tidegate.stats.attempts_per_event IS 'The mean number of attempts of the events that ended within the last hour.';
COMMENT ON COLUMN tidegate.stats.latency_p50_ms IS 'The median of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN tidegate.stats.latency_p95_ms IS 'The 95th percentile of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN tidegate.stats.latency_p99_ms IS 'The 99th percentile of their times from publish to end, in milliseconds.';
COMMENT ON COLUMN tidegate.stats.failure_rate IS 'The share of them that did not end COMPLETED, 0 to 1.';
COMMENT ON COLUMN tidegate.stats.events IS 'All live events of the kind: pending, processing and delayed.';
COMMENT ON COLUMN tidegate.stats.stuck IS 'Leased events whose worker has not renewed its lease in time.';
COMMENT ON COLUMN tidegate.stats.paused IS 'True: drains do not lease events of the kind.';

COMMENT ON VIEW tidegate.events IS
    'Live events with their state. An UPDATE of status to PENDING requeues an event. An UPDATE of available_at or '
    'expires_at reschedules it. A DELETE cancels it. Each of these writes an audit row.';
COMMENT ON COLUMN tidegate.events.id IS 'The event''s id.';
COMMENT ON COLUMN tidegate.events.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.events.payload IS 'The payload as it was published.';
COMMENT ON COLUMN tidegate.events.group_key IS 'The group of the event. Null: none.';
COMMENT ON COLUMN tidegate.events.dedup_key IS 'The deduplication key of the event. Null: none.';
COMMENT ON COLUMN tidegate.events.correlation_id IS 'The correlation id of the event. Null: none.';
COMMENT ON COLUMN tidegate.events.status IS 'PENDING: it waits. PROCESSING: a worker has leased it.';
COMMENT ON COLUMN tidegate.events.attempts IS 'Attempts so far, including one that may be running.';
COMMENT ON COLUMN tidegate.events.max_attempts IS 'The most attempts that it may have.';
COMMENT ON COLUMN tidegate.events.available_at IS 'The event starts no earlier than this.';
COMMENT ON COLUMN tidegate.events.expires_at IS 'Its deadline. Null: none.';
COMMENT ON COLUMN tidegate.events.created_at IS 'When it was published.';
COMMENT ON COLUMN tidegate.events.updated_at IS 'The time of the last lease renewal, the latest error, or the publish.';
COMMENT ON COLUMN tidegate.events.processing_started_at IS 'When its lease was taken. Null: it is not leased.';
COMMENT ON COLUMN tidegate.events.lease_token IS 'The lease that holds it. Null: it is not leased.';
COMMENT ON COLUMN tidegate.events.lease_expires_at IS 'When that lease runs out if it is not renewed. Null: it is not leased.';
COMMENT ON COLUMN tidegate.events.last_error IS 'Code and message of the latest failed attempt. Null: none has failed.';
COMMENT ON COLUMN tidegate.events.errors IS 'All errors so far, oldest first.';
COMMENT ON COLUMN tidegate.events.progress IS 'The handlers that have finished, and the results of their steps.';
COMMENT ON COLUMN tidegate.events.parent_id IS 'The event whose handler published it. Null: a producer published it.';
COMMENT ON COLUMN tidegate.events.replay_of IS 'The finished event that it replays. Null: it is not a replay.';
COMMENT ON COLUMN tidegate.events.delayed IS 'True while available_at is in the future.';
COMMENT ON COLUMN tidegate.events.traceparent IS 'The W3C trace context that it was published under.';
COMMENT ON COLUMN tidegate.events.reported IS
    'The progress that the running handler reports. Null: none, or the event is not leased.';

COMMENT ON VIEW tidegate.jobs IS
    'Live and finished events, in the form for clients of an HTTP interface. Use job() to read one event by its id, because '
    'a scan of the view reads the whole log.';
COMMENT ON COLUMN tidegate.jobs.id IS 'The event''s id.';
COMMENT ON COLUMN tidegate.jobs.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.jobs.status IS 'pending, processed, failed or failed_with_error.';
COMMENT ON COLUMN tidegate.jobs.status_number IS '0 pending, 1 processed, 2 failed, 3 failed_with_error.';
COMMENT ON COLUMN tidegate.jobs.status_code IS
    'An HTTP status: 200 processed; 4xx failed, from the last error''s code or else 409; 500 failed_with_error. Null: '
    'pending.';
COMMENT ON COLUMN tidegate.jobs.correlation_id IS 'The correlation id of the event. Null: none.';
COMMENT ON COLUMN tidegate.jobs.group_key IS 'The group of the event. Null: none.';
COMMENT ON COLUMN tidegate.jobs.errors IS 'All errors so far, oldest first.';
COMMENT ON COLUMN tidegate.jobs.result IS 'The results of the handlers. Null: none, or not yet.';
COMMENT ON COLUMN tidegate.jobs.created_at IS 'When it was published.';
COMMENT ON COLUMN tidegate.jobs.finished_at IS 'When it ended. Null: it is live.';

COMMENT ON VIEW tidegate.ends IS 'The log without the events'' content: how each event ended, with its last error.';
COMMENT ON COLUMN tidegate.ends.id IS 'The event''s id.';
COMMENT ON COLUMN tidegate.ends.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.ends.status IS 'COMPLETED, COMPLETED_WITH_ERRORS or FAILED.';
COMMENT ON COLUMN tidegate.ends.attempts IS 'How many attempts it had.';
COMMENT ON COLUMN tidegate.ends.max_attempts IS 'The most attempts that it was allowed.';
COMMENT ON COLUMN tidegate.ends.group_key IS 'The group of the event. Null: none.';
COMMENT ON COLUMN tidegate.ends.correlation_id IS 'The correlation id of the event. Null: none.';
COMMENT ON COLUMN tidegate.ends.created_at IS 'When it was published.';
COMMENT ON COLUMN tidegate.ends.finished_at IS 'When it ended.';
COMMENT ON COLUMN tidegate.ends.last_error IS 'Code and message of its last error. Null: it had none.';

COMMENT ON VIEW tidegate.leases IS 'Which worker holds which events, one row per lease.';
COMMENT ON COLUMN tidegate.leases.token IS 'The lease''s id.';
COMMENT ON COLUMN tidegate.leases.worker IS 'The worker that holds it.';
COMMENT ON COLUMN tidegate.leases.taken_at IS 'When it was taken.';
COMMENT ON COLUMN tidegate.leases.renewed_at IS 'When the worker last renewed the lease.';
COMMENT ON COLUMN tidegate.leases.expires_at IS
    'When the lease runs out if it is not renewed. From then on a sweep may break it.';
COMMENT ON COLUMN tidegate.leases.expired IS 'True: the lease has run out.';
COMMENT ON COLUMN tidegate.leases.events IS 'How many events it still holds.';
COMMENT ON COLUMN tidegate.leases.started IS 'How many of them a handler may be processing.';
COMMENT ON COLUMN tidegate.leases.first_id IS 'The lowest of their ids.';
COMMENT ON COLUMN tidegate.leases.last_id IS 'The highest of their ids.';
COMMENT ON COLUMN tidegate.leases.cuts IS 'How often another session has removed events from it.';

COMMENT ON VIEW tidegate.held IS 'All leases together, as sets of ids; the other views use it.';
COMMENT ON COLUMN tidegate.held.ids IS 'All leased ids.';
COMMENT ON COLUMN tidegate.held.started IS 'The leased ids that a handler may be processing.';
COMMENT ON COLUMN tidegate.held.stuck IS 'The leased ids whose worker has not renewed its lease in time.';

COMMENT ON VIEW tidegate.at_work IS 'The progress that running handlers report for their events.';
COMMENT ON COLUMN tidegate.at_work.id IS 'The event''s id.';
COMMENT ON COLUMN tidegate.at_work.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.at_work.handler IS 'The handler that reports.';
COMMENT ON COLUMN tidegate.at_work.part IS 'The part that is done, 0 to 1.';
COMMENT ON COLUMN tidegate.at_work.note IS 'The handler''s note about it.';
COMMENT ON COLUMN tidegate.at_work.reported_at IS 'When the handler reported it.';

COMMENT ON VIEW tidegate.stuck_events IS
    'Leased events whose worker has not renewed its lease in time. The next drain releases them.';
COMMENT ON COLUMN tidegate.stuck_events.id IS 'The event''s id.';
COMMENT ON COLUMN tidegate.stuck_events.kind IS 'The kind of the event.';
COMMENT ON COLUMN tidegate.stuck_events.group_key IS 'The group of the event. Null: none.';
COMMENT ON COLUMN tidegate.stuck_events.attempts IS 'Attempts so far, including one that may be running.';
COMMENT ON COLUMN tidegate.stuck_events.max_attempts IS 'The most attempts that it may have.';
COMMENT ON COLUMN tidegate.stuck_events.processing_started_at IS 'When its lease was taken.';
COMMENT ON COLUMN tidegate.stuck_events.updated_at IS 'When the worker last renewed the lease.';
COMMENT ON COLUMN tidegate.stuck_events.lease_expires_at IS 'When the lease ran out.';
COMMENT ON COLUMN tidegate.stuck_events.overdue IS 'How long ago that was.';

COMMENT ON VIEW tidegate.blocked_groups IS
    'Groups whose first event waits for a retry or a planned time while other events wait behind it. See unblock().';
COMMENT ON COLUMN tidegate.blocked_groups.group_key IS 'The group.';
COMMENT ON COLUMN tidegate.blocked_groups.head_id IS 'Its first event.';
COMMENT ON COLUMN tidegate.blocked_groups.head_kind IS 'The kind of that event.';
COMMENT ON COLUMN tidegate.blocked_groups.attempts IS 'How many attempts that event has had.';
COMMENT ON COLUMN tidegate.blocked_groups.max_attempts IS 'The most attempts that it may have.';
COMMENT ON COLUMN tidegate.blocked_groups.available_at IS 'When it is tried next.';
COMMENT ON COLUMN tidegate.blocked_groups.last_error IS 'Its latest error.';
COMMENT ON COLUMN tidegate.blocked_groups.created_at IS 'When it was published.';
COMMENT ON COLUMN tidegate.blocked_groups.waiting IS 'How many events wait behind it.';

COMMENT ON VIEW tidegate.daily_stats IS
    'The number of events that have ever ended, by UTC day. Includes events that the log no longer holds. Reads the whole '
    'log.';
COMMENT ON COLUMN tidegate.daily_stats.day IS 'The UTC day on which the events ended.';
COMMENT ON COLUMN tidegate.daily_stats.kind IS 'Their kind; (unregistered) for all kinds that nobody has registered.';
COMMENT ON COLUMN tidegate.daily_stats.status IS 'COMPLETED, COMPLETED_WITH_ERRORS or FAILED.';
COMMENT ON COLUMN tidegate.daily_stats.events IS 'How many there were.';
COMMENT ON COLUMN tidegate.daily_stats.attempts IS 'How many attempts they had in all.';
COMMENT ON COLUMN tidegate.daily_stats.latency_ms IS
    'The sum of their times from publish to end, in milliseconds. Divide it by events for the mean.';

COMMENT ON VIEW tidegate.services IS 'Outside services that handlers call and that have failed, are limited, or were paused.';
COMMENT ON COLUMN tidegate.services.service IS 'The name of the service.';
COMMENT ON COLUMN tidegate.services.state IS
    'closed: it is called. open: it does not answer, and its events wait. probing: one event tries it. paused: an operator '
    'has stopped the calls.';
COMMENT ON COLUMN tidegate.services.since IS 'Since when it is in this state.';
COMMENT ON COLUMN tidegate.services.failures IS 'The number of consecutive calls that it has not answered.';
COMMENT ON COLUMN tidegate.services.retry_at IS 'When it is tried next. Null: no try is planned.';
COMMENT ON COLUMN tidegate.services.answered_at IS 'When it last answered.';
COMMENT ON COLUMN tidegate.services.last_error IS 'The code of the latest failure.';
COMMENT ON COLUMN tidegate.services.kinds IS 'The kinds of events that have met a failure of the service.';
COMMENT ON COLUMN tidegate.services.max_running IS 'The most events that call it at once, over all drains. Null: any number.';
COMMENT ON COLUMN tidegate.services.per_second IS
    'The most events that call it that start per second, over all drains. Null: any number.';
COMMENT ON COLUMN tidegate.services.places IS 'How many of its places workers hold now.';
COMMENT ON COLUMN tidegate.services.waiting IS 'How many events wait for it.';
COMMENT ON COLUMN tidegate.services.oldest IS 'When the oldest of them was published. Null: none waits.';

-- Sequences.
COMMENT ON SEQUENCE tidegate.event_queue_id_seq IS 'Draws the ids of events. last_value is the latest drawn id.';
COMMENT ON SEQUENCE tidegate.audit_id_seq IS 'Draws the ids of audit rows.';
COMMENT ON SEQUENCE tidegate.schedule_id_seq IS 'Draws the ids of schedules.';

-- Functions for producers.
COMMENT ON FUNCTION tidegate.publish IS
    'Publishes one event in the caller''s transaction, and returns one row. kind: a registered kind. payload: JSON, at most '
    '1048576 bytes as text, without \u0000; null for none. group_key: 1 to 200 characters; events of a group run one after '
    'the other, and the call waits for other transactions that publish to the group. dedup_key: 1 to 200 characters; while '
    'an event of the kind with this key is live, no new event is stored and that event is returned. correlation_id: 1 to '
    '200 characters; it is copied to the log. available_at: the earliest start. expires_at: the deadline for the start; '
    'after it, the event ends FAILED with the code expired. max_attempts: 1 to 1000; null for the kind''s number, or else '
    'the queue''s default. traceparent: a W3C trace context. on_duplicate: keep, or replace, which overwrites payload and '
    'times of a waiting event with the dedup_key. delay: the earliest start as a time from now, 0 to 36500 days; not '
    'together with available_at. With a group_key, max_group_delay() limits both. Returns id, created (false: a duplicate), '
    'status and attempts of the stored event, and replaced. An invalid argument raises SQLSTATE 22023 and names the field.';
COMMENT ON FUNCTION tidegate.publish_many IS
    'Publishes a batch in the caller''s transaction, all events or none, and returns one row per event in the order of the '
    'array. events: a JSON array of objects with the keys kind, payload, group_key, dedup_key, correlation_id, '
    'available_at, delay, expires_at, max_attempts and traceparent, with the same meaning as in publish(). A key that is '
    'missing or null is not set. delay is a number of seconds or the text of an interval. Returns id, created, status and '
    'attempts. An invalid event raises SQLSTATE 22023 and names its position in the array, from 1, and the field.';
COMMENT ON FUNCTION tidegate.publish_batch IS
    'Publishes a batch for publish_many() and the Rust library, with one array per field and one element per event. All '
    'arrays except the first may be shorter; missing elements are null. kinds, payloads, group_keys, dedup_keys, '
    'correlation_ids, available_ats, expires_ats, max_attempts_each and traceparents have the same meaning as the fields of '
    'publish().';
COMMENT ON FUNCTION tidegate.publish_one IS
    'Publishes one event for publish() and the Rust library. kind, payload (as json, stored unchanged), group_key, '
    'dedup_key, correlation_id, available_at, expires_at, max_attempts, traceparent and on_duplicate as in publish().';
COMMENT ON FUNCTION tidegate.receive IS
    'Records a message from outside in the caller''s transaction, so that it is taken in once. source: where it comes from, '
    '1 to 1000 bytes. message_id: its id there, 1 to 500 bytes. Returns true if it is new, false if it was recorded within '
    'the last 15 days. Waits for another transaction that records the same message.';
COMMENT ON FUNCTION tidegate.should_wake IS
    'Returns whether a producer that has just published should start a drain: true at most once in two seconds, and only '
    'while no drain is at work. Call it after the COMMIT, in a separate transaction.';
COMMENT ON FUNCTION tidegate.default_max_attempts IS
    'The default number of attempts of an event. Set by `tidegate migrate` from TIDEGATE_MAX_ATTEMPTS.';
COMMENT ON FUNCTION tidegate.takes_plaintext IS
    'Whether payloads may be published unsealed. Set by `tidegate migrate` from TIDEGATE_PAYLOADS.';
COMMENT ON FUNCTION tidegate.max_group_delay IS
    'How far ahead an event of a group may be planned. Set by `tidegate migrate` from TIDEGATE_MAX_GROUP_DELAY.';

-- Functions for readers.
COMMENT ON FUNCTION tidegate.job IS
    'The state of one event: a row of the view jobs, or no row if there is no such event. id: the event''s id.';
COMMENT ON FUNCTION tidegate.logged IS
    'A finished event, as a row of event_log; no row if it is not in the log. id: the event''s id. Reads one partition at a '
    'time.';
COMMENT ON FUNCTION tidegate.lineage IS
    'The family of an event: its ancestors, nearest first, then its descendants, each as a JSON object. id: the event''s '
    'id. most: the most rows.';
COMMENT ON FUNCTION tidegate.left_to_do IS
    'The work that a drain could do now. kinds: the kinds that it handles. most: where counting stops. Returns ready '
    '(events), next_due_at, at_work (drains), unrated and rate (events per second that those drains end).';
COMMENT ON FUNCTION tidegate.job_status IS
    'The status of a job. status: COMPLETED, COMPLETED_WITH_ERRORS or FAILED, as in the log. Returns processed, failed or '
    'failed_with_error.';
COMMENT ON FUNCTION tidegate.job_status_number IS
    'The status of a job as a number. status: as in the log. Returns 1 processed, 2 failed, 3 failed_with_error.';
COMMENT ON FUNCTION tidegate.job_status_code IS
    'The status of a job as an HTTP status. status and errors: as in the log. Returns 200, 4xx or 500.';
COMMENT ON FUNCTION tidegate.latency_ms IS 'Milliseconds from publish to end. created_at and finished_at: as in the log.';
COMMENT ON FUNCTION tidegate.unordered_leases IS
    'Checks the order within groups: leased events with an earlier live event of their group that the same worker does not hold. '
    'There should be none. most: the most rows.';
COMMENT ON FUNCTION tidegate.unmarked_events IS
    'Checks the order within groups: events that a drain''s walk has passed and lost. There should be none. most: the most '
    'rows.';

-- Functions for operators.
COMMENT ON FUNCTION tidegate.replay IS
    'Publishes finished events again, as new events with replay_of. Selects them by ids (1 to 10000), or by a filter: since '
    '(ended at this time or later; required), until (ended before), kind, status (COMPLETED, COMPLETED_WITH_ERRORS or '
    'FAILED). reason: the reason for the audit, up to 1000 characters, required. actor: the operator''s name for the audit, '
    'up to 200 characters. limit: the most events, 1 to 100000. dry_run: true reports what would be done and changes '
    'nothing. again: includes events that were replayed before. failed_handlers_only: skips handlers that had succeeded. '
    'expires_in: a new deadline, counted from now, for events whose own deadline has passed; at most 3660 days. code: only '
    'events whose last error has this code. digest: replays nothing unless exactly the events of the dry run with this '
    'digest are eligible. Returns a report as an object; limit_reached: call again for the rest.';
COMMENT ON FUNCTION tidegate.record_publish IS
    'Records in the audit that an operator has published the event id by hand, with a reason and the name of the actor. '
    'Call it in the transaction that publishes.';
COMMENT ON FUNCTION tidegate.requeue IS
    'Breaks the leases of live events and makes them ready now, with at least one attempt left. ids: 1 to 10000 events. '
    'reason: the reason for the audit, up to 1000 characters, required. actor: the operator''s name for the audit, up to '
    '200 characters. Returns a report as an object.';
COMMENT ON FUNCTION tidegate.cancel IS
    'Ends live events FAILED with the code cancelled, even while a worker holds them. Selects them by ids (1 to 10000), or '
    'by kind, correlation_id or group_key, or by a dedup_key with its kind; narrowed by status (PENDING or PROCESSING), '
    'since and until (the time of the publish). reason: the reason, required. actor: the operator''s name. limit: the most '
    'events in this call. after: only ids above this; the report''s next is the value for the next call. dry_run: true '
    'reports what would be done, with all ids, and changes nothing. Returns a report as an object.';
COMMENT ON FUNCTION tidegate.reschedule IS
    'Sets another start or deadline for waiting events. Selects them by ids, kind, dedup_key, correlation_id, group_key, '
    'status, since and until as in cancel(). available_at: the new start; a time in the past means now. expires_at: the new '
    'deadline. no_deadline: true removes it. reason: the reason, required. actor: the operator''s name. limit, after and '
    'dry_run as in cancel(). Leased events are not changed and are counted as in_hand. Returns a report as an object.';
COMMENT ON FUNCTION tidegate.pause IS
    'Pauses a kind: drains no longer lease its events, but they can still be published. kind: a registered kind. reason: '
    'the reason, optional. actor: the operator''s name. Returns a report as an object.';
COMMENT ON FUNCTION tidegate.resume IS
    'Resumes a kind after pause(). kind: a registered kind. reason: the reason, optional. actor: the operator''s name. '
    'Returns a report as an object.';
COMMENT ON FUNCTION tidegate.retire IS
    'Unregisters a kind that no program handles any more; refused while the kind has live events. kind: a registered kind. '
    'reason: the reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.unblock IS
    'Acts on the first live event of a group, which holds back the other events. group_key: the group. how: retry makes the '
    'event ready now, cancel ends it, skip ends it and publishes it again after the others. reason: the reason, required. '
    'actor: the operator''s name. Returns a report as an object.';
COMMENT ON FUNCTION tidegate.set_policy IS
    'Sets how events of a kind are handled, in place of what the program declares. kind: a registered kind. policy: an '
    'object with some of max_attempts, handler_timeout_ms, backoff_ms, backoff_max_ms, concurrency, batch and '
    'batch_within_ms; a field that is null returns to the declared value; {} changes nothing. reason: the reason, required '
    'for a change. actor: the operator''s name. Returns declared, overridden and policy.';
COMMENT ON FUNCTION tidegate.set_retention IS
    'Sets how long finished events of a kind are kept; applies to events that end from now on. kind: a registered kind. '
    'completed and failed: 0 to 3660 days; null leaves the value unchanged. reason: the reason, required. actor: the '
    'operator''s name.';
COMMENT ON FUNCTION tidegate.apply_retention IS
    'Applies the current retention of a kind to its finished events in one partition of the log, one step at a time. kind: '
    'a registered kind. partition: its name. since: where the last step stopped; null begins. batch: the most rows. reason: '
    'the reason, required. actor: the operator''s name. Returns how many rows have a new expiry and the next since, null at '
    'the end.';
COMMENT ON FUNCTION tidegate.pause_service IS
    'Stops all calls of an outside service; its events wait. service: its name, 1 to 100 characters. reason: the reason, '
    'required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.resume_service IS
    'Resumes a service after pause_service(). If the service does not answer, it is tried again at once. service: its name. '
    'reason: the reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.limit_service IS
    'Limits the calls of an outside service, over all drains. service: its name. max_running: the most events at once, 1 to '
    '10000; 0 removes the limit, null leaves it unchanged. per_second: the most starts per second, 0.0001 to 10000; 0 and '
    'null as for max_running. reason: the reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.set_schedule IS
    'Creates or changes a periodic event. name: 1 to 100 letters, digits, ''.'', ''_'' and ''-''. kind: a registered kind. '
    'payload: JSON of at most 65536 bytes. cron or every: its slots, as a cron expression of at most 200 characters or as '
    'an interval of 1 second to 366 days. time_zone: the time zone for cron, such as Europe/Berlin. group_key: the group of '
    'its events. start_within: the deadline of each event after its slot, 1 second to 366 days. catch_up: none, last or '
    'all, for missed slots. reason: the reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.pause_schedule IS
    'Pauses a periodic event. name: the schedule. reason: the reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.resume_schedule IS
    'Resumes a periodic event after pause_schedule(). Slots that were missed are skipped. name: the schedule. reason: the '
    'reason, required. actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.remove_schedule IS
    'Removes a periodic event that operators keep. name: the schedule. reason: the reason, required. actor: the operator''s '
    'name.';
COMMENT ON FUNCTION tidegate.run_schedule IS
    'Publishes a periodic event now, and does not change its slots. name: the schedule. reason: the reason, required. '
    'actor: the operator''s name.';
COMMENT ON FUNCTION tidegate.forget IS
    'Removes the content of events about a person; live events are cancelled first. ids: at most 1000 events. reason: the '
    'reason, required. actor: the operator''s name. dry_run: true reports what would be done and changes nothing. groups, '
    'correlation_ids: further keys that leave the audit. Returns a '
    'report; its offspring are follow-ups and replays of these events that are not forgotten yet.';
COMMENT ON FUNCTION tidegate.find_subject IS
    'Ids of events about a person, in the queue or in one partition of the log. partition: its name; null for the queue. '
    'groups: group keys. correlation_ids: correlation ids.';
COMMENT ON FUNCTION tidegate.offspring IS
    'Ids of follow-ups and replays of these events that are not forgotten yet. ids: the events. after: only ids above this. '
    'most: the most ids.';
COMMENT ON FUNCTION tidegate.forget_schedules IS
    'Removes operators'' schedules of groups. groups: the group keys. reason: the reason, required. actor: the operator''s '
    'name. dry_run: true only counts them. Returns the number of schedules.';

-- Functions of a cleanup.
COMMENT ON FUNCTION tidegate.log_partitions IS
    'The partitions of the log, with their bounds and how far they are counted. now: the time to use as the present, if it '
    'is earlier than the database''s clock.';
COMMENT ON FUNCTION tidegate.missing_log_days IS
    'Days that need a partition of the log but have none. now: as in log_partitions().';
COMMENT ON FUNCTION tidegate.missing_retention_days IS
    'Days for which apply_retention() needs a partition. kind: the kind. partition: the partition that holds its rows.';
COMMENT ON FUNCTION tidegate.rows_in_default IS 'How many rows of a day are in the default partition. day: the UTC day.';
COMMENT ON FUNCTION tidegate.make_log_partition IS
    'Creates the partition of a day. day: the UTC day on which its rows expire. Returns the outcome and how many rows '
    'moved.';
COMMENT ON FUNCTION tidegate.seal_log_partition IS
    'Counts a partition to which no rows are added any more, one step at a time. partition: its name. now: as in '
    'log_partitions(). pages: the length of a step. Returns true when counting is complete, null if the partition is still '
    'in use.';
COMMENT ON FUNCTION tidegate.drop_log_partition IS
    'Drops a counted partition whose rows have all expired. partition: its name. actor: the operator''s name. now: as in '
    'log_partitions(). Returns how many rows were removed; null if the partition was not dropped.';
COMMENT ON FUNCTION tidegate.delete_expired IS
    'Deletes expired rows of one partition, one step at a time. partition: its name. since: where the last step stopped; '
    'null begins. batch: the most rows. actor: the operator''s name. now: as in log_partitions(). Returns how many rows '
    'were deleted and the next since, null at the end.';
COMMENT ON FUNCTION tidegate.expired_rows IS 'How many expired rows each partition has. now: as in log_partitions().';
COMMENT ON FUNCTION tidegate.sweep_events IS
    'Ends live events that have passed their deadline or have no attempt left, one page at a time. after: only ids above '
    'this. page: the number of rows to read. older_than: only events that were published at least this long ago. '
    'dry_run: true only reports. actor: the operator''s name. now: as in log_partitions().';
COMMENT ON FUNCTION tidegate.forget_received IS
    'Removes messages that receive() recorded more than 15 days ago. batch: the most messages. dry_run: true only counts '
    'them. actor: the operator''s name. now: as in log_partitions().';

-- Functions of drains.
COMMENT ON FUNCTION tidegate.lease IS 'Leases the next ready events to a worker. The definition describes the protocol.';
COMMENT ON FUNCTION tidegate.remove_ended IS 'Removes leases that are marked as ended.';
COMMENT ON FUNCTION tidegate.read_leased IS 'The events of a lease after an id.';
COMMENT ON FUNCTION tidegate.in_hand IS 'The events in hand under these leases, in one snapshot.';
COMMENT ON FUNCTION tidegate.renew IS 'Renews a worker''s leases.';
COMMENT ON FUNCTION tidegate.hand_back IS 'Removes events from a worker''s leases without ending them.';
COMMENT ON FUNCTION tidegate.take_back_starts IS 'Lowers the marks up to which handlers of leases may have started.';
COMMENT ON FUNCTION tidegate.locked_with_earlier IS 'Returns the events that another session has locked, with the earlier ones of their groups.';
COMMENT ON FUNCTION tidegate.earlier_of IS 'Returns those of the events that come before one of later in its group.';
COMMENT ON FUNCTION tidegate.shrink_leases IS 'Takes ids out of leases, and removes leases that have no others.';
COMMENT ON FUNCTION tidegate.apply_cuts IS 'Takes the events in lease_cut out of their leases, and tells the workers.';
COMMENT ON FUNCTION tidegate.lapse IS 'Returns events of leases that break to the queue, and charges those that may have started.';
COMMENT ON FUNCTION tidegate.break_leases IS 'Breaks leases of one worker, except for events that another session has locked.';
COMMENT ON FUNCTION tidegate.dead_workers IS 'Returns the workers with leases of which none was renewed in time.';
COMMENT ON FUNCTION tidegate.cuts_of IS 'Returns the ids that operators have taken from a lease.';
COMMENT ON FUNCTION tidegate.refuse_new_cuts IS 'Rolls back the ends of events that an operator took while they were being ended.';
COMMENT ON FUNCTION tidegate.end_locked IS 'Ends events as FAILED that the caller has locked, each by itself if need be.';
COMMENT ON FUNCTION tidegate.end_at_once IS 'Ends events as FAILED that the caller has locked, all or none.';
COMMENT ON FUNCTION tidegate.measure_payload IS 'Sets payload_bytes for a plain INSERT or COPY.';
COMMENT ON FUNCTION tidegate.sweep IS 'Breaks leases that their workers have not renewed in time.';
COMMENT ON FUNCTION tidegate.promote IS 'Makes delayed events ready when their time has come.';
COMMENT ON FUNCTION tidegate.complete IS 'Moves completed events of leases to the log.';
COMMENT ON FUNCTION tidegate.complete_held IS 'Moves one completed event to the log, within its handler''s transaction.';
COMMENT ON FUNCTION tidegate.busy_groups IS 'The groups of a list to which another transaction is publishing.';
COMMENT ON FUNCTION tidegate.finalize IS 'Moves ended events of a lease to the log and publishes their follow-ups.';
COMMENT ON FUNCTION tidegate.end_unreadable IS 'Ends an event whose payload cannot be read.';
COMMENT ON FUNCTION tidegate.retry IS 'Puts events back for another attempt.';
COMMENT ON FUNCTION tidegate.save_progress IS 'Saves the finished handlers and steps of a leased event.';
COMMENT ON FUNCTION tidegate.report_progress IS 'Records the progress that a handler reports.';
COMMENT ON FUNCTION tidegate.append_errors IS 'Appends new errors to errors.';
COMMENT ON FUNCTION tidegate.merge_progress IS 'Merges new progress into progress.';
COMMENT ON FUNCTION tidegate.publish_children IS 'Publishes a batch whose events may have parents.';
COMMENT ON FUNCTION tidegate.ranges IS 'Ids as a set of ranges.';
COMMENT ON FUNCTION tidegate.open_after IS 'The number of consecutive unanswered calls that opens a service.';
COMMENT ON FUNCTION tidegate.is_limited IS 'Whether a service''s calls are limited.';
COMMENT ON FUNCTION tidegate.is_troubled IS 'Whether a service has failed recently.';
COMMENT ON FUNCTION tidegate.is_watched IS 'Whether drains must know of a service.';
COMMENT ON FUNCTION tidegate.watched_services IS 'The services and policies that drains must know.';
COMMENT ON FUNCTION tidegate.check_service IS 'Refuses an invalid name of a service.';
COMMENT ON FUNCTION tidegate.report_service IS 'Records the results of calls of a service.';
COMMENT ON FUNCTION tidegate.claim_service IS 'Claims places and starts at a limited service.';
COMMENT ON FUNCTION tidegate.take_slot IS 'Takes a slot for a drain.';
COMMENT ON FUNCTION tidegate.keep_slot IS 'Renews a drain''s slot.';
COMMENT ON FUNCTION tidegate.close_slot IS 'Records that a drain looks for events one last time.';
COMMENT ON FUNCTION tidegate.leave_slot IS 'Frees a drain''s slot.';
COMMENT ON FUNCTION tidegate.wal_position IS 'The server''s current position in the write-ahead log.';
COMMENT ON FUNCTION tidegate.fire_schedules IS 'Publishes the due events of schedules.';

-- Internal functions: only the owner may call them.
COMMENT ON FUNCTION tidegate.available_after IS 'The time at which a delay ends, or an error.';
COMMENT ON FUNCTION tidegate.available_at_of IS 'When an event of publish_many() with a delay may start.';
COMMENT ON FUNCTION tidegate.begin_step IS 'Begins a step of a cleanup.';
COMMENT ON FUNCTION tidegate.check_group_delay IS 'Refuses an event of a group that is planned too far ahead.';
COMMENT ON FUNCTION tidegate.check_ids IS 'Refuses invalid ids.';
COMMENT ON FUNCTION tidegate.check_operator IS 'Refuses an invalid reason or actor.';
COMMENT ON FUNCTION tidegate.check_replay IS 'Refuses invalid arguments of replay().';
COMMENT ON FUNCTION tidegate.check_selection IS 'Refuses invalid arguments of cancel() and reschedule().';
COMMENT ON FUNCTION tidegate.count_kinds IS 'Counts events by kind.';
COMMENT ON FUNCTION tidegate.declare_policies IS 'Stores the policies that a program declares.';
COMMENT ON FUNCTION tidegate.delay_refusal IS 'What is wrong with a delay.';
COMMENT ON FUNCTION tidegate.delete_event IS 'Trigger of the view events: a DELETE cancels.';
COMMENT ON FUNCTION tidegate.done_so_far IS 'The work that a replay of failed handlers can skip.';
COMMENT ON FUNCTION tidegate.drop_schedule IS 'Removes a schedule.';
COMMENT ON FUNCTION tidegate.end_leases IS 'Removes events from all leases, for a requeue.';
COMMENT ON FUNCTION tidegate.end_live IS 'Ends live events as FAILED.';
COMMENT ON FUNCTION tidegate.forget_arguments IS 'Removes keys from the arguments of audit rows.';
COMMENT ON FUNCTION tidegate.found_in IS 'The result of a query on one table.';
COMMENT ON FUNCTION tidegate.has_nul IS 'Whether JSON text contains a NUL character.';
COMMENT ON FUNCTION tidegate.insert_batch IS 'Inserts a batch of events.';
COMMENT ON FUNCTION tidegate.insert_replays IS 'Inserts replays of ended events.';
COMMENT ON FUNCTION tidegate.kin IS 'The ancestors or descendants of events.';
COMMENT ON FUNCTION tidegate.limit_kind IS 'Sets the limit of a kind to that of its policy.';
COMMENT ON FUNCTION tidegate.listed_at_most IS 'The most skipped events that a report lists.';
COMMENT ON FUNCTION tidegate.lock_groups IS 'Locks groups for a publish.';
COMMENT ON FUNCTION tidegate.lock_replays IS 'Makes concurrent replays wait for each other.';
COMMENT ON FUNCTION tidegate.lock_slots IS 'Locks rows of mutex.';
COMMENT ON FUNCTION tidegate.log_columns IS 'The columns of the log, as text.';
COMMENT ON FUNCTION tidegate.log_places IS 'The partitions of the log.';
COMMENT ON FUNCTION tidegate.logged_under IS 'The leases of a list that finished their event.';
COMMENT ON FUNCTION tidegate.made_replays IS 'Whether an audit row''s ids were replayed.';
COMMENT ON FUNCTION tidegate.mark_delayed IS 'Trigger of event_queue: keeps delayed in step with available_at.';
COMMENT ON FUNCTION tidegate.mutex_slot IS 'The row of mutex for a group.';
COMMENT ON FUNCTION tidegate.order_risks IS 'The changes of order in groups that a replay may cause.';
COMMENT ON FUNCTION tidegate.own_attempts IS 'The numbers of attempts in the policies of kinds.';
COMMENT ON FUNCTION tidegate.policy_field_refusal IS 'What is wrong with a field of a policy.';
COMMENT ON FUNCTION tidegate.policy_refusal IS 'What is wrong with a policy.';
COMMENT ON FUNCTION tidegate.printed IS 'A jsonb value as the text that is stored.';
COMMENT ON FUNCTION tidegate.put_schedule IS 'Writes a schedule.';
COMMENT ON FUNCTION tidegate.record_action IS 'Writes an audit row.';
COMMENT ON FUNCTION tidegate.refusal IS 'What is wrong with an event to publish.';
COMMENT ON FUNCTION tidegate.refuse_batch IS 'Refuses a batch with the message of its first invalid event.';
COMMENT ON FUNCTION tidegate.refuse_change IS 'Trigger of audit: rows are only added.';
COMMENT ON FUNCTION tidegate.refuse_insert IS
    'Trigger of event_queue: refuses an invalid row of a plain INSERT with the messages of publish().';
COMMENT ON FUNCTION tidegate.refuse_schedule IS 'Refuses an invalid schedule.';
COMMENT ON FUNCTION tidegate.refuse_status_change IS 'Trigger of event_log: refuses changes of a status.';
COMMENT ON FUNCTION tidegate.replace_waiting IS 'Replaces a waiting event with the same deduplication key.';
COMMENT ON FUNCTION tidegate.replay_candidates IS 'The events that a replay would publish, and the reasons against the others.';
COMMENT ON FUNCTION tidegate.require_registered IS
    'Trigger of event_queue: refuses a plain INSERT of a kind that is not registered.';
COMMENT ON FUNCTION tidegate.select_live IS 'The next live events of a selection.';
COMMENT ON FUNCTION tidegate.set_paused IS 'Pauses or resumes a kind.';
COMMENT ON FUNCTION tidegate.set_service IS 'Pauses or resumes a service.';
COMMENT ON FUNCTION tidegate.slot_name IS 'The deduplication key of a schedule''s slot.';
COMMENT ON FUNCTION tidegate.step_end IS 'Where a step of a cleanup ends.';
COMMENT ON FUNCTION tidegate.switch_schedule IS 'Pauses or resumes a schedule.';
COMMENT ON FUNCTION tidegate.told_selection IS 'The report of cancel() and reschedule().';
COMMENT ON FUNCTION tidegate.unregistered IS 'The error text for a kind that is not registered.';
COMMENT ON FUNCTION tidegate.unseal_log_partition IS 'Trigger of counted partitions: makes the next cleanup count them again.';
COMMENT ON FUNCTION tidegate.update_event IS 'Trigger of the view events: an UPDATE requeues or reschedules.';
COMMENT ON FUNCTION tidegate.with_collisions IS 'A replay''s report with the events that collided.';
COMMENT ON FUNCTION tidegate.wordless IS 'Errors without their messages.';
COMMENT ON FUNCTION tidegate.without_keys IS 'A filter of the audit without the keys of a person.';

COMMENT ON SEQUENCE tidegate.minute_stats_id_seq IS 'Draws the ids of minute_stats.';
COMMENT ON FUNCTION tidegate.latency_bounds IS
    'Internal: the bounds of the latency buckets, as negative seconds.';
COMMENT ON FUNCTION tidegate.add_figures IS 'Internal: adds sums of ended events to minute_stats.';
COMMENT ON FUNCTION tidegate.count_ended IS 'Internal: adds single ended events to minute_stats.';
COMMENT ON FUNCTION tidegate.fold_figures IS
    'Merges up to most old rows of minute_stats into hours and days, and returns their number. A cleanup calls it.';
COMMENT ON FUNCTION tidegate.note_run IS 'Internal: adds a row to drain_run.';
COMMENT ON FUNCTION tidegate.forget_runs IS
    'Deletes up to most rows of drain_run that are older than a week, and returns their number. A cleanup calls it.';
