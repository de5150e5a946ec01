//! The drain in this process, on a real Postgres: order, retries, limits, time, faults.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use test_support::probe::{
    Act, Probe, ProbeApp, act, drain, end_of, live, number, options, pair, probe, probe_database,
    publish, publish_acts,
};
use test_support::{self as support, Proxy, column, counted, execute, wait_for_a_lock, wait_until};
use tidegate::migrate::{Migrate, StoredSettings};
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, Event, HandlerError, Handlers, NewEvent,
    StopReason, Verdicts,
};
use tidegate_core::queue;
use tokio::sync::{Notify, watch};

/// One handler at a time.
fn sequential() -> DrainOptions {
    DrainOptions {
        concurrency: 1,
        ..options()
    }
}

#[tokio::test]
async fn a1_a9_a14_b19_b20_b28_an_event_waits_for_a_drain_and_leaves_the_queue_only_when_handled() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (inside, witness) = (client.clone(), seen.clone());
    let app = ProbeApp::new(move |_, _| {
        let (inside, witness) = (inside.clone(), witness.clone());
        Box::pin(async move {
            let state = inside
                .query_one("SELECT status, attempts FROM tidegate.events", &[])
                .await
                .unwrap();
            witness
                .lock()
                .unwrap()
                .push((state.get::<_, String>(0), state.get::<_, i32>(1)));
            Ok(Done::ok())
        })
    });
    let id = publish_acts(&client, 1).await[0];
    assert!(app.calls().is_empty());
    let report = drain(&db, &app, &options()).await;
    assert_eq!(
        (report.leased, report.completed, report.backlog),
        (1, 1, Some(0))
    );
    assert_eq!(report.stop_reason, StopReason::QueueEmpty);
    assert_eq!(*seen.lock().unwrap(), [("PROCESSING".to_owned(), 1)]);
    assert_eq!(live(&client).await, 0);
    assert_eq!(end_of(&client, id).await, "COMPLETED 1");
}

#[tokio::test]
async fn a2_a4_a5_one_handler_at_a_time_runs_mixed_kinds_in_id_order() {
    let (db, client) = probe().await;
    let mut events = Vec::new();
    for n in 0..60 {
        events.push(if n % 3 == 0 {
            NewEvent::of(&Probe::Note(())).unwrap()
        } else {
            act("x")
        });
    }
    let published: Vec<i64> = queue::publish_batch(&client, &events)
        .await
        .unwrap()
        .iter()
        .map(|published| published.id)
        .collect();
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &sequential()).await;
    assert_eq!(app.ids(), published, "{report:?}");
}

/// Leases that end while the next is taken, group after group, in small steps.
#[tokio::test]
async fn a2_e7_one_handler_at_a_time_keeps_the_order_of_all_whatever_their_groups() {
    let (db, client) = probe().await;
    let events: Vec<NewEvent> = (0..600)
        .map(|n| match n % 4 {
            0 => act("alone"),
            group => act("grouped").group(format!("g{group}")),
        })
        .collect();
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let published: Vec<i64> = published.iter().map(|published| published.id).collect();
    let app = ProbeApp::succeeding();
    let small_steps = DrainOptions {
        batch: 4,
        ..sequential()
    };
    let report = drain(&db, &app, &small_steps).await;
    assert_eq!(app.ids(), published, "{report:?}");
}

#[tokio::test]
async fn a5_an_old_event_to_be_retried_runs_before_newer_ones_once_it_is_due() {
    let (db, client) = probe().await;
    let published = publish_acts(&client, 40).await;
    let app = ProbeApp::doing(|call| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if call.name == "0" && call.attempt == 1 {
            return Err(HandlerError::retry("down", "not yet"));
        }
        Ok(Done::ok())
    });
    let options = DrainOptions {
        batch: 2,
        ..sequential()
    };
    let report = drain(&db, &app, &options).await;
    counted(&report, "leased 41, completed 40, retried 1");
    let ids = app.ids();
    let second_try = ids.iter().rposition(|id| *id == published[0]).unwrap();
    assert!(
        second_try > 0 && second_try < 30,
        "it came {second_try}th of 41"
    );
}

#[tokio::test]
async fn a8_one_bad_row_harms_only_itself() {
    let (db, client) = probe().await;
    let deep = format!("{}{}", "[".repeat(3000), "]".repeat(3000));
    let insert = format!(
        "INSERT INTO tidegate.event_queue (kind, payload, kind_known) VALUES
         ('act', '{{\"name\": \"good\"}}', true), ('act', '{{\"name\": 7}}', true), ('act', '\"text\"', true), ('act', NULL, true),
         ('act', '{deep}', true), ('heard by nobody', '{{}}', true), ('note', NULL, true), ('act', '{{\"name\": \"last\"}}', true)
         RETURNING id"
    );
    let ids: Vec<i64> = client
        .query(&insert, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &sequential()).await;
    assert_eq!((report.leased, report.completed, report.failed), (8, 3, 5));
    let found = app.ids();
    assert_eq!(found, [ids[0], ids[6], ids[7]], "no handler saw a bad one");
    for bad in &ids[1..5] {
        assert_eq!(end_of(&client, *bad).await, "FAILED 0 undecodable");
    }
    assert_eq!(end_of(&client, ids[5]).await, "FAILED 0 no_handler");
}

#[tokio::test]
async fn a9_a11_a15_b8_b24_c14_d12_a_failing_event_tells_its_faults_while_it_waits_and_ends_failed_with_all_of_them()
 {
    let (db, client) = probe().await;
    let id = publish(&client, [act("x").max_attempts(3)]).await[0];
    let app = ProbeApp::doing(|call| async move {
        Err(HandlerError::retry("down", format!("try {}", call.attempt))
            .after(Duration::from_secs(1)))
    });
    let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
    for attempt in 1..=2 {
        let report = drain(&db, &app, &options()).await;
        assert_eq!(
            (report.leased, report.retried, report.backlog),
            (1, 1, Some(1))
        );
        let row = client
            .query_one("SELECT status, attempts, last_error, jsonb_array_length(errors) FROM tidegate.events", &[])
            .await
            .unwrap();
        let found = (row.get::<_, &str>(0), row.get::<_, i32>(1));
        assert_eq!(found, ("PENDING", attempt));
        assert_eq!(row.get::<_, String>(2), format!("down: try {attempt}"));
        assert_eq!(row.get::<_, i32>(3), attempt);
        client.execute(due, &[]).await.unwrap();
    }
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.failed, report.backlog), (1, Some(0)));
    let end = "FAILED 3 down down down attempts_exhausted";
    assert_eq!(end_of(&client, id).await, end);
    let kept = "SELECT count(*) FROM tidegate.event_log, jsonb_array_elements(errors) AS e
                 WHERE payload->>'name' = 'x' AND e ? 'at' AND finished_at >= created_at";
    let seen = number(&client, kept).await;
    assert_eq!(seen, 4, "payload, times and every error are kept");
}

#[tokio::test]
async fn a10_the_last_error_its_code_and_its_time_can_be_read_while_the_event_waits() {
    let (db, client) = probe().await;
    queue::publish(&client, &act("x")).await.unwrap();
    let app = ProbeApp::new(|call, _| {
        let code = ["code_1", "code_2"][usize::from(call.attempt > 1)];
        Box::pin(async move {
            Err(HandlerError::retry(code, "try again").after(Duration::from_hours(1)))
        })
    });
    for attempt in 1..=2 {
        let clock = "SELECT clock_timestamp()";
        let before: SystemTime = client.query_one(clock, &[]).await.unwrap().get(0);
        let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
        client.execute(due, &[]).await.unwrap();
        drain(&db, &app, &options()).await;
        let after: SystemTime = client.query_one(clock, &[]).await.unwrap().get(0);

        let waits = "SELECT status, last_error, errors->-1->>'code', (errors->-1->>'at')::timestamptz, updated_at
                       FROM tidegate.events";
        let row = client.query_one(waits, &[]).await.unwrap();
        let text = |at: usize| row.get::<_, String>(at);
        let code = format!("code_{attempt}");
        let told = format!("{code}: try again");
        let found = (text(0), text(1), text(2));
        assert_eq!(found, ("PENDING".to_owned(), told, code));
        let at: SystemTime = row.get(3);
        assert!(
            (before..=after).contains(&at),
            "{at:?} of {before:?} to {after:?}"
        );
        let seen = row.get::<_, SystemTime>(4);
        assert_eq!(seen, at, "the row was last touched then");
    }
}

#[tokio::test]
async fn b6_the_attempt_limit_gives_exactly_that_many_calls() {
    for limit in [1_u16, 3, 5] {
        let (db, client) = probe().await;
        publish(&client, [act("x").max_attempts(limit)]).await;
        let app =
            ProbeApp::new(|_, _| Box::pin(async { Err(HandlerError::retry("down", "again")) }));
        let report = drain(&db, &app, &options()).await;
        assert_eq!(app.calls().len(), usize::from(limit));
        assert_eq!((report.failed, report.retried), (1, u64::from(limit) - 1));
    }
}

/// The number of attempts is one for all kinds, unless a kind declares its own.
#[tokio::test]
async fn b7_the_limit_of_attempts_is_that_of_all_kinds_unless_a_policy_gives_one_its_own() {
    let (db, client) = probe().await;
    let database = db.database();
    let limited = Migrate::new(Probe::KINDS).stored(StoredSettings {
        max_attempts: Some(2),
        ..StoredSettings::default()
    });
    limited.run(&database).await.unwrap();
    let note = NewEvent::of(&Probe::Note(())).unwrap();
    queue::publish_batch(&client, &[act("x"), pair("x"), note])
        .await
        .unwrap();
    let limits = "SELECT count(DISTINCT kind) FROM tidegate.event_queue WHERE max_attempts = 2";
    assert_eq!(number(&client, limits).await, 3);
    let app = ProbeApp::new(|_, _| Box::pin(async { Err(HandlerError::retry("down", "again")) }));
    drain(&db, &app, &options()).await;
    for handler in ["act", "first", "second"] {
        let calls = app.calls();
        let runs = calls.iter().filter(|call| call.handler == handler);
        assert_eq!(runs.count(), 2, "{handler}");
    }
    let flaky = r#"SELECT tidegate.register_kind('note', '{"max_attempts": 7}')"#;
    execute(&client, flaky).await;
    let note = NewEvent::of(&Probe::Note(())).unwrap();
    let published = queue::publish_batch(&client, &[act("x"), note]).await;
    let limits = "SELECT max_attempts::bigint FROM tidegate.event_queue WHERE id = $1";
    for (event, limit) in published.unwrap().iter().zip([2_i64, 7]) {
        let row = client.query_one(limits, &[&event.id]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), limit);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_b5_b17_b18_c1_two_overlapping_drains_handle_a_thousand_events_once_each() {
    let (db, client) = probe().await;
    let published: HashSet<i64> = publish_acts(&client, 1000).await.into_iter().collect();
    // Nobody runs away with everything: each waits until both are at work.
    let (at_work, both) = watch::channel(0);
    let at_work = Arc::new(at_work);
    let worker = || {
        let (at_work, both) = (at_work.clone(), both.clone());
        let first = Arc::new(std::sync::Once::new());
        ProbeApp::new(move |_, _| {
            first.call_once(|| at_work.send_modify(|workers| *workers += 1));
            let mut both = both.clone();
            Box::pin(async move {
                both.wait_for(|workers| *workers == 2).await.retryable()?;
                Ok(Done::ok())
            })
        })
    };
    let (left, right) = (worker(), worker());
    // Nor with what it leases before the other one has come: less than a third.
    let options = DrainOptions {
        batch: 100,
        ..options()
    };
    let (one, two) = tokio::join!(drain(&db, &left, &options), drain(&db, &right, &options));
    assert_eq!(one.completed + two.completed, 1000);
    assert_eq!((one.lease_lost, two.lease_lost), (0, 0));
    let ids: Vec<i64> = left.ids().into_iter().chain(right.ids()).collect();
    assert_eq!(ids.len(), 1000);
    assert_eq!(ids.into_iter().collect::<HashSet<_>>(), published);
}

#[tokio::test]
async fn a17_follow_ups_appear_only_when_their_parent_ends_all_of_them_and_once() {
    let (db, client) = probe().await;
    let parent = publish(&client, [act("parent").correlation("order-7")]).await[0];
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.name == "parent" {
                for name in ["one", "two"] {
                    ctx.emit(&Probe::Act(Act {
                        name: name.to_owned(),
                    }))?;
                }
                if call.attempt == 1 {
                    return Err(HandlerError::retry("down", "after emitting"));
                }
            }
            Ok(Done::ok())
        })
    });
    let one = DrainOptions {
        max_events: Some(1),
        ..sequential()
    };
    let report = drain(&db, &app, &one).await;
    let found = (report.retried, report.published, report.stop_reason);
    assert_eq!(found, (1, 0, StopReason::LimitReached));
    let seen = live(&client).await;
    assert_eq!(seen, 1, "the failed attempt published nothing");
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.published), (3, 2));
    let children =
        "SELECT count(*) FROM tidegate.event_log WHERE correlation_id = 'order-7' AND parent_id = ";
    assert_eq!(
        number(&client, &format!("{children}{parent}")).await,
        2,
        "A6: the correlation id is inherited"
    );
}

#[tokio::test]
async fn b10_e7_a_group_keeps_its_order_under_concurrency_and_retry_and_others_pass() {
    let (db, client) = probe().await;
    let events: Vec<NewEvent> = (0..200)
        .map(|n| act(&n.to_string()).group(format!("g{}", n % 5)))
        .collect();
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let app = ProbeApp::doing(|call| async move {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await;
        // Every seventh event fails once.
        if call.name.parse::<usize>().is_ok_and(|n| n % 7 == 3) && call.attempt == 1 {
            return Err(HandlerError::retry("down", "once").after(Duration::from_millis(20)));
        }
        Ok(Done::ok())
    });
    let lingering = DrainOptions {
        linger: Duration::from_millis(300),
        batch: 20,
        ..options()
    };
    let report = drain(&db, &app, &lingering).await;
    assert_eq!(
        (report.completed, report.backlog),
        (200, Some(0)),
        "{report:?}"
    );
    for group in 0..5 {
        let expected: Vec<i64> = published
            .iter()
            .skip(group)
            .step_by(5)
            .map(|published| published.id)
            .collect();
        let mut started: Vec<i64> = app
            .calls()
            .iter()
            .filter(|call| call.name.parse::<usize>().unwrap() % 5 == group)
            .map(|call| call.id)
            .collect();
        // A retried event is started twice in a row; nothing of its group comes between.
        started.dedup();
        assert_eq!(started, expected, "group {group}");
    }
}

#[tokio::test]
async fn b27_a_groups_events_are_handled_in_their_order_whatever_batches_they_come_in() {
    for (published_by, leased_by) in [(1, 7), (7, 1), (3, 2), (60, 60)] {
        let (db, client) = probe().await;
        let events: Vec<NewEvent> = (0..60)
            .map(|n| match n % 4 {
                0 => act(&n.to_string()),
                _ => pair(&n.to_string()).group(format!("g{}", n % 4)),
            })
            .collect();
        for batch in events.chunks(published_by) {
            queue::publish_batch(&client, batch).await.unwrap();
        }
        let app = ProbeApp::doing(|call| async move {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await;
            let turn: usize = call.name.parse().unwrap_or_default();
            if turn % 9 == 5 && call.attempt == 1 && call.handler == "second" {
                return Err(HandlerError::retry("down", "once"));
            }
            Ok(Done::ok())
        });
        let batches = DrainOptions {
            batch: leased_by,
            linger: Duration::from_millis(300),
            ..options()
        };
        let report = drain(&db, &app, &batches).await;
        assert_eq!(
            (report.completed, report.backlog),
            (60, Some(0)),
            "{report:?}"
        );
        let calls = app.calls();
        for group in 1..4 {
            let turns = calls.iter().map(|call| call.name.parse::<usize>().unwrap());
            let turns: Vec<usize> = turns.filter(|turn| turn % 4 == group).collect();
            assert!(
                turns.is_sorted(),
                "{published_by}, {leased_by}: group {group}: {turns:?}"
            );
            assert!(turns.len() > 30, "both handlers of each, and some again");
        }
    }
}

#[tokio::test]
async fn a_page_of_blocked_events_does_not_hide_a_ready_one_behind_it() {
    let (db, client) = probe().await;
    let head = queue::publish(
        &client,
        &act("head").group("g").delay(Duration::from_hours(1)),
    )
    .await
    .unwrap();
    let blocked: Vec<NewEvent> = (0..3000).map(|_| act("blocked").group("g")).collect();
    queue::publish_batch(&client, &blocked).await.unwrap();
    let ready = queue::publish(&client, &act("ready")).await.unwrap().id;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [ready]);
    assert_eq!((report.completed, report.backlog), (1, Some(3001)));
    assert_eq!(report.stop_reason, StopReason::QueueEmpty);
    let view = client
        .query_one("SELECT head_id, waiting FROM tidegate.blocked_groups", &[])
        .await
        .unwrap();
    let found = (view.get::<_, i64>(0), view.get::<_, i64>(1));
    // Those behind it are counted up to 1,000.
    assert_eq!(found, (head.id, 1000));
}

#[tokio::test]
async fn b12_e11_handlers_overlap_up_to_the_concurrency_and_not_at_all_with_one() {
    for concurrency in [1, 4] {
        let (db, client) = probe().await;
        publish_acts(&client, 12).await;
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now, peak) = (running.clone(), most.clone());
        let app = ProbeApp::new(move |_, _| {
            let (now, peak) = (now.clone(), peak.clone());
            Box::pin(async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Done::ok())
            })
        });
        let options = DrainOptions {
            concurrency,
            ..options()
        };
        drain(&db, &app, &options).await;
        assert_eq!(most.load(Ordering::SeqCst), concurrency);
    }
}

#[tokio::test]
async fn b13_an_expired_event_is_never_handed_to_a_handler_and_is_counted() {
    let (db, client) = probe().await;
    let late = publish(
        &client,
        [act("late").start_within(Duration::from_millis(1))],
    )
    .await[0];
    let soon = publish(&client, [act("soon").start_within(Duration::from_mins(1))]).await[0];
    tokio::time::sleep(Duration::from_millis(5)).await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [soon]);
    assert_eq!((report.leased, report.completed, report.expired), (1, 1, 1));
    assert_eq!(end_of(&client, late).await, "FAILED 0 expired");
}

#[tokio::test]
async fn b13_a_drain_tells_how_many_events_that_it_leaves_will_expire() {
    let (db, client) = probe().await;
    let soon = [1, 2].map(|minutes| act("soon").start_within(Duration::from_mins(minutes)));
    queue::publish_batch(&client, &soon).await.unwrap();
    let paused = "UPDATE tidegate.event_kind SET paused = $1 WHERE kind = 'act'";
    client.execute(paused, &[&true]).await.unwrap();
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.backlog, report.expiring), (Some(2), 2));
    client.execute(paused, &[&false]).await.unwrap();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.expiring), (2, 0));
}

#[tokio::test]
async fn b16_c10_a_slow_handler_is_cut_by_its_limit_while_others_run() {
    let (db, client) = probe().await;
    let slow = publish(&client, [act("slow").max_attempts(1)]).await[0];
    publish_acts(&client, 20).await;
    let app = ProbeApp::doing(|call| async move {
        if call.name == "slow" {
            std::future::pending::<()>().await;
        }
        Ok(Done::ok())
    });
    let limited = DrainOptions {
        handler_timeout: Duration::from_millis(300),
        concurrency: 2,
        ..options()
    };
    let report = drain(&db, &app, &limited).await;
    assert_eq!((report.completed, report.failed), (20, 1));
    let told = format!("SELECT errors->0->>'message' FROM tidegate.event_log WHERE id = {slow}");
    let found = column::<String>(&client, &told).await;
    assert_eq!(found, ["the handler took longer than its limit of 300.0ms"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_is_given_up_on_and_others_run() {
    let (db, client) = probe().await;
    let blocking = publish(&client, [act("blocking").max_attempts(1)]).await[0];
    publish_acts(&client, 10).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let app = ProbeApp::new(move |call, _| {
        if call.name == "blocking" {
            // Until the test is over.
            let _ = released.lock().unwrap().recv();
        }
        Box::pin(async { Ok(Done::ok()) })
    });
    let limited = DrainOptions {
        handler_timeout: Duration::from_millis(200),
        ..options()
    };
    let report = support::ended("a drain", drain(&db, &app, &limited)).await;
    assert_eq!((report.completed, report.failed), (10, 1));
    assert_eq!(report.still_running, 1, "who drains again is warned");
    let end = "FAILED 1 timeout attempts_exhausted";
    assert_eq!(end_of(&client, blocking).await, end);
    drop(release);
}

#[tokio::test]
async fn d10_panic_error_and_rejection_each_end_as_they_should_and_the_next_event_runs() {
    let (db, client) = probe().await;
    let mut ids = Vec::new();
    for name in ["panic", "error", "reject", "list", "good"] {
        ids.push(
            queue::publish(&client, &act(name).max_attempts(1))
                .await
                .unwrap()
                .id,
        );
    }
    let app = ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "panic" => panic!("out of order"),
            "error" => Err(std::io::Error::other("no answer")).retryable()?,
            "reject" => None::<()>.reject("404")?,
            "list" => {
                return Err(HandlerError::reject_all(vec![
                    tidegate::Fault::new("422", "field a"),
                    tidegate::Fault::new("422", "field b"),
                ]));
            }
            _ => {}
        }
        Done::with(&"done")
    });
    let report = drain(&db, &app, &sequential()).await;
    counted(&report, "completed 1, completed_with_errors 2, failed 2");
    // C8: the whole list is stored.
    let ends = [
        "FAILED 1 panic attempts_exhausted",
        "FAILED 1 error attempts_exhausted",
        "COMPLETED_WITH_ERRORS 1 404",
        "COMPLETED_WITH_ERRORS 1 422 422",
    ];
    for (id, end) in ids.iter().zip(ends) {
        assert_eq!(end_of(&client, *id).await, end);
    }
    let result = "SELECT count(*) FROM tidegate.event_log WHERE result = '{\"act\": \"done\"}'";
    assert_eq!(number(&client, result).await, 1);
}

#[tokio::test]
async fn b4_c10_a16_a19_of_two_handlers_only_the_one_that_failed_runs_again() {
    let (db, client) = probe().await;
    let id = queue::publish(&client, &pair("x")).await.unwrap().id;
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.handler == "first" {
                ctx.emit(&Probe::Note(()))?;
                return Done::with(&1);
            }
            if call.attempt < 3 {
                return Err(HandlerError::retry("down", "second is down"));
            }
            Done::with(&2)
        })
    });
    let report = drain(&db, &app, &options()).await;
    counted(&report, "completed 2, retried 2, published 1");
    let handlers: Vec<&str> = app.calls().iter().map(|call| call.handler).collect();
    assert_eq!(handlers, ["first", "second", "second", "second", "note"]);
    let result =
        "SELECT count(*) FROM tidegate.event_log WHERE result = '{\"first\": 1, \"second\": 2}'";
    assert_eq!(number(&client, result).await, 1);
    assert_eq!(end_of(&client, id).await, "COMPLETED 3 down down");
}

#[tokio::test]
async fn a_final_error_of_one_handler_does_not_undo_the_other() {
    let (db, client) = probe().await;
    let id = queue::publish(&client, &pair("x")).await.unwrap().id;
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.handler == "first" {
                return Err(HandlerError::reject("409", "first refuses"));
            }
            ctx.emit(&Probe::Note(()))?;
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &options()).await;
    counted(&report, "completed_with_errors 1, completed 1, published 1");
    assert_eq!(end_of(&client, id).await, "COMPLETED_WITH_ERRORS 1 409");
}

#[tokio::test]
async fn a_step_runs_once_even_when_its_handler_is_retried() {
    let (db, client) = probe().await;
    queue::publish(&client, &act("x")).await.unwrap();
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = steps.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let counted = counted.clone();
        Box::pin(async move {
            let receipt: String = ctx
                .once("send", async move {
                    counted.fetch_add(1, Ordering::SeqCst);
                    Ok("receipt-1".to_owned())
                })
                .await?;
            assert_eq!(receipt, "receipt-1");
            if call.attempt < 3 {
                return Err(HandlerError::retry("down", "after the step"));
            }
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.retried), (1, 2));
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn e12_a_transaction_commits_the_handlers_writes_with_the_completion_or_not_at_all() {
    let (db, client) = probe().await;
    execute(&client, "CREATE TABLE effect (id bigint, attempt bigint)").await;
    let id = queue::publish(&client, &act("x")).await.unwrap().id;
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            let attempt = i64::from(call.attempt);
            transaction
                .execute("INSERT INTO effect VALUES ($1, $2)", &[&call.id, &attempt])
                .await
                .retryable()?;
            if call.attempt == 1 {
                return Err(HandlerError::retry("down", "after the first write"));
            }
            ctx.emit(&Probe::Note(()))?;
            transaction.complete(Done::with(&"booked")?).await
        })
    });
    let report = drain(&db, &app, &options()).await;
    counted(&report, "completed 2, retried 1, published 1");
    assert_eq!(
        number(&client, "SELECT sum(attempt)::bigint FROM effect").await,
        2,
        "only the second attempt's write is there"
    );
    assert_eq!(end_of(&client, id).await, "COMPLETED 2 down");
}

#[tokio::test]
async fn a_transaction_under_a_lost_lease_commits_nothing() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    execute(&*client, "CREATE TABLE effect (id bigint)").await;
    queue::publish(&*client, &act("x")).await.unwrap();
    let operator = client.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let operator = operator.clone();
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            transaction
                .execute("INSERT INTO effect VALUES ($1)", &[&call.id])
                .await
                .retryable()?;
            if call.attempt == 1 {
                operator
                    .execute("UPDATE tidegate.events SET status = 'PENDING'", &[])
                    .await
                    .retryable()?;
            }
            transaction.complete(Done::ok()).await
        })
    });
    let report = drain(&db, &app, &options()).await;
    counted(&report, "leased 2, lease_lost 1, completed 1");
    assert_eq!(number(&client, "SELECT count(*) FROM effect").await, 1);
}

#[tokio::test]
async fn a_transaction_that_a_handler_leaves_open_is_no_other_events() {
    for left_open in ["INSERT INTO effect VALUES (0)", "SELECT 1 / 0"] {
        let (db, client) = probe().await;
        execute(&client, "CREATE TABLE effect (id bigint)").await;
        for name in ["leaves", "has its own", "leaves", "has its own"] {
            publish(&client, [act(name).max_attempts(1)]).await;
        }
        let app = ProbeApp::new(move |call, ctx| {
            Box::pin(async move {
                if call.name == "leaves" {
                    let connection = ctx.connection().await?;
                    let _ = connection.batch_execute("BEGIN").await;
                    let _ = connection.batch_execute(left_open).await;
                    return Err(HandlerError::reject("no", "and no COMMIT"));
                }
                let transaction = ctx.transaction().await?;
                let effect = "INSERT INTO effect VALUES (1)";
                transaction.batch_execute(effect).await.retryable()?;
                transaction.complete(Done::ok()).await
            })
        });
        let one_connection = DrainOptions {
            concurrency: 1,
            ..options()
        };
        let database = Database::new(&db.url, 1).unwrap();
        let report = tidegate::drain(&database, app, &one_connection)
            .await
            .unwrap();
        counted(&report, "completed 2, completed_with_errors 2");
        assert_eq!(number(&client, "SELECT count(*) FROM effect").await, 2);
        assert_eq!(
            number(&client, "SELECT min(id) FROM effect").await,
            1,
            "what was rejected left nothing"
        );
    }
}

#[tokio::test]
async fn a_transaction_that_fails_costs_no_connection() {
    if support::cannot_be_pooled("a pooler's sessions serve one client after another") {
        return;
    }
    let (db, client) = probe().await;
    for name in ["fails", "fails", "succeeds"] {
        publish(&client, [act(name).max_attempts(1)]).await;
    }
    let sessions = Arc::new(Mutex::new(HashSet::new()));
    let seen = sessions.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let seen = seen.clone();
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            let session = number(&transaction, "SELECT pg_backend_pid()::bigint").await;
            seen.lock().unwrap().insert(session);
            if call.name == "fails" {
                transaction
                    .batch_execute("SELECT 1 / 0")
                    .await
                    .reject("no")?;
            }
            transaction.complete(Done::ok()).await
        })
    });
    let one_connection = DrainOptions {
        concurrency: 1,
        ..options()
    };
    let database = Database::new(&db.url, 1).unwrap();
    let report = tidegate::drain(&database, app, &one_connection)
        .await
        .unwrap();
    counted(&report, "completed 1, completed_with_errors 2");
    assert_eq!(sessions.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn both_handlers_of_an_event_may_have_a_transaction() {
    let (db, client) = probe().await;
    execute(&client, "CREATE TABLE effect (handler text)").await;
    queue::publish(&client, &pair("x")).await.unwrap();
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            transaction
                .execute("INSERT INTO effect VALUES ($1)", &[&call.handler])
                .await
                .retryable()?;
            if call.handler == "second" && call.attempt == 1 {
                return Err(HandlerError::retry("down", "second fails once"));
            }
            transaction.complete(Done::ok()).await
        })
    });
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.retried), (1, 1));
    let handlers: Vec<&str> = app.calls().iter().map(|call| call.handler).collect();
    assert_eq!(handlers, ["first", "second", "second"]);
    assert_eq!(number(&client, "SELECT count(*) FROM effect").await, 2);
}

#[tokio::test]
async fn f2_a_spent_budget_gives_back_what_has_not_started_with_its_attempt() {
    let (db, client) = probe().await;
    publish_acts(&client, 200).await;
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Done::ok())
        })
    });
    let short = DrainOptions {
        budget: Duration::from_secs(4),
        concurrency: 4,
        ..options()
    };
    let report = drain(&db, &app, &short).await;
    assert_eq!(report.stop_reason, StopReason::BudgetSpent);
    assert!(report.completed > 0 && report.released > 0, "{report:?}");
    assert_eq!(report.backlog, Some(200 - report.completed));
    let clean = "SELECT count(*) FROM tidegate.events WHERE attempts = 0 AND status = 'PENDING' AND lease_token IS NULL";
    assert_eq!(
        number(&client, clean).await,
        // What ran longer than ever before may have been cut.
        i64::try_from(200 - report.completed - report.retried).unwrap()
    );
}

#[tokio::test]
async fn f2_a_slow_kind_that_there_is_no_time_for_does_not_end_the_run_for_quick_ones() {
    let (db, client) = probe().await;
    let slow = publish_acts(&client, 2).await;
    let quick: Vec<NewEvent> = (0..20)
        .map(|_| NewEvent::of(&Probe::Note(())).unwrap())
        .collect();
    queue::publish_batch(&client, &quick).await.unwrap();
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(Done::ok())
        })
    });
    let short = DrainOptions {
        budget: Duration::from_secs(10),
        ..sequential()
    };
    let report = drain(&db, &app, &short).await;
    assert_eq!(
        (report.completed, report.backlog),
        (21, Some(1)),
        "{report:?}"
    );
    assert_eq!(report.stop_reason, StopReason::BudgetSpent);
    assert!(app.ids().contains(&slow[0]) && !app.ids().contains(&slow[1]));
    let sql = "SELECT sum(attempts) FROM tidegate.event_queue";
    assert_eq!(number(&client, sql).await, 0);
}

#[tokio::test]
async fn a_slow_kind_among_thousands_of_quick_events_does_not_shrink_their_leases_for_long() {
    let (db, client) = probe().await;
    let mixed: Vec<NewEvent> = (0..5000)
        .map(|n| match n % 100 {
            0 => act("slow"),
            _ => NewEvent::of(&Probe::Note(())).unwrap(),
        })
        .collect();
    queue::publish_batch(&client, &mixed).await.unwrap();
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &options()).await;
    assert_eq!(
        (report.completed, report.backlog),
        (5000, Some(0)),
        "{report:?}"
    );
    // Leases no larger than the handlers that run at once would be 625.
    println!("{} leases", report.batches);
    assert!(report.batches < 300, "{report:?}");
}

/// Whoever publishes an event sets its attempts, and each costs a worker.
#[tokio::test]
async fn an_event_whose_workers_went_away_ten_times_in_a_row_ends_failed() {
    let (db, client) = probe().await;
    let app = ProbeApp::succeeding();
    for (lapses, expected) in [(9, "COMPLETED 10"), (10, "FAILED 10")] {
        let event = act("x").max_attempts(1000);
        let id = queue::publish(&client, &event).await.unwrap().id;
        let lapsed = "UPDATE tidegate.event_queue SET lapses = $1, attempts = $1";
        client.execute(lapsed, &[&lapses]).await.unwrap();
        drain(&db, &app, &options()).await;
        let end = end_of(&client, id).await;
        assert!(end.starts_with(expected), "{end}");
    }
    assert_eq!(app.calls().len(), 1);
}

#[tokio::test]
async fn d11_an_empty_queue_ends_the_run_after_a_look_or_a_few_and_without_a_spin() {
    let db = probe_database().await;
    let app = ProbeApp::succeeding();
    // Pauses of 5 to 200 ms: some twelve leases in two seconds, and a spin has thousands. A drain that does
    // not linger sees that there is nothing to do before it takes a slot.
    for (linger, looks) in [(Duration::ZERO, 0..=0), (Duration::from_secs(2), 3..=30)] {
        let proxy = Proxy::before(&db.url).await;
        let url = proxy.url(db.name());
        let database = Database::new(&url, 2).unwrap();
        let options = DrainOptions {
            linger,
            ..options()
        };
        let report = tidegate::drain(&database, app.clone(), &options)
            .await
            .unwrap();
        assert_eq!(report.stop_reason, StopReason::QueueEmpty, "{report:?}");
        assert_eq!((report.leased, report.backlog), (0, Some(0)));
        let said = String::from_utf8_lossy(&proxy.said()).into_owned();
        let looked = said.matches("FROM tidegate.lease($1").count();
        assert!(looks.contains(&looked), "{linger:?}: {looked} looks");
        for other in ["tidegate.sweep(", "tidegate.leave_slot("] {
            assert_eq!(said.contains(other), looked > 0, "{other}: {said}");
        }
        assert_eq!(said.matches("tidegate.note_run(").count(), 1, "{said}");
    }
}

#[tokio::test]
async fn what_is_committed_late_behind_a_run_that_lingers_is_handled_while_it_lingers() {
    let (db, client) = probe().await;
    let mut publisher = db.client().await;
    let transaction = publisher.transaction().await.unwrap();
    queue::publish(&transaction, &act("late")).await.unwrap();
    queue::publish(&client, &act("early")).await.unwrap();
    let app = ProbeApp::succeeding();
    let lingering = DrainOptions {
        budget: Duration::from_hours(1),
        linger: Duration::from_hours(1),
        ..options()
    };
    let publishing = async {
        wait_until("the early one", async || app.calls().len() == 1).await;
        transaction.commit().await.unwrap();
        wait_until("the late one", async || app.calls().len() == 2).await;
    };
    tokio::select! {
        report = drain(&db, &app, &lingering) => panic!("it ended: {report:?}"),
        () = publishing => {}
    }
    let names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["early", "late"]);
}

#[tokio::test]
async fn leases_are_renewed_while_handlers_outlast_them() {
    let (db, client) = probe().await;
    queue::publish(&client, &pair("x")).await.unwrap();
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            Ok(Done::ok())
        })
    });
    let short_lease = DrainOptions {
        lease_timeout: Duration::from_secs(1),
        handler_timeout: Duration::from_millis(900),
        ..options()
    };
    let lingering = DrainOptions {
        linger: Duration::from_millis(1600),
        ..short_lease.clone()
    };
    let other = ProbeApp::succeeding();
    let (report, idle) = tokio::join!(drain(&db, &app, &short_lease), async {
        wait_until("the first drain has it", async || !app.calls().is_empty()).await;
        drain(&db, &other, &lingering).await
    });
    assert_eq!((report.completed, report.lease_lost), (1, 0));
    assert_eq!(idle.leased, 0, "nobody else took it");
}

#[tokio::test]
async fn a_requeue_of_a_groups_head_releases_the_leased_events_behind_it() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let events: Vec<NewEvent> = (0..6).map(|n| act(&n.to_string()).group("g")).collect();
    queue::publish_batch(&*client, &events).await.unwrap();
    let operator = client.clone();
    let app = ProbeApp::new(move |call, _| {
        let operator = operator.clone();
        Box::pin(async move {
            if call.name == "0" && call.attempt == 1 {
                let requeue = "UPDATE tidegate.events SET status = 'PENDING' WHERE id = $1";
                operator.execute(requeue, &[&call.id]).await?;
            }
            if call.name == "1" {
                // If it was started before the loss was found out, it runs until then: the first is leased
                // anew.
                let again = "SELECT count(*) FROM tidegate.events
                              WHERE status = 'PROCESSING' AND payload->>'name' = '0' AND attempts > 0";
                let ended = "SELECT count(*) FROM tidegate.event_log WHERE payload->>'name' = '0'";
                while number(&operator, again).await + number(&operator, ended).await == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &options()).await;
    // All that stood behind it left the lease with it.
    assert_eq!((report.completed, report.lease_lost), (6, 6), "{report:?}");
    let mut names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    // One event may have been started before the loss was found out; the others came behind.
    if names[1] == "1" {
        names.remove(1);
    }
    assert_eq!(names, ["0", "0", "1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn i4_a_rejection_sends_nothing_back_that_stands_behind_it() {
    let (db, client) = probe().await;
    let events: Vec<NewEvent> = (0..2000).map(|n| act(&n.to_string()).group("g")).collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let app = ProbeApp::new(|call, _| {
        let odd = call.name.parse::<u32>().unwrap() % 10 == 1;
        Box::pin(async move {
            if odd {
                return Err(HandlerError::reject("odd", "because"));
            }
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &DrainOptions::default()).await;
    let ended = (report.completed, report.completed_with_errors);
    assert_eq!((ended, report.released), ((1800, 200), 0), "{report:?}");
    let ran: Vec<u32> = app
        .calls()
        .into_iter()
        .map(|call| call.name.parse().unwrap())
        .collect();
    assert_eq!(ran, (0..2000).collect::<Vec<_>>());
}

#[tokio::test]
async fn i4_what_an_operator_takes_from_behind_an_event_that_is_retried_does_not_start_before_it() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let events: Vec<NewEvent> = (0..3).map(|n| act(&n.to_string()).group("g")).collect();
    let ids = queue::publish_batch(&*client, &events).await.unwrap();
    let behind = ids[1].id;
    let operator = client.clone();
    let app = ProbeApp::new(move |call, _| {
        let operator = operator.clone();
        Box::pin(async move {
            if call.name == "0" && call.attempt == 1 {
                let requeue = "UPDATE tidegate.events SET status = 'PENDING' WHERE id = $1";
                operator.execute(requeue, &[&behind]).await?;
                return Err(
                    HandlerError::retry("again", "because").after(Duration::from_millis(300))
                );
            }
            Ok(Done::ok())
        })
    });
    let lingering = DrainOptions {
        linger: Duration::from_secs(1),
        ..options()
    };
    let report = drain(&db, &app, &lingering).await;
    assert_eq!(report.completed, 3, "{report:?}");
    let names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["0", "0", "1", "2"]);
}

/// The connection holds, the first of a write's statements is stored, and the second must be tried again.
#[tokio::test]
async fn ends_written_before_a_statement_that_failed_are_no_lost_leases() {
    let (db, client) = probe().await;
    let fail_once = "
        CREATE SEQUENCE tries;
        CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('public.tries') = 1 THEN
                RAISE EXCEPTION 'could not serialize' USING ERRCODE = 'serialization_failure';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fail_once BEFORE INSERT ON tidegate.event_log
            FOR EACH ROW WHEN (NEW.status <> 'COMPLETED') EXECUTE FUNCTION fail_once();";
    client.batch_execute(fail_once).await.unwrap();
    publish_acts(&client, 10).await;
    let app = ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "3" | "7" => Err(HandlerError::reject("refused", "on purpose")),
            _ => Ok(Done::ok()),
        }
    });
    let report = drain(&db, &app, &options()).await;
    counted(
        &report,
        "completed 8, completed_with_errors 2, lease_lost 0",
    );
    let sql = "SELECT last_value FROM public.tries";
    assert_eq!(number(&client, sql).await, 3, "one try failed");
}

#[tokio::test]
async fn an_unreachable_database_is_an_error_with_the_counts_so_far() {
    let database = tidegate::Database::new("postgres://nobody@127.0.0.1:1/none", 1).unwrap();
    let error = tidegate::drain(&database, ProbeApp::succeeding(), &options())
        .await
        .unwrap_err();
    assert!(
        matches!(error.source, tidegate::Error::Connect(_)),
        "{error}"
    );
    assert_eq!(error.report.leased, 0);
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_rejects_its_event_alone() {
    let (db, client) = probe().await;
    publish_acts(&client, 20).await;
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move { Done::with(&if call.name == "7" { "\0" } else { "fine" }) })
    });
    let report = drain(&db, &app, &options()).await;
    let ended = (report.completed, report.completed_with_errors);
    assert_eq!(ended, (19, 1), "{report:?}");
    let rejected = "SELECT count(*) FROM tidegate.event_log WHERE errors->0->>'code' = 'result'";
    assert_eq!(number(&client, rejected).await, 1);
}

#[test]
fn a_dispatcher_lists_each_kinds_handlers_and_their_services_without_running_them() {
    let listed = Handlers::one("a", async { panic!("listing must not run") })
        .calls("archive")
        .and("b", async { Ok(Done::ok()) });
    assert_eq!(listed.list(), [("a", Some("archive")), ("b", None)]);
}

// What one event, one producer or one write can do to the others. Options are the default ones: 1,000 events
// a lease.

/// Raises for the row of event "7", whatever else a statement writes.
const REFUSE: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.payload->>'name' = '7' THEN
            RAISE EXCEPTION 'not this one';
        END IF;
        RETURN NEW;
    END $$;";

#[tokio::test]
async fn a_retry_that_the_database_refuses_lets_one_event_lapse_and_no_other() {
    let (db, client) = probe().await;
    let ids = publish_acts(&client, 300).await;
    let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON tidegate.event_queue FOR EACH ROW EXECUTE FUNCTION refuse()";
    execute(&client, &format!("{REFUSE}{refuse}")).await;
    let app = ProbeApp::doing(|call| async move {
        if ["3", "7", "11"].contains(&call.name.as_str()) && call.attempt == 1 {
            let delay = Duration::from_mins(1);
            return Err(HandlerError::retry("down", "not yet").after(delay));
        }
        Ok(Done::ok())
    });
    let options = DrainOptions::default();
    let report = drain(&db, &app, &options).await;
    counted(&report, "completed 297, retried 2, lease_lost 1");
    let held = "SELECT id FROM tidegate.events WHERE status = 'PROCESSING'";
    assert_eq!(number(&client, held).await, ids[7]);
    // Its lease has run out, and it cannot even be told so: others do not wait for it.
    let lapse = "UPDATE tidegate.lease SET expires_at = clock_timestamp();
                 SELECT count(*) FROM tidegate.publish('note', NULL)";
    client.batch_execute(lapse).await.unwrap();
    let report = drain(&db, &app, &options).await;
    assert_eq!(
        (report.completed, report.backlog),
        (1, Some(3)),
        "{report:?}"
    );
    let mend = "DROP TRIGGER refuse ON tidegate.event_queue;
                UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";
    client.batch_execute(mend).await.unwrap();
    let report = drain(&db, &app, &options).await;
    assert_eq!(
        (report.completed, report.backlog),
        (3, Some(0)),
        "{report:?}"
    );
    assert_eq!(end_of(&client, ids[7]).await, "COMPLETED 2 lapsed");
}

/// A payload that knows how many of its kind there are decoded, and how many there were at most.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(from = "String")]
struct Counted(String);

static DECODED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
const LARGE: usize = 8000;

impl From<String> for Counted {
    fn from(text: String) -> Self {
        if text.len() >= LARGE {
            let now = DECODED[0].fetch_add(1, Ordering::SeqCst) + 1;
            DECODED[1].fetch_max(now, Ordering::SeqCst);
        }
        Self(text)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.len() >= LARGE {
            DECODED[0].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

tidegate::events! {
    enum Weighed {
        Letter(Counted) = "letter",
    }
}

struct Scales;

impl Dispatch for Scales {
    type Event = Weighed;

    fn handlers<'a>(&'a self, event: &'a Weighed, _: &'a Context) -> Handlers<'a> {
        match event {
            Weighed::Letter(_) => Handlers::one("weigh", async { Ok(Done::ok()) }),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn few_large_payloads_are_decoded_at_once_however_quick_their_handlers() {
    let (db, client) = support::opened_for::<Weighed>().await;
    // The small ones teach the drain that handlers are quick.
    let sql = "INSERT INTO tidegate.event_queue (kind, payload)
               SELECT 'letter', to_json(repeat('x', CASE WHEN n <= 2000 THEN 20 ELSE $1 END)) FROM generate_series(1, 3000) AS n";
    let large = i32::try_from(LARGE).unwrap();
    client.execute(sql, &[&large]).await.unwrap();
    let report = tidegate::drain(&db.database(), Arc::new(Scales), &options())
        .await
        .unwrap();
    assert_eq!(report.completed, 3000);
    let most = DECODED[1].load(Ordering::SeqCst);
    assert!((1..=32).contains(&most), "{most} were decoded at once");
}

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn a_follow_up_of_a_group_that_is_planned_too_far_ahead_fails_its_event_alone() {
    let (db, client) = probe().await;
    let ids = publish_acts(&client, 20).await;
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            match call.name.as_str() {
                // Without a group, it may be.
                "3" => ctx.emit(&act("alone").delay(400 * DAY))?,
                "5" => ctx.emit(&act("soon").group("g").delay(29 * DAY))?,
                "7" => ctx.emit(&act("never").group("g").delay(31 * DAY))?,
                _ => {}
            }
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &options()).await;
    counted(&report, "completed 19, failed 1, published 2");
    assert_eq!(end_of(&client, ids[7]).await, "FAILED 1 unstorable");
    let told = "SELECT count(*) FROM tidegate.event_log
                 WHERE errors->-1->>'message' LIKE '%available_at: must be within 30 days for an event of a group%'";
    assert_eq!(number(&client, told).await, 1);
    let waiting = "SELECT string_agg(payload->>'name', ' ' ORDER BY id) FROM tidegate.event_queue WHERE delayed";
    let waiting: String = client.query_one(waiting, &[]).await.unwrap().get(0);
    assert_eq!(waiting, "alone soon");
}

#[tokio::test]
async fn an_event_of_a_group_is_put_off_for_no_longer_than_it_may_be_planned() {
    let (db, client) = probe().await;
    for name in ["retried", "snoozed"] {
        let events = [act(name).group(name), act(name)];
        queue::publish_batch(&client, &events).await.unwrap();
    }
    let app = ProbeApp::doing(|call| async move {
        let far = 300 * DAY;
        Err(match call.name.as_str() {
            "retried" => HandlerError::retry("down", "for long").after(far),
            _ => HandlerError::snooze(far, "no document"),
        })
    });
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.retried, report.snoozed), (2, 2), "{report:?}");
    let put_off = "SELECT count(*) FROM tidegate.event_queue
                    WHERE available_at - clock_timestamp() BETWEEN $1::text::interval - interval '1 day' AND $1::text::interval
                      AND (group_key IS NOT NULL) = $2";
    for (time, grouped) in [("30 days", true), ("300 days", false)] {
        let row = client.query_one(put_off, &[&time, &grouped]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 2, "{time}");
    }
}

#[tokio::test]
async fn b13_a_planned_event_whose_deadline_has_passed_holds_its_group_no_longer() {
    let (db, client) = probe().await;
    let planned = act("planned").group("g").delay(DAY);
    let events = [
        planned.start_within(Duration::from_millis(100)),
        act("behind").group("g"),
    ];
    let ids = queue::publish_batch(&client, &events).await.unwrap();
    wait_until("the deadline has passed", async || {
        let late =
            "SELECT count(*) FROM tidegate.event_queue WHERE expires_at <= clock_timestamp()";
        number(&client, late).await == 1
    })
    .await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.expired, report.completed), (1, 1), "{report:?}");
    assert_eq!(app.ids(), [ids[1].id]);
    assert_eq!(end_of(&client, ids[0].id).await, "FAILED 0 expired");
}

#[tokio::test]
async fn a_transaction_that_deadlocks_at_its_end_costs_its_event_no_attempt() {
    let (db, client) = probe().await;
    let sql = "CREATE TABLE account (id bigint); INSERT INTO account VALUES (1)";
    execute(&client, sql).await;
    let id = queue::publish(&client, &act("x")).await.unwrap().id;
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (writes, goes) = (written.clone(), go.clone());
    let app = ProbeApp::new(move |_, ctx| {
        let (written, go) = (writes.clone(), goes.clone());
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            // It is this session that notices the deadlock, before it gives up waiting.
            let impatient = "SET LOCAL deadlock_timeout = '1ms'; UPDATE account SET id = id";
            transaction.batch_execute(impatient).await.retryable()?;
            written.notify_one();
            go.notified().await;
            transaction.complete(Done::ok()).await
        })
    });
    // Somebody who has the event's row wants the row that the handler has written.
    let mut other = db.client().await;
    let meddle = async {
        written.notified().await;
        let meddling = other.transaction().await.unwrap();
        let lock = "SELECT FROM tidegate.event_queue FOR UPDATE";
        meddling.batch_execute(lock).await.unwrap();
        let blocked = async {
            execute(&meddling, "UPDATE account SET id = id").await;
        };
        let release = async {
            wait_for_a_lock(&client).await;
            go.notify_one();
        };
        tokio::join!(blocked, release);
        meddling.rollback().await.unwrap();
        // For the next try.
        go.notify_one();
    };
    let running = options();
    let (first, ()) = tokio::join!(drain(&db, &app, &running), meddle);
    let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
    client.execute(due, &[]).await.unwrap();
    let second = drain(&db, &app, &options()).await;
    let completed = first.completed + second.completed;
    assert_eq!((completed, first.retried), (1, 1), "{first:?} {second:?}");
    let tries: Vec<u32> = app.calls().iter().map(|call| call.attempt).collect();
    assert_eq!(tries, [1, 1]);
    assert_eq!(end_of(&client, id).await, "COMPLETED 1 group_busy");
}
