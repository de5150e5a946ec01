//! Somebody is forgotten: what events hold of them is gone from queue and log, with all that came of these
//! events, and what happened stays.

use std::sync::Arc;

use serde_json::{Value, json};
use test_support::probe::{ProbeApp, act, drain, live, number, options, probe, publish, service};
use test_support::{TestDb, begins, column, contains, counted, execute, has, wait_for_a_lock};
use tidegate::connect::Client;
use tidegate::{Done, DrainOptions, Hooks, Published};
use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate_admin::{Audit, ForgetReport, ForgetRequest, ReplayReport, ReplayRequest, Verb, Whom};
use tidegate_core::queue;
use tokio::sync::Notify;

/// What is in every payload, error, result and step of somebody.
const CANARY: &str = "canary-of-somebody";

fn group(name: &str) -> ForgetRequest {
    ForgetRequest {
        whom: Whom {
            group: Some(name.to_owned()),
            ..Whom::default()
        },
        audit: Audit::of("request 17"),
        ..ForgetRequest::default()
    }
}

async fn forget(db: &TestDb, request: &ForgetRequest) -> ForgetReport {
    service(db).run(request).await.unwrap()
}

/// In how many rows of the queue's tables the word stands.
async fn rows_with(client: &Client, word: &str) -> i64 {
    let tables = ["event_queue", "event_log", "audit", "lease", "service"];
    let counts = tables.map(|table| {
        format!("(SELECT count(*) FROM tidegate.{table} AS t WHERE t::text LIKE '%{word}%')")
    });
    number(client, &format!("SELECT {}", counts.join(" + "))).await
}

/// Handlers that fail, emit a follow-up, or succeed, by the event's name, all with the canary in what they
/// say.
fn talkative() -> Arc<ProbeApp> {
    ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            ctx.once("word", async { Ok(CANARY.to_owned()) }).await?;
            if call.name.contains("fails") {
                return Err(tidegate::HandlerError::reject("broken", CANARY));
            }
            if call.name.contains("emits") {
                ctx.emit(&act(&format!("{CANARY} child")))?;
            }
            Done::with(&json!({"word": CANARY}))
        })
    })
}

/// Events of somebody: three that have ended, a child of one, a replay and a live one; and a neighbour's.
struct World {
    db: TestDb,
    client: Client,
    ended: Vec<i64>,
    live: i64,
    neighbour: i64,
}

impl World {
    async fn new() -> Self {
        let (db, client) = probe().await;
        let of = |name| {
            let event = act(&format!("{CANARY} {name}"));
            event.group(CANARY).correlation(CANARY)
        };
        let ended = publish(&client, ["fails", "emits", "succeeds"].map(of).to_vec()).await;
        drain(&db, &talkative(), &options()).await;
        let live = act(CANARY).group(CANARY).dedup(CANARY);
        let live = publish(&client, vec![live]).await[0];
        replay(&client, ended[2]).await;
        let neighbour = publish(&client, vec![act("neighbour").group("another")]).await[0];
        Self {
            db,
            client,
            ended,
            live,
            neighbour,
        }
    }

    async fn number(&self, sql: &str) -> i64 {
        number(&self.client, sql).await
    }
}

async fn replay(client: &Client, id: i64) -> ReplayReport {
    let asked = ReplayRequest {
        ids: Some(vec![id]),
        audit: Audit::of("again"),
        ..ReplayRequest::default()
    };
    asked.on(client).await.unwrap()
}

#[tokio::test]
async fn whoever_is_forgotten_is_in_no_row_and_what_happened_stays() {
    let world = World::new().await;
    let report = forget(&world.db, &group(CANARY)).await;
    // The child has no group, and is found by its parent; the replay by its original.
    let counts = (report.forgotten, report.cancelled, report.before);
    assert_eq!(counts, (6, 2, 0), "{report:?}");
    assert!(!report.incomplete && report.in_hand == 0, "{report:?}");
    assert_eq!(rows_with(&world.client, CANARY).await, 0);
    let [failed, emitted, succeeded] = world.ended[..] else {
        panic!("three have ended");
    };
    let cancelled = world.live;
    let kept = format!(
        "SELECT count(*) FROM tidegate.event_log WHERE forgotten_at >= finished_at AND finished_at >= created_at AND kind = 'act'
            AND (id, status) IN (({failed}, 'COMPLETED_WITH_ERRORS'), ({emitted}, 'COMPLETED'), ({succeeded}, 'COMPLETED'), ({cancelled}, 'FAILED'))"
    );
    assert_eq!(world.number(&kept).await, 4);
    let code = format!(
        "SELECT count(*) FROM tidegate.event_log
          WHERE id = {failed} AND errors->-1->>'code' = 'broken' AND errors->-1->>'message' = 'forgotten'"
    );
    assert_eq!(world.number(&code).await, 1);
    let neighbour = format!(
        "SELECT count(*) FROM tidegate.event_queue WHERE id = {} AND payload IS NOT NULL",
        world.neighbour
    );
    assert_eq!(world.number(&neighbour).await, 1);
    assert_eq!(live(&world.client).await, 1, "the neighbour");
}

#[tokio::test]
async fn a_dry_run_tells_what_would_be_forgotten_and_a_second_run_finds_nothing() {
    let world = World::new().await;
    let before = rows_with(&world.client, CANARY).await;
    let dry_run = ForgetRequest {
        dry_run: true,
        ..group(CANARY)
    };
    let preview = forget(&world.db, &dry_run).await;
    let counts = (preview.forgotten, preview.cancelled);
    assert_eq!(counts, (6, 2), "{preview:?}");
    assert_eq!(rows_with(&world.client, CANARY).await, before);
    let audited = "SELECT count(*) FROM tidegate.audit WHERE action = 'forget'";
    assert_eq!(world.number(audited).await, 0);

    forget(&world.db, &group(CANARY)).await;
    let again = forget(&world.db, &group(CANARY)).await;
    assert_eq!((again.forgotten, again.before), (0, 0), "{again:?}");
    let by_id = ForgetRequest {
        whom: Whom {
            ids: Some(vec![world.ended[0], world.live, i64::MAX]),
            ..Whom::default()
        },
        ..group("")
    };
    let by_id = forget(&world.db, &by_id).await;
    let counts = (by_id.forgotten, by_id.before, by_id.unknown);
    assert_eq!(counts, (0, 2, 1), "{by_id:?}");
    let audited = "SELECT sum(count)::bigint FROM tidegate.audit WHERE action = 'forget' AND reason = 'request 17'";
    assert_eq!(world.number(audited).await, 6);
}

#[tokio::test]
async fn nobody_brings_back_by_a_replay_what_was_forgotten() {
    let (db, client) = probe().await;
    let ids = publish(&client, vec![act(CANARY).group("g")]).await;
    drain(&db, &talkative(), &options()).await;
    forget(&db, &group("g")).await;
    let report = replay(&client, ids[0]).await;
    assert_eq!((report.eligible, report.replayed), (0, 0), "{report:?}");
    begins(&report.skipped[0].reason, "forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_event_is_reported_and_its_end_restores_nothing() {
    let (db, client) = probe().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let app = ProbeApp::new(move |_, ctx| {
        let (begun, go) = (begins.clone(), goes.clone());
        Box::pin(async move {
            begun.notify_one();
            go.notified().await;
            ctx.emit(&act(CANARY))?;
            Done::with(&json!({"word": CANARY}))
        })
    });
    publish(&client, vec![act(CANARY).group("g"), act("neighbour")]).await;
    let one = DrainOptions {
        concurrency: 1,
        max_events: Some(1),
        ..options()
    };
    let (database, running) = (db.database(), app.clone());
    let drained = tokio::spawn(async move { tidegate::drain(&database, running, &one).await });
    begun.notified().await;
    let report = forget(&db, &group("g")).await;
    counted(&report, "forgotten 1, cancelled 1, in_hand 1");
    go.notify_one();
    drained.await.unwrap().unwrap();
    assert_eq!(rows_with(&client, CANARY).await, 0);
    let found = live(&client).await;
    assert_eq!(found, 1, "the neighbour, and nothing that was emitted");
}

#[tokio::test]
async fn thousands_of_events_in_days_that_are_counted_keep_their_figures() {
    let (db, client) = probe().await;
    let many = "SELECT tidegate.publish_many(jsonb_agg(jsonb_build_object('kind', 'act', 'group_key', CASE WHEN n % 2 = 0 THEN 'g' END,
                    'payload', jsonb_build_object('name', 'canary-of-somebody')))) FROM generate_series(1, 5000) AS n";
    client.batch_execute(many).await.unwrap();
    let ended = "WITH gone AS (DELETE FROM tidegate.event_queue RETURNING *)
        INSERT INTO tidegate.event_log (id, kind, payload, group_key, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT id, kind, payload, group_key, 'COMPLETED', 1, 5, '[]', created_at - interval '40 days', now() - interval '40 days',
               now() + interval '12 hours' FROM gone";
    client.batch_execute(ended).await.unwrap();
    let tidied = async || {
        let options = CleanupOptions::default();
        let report = cleanup(&db.database(), &options, CleanupHooks::default()).await;
        report.unwrap()
    };
    tidied().await;
    let report = forget(&db, &group("g")).await;
    counted(&report, "forgotten 2500, incomplete false");
    let found = rows_with(&client, CANARY).await;
    assert_eq!(found, 2500, "those without a group");
}

#[tokio::test]
async fn what_is_published_about_somebody_while_they_are_forgotten_goes_too() {
    let (db, client) = probe().await;
    publish(&client, vec![act(CANARY).group("g")]).await;
    // The statement that cancels waits for a row, and meanwhile somebody publishes.
    let mut other = db.client().await;
    let holding = other.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.event_queue FOR UPDATE";
    holding.batch_execute(lock).await.unwrap();
    let forgetting = service(&db);
    let asked = tokio::spawn(async move { forgetting.run(&group("g")).await });
    wait_for_a_lock(&client).await;
    let late: Published = queue::publish(&client, &act(CANARY).group("g"))
        .await
        .unwrap();
    holding.rollback().await.unwrap();
    let report = asked.await.unwrap().unwrap();
    counted(&report, "forgotten 2, incomplete false");
    assert_eq!(rows_with(&client, CANARY).await, 0, "{late:?}");
}

#[tokio::test]
async fn an_event_that_somebody_has_locked_is_named_again_and_keeps_nobody_waiting() {
    let (db, client) = probe().await;
    let ids = publish(&client, vec![act(CANARY), act(CANARY)]).await;
    let mut other = db.client().await;
    let holding = other.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.event_queue WHERE id = $1 FOR UPDATE";
    holding.execute(lock, &[&ids[1]]).await.unwrap();
    let forget = "SELECT tidegate.forget($1, 'asked to')";
    let report: Value = client.query_one(forget, &[&ids]).await.unwrap().get(0);
    let expected = json!({"forgotten": 1, "unknown": 0, "offspring": [ids[1]]});
    has(&report, &expected);
    holding.rollback().await.unwrap();
    let report: Value = client.query_one(forget, &[&ids]).await.unwrap().get(0);
    has(&report, &json!({"forgotten": 1, "before": 1}));
    assert_eq!(rows_with(&client, CANARY).await, 0);
}

#[tokio::test]
async fn a_queue_whose_programs_declare_no_subject_refuses_to_forget_one() {
    let (db, client) = probe().await;
    execute(&client, "DELETE FROM tidegate.subject").await;
    let request = json!({"action": "forget", "subject": "patient=1", "reason": "request 17"});
    let service = service(&db);
    let request = service.actions.request(request).unwrap();
    let answer = service.answer(&request, None, Hooks::default()).await;
    let refused = answer.unwrap_err().to_string();
    contains(
        &refused,
        "subject: must not be given, because no program keeps anything of anybody in tables",
    );
}

/// What operators have named, other than by ids.
async fn named_in_the_audit(client: &Client) -> Vec<String> {
    let sql = "SELECT action || coalesce(' ' || (filter->>'group_key'), '') || coalesce(' ' || (filter->>'dedup_key'), '')
                      || coalesce(' ' || (filter->>'correlation_id'), '') FROM tidegate.audit WHERE action <> 'forget' ORDER BY id";
    column(client, sql).await
}

#[tokio::test]
async fn whoever_is_forgotten_leaves_the_arguments_of_operators_and_nothing_else_of_the_audit_changes()
 {
    let (db, client) = probe().await;
    let of = act(CANARY).group(CANARY).correlation(CANARY).dedup(CANARY);
    publish(
        &client,
        vec![of, act("neighbour").group("another").dedup("a")],
    )
    .await;
    for call in [
        "unblock('canary-of-somebody', 'retry', 'it waits')",
        "unblock('another', 'retry', 'it waits')",
        "reschedule(kind => 'act', dedup_key => 'canary-of-somebody', available_at => 'now', reason => 'soon')",
        "reschedule(kind => 'act', dedup_key => 'a', available_at => 'now', reason => 'soon')",
        // The same word as a key of another kind of event, or as another kind of key.
        "reschedule(kind => 'pair', dedup_key => 'canary-of-somebody', available_at => 'now', reason => 'soon')",
        "cancel(group_key => 'another', correlation_id => 'canary-of-somebody', reason => 'over')",
        "unblock('long-gone', 'cancel', 'over')",
    ] {
        let call = format!("SELECT tidegate.{call}");
        client.batch_execute(&call).await.unwrap();
    }
    let rest = "SELECT string_agg(md5((to_jsonb(a) - 'filter' || jsonb_build_object('rest',
                    filter - ARRAY['group_key', 'dedup_key', 'correlation_id']))::text), ' ' ORDER BY id)
                  FROM tidegate.audit AS a WHERE action <> 'forget'";
    let rest = async || -> String { client.query_one(rest, &[]).await.unwrap().get(0) };
    let before = rest().await;
    forget(&db, &group(CANARY)).await;
    // Its events have left the log long ago.
    forget(&db, &group("long-gone")).await;
    assert_eq!(
        named_in_the_audit(&client).await,
        [
            "unblock (forgotten)",
            "unblock another",
            "reschedule (forgotten)",
            "reschedule a",
            "reschedule canary-of-somebody",
            "cancel (forgotten) (forgotten)",
            "unblock (forgotten)",
        ]
    );
    assert_eq!(rest().await, before);
    let dry_run = ForgetRequest {
        dry_run: true,
        ..group("another")
    };
    let before = named_in_the_audit(&client).await;
    forget(&db, &dry_run).await;
    assert_eq!(named_in_the_audit(&client).await, before);
}
