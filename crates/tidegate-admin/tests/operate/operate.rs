//! Operators' actions on a real Postgres: replay, requeue, pause, resume, retire, unblock, and the audit row
//! of each.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use test_support::probe::{
    Probe, ProbeApp, act, drain, end_of, live, number, options, pair, probe, probe_sessions,
    publish_acts,
};
use test_support::{
    self as support, TestDb, begins, contains, counted, execute, has, lease_away, refused, rows,
    wait_for_a_lock, wait_until,
};
use tidegate::connect::Client;
use tidegate::migrate::{Migrate, Payloads, StoredSettings};
use tidegate::{Done, DrainOptions, Error, Event as _, HandlerError, NewEvent};
use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate_admin::{
    Audit, PauseRequest, ReplayReport, ReplayRequest, RequeueReport, RequeueRequest, ResumeRequest,
    RetireRequest, TimeArg, UnblockAction, UnblockHow, UnblockReport, UnblockRequest, Verb,
};
use tidegate_core::queue;
use tokio::sync::{Barrier, Notify};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

/// One handler at a time.
fn sequential() -> DrainOptions {
    DrainOptions {
        concurrency: 1,
        ..options()
    }
}

fn by_ids(ids: &[i64]) -> ReplayRequest {
    ReplayRequest {
        ids: Some(ids.to_vec()),
        audit: Audit::of("the service is back").by("ada"),
        ..ReplayRequest::default()
    }
}

/// Everything that ended within the last hour.
fn last_hour() -> ReplayRequest {
    ReplayRequest {
        ids: None,
        since: Some(TimeArg::Ago(Duration::from_hours(1))),
        ..by_ids(&[])
    }
}

async fn replay(client: &Client, request: &ReplayRequest) -> ReplayReport {
    request.on(client).await.unwrap()
}

async fn requeue(client: &Client, ids: &[i64]) -> RequeueReport {
    let request = RequeueRequest {
        ids: ids.to_vec(),
        audit: Audit::of("its worker hangs"),
    };
    request.on(client).await.unwrap()
}

/// Returns the flags that request this.
fn flags(how: UnblockAction) -> UnblockHow {
    UnblockHow {
        retry: how == UnblockAction::Retry,
        skip: how == UnblockAction::Skip,
        cancel: how == UnblockAction::Cancel,
    }
}

async fn unblock(client: &Client, group: &str, how: UnblockAction) -> UnblockReport {
    let request = UnblockRequest {
        group: group.to_owned(),
        how: flags(how),
        audit: Audit::of("it waits for a paper").by("ada"),
    };
    request.on(client).await.unwrap()
}

async fn publish(client: &Client, event: &NewEvent) -> i64 {
    queue::publish(client, event).await.unwrap().id
}

/// Publishes `act` events, drains them with success, and returns their ids.
async fn ended(db: &TestDb, client: &Client, count: usize) -> Vec<i64> {
    let ids = publish_acts(client, count).await;
    drain(db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!(live(client).await, 0);
    ids
}

/// Rows as JSON, in the order of the statement.
async fn objects(client: &Client, sql: &str) -> Vec<Value> {
    let sql = format!("SELECT to_jsonb(r)::text FROM ({sql}) AS r");
    let rows = client.query(&sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| serde_json::from_str(row.get(0)).unwrap())
        .collect()
}

async fn audit(client: &Client) -> Vec<Value> {
    objects(client, "SELECT * FROM tidegate.audit ORDER BY id").await
}

async fn log_row(client: &Client, id: i64) -> Value {
    let sql = format!("SELECT * FROM tidegate.event_log WHERE id = {id}");
    objects(client, &sql).await.remove(0)
}

/// The reasons why events were skipped, by id.
fn skipped(report: &ReplayReport) -> Vec<(i64, &str)> {
    report
        .skipped
        .iter()
        .map(|event| (event.id, event.reason.as_str()))
        .collect()
}

// replay

#[tokio::test]
async fn b22_f5_a_replay_runs_as_a_new_event_and_leaves_the_original_untouched() {
    let (db, client) = probe().await;
    let event = act("x")
        .group("g")
        .dedup("d")
        .correlation("c")
        .max_attempts(7)
        .start_within(Duration::from_hours(1));
    let id = publish(&client, &event).await;
    let failing = ProbeApp::new(|_, _| {
        Box::pin(async { Err(HandlerError::reject("409", "the case is closed")) })
    });
    drain(&db, &failing, &options()).await;
    let original = log_row(&client, id).await;
    assert_eq!(original["status"], "COMPLETED_WITH_ERRORS");

    let report = replay(&client, &by_ids(&[id])).await;
    assert_eq!((report.matched, report.replayed), (1, 1), "{report:?}");
    let new = report.events[0].id;
    assert!(new > id && report.events[0].replay_of == id);
    let put_back = objects(
        &client,
        "SELECT id, kind, payload, group_key, dedup_key, correlation_id, max_attempts, status, attempts, errors,
                progress, lease_token, replay_of, expires_at FROM tidegate.events",
    )
    .await;
    let expected = json!({
        "id": new, "kind": "act", "payload": {"name": "x"}, "group_key": "g", "dedup_key": "d", "correlation_id": "c",
        "max_attempts": 7, "status": "PENDING", "attempts": 0, "errors": [], "progress": null, "lease_token": null,
        "replay_of": id, "expires_at": original["deadline"],
    });
    assert_eq!(put_back, [expected]);

    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, app.ids()), (1, vec![new]));
    let replayed = log_row(&client, new).await;
    has(
        &replayed,
        &json!({"status": "COMPLETED", "replay_of": id, "attempts": 1}),
    );
    assert_eq!(log_row(&client, id).await, original);
}

#[tokio::test]
async fn f5_a_filter_takes_what_ended_in_its_window_by_kind_and_status() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 6).await;
    let pairs = publish(&client, &pair("p")).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let sql = "ALTER TABLE tidegate.event_log DISABLE TRIGGER USER";
    execute(&client, sql).await;
    // Ended 60, 50, 40, 30, 20 and 10 minutes before noon; the bounds are two of these instants.
    for (position, id) in ids.iter().enumerate() {
        let sql = "UPDATE tidegate.event_log SET finished_at = '2026-01-31T12:00:00Z'::timestamptz - make_interval(mins => $2),
                          status = CASE WHEN $2 IN (40, 20) THEN 'FAILED' ELSE status END WHERE id = $1";
        let minutes = 60 - 10 * i32::try_from(position).unwrap();
        client.execute(sql, &[id, &minutes]).await.unwrap();
    }
    let noon = SystemTime::UNIX_EPOCH + Duration::from_hours(491_628);
    let before_noon = |minutes| {
        Some(TimeArg::At(
            noon.checked_sub(Duration::from_mins(minutes)).unwrap(),
        ))
    };
    let window = ReplayRequest {
        since: before_noon(50),
        until: before_noon(20),
        dry_run: true,
        ..last_hour()
    };
    let matched = async |request: ReplayRequest| replay(&client, &request).await.matched;
    let found = matched(window.clone()).await;
    assert_eq!(found, 3, "since counts, until does not");
    let failed = ReplayRequest {
        status: Some("FAILED".to_owned()),
        ..window.clone()
    };
    assert_eq!(matched(failed.clone()).await, 1);
    let open = ReplayRequest {
        until: None,
        kind: Some("pair".to_owned()),
        ..window
    };
    assert_eq!(matched(open).await, 1);
    let report = replay(
        &client,
        &ReplayRequest {
            dry_run: false,
            ..failed
        },
    )
    .await;
    assert_eq!(report.events[0].replay_of, ids[2]);
    assert_ne!(report.events[0].replay_of, pairs);
}

#[tokio::test]
async fn f5_a_dry_run_changes_nothing_and_tells_what_the_replay_then_does() {
    let (db, client) = probe().await;
    let mut in_groups = Vec::new();
    for group in ["busy", "overtaken", "overtaken", "calm"] {
        in_groups.push(publish(&client, &act("x").group(group)).await);
    }
    in_groups.push(publish(&client, &pair("y")).await);
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    publish(&client, &act("z").group("busy")).await;
    let state = async || {
        objects(
            &client,
            "SELECT (SELECT jsonb_agg(to_jsonb(q) ORDER BY q.id) FROM tidegate.event_queue AS q) AS queue,
                    (SELECT jsonb_agg(to_jsonb(l) ORDER BY l.id) FROM tidegate.event_log AS l) AS log,
                    (SELECT count(*) FROM tidegate.audit) AS audit,
                    (SELECT last_value FROM tidegate.event_queue_id_seq) AS last_id",
        )
        .await
    };
    let before = state().await;
    let asked = by_ids(&[
        in_groups[0],
        in_groups[1],
        in_groups[3],
        in_groups[4],
        987_654,
    ]);
    let dry = ReplayRequest {
        dry_run: true,
        ..asked.clone()
    };
    let told = replay(&client, &dry).await;
    assert_eq!(state().await, before);
    assert_eq!((told.matched, told.eligible, told.replayed), (4, 4, 0));
    assert_eq!(json!(told.kinds), json!({"act": 3, "pair": 1}));
    let expected = [(987_654, "unknown: neither in the queue nor in the log")];
    assert_eq!(skipped(&told), expected);
    let done = replay(&client, &asked).await;
    let found = (done.eligible, done.replayed);
    assert_eq!(found, (told.eligible, told.eligible));
    assert_eq!((done.kinds, done.skipped), (told.kinds, told.skipped));
}

#[tokio::test]
async fn i7_of_two_replays_at_once_one_wins_and_both_are_in_the_audit() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 5).await;
    for round in 0..5 {
        let start = Arc::new(Barrier::new(4));
        let requests = [by_ids(&ids), by_ids(&ids), last_hour(), last_hour()];
        let mut replays = Vec::new();
        for request in requests {
            let (client, start) = (db.client().await, start.clone());
            replays.push(tokio::spawn(async move {
                start.wait().await;
                replay(&client, &request).await.replayed
            }));
        }
        let mut replayed = Vec::new();
        for replay in replays {
            replayed.push(replay.await.unwrap());
        }
        replayed.sort_unstable();
        assert_eq!(replayed, [0, 0, 0, 5], "round {round}");
        assert_eq!(live(&client).await, 5);
        assert_eq!(audit(&client).await.len(), 4 * (round + 1));
        drain(&db, &ProbeApp::succeeding(), &options()).await;
    }
}

#[tokio::test]
async fn i7_a_replay_that_waited_for_another_one_does_not_repeat_it_even_if_it_has_ended_since() {
    let (db, [mut first, second, witness]) = probe_sessions().await;
    let id = ended(&db, &witness, 1).await[0];
    let transaction = first.transaction().await.unwrap();
    by_ids(&[id]).on(&transaction).await.unwrap();
    let waiting = tokio::spawn(async move { replay(&second, &by_ids(&[id])).await });
    wait_for_a_lock(&witness).await;
    let end = "SELECT tidegate.end_live(array_agg(id), 'x', 'x') FROM tidegate.event_queue";
    transaction.query_one(end, &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let report = waiting.await.unwrap();
    let found = skipped(&report);
    assert_eq!(found, [(id, "another operator has just replayed it")]);
    assert_eq!(report.replayed, 0);
    let seen = replay(&witness, &by_ids(&[id])).await.replayed;
    assert_eq!(seen, 1, "later it may");
}

#[tokio::test]
async fn a_replay_on_an_old_snapshot_which_could_double_is_refused() {
    let (db, mut client) = probe().await;
    let id = ended(&db, &client, 1).await[0];
    let transaction = client.build_transaction();
    let transaction = transaction.isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let transaction = transaction.start().await.unwrap();
    let error = by_ids(&[id]).on(&transaction).await.unwrap_err();
    assert!(error.to_string().contains("READ COMMITTED"), "{error}");
}

#[tokio::test]
async fn i7_the_same_window_twice_runs_nothing_twice() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 3).await;
    assert_eq!(replay(&client, &last_hour()).await.replayed, 3);
    let at_once = replay(&client, &last_hour()).await;
    assert_eq!(at_once.skipped_reasons["its replay is live"], 3);
    assert_eq!(at_once.replayed, 0);

    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let later = replay(&client, &last_hour()).await;
    assert_eq!((later.matched, later.replayed), (6, 0));
    let found = json!(later.skipped_reasons);
    assert_eq!(found, json!({"replayed before": 3, "a replay itself": 3}));
    // The replays' own retention may be shorter than the originals'.
    let clean = "DELETE FROM tidegate.event_log WHERE replay_of IS NOT NULL";
    assert_eq!(client.execute(clean, &[]).await.unwrap(), 3);
    assert_eq!(replay(&client, &last_hour()).await.replayed, 0);
    assert_eq!(live(&client).await, 0);

    let again = ReplayRequest {
        again: true,
        ..last_hour()
    };
    assert_eq!(replay(&client, &again).await.replayed, 3);
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let report = replay(&client, &again).await;
    let originals: Vec<i64> = report.events.iter().map(|event| event.replay_of).collect();
    assert_eq!(originals, ids, "one of each lineage");
    assert_eq!(
        report.skipped_reasons["a replay whose original is selected, too"],
        3
    );
}

#[tokio::test]
async fn i7_each_event_that_cannot_be_replayed_is_reported() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 2).await;
    let replayed = replay(&client, &by_ids(&ids[..1])).await.events[0].id;
    let waiting = publish(&client, &act("live")).await;
    let forgotten = "INSERT INTO tidegate.event_log SELECT (jsonb_populate_record(l, '{\"id\": 900, \"kind\": \"gone\"}')).*
                       FROM tidegate.event_log AS l LIMIT 1";
    client.execute(forgotten, &[]).await.unwrap();
    let asked = [ids[0], ids[1], ids[1], waiting, 900, 901];
    let report = replay(&client, &by_ids(&asked)).await;
    assert_eq!((report.matched, report.replayed), (3, 1), "{report:?}");
    assert_eq!(report.events[0].replay_of, ids[1]);
    assert_eq!(
        skipped(&report),
        [
            (ids[0], "its replay is live"),
            (ids[1], "given more than once"),
            (waiting, "live (PENDING); use requeue"),
            (900, "its kind is not registered"),
            (901, "unknown: neither in the queue nor in the log"),
        ]
    );
    assert_eq!(report.skipped[0].by, Some(replayed));
    let many: Vec<i64> = (5000..5300).collect();
    let report = replay(&client, &by_ids(&many)).await;
    assert_eq!((report.skipped_count, report.skipped.len()), (300, 100));
}

#[tokio::test]
async fn b10_replays_join_the_end_of_their_group_in_the_order_of_the_originals() {
    let (db, client) = probe().await;
    let mut ids = Vec::new();
    for n in 0..12 {
        let group = if n % 3 == 0 { "a" } else { "b" };
        ids.push(publish(&client, &act("x").group(group)).await);
    }
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let first = publish(&client, &act("live").group("b")).await;
    let mut shuffled = ids.clone();
    shuffled.reverse();
    shuffled.swap(2, 7);
    let report = replay(&client, &by_ids(&shuffled)).await;
    let originals: Vec<i64> = report.events.iter().map(|event| event.replay_of).collect();
    let new: Vec<i64> = report.events.iter().map(|event| event.id).collect();
    assert_eq!(originals, ids);
    assert!(new[0] > first && new.is_sorted(), "{first} {new:?}");
    let app = ProbeApp::succeeding();
    drain(&db, &app, &sequential()).await;
    assert_eq!(app.ids(), [vec![first], new].concat());
}

#[tokio::test]
async fn b10_a_replay_waits_for_a_publish_to_its_group_that_is_not_committed_yet() {
    let (db, [mut publisher, operator, witness]) = probe_sessions().await;
    let id = publish(&witness, &act("x").group("g")).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let transaction = publisher.transaction().await.unwrap();
    let earlier = queue::publish(&transaction, &act("y").group("g"))
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { replay(&operator, &by_ids(&[id])).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let report = waiting.await.unwrap();
    assert!(report.events[0].id > earlier.id, "{report:?}");
}

#[tokio::test]
async fn b13_a_deadline_that_has_passed_must_be_given_anew_and_a_future_one_is_kept() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 4).await;
    let deadlines = "UPDATE tidegate.event_log SET deadline = clock_timestamp() + make_interval(hours => $2) WHERE id = $1";
    for (id, hours) in [(ids[0], -1), (ids[1], -2), (ids[2], 3)] {
        client.execute(deadlines, &[&id, &hours]).await.unwrap();
    }
    let refused = replay(&client, &by_ids(&ids)).await;
    assert_eq!((refused.eligible, refused.replayed), (4, 0));
    let found = (
        refused.passed_deadlines.count,
        &refused.passed_deadlines.ids[..],
    );
    assert_eq!(found, (2, &ids[..2]));
    let why = refused.refused.unwrap();
    assert!(
        why.starts_with("expires_in: is needed") && why.contains(&ids[1].to_string()),
        "{why}"
    );
    assert_eq!(live(&client).await, 0, "all or none");
    assert_eq!(audit(&client).await[0]["count"], 0);

    let anew = ReplayRequest {
        expires_in: Some(Duration::from_hours(1)),
        ..by_ids(&ids)
    };
    assert_eq!(replay(&client, &anew).await.replayed, 4);
    let minutes = objects(
        &client,
        "SELECT round(extract(epoch FROM q.expires_at - clock_timestamp()) / 60)::int AS left
           FROM tidegate.event_queue AS q ORDER BY id",
    )
    .await;
    let left: Vec<&Value> = minutes.iter().map(|row| &row["left"]).collect();
    assert_eq!(left, [&json!(60), &json!(60), &json!(180), &Value::Null]);
    let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!((report.completed, report.expired), (4, 0));
}

/// `first` succeeds with a result and a follow-up, `second` runs a step once and then does as it is told.
fn half_failing(end: fn() -> Result<Done, HandlerError>) -> Arc<ProbeApp> {
    ProbeApp::new(move |call, ctx| {
        Box::pin(async move {
            if call.handler == "first" {
                ctx.emit(&Probe::Note(()))?;
                return Done::with(&"first's");
            }
            ctx.once("step", async { Ok(call.id) }).await?;
            end()
        })
    })
}

#[tokio::test]
async fn c10_with_failed_handlers_only_the_others_neither_run_nor_publish_again() {
    let (db, client) = probe().await;
    let rejecting = half_failing(|| Err(HandlerError::reject("422", "no")));
    let id = publish(&client, &pair("p")).await;
    let report = drain(&db, &rejecting, &options()).await;
    assert_eq!((report.completed_with_errors, report.published), (1, 1));
    let fine = publish(&client, &pair("fine")).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;

    let only_failed = ReplayRequest {
        failed_handlers_only: true,
        ..by_ids(&[id, fine])
    };
    let report = replay(&client, &only_failed).await;
    assert_eq!(skipped(&report), [(fine, "none of its handlers failed")]);
    let new = report.events[0].id;
    let kept = objects(&client, "SELECT progress FROM tidegate.event_queue").await;
    assert_eq!(
        kept[0]["progress"],
        json!({"handlers": {"first": {"result": "first's"}}, "steps": {"second/step": id}})
    );
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            let step: i64 = ctx.once("step", async { Ok(call.id) }).await?;
            Done::with(&step)
        })
    });
    let report = drain(&db, &app, &options()).await;
    let calls: Vec<_> = app
        .calls()
        .iter()
        .map(|call| (call.id, call.handler))
        .collect();
    assert_eq!(calls, [(new, "second")]);
    let found = (report.completed, report.published);
    assert_eq!(found, (1, 0), "its follow-up was published");
    assert_eq!(
        log_row(&client, new).await["result"],
        json!({"first": "first's", "second": id})
    );
    // Without the flag everything runs.
    replay(&client, &by_ids(&[new])).await;
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.calls().len(), 2);
}

#[tokio::test]
async fn c10_follow_ups_that_were_never_published_are_published_by_the_replay_of_the_rest() {
    let (db, client) = probe().await;
    let app =
        half_failing(|| Err(HandlerError::retry("down", "no").after(Duration::from_hours(1))));
    let id = publish(&client, &pair("p").max_attempts(2)).await;
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.retried, report.published), (1, 0));
    // Its worker goes away on the last attempt, with what the first handler emitted unpublished.
    let abandon = "UPDATE tidegate.event_queue SET attempts = 2, lapses = 1, available_at = clock_timestamp()";
    client.execute(abandon, &[]).await.unwrap();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.abandoned, report.published), (1, 0));
    let only_failed = ReplayRequest {
        failed_handlers_only: true,
        ..by_ids(&[id])
    };
    assert_eq!(replay(&client, &only_failed).await.replayed, 1);
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    let handlers: Vec<_> = app.calls().iter().map(|call| call.handler).collect();
    assert_eq!(handlers, ["second", "note"]);
    assert_eq!((report.completed, report.published), (2, 1));
}

#[tokio::test]
async fn a_replay_whose_deduplication_key_is_taken_is_skipped_and_reported() {
    let (db, client) = probe().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        for key in ["taken", "free"] {
            ids.push(publish(&client, &act("x").dedup(key)).await);
        }
        drain(&db, &ProbeApp::succeeding(), &options()).await;
    }
    let holder = publish(&client, &act("x").dedup("taken")).await;
    let report = replay(&client, &by_ids(&ids)).await;
    assert_eq!(report.replayed, 1);
    assert_eq!(report.events[0].replay_of, ids[1]);
    assert_eq!(
        skipped(&report),
        [
            (ids[0], "a live event has its deduplication key"),
            (ids[2], "a live event has its deduplication key"),
            (
                ids[3],
                "an earlier selected event has its deduplication key"
            ),
        ]
    );
    assert_eq!(report.skipped[0].by, Some(holder));
}

#[tokio::test]
async fn a_publish_that_takes_the_deduplication_key_at_the_last_moment_wins() {
    let (db, [mut publisher, operator, witness]) = probe_sessions().await;
    let id = publish(&witness, &act("x").dedup("d")).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let transaction = publisher.transaction().await.unwrap();
    queue::publish(&transaction, &act("x").dedup("d"))
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { replay(&operator, &by_ids(&[id])).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let report = waiting.await.unwrap();
    counted(&report, "replayed 0, skipped_count 1");
    let found = skipped(&report);
    assert_eq!(found, [(id, "overtaken by a publish or by the cleanup")]);
    assert_eq!(live(&witness).await, 1);
}

#[tokio::test]
async fn a_limit_cuts_a_replay_and_the_same_call_takes_the_rest() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 5).await;
    let limited = ReplayRequest {
        limit: Some(3),
        ..last_hour()
    };
    let first = replay(&client, &limited).await;
    counted(&first, "matched 5, replayed 3, limit_reached true");
    assert_eq!(first.events[2].replay_of, ids[2]);
    let second = replay(&client, &limited).await;
    assert_eq!((second.replayed, second.limit_reached), (2, false));
}

#[tokio::test]
async fn a_replay_locks_no_more_groups_than_a_servers_lock_table_has_room_for() {
    let (db, client) = probe().await;
    ended(&db, &client, 1).await;
    let copies = "INSERT INTO tidegate.event_log SELECT (jsonb_populate_record(l, jsonb_build_object('id', 10000 + n, 'group_key', 'g' || n / 2))).*
                    FROM tidegate.event_log AS l, generate_series(2, 4003) AS n";
    client.execute(copies, &[]).await.unwrap();
    let first = replay(&client, &last_hour()).await;
    assert_eq!((first.matched, first.limit_reached), (4003, true));
    assert_eq!(
        first.replayed, 4001,
        "one without a group, two of each of 2000"
    );
    assert_eq!((first.events.len(), first.skipped_count), (100, 0));
    let second = replay(&client, &last_hour()).await;
    assert_eq!((second.replayed, second.limit_reached), (2, false));
}

#[tokio::test]
async fn i7_a_log_row_that_another_session_is_deleting_neither_blocks_a_replay_nor_doubles_it() {
    let (db, [mut cleaner, client]) = probe_sessions().await;
    let id = ended(&db, &client, 1).await[0];
    let transaction = cleaner.transaction().await.unwrap();
    execute(&transaction, "DELETE FROM tidegate.event_log").await;
    let asked = by_ids(&[id]);
    let unhindered = tokio::time::timeout(support::PATIENCE, replay(&client, &asked));
    assert_eq!(unhindered.await.unwrap().replayed, 1);
    assert_eq!(replay(&client, &by_ids(&[id])).await.replayed, 0);
    transaction.commit().await.unwrap();
    let gone = replay(&client, &by_ids(&[id])).await;
    let expected = [(id, "unknown: neither in the queue nor in the log")];
    assert_eq!(skipped(&gone), expected);
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.calls().len(), 1);
}

// requeue

/// A drain that leases one event, and so not the same one again.
fn one_event() -> DrainOptions {
    DrainOptions {
        max_events: Some(1),
        ..options()
    }
}

/// An application whose first call waits until it is let go; the others succeed.
fn hanging() -> (Arc<ProbeApp>, Arc<Notify>) {
    let go = Arc::new(Notify::new());
    let until = go.clone();
    let app = ProbeApp::new(move |call, _| {
        let until = until.clone();
        Box::pin(async move {
            if call.attempt == 1 && call.name == "0" {
                until.notified().await;
            }
            Ok(Done::ok())
        })
    });
    (app, go)
}

#[tokio::test]
async fn d14_i5_after_a_requeue_the_old_worker_finalizes_nothing_and_the_event_runs_again() {
    let (db, client) = probe().await;
    let id = publish_acts(&client, 1).await[0];
    let ((app, go), one_event) = (hanging(), one_event());
    let (ours, others) = tokio::join!(drain(&db, &app, &one_event), async {
        wait_until("the handler runs", async || app.calls().len() == 1).await;
        let report = requeue(&client, &[id]).await;
        assert_eq!((report.requeued, &report.ids[..]), (1, &[id][..]));
        let second = drain(&db, &app, &options()).await;
        go.notify_one();
        second
    });
    assert_eq!((others.leased, others.completed), (1, 1), "{others:?}");
    assert_eq!((ours.leased, ours.lease_lost), (1, 1), "{ours:?}");
    let attempts: Vec<u32> = app.calls().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    let ends = "SELECT count(*) FROM tidegate.event_log";
    assert_eq!((number(&client, ends).await, live(&client).await), (1, 0));
}

#[tokio::test]
async fn d14_a_requeued_event_runs_even_if_its_attempts_were_spent_or_it_was_to_wait() {
    let (db, client) = probe().await;
    let ids = publish_acts(&client, 3).await;
    let spend = "UPDATE tidegate.event_queue SET attempts = $2, max_attempts = $2 WHERE id = $1";
    client.execute(spend, &[&ids[0], &5]).await.unwrap();
    client.execute(spend, &[&ids[1], &1000]).await.unwrap();
    lease_away(&client, &ids[..2], 3600.0).await;
    let delay = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 day' WHERE id = $1";
    client.execute(delay, &[&ids[2]]).await.unwrap();
    assert_eq!(requeue(&client, &ids).await.requeued, 3);
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    let calls: Vec<_> = app
        .calls()
        .iter()
        .map(|call| (call.id, call.attempt))
        .collect();
    assert_eq!(calls, [(ids[0], 6), (ids[1], 1000), (ids[2], 1)]);
}

#[tokio::test]
async fn i7_a_requeue_tells_of_ids_that_are_not_live_and_of_deadlines_that_have_passed() {
    let (db, client) = probe().await;
    let over = ended(&db, &client, 1).await[0];
    let late = publish(&client, &act("late")).await;
    let expire = "UPDATE tidegate.event_queue SET expires_at = clock_timestamp()";
    client.execute(expire, &[]).await.unwrap();
    let report = requeue(&client, &[over, late, i64::MAX, late]).await;
    assert_eq!((report.ids, report.past_deadline), (vec![late], vec![late]));
    let told: Vec<_> = report
        .skipped
        .iter()
        .map(|s| (s.id, s.reason.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (over, "ended as COMPLETED; use replay"),
            (i64::MAX, "unknown: neither in the queue nor in the log"),
        ]
    );
    assert_eq!(report.skipped_count, 2);
    assert_eq!(requeue(&client, &[over]).await.requeued, 0);
    let counts: Vec<Value> = audit(&client)
        .await
        .iter()
        .map(|row| row["count"].clone())
        .collect();
    assert_eq!(counts, [1, 0]);
}

#[tokio::test]
async fn d13_the_documented_statements_list_exactly_the_stuck_events() {
    let (_db, client) = probe().await;
    let ids = publish_acts(&client, 4).await;
    let age = "UPDATE tidegate.lease SET taken_at = clock_timestamp() - make_interval(mins => $2),
                      renewed_at = clock_timestamp() - make_interval(mins => $3) WHERE ids @> $1::bigint";
    for (id, started, updated) in [(ids[0], 6, 6), (ids[1], 6, 4), (ids[2], 4, 4)] {
        lease_away(&client, &[id], 60.0).await;
        client
            .execute(age, &[&id, &started, &updated])
            .await
            .unwrap();
    }
    let waits = "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '6 min' WHERE id = $1";
    client.execute(waits, &[&ids[3]]).await.unwrap();
    execute(&client, "SET search_path = tidegate").await;
    let started = "select * from events where status='PROCESSING' and processing_started_at < now() - interval '5 minutes'";
    let updated = "select * from events where status='PROCESSING' and updated_at < now() - interval '5 minutes'";
    for (statement, stuck) in [(started, &ids[..2]), (updated, &ids[..1])] {
        let rows = client.query(statement, &[]).await.unwrap();
        let mut listed: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
        listed.sort_unstable();
        assert_eq!(listed, stuck, "{statement}");
    }
}

#[tokio::test]
async fn d14_the_documented_statement_requeues_with_a_right_on_the_view_alone_and_leaves_an_audit_row()
 {
    let (db, [client, operator]) = probe_sessions().await;
    let id = publish_acts(&client, 1).await[0];
    let role = format!("viewer_{}", Uuid::new_v4().simple());
    let rights = format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA tidegate TO {role}; GRANT SELECT, UPDATE ON tidegate.events TO {role}"
    );
    client.batch_execute(&rights).await.unwrap();
    let become_operator = format!("SET SESSION AUTHORIZATION {role}; SET search_path = tidegate");
    operator.batch_execute(&become_operator).await.unwrap();
    let ((app, go), one_event) = (hanging(), one_event());
    let ours = tokio::join!(drain(&db, &app, &one_event), async {
        wait_until("the handler runs", async || app.calls().len() == 1).await;
        let undone = "begin; update events set status='PENDING'; rollback";
        operator.batch_execute(undone).await.unwrap();
        let requeue = "update events set status='PENDING' where id = $1";
        assert_eq!(operator.execute(requeue, &[&id]).await.unwrap(), 1);
        let second = drain(&db, &app, &options()).await;
        assert_eq!(second.completed, 1, "{second:?}");
        go.notify_one();
    })
    .0;
    assert_eq!(ours.lease_lost, 1, "{ours:?}");
    let rows = audit(&client).await;
    assert_eq!(
        rows.len(),
        1,
        "one for what was done, none for what was rolled back"
    );
    let expected =
        json!({"action": "requeue", "filter": {"via": "events"}, "ids": [id], "count": 1});
    has(&rows[0], &expected);
    assert_eq!(rows[0]["session_user_name"], json!(role));
    let clear = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    drop(operator);
    client.batch_execute(&clear).await.unwrap();
}

#[tokio::test]
async fn what_else_the_view_lets_an_operator_change_is_in_the_audit_too() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    let later = "UPDATE tidegate.events SET max_attempts = 9, expires_at = '2099-01-01T00:00:00Z'";
    client.execute(later, &[]).await.unwrap();
    let row = audit(&client).await.remove(0);
    assert_eq!(
        row["filter"],
        json!({"via": "events", "max_attempts": 9, "expires_at": "2099-01-01T00:00:00+00:00"})
    );
    let refused = client
        .execute("UPDATE tidegate.events SET kind = 'pair'", &[])
        .await;
    let expected = Some(&SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(refused.unwrap_err().code(), expected);
}

/// What one call of a verb's function returns.
async fn called(client: &Client, sql: &str) -> Value {
    let row = client.query_one(&format!("SELECT {sql}::text"), &[]).await;
    serde_json::from_str(
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
            .get(0),
    )
    .unwrap()
}

#[tokio::test]
async fn no_event_of_a_set_keeps_a_verb_from_the_others() {
    let (db, client) = probe().await;
    // What jsonb cannot hold, what is nested too deep for it, as large and as often tried as may be, with a
    // deadline that has passed, and in a group.
    let worst = "INSERT INTO tidegate.event_queue (kind, payload, attempts, max_attempts, available_at, expires_at, dedup_key, group_key, stray) VALUES
        ('act', '{\"name\": \"\\ud800\"}', 0, 5, now(), NULL, 'first', NULL, false),
        ('act', (repeat('[', 6000) || repeat(']', 6000))::json, 0, 5, now(), NULL, NULL, NULL, false),
        ('act', to_json(repeat('x', 1048574)), 0, 5, now(), NULL, NULL, NULL, false),
        ('act', '[1e131072, \"\\ud800\"]', 1000, 1000, '294276-12-31 UTC', now() - interval '1 day', NULL, NULL, true),
        ('act', '{\"name\": \"whole\"}', 0, 1, '4713-01-01 BC', NULL, NULL, 'g', false),
        ('act', NULL, 0, 5, now(), NULL, NULL, 'g', false)";
    execute(&client, worst).await;
    let ids: Vec<i64> =
        support::column(&client, "SELECT id FROM tidegate.event_queue ORDER BY id").await;
    let requeue = format!("tidegate.requeue(ARRAY{ids:?}, 'why')");
    assert_eq!(called(&client, &requeue).await["requeued"], 6);
    let later = "tidegate.reschedule(kind => 'act', available_at => now() + interval '1 hour', reason => 'why')";
    assert_eq!(called(&client, later).await["changed"], 6);
    let soon = "UPDATE tidegate.events SET available_at = now() WHERE kind = 'act'";
    assert_eq!(client.execute(soon, &[]).await.unwrap(), 6);
    let settings = StoredSettings {
        payloads: Some(Payloads::Sealed),
        ..StoredSettings::default()
    };
    let database = db.database();
    let migrate = Migrate::new(Probe::KINDS).stored(settings);
    migrate.run(&database).await.unwrap();
    let skip = "tidegate.unblock('g', 'skip', 'why')";
    assert_eq!(called(&client, skip).await["id"], ids[4]);
    let cancel = "tidegate.cancel(kind => 'act', reason => 'why')";
    assert_eq!(called(&client, cancel).await["changed"], 6);
    let forget = format!("tidegate.forget(ARRAY[{}], 'why')", ids[2]);
    called(&client, &forget).await;
    let twin = "INSERT INTO tidegate.event_queue (kind, dedup_key) VALUES ('act', 'first')";
    execute(&client, twin).await;
    let replay = "tidegate.replay(since => now() - interval '1 hour', again => true, expires_in => '1 hour', reason => 'why'";
    for dry_run in [true, false] {
        let report = called(&client, &format!("{replay}, dry_run => {dry_run})")).await;
        let replayed = if dry_run { 0 } else { 4 };
        let found = (&report["matched"], &report["eligible"], &report["replayed"]);
        assert_eq!(found, (&json!(7), &json!(4), &json!(replayed)), "{report}");
        let skipped = json!({"forgotten: its data is gone": 1, "a live event has its deduplication key": 1, "a replay whose original is selected, too": 1});
        assert_eq!(report["skipped_reasons"], skipped);
    }
    let same = "SELECT count(*) FROM tidegate.event_queue AS q JOIN tidegate.event_log AS l ON l.id = q.replay_of
                 WHERE q.payload::text IS NOT DISTINCT FROM l.payload::text AND q.payload_bytes = coalesce(octet_length(l.payload::text), 0)";
    assert_eq!(number(&client, same).await, 4);
}

// pause and resume

fn kind(kind: &str) -> PauseRequest {
    PauseRequest {
        kind: kind.to_owned(),
        reason: Some("the case system is down".to_owned()),
        actor: None,
    }
}

fn resumption() -> ResumeRequest {
    ResumeRequest { of: kind("act") }
}

#[tokio::test]
async fn a_paused_kind_is_not_taken_and_others_pass() {
    let (db, client) = probe().await;
    publish_acts(&client, 3).await;
    let other = publish(&client, &pair("p")).await;
    let paused = kind("act").on(&client).await.unwrap();
    assert!(paused.paused && paused.changed, "{paused:?}");
    let again = kind("act").on(&client).await.unwrap();
    assert!(again.paused && !again.changed, "{again:?}");
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.leased, report.backlog), (1, Some(3)));
    assert_eq!(app.ids(), [other, other]);
    let resumed = resumption().on(&client).await.unwrap();
    assert!(!resumed.paused && resumed.changed, "{resumed:?}");
    assert!(!resumption().on(&client).await.unwrap().changed);
    assert_eq!(drain(&db, &app, &options()).await.completed, 3);
    let rows = audit(&client).await;
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["action"].as_str().unwrap(),
                row["count"].as_i64().unwrap(),
            )
        })
        .collect();
    let expected = [("pause", 1), ("pause", 0), ("resume", 1), ("resume", 0)];
    assert_eq!(told, expected);
    assert_eq!(rows[0]["filter"], json!({"kind": "act"}));
    let unknown = kind("akt").on(&client).await.unwrap_err().to_string();
    begins(&unknown, "kind: 'akt' is not registered");
    contains(&unknown, "act, ");
}

#[tokio::test]
async fn running_events_of_a_paused_kind_end_and_a_waiting_drain_leases_it_after_resume() {
    let (db, client) = probe().await;
    let first = publish_acts(&client, 1).await[0];
    let (app, go) = hanging();
    let waiting = DrainOptions {
        linger: Duration::from_mins(1),
        max_events: Some(2),
        ..options()
    };
    let (report, second) = tokio::join!(drain(&db, &app, &waiting), async {
        wait_until("the handler runs", async || app.calls().len() == 1).await;
        kind("act").on(&client).await.unwrap();
        let second = publish(&client, &act("second")).await;
        go.notify_one();
        wait_until("the event in hand ends", async || {
            !end_of(&client, first).await.is_empty()
        })
        .await;
        assert_eq!(drain(&db, &app, &options()).await.leased, 0);
        resumption().on(&client).await.unwrap();
        second
    });
    assert_eq!((report.leased, report.completed), (2, 2), "{report:?}");
    assert_eq!(app.ids(), [first, second]);
}

// unblock

/// A group whose first event waits an hour for its next attempt.
async fn blocked_group(db: &TestDb, client: &Client) -> Vec<i64> {
    let mut ids = Vec::new();
    for name in ["head", "b", "c"] {
        ids.push(publish(client, &act(name).group("g")).await);
    }
    let app = ProbeApp::new(|_, _| {
        Box::pin(async { Err(HandlerError::retry("down", "no").after(Duration::from_hours(1))) })
    });
    let report = drain(db, &app, &options()).await;
    assert_eq!((report.retried, report.backlog), (1, Some(3)));
    let blocked = "SELECT head_id FROM tidegate.blocked_groups";
    assert_eq!(number(client, blocked).await, ids[0]);
    ids
}

async fn order(db: &TestDb) -> Vec<i64> {
    let app = ProbeApp::succeeding();
    drain(db, &app, &sequential()).await;
    app.ids()
}

#[tokio::test]
async fn b10_unblock_with_retry_runs_the_first_event_at_once() {
    let (db, client) = probe().await;
    let ids = blocked_group(&db, &client).await;
    assert_eq!(order(&db).await, [0; 0]);
    let report = unblock(&client, "g", UnblockAction::Retry).await;
    let found = (report.id, report.new_id, &report.refused);
    assert_eq!(found, (Some(ids[0]), None, &None));
    assert_eq!(order(&db).await, ids);
}

#[tokio::test]
async fn b10_unblock_with_cancel_ends_the_first_event_for_good() {
    let (db, client) = probe().await;
    let retention = "UPDATE tidegate.event_kind SET retention_failed = '7 days' WHERE kind = 'act'";
    client.execute(retention, &[]).await.unwrap();
    let ids = blocked_group(&db, &client).await;
    let report = unblock(&client, "g", UnblockAction::Cancel).await;
    assert_eq!((report.id, report.new_id), (Some(ids[0]), None));
    assert_eq!(order(&db).await, ids[1..]);
    let end = log_row(&client, ids[0]).await;
    has(&end, &json!({"status": "FAILED", "attempts": 1}));
    let codes: Vec<&Value> = end["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["code"])
        .collect();
    assert_eq!(codes, ["down", "cancelled"]);
    let kept = "SELECT count(*) FROM tidegate.event_log WHERE expires_at - finished_at = interval '7 days' AND status = 'FAILED'";
    assert_eq!(number(&client, kept).await, 1);
    // A filter does not bring back what an operator has ended; naming it does.
    let failed = ReplayRequest {
        status: Some("FAILED".to_owned()),
        ..last_hour()
    };
    let report = replay(&client, &failed).await;
    assert_eq!(skipped(&report), [(ids[0], "cancelled by an operator")]);
    assert_eq!(replay(&client, &by_ids(&ids[..1])).await.replayed, 1);
}

/// The replay is as delayed as its original was, by the table of before. Returns what makes it ready.
async fn waits_as_long_as(client: &Client, new: i64) -> &'static str {
    let kept = format!(
        "SELECT count(*) FROM tidegate.event_queue AS q JOIN before AS b ON b.id = q.replay_of
          WHERE q.id = {new} AND q.delayed AND q.stray AND q.available_at = b.available_at"
    );
    assert_eq!(number(client, &kept).await, 1);
    "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed"
}

#[tokio::test]
async fn b10_unblock_with_skip_keeps_the_time_for_which_the_first_event_was_planned() {
    let (db, client) = probe().await;
    let planned = act("planned")
        .group("g")
        .delay(Duration::from_hours(24 * 7));
    publish(&client, &planned).await;
    let behind = publish(&client, &act("behind").group("g")).await;
    let before = "CREATE TABLE before AS SELECT id, available_at FROM tidegate.event_queue";
    client.batch_execute(before).await.unwrap();
    let new = unblock(&client, "g", UnblockAction::Skip)
        .await
        .new_id
        .unwrap();
    let due = waits_as_long_as(&client, new).await;
    assert_eq!(order(&db).await, [behind]);
    // A time that has come is no wait.
    client.execute(due, &[]).await.unwrap();
    let newer = unblock(&client, "g", UnblockAction::Skip)
        .await
        .new_id
        .unwrap();
    assert_eq!(order(&db).await, [newer]);
}

#[tokio::test]
async fn b10_unblock_with_skip_puts_the_first_event_behind_the_others() {
    let (db, client) = probe().await;
    let ids = blocked_group(&db, &client).await;
    let before = "CREATE TABLE before AS SELECT id, available_at FROM tidegate.event_queue";
    client.batch_execute(before).await.unwrap();
    let report = unblock(&client, "g", UnblockAction::Skip).await;
    let new = report.new_id.unwrap();
    assert_eq!(report.id, Some(ids[0]));
    // It goes on waiting for its next attempt, and blocks nobody.
    let due = waits_as_long_as(&client, new).await;
    assert_eq!(order(&db).await, ids[1..]);
    client.execute(due, &[]).await.unwrap();
    assert_eq!(order(&db).await, [new]);
    assert_eq!(log_row(&client, new).await["replay_of"], ids[0]);
    assert_eq!(end_of(&client, ids[0]).await, "FAILED 1 down skipped");
    let late = publish(&client, &act("late").group("g")).await;
    let expire = "UPDATE tidegate.event_queue SET expires_at = clock_timestamp()";
    client.execute(expire, &[]).await.unwrap();
    let refused = unblock(&client, "g", UnblockAction::Skip).await;
    assert!(refused.id.is_none() && refused.refused.unwrap().contains(&late.to_string()));
    assert_eq!(live(&client).await, 1);
}

#[tokio::test]
async fn i5_an_event_that_is_cancelled_or_skipped_while_it_is_handled_is_lost_to_its_worker() {
    for how in [
        UnblockAction::Cancel,
        UnblockAction::Skip,
        UnblockAction::Retry,
    ] {
        let (db, client) = probe().await;
        let id = publish(&client, &act("0").group("g").max_attempts(3)).await;
        let ((app, go), one_event) = (hanging(), one_event());
        let (report, ()) = tokio::join!(drain(&db, &app, &one_event), async {
            wait_until("the handler runs", async || app.calls().len() == 1).await;
            assert_eq!(unblock(&client, "g", how).await.id, Some(id));
            go.notify_one();
        });
        assert_eq!(report.lease_lost, 1, "{how:?}: {report:?}");
        // What is left of it may have been taken up by the same drain or not.
        drain(&db, &ProbeApp::succeeding(), &options()).await;
        let expected = match how {
            UnblockAction::Cancel => ("FAILED 1 cancelled", 1),
            UnblockAction::Skip => ("FAILED 1 skipped", 2),
            UnblockAction::Retry => ("COMPLETED 2", 1),
        };
        let ends = number(&client, "SELECT count(*) FROM tidegate.event_log").await;
        let end = end_of(&client, id).await;
        assert_eq!((end.as_str(), ends), expected, "{how:?}");
    }
}

#[tokio::test]
async fn i7_when_the_first_event_ends_at_the_last_moment_the_next_one_is_left_alone() {
    let (db, [mut worker, operator, witness]) = probe_sessions().await;
    let ids = blocked_group(&db, &witness).await;
    let transaction = worker.transaction().await.unwrap();
    let end = "DELETE FROM tidegate.event_queue WHERE id = $1";
    transaction.execute(end, &[&ids[0]]).await.unwrap();
    let waiting = tokio::spawn(async move { unblock(&operator, "g", UnblockAction::Cancel).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let report = waiting.await.unwrap();
    let refused = format!("event {} has just ended", ids[0]);
    assert_eq!((report.id, report.refused), (None, Some(refused)));
    assert_eq!(order(&db).await, ids[1..]);
    assert_eq!(audit(&witness).await[0]["count"], 0);
}

#[tokio::test]
async fn unblocking_a_group_without_live_events_is_reported_and_recorded() {
    let (_db, client) = probe().await;
    for how in [
        UnblockAction::Retry,
        UnblockAction::Skip,
        UnblockAction::Cancel,
    ] {
        let report = unblock(&client, "nobody's", how).await;
        assert_eq!(report.id, None);
        let refused = report.refused.unwrap();
        contains(&refused, "nobody''s");
        contains(&refused, "no live events");
    }
    assert_eq!(audit(&client).await.len(), 3);
}

// audit

#[tokio::test]
async fn every_try_leaves_one_audit_row_in_its_own_transaction() {
    let (db, mut client) = probe().await;
    let ids = ended(&db, &client, 2).await;
    let before = SystemTime::now() - Duration::from_mins(5);
    let transaction = client.transaction().await.unwrap();
    by_ids(&ids).on(&transaction).await.unwrap();
    let inside = transaction
        .query("SELECT FROM tidegate.audit", &[])
        .await
        .unwrap();
    assert_eq!(inside.len(), 1);
    transaction.rollback().await.unwrap();
    assert_eq!((audit(&client).await.len(), live(&client).await), (0, 0));

    replay(&client, &by_ids(&ids)).await;
    replay(&client, &by_ids(&ids)).await;
    unblock(&client, "g", UnblockAction::Retry).await;
    let rows = audit(&client).await;
    assert_eq!(rows.len(), 3);
    let row = &rows[0];
    for (field, value) in [
        ("action", json!("replay")),
        ("actor", json!("ada")),
        ("session_user_name", json!("postgres")),
        ("count", json!(2)),
        ("ids", json!(ids)),
        ("reason", json!("the service is back")),
    ] {
        assert_eq!(row[field], value, "{field}: {row}");
    }
    assert_eq!(row["filter"]["ids"], json!(ids));
    has(&rows[1], &json!({"count": 0, "ids": []}));
    assert_eq!(rows[2]["filter"], json!({"group_key": "g", "how": "retry"}));
    let at: SystemTime = client
        .query_one("SELECT min(at) FROM tidegate.audit", &[])
        .await
        .unwrap()
        .get(0);
    assert!(at > before);
    for change in [
        "DELETE FROM tidegate.audit",
        "UPDATE tidegate.audit SET actor = 'eve'",
    ] {
        assert!(client.execute(change, &[]).await.is_err(), "{change}");
    }
}

// arguments, invocation

type Change = fn(&mut ReplayRequest);

/// A change of a good request, and what the refusal says.
const BAD_REPLAYS: &[(Change, &str)] = &[
    (
        |r| r.audit.reason = String::from(" \n"),
        "reason: must be a text that says why",
    ),
    (
        |r| r.audit.reason = "x".repeat(1001),
        "reason: must have at most 1000",
    ),
    (
        |r| r.audit.actor = Some(String::new()),
        "actor: must have 1 to 200",
    ),
    (
        |r| r.since = None,
        "ids, since: one of them must be given, got neither",
    ),
    (|r| (r.since, r.until) = (None, r.since), "since: "),
    (
        |r| r.until = Some(TimeArg::Ago(Duration::from_hours(24))),
        "until: ",
    ),
    (
        |r| r.ids = Some(vec![1]),
        "ids: must not be given with a filter",
    ),
    (
        |r| (r.since, r.ids) = (None, Some(vec![])),
        "ids: must be 1 to 10000",
    ),
    (
        |r| (r.since, r.ids) = (None, Some(vec![1; 10_001])),
        "ids: must be 1 to 10000",
    ),
    (
        |r| r.status = Some("PENDING".to_owned()),
        "status: must be COMPLETED, COMPLETED_WITH_ERRORS or FAILED",
    ),
    (|r| r.status = Some("PROCESSING".to_owned()), "status: "),
    (
        |r| r.kind = Some("akt".to_owned()),
        "kind: 'akt' is not registered; registered are: act, ",
    ),
    (|r| r.limit = Some(0), "limit: must be 1 to 100000"),
    (|r| r.limit = Some(i64::MAX), "limit: must be 1 to 100000"),
    (|r| r.expires_in = Some(Duration::ZERO), "expires_in: "),
];

#[tokio::test]
async fn a_retired_kind_cannot_be_published_and_one_with_live_events_cannot_be_retired() {
    let (db, client) = probe().await;
    publish_acts(&client, 2).await;
    let retire = RetireRequest {
        kind: "act".to_owned(),
        audit: Audit::of("nobody handles it"),
    };
    let busy = retire.on(&client).await.unwrap_err();
    let told = busy.to_string();
    contains(&told, "kind: 'act' must have no live events, and has 2");
    let found = drain(&db, &ProbeApp::succeeding(), &options())
        .await
        .completed;
    assert_eq!(found, 2);
    retire.on(&client).await.unwrap();
    let refused = queue::publish(&client, &act("late")).await.unwrap_err();
    contains(&refused.to_string(), "'act' is not registered");
    let finished = "SELECT count(*) FROM tidegate.event_log WHERE kind = 'act'";
    assert_eq!(number(&client, finished).await, 2);
    let rows = audit(&client).await;
    assert_eq!((rows.len(), &rows[0]["action"]), (1, &json!("retire")));
}

/// Calls from SQL, and how the refusal begins.
const BAD_CALLS: &str = "
    replay(since := '-infinity', reason := 'why') => since: must be a finite time
    replay(ids := ARRAY[1]) => reason:
    requeue(NULL, 'why') => ids: must be 1 to 10000
    requeue(ARRAY[1, NULL], 'why') => ids: must be numbers
    requeue(ARRAY[1], NULL) => reason:
    unblock('', 'retry', 'why') => group_key:
    unblock(NULL, 'retry', 'why') => group_key:
    unblock('g', 'kick', 'why') => how: must be retry, skip or cancel
    unblock('g', NULL, 'why') => how: must be retry, skip or cancel
    unblock('g', 'retry', '') => reason:
    pause(NULL) => kind: NULL is not registered
    resume('akt') => kind: 'akt' is not registered
    retire('akt', 'why') => kind: 'akt' is not registered
    retire('act', NULL) => reason:
";

#[tokio::test]
async fn f5_arguments_that_are_not_allowed_are_refused_by_name() {
    let (_db, client) = probe().await;
    for (change, says) in BAD_REPLAYS {
        let mut request = last_hour();
        change(&mut request);
        let error = request.on(&client).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    for (call, begins) in rows(BAD_CALLS) {
        refused(&client, &format!("SELECT tidegate.{call}"), begins).await;
    }
    assert!(audit(&client).await.is_empty());
}

#[tokio::test]
async fn the_notes_of_an_event_are_found_among_many_and_go_with_it() {
    let (db, mut client) = probe().await;
    let ids = ended(&db, &client, 2).await;
    let (id, neighbour) = (ids[0], ids[1]);
    // Those on other events, of which there are many in the log.
    execute(
        &client,
        "INSERT INTO tidegate.note (event_id, text) SELECT 1000000 + n, 'of others' FROM generate_series(1, 20000) AS n",
    )
    .await;
    let note = async |id: i64, text: &str| {
        let call = format!("SELECT tidegate.note({id}, '{text}', 'asked')");
        client.batch_execute(&call).await.unwrap();
    };
    for n in 1..=101 {
        note(id, &format!("canary {n}")).await;
    }
    note(neighbour, "canary of the neighbour").await;
    note(i64::MAX, "canary of nobody").await;
    let shown = notes_of(&mut client, id).await;
    assert_eq!((shown.len(), shown[0].as_str()), (100, "canary 2"));
    for statistics in ["ANALYZE tidegate.note", "SELECT"] {
        client.batch_execute(statistics).await.unwrap();
        notes_of(&mut client, id).await;
    }
    let forget = format!("SELECT tidegate.forget(ARRAY[{id}], 'asked')");
    client.batch_execute(&forget).await.unwrap();
    assert_eq!(notes_of(&mut client, id).await, [""; 0]);
    let kept = notes_of(&mut client, neighbour).await;
    assert_eq!(kept, ["canary of the neighbour"]);
    let left = "SELECT count(*) FROM tidegate.note WHERE text LIKE 'canary%'";
    assert_eq!(number(&client, left).await, 1);

    // The neighbour leaves the log, in a batch or with its partition.
    for day in ["clock_timestamp()", "clock_timestamp() - interval '2 days'"] {
        let [id] = ended(&db, &client, 1).await[..] else {
            panic!("one ends");
        };
        let note = format!("SELECT tidegate.note({id}, 'canary', 'asked')");
        client.batch_execute(&note).await.unwrap();
        let partition = format!(
            "UPDATE tidegate.event_log SET expires_at = {day} WHERE id IN ({id}, {neighbour});
             SELECT tidegate.make_log_partition((({day}) AT TIME ZONE 'UTC')::date)"
        );
        client.batch_execute(&partition).await.unwrap();
        let (database, options) = (db.database(), CleanupOptions::default());
        let cleaned = cleanup(&database, &options, CleanupHooks::default()).await;
        cleaned.unwrap();
        assert_eq!(number(&client, left).await, 0, "{day}");
    }
}

/// The remarks on an event. They are read without a look at those on others.
async fn notes_of(client: &mut Client, id: i64) -> Vec<String> {
    let transaction = client.transaction().await.unwrap();
    let notes = format!("SELECT text FROM tidegate.notes({id})");
    let rows = transaction.query(&notes, &[]).await.unwrap();
    let read = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
                  FROM pg_stat_xact_user_tables WHERE relid = 'tidegate.note'::regclass";
    let read: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
    // The server also counts the calls just before.
    assert!(read < 1000, "{read} rows");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_publish_is_recorded_within_savepoints_and_none_of_another_transaction_is() {
    let (_db, client) = probe().await;
    let publish = "SELECT tidegate.record_publish(p.id, 'by hand', 'ada') FROM tidegate.publish('note', NULL) AS p";
    for around in [
        format!("BEGIN; {publish}; COMMIT"),
        format!("BEGIN; SAVEPOINT a; SAVEPOINT b; {publish}; RELEASE b; RELEASE a; COMMIT"),
        format!(
            "BEGIN; SAVEPOINT a; SELECT tidegate.publish('note', NULL); RELEASE a; SAVEPOINT b; {publish}; COMMIT"
        ),
    ] {
        client.batch_execute(&around).await.unwrap();
    }
    let recorded = "SELECT count(*) FROM tidegate.audit WHERE action = 'publish' AND actor = 'ada'";
    assert_eq!(number(&client, recorded).await, 3);
    let earlier =
        "SELECT tidegate.record_publish(min(id), 'by hand', 'ada') FROM tidegate.event_queue";
    let refused = client.batch_execute(earlier).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message().to_owned();
    contains(
        &refused,
        "must be an event that this transaction has published",
    );
}
