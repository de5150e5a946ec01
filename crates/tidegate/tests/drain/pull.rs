//! Events handled by SQL: `poll`, `finalize`, `retry`, `extend` and `settle`, as a program with its own loop
//! calls them, alone, beside others of its kind and beside drains.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use test_support::as_user;
use test_support::probe::{
    ProbeApp, act, disorder, drain, end_of, expire_leases, live, number, options, probe_database,
    publish, publish_acts,
};
use test_support::{self as support, TestDb, begins, column, contains, rows, words};
use tidegate::connect::Client;
use tidegate::{Error, Fault, JobStatus, PollRequest, PolledEvent, RetryPolicy};
use tidegate_core::queue;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

const MINUTE: Duration = Duration::from_mins(1);

fn request(most: u32) -> PollRequest<'static> {
    PollRequest {
        kinds: &["act"],
        most,
        lease: MINUTE,
        now: None,
    }
}

async fn take(client: &Client, most: u32) -> Vec<PolledEvent> {
    request(most).poll(client).await.unwrap()
}

async fn one(client: &Client) -> PolledEvent {
    take(client, 1).await.pop().expect("an event is ready")
}

/// Whether a call was refused because of its lease.
fn is_lost<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::LeaseLost(_)))
}

fn ids(events: &[PolledEvent]) -> Vec<i64> {
    events.iter().map(|event| event.id).collect()
}

/// What `settle` says of outcomes, in its order.
async fn settle(client: &Client, token: Uuid, outcomes: &Value) -> Vec<(i64, String)> {
    let sql = "SELECT id, outcome FROM tidegate.settle($1, $2)";
    let rows = client.query(sql, &[&token, outcomes]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn c6_c8_poll_returns_one_event_or_none_and_finalize_ends_it_by_its_list_of_errors() {
    let db = probe_database().await;
    let client = db.client().await;
    assert!(take(&client, 1).await.is_empty());
    let published = publish_acts(&client, 3).await;
    let first = take(&client, 1).await.remove(0);
    assert_eq!(first.id, published[0]);
    assert_eq!((first.attempt, first.max_attempts), (1, 5));
    assert_eq!(first.payload.as_ref().unwrap().get(), r#"{"name":"0"}"#);
    let lasts = first.lease_expires_at.duration_since(SystemTime::now());
    assert!(lasts.unwrap() <= MINUTE + MINUTE, "the database's clock");
    let result = json!({"sent": 1});
    let status = first
        .finalize(&client, &[], Some(&result.clone().into()))
        .await;
    assert_eq!(status.unwrap(), JobStatus::Processed);
    let errors = [
        Fault::new("409", "conflict"),
        Fault::new("422", "no address"),
    ];
    let status = one(&client).await.finalize(&client, &errors, None).await;
    assert_eq!(status.unwrap(), JobStatus::Failed);
    let end = "COMPLETED_WITH_ERRORS 1 409 422";
    assert_eq!(end_of(&client, published[1]).await, end);
    let stored = "SELECT result FROM tidegate.event_log WHERE id = $1";
    let stored = client.query_one(stored, &[&published[0]]).await.unwrap();
    assert_eq!(stored.get::<_, Value>(0), result);
    // Whoever dies after its poll leaves an attempt behind, and the event to the next.
    assert_eq!(ids(&take(&client, 10).await), published[2..]);
    assert!(take(&client, 10).await.is_empty());
    expire_leases(&client).await;
    let again = take(&client, 10).await;
    assert_eq!((again[0].id, again[0].attempt), (published[2], 2));
}

#[tokio::test]
async fn c9_d5_an_end_is_recorded_once_however_often_and_by_whomever_it_is_asked_for() {
    let db = probe_database().await;
    let (client, other) = (db.client().await, db.client().await);
    publish_acts(&client, 20).await;
    for _ in 0..20 {
        let lease = one(&client).await;
        let late = [Fault::new("late", "too late")];
        let (a, b) = tokio::join!(
            lease.finalize(&client, &[], None),
            lease.finalize(&other, &late, None),
        );
        assert_eq!(a.unwrap(), b.unwrap(), "both say what is stored");
        lease.finalize(&client, &[], None).await.unwrap();
    }
    let rows = "SELECT count(*) FROM tidegate.event_log";
    assert_eq!((number(&client, rows).await, live(&client).await), (20, 0));
    let unknown = "SELECT tidegate.finalize(4711, gen_random_uuid())";
    let unknown = client.batch_execute(unknown).await.unwrap_err();
    assert_eq!(
        unknown.as_db_error().unwrap().message(),
        "id: must be the id of an event, got 4711, which is neither in the queue nor in the log"
    );
    let leases = "SELECT count(*) FROM tidegate.lease WHERE NOT ended";
    assert_eq!(number(&client, leases).await, 0);
}

/// How a lease is lost.
const LOSSES: [&str; 3] = [
    "UPDATE tidegate.lease SET expires_at = clock_timestamp(); SELECT tidegate.sweep(NULL, '{}')",
    "SELECT tidegate.requeue(ARRAY(SELECT id FROM tidegate.event_queue), 'it hangs')",
    "SELECT tidegate.cancel(ARRAY(SELECT id FROM tidegate.event_queue), reason => 'not wanted')",
];

#[tokio::test]
async fn nothing_of_a_transaction_stays_whose_lease_was_lost() {
    let db = probe_database().await;
    let mut client = db.client().await;
    client
        .batch_execute("CREATE TABLE orders (id bigint)")
        .await
        .unwrap();
    for loss in LOSSES {
        publish_acts(&client, 1).await;
        let event = one(&client).await;
        client.batch_execute(loss).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction
            .execute("INSERT INTO orders VALUES ($1)", &[&event.id])
            .await
            .unwrap();
        let ended = event.finalize(&transaction, &[], None).await;
        assert!(is_lost(&ended), "{loss}: {ended:?}");
        transaction.commit().await.unwrap();
        assert_eq!(number(&client, "SELECT count(*) FROM orders").await, 0);
        let retried = event.retry(&client, None, None).await;
        assert!(is_lost(&retried), "{loss}: {retried:?}");
        assert!(is_lost(&event.extend(&client, MINUTE).await), "{loss}");
        let settled = settle(&client, event.token, &json!([{"id": event.id}])).await;
        assert_eq!(settled, [(event.id, "lost".to_owned())]);
        client
            .batch_execute("SELECT tidegate.cancel(kind => 'act', reason => 'next')")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn follow_ups_are_published_with_the_end_or_not_at_all() {
    let db = probe_database().await;
    let mut client = db.client().await;
    publish(&client, [act("a").correlation("case 7")]).await;
    let PolledEvent { id, token, .. } = one(&client).await;
    let end = "SELECT tidegate.finalize($1, $2, follow_ups => $3)";
    let next = json!([{"kind": "act", "payload": {"name": "b"}, "group_key": "g"}, {"kind": "act", "delay": 60}]);
    let transaction = client.transaction().await.unwrap();
    transaction
        .execute(end, &[&id, &token, &next])
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(live(&client).await, 1);
    let bad = json!([{"kind": "act"}, {"kind": "akt"}]);
    let refused = client.execute(end, &[&id, &token, &bad]).await.unwrap_err();
    let said = refused.as_db_error().unwrap().message();
    begins(said, "event 2: kind: 'akt' is not registered");
    client.execute(end, &[&id, &token, &next]).await.unwrap();
    let children = "SELECT count(*) FROM tidegate.event_queue WHERE parent_id = $1 AND correlation_id = 'case 7'";
    let children: i64 = client.query_one(children, &[&id]).await.unwrap().get(0);
    assert_eq!(children, 2);
    // The answer was lost: the same call again publishes nothing more.
    client.execute(end, &[&id, &token, &next]).await.unwrap();
    assert_eq!(live(&client).await, 2);
}

#[tokio::test]
async fn b6_d5_a_retry_counts_up_to_the_last_attempt_and_a_snooze_does_not() {
    let db = probe_database().await;
    let client = db.client().await;
    let id = publish(&client, [act("a").max_attempts(3)]).await[0];
    let fault = Fault::new("503", "no answer");
    for attempt in 1..=3 {
        for _ in 0..2 {
            let event = one(&client).await;
            assert_eq!(event.attempt, attempt);
            event
                .retry(&client, None, Some(Duration::ZERO))
                .await
                .unwrap();
        }
        let retried = one(&client)
            .await
            .retry(&client, Some(&fault), Some(Duration::ZERO))
            .await;
        assert_eq!(retried.unwrap().0.is_none(), attempt == 3, "the last one");
    }
    let end = "FAILED 3 503 503 503 attempts_exhausted";
    assert_eq!(end_of(&client, id).await, end);
    // What always wants to run later runs out of snoozes.
    publish_acts(&client, 1).await;
    let sql =
        r#"UPDATE tidegate.event_queue SET progress = '{"snoozed": {"times": 1000, "why": ""}}'"#;
    client.batch_execute(sql).await.unwrap();
    let (next, _) = one(&client).await.retry(&client, None, None).await.unwrap();
    assert!(
        next.unwrap() <= SystemTime::now() + MINUTE,
        "a second's backoff"
    );
    let attempts = "SELECT attempts::bigint FROM tidegate.event_queue";
    assert_eq!(number(&client, attempts).await, 1);
}

#[tokio::test]
async fn a_retry_waits_as_long_as_a_drain_would_have_it_wait() {
    let db = probe_database().await;
    let client = db.client().await;
    let own = RetryPolicy {
        base: Duration::from_secs(3),
        max: Duration::from_mins(2),
    };
    for policy in [RetryPolicy::default(), own] {
        if policy == own {
            let sql = r#"UPDATE tidegate.event_kind SET policy = '{"backoff_ms": 3000, "backoff_max_ms": 120000}'"#;
            client.batch_execute(sql).await.unwrap();
        }
        for attempt in [1_i32, 2, 3, 7, 11, 40, 1000] {
            for random in [0.0, 0.5, 0.999] {
                let sql =
                    "SELECT extract(epoch FROM tidegate.backoff('act', $1, $2))::double precision";
                let row = client.query_one(sql, &[&attempt, &random]).await.unwrap();
                let ours = policy.delay(attempt.unsigned_abs(), random).as_secs_f64();
                let theirs: f64 = row.get(0);
                assert!(
                    (ours - theirs).abs() < 1e-3,
                    "{attempt}, {random}: {ours} {theirs}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_events_of_a_group_end_in_their_order_and_leave_together() {
    let db = probe_database().await;
    let client = db.client().await;
    for _ in 0..3 {
        queue::publish(&client, &act("a").group("g")).await.unwrap();
    }
    let held = take(&client, 10).await;
    let [first, second, third] = &held[..] else {
        panic!("{held:?}")
    };
    let early = second.finalize(&client, &[], None).await.unwrap_err();
    let (one, two) = (first.id, second.id);
    let expected = format!("event {two}: event {one} of its group comes first");
    assert_eq!(early.to_string(), expected);
    let fault = Fault::new("x", "");
    let (_, left_too) = first
        .retry(&client, Some(&fault), Some(MINUTE))
        .await
        .unwrap();
    assert_eq!(left_too, [second.id, third.id]);
    assert!(is_lost(&second.finalize(&client, &[], None).await));
    assert!(
        take(&client, 10).await.is_empty(),
        "the group waits for its first"
    );
    assert_eq!(disorder(&client).await, [""; 0]);
}

#[tokio::test]
async fn an_operator_takes_events_and_extend_says_so() {
    let db = probe_database().await;
    let client = db.client().await;
    let published = publish_acts(&client, 3).await;
    let event = take(&client, 3).await.remove(0);
    let sql = "SELECT tidegate.cancel(ARRAY[$1::bigint], reason => 'not wanted')";
    client.execute(sql, &[&published[1]]).await.unwrap();
    let hour = Duration::from_hours(1);
    let (until, held) = event.extend(&client, hour).await.unwrap();
    assert_eq!(held, [published[0], published[2]]);
    assert!(until > SystemTime::now() + MINUTE * 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_pollers_and_a_drain_on_one_queue_share_it_and_keep_its_order() {
    let db = probe_database().await;
    let client = db.client().await;
    for n in 0..400 {
        let event = act(&n.to_string());
        let event = if n % 2 == 0 {
            event.group(format!("g{}", n % 20))
        } else {
            event
        };
        queue::publish(&client, &event).await.unwrap();
    }
    let mut pollers = Vec::new();
    for _ in 0..3 {
        pollers.push(tokio::spawn(work_off(db.client().await)));
    }
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    let mut ended = app.ids();
    for poller in pollers {
        ended.extend(poller.await.unwrap());
    }
    while live(&client).await > 0 {
        ended.extend(work_off(db.client().await).await);
    }
    ended.sort_unstable();
    let before = ended.len();
    ended.dedup();
    assert_eq!((before, ended.len()), (400, 400), "each once");
    let overtaken = "SELECT count(*) FROM tidegate.event_log AS a JOIN tidegate.event_log AS b
                      ON a.group_key = b.group_key AND a.id < b.id AND a.finished_at > b.finished_at";
    assert_eq!(number(&client, overtaken).await, 0);
    assert_eq!(disorder(&client).await, [""; 0]);
}

/// Handles events until there are none.
async fn work_off(client: Client) -> Vec<i64> {
    let mut done = Vec::new();
    loop {
        let polled = take(&client, 7).await;
        if polled.is_empty() {
            return done;
        }
        for event in polled {
            event.finalize(&client, &[], None).await.unwrap();
            done.push(event.id);
        }
    }
}

#[tokio::test]
async fn what_killed_a_poller_is_charged_once_and_comes_alone() {
    let db = probe_database().await;
    let client = db.client().await;
    let published = publish_acts(&client, 4).await;
    take(&client, 3).await;
    expire_leases(&client).await;
    for id in &published[..3] {
        let polled = take(&client, 10).await;
        assert_eq!((ids(&polled), polled[0].attempt), (vec![*id], 2));
        polled[0].finalize(&client, &[], None).await.unwrap();
    }
    assert_eq!(ids(&take(&client, 10).await), published[3..]);
}

#[tokio::test]
async fn what_no_handler_may_see_ends_within_the_poll() {
    let db = probe_database().await;
    let client = db.client().await;
    let published = publish_acts(&client, 5).await;
    let sql = format!(
        "UPDATE tidegate.event_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE id = {};
         UPDATE tidegate.event_queue SET attempts = max_attempts WHERE id = {};
         UPDATE tidegate.event_queue SET kind = 'nobodys' WHERE id = {}",
        published[0], published[1], published[2]
    );
    client.batch_execute(&sql).await.unwrap();
    assert_eq!(ids(&take(&client, 1).await), [published[3]]);
    for (id, code) in published
        .iter()
        .zip(["expired", "attempts_exhausted", "no_handler"])
    {
        let end = end_of(&client, *id).await;
        let is_so = end.starts_with("FAILED ") && end.ends_with(code);
        assert!(is_so, "{end}, not {code}");
    }
    let attempts = "SELECT sum(attempts)::bigint FROM tidegate.event_log";
    let found = number(&client, attempts).await;
    assert_eq!(found, 5, "those that it had before");
}

#[tokio::test]
async fn the_doctor_names_limits_that_a_program_which_polls_does_not_keep() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 1).await;
    let limit = r#"SELECT tidegate.register_kind('act', '{"concurrency": 2}')"#;
    client.batch_execute(limit).await.unwrap();
    let doctor = "SELECT finding FROM tidegate.doctor(wanted => 'limits of pulls')";
    let told = async || column::<String>(&client, doctor).await.concat();
    let warning = "programs poll for kinds with limits, which only drains keep: act";
    assert!(!told().await.contains(warning));
    take(&client, 1).await;
    contains(&told().await, warning);
}

#[tokio::test]
async fn c6_a_test_says_what_time_it_is_and_nobody_else_does() {
    let db = probe_database().await;
    let client = db.client().await;
    let day = Duration::from_hours(24);
    let tomorrow = publish(&client, [act("a").delay(day)]).await[0];
    let soon = publish(&client, [act("b").start_within(day / 2)]).await[0];
    let at = |now| PollRequest {
        now: Some(now),
        ..request(10)
    };
    let now = SystemTime::now();
    assert!(
        at(now - day).poll(&client).await.unwrap().is_empty(),
        "not published yet"
    );
    let polled = at(now + day + MINUTE).poll(&client).await.unwrap();
    assert_eq!(ids(&polled), [tomorrow]);
    let over = polled[0].lease_expires_at;
    let runs = over.duration_since(now + day).unwrap();
    let off = runs.abs_diff(MINUTE + MINUTE);
    assert!(
        off < Duration::from_millis(1),
        "it runs from the given time on"
    );
    let early = at(over - Duration::from_secs(1)).poll(&client).await;
    assert!(early.unwrap().is_empty(), "its poller may live");
    let again = at(over).poll(&client).await.unwrap();
    assert_eq!((ids(&again), again[0].attempt), (vec![tomorrow], 2));
    assert_eq!(end_of(&client, soon).await, "FAILED 0 expired");
    let login = puller(&db).await;
    let refused = at(now).poll(&login).await.unwrap_err();
    assert_eq!(refused.sqlstate(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
}

/// A login that may do what a program with its own loop needs, and nothing else.
async fn puller(db: &TestDb) -> Client {
    let client = db.client().await;
    let database = db.database();
    let migrate = tidegate::migrate::Migrate::new(&["act"]);
    migrate.with_roles().run(&database).await.unwrap();
    let name = format!("puller_of_{}", db.name());
    let sql = format!("DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN IN ROLE tidegate_pull");
    client.batch_execute(&sql).await.unwrap();
    support::connect(&as_user(db.direct(), &name)).await
}

#[tokio::test]
async fn the_role_for_it_reaches_every_step_and_no_table() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 6).await;
    let login = puller(&db).await;
    let polled = take(&login, 5).await;
    let token = polled[0].token;
    polled[0].extend(&login, MINUTE).await.unwrap();
    polled[0].finalize(&login, &[], None).await.unwrap();
    polled[1].retry(&login, None, None).await.unwrap();
    let outcomes = json!([{"id": polled[2].id, "verdict": "release"}]);
    assert_eq!(settle(&login, token, &outcomes).await[0].1, "released");
    for sql in [
        "SELECT FROM tidegate.event_queue",
        "SELECT FROM tidegate.lease",
        "SELECT FROM tidegate.event_log",
        "SELECT tidegate.cancel(kind => 'act', reason => 'x')",
        "SELECT tidegate.finalize_leased(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ] {
        let refused = login.batch_execute(sql).await.unwrap_err();
        let found = refused.code();
        assert_eq!(found, Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }
    // The token of a drain's lease ends nothing here.
    let leased = queue::lease(&client, &test_support::probe::lease_request())
        .await
        .unwrap();
    let lease = leased.events[0].lease;
    let stolen = "SELECT tidegate.finalize($1, $2)";
    let stolen = login
        .execute(stolen, &[&lease.id, &lease.token])
        .await
        .unwrap_err();
    assert_eq!(stolen.code().unwrap().code(), "TG001");
}

#[tokio::test]
async fn settle_ends_each_event_by_its_verdict() {
    let db = probe_database().await;
    let client = db.client().await;
    let published = publish_acts(&client, 8).await;
    let sql = "UPDATE tidegate.event_queue SET max_attempts = 1 WHERE id = $1";
    client.execute(sql, &[&published[5]]).await.unwrap();
    let token = take(&client, 10).await[0].token;
    let outcomes = json!([
        {"id": published[7]},
        {"id": published[0], "result": {"n": 1}},
        {"id": published[1], "verdict": "done", "errors": [{"code": "odd", "message": "m", "details": {"k": 1}}]},
        {"id": published[2], "verdict": "reject", "errors": []},
        {"id": published[3], "verdict": "retry", "errors": [{"code": "503"}], "after": 60},
        {"id": published[4], "verdict": "snooze", "after": 60},
        {"id": published[5], "verdict": "retry", "errors": null},
        {"id": published[6], "verdict": "release"},
    ]);
    let said = settle(&client, token, &outcomes).await;
    let expected = words("ended ended ended retried retried failed released ended");
    for ((id, outcome), (published, expected)) in said.iter().zip(published.iter().zip(expected)) {
        assert_eq!((id, outcome.as_str()), (published, expected));
    }
    let statuses = [
        "COMPLETED",
        "COMPLETED_WITH_ERRORS",
        "COMPLETED_WITH_ERRORS",
    ];
    for (id, expected) in published.iter().zip(statuses) {
        let end = end_of(&client, *id).await;
        assert_eq!(end.split(' ').next(), Some(expected));
    }
    let attempts = "SELECT array_agg(attempts ORDER BY id) FROM tidegate.event_queue";
    let attempts: Vec<i32> = client.query_one(attempts, &[]).await.unwrap().get(0);
    assert_eq!(attempts, [1, 0, 0], "retried, snoozed, released");
    let again = settle(&client, token, &outcomes).await;
    let said: Vec<&str> = again.iter().map(|(_, outcome)| outcome.as_str()).collect();
    assert_eq!(
        said,
        [
            "already", "already", "already", "lost", "lost", "failed", "lost", "already"
        ]
    );
}

#[tokio::test]
async fn poll_passes_any_number_of_groups_that_wait() {
    let db = probe_database().await;
    let client = db.client().await;
    let groups = (0..100).flat_map(|n| [n, n]);
    let mut events: Vec<_> = groups.map(|n| act("waits").group(n.to_string())).collect();
    events.push(act("ready"));
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let heads: Vec<i64> = published
        .iter()
        .step_by(2)
        .take(100)
        .map(|p| p.id)
        .collect();
    let wait = "UPDATE tidegate.event_queue SET available_at = now() + interval '1 hour' WHERE id = ANY ($1)";
    client.execute(wait, &[&heads]).await.unwrap();
    assert_eq!(ids(&take(&client, 1).await), [published[200].id]);
    assert!(take(&client, 1).await.is_empty());
}

#[tokio::test]
async fn settle_goes_on_behind_an_event_that_is_busy_and_settles_it_at_the_second_call() {
    let db = probe_database().await;
    let client = db.client().await;
    let events = ["0", "1"].map(|name| act(name).group("g"));
    let ids = queue::publish_batch(&client, &events).await.unwrap();
    publish_acts(&client, 1).await;
    let polled = take(&client, 3).await;
    let mut producer = db.client().await;
    let holding = producer.transaction().await.unwrap();
    queue::publish(&holding, &act("2").group("other"))
        .await
        .unwrap();
    let mut holding = Some(holding);
    let follow_up = json!({"kind": "act", "payload": {"name": "3"}, "group_key": "other"});
    let outcomes = json!([
        {"id": ids[0].id, "follow_ups": [follow_up]}, {"id": ids[1].id}, {"id": polled[2].id},
    ]);
    for said in ["busy busy ended", "ended ended already"] {
        let settled = settle(&client, polled[0].token, &outcomes).await;
        let settled: Vec<&str> = settled.iter().map(|(_, outcome)| &**outcome).collect();
        assert_eq!(settled.join(" "), said);
        if let Some(holding) = holding.take() {
            holding.rollback().await.unwrap();
        }
    }
}

/// Calls that are refused, and the beginnings of what they are told.
const REFUSED: &str = r#"
    poll('{}') => kinds: must be 1 to 100 kinds, got 0
    poll('{act,NULL}') => kinds: must be names of kinds, got NULL
    poll('{akt}') => kind: 'akt' is not registered; registered are: act
    poll('{act}', 0) => most: must be 1 to 1000, got 0
    poll('{act}', 1001) => most: must be 1 to 1000, got 1001
    poll('{act}', 1, '0.5 s') => lease: must be 1 second to 12 hours, got 00:00:00.5
    poll('{act}', 1, '13 h') => lease: must be 1 second to 12 hours, got 13:00:00
    poll('{act}', 1, '1 min', 'infinity') => now: must be a finite time, got infinity
    finalize(ID, TOKEN, '{}') => errors: must be an array of objects, got object
    finalize(ID, TOKEN, '[1]') => errors: must be objects with code, message and details, got 1 at 1
    finalize(ID, TOKEN, '[{"cod": "x"}]') => errors: must be objects with code, message and details
    finalize(ID, TOKEN, follow_ups => '{}') => follow_ups: must be a JSON array of objects, got object
    finalize(ID, TOKEN, result => to_jsonb(repeat('x', 1048576))) => result: must have at most 1048576 bytes, got 1048578
    finalize(NULL, TOKEN) => id: must be the id of an event, got NULL
    finalize(ID, NULL) => token: must be the token of a lease, got NULL
    retry(ID, TOKEN, delay => '-1 s') => delay: must be 0 to 36500 days, got -00:00:01
    retry(ID, TOKEN, charged => NULL) => charged: must be true or false, got NULL
    extend(TOKEN, '1 ms') => lease: must be 1 second to 12 hours
    settle(TOKEN, '[]') => outcomes: must be an array of 1 to 1000 objects, got array
    settle(TOKEN, '[1]') => outcome 1: must be an object, got number
    settle(TOKEN, '[{"id": 1, "verdickt": 1}]') => outcome 1: must have no fields but id, verdict
    settle(TOKEN, '[{"id": "x"}]') => outcome 1: id: must be the id of an event, got x
    settle(TOKEN, '[{"id": 1, "verdict": "ok"}]') => outcome 1: verdict: must be done, retry, reject, snooze or release
    settle(TOKEN, '[{"id": 1, "after": -1}]') => outcome 1: after: must be 0 to 86400 seconds, got -1
"#;

#[tokio::test]
async fn bad_input_is_refused_with_the_name_of_the_field() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 1).await;
    let event = one(&client).await;
    let (id, token) = (event.id, event.token);
    let of_lease = |call: &str| {
        call.replace("ID", &id.to_string())
            .replace("TOKEN", &format!("'{token}'"))
    };
    for (call, says) in rows(REFUSED) {
        let sql = format!("SELECT * FROM tidegate.{}", of_lease(call));
        let refused = client.batch_execute(&sql).await.expect_err(call);
        let said = refused.as_db_error().unwrap();
        begins(said.message(), says);
        assert_eq!(said.code(), &SqlState::INVALID_PARAMETER_VALUE, "{call}");
    }
    // Nothing of it was done.
    assert_eq!(live(&client).await, 1);
    event.finalize(&client, &[], None).await.unwrap();
}

#[tokio::test]
async fn errors_have_the_limits_of_a_handlers() {
    let db = probe_database().await;
    let client = db.client().await;
    let id = publish_acts(&client, 1).await[0];
    let mut errors = vec![
        json!({"code": "c".repeat(300), "message": "m".repeat(5000), "details": "d".repeat(20000)}),
    ];
    errors.extend((0..150).map(|_| json!({})));
    let token = one(&client).await.token;
    let sql = "SELECT tidegate.finalize($1, $2, $3)";
    client
        .execute(sql, &[&id, &token, &Value::from(errors)])
        .await
        .unwrap();
    let stored: Value = client
        .query_one(
            "SELECT errors FROM tidegate.event_log WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap()
        .get(0);
    let stored = stored.as_array().unwrap();
    assert_eq!(stored.len(), 101);
    assert_eq!(stored[0]["message"].as_str().unwrap().len(), 2000);
    assert_eq!(stored[0]["details"], json!({"left_out_bytes": 20002}));
    assert_eq!(stored[1]["code"], "failed");
    assert_eq!(stored[100]["message"], "51 more errors");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_leaves_alone_what_a_poller_holds_and_takes_it_when_the_lease_is_over() {
    let db = probe_database().await;
    let client = db.client().await;
    let published = publish_acts(&client, 10).await;
    take(&client, 4).await;
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.ids().len(), 6);
    expire_leases(&client).await;
    drain(&db, &app, &options()).await;
    let mut all = app.ids();
    all.sort_unstable();
    assert_eq!(all, published);
}
