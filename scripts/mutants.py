#!/usr/bin/env python3
"""Removes one guard at a time from a copy of the project, and runs the test that must notice it.

It is an error if no test notices a removed guard, or if the text of a mutant is no longer in the source. Before the first
mutant, every named test runs on the unchanged copy and must pass. Each line says which layer of the tests has noticed the mutant;
with --layers, the others run too, in the order of their cost, and the end says which mutants only one layer notices. The model of the
protocol holds no code of ours and so no mutants: `cargo test --test model` takes guards away from the model itself, as
tests/it/scenes.rs does from the functions of the database. What it takes away is not repeated here.
"""

import argparse
import re
import shutil
import subprocess
import sys

from local import Failed, cargo_flags, environment, run_script
from tools import PROJECT

TABLES = "crates/tidegate/sql/V0001__tables.sql"
PUBLISH = "crates/tidegate/sql/V0002__publish.sql"
LEASE = "crates/tidegate/sql/V0003__lease.sql"
ENDS = "crates/tidegate/sql/V0004__finalize.sql"
LOG = "crates/tidegate/sql/V0005__log.sql"
DRAIN = "crates/tidegate/src/drain/mod.rs"
FLUSH = "crates/tidegate/src/drain/flush.rs"
SERVICES = "crates/tidegate/src/drain/services.rs"
SERVICE_SQL = "crates/tidegate/sql/V0007__service.sql"
OPERATE = "crates/tidegate/sql/V0006__operate.sql"
# The last file, whatever its number is.
RIGHTS = next(path.relative_to(PROJECT) for path in PROJECT.glob("crates/tidegate/sql/V*__rights.sql"))
FORGET = "crates/tidegate/sql/V0009__forget.sql"
CONTEXT = "crates/tidegate/src/context.rs"
CHANGE = "crates/tidegate/sql/V0010__change.sql"
SCHEDULE = "crates/tidegate/sql/V0011__schedule.sql"
SCHEDULING = "crates/tidegate/src/drain/scheduling.rs"
SLOT = "crates/tidegate/sql/V0013__slot.sql"
FIGURES = "crates/tidegate/sql/V0014__figures.sql"
SLOTS = "crates/tidegate/src/drain/slots.rs"
REPORT = "crates/tidegate/src/drain/report.rs"
HANDLER = "crates/tidegate/src/handler.rs"
SETTLE = "crates/tidegate/src/drain/settle.rs"
WORKERS = "crates/tidegate/src/drain/workers.rs"
COMPLETER = "crates/tidegate/src/drain/completer.rs"
BUFFER = "crates/tidegate/src/drain/buffer.rs"
LEASES = "crates/tidegate/src/drain/leases.rs"
CONNECT = "crates/tidegate/src/connect/mod.rs"
CONTEXT = "crates/tidegate/src/context.rs"
FORGET = "crates/tidegate/sql/V0009__forget.sql"
SEAL = "crates/tidegate/src/seal.rs"
READ = "crates/tidegate/src/admin/views/event.rs"
VIEWS = "crates/tidegate/sql/V0008__views.sql"
BATCH = "crates/tidegate/src/batch.rs"
BUILD_LIMIT_S = 900
RUN_LIMIT_S = 300
# The layers that notice what they were not made for, by the cost of a run: seconds to a minute.
LAYERS = {"unit": ("tidegate", ""), "interleavings": ("it", "interleave::"), "scenes": ("it", "scenes::"), "scripts": ("it", "script::")}

# Experiments of the fault suite.
KILLED = "torture", "events_of_killed_workers_are_handled_once_more_and_in_order"
DIES = "torture", "a_worker_that_dies_at_a_set_point_costs_an_attempt_and_no_more"
FROZEN = "torture", "a_worker_frozen_beyond_its_lease_changes_nothing_when_it_goes_on"
TICKS = "torture", "ten_ticks_at_once_start_each_event_once"
ORDER = "torture", "a_groups_order_is_that_of_its_commits_however_two_publishers_race"
LOST = "torture", "a_group_waits_for_its_event_that_a_lost_lease_has_taken"
CLEANUP = "torture", "cleanup_replay_and_requeue_beside_finalizes_touch_only_what_they_may"
POISON = "torture", "one_in_a_hundred_that_kills_its_worker_takes_none_of_the_others_with_it"
LARGE = "torture", "payloads_of_a_megabyte_are_drained_in_little_memory"
REFUSED = "torture", "a_trigger_that_refuses_an_event_costs_no_other_event_an_attempt"
GROUP = "torture", "a_producer_that_holds_a_group_keeps_only_that_groups_parents_waiting"
BLOCKED = "torture", "handlers_that_block_every_thread_stop_neither_renewals_nor_the_runs_end"


def scene(name):
    """A scripted scene of the protocol, for situations that random runs reach too rarely."""
    return "it", f"scenes::{name}"


def service(name):
    return "it", f"service::{name}"


def limit(name):
    return "it", f"limits::{name}"


def periodic(name):
    return "it", f"periodic::{name}"


def wake(name):
    return "it", f"wake::{name}"


def slot(name):
    return "it", f"slots::{name}"


def batch(name):
    return "it", f"batch::{name}"


def guard(name):
    return "it", f"guards::{name}"


def unit(name):
    """A unit test of the library tidegate."""
    return "tidegate", name


class Mutant:
    """A name, the test that must fail, and replacements: file, exact text, its replacement, and how often the text occurs."""

    def __init__(self, name, test, *replacements):
        self.name, self.test, self.replacements = name, test, replacements

    @property
    def layer(self):
        """Returns the layer of its test: one of LAYERS, `it` for the other integration tests, or `torture`."""
        target, name = self.test
        if target in ("lib", "tidegate"):
            return "unit"
        return next((layer for layer, (_, part) in LAYERS.items() if part and name.startswith(part)), target)


MUTANTS = [
    # Guards against leasing an event twice. The locks prevent it, and the constraint turns a failure of the locks into an
    # error. Both must be removed for a double lease.
    Mutant("lease: neither row locks nor the constraint", TICKS,
           (LEASE, "               FOR NO KEY UPDATE SKIP LOCKED) AS s;", "               ) AS s;", 1),
           (TABLES, "EXCLUDE USING gist (coalesce(ids, '{}') WITH &&)", "EXCLUDE USING gist (coalesce(ids, '{}') WITH &&) WHERE (false)", 1)),
    Mutant("lease: no row locks", ("it", "interleave::i6_of_eight_sessions_that_lease_at_once_each_event_goes_to_one"),
           (LEASE, "               FOR NO KEY UPDATE SKIP LOCKED) AS s;", "               ) AS s;", 1)),
    Mutant("queries read the index that guards leases",
           ("it", "guards::i6_a_lease_is_found_however_many_others_are_taken_during_the_look"),
           (TABLES, "EXCLUDE USING gist (coalesce(ids, '{}') WITH &&)", "EXCLUDE USING gist (ids WITH &&)", 1)),
    Mutant("a walk outlives its connection", ("it", "network::i4_what_a_walk_knows_is_not_used_over_another_connection"),
           ("crates/tidegate/src/drain/fetcher.rs", "walk: if step.walk.connection == connection {", "walk: if true {", 1)),
    # Reasons for which a lease checks a group.
    Mutant("delayed events of groups are no strays", scene("i4_b19_what_is_delayed_bars_what_stands_behind_it"),
           (TABLES, "    NEW.stray := NEW.stray OR NEW.delayed;\n", "", 1),
           (TABLES, "CHECK (NOT delayed OR group_key IS NULL OR stray)", "CHECK (true)", 1)),
    # Events that leave a lease.
    Mutant("hand_back: what stands behind stays",
           scene("i4_what_is_handed_back_takes_what_stands_behind_it_along_out_of_all_leases"),
           (LEASE, "AND b.id <@ own OFFSET 0", "AND false OFFSET 0", 1)),
    Mutant("sweep: leases of the dead are not broken", DIES,
           (LEASE, "AS d WHERE d IS DISTINCT FROM sweep.worker LOOP", "AS d WHERE false LOOP", 1)),
    Mutant("drain: does not give back what its answer was lost of", LOST,
           ("crates/tidegate/src/drain/fetcher.rs", "let sweeps = is_unsure || ", "let sweeps = false && is_unsure || ", 1),
           (LEASE, "WHERE o.worker = sweep.worker AND o.token <> ALL (sweep.held)\n", "WHERE false\n", 1)),
    # Charges.
    Mutant("sweep: charges nothing", DIES,
           (LEASE, "e.id <= l.started_to AND", "false AND", 1)),
    Mutant("drain: starts more than it tells", KILLED,
           (FLUSH, "            of_lease.start_to = Some(start.upto);\n", "            let _ = (of_lease, start.upto);\n", 1)),
    Mutant("lease: spent attempts are run all the same", DIES,
           (LEASE, "WHEN q.attempts >= q.max_attempts THEN 2", "WHEN false THEN 2", 1)),
    Mutant("lease: what lapsed is nothing special", POISON,
           (LEASE, "q.lapses > 0 AS suspect,", "false AS suspect,", 1)),
    Mutant("drain: what lapsed is started beside others", POISON,
           (BUFFER, "if self.leases.open() == 0 && !wanted.brings_window ||", "if self.leases.open() < usize::MAX ||", 1)),
    # Guards of the lease protocol; the scenes take them out too.
    Mutant("sweep: a worker is dead when its first lease runs out", scene("i6_a_worker_lives_as_long_as_it_renews_one_of_its_leases"),
           (LEASE, "coalesce(max(l.expires_at) FILTER (WHERE NOT l.ended), max(l.expires_at))", "min(l.expires_at)", 1)),
    # Guards of the drain's loop.
    Mutant("drain: a suspect follows another event of its group", unit("drain::buffer::tests::a_suspect_is_not_handed_over_behind_another_event"),
           (BUFFER, "(may_start && !self.leases.is_suspect(next.lease.token)).then_some(next)", "may_start.then_some(next)", 1)),
    Mutant("drain: all wait for a suspect as long as it takes",
           unit("drain::buffer::tests::i10_nobody_waits_for_a_suspect_for_long_and_none_runs_beside_another"),
           (BUFFER, "wanted.now >= since + SUSPECT_WAIT {", "false {", 1)),
    Mutant("drain: windows stay open", unit("drain::buffer::tests::i10_windows_close_again_over_what_has_not_started"),
           (LEASES, "            held.started_to = begun;\n", "", 1)),
    Mutant("drain: windows close for a busy moment", unit("drain::buffer::tests::windows_close_when_they_stay_too_wide_and_not_for_a_busy_moment"),
           (BUFFER, "wide && now >= *self.wide_since.get_or_insert(now) + WIDE_FOR", "wide", 1)),
    Mutant("drain: a deadline is over with its renewal", unit("drain::leases::tests::b13_a_deadline_counts_from_the_lease_and_is_that_of_what_is_to_run"),
           (LEASES, "Some(held.taken + left)", "Some(held.renewed + left)", 1)),
    Mutant("drain: a handler is told that its own end took its event", unit("context::tests::an_event_that_left_the_queue_by_its_own_end_was_not_taken_away"),
           (CONTEXT, "self.state().commits || self.completion.get().is_some();", "false;", 1)),
    Mutant("drain: a transaction does not wait for the end before it",
           guard("b10_a_transaction_begins_when_the_end_before_it_in_its_group_is_in_the_log"),
           (CONTEXT, "wait_for(|written| self.flushed.is_clear(written))", "wait_for(|written| self.flushed.is_clear(written) || true)", 1)),
    Mutant("drain: does not look at deadlines in hand", guard("b13_an_event_whose_deadline_passes_in_a_drains_hands_expires_there"),
           (DRAIN, "deadline.is_some_and(|deadline| deadline.is_over(now))", "deadline.is_some_and(|_| false)", 1)),
    Mutant("drain: does not look at deadlines behind an event of the same group",
           guard("b13_an_event_that_waits_for_its_group_behind_quick_ones_expires_there_too"),
           (DRAIN, "start_by: self.start_by(&leased),", "start_by: self.trusted_until(&leased),", 1)),
    Mutant("drain: does not miss a lease at its renewal", guard("whoever_finds_a_lease_gone_at_its_renewal_tells_the_handlers"),
           (BUFFER, "self.is_uncertain |= self.leases.left(*token) > 0;", "let _ = token;", 1)),
    Mutant("drain: learns from what it has stopped", guard("f2_an_event_that_was_stopped_at_its_limit_does_not_end_the_run_for_its_kind"),
           (DRAIN, "        if !timed_out {\n            self.budget", "        if !timed_out || true {\n            self.budget", 1)),
    Mutant("pool: a connection comes back in the middle of a statement",
           guard("whoever_is_stopped_in_a_statement_leaves_the_pool_a_connection_that_waits_for_nothing"),
           (CONNECT, "            if !matches!(answer, Ok(Ok(_))) {", "            if false && !matches!(answer, Ok(Ok(_))) {", 1)),
    Mutant("pool: what was stopped goes on in the database",
           guard("whoever_is_stopped_in_a_statement_leaves_the_pool_a_connection_that_waits_for_nothing"),
           (CONNECT, "pool.manager().0.cancel(token).await;", "let _ = (pool, token);", 1)),
    Mutant("services: a kind waits for a service that it no longer calls",
           service("what_waits_for_a_service_that_nobody_calls_any_more_is_done_in_one_drain"),
           (SERVICES, "report.uncalled = Some(kind.to_owned());", "report.uncalled = Some(kind.to_owned()).filter(|_| false);", 1)),
    # Services that do not answer.
    Mutant("services: an outage costs attempts", service("an_outage_costs_no_attempt_and_few_calls_and_holds_up_nothing_else"),
           (SERVICES, "        if answered_since {", "        if answered_since || known.in_row > 0 {", 1)),
    Mutant("services: a failure is never the event's", service("an_event_that_a_healthy_service_never_answers_spends_its_attempts_alone"),
           (SERVICES, "        if answered_since {", "        if answered_since && known.in_row > 1000 {", 1)),
    Mutant("lease: takes what waits for a service", service("an_outage_costs_no_attempt_and_few_calls_and_holds_up_nothing_else"),
           (LEASE, " OR k.kind = ANY (held_kinds)", "", 1)),
    Mutant("lease: every worker tries a service", service("one_worker_tries_one_event_however_many_are_there"),
           (LEASE, "SET state = 'probing', prober = lease.worker, retry_at = instant + make_interval(secs => seconds)",
            "SET state = 'open', prober = lease.worker, retry_at = instant", 1)),
    Mutant("lease: another program's service is tried", service("a_service_of_another_program_keeps_this_one_from_nothing"),
           (LEASE, " AND d.kinds && lease.kinds", "", 1)),
    Mutant("lease: waits for whoever holds a service's row", service("whoever_holds_a_services_row_for_ever_holds_up_no_drain"),
           (LEASE, "                  FOR UPDATE SKIP LOCKED)\n        RETURNING s.kinds", "                  FOR UPDATE)\n        RETURNING s.kinds", 1)),
    Mutant("limits: a worker is given what others have", limit("no_more_events_than_a_limit_run_at_once_in_four_drains"),
           (SERVICE_SQL, "known.max_running - others)", "known.max_running)", 1)),
    Mutant("limits: a kind that nobody knew to call the service does", limit("no_more_events_than_a_limit_run_at_once_in_four_drains"),
           (SERVICES, "        if known.limited.is_some() && !known.running.contains(&event.lease) {", "        if false {", 1)),
    Mutant("limits: starts are given without end", limit("no_more_events_than_a_limit_start_in_a_second_in_four_drains"),
           (SERVICE_SQL, "first + make_interval(secs =>", "instant + 0 * make_interval(secs =>", 1)),
    Mutant("limits: what nobody may start keeps a drain", limit("whoever_has_all_places_for_ever_holds_up_only_what_needs_one"),
           ("crates/tidegate/src/drain/limits.rs", "        (limit.refused && running == 0).then(", "        (limit.refused && running > 1000).then(", 1)),
    # Writes under a lease.
    Mutant("complete: does not look at the lease", FROZEN,
           (ENDS, "IF lease.ids IS NOT NULL AND NOT isempty(done[n]) THEN", "IF NOT isempty(done[n]) THEN", 1),
           (ENDS, "USING unnest(lease.ids * done[n]) AS r", "USING unnest(done[n]) AS r", 1)),
    Mutant("finalize: does not look at the lease", FROZEN,
           (ENDS, "    cuts := lease.cuts;\n    IF lease.ids IS NULL THEN\n        RETURN;\n    END IF;\n",
            "    cuts := lease.cuts;\n", 1),
           (ENDS, "AND q.id <> ALL (busy_ids) AND q.id <@ lease.ids\n", "AND q.id <> ALL (busy_ids)\n", 1)),
    Mutant("retry: does not look at the lease", FROZEN,
           (ENDS, "WHERE q.id = o.id AND q.id = ANY (free) AND q.id = ANY (left_ids);", "WHERE q.id = o.id;", 1)),
    Mutant("save_progress: does not look at the lease",
           ("it", "interleave::i5_a_write_that_waited_for_the_lease_that_takes_its_event_away_changes_nothing"),
           (ENDS, "    IF NOT FOUND THEN\n        RETURN false;\n    END IF;\n    UPDATE tidegate.event_queue AS q SET progress",
            "    UPDATE tidegate.event_queue AS q SET progress", 1)),
    Mutant("renew: revives what was lost", ("it", "interleave::a_renewal_that_waited_for_a_sweep_says_that_the_lease_is_lost"),
           (LEASE, "    RETURNING l.token, l.cuts;\nEND $$;", "    RETURNING l.token, l.cuts;\n    RETURN QUERY SELECT t, 0 FROM unnest(renew.tokens) AS t;\nEND $$;", 1)),
    # Effects that an event, a publisher or a row must not have on others.
    Mutant("lease: payloads are not counted", LARGE,
           (LEASE, "    IF total > bytes THEN\n", "    IF false THEN\n", 1)),
    Mutant("finalize: waits for a group", GROUP,
           (ENDS, "        IF cardinality(next_group_keys) > 0 THEN", "        IF false THEN", 1),
           (ENDS, " SET jit = off SET lock_timeout = '1s' AS $$", " SET jit = off AS $$", 1)),
    Mutant("drain: a write that is refused ends the run", REFUSED,
           ("crates/tidegate/src/error.rs", "self.sqlstate().is_some() && !self.is_connection_lost() && !self.is_transient()", "false", 1)),
    Mutant("drain: goes on behind an end that was refused before", REFUSED,
           (COMPLETER, "let holds_group = event.progress.is_some() || finalization.status != Status::Completed;",
            "let holds_group = false;", 1)),
    Mutant("retention: any time will do", REFUSED,
           (TABLES, "CHECK (retention_completed BETWEEN '0' AND '3660 days')", "CHECK (retention_completed >= '0')", 1)),
    Mutant("drain: has no thread of its own", BLOCKED,
           (DRAIN, "    on_own_thread(run).await.unwrap_or_else(|| {",
            "    let _ = on_own_thread::<(), std::future::Ready<()>>;\n    Some(run().await).unwrap_or_else(|| {", 1)),
    # The cleanup and the publishers.
    Mutant("cleanup: does not look at leases", CLEANUP,
           (LOG, "SELECT q.id, NOT (q.id <@ held) AND q.created_at <= cutoff", "SELECT q.id, q.created_at <= cutoff", 1),
           (LOG, "(dry_run OR NOT (q.id <@ held) AND (", "(dry_run OR (", 1)),
    Mutant("cleanup: does not look at attempts and deadlines", CLEANUP,
           (LOG, "AND (q.expires_at <= moment OR q.attempts + (dry_run AND q.id <@ (\n"
                 "                              SELECT h.started FROM tidegate.held AS h))::int >= q.max_attempts) AS due",
            "AS due", 1),
           (LOG, " AND (q.expires_at <= moment OR q.attempts >= q.max_attempts)\n", "\n", 1)),
    Mutant("publish: does not lock the group", ORDER,
           (PUBLISH, "        PERFORM FROM tidegate.mutex AS m WHERE m.slot = tidegate.mutex_slot(publish_one.group_key) FOR UPDATE;\n", "        NULL;\n", 1),
           (PUBLISH, "    PERFORM tidegate.lock_groups(group_keys);\n", "", 1)),
    # A lock that is taken too late: the ids are already drawn, and others may commit in between.
    Mutant("publish_batch: draws ids before it locks", ORDER,
           (PUBLISH, "    PERFORM tidegate.lock_groups(group_keys);\n", "", 1),
           (PUBLISH, "    RETURN ids;\n", "    PERFORM tidegate.lock_groups(group_keys);\n    RETURN ids;\n", 1)),
    # Whose a lease is, and until when.
    Mutant("sweep: breaks leases that have not run out",
           ("it", "queue::c4_c11_c12_d7_d9_b17_an_abandoned_event_is_taken_after_its_time_out_and_not_before"),
           (LEASE, "max(l.expires_at)) <= clock_timestamp()", "max(l.expires_at)) < 'infinity'", 1)),
    Mutant("lease: a walk on another server is believed",
           ("it", "walk::what_a_walk_knows_of_a_server_that_counts_anew_is_not_believed"),
           (LEASE, " OR as_of > pg_snapshot_xmax(pg_current_snapshot()) THEN", " THEN", 1),
           (LEASE, "IF low IS NULL OR low > pg_snapshot_xmax(pg_current_snapshot()) THEN", "IF low IS NULL THEN", 1)),
    Mutant("lease: leases under a snapshot that stays", ("it", "queue::under_a_snapshot_that_stays_nothing_is_leased"),
           (LEASE, "    IF current_setting('transaction_isolation') <> 'read committed' THEN\n", "    IF false THEN\n", 1)),
    Mutant("lease: takes paused kinds", ("it", "operate::a_paused_kind_is_not_taken_and_others_pass"),
           (LEASE, "WHERE k.paused OR k.kind <> ALL (kinds)", "WHERE k.kind <> ALL (kinds)", 1)),
    Mutant("hand_back: does not look under which lease",
           scene("i5_what_goes_back_from_a_lease_that_was_lost_leaves_a_newer_one_of_the_same_worker_alone"),
           (LEASE, "ON l.token = u.token AND l.worker = hand_back.worker WHERE l.ids @> u.id\n",
            "ON l.worker = hand_back.worker WHERE l.ids @> u.id\n", 1)),
    Mutant("hand_back: charges nothing that was started behind",
           scene("i3_who_takes_an_event_away_charges_what_may_have_been_started_behind_it_and_gives_it_one_more"),
           (LEASE, "ON l.worker = hand_back.worker AND l.ids @> u.id WHERE u.id <= l.started_to);",
            "ON l.worker = hand_back.worker AND l.ids @> u.id WHERE false);", 1)),
    Mutant("retry: does not look under which lease",
           ("it", "queue::i5_a_retry_under_a_lost_lease_leaves_what_its_worker_has_leased_anew"),
           (ENDS, "ON l.token = o.token AND l.worker = retry.worker AND l.ids @> o.id\n",
            "ON l.worker = retry.worker AND l.ids @> o.id\n", 1)),
    Mutant("complete_held: commits without the lease", ("it", "drain::a_transaction_under_a_lost_lease_commits_nothing"),
           (ENDS, "IF gone.kind IS NULL OR EXISTS (", "IF gone.kind IS NULL AND EXISTS (", 1)),
    Mutant("end_unreadable: does not look at the lease", ("it", "payload::i5_only_who_holds_an_event_may_end_it_as_unreadable"),
           (ENDS, "    IF FOUND THEN\n        UPDATE tidegate.event_queue AS q SET payload = NULL",
            "    IF true THEN\n        UPDATE tidegate.event_queue AS q SET payload = NULL", 1)),
    Mutant("drain: a suspended machine's leases are trusted",
           ("it", "sandbox::i5_what_waited_while_its_machine_was_suspended_is_not_begun_under_the_old_lease"),
           ("crates/tidegate/src/drain/clocks.rs", "now >= self.steady || SystemTime::now() >= self.wall", "now >= self.steady", 1)),
    Mutant("function: goes on behind its answer",
           ("it", "sandbox::a_handler_that_goes_on_behind_its_answer_does_not_live_to_see_the_next_invocation"),
           ("crates/tidegate-lambda/src/lib.rs", "if spoiled.load(Ordering::Relaxed) && !*stopped.borrow() {", "if spoiled.load(Ordering::Relaxed) && false {", 1)),
    # What may be published and received.
    Mutant("publish: a group is planned as far ahead as anybody likes",
           ("it", "queue::an_event_of_a_group_is_planned_no_further_ahead_than_a_setting_says"),
           (PUBLISH, "        PERFORM tidegate.check_group_delay(publish_one.group_key, publish_one.available_at);\n", "", 1)),
    Mutant("insert: a payload of any length comes as far as the constraint",
           ("it", "queue::d2_b25_the_table_itself_refuses_what_it_cannot_hold"),
           (PUBLISH, "NEW.traceparent) IS NOT NULL)\n", "NEW.traceparent) IS NOT NULL AND octet_length(NEW.payload::text) <= 1048576)\n", 1)),
    Mutant("publish: takes NUL characters", ("it", "payload::b25_the_escape_of_a_nul_character_is_refused_and_its_escaped_text_is_not"),
           (PUBLISH, "        WHEN tidegate.has_nul(payload)\n", "        WHEN false\n", 1)),
    Mutant("insert: takes NUL characters", ("it", "payload::b25_the_escape_of_a_nul_character_is_refused_and_its_escaped_text_is_not"),
           (PUBLISH, "NEW.traceparent) IS NOT NULL)\n", "NEW.traceparent) IS NOT NULL AND NOT tidegate.has_nul(NEW.payload))\n", 1)),
    Mutant("receive: every message is new", ("it", "intake::a_message_that_several_bring_at_once_is_taken_in_once"),
           (PUBLISH, "    RETURN FOUND;\nEND $$;\nCOMMENT ON FUNCTION tidegate.receive ", "    RETURN true;\nEND $$;\nCOMMENT ON FUNCTION tidegate.receive ", 1)),
    # Changes that operators and publishers make to live events.
    Mutant("end_live: the worker is not told", ("it", "change::a_handler_is_told_at_its_drains_next_renewal_that_its_event_was_cancelled"),
           (LOG, "FROM told AS t WHERE t.token IS NOT NULL ORDER BY 1, 2 ON CONFLICT DO NOTHING", "FROM told AS t WHERE false ON CONFLICT DO NOTHING", 1)),
    Mutant("end_live: an attempt that has begun is not counted",
           ("it", "change::a_lease_that_is_taken_while_its_event_is_being_cancelled_is_told_of_it"),
           (LOG, "coalesce(g.id <= l.started_to, false) AS begun", "false AS begun", 1)),
    Mutant("drain: handlers are not told of what was taken away",
           ("it", "change::a_handler_is_told_at_its_drains_next_renewal_that_its_event_was_cancelled"),
           (DRAIN, "            self.workers.notify_lost(held);\n", "            let _ = held;\n", 1)),
    Mutant("reschedule: changes what is in hand", ("it", "change::what_is_in_a_workers_hands_is_told_and_left_as_it_is_by_the_view_too"),
           (CHANGE, "u.id <> ALL (held) AND", "", 1)),
    Mutant("reschedule: a group is held up for as long as anybody likes",
           ("it", "change::nobody_holds_up_a_group_by_an_event_of_it_for_longer_than_a_publisher_may"),
           (CHANGE, " AND u.id <> ALL (late)", "", 1)),
    Mutant("replace: locks what is in hand", ("it", "replace::what_a_worker_has_in_hand_is_kept_and_its_end_does_not_wait_for_the_publisher"),
           (PUBLISH, "    IF first.id IS NULL OR first.held THEN\n", "    IF first.id IS NULL THEN\n", 1),
           (PUBLISH, "            -- Rolls back the lock on an event that was not replaced.\n            RAISE EXCEPTION USING ERRCODE = 'TG003';\n",
            "            RETURN false;\n", 1)),
    Mutant("replace: replaces what is in hand", ("it", "replace::one_that_is_leased_while_a_replacement_waits_for_it_is_kept_and_free_of_locks"),
           (PUBLISH, "AND q.replay_of IS NULL AND NOT EXISTS (SELECT FROM tidegate.lease AS l WHERE l.ids @> q.id);", "AND q.replay_of IS NULL;", 1)),
    Mutant("replace: replaces what a handler has seen", ("it", "replace::what_a_handler_has_seen_is_kept_and_no_attempt_is_lost"),
           (PUBLISH, " AND q.attempts = 0 AND q.lapses = 0 AND q.progress IS NULL AND q.last_error IS NULL", "", 1)),
    # Ended events and their log rows.
    Mutant("log: a status may change", ("it", "queue::d2_a_status_that_there_is_not_is_refused_and_the_one_in_the_log_is_final"),
           (TABLES, "WHEN (NEW.status IS DISTINCT FROM OLD.status)", "WHEN (false)", 1)),
    Mutant("audit: gives rows back", ("it", "queue::the_audit_trail_takes_rows_and_gives_none_back"),
           (TABLES, "BEFORE DELETE OR TRUNCATE ON tidegate.audit", "BEFORE TRUNCATE ON tidegate.audit", 1)),
    Mutant("audit: an entry may change", ("it", "queue::the_audit_trail_takes_rows_and_gives_none_back"),
           (TABLES, "FOR EACH ROW WHEN (to_jsonb(NEW) <> to_jsonb(OLD) ||", "FOR EACH ROW WHEN (false AND to_jsonb(NEW) <> to_jsonb(OLD) ||", 1)),
    Mutant("audit: keeps the keys of who is forgotten", ("it", "forget::whoever_is_forgotten_leaves_the_arguments_of_operators_and_nothing_else_of_the_audit_changes"),
           (FORGET, "PERFORM tidegate.forget_arguments(logged, groups, correlation_ids);", "", 1)),
    Mutant("skip: forgets the time for which an event was planned", ("it", "operate::b10_unblock_with_skip_keeps_the_time_for_which_the_first_event_was_planned"),
           (OPERATE, "WHERE q.replay_of = head.id AND head.available_at > clock_timestamp();", "WHERE false;", 1)),
    Mutant("batch: an event comes behind later ones when the first with its key ends beside it",
           ("it", "interleave::b10_a_batch_keeps_its_order_and_its_parent_when_the_first_event_with_a_key_ends_beside_it"),
           (PUBLISH, "bool_and(coalesce(i.id, q.id) IS NOT NULL) AS complete", "true AS complete", 1)),
    Mutant("follow-ups: planned as far ahead as anybody likes", ("it", "drain::a_follow_up_of_a_group_that_is_planned_too_far_ahead_fails_its_event_alone"),
           (PUBLISH, "IF cardinality(available_ats) > 0 AND cardinality(group_keys) > 0 THEN", "IF false THEN", 1)),
    Mutant("retry: puts off an event of a group as far as anybody likes", ("it", "drain::an_event_of_a_group_is_put_off_for_no_longer_than_it_may_be_planned"),
           (ENDS, "CASE WHEN q.group_key IS NULL THEN", "CASE WHEN true THEN", 1)),
    Mutant("promote: leaves what its deadline has overtaken", ("it", "drain::b13_a_planned_event_whose_deadline_has_passed_holds_its_group_no_longer"),
           (LEASE, "WHERE delayed AND expires_at <= (SELECT clock_timestamp())", "WHERE false", 1)),
    Mutant("promote: one that cannot be changed keeps all waiting",
           ("it", "payload::a_due_event_whose_payload_is_lost_and_one_that_a_trigger_refuses_keep_no_other_waiting"),
           (LEASE, "        -- For example, a user's trigger refuses one of them.\n        FOREACH one IN ARRAY due || late LOOP",
            "        RAISE;\n        FOREACH one IN ARRAY due || late LOOP", 1)),
    Mutant("ends: one that cannot be read keeps all", ("it", "payload::who_cancels_many_events_ends_the_one_whose_payload_is_lost_without_it"),
           (LOG, "            IF middle = 0 THEN\n", "            RAISE;\n            IF middle = 0 THEN\n", 1)),
    Mutant("schedules: stop for a sequence that is behind", ("it", "periodic::a_schedule_stops_for_what_its_publish_refuses_and_for_nothing_else"),
           (SCHEDULE, "WHEN invalid_parameter_value THEN", "WHEN data_exception OR integrity_constraint_violation THEN", 1)),
    Mutant("look-up of ends: reads all partitions at once",
           ("it", "queue::a_worker_that_asks_what_has_ended_under_its_leases_locks_few_partitions_of_a_year_of_them"),
           (LOG, "found := tidegate.found_in(place, query, missing, 0);",
            "EXECUTE format(query, place) INTO found USING missing;", 1)),
    Mutant("transaction: a deadlock at its end costs an attempt", ("it", "drain::a_transaction_that_deadlocks_at_its_end_costs_its_event_no_attempt"),
           (CONTEXT, "if error.is_lock_timeout() || error.is_transient() {", "if error.is_lock_timeout() {", 1)),
    # Each of the two alone prevents a second replay.
    Mutant("replay: neither waits for another one nor is there one for an event", ("it", "operate::i7_of_two_replays_at_once_one_wins_and_both_are_in_the_audit"),
           (OPERATE, "        PERFORM tidegate.one_at_a_time();\n", "", 2),
           (TABLES, "CREATE UNIQUE INDEX event_queue_replay", "CREATE INDEX event_queue_replay", 1)),
    Mutant("cleanup: believes a clock that is ahead", ("it", "cleanup::with_the_clock_set_back_nothing_unexpired_goes_and_forward_it_cannot_be_set"),
           (LOG, "least(delete_expired.now, clock_timestamp())", "coalesce(delete_expired.now, clock_timestamp())", 1)),
    Mutant("cleanup: drops what has not expired", ("it", "cleanup::with_the_clock_set_back_nothing_unexpired_goes_and_forward_it_cannot_be_set"),
           (LOG, "AND p.upper_bound <= moment) THEN\n", ") THEN\n", 1), (LOG, "WHEN 'drop' THEN p.upper_bound <= moment\n", "WHEN 'drop' THEN true\n", 1)),
    # Retries that cost no attempt must not continue forever.
    Mutant("snooze: without end", ("it", "snooze::a_thousand_snoozes_are_enough_and_then_attempts_are_spent"),
           ("crates/tidegate/src/outcome.rs", "        times >= Self::MOST_SNOOZES\n", "        times == u32::MAX\n", 1)),
    Mutant("snooze: a failure beside it is free", ("it", "snooze::a_snooze_beside_a_failure_is_an_attempt_like_any_other"),
           ("crates/tidegate/src/outcome.rs", "!unfinished.all(|end| end.snoozed().is_some())",
            "!unfinished.any(|end| end.snoozed().is_some())", 1)),
    Mutant("drain: an event of a newer version fails",
           ("it", "versions::an_event_of_a_newer_version_waits_for_a_newer_program_and_its_neighbours_go_on"),
           (WORKERS, "if error.is_newer() {", "if false {", 1)),
    Mutant("report_progress: does not look at the lease",
           ("it", "progress::a_handler_whose_event_was_taken_away_learns_it_when_it_tells_its_progress"),
           (ENDS, "        RETURN EXISTS (SELECT FROM tidegate.lease AS l WHERE l.token = report_progress.token AND report_progress.id <@ l.ids);\n",
            "        RETURN true;\n", 1)),
    # Policies of kinds.
    Mutant("policy: drains do not hear of it",
           ("it", "policy::a_kinds_own_time_limit_and_backoff_are_kept_by_drains_and_its_neighbours_have_the_usual_ones"),
           (LEASE, "    IF have_policies AND services IS NULL THEN\n", "    IF false THEN\n", 1)),
    Mutant("policy: a batch has the usual attempts",
           ("it", "policy::a_declared_limit_of_attempts_is_that_of_every_publish_of_its_kind_and_of_no_other"),
           (PUBLISH, "coalesce(r.max_attempts, (own_attempts->>r.kind)::integer, usual_attempts)", "coalesce(r.max_attempts, usual_attempts)", 2)),
    Mutant("policy: what runs at once is not limited",
           ("it", "policy::so_many_of_a_kind_run_at_once_over_all_drains_and_its_neighbours_wait_for_none"),
           ("crates/tidegate/sql/V0012__policy.sql", "        PERFORM tidegate.limit_kind(changed);\n", "        NULL;\n", 1)),
    # Rights and roles.
    Mutant("groups: ordered by advisory locks", ("it", "roles::a_login_without_rights_can_hold_up_no_publish_no_follow_up_and_no_step"),
           (PUBLISH, "        PERFORM FROM tidegate.mutex AS m WHERE m.slot = tidegate.mutex_slot(publish_one.group_key) FOR UPDATE;\n",
            "        PERFORM pg_advisory_xact_lock(1414087749, hashtext(publish_one.group_key));\n", 1)),
    Mutant("groups: a missing lock is no matter", ("it", "queue::a_group_whose_lock_is_missing_is_refused_and_the_hint_mends_it"),
           (TABLES, "    IF locked < cardinality(slots) THEN\n", "    IF false THEN\n", 1)),
    Mutant("rights: everybody may call everything",
           ("it", "roles::no_function_may_be_executed_by_public_and_none_follows_the_callers_search_path"),
           (RIGHTS, "    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', schema);\n", "", 1)),
    Mutant("rights: a function follows the search path of its caller",
           ("it", "roles::no_function_may_be_executed_by_public_and_none_follows_the_callers_search_path"),
           (RIGHTS, "IF f.prosqlbody IS NULL THEN", "IF false THEN", 1)),
    Mutant("client: a token that was refused is not read again",
           ("it", "forms::a_token_that_was_changed_is_read_again_and_costs_no_event_a_failure"),
           ("src/app/client.rs", "        if verdict(response.status()) != Verdict::Credentials {\n", "        if response.status().as_u16() > 0 {\n", 1)),
    Mutant("client: redirects are followed", ("lib", "app::client::tests::a_redirect_takes_our_token_nowhere"),
           ("src/app/client.rs", "redirect::Policy::none()", "redirect::Policy::default()", 1)),
    Mutant("client: plaintext to anybody", ("lib", "app::client::tests::plaintext_to_another_machine_must_be_asked_for"),
           ("src/app/client.rs", "|| is_loopback(&url) {", "|| url.has_host() {", 1)),
    # Periodic events.
    Mutant("fire: a slot that was found is fired whatever the next one is by now",
           periodic("of_drains_that_meet_a_slot_at_one_instant_one_publishes_its_event"),
           (SCHEDULE, " AND t.next_at = f.came_from AND NOT t.paused", " AND NOT t.paused", 1)),
    Mutant("fire: an earlier definition is as good as this one", periodic("what_was_found_of_an_earlier_definition_is_not_fired"),
           (SCHEDULE, "WHERE t.id = f.id AND t.revision = f.revision AND", "WHERE t.id = f.id AND", 1)),
    Mutant("fire: waits for whoever has the schedule", periodic("what_somebody_holds_for_ever_keeps_no_other_schedule_and_no_drain"),
           (SCHEDULE, "AND NOT t.paused\n               FOR UPDATE SKIP LOCKED;", "AND NOT t.paused\n               FOR UPDATE;", 1)),
    Mutant("fire: waits once for each schedule", periodic("a_step_that_has_waited_once_fires_no_further_schedule"),
           (SCHEDULE, "        EXIT WHEN waited;\n", "", 1)),
    Mutant("forget: what is locked counts as unknown and is not named again",
           ("it", "forget::an_event_that_somebody_has_locked_is_named_again_and_keeps_nobody_waiting"),
           (FORGET, "live, held, missed\n", "live, held, before\n", 1)),
    Mutant("fire: waits for whoever has the group", periodic("what_somebody_holds_for_ever_keeps_no_other_schedule_and_no_drain"),
           (SCHEDULE, "tidegate.mutex_slot(s.group_key) FOR UPDATE SKIP LOCKED;", "tidegate.mutex_slot(s.group_key) FOR UPDATE;", 1)),
    Mutant("a slot is taken that a drain has", slot("however_often_one_is_invoked_so_many_drains_work_at_once"),
           (SLOT, "AND (f.until <= clock_timestamp() OR f.worker = take_slot.worker)", "", 1)),
    Mutant("a start that arrives twice runs twice", slot("a_start_that_arrives_twice_runs_once_and_a_chain_goes_on"),
           (SLOT, "WHERE c.hop < excluded.hop OR c.hop = excluded.hop AND c.worker = excluded.worker;", ";", 1)),
    Mutant("a drain goes on without its slot", slot("a_drain_that_has_lost_its_slot_gives_back_what_it_has_not_started"),
           (SLOTS, "if !kept.ours {", "if false {", 1)),
    Mutant("a chain goes on though nothing ends", slot("a_drain_whose_budget_is_spent_starts_the_next_one_while_it_gets_on"),
           (REPORT, " && self.ended() > 0", "", 1)),
    Mutant("a drain is started though those at work are enough", slot("a_drain_whose_budget_is_spent_starts_the_next_one_while_it_gets_on"),
           (SLOTS, "if wanted > u64::from(left.at_work) {", "{", 1)),
    Mutant("a drain does not wait for a slot that is about to be free", wake("a_drain_waits_for_the_slot_of_one_that_closes_and_for_no_other"),
           (SLOTS, "Ok(Taken::Soon) if requested_at.elapsed() < LONGEST_CLOSING => {", "Ok(Taken::Soon) if false => {", 1)),
    Mutant("figures: a row that is locked is waited for", ("it", "figures::who_keeps_the_figures_locked_keeps_nobody_waiting"),
           (FIGURES, "LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS row", "LIMIT 1 FOR NO KEY UPDATE) AS row", 1)),
    Mutant("figures: made-up kinds keep their names", ("it", "figures::kinds_that_a_publisher_makes_up_are_counted_under_one_name"),
           (FIGURES, "coalesce(k.kind, '(unregistered)') AS kind, e.status", "coalesce(e.kind, '') AS kind, e.status", 1)),
    Mutant("figures: a sum overflows in the end of an event", ("it", "figures::absurd_figures_end_no_event_and_stop_no_reader_and_no_cleanup"),
           (FIGURES, "least(m.events, 100000000000000000) + p.events", "m.events + p.events", 1)),
    Mutant("figures: a sum overflows in a cleanup", ("it", "figures::absurd_figures_end_no_event_and_stop_no_reader_and_no_cleanup"),
           (FIGURES, "least(sum(g.events), 100000000000000000)", "sum(g.events)", 1)),
    Mutant("figures: times without an end stop the readers", ("it", "figures::times_without_an_end_in_the_log_stop_no_reader"),
           (VIEWS, "CASE WHEN isfinite(finished_at) AND isfinite(created_at) THEN finished_at - created_at END",
            "finished_at - created_at", 1)),
    Mutant("seal: what begins like one passes for one", ("it", "seal::what_only_begins_like_a_seal_is_plaintext"),
           (PUBLISH, "AND substr(payload::text, 34) ~", "AND true OR payload::text ~", 1)),
    Mutant("seal: a publisher with keys does not seal what begins like one", ("it", "seal::what_only_begins_like_a_seal_is_plaintext"),
           (SEAL, "if !is_sealed(payload.get().as_bytes())", "if !begins_sealed(payload.get().as_bytes())", 1)),
    Mutant("an event that nobody can read holds its group for ever",
           ("it", "versions::an_event_that_nobody_can_read_holds_its_group_no_longer_than_a_planned_one_may"),
           (DRAIN, "if event.is_overdue {", "if false {", 1)),
    Mutant("show: what cannot be read hides the rest", ("it", "look::an_event_that_no_program_can_read_is_shown_all_the_same"),
           (READ, "serde_json::from_str(text.get()).unwrap_or_else(", "Ok(serde_json::from_str(text.get())?).unwrap_or_else(", 1)),
    Mutant("logged: a row is taken out of JSON", ("it", "console::an_event_that_no_program_can_read_has_a_page"),
           (LOG, "'SELECT to_json(ROW(' || tidegate.log_columns('l.')\n        || ')::text)", "'SELECT row_to_json(l)", 1),
           (LOG, "event := (found #>> '{}')::tidegate.event_log;", "event := json_populate_record(NULL::tidegate.event_log, found);", 1)),
    Mutant("a call that fails for all costs each an attempt", batch("one_event_that_spoils_every_call_it_is_in_costs_thousands_beside_it_no_attempt"),
           (HANDLER, "let failed = self.into_retry().blameless();", "let failed = self.into_retry();", 1)),
    Mutant("a call that fails for all is shared by as many again",
           batch("one_event_that_spoils_every_call_it_is_in_costs_thousands_beside_it_no_attempt"),
           (SETTLE, "filter_map(|error| error.shared?.together).min()", "filter_map(|_| None).min()", 1)),
    Mutant("what hangs for all is each one's own time limit", batch("a_call_that_hangs_while_others_share_it_is_nobodys_attempt"),
           (BATCH, "left.mul_f64(0.9)", "left * 2", 1)),
    Mutant("a drain of one lane has calls shared",
           batch("a2_a_drain_of_concurrency_one_keeps_the_order_of_all_and_each_event_has_its_own_call"),
           (WORKERS, "if self.options.concurrency == 1 {\n            return Sharing::NONE;\n        }", "", 1)),
    Mutant("schedules: a program takes over what another one keeps",
           periodic("what_a_program_declares_follows_it_and_what_operators_did_stays"),
           (SCHEDULE, "     WHERE s.keeper IS NOT DISTINCT FROM excluded.keeper\n", "", 1)),
    Mutant("schedules: all of an outage in one drain", periodic("a_week_of_minutes_is_made_up_for_a_part_in_each_drain"),
           (SCHEDULING, "const MOST_A_MINUTE: usize = 1000;", "const MOST_A_MINUTE: usize = 100_000;", 1)),
    Mutant("http: a client takes all places", ("it", "callers::a_client_whose_bodies_do_not_come_keeps_no_other_client_out"),
           ("src/http/callers/mod.rs", "matches!(share, Some(None))", "false", 1)),
    Mutant("http: any host name is this machine", ("it", "callers::until_it_is_said_who_may_call_no_other_host_name_is_answered"),
           ("src/http/mod.rs", "if gate.access.is_undecided() {", "if false {", 1)),
    Mutant("http: crowded connections are kept", ("it", "http::connections_that_are_kept_and_used_shut_nobody_out"),
           ("crates/tidegate-console/src/serve.rs", "free.available_permits() < bounds.connections / 2", "false", 1)),
    Mutant("letters: a key is everybody's", ("it", "callers::a_letter_with_another_clients_id_is_a_letter_of_its_own"),
           ("src/app/forms/store.rs", "[sender, source, external_id, &subject", "[&None::<Uuid>, source, external_id, &subject", 1)),
    Mutant("text: commands reach the terminal", ("it", "look::what_a_publisher_wrote_commands_no_terminal"),
           ("crates/tidegate-cli/src/text/mod.rs", "    one.is_control()\n", "    false\n", 1)),
    Mutant("migrate: waits for ever",
           ("it", "cli::a_migration_that_waits_for_an_open_transaction_names_it_gives_up_and_lets_publishers_through"),
           ("crates/tidegate/src/migrate/patience.rs", "LOCK_TIMEOUT.as_millis()", "0", 1)),
    Mutant("logs: a line waits for its reader", ("it", "cli::a_drain_whose_stderr_nobody_reads_goes_on_and_reports"),
           ("crates/tidegate-cli/src/lib.rs", "log_writer(std::io::stderr())?", "std::io::stderr", 1)),
    Mutant("logs: a failure waits for its reader", ("it", "cli::a_failure_whose_stderr_nobody_reads_ends_the_program"),
           ("crates/tidegate/src/logs/writer.rs", "LINES.lock().writer.is_none()", "true", 1)),
    Mutant("logs: a line for each event", ("it", "process::a_run_that_rejects_everything_logs_a_thousand_events_and_counts_the_others"),
           ("crates/tidegate/src/drain/lines.rs", "const MOST_LINES: u32 = 1000;", "const MOST_LINES: u32 = u32::MAX;", 1)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; without any, all mutants")
    parser.add_argument("--texts", action="store_true", help="only see that every text is there")
    parser.add_argument("--layers", action="store_true", help="also run the layers that a mutant's own test is not in")
    arguments = parser.parse_args()
    parts = arguments.names
    chosen = [mutant for mutant in MUTANTS if not parts or any(part in mutant.name for part in parts)]
    if not chosen:
        print("no mutant has such a name; there are:", *(mutant.name for mutant in MUTANTS), sep="\n  ", file=sys.stderr)
        return 2
    tree = PROJECT if arguments.texts else copy_of_project()
    # Check all texts first, so that a moved guard is reported before any mutant runs.
    for mutant in chosen:
        mutated(tree, mutant)
    if arguments.texts:
        print(f"the texts of all {len(chosen)} mutants are there")
        return 0
    for test in sorted({mutant.test for mutant in chosen}):
        build(tree, test)
        done = run(tree, test)
        if done.returncode != 0 or not re.search("[1-9][0-9]* passed", done.stdout):
            print(f"{done.stdout}\nwithout any mutant, {' '.join(test)} fails, or is not there", file=sys.stderr)
            return 1
    noticed = {mutant.name: noticed_by(tree, mutant, arguments.layers) for mutant in chosen}
    shutil.rmtree(tree)
    survivors = [name for name, layers in noticed.items() if not layers]
    if survivors:
        print("survived:", *survivors, sep="\n  ", file=sys.stderr)
        return 1
    print(f"all {len(chosen)} mutants were noticed")
    for layer in [*LAYERS, "it", "torture"]:
        alone = [name for name, layers in noticed.items() if layers == [layer]]
        print(f"{layer}: {sum(layer in layers for layers in noticed.values())}, alone {len(alone)}")
    return 0


def copy_of_project():
    """Copies the files that git tracks or would add, as they are on disk. The copy is built in its own target folder,
    because cargo would otherwise use a mutant's program for the project's."""
    tree = PROJECT / "target" / "mutants"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=PROJECT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (PROJECT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, tree / name)
    return tree


def mutated(tree, mutant):
    """Returns the files of a mutant, by path."""
    texts = {}
    for path, there, instead, count in mutant.replacements:
        text = texts.get(path) or (tree / path).read_text()
        if text.count(there) != count:
            print(f"{mutant.name}: {path} holds this {text.count(there)} times, not {count}:\n{there}", file=sys.stderr)
            raise Failed(1)
        texts[path] = text.replace(there, instead)
    return texts


def noticed_by(tree, mutant, all_layers):
    """Returns the layers that notice a mutant. The first is that of its own test; without this one, it has survived."""
    sound = {path: (tree / path).read_text() for path, *_ in mutant.replacements}
    try:
        for path, text in mutated(tree, mutant).items():
            (tree / path).write_text(text)
        build(tree, mutant.test)
        done = run(tree, mutant.test)
        reason = failure(done)
        if not reason:
            print(f"SURVIVED  {mutant.name}\n{done.stdout}", flush=True)
            return []
        others = [layer for layer in LAYERS if all_layers and layer != mutant.layer]
        layers = [mutant.layer, *(layer for layer in others if failure(run(tree, LAYERS[layer], exact=False)))]
    finally:
        for path, text in sound.items():
            (tree / path).write_text(text)
    print(f"noticed by {', '.join(layers)}: {mutant.name}\n          {reason}", flush=True)
    return layers


def failure(done):
    """Returns the line that says why a test failed, if one did, and not for want of a build."""
    found = re.search(r"^.*(violation of |panicked at ).*$", done.stdout, re.MULTILINE)
    return found.group(0).strip()[:150] if done.returncode != 0 and found else None


def build(tree, test):
    if cargo(tree, BUILD_LIMIT_S, test[0], "--no-run").returncode != 0:
        print("a mutant does not compile", file=sys.stderr)
        raise Failed(1)


def run(tree, test, exact=True):
    return cargo(tree, RUN_LIMIT_S, test[0], "--", *(["--exact"] if exact else []), test[1], capture=True)


def cargo(tree, limit, target, *arguments, capture=False):
    chosen = {"lib": ["--lib"], "tidegate": ["-p", "tidegate", "--lib"]}.get(target, ["--test", target])
    command = ["cargo", "test", "--quiet", *cargo_flags(), *chosen, *arguments]
    variables = {**environment(), "CARGO_TARGET_DIR": str(PROJECT / "target" / "mutants-build"), "RUST_BACKTRACE": "0"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if capture else {}
    try:
        return subprocess.run(command, cwd=tree, env=variables, text=True, timeout=limit, **options)
    except subprocess.TimeoutExpired as over:
        told = over.stdout or b""
        told = told.decode(errors="replace") if isinstance(told, bytes) else told
        return subprocess.CompletedProcess(command, 1, f"{told}\nno end within {limit} s")


if __name__ == "__main__":
    run_script(main)
