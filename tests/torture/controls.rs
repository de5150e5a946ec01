//! The checker's own tests: a history in which nothing is wrong, and the same with one planted fault each,
//! which must be found, and as what it is.

use crate::checker::{Effect, History, KEPT, LeaseChange, Place, Row, check};
use crate::journal::{Left, Line, Record, Told, Verdict};

/// A planted fault, and the invariants that the checker must find broken, sorted.
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

/// All of them.
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
    an_order_violation_is_found: overtaken => ["I4"],
    a_start_between_an_earlier_events_attempts_is_found: between_attempts => ["I4"],
    a_redelivery_of_what_had_ended_is_no_order_violation: redelivered => [],
    a_late_end_under_a_lost_lease_is_no_order_violation: ended_late => [],
    who_ended_an_event_may_go_on_while_another_repeats_it: repeated_meanwhile => [],
    a_lease_past_an_open_event_is_found: |h| leases(h, &[(2, "two", "worker")]) => ["I4"],
    a_lease_past_what_another_has_ended_and_not_written_is_found: ended_by_another => ["I4"],
    a_lease_past_what_went_back_is_found: leased_past_a_return => ["I4"],
    a_start_past_what_its_process_has_leased_and_another_has_ended_is_found: leased_along => ["I4"],
    what_has_spent_its_attempts_is_given_up_without_a_start: spent => [],
    what_is_given_up_while_its_last_worker_is_frozen_holds_nothing_up: given_up_beside_a_frozen_worker => [],
    one_statement_may_tell_its_leases_in_any_order: |h| leases(h, &[(2, "one", "worker"), (1, "one", "worker")]) => [],
    a_process_may_lease_behind_its_own: |h| leases(h, &[(1, "one", "worker"), (2, "two", "worker")]) => [],
    a_process_may_lease_past_what_it_loses_in_that_moment: |h| lost(h, "3:3:") => [],
    a_process_may_not_lease_past_what_it_has_lost_before: |h| lost(h, "4:4:") => ["I4"],
    a_loss_that_is_under_way_is_none_before: |h| lost(h, "3:5:3") => [],
    ids_against_the_order_of_commits_are_found: ids_against_commits => ["I4"],
    a_result_of_a_stale_attempt_is_found: |h| h.rows[0].attempts = 2 => ["I5"],
    a_retry_under_a_stale_token_is_found: stale_retry => ["I5"],
    two_holders_of_one_token_are_found: two_holders => ["I6"],
    a_lease_taken_from_its_holder_is_found: lease_taken => ["I6"],
    a_cleanup_under_a_running_lease_is_found: |h| swept(h, true, 5) => ["I7"],
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

/// Three events: 1 and 2 of one group, of which 2 works in its own transaction, and 3 of none.
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
        result_attempt: Some(1),
        without_lease: false,
        replay_of: None,
        removed_early: false,
    }
}

fn change(id: i64) -> LeaseChange {
    LeaseChange {
        id,
        by: "worker".to_owned(),
        transaction: 1,
        snapshot: Some("1:1:".to_owned()),
        was: Some("one".to_owned()),
        was_running: false,
        now: None,
        gone: false,
        attempts: 1,
        max_attempts: 5,
        late: false,
        error_attempt: None,
    }
}

/// Journals and rows agree, but for what is planted.
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

fn ended_late(history: &mut History) {
    retried(history, Verdict::Done, 56);
    history.journals[1].lines[1].at = 90;
}

fn repeated_meanwhile(history: &mut History) {
    retried(history, Verdict::Done, 59);
    history.journals[2].lines[1].at = 62;
}

/// A change of a lease in a transaction of its own, which sees all before it.
fn commit(history: &mut History, change: LeaseChange) {
    let transaction = history.leases.len() as u64 + 2;
    history.leases.push(LeaseChange {
        transaction,
        snapshot: Some(format!("{transaction}:{transaction}:")),
        ..change
    });
}

/// Leases of events by tokens, each of a process, in this order.
fn leases(history: &mut History, leases: &[(i64, &str, &str)]) {
    for (id, token, by) in leases {
        let of_event = |change: &&LeaseChange| change.id == *id;
        let before = history.leases.iter().rfind(of_event);
        let lease = LeaseChange {
            by: (*by).to_owned(),
            was: before.and_then(|change| change.now.clone()),
            now: Some((*token).to_owned()),
            attempts: before.map_or(0, |change| change.attempts) + 1,
            ..change(*id)
        };
        commit(history, lease);
    }
}

/// The journal of the first event's attempt becomes another process's.
fn first_of_another(history: &mut History) {
    let first = history.journals[1].lines.drain(..2).collect();
    history.journals.push(Left {
        name: "other".to_owned(),
        lines: first,
    });
}

fn ended_by_another(history: &mut History) {
    first_of_another(history);
    leases(history, &[(1, "one", "other"), (2, "two", "worker")]);
}

fn leased_past_a_return(history: &mut History) {
    leases(history, &[(1, "one", "other")]);
    commit(history, change(1));
    leases(history, &[(2, "two", "worker")]);
}

fn leased_along(history: &mut History) {
    first_of_another(history);
    history.rows[0].attempts = 2;
    history.rows[0].result_attempt = Some(2);
    let again = [(80, started(1, 2, "a")), (81, ended(1, 2))];
    let again = again.map(|(at, record)| Line { at, record });
    history.journals[1].lines.extend(again);
    leases(
        history,
        &[
            (1, "one", "other"),
            (1, "two", "worker"),
            (2, "two", "worker"),
        ],
    );
}

/// As before, but that event 1 had no attempt left for the worker, who has it written down too late.
fn spent(history: &mut History) {
    first_of_another(history);
    leases(history, &[(1, "one", "other"), (1, "two", "worker")]);
    leases(history, &[(2, "two", "worker")]);
    history.leases[1].attempts = 1;
}

/// The last permitted attempt outlives its lease in a worker that is frozen and tells its end when all is over.
fn given_up_beside_a_frozen_worker(history: &mut History) {
    spent(history);
    let row = &mut history.rows[0];
    "FAILED".clone_into(&mut row.status);
    row.code = Some("abandoned".to_owned());
    row.result_attempt = None;
    history.journals[2].lines[1].at = 90;
}

/// Event 1, leased in transaction 2, is taken over in 3, and 2 is leased by a statement with this snapshot.
fn lost(history: &mut History, snapshot: &str) {
    let taken = [
        (1, "one", "worker"),
        (1, "two", "other"),
        (2, "three", "worker"),
    ];
    leases(history, &taken);
    history.leases[2].snapshot = Some(snapshot.to_owned());
}

fn ids_against_commits(history: &mut History) {
    history.journals[0].lines[0].at = 45;
    history.journals[0].lines[1].at = 48;
}

fn stale_retry(history: &mut History) {
    history.leases.push(LeaseChange {
        attempts: 2,
        error_attempt: Some(1),
        ..change(1)
    });
}

fn two_holders(history: &mut History) {
    history.rows[2].attempts = 2;
    history.rows[2].result_attempt = Some(2);
    second_attempt(history, "other", vec![(70, started(3, 1, "c"))]);
}

fn lease_taken(history: &mut History) {
    history.leases.push(LeaseChange {
        was_running: true,
        now: Some("two".to_owned()),
        ..change(3)
    });
}

fn swept(history: &mut History, running: bool, max_attempts: u32) {
    let row = &mut history.rows[2];
    "FAILED".clone_into(&mut row.status);
    row.code = Some("abandoned".to_owned());
    row.without_lease = true;
    row.result_attempt = None;
    row.attempts = 5;
    history.leases.push(LeaseChange {
        gone: true,
        was_running: running,
        attempts: 5,
        max_attempts,
        ..change(3)
    });
}

fn unrecorded_replay(history: &mut History) {
    history.rows.push(Row {
        replay_of: Some(3),
        ..row(4, "c", None)
    });
}

fn unbalanced(history: &mut History) {
    let report = tidegate::DrainReport {
        leased: 1,
        ..tidegate::DrainReport::default()
    };
    history.journals[1].lines.push(Line {
        at: 90,
        record: Record::Reported { report },
    });
}
