//! The AI checks against a real Postgres and a stand-in for the AI service.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tidegate::testing::handlers_of;
use tidegate::{DrainOptions, Event as _, Hooks, NewEvent};

use crate::application::{World, retrying_in_an_hour};
use crate::support::services::{Mode, Services};
use crate::support::{self, has, words};
use serde_json::{Value, json};
use tidegate_job::app::checks::{self, Filter, ReceiveIssuingReport};
use tidegate_job::app::{App, Event};
use tokio::process::Command;

const KIND: &str = "issuings-ai-checks";

/// Longer than any test: what is slow like this ends by its limit.
const ENDLESS: Mode = Mode::Slow { delay_ms: 600_000 };

impl World {
    /// With this delay for a check that finds the gate full.
    async fn putting_off(delay: &str) -> Self {
        let services = Services::start().await;
        let app = App::from_settings(&|name| match name {
            "TIDEGATE_BUDGET" => Some(delay.to_owned()),
            name => services.setting(name),
        });
        Self::with(services, app.expect("the settings are well formed")).await
    }

    /// Stores what the program declares of its kinds.
    async fn migrate(&self) {
        let lookup = |name: &str| (name == "DATABASE_URL").then(|| self.db.url.clone());
        let service = tidegate_job::app::program().start(&lookup);
        let service = service.expect("the settings are well formed");
        let request = service.actions.request(json!({"action": "migrate"}));
        let request = request.expect("it is an action");
        let migrated = service.answer(&request, None, Hooks::default()).await;
        migrated.expect("the database answers");
    }

    async fn receive(&mut self, message: &Value) -> ReceiveIssuingReport {
        let tx = self.client.transaction().await.expect("it starts");
        let received = checks::receive(&tx, &Filter::default(), message)
            .await
            .expect("it is good");
        tx.commit().await.expect("it commits");
        received
    }

    /// Receives a message that asks for a check; the id of its event.
    async fn ask(&mut self, number: u32) -> i64 {
        let received = self.receive(&message(number)).await;
        assert!(received.relevant && received.created, "{received:?}");
        received.id.expect("a relevant message has an event")
    }

    /// Checks that somebody else has under way.
    async fn others(&self, count: i64) {
        let insert = "INSERT INTO checks.issuing_check (work_statusom)
                      SELECT 'NEW' FROM generate_series(1, $1::bigint)";
        self.client.execute(insert, &[&count]).await.expect("rows");
    }

    async fn others_done(&self) {
        let done = "DELETE FROM checks.issuing_check WHERE trigger_id IS NULL";
        self.client.execute(done, &[]).await.expect("rows");
    }

    /// The one event in the queue.
    async fn queued(&self) -> Value {
        self.value("SELECT to_jsonb(q) FROM tidegate.event_queue q")
            .await
    }

    async fn logged(&self, id: i64) -> Value {
        self.value(&format!(
            "SELECT to_jsonb(l) FROM tidegate.event_log l WHERE id = {id}"
        ))
        .await
    }

    /// How an event ended: its status, and what its handler told.
    async fn end(&self, id: i64) -> (String, String) {
        let row = self.logged(id).await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let told = text(&row["result"]["check_issuing"]["ended"]);
        (text(&row["status"]), told)
    }

    /// `work_statusom` of our own check.
    async fn standing(&self, number: u32) -> Value {
        let row = format!(
            "SELECT work_statusom FROM checks.issuing_check WHERE trigger_id = 'T{number}'"
        );
        self.value(&row).await
    }

    /// The state of our own check, as the view has it.
    async fn state(&self, number: u32) -> Value {
        let row = format!("SELECT state FROM checks.state WHERE trigger_id = 'T{number}'");
        self.value(&row).await
    }

    fn calls(&self) -> usize {
        self.services.calls("ai_check").len()
    }
}

fn message(number: u32) -> Value {
    json!({"kind": "issuing", "stage": "ai-check", "triggerId": format!("T{number}"),
        "applicationId": format!("A{number}"), "client": {"name": "nobody"}})
}

fn completed(told: &str) -> (String, String) {
    ("COMPLETED".to_owned(), told.to_owned())
}

const LIVE: &str = "SELECT count(*) FROM tidegate.event_queue";
const ROWS: &str = "SELECT count(*) FROM checks.issuing_check";

#[tokio::test]
async fn b32_an_irrelevant_message_stores_nothing() {
    let mut world = World::putting_off("1h").await;
    for message in [
        json!({"kind": "payment", "triggerId": "T1", "applicationId": "A1"}),
        json!({"kind": "issuing", "stage": "signing", "triggerId": "T1", "applicationId": "A1"}),
    ] {
        let received = world.receive(&message).await;
        let irrelevant = (false, None, false);
        let found = (received.relevant, received.id, received.created);
        assert_eq!(found, irrelevant);
    }
    assert_eq!(world.value(LIVE).await, 0);
    assert_eq!(world.value(ROWS).await, 0);
}

#[tokio::test]
async fn b32_a_relevant_message_stores_exactly_the_two_keys() {
    let mut world = World::putting_off("1h").await;
    let id = world.ask(1).await;
    let event = world.queued().await;
    assert_eq!(event["id"], id);
    assert_eq!(event["kind"], KIND);
    let expected = json!({"triggerId": "T1", "applicationId": "A1"});
    assert_eq!(event["payload"], expected);
    assert_eq!(event["correlation_id"], "A1");
    assert_eq!(event["group_key"], "application:A1");
    assert_eq!(event["attempts"], 0);
    let found = world.standing(1).await;
    assert_eq!(found, "PLANNED", "it waits, and takes no place");
}

#[tokio::test]
async fn b32_the_event_and_its_row_are_stored_together_or_not_at_all() {
    let mut world = World::putting_off("1h").await;
    let tx = world.client.transaction().await.unwrap();
    checks::receive(&tx, &Filter::default(), &message(1))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.value(LIVE).await, 0);
    assert_eq!(world.value(ROWS).await, 0);
}

#[tokio::test]
async fn b32_a_bad_relevant_message_stores_nothing_and_its_field_is_named() {
    let mut world = World::putting_off("1h").await;
    for (field, value) in [("triggerId", json!("")), ("applicationId", Value::Null)] {
        let mut bad = message(1);
        bad[field] = value;
        let tx = world.client.transaction().await.unwrap();
        let error = checks::receive(&tx, &Filter::default(), &bad)
            .await
            .expect_err(field);
        tx.commit().await.unwrap();
        assert!(error.to_string().starts_with(field), "{error}");
    }
    assert_eq!(world.value(LIVE).await, 0);
    assert_eq!(world.value(ROWS).await, 0);
}

#[tokio::test]
async fn b32_a_repeated_message_stores_nothing_while_its_event_lives() {
    let mut world = World::putting_off("1h").await;
    let id = world.ask(1).await;
    let again = world.receive(&message(1)).await;
    let found = (again.relevant, again.id, again.created);
    assert_eq!(found, (true, Some(id), false));
    world.ask(2).await;
    assert_eq!(world.value(LIVE).await, 2);

    world.drain().await;
    let later = world.ask(1).await;
    assert_ne!(
        later, id,
        "once the event has ended, a message makes a new one"
    );
}

#[tokio::test]
async fn b33_an_overdue_task_ends_without_a_call() {
    let mut world = World::putting_off("1h").await;
    let mut overdue = message(1);
    overdue["dueAt"] = json!("2020-01-01T00:00:00Z");
    let received = world.receive(&overdue).await;
    let event_id = received.id.filter(|_| received.created);
    let event_id = event_id.expect("whether it is overdue is for the handler to say");
    world.others(2).await;

    assert_eq!(world.drain().await.completed, 1);

    assert_eq!(world.end(event_id).await, completed("overdue"));
    assert_eq!(world.calls(), 0);
    assert_eq!(world.standing(1).await, "OVERDUE");
    assert_eq!(world.value(LIVE).await, 0, "nor is it put off");
}

#[tokio::test]
async fn b33_a_task_that_is_not_due_yet_is_checked() {
    let mut world = World::putting_off("1h").await;
    let mut due_later = message(1);
    due_later["dueAt"] = json!("2999-01-01T00:00:00Z");
    world.receive(&due_later).await;
    world.drain().await;
    assert_eq!((world.calls(), world.standing(1).await), (1, json!("DONE")));
}

#[tokio::test]
async fn b34_b35_below_two_new_checks_one_is_made_and_from_two_on_it_is_put_off() {
    for (others, calls, told) in [
        (0, 1, "checked"),
        (1, 1, "checked"),
        (2, 0, "put_off"),
        (3, 0, "put_off"),
    ] {
        let mut world = World::putting_off("1h").await;
        world.others(others).await;
        let id = world.ask(1).await;

        let report = world.drain().await;

        assert_eq!(report.leased, 1, "{others} NEW");
        assert_eq!(world.calls(), calls, "{others} NEW");
        assert_eq!(world.end(id).await, completed(told), "{others} NEW");
        let put_off = u64::from(told == "put_off");
        assert_eq!((report.completed, report.snoozed), (1 - put_off, put_off));
        assert_eq!((report.published, report.backlog), (put_off, Some(put_off)));
    }
}

#[tokio::test]
async fn b35_the_answer_is_stored_with_the_events_end() {
    let mut world = World::putting_off("1h").await;
    world.ask(1).await;
    world.drain().await;
    let call = &world.services.calls("ai_check")[0];
    assert_eq!(call.path, "checks");
    assert_eq!(call.body["triggerId"], "T1");
    assert_eq!(call.body["applicationId"], "A1");
    assert!(!call.key.is_empty());
    let row = world
        .value("SELECT to_jsonb(i) FROM checks.issuing_check i")
        .await;
    assert_eq!(row["work_statusom"], "DONE");
    assert_eq!(row["answer"]["verdict"], "pass");
    assert!(row["answered_at"].is_string() && row["place_ends_at"].is_null());
}

#[tokio::test]
async fn b34_a_check_that_is_put_off_is_a_new_event_with_all_its_attempts_and_the_old_deadline() {
    let mut world = World::putting_off("1h").await;
    world.others(2).await;
    let mut bounded = message(1);
    bounded["startBefore"] = json!("2999-01-01T00:00:00.123456Z");
    world.receive(&bounded).await;
    let limit = "UPDATE tidegate.event_queue SET max_attempts = 3, attempts = 1";
    world.client.execute(limit, &[]).await.unwrap();
    let parent = world.queued().await;
    let id = parent["id"].as_i64().unwrap();

    world.drain().await;

    let (event, ended) = (world.queued().await, world.logged(id).await);
    assert_eq!(world.end(id).await, completed("put_off"));
    assert_eq!(ended["attempts"], 1, "it costs no attempt");
    assert_eq!(ended["errors"], json!([]), "this is no failure");
    assert_eq!(event["attempts"], 0);
    assert_eq!(event["parent_id"], id);
    assert_ne!(event["id"], id);
    let all = "kind payload dedup_key group_key correlation_id expires_at max_attempts";
    for same in words(all) {
        assert_eq!(event[same], parent[same], "{same}");
        assert!(!event[same].is_null(), "{same}");
    }
    let repeated = world.receive(&bounded).await;
    assert!(
        !repeated.created && repeated.id.is_some_and(|event_id| event_id != id),
        "the new event stands for the message as the old one did: {repeated:?}"
    );
}

#[tokio::test]
async fn b34_the_new_event_and_the_end_of_the_old_one_commit_together_or_not_at_all() {
    let mut world = World::putting_off("1h").await;
    world.others(2).await;
    let id = world.ask(1).await;
    // The new event cannot be stored, so the old one must not end either.
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                  'BEGIN RAISE EXCEPTION ''no new event''; END';
                  CREATE TRIGGER refuse BEFORE INSERT ON tidegate.event_queue EXECUTE FUNCTION refuse()";
    world.client.batch_execute(refuse).await.unwrap();
    let failed = tidegate::drain(
        &world.db.database(),
        Arc::clone(&world.app),
        &DrainOptions {
            budget: Duration::from_secs(3),
            ..retrying_in_an_hour()
        },
    )
    .await;
    let report = failed.expect("one event that cannot end is no reason for the drain to fail");
    assert_eq!((report.retried, report.completed), (1, 0), "{report:?}");
    assert_eq!(world.logged(id).await, Value::Null, "it has not ended");
    let queued = world.queued().await;
    assert_eq!(queued["id"], id);
    let told = queued["last_error"].as_str().unwrap();
    assert!(told.contains("no new event"), "{told}");

    let permit = "DROP TRIGGER refuse ON tidegate.event_queue";
    world.client.batch_execute(permit).await.unwrap();
    world.requeue().await;
    world.drain().await;
    assert_eq!(world.end(id).await, completed("put_off"));
    assert_eq!(world.value(LIVE).await, 1);
}

#[tokio::test]
async fn b34_a_check_that_is_put_off_does_not_run_again_in_the_same_drain() {
    // Short enough for a drain that lingers to see it fall due, were it not put off past that drain.
    for linger in [Duration::ZERO, Duration::from_secs(3)] {
        let services = Services::start().await;
        let lookup = |name: &str| match name {
            "TIDEGATE_BUDGET" => Some("3m".to_owned()),
            name => services.setting(name),
        };
        let app = Arc::new(App::from_settings(&lookup).unwrap());
        let mut world = World::putting_off("1h").await;
        world.others(2).await;
        world.ask(1).await;
        let options = DrainOptions {
            budget: Duration::from_mins(3),
            linger,
            ..retrying_in_an_hour()
        };
        let report = crate::application::drain(&world.database, &app, &options).await;
        assert_eq!((report.leased, report.backlog), (1, Some(1)), "{report:?}");
        let due =
            "SELECT available_at > clock_timestamp() + interval '30 s' FROM tidegate.event_queue";
        assert_eq!(world.value(due).await, true);
    }
}

#[tokio::test]
async fn b34_what_was_put_off_is_checked_once_the_gate_is_open() {
    let mut world = World::putting_off("1s").await;
    world.others(2).await;
    world.ask(1).await;
    world.drain().await;
    assert_eq!(world.calls(), 0);

    world.others_done().await;
    let lingering = DrainOptions {
        linger: Duration::from_secs(3),
        ..retrying_in_an_hour()
    };
    let report = crate::application::drain(&world.database, &world.app, &lingering).await;
    assert_eq!((report.completed, report.published), (1, 0), "{report:?}");
    assert_eq!((world.calls(), world.standing(1).await), (1, json!("DONE")));
}

#[tokio::test]
async fn b34_a_check_near_its_deadline_comes_again_before_it() {
    let mut world = World::putting_off("1h").await;
    world.others(2).await;
    let id = world.ask(1).await;
    let near = "UPDATE tidegate.event_queue SET expires_at = clock_timestamp() + interval '40 s'";
    world.client.execute(near, &[]).await.unwrap();
    world.drain().await;
    assert_eq!(world.end(id).await, completed("put_off"));
    let in_time =
        "SELECT available_at BETWEEN expires_at - interval '25 s' AND expires_at - interval '15 s'
                     FROM tidegate.event_queue";
    let found = world.value(in_time).await;
    assert_eq!(found, true, "of 40 s it waits for half");
}

#[tokio::test]
async fn b34_checks_that_come_together_are_made_two_at_a_time_and_none_is_put_off() {
    for drains in [1, 3] {
        let mut world = World::putting_off("1h").await;
        world.migrate().await;
        // A drain starts no more than there are places: others would wait at the gate, in the way of all.
        let at_once = "SELECT policy->'concurrency' FROM tidegate.event_kind WHERE kind = 'issuings-ai-checks'";
        assert_eq!(world.value(at_once).await, 2);
        let slow = Mode::Slow { delay_ms: 50 };
        world.services.set("ai_check", slow);
        for number in 1..=20 {
            world.ask(number).await;
        }
        let options = retrying_in_an_hour();
        let drain = || crate::application::drain(&world.database, &world.app, &options);
        let reports = futures_util::future::join_all((0..drains).map(|_| drain())).await;
        let put_off: u64 = reports.iter().map(|report| report.snoozed).sum();
        assert_eq!(
            put_off, 0,
            "the gate was full, so more than two ran at once"
        );
        // One that found both places taken may have left some to a drain that had ended.
        if drains > 1 {
            drain().await;
        }
        let ended =
            "SELECT jsonb_agg(DISTINCT status) || to_jsonb(count(*)) FROM tidegate.event_log";
        assert_eq!(world.value(ended).await, json!(["COMPLETED", 20]));
        assert_eq!(world.calls(), 20, "{drains} drains");
    }
}

#[tokio::test]
async fn b34_with_one_of_another_system_the_other_place_is_never_idle() {
    let mut world = World::putting_off("1h").await;
    world.migrate().await;
    world.others(1).await;
    let slow = Mode::Slow { delay_ms: 50 };
    world.services.set("ai_check", slow);
    for number in 1..=10 {
        world.ask(number).await;
    }
    let report = world.drain().await;
    assert_eq!((report.completed, report.snoozed), (10, 0), "{report:?}");
    assert_eq!(world.calls(), 10);
}

#[tokio::test]
async fn b34_of_two_that_look_at_once_for_the_last_place_one_takes_it() {
    let mut world = World::putting_off("1h").await;
    world.others(1).await;
    let other = world.db.client().await;
    let pid: i32 = other
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let take = "SELECT taken FROM checks.take_place($1, $1, 2, 60)";
    let tx = world.client.transaction().await.unwrap();
    let first: bool = tx.query_one(take, &[&"T1"]).await.unwrap().get(0);
    let second = tokio::spawn(async move { other.query_one(take, &[&"T2"]).await });
    support::wait_until("the second waits for the first", async || {
        let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        tx.query_one(waits, &[&pid]).await.unwrap().get(0)
    })
    .await;
    tx.commit().await.unwrap();
    let second: bool = second.await.unwrap().unwrap().get(0);
    assert_eq!((first, second), (true, false));
}

#[tokio::test]
async fn b9_a_check_that_is_put_off_is_no_finished_work_in_the_figures() {
    let mut world = World::putting_off("1h").await;
    world.others(2).await;
    world.ask(1).await;
    let report = world.drain().await;
    assert_eq!(report.backlog, Some(1));
    let stats = format!(
        "SELECT ARRAY[pending, processing, delayed, completed] FROM tidegate.stats WHERE kind = '{KIND}'"
    );
    assert_eq!(world.value(&stats).await, json!([0, 0, 1, 0]));
    let ended = "SELECT string_agg(status || events, ',') FROM tidegate.minute_stats";
    assert_eq!(world.value(ended).await, "PUT_OFF1");
}

#[tokio::test]
async fn b16_a_slow_check_keeps_one_handler_busy_and_no_other_event_waiting() {
    let mut world = World::putting_off("1h").await;
    world.services.set("ai_check", ENDLESS);
    world.ask(1).await;
    for number in 0..50 {
        let payload = json!({"grant_number": format!("G{number}")});
        let payload = serde_json::value::to_raw_value(&payload).unwrap();
        let view = NewEvent::raw("grant_letter_viewed", Some(payload));
        tidegate::publish(&world.client, &view).await.unwrap();
    }
    let two_at_once = DrainOptions {
        concurrency: 2,
        handler_timeout: Duration::from_secs(8),
        ..retrying_in_an_hour()
    };
    let (database, app) = (world.db.database(), Arc::clone(&world.app));
    let draining =
        tokio::spawn(async move { crate::application::drain(&database, &app, &two_at_once).await });
    let passed =
        "SELECT (SELECT count(*) FROM tidegate.event_log WHERE kind = 'grant_letter_viewed') = 50
                     AND (SELECT work_statusom FROM checks.issuing_check) = 'NEW'";
    support::wait_until(
        "all others are done while the check is under way",
        async || world.value(passed).await == true,
    )
    .await;
    assert!(!draining.is_finished());

    let report = draining.await.unwrap();
    assert_eq!((report.completed, report.deferred), (50, 1), "{report:?}");
    let event = world.queued().await;
    let told = event["last_error"].as_str().unwrap();
    assert!(
        told.starts_with("ai_check_unavailable: "),
        "its own limit cut the call, before the handler's would have: {event}"
    );
}

#[tokio::test]
async fn b16_a_check_that_failed_leaves_its_place_and_comes_again() {
    for mode in [Mode::Down, Mode::Mute, Mode::Refuse { status: 429 }] {
        let mut world = World::putting_off("1h").await;
        world.services.set("ai_check", mode);
        world.others(1).await;
        world.ask(1).await;
        assert_eq!(world.drain().await.deferred, 1, "{mode:?}");
        assert_eq!(world.standing(1).await, "PLANNED", "{mode:?}");

        world.services.set("ai_check", Mode::Up);
        world.requeue().await;
        assert_eq!(world.drain().await.completed, 1, "{mode:?}");
        assert_eq!(world.standing(1).await, "DONE", "{mode:?}");
        let calls = world.services.calls("ai_check");
        assert_eq!(calls.len(), 2, "{mode:?}");
        assert_eq!(calls[0].key, calls[1].key, "{mode:?}");
    }
}

#[tokio::test]
async fn a_check_that_ends_without_an_answer_is_ended_for_its_readers_and_can_be_asked_for_again() {
    let mut world = World::putting_off("1h").await;
    world.services.set("ai_check", Mode::Refuse { status: 422 });
    let refused = world.ask(1).await;
    for _ in 0..4 {
        assert_eq!(world.drain().await.retried, 1);
        assert_eq!(world.state(1).await, "PLANNED");
        world.time_passes().await;
    }
    assert_eq!(world.drain().await.failed, 1);
    let ended = world.logged(refused).await;
    assert_eq!(ended["errors"][0]["code"], "ai_check_refused");
    assert_eq!(world.state(1).await, "ENDED");

    let expired = world.ask(2).await;
    let past = "UPDATE tidegate.event_queue SET expires_at = clock_timestamp() - interval '1 s'";
    world.execute(past).await;
    assert_eq!(world.state(2).await, "PLANNED");
    assert_eq!(world.drain().await.expired, 1);
    assert_eq!(world.logged(expired).await["errors"][0]["code"], "expired");
    assert_eq!(world.state(2).await, "ENDED");

    world.services.set("ai_check", Mode::Up);
    world.ask(1).await;
    world.drain().await;
    assert_eq!(world.state(1).await, "DONE", "a new message asks again");
}

#[tokio::test]
async fn a_check_whose_worker_died_keeps_its_place_for_a_while_and_does_not_wait_for_itself() {
    let mut world = World::putting_off("1h").await;
    world.ask(1).await;
    world.others(1).await;
    let died = "UPDATE checks.issuing_check SET work_statusom = 'NEW',
                       place_ends_at = clock_timestamp() + interval '1 h' WHERE trigger_id = 'T1'";
    world.client.execute(died, &[]).await.unwrap();
    let second = "INSERT INTO checks.issuing_check (trigger_id, application_id, place_ends_at)
                  VALUES ('T0', 'A0', clock_timestamp() + $1::float8 * interval '1 s')
                  ON CONFLICT (trigger_id, application_id) DO UPDATE SET place_ends_at = excluded.place_ends_at";
    world.client.execute(second, &[&3600_f64]).await.unwrap();
    let briefly = DrainOptions {
        handler_timeout: Duration::from_secs(2),
        ..retrying_in_an_hour()
    };
    let report = crate::application::drain(&world.database, &world.app, &briefly).await;
    assert_eq!(report.published, 1, "two others are under way");

    world.client.execute(second, &[&-1_f64]).await.unwrap();
    world.requeue().await;
    assert_eq!(world.drain().await.published, 0, "one other is, and itself");
    assert_eq!((world.calls(), world.standing(1).await), (1, json!("DONE")));
    assert_eq!(world.standing(0).await, "PLANNED", "its time was up");
}

#[tokio::test]
async fn a18_a_check_calls_the_service_that_its_handler_names_and_no_other() {
    let mut world = World::putting_off("1h").await;
    world.ask(1).await;
    world.drain().await;
    let payload = br#"{"triggerId": "T1", "applicationId": "A1"}"#;
    let event = Event::decode(KIND, Some(payload)).unwrap();
    let named = [("check_issuing", Some("ai_check"))];
    assert_eq!(handlers_of(&*world.app, &event), named);
    let called = world.services.callers().into_iter();
    let found = called.map(|(_, service)| service).collect::<Vec<_>>();
    assert_eq!(found, ["ai_check"]);
}

#[tokio::test]
async fn d8_a_check_handled_twice_is_made_once() {
    let mut world = World::putting_off("1h").await;
    world.ask(1).await;
    world.drain().await;
    let row = "SELECT to_jsonb(i) - 'updated_at' FROM checks.issuing_check i";
    let once = world.value(row).await;
    let again = world.ask(1).await;
    world.others(2).await;
    world.drain().await;
    world.others_done().await;
    assert_eq!(world.end(again).await, completed("answered_before"));
    assert_eq!(world.calls(), 1);
    assert_eq!(world.value(row).await, once);
}

#[tokio::test]
async fn d8_a_lost_answer_is_requested_again_with_the_same_key() {
    let mut world = World::putting_off("1h").await;
    world.services.set("ai_check", Mode::Mute);
    world.ask(1).await;
    world.drain().await;
    world.others(2).await;
    world.requeue().await;
    world.drain().await;
    world.others_done().await;
    world.services.set("ai_check", Mode::Up);
    world.requeue().await;
    world.drain().await;
    let calls = world.services.calls("ai_check");
    assert_eq!((calls.len(), world.services.kept("ai_check").len()), (2, 1));
    assert_eq!(calls[0].key, calls[1].key, "even from another event");
}

#[tokio::test]
async fn a_payload_that_another_producer_got_wrong_is_final() {
    let world = World::putting_off("1h").await;
    for (payload, status) in [
        (
            json!({"triggerId": "", "applicationId": "A1"}),
            "COMPLETED_WITH_ERRORS",
        ),
        (json!({"triggerId": "T1"}), "FAILED"),
    ] {
        let raw = serde_json::value::to_raw_value(&payload).unwrap();
        let event = NewEvent::raw(KIND, Some(raw));
        let id = tidegate::publish(&world.client, &event).await.unwrap().id;
        world.drain().await;
        assert_eq!(world.logged(id).await["status"], status, "{payload}");
    }
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn an_event_without_a_row_is_checked_and_its_answer_kept() {
    let world = World::putting_off("1h").await;
    let payload = json!({"triggerId": "T1", "applicationId": "A1"});
    let raw = serde_json::value::to_raw_value(&payload).unwrap();
    let event = NewEvent::raw(KIND, Some(raw));
    tidegate::publish(&world.client, &event).await.unwrap();
    assert_eq!(world.drain().await.completed, 1);
    assert_eq!((world.calls(), world.standing(1).await), (1, json!("DONE")));
}

#[tokio::test]
async fn an_answer_that_cannot_be_stored_is_a_failure_of_its_service() {
    let mut world = World::putting_off("1h").await;
    world.services.set("ai_check", Mode::Nul);
    let id = world.ask(1).await;
    assert_eq!(world.drain().await.retried, 1);
    let queued = world.queued().await;
    assert_eq!(
        (&queued["id"], &queued["attempts"]),
        (&json!(id), &json!(1))
    );
    let told = queued["last_error"].as_str().unwrap();
    assert!(told.starts_with("ai_check_answer: "), "{told}");
    let failures = "SELECT failures FROM tidegate.service WHERE service = 'ai_check'";
    assert_eq!(world.value(failures).await, 1);
    assert_eq!(world.standing(1).await, "PLANNED");
}

/// Runs `tidegate --json receive-issuing` with the message on its input.
async fn receive_by_command(world: &World, message: &str) -> (Option<i32>, Value) {
    let mut child = Command::new(support::binary("tidegate"))
        .args(["--json", "receive-issuing", "--message", "-"])
        .env("DATABASE_URL", &world.db.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("it is a pipe");
    tokio::io::AsyncWriteExt::write_all(&mut input, message.as_bytes())
        .await
        .expect("it reads");
    drop(input);
    let output = child.wait_with_output().await.expect("it ends");
    let document = serde_json::from_slice(&output.stdout).expect("one JSON document");
    (output.status.code(), document)
}

#[tokio::test]
async fn b32_the_command_line_receives_a_message_and_tells_what_became_of_it() {
    let world = World::putting_off("1h").await;
    let relevant = message(1).to_string();
    let (code, first) = receive_by_command(&world, &relevant).await;
    let found = (code, &first["action"]);
    assert_eq!(found, (Some(0), &json!("receive_issuing")));
    has(&first, &json!({"relevant": true, "created": true}));
    assert_eq!(first["id"], world.queued().await["id"]);

    let (code, again) = receive_by_command(&world, &relevant).await;
    assert_eq!((code, &again["created"]), (Some(0), &json!(false)));
    assert_eq!(again["id"], first["id"]);

    let (code, foreign) = receive_by_command(&world, r#"{"kind": "payment"}"#).await;
    let nothing =
        json!({"action": "receive_issuing", "relevant": false, "id": null, "created": false});
    assert_eq!((code, foreign), (Some(0), nothing));

    let bad = r#"{"kind": "issuing", "stage": "ai-check", "triggerId": "T1"}"#;
    let (code, refused) = receive_by_command(&world, bad).await;
    assert_eq!(code, Some(2));
    let error = refused["error"].as_str().unwrap_or_default();
    assert!(error.starts_with("applicationId: "), "{refused}");
    assert_eq!(world.value(LIVE).await, 1);
}

#[tokio::test]
async fn b32_an_invocation_receives_a_message() {
    let world = World::putting_off("1h").await;
    let file = support::project_file("events/receive_issuing.json");
    let payload = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| world.db.url.clone());
    let service = tidegate_job::app::program().start(&lookup).unwrap();
    let request = service.actions.request(payload).unwrap();
    for created in [true, false] {
        let report = service.answer(&request, None, Hooks::default()).await;
        let report: Value = report.unwrap().read().unwrap();
        assert_eq!(report["action"], "receive_issuing");
        assert_eq!(report["created"], created);
    }
}
