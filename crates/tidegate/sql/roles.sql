-- Five roles for the logins that work with the queue. None of them can log in itself: grant each login the
-- roles that it needs (`GRANT tidegate_drain TO my_function`). The roles are optional. This script is safe to
-- run again, and `tidegate migrate` does so where the roles are in use.
--
-- Run it as the owner of the schema. It creates missing roles, which requires CREATEROLE. If the owner lacks
-- that right, an administrator creates the five roles first. A superuser is not needed.
--
-- | role             | may                                                                         |
-- |------------------|-----------------------------------------------------------------------------|
-- | tidegate_publish | publish, by the functions or by a plain INSERT of an ungrouped event        |
-- | tidegate_drain   | lease, finalize, retry, publish follow-ups; the handlers' tables            |
-- | tidegate_operate | replay, requeue, cancel, pause, retention, cleanup …; reads everything      |
-- | tidegate_read    | figures, states and the text of errors; no payload, result or progress      |
-- | tidegate_jobs    | ask for what has become of an event whose id it knows: state, errors, result |

DO $$
DECLARE
    missing text;
BEGIN
    FOREACH missing IN ARRAY ARRAY['tidegate_publish', 'tidegate_drain', 'tidegate_operate', 'tidegate_read', 'tidegate_jobs'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = missing);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- Roles belong to the whole server: another database's script was faster.
        END;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA tidegate TO tidegate_publish, tidegate_drain, tidegate_operate, tidegate_read, tidegate_jobs;

-- Jobs: read one at a time, by id.
GRANT EXECUTE ON FUNCTION tidegate.job TO tidegate_jobs, tidegate_drain, tidegate_operate;
GRANT EXECUTE ON FUNCTION tidegate.logged TO tidegate_operate, tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.logged_under TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.lineage TO tidegate_operate, tidegate_drain, tidegate_read;

-- Publish. The grant covers the columns that a producer sets. It leaves out the group, because the order
-- needs the function's lock, the deduplication key, because the answer needs the function, and all columns of
-- a lease.
GRANT EXECUTE ON FUNCTION tidegate.publish, tidegate.publish_one, tidegate.publish_many, tidegate.publish_batch,
                          tidegate.receive, tidegate.default_max_attempts, tidegate.takes_plaintext, tidegate.refusal, tidegate.has_nul
   TO tidegate_publish, tidegate_drain;
GRANT INSERT (kind, payload, correlation_id, available_at, expires_at, max_attempts) ON tidegate.event_queue TO tidegate_publish;
-- Object mappers send INSERT … RETURNING id. The ids of other publishers' events show only that they exist.
GRANT SELECT (id) ON tidegate.event_queue TO tidegate_publish;

-- Drain. A worker cannot change the content of an event.
GRANT SELECT, DELETE ON tidegate.event_queue TO tidegate_drain;
GRANT UPDATE (attempts, lapses, delayed, stray, available_at, last_error, errors, progress, reported) ON tidegate.event_queue
   TO tidegate_drain;
GRANT SELECT, INSERT, UPDATE, DELETE ON tidegate.lease TO tidegate_drain;
GRANT SELECT, DELETE ON tidegate.lease_cut TO tidegate_drain;
GRANT SELECT ON tidegate.events, tidegate.ends, tidegate.held, tidegate.leases, tidegate.services, tidegate.at_work TO tidegate_drain;
GRANT SELECT, INSERT ON tidegate.event_log TO tidegate_drain;
GRANT SELECT ON tidegate.event_kind TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.publish_children, tidegate.ranges, tidegate.remove_ended, tidegate.lease, tidegate.read_leased, tidegate.in_hand, tidegate.renew, tidegate.take_back_starts, tidegate.hand_back,
                          tidegate.locked_with_earlier, tidegate.earlier_of, tidegate.shrink_leases, tidegate.apply_cuts, tidegate.lapse,
                          tidegate.break_leases, tidegate.dead_workers, tidegate.cuts_of, tidegate.refuse_new_cuts, tidegate.max_group_delay,
                          tidegate.sweep, tidegate.promote, tidegate.complete, tidegate.complete_held, tidegate.busy_groups,
                          tidegate.finalize, tidegate.end_unreadable, tidegate.retry, tidegate.save_progress, tidegate.report_progress,
                          tidegate.append_errors, tidegate.merge_progress, tidegate.open_after, tidegate.is_limited, tidegate.is_troubled, tidegate.is_watched,
                          tidegate.watched_services, tidegate.refuse, tidegate.check_service, tidegate.report_service, tidegate.claim_service
   TO tidegate_drain;
-- Slots: which ones are taken, and how much work is left.
GRANT SELECT ON tidegate.drain_slot TO tidegate_drain, tidegate_operate, tidegate_read;
GRANT UPDATE (worker, until, taken_at, rate, closing) ON tidegate.drain_slot TO tidegate_drain;
GRANT SELECT, UPDATE ON tidegate.wake TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.close_slot, tidegate.wal_position TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.should_wake TO tidegate_publish, tidegate_drain;
GRANT SELECT, INSERT, UPDATE, DELETE ON tidegate.drain_chain TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.take_slot, tidegate.keep_slot, tidegate.leave_slot TO tidegate_drain;
-- Figures: the transaction that ends events counts them. A drain reads how fast events end.
GRANT EXECUTE ON FUNCTION tidegate.count_ended, tidegate.count_completed, tidegate.add_figures, tidegate.latency_bounds, tidegate.note_run TO tidegate_drain;
GRANT SELECT ON tidegate.minute_stats, tidegate.drain_run TO tidegate_read, tidegate_operate;
GRANT SELECT (minute, kind, events) ON tidegate.minute_stats TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.left_to_do TO tidegate_drain, tidegate_operate, tidegate_read;
-- Periodic events: the definition sets what they publish, and a login that fires them cannot change it.
GRANT SELECT (id, name, keeper, kind, cron, every, time_zone, group_key, start_within, catch_up, paused, since, next_at, last_at,
              last_event_id, fired_at, problem, revision) ON tidegate.schedule TO tidegate_drain, tidegate_read;
GRANT SELECT ON tidegate.schedule TO tidegate_operate;
GRANT EXECUTE ON FUNCTION tidegate.fire_schedules TO tidegate_drain;
GRANT EXECUTE ON FUNCTION tidegate.set_schedule, tidegate.pause_schedule, tidegate.resume_schedule, tidegate.remove_schedule,
                          tidegate.run_schedule, tidegate.forget_schedules TO tidegate_operate;
GRANT SELECT, INSERT, UPDATE ON tidegate.service TO tidegate_drain;
GRANT SELECT, INSERT, UPDATE, DELETE ON tidegate.service_place TO tidegate_drain;

-- Read: every column except those with the content of an event, and with what handlers reported about it.
GRANT SELECT (id, kind, payload_bytes, group_key, dedup_key, correlation_id, attempts, lapses, max_attempts, delayed, stray,
              available_at, expires_at, created_at, last_error, parent_id, replay_of)
   ON tidegate.event_queue TO tidegate_read;
GRANT SELECT (id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, available_at, expires_at,
              created_at, updated_at, processing_started_at, lease_token, lease_expires_at, last_error,
              parent_id, replay_of, delayed) ON tidegate.events TO tidegate_read;
GRANT SELECT (id, kind, group_key, dedup_key, correlation_id, status, attempts, max_attempts, created_at,
              processing_started_at, finished_at, expires_at, deadline, parent_id, replay_of)
   ON tidegate.event_log TO tidegate_read;
GRANT SELECT ON tidegate.lease, tidegate.lease_cut, tidegate.leases, tidegate.held, tidegate.service, tidegate.service_place, tidegate.services, tidegate.event_kind, tidegate.audit, tidegate.ends, tidegate.at_work, tidegate.stats, tidegate.daily_stats, tidegate.stuck_events,
                tidegate.blocked_groups, tidegate.queue_migrations
   TO tidegate_read, tidegate_operate;
GRANT SELECT ON SEQUENCE tidegate.event_queue_id_seq TO tidegate_read, tidegate_operate;
GRANT SELECT ON tidegate.jobs TO tidegate_operate;
GRANT SELECT (id, kind, status, status_number, status_code, correlation_id, group_key, created_at, finished_at)
   ON tidegate.jobs TO tidegate_read;
-- The number of rows in the default partition, for the doctor.
GRANT SELECT (id) ON tidegate.event_log_default TO tidegate_read, tidegate_operate;

-- A view's functions run with the reader's rights.
GRANT EXECUTE ON FUNCTION tidegate.job_status, tidegate.job_status_number, tidegate.job_status_code, tidegate.unordered_leases, tidegate.unmarked_events TO tidegate_read, tidegate_operate;

-- Operate: its functions write the audit row themselves, so every change has one.
GRANT SELECT ON tidegate.event_queue, tidegate.event_log, tidegate.events TO tidegate_operate;
GRANT UPDATE (status, available_at, expires_at, max_attempts) ON tidegate.events TO tidegate_operate;
GRANT DELETE ON tidegate.events TO tidegate_operate;
GRANT EXECUTE ON FUNCTION tidegate.replay, tidegate.requeue, tidegate.cancel, tidegate.reschedule, tidegate.pause, tidegate.resume, tidegate.retire,
                          tidegate.pause_service, tidegate.resume_service, tidegate.limit_service, tidegate.set_policy,
                          tidegate.unblock, tidegate.note, tidegate.record_publish, tidegate.forget, tidegate.find_subject, tidegate.offspring,
                          tidegate.set_retention
   TO tidegate_operate;
GRANT EXECUTE ON FUNCTION tidegate.notes TO tidegate_operate, tidegate_drain, tidegate_read;
-- Cleanup: it only removes expired rows, whichever login calls it.
GRANT EXECUTE ON FUNCTION tidegate.log_partitions, tidegate.cleanup_step TO tidegate_operate;
