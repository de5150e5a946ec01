//! Tests of the checker itself: a history without faults, and copies with one planted fault each, which the
//! checker must find and classify correctly.

use crate::checker::{Charge, Departure, Effect, Ending, History, KEPT, Place, Row, Taking, check};
use crate::journal::{Left, Line, Record, Told, Verdict};

/// A planted fault, and the invariants that the checker must report as broken, sorted.
pub struct Control {
    pub name: &'static str,
    plant: fn(&mut History),
    found: &'static [&'static str],
}

impl Control {
    pub fn test(&self) {
        let mut history = sound();
        (self.plant)(&mut history);
        let found = check(&history);
        let mut names: Vec<&str> = found.iter().map(|violation| violation.invariant).collect();
        names.sort_unstable();
        assert_eq!(names, self.found, "{found:#?}");
    }
}

macro_rules! controls {
    ($($name:ident: $plant:expr => $found:expr),+ $(,)?) => {
        &[$(Control { name: stringify!($name), plant: $plant, found: &$found }),+]
    };
}

/// All controls.
pub static ALL: &[Control] = controls![
    a_run_without_faults_has_no_violations: |_| () => [],
    a_lost_event_is_found: |h| drop(h.rows.remove(0)) => ["I1", "I1"],
    an_event_in_queue_and_log_is_found: in_two_places => ["I1", "I1", "I8"],
    an_event_that_is_twice_in_the_log_is_found: logged_twice => ["I1", "I1"],
    an_event_of_a_refused_publish_is_found: refused => ["I1", "I2"],
    half_a_batch_of_unknown_outcome_is_found: half_a_batch => ["I1"],
    a_publish_of_unknown_outcome_may_be_there_or_not: unknown => [],
    a_start_without_a_publish_is_found: unpublished => ["I2", "I2"],
    an_event_that_nobody_published_is_found: stranger => ["I2"],
    more_attempts_than_allowed_are_found: |h| h.rows[0].max_attempts = 0 => ["I3"],
    more_starts_than_attempts_are_found: second_start => ["I3"],
    a_start_that_the_end_of_its_run_interrupted_is_not_counted: |h| {
        second_start(h);
        h.rows[2].cuts = vec![1];
    } => [],
    an_order_violation_is_found: overtaken => ["I4", "I4"],
    a_start_between_an_earlier_events_attempts_is_found: between_attempts => ["I4", "I4"],
    a_redelivery_of_what_had_ended_is_no_order_violation: redelivered => [],
    a_start_behind_a_commit_whose_answer_was_lost_is_none: |h| answer_lost(h) => [],
    a_start_behind_a_commit_that_was_refused_is_found: |h| {
        answer_lost(h);
        "FAILED".clone_into(&mut h.rows[0].status);
        h.rows[0].attempts = 2;
    } => ["I4", "I5"],
    a_late_end_under_a_lost_lease_is_no_order_violation: ended_late => [],
    who_ended_an_event_may_go_on_while_another_repeats_it: repeated_meanwhile => [],
    a_lease_past_what_is_not_its_own_is_found: |h| h.takings[1].together = false => ["I4"],
    a_lease_behind_nothing_is_none: |h| h.takings[1].ahead = None => [],
    a_start_past_what_its_process_has_leased_and_another_has_ended_is_found: leased_along => ["I4"],
    what_has_spent_its_attempts_is_given_up_without_a_start: spent => [],
    what_is_given_up_while_its_last_worker_is_frozen_holds_nothing_up: given_up_beside_a_frozen_worker => [],
    a_breach_that_was_seen_under_load_is_found: |h| h.seen.push(("J".to_owned(), String::new())) => ["J"],
    ids_against_the_order_of_commits_are_found: ids_against_commits => ["I4"],
    a_result_of_a_stale_attempt_is_found: |h| h.rows[0].attempts = 2 => ["I5"],
    a_result_that_was_kept_when_its_end_could_not_be_written_is_none: kept => [],
    a_retry_under_a_stale_token_is_found: |h| charge(h, true, Some(2)) => ["I5"],
    a_retry_of_the_attempt_that_was_leased_is_none: |h| charge(h, true, Some(1)) => [],
    an_attempt_charged_to_what_had_not_started_is_found: |h| charge(h, false, None) => ["I3"],
    an_attempt_charged_to_what_was_not_leased_is_found: |h| {
        charge(h, true, None);
        h.departures.clear();
    } => ["I3"],
    a_lapse_beside_one_that_had_lapsed_before_is_found: |h| lapses(h, 1) => ["I10"],
    two_first_lapses_of_one_worker_are_none: |h| lapses(h, 0) => [],
    two_holders_of_one_token_are_found: two_holders => ["I6"],
    a_lease_taken_from_its_holder_is_found: |h| depart(h, 3, "other", false) => ["I6"],
    a_lease_that_ran_out_may_be_taken_from_its_holder: |h| depart(h, 3, "other", true) => [],
    an_operator_may_take_a_lease: |h| depart(h, 3, "", false) => [],
    a_worker_may_give_back_its_own: |h| depart(h, 3, "worker", false) => [],
    a_cleanup_of_what_is_leased_is_found: |h| swept(h, true, 5) => ["I7"],
    a_cleanup_of_what_has_attempts_left_is_found: |h| swept(h, false, 6) => ["I7"],
    a_cleanup_of_what_is_over_is_none: |h| swept(h, false, 5) => [],
    a_row_removed_before_its_time_is_found: |h| h.rows[0].removed_early = true => ["I7"],
    a_replay_that_nobody_recorded_is_found: unrecorded_replay => ["I7"],
    an_event_that_does_not_end_is_found: |h| h.rows[2].place = Place::Queue => ["I8"],
    a_leak_is_found: |h| h.leaks.push("worker: canary".to_owned()) => ["I9"],
    an_effect_that_happened_twice_is_found: |h| h.effects.push(Effect { id: 2, attempt: 1 }) => ["effects"],
    an_effect_that_is_missing_is_found: |h| h.effects.clear() => ["effects"],
    a_report_that_does_not_add_up_is_found: unbalanced => ["report"],
];

/// Three events: 1 and 2 are in one group, and 2 works in its own transaction. 3 has no group.
fn sound() -> History {
    let told = |key: &str, group: Option<&str>| Told {
        key: key.to_owned(),
        group: group.map(ToOwned::to_owned),
    };
    let publisher = journal(
        "publisher",
        vec![
            (10, trying("p1", vec![told("a", Some("g"))])),
            (20, acknowledged("p1", &[1])),
            (
                30,
                trying("p2", vec![told("b", Some("g")), told("c", None)]),
            ),
            (40, acknowledged("p2", &[2, 3])),
        ],
    );
    let worker = journal(
        "worker",
        vec![
            (50, started(1, 1, "a")),
            (55, ended(1, 1)),
            (60, started(2, 1, "b")),
            (61, started(3, 1, "c")),
            (65, ended(2, 1)),
            (66, ended(3, 1)),
        ],
    );
    History {
        journals: vec![publisher, worker],
        rows: vec![
            row(1, "a", Some("g")),
            Row {
                kind: KEPT.to_owned(),
                ..row(2, "b", Some("g"))
            },
            row(3, "c", None),
        ],
        takings: vec![
            taking(1, "worker", 1, None),
            taking(2, "worker", 1, Some((1, 1))),
            taking(3, "worker", 1, None),
        ],
        effects: vec![Effect { id: 2, attempt: 1 }],
        drained: true,
        ..History::default()
    }
}

fn journal(name: &str, records: Vec<(u64, Record)>) -> Left {
    Left {
        name: name.to_owned(),
        lines: records
            .into_iter()
            .map(|(at, record)| Line { at, record })
            .collect(),
    }
}

fn trying(publish: &str, events: Vec<Told>) -> Record {
    Record::Trying {
        publish: publish.to_owned(),
        events,
    }
}

fn acknowledged(publish: &str, ids: &[i64]) -> Record {
    Record::Acknowledged {
        publish: publish.to_owned(),
        ids: ids.to_vec(),
    }
}

fn started(id: i64, attempt: u32, key: &str) -> Record {
    Record::Started {
        id,
        attempt,
        key: key.to_owned(),
    }
}

fn ended(id: i64, attempt: u32) -> Record {
    Record::Ended {
        id,
        attempt,
        verdict: Verdict::Done,
    }
}

fn row(id: i64, key: &str, group: Option<&str>) -> Row {
    Row {
        id,
        place: Place::Log,
        kind: "plain".to_owned(),
        key: Some(key.to_owned()),
        group_key: group.map(ToOwned::to_owned),
        status: "COMPLETED".to_owned(),
        attempts: 1,
        max_attempts: 5,
        code: None,
        cuts: Vec::new(),
        result_attempt: Some(1),
        without_lease: false,
        replay_of: None,
        removed_early: false,
    }
}

fn taking(id: i64, by: &str, attempt: u32, ahead: Option<(i64, u32)>) -> Taking {
    Taking {
        by: by.to_owned(),
        token: format!("of {by}"),
        worker: by.to_owned(),
        id,
        attempt: Some(attempt),
        ahead: ahead.map(|(id, _)| id),
        ahead_attempt: ahead.map(|(_, attempt)| attempt),
        together: true,
    }
}

/// Event `id` leaves its worker's lease by a statement of `by`, after it may have been started.
fn depart(history: &mut History, id: i64, by: &str, expired: bool) {
    history.departures.push(Departure {
        by: by.to_owned(),
        transaction: 7,
        token: "of worker".to_owned(),
        worker: "worker".to_owned(),
        id,
        started: true,
        expired,
    });
}

/// Event 1 leaves its lease and is charged an attempt.
fn charge(history: &mut History, started: bool, error_attempt: Option<u32>) {
    depart(history, 1, "worker", false);
    history.departures[0].started = started;
    history.charges.push(Charge {
        by: "worker".to_owned(),
        transaction: 7,
        id: 1,
        attempts_were: 0,
        attempts: 1,
        lapses_were: 0,
        lapses: 0,
        error_attempt,
        error_code: None,
    });
}

/// Event 1 ends in an attempt whose end could not be written.
fn kept(history: &mut History) {
    charge(history, true, Some(1));
    history.charges[0].error_code = Some("unwritable".to_owned());
    history.rows[0].attempts = 2;
}

/// Events 1 and 3 lapse together. Event 3 had already lapsed this often.
fn lapses(history: &mut History, before: u32) {
    for (id, lapses_were) in [(1, 0), (3, before)] {
        depart(history, id, "other", true);
        history.charges.push(Charge {
            by: "other".to_owned(),
            transaction: 7,
            id,
            attempts_were: 0,
            attempts: 1,
            lapses_were,
            lapses: lapses_were + 1,
            error_attempt: Some(1),
            error_code: Some("lapsed".to_owned()),
        });
    }
}

/// Adds a second attempt. Journals and rows agree, except for the planted fault.
fn second_attempt(history: &mut History, process: &str, records: Vec<(u64, Record)>) {
    history.journals.push(journal(process, records));
}

fn in_two_places(history: &mut History) {
    let again = Row {
        place: Place::Queue,
        ..history.rows[2].clone()
    };
    history.rows.push(again);
}

fn logged_twice(history: &mut History) {
    history.rows.push(history.rows[2].clone());
}

fn refused(history: &mut History) {
    history.journals[0].lines[1].record = Record::Refused {
        publish: "p1".to_owned(),
        error: String::new(),
    };
}

fn half_a_batch(history: &mut History) {
    unknown(history);
    history.rows.remove(2);
    history.journals[1]
        .lines
        .retain(|line| !matches!(line.record, Record::Started { id: 3, .. }));
}

fn unknown(history: &mut History) {
    history.journals[0].lines.pop();
    history.journals[0].lines.push(Line {
        at: 41,
        record: trying(
            "p3",
            vec![Told {
                key: "d".to_owned(),
                group: None,
            }],
        ),
    });
}

fn unpublished(history: &mut History) {
    history.rows.push(row(4, "d", None));
    second_attempt(history, "other", vec![(70, started(4, 1, "d"))]);
}

fn stranger(history: &mut History) {
    history.rows.push(row(4, "d", None));
}

fn second_start(history: &mut History) {
    second_attempt(history, "other", vec![(70, started(3, 2, "c"))]);
}

fn overtaken(history: &mut History) {
    history.journals[1].lines[0].at = 63;
    history.journals[1].lines[1].at = 64;
    history.journals[1].lines.sort_by_key(|line| line.at);
}

fn retried(history: &mut History, verdict: Verdict, next: u64) {
    history.journals[1].lines[1].record = Record::Ended {
        id: 1,
        attempt: 1,
        verdict,
    };
    history.rows[0].attempts = 2;
    history.rows[0].result_attempt = Some(2);
    second_attempt(
        history,
        "other",
        vec![(next, started(1, 2, "a")), (next + 1, ended(1, 2))],
    );
}

fn between_attempts(history: &mut History) {
    retried(history, Verdict::Retry, 80);
}

fn redelivered(history: &mut History) {
    retried(history, Verdict::Done, 80);
}

/// The worker takes the end of its first event for one that must be repeated.
fn answer_lost(history: &mut History) {
    let retry = Record::Ended {
        id: 1,
        attempt: 1,
        verdict: Verdict::Retry,
    };
    let told = Line {
        at: 57,
        record: retry,
    };
    history.journals[1].lines.insert(2, told);
}

fn ended_late(history: &mut History) {
    retried(history, Verdict::Done, 56);
    history.journals[1].lines[1].at = 90;
    history.takings[1].ahead = None;
}

fn repeated_meanwhile(history: &mut History) {
    retried(history, Verdict::Done, 59);
    history.journals[2].lines[1].at = 62;
}

/// Moves the first event's attempt to the journal of another process, from which the event is then taken
/// away.
fn first_of_another(history: &mut History) {
    let first = history.journals[1].lines.drain(..2).collect();
    history.journals.push(Left {
        name: "other".to_owned(),
        lines: first,
    });
    "other".clone_into(&mut history.takings[0].by);
}

/// The worker leases event 1 again together with the next one, and starts the next one first.
fn leased_along(history: &mut History) {
    first_of_another(history);
    history.rows[0].attempts = 2;
    history.rows[0].result_attempt = Some(2);
    let again = [(80, started(1, 2, "a")), (81, ended(1, 2))];
    let again = again.map(|(at, record)| Line { at, record });
    history.journals[1].lines.extend(again);
    history.takings.insert(1, taking(1, "worker", 2, None));
    history.takings[2].ahead_attempt = Some(2);
}

/// The same, but event 1 had no attempt left for the worker, which recorded this too late.
fn spent(history: &mut History) {
    first_of_another(history);
    let again = Taking {
        attempt: None,
        ..taking(1, "worker", 0, None)
    };
    history.takings.insert(1, again);
    history.takings[2].ahead_attempt = None;
}

/// The last allowed attempt outlives its lease in a frozen worker, which reports its end after everything
/// else.
fn given_up_beside_a_frozen_worker(history: &mut History) {
    spent(history);
    let row = &mut history.rows[0];
    "FAILED".clone_into(&mut row.status);
    row.code = Some("abandoned".to_owned());
    row.result_attempt = None;
    history.journals[2].lines[1].at = 90;
}

fn ids_against_commits(history: &mut History) {
    history.journals[0].lines[0].at = 45;
    history.journals[0].lines[1].at = 48;
}

fn two_holders(history: &mut History) {
    history.rows[2].attempts = 2;
    history.rows[2].result_attempt = Some(2);
    second_attempt(history, "other", vec![(70, started(3, 1, "c"))]);
}

fn swept(history: &mut History, leased: bool, max_attempts: u32) {
    let row = &mut history.rows[2];
    "FAILED".clone_into(&mut row.status);
    row.code = Some("abandoned".to_owned());
    row.without_lease = true;
    row.result_attempt = None;
    row.attempts = 5;
    history.endings.push(Ending {
        id: 3,
        leased,
        attempts: 5,
        max_attempts,
        late: false,
    });
}

fn unrecorded_replay(history: &mut History) {
    history.rows.push(Row {
        replay_of: Some(3),
        ..row(4, "c", None)
    });
}

fn unbalanced(history: &mut History) {
    let mut report = tidegate::DrainReport::default();
    report.leased = 1;
    history.journals[1].lines.push(Line {
        at: 90,
        record: Record::Reported {
            report: Box::new(report),
        },
    });
}
