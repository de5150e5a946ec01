//! Payloads made to do harm: numbers that print as a gigabyte, the character that no text holds, sizes, and
//! one that the disk has lost. What can be refused is refused at the publish; what is stored all the same
//! fails alone.

use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use test_support::probe::{
    ProbeApp, act, disorder, drain, end_of, lease_request, live, number, options, pair, probe,
    publish_acts, service,
};
use test_support::{begins, contains, execute};
use tidegate::connect::Client;
use tidegate::{Done, Error, HandlerError, NewEvent};
use tidegate_admin::ShowRequest;
use tidegate_core::queue::{self, LeaseRequest};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Json;

/// As `jsonb` it takes 8 bytes, and prints as 131,072 digits.
const NUMBER: &str = "1e131071";

/// Numbers enough that their text is longer than the gigabyte that a field of the database can hold.
fn bomb() -> String {
    format!("[{}]", vec![NUMBER; 8200].join(","))
}

/// So many that the text is too long for a payload, and fits into a field.
fn small_bomb() -> String {
    format!("[{}]", [NUMBER; 9].join(","))
}

/// What a statement was refused with.
async fn refusal(client: &Client, sql: &str) -> (SqlState, String) {
    let error = client.batch_execute(sql).await.unwrap_err();
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    (error.code().clone(), error.message().to_owned())
}

#[tokio::test]
async fn b25_a_number_that_prints_as_a_gigabyte_is_refused_at_every_publish_of_jsonb() {
    let (_db, client) = probe().await;
    for (bomb, got) in [(bomb(), "got more than 1 GB"), (small_bomb(), "got 1179")] {
        for call in [
            format!("SELECT tidegate.publish('act', '{bomb}'::jsonb)"),
            format!(
                "SELECT tidegate.publish_many('[{{\"kind\": \"act\"}}, {{\"kind\": \"act\", \"payload\": {bomb}}}]')"
            ),
        ] {
            let (code, message) = refusal(&client, &call).await;
            assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{message}");
            contains(&message, "payload: must have at most 1048576 bytes");
            contains(&message, got);
        }
    }
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn a_number_that_nothing_can_hold_fails_its_event_and_no_other() {
    let (db, client) = probe().await;
    let before = publish_acts(&client, 2).await;
    let insert = format!(
        "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('act', '{{\"name\": {}}}') RETURNING id",
        bomb()
    );
    let bad: i64 = client.query_one(&insert, &[]).await.unwrap().get(0);
    let behind = publish_acts(&client, 2).await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.failed), (4, 1), "{report:?}");
    let mut ran = app.ids();
    ran.sort_unstable();
    assert_eq!(ran, [before, behind].concat());
    assert_eq!(end_of(&client, bad).await, "FAILED 0 undecodable");
}

/// JSON texts and whether they hold the escape of a NUL character.
const ESCAPES: [(&str, bool); 6] = [
    (r#""\u0000""#, true),
    (r#"{"name": "a\u0000b"}"#, true),
    (r#"{"\u0000": 1}"#, true),
    (r#""\\\u0000""#, true),
    (r#""\\u0000""#, false),
    (r#""\\\\u0000""#, false),
];

#[tokio::test]
async fn b25_the_escape_of_a_nul_character_is_refused_and_its_escaped_text_is_not() {
    let (db, client) = probe().await;
    for (text, refused) in ESCAPES {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        let event = NewEvent::raw("act", Some(raw));
        let published = queue::publish(&client, &event).await;
        let batch = queue::publish_batch(&client, &[act("fine"), event]).await;
        let insert =
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('act', $1::text::json)";
        let inserted = client.execute(insert, &[&text]).await;
        if !refused {
            published.unwrap();
            batch.unwrap();
            inserted.unwrap();
            continue;
        }
        let expected = "payload: must have no \\u0000";
        for (error, expected) in [
            (published.unwrap_err(), expected.to_owned()),
            (batch.unwrap_err(), format!("event 2: {expected}")),
        ] {
            assert!(
                matches!(&error, Error::Invalid(text) if *text == expected),
                "{text}: {error}"
            );
        }
        let error = inserted.unwrap_err();
        let error = error.as_db_error().unwrap();
        let found = (error.message(), error.detail());
        assert_eq!(found, (expected, None), "{text}");
    }
    let accepted = ESCAPES.iter().filter(|(_, refused)| !refused).count();
    assert_eq!(live(&client).await, i64::try_from(4 * accepted).unwrap());
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    let seen = report.leased;
    assert_eq!(seen, u64::try_from(4 * accepted).unwrap(), "{report:?}");
}

#[tokio::test]
async fn d14_an_update_of_the_view_requeues_what_jsonb_cannot_hold() {
    let (_db, client) = probe().await;
    for payload in [r#"{"name": "\ud800"}"#, r#"{"name": 1e999999}"#] {
        let publish =
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('act', $1::text::json)";
        client.execute(publish, &[&payload]).await.unwrap();
    }
    let requeue = "UPDATE tidegate.events SET status = 'PENDING'";
    assert_eq!(client.execute(requeue, &[]).await.unwrap(), 2);
    let other = "UPDATE tidegate.events SET payload = '{}'";
    let refused = client.execute(other, &[]).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message();
    begins(refused, "events: only status, available_at");
}

/// An event with a payload that is stored aside, without what is stored there.
async fn lose_payload(client: &Client, event: &NewEvent) -> i64 {
    lose(client, event, "payload").await
}

/// An event of which a column is stored aside, without what is stored there.
async fn lose(client: &Client, event: &NewEvent, column: &str) -> i64 {
    let id = queue::publish(client, event).await.unwrap().id;
    // Random text, which no compression keeps within the row.
    let text =
        "(SELECT string_agg(md5(n::text || random()), '') FROM generate_series(1, 2000) AS n)";
    let value = match column {
        "payload" => format!("json_build_object('name', {text})"),
        "progress" => format!("jsonb_build_object('steps', jsonb_build_object('a', {text}))"),
        "errors" => {
            format!("jsonb_build_array(jsonb_build_object('code', 'old', 'message', {text}))")
        }
        _ => text.to_owned(),
    };
    let fill = format!("UPDATE tidegate.event_queue SET {column} = {value} WHERE id = $1");
    client.execute(&fill, &[&id]).await.unwrap();
    let aside = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'tidegate.event_queue'::regclass";
    let aside: String = client.query_one(aside, &[]).await.unwrap().get(0);
    // No statement deletes from where payloads are stored aside, not even a superuser's: for a moment it is a
    // plain table.
    let lose = format!(
        "BEGIN;
         SET LOCAL allow_system_table_mods = on;
         UPDATE pg_class SET relkind = 'r' WHERE oid = '{aside}'::regclass;
         DELETE FROM {aside} WHERE chunk_id = (SELECT max(chunk_id) FROM {aside}) AND chunk_seq = 1;
         UPDATE pg_class SET relkind = 't' WHERE oid = '{aside}'::regclass;
         COMMIT"
    );
    client.batch_execute(&lose).await.unwrap();
    // What was deleted is read until a vacuum has taken it, and none takes it as long as a session that
    // begins in this moment, in any database, might see it.
    let read = format!("SELECT length({column}::text) FROM tidegate.event_queue WHERE id = $1");
    let vacuum = "VACUUM tidegate.event_queue";
    for _ in 0..1000 {
        client.batch_execute(vacuum).await.unwrap();
        if client.query(&read, &[&id]).await.is_err() {
            return id;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{column} of event {id} can be read after a thousand vacuums");
}

#[tokio::test]
async fn an_event_whose_payload_the_database_cannot_read_fails_and_its_neighbours_complete() {
    let (db, client) = probe().await;
    let first = publish_acts(&client, 3).await;
    let lost = lose_payload(&client, &act("lost").group("g")).await;
    let behind = queue::publish(&client, &act("behind").group("g"))
        .await
        .unwrap()
        .id;
    let second = publish_acts(&client, 3).await;
    let lost_too = lose_payload(&client, &pair("lost too")).await;
    let read = "SELECT sum(length(payload::text)) FROM tidegate.event_queue";
    assert!(client.query(read, &[]).await.is_err(), "it is lost");
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.failed), (7, 2), "{report:?}");
    let mut ran = app.ids();
    ran.sort_unstable();
    assert_eq!(ran, [first, vec![behind], second].concat());
    for id in [lost, lost_too] {
        assert_eq!(end_of(&client, id).await, "FAILED 0 unreadable");
    }
    assert_eq!(live(&client).await, 0);
    assert_eq!(disorder(&client).await, [""; 0]);
}

#[tokio::test]
async fn whatever_of_an_event_the_database_cannot_read_ends_that_event_alone() {
    for column in ["progress", "errors", "last_error"] {
        let (db, client) = probe().await;
        let first = publish_acts(&client, 3).await;
        let lost = lose(&client, &act("lost").group("g"), column).await;
        let behind = act("behind").group("g");
        let behind = queue::publish(&client, &behind).await.unwrap().id;
        let show: ShowRequest = serde_json::from_value(json!({"id": lost})).unwrap();
        let shown = json!(service(&db).run(&show).await.unwrap());
        assert_eq!(shown["kind"], "act", "{column}: {shown}");
        // A failure is what appends to the errors.
        let app = ProbeApp::doing(|call| async move {
            match (&*call.name, call.attempt) {
                ("lost", 1) => Err(HandlerError::retry("down", "not yet").after(Duration::ZERO)),
                _ => Ok(Done::ok()),
            }
        });
        let report = drain(&db, &app, &options()).await;
        assert!(report.is_balanced(), "{column}: {report:?}");
        assert_eq!(
            (report.lease_lost, report.backlog),
            (0, Some(0)),
            "{column}: {report:?}"
        );
        for id in [first, vec![behind]].concat() {
            assert_eq!(end_of(&client, id).await, "COMPLETED 1", "{column}");
        }
        let ended = end_of(&client, lost).await;
        let read_again = column == "last_error" && ended.starts_with("COMPLETED");
        assert!(
            read_again || ended == "FAILED 0 unreadable",
            "{column}: {ended}"
        );
    }
}

/// Six events and, in their midst, one whose payload is lost; all of them in the order of their ids.
async fn around_a_lost_one(client: &Client) -> (i64, Vec<i64>) {
    let first = publish_acts(client, 3).await;
    let lost = lose_payload(client, &act("lost").group("g")).await;
    let second = publish_acts(client, 3).await;
    (lost, [first, vec![lost], second].concat())
}

/// All have ended as FAILED with this code, and the lost one alone without its payload, and says so.
async fn ended_with(client: &Client, lost: i64, all: &[i64], code: &str) {
    assert_eq!(live(client).await, 0);
    let ended = "SELECT id, status, errors->-1->>'code', payload IS NULL, errors->-1->>'message' LIKE '%(its payload cannot be read)'
                   FROM tidegate.event_log ORDER BY id";
    let ended = client.query(ended, &[]).await.unwrap();
    let ended: Vec<(i64, String, String, bool, bool)> = ended
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)))
        .collect();
    let expected = all.iter().map(|id| {
        let is_lost = *id == lost;
        (*id, "FAILED".to_owned(), code.to_owned(), is_lost, is_lost)
    });
    assert_eq!(ended, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn who_cancels_many_events_ends_the_one_whose_payload_is_lost_without_it() {
    let (_db, client) = probe().await;
    let (lost, all) = around_a_lost_one(&client).await;
    let cancel = "SELECT (tidegate.cancel(kind => 'act', reason => 'nobody needs them')->>'changed')::bigint";
    assert_eq!(number(&client, cancel).await, 7);
    ended_with(&client, lost, &all, "cancelled").await;
}

#[tokio::test]
async fn a_cleanup_ends_the_event_whose_payload_is_lost_without_it_and_all_others() {
    let (_db, client) = probe().await;
    let (lost, all) = around_a_lost_one(&client).await;
    let over = "UPDATE tidegate.event_queue SET attempts = max_attempts, lapses = 1";
    client.execute(over, &[]).await.unwrap();
    let swept = "SELECT abandoned FROM tidegate.sweep_events(0)";
    let swept: Vec<i64> = client.query_one(swept, &[]).await.unwrap().get(0);
    assert_eq!(swept, all);
    ended_with(&client, lost, &all, "abandoned").await;
}

#[tokio::test]
async fn who_is_forgotten_with_an_event_whose_payload_is_lost_is_forgotten_whole() {
    let (_db, client) = probe().await;
    let (_, all) = around_a_lost_one(&client).await;
    let forget = "SELECT tidegate.forget($1, 'request 17')->>'forgotten'";
    let forgotten: &str = &client
        .query_one(forget, &[&all])
        .await
        .unwrap()
        .get::<_, String>(0);
    assert_eq!((forgotten, live(&client).await), ("7", 0));
    let kept = "SELECT count(*) FROM tidegate.event_log WHERE payload IS NOT NULL OR forgotten_at IS NULL OR status <> 'FAILED'";
    assert_eq!(number(&client, kept).await, 0);
}

#[tokio::test]
async fn a_due_event_whose_payload_is_lost_and_one_that_a_trigger_refuses_keep_no_other_waiting() {
    let (db, client) = probe().await;
    let (lost, all) = around_a_lost_one(&client).await;
    // Their time has come, and nobody has made them ready.
    let due = "UPDATE tidegate.event_queue SET delayed = true, stray = true";
    client.execute(due, &[]).await.unwrap();
    let refused = all[1];
    let refuse = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON tidegate.event_queue FOR EACH ROW
             WHEN (OLD.id = {refused}) EXECUTE FUNCTION refuse()"
    );
    client.batch_execute(&refuse).await.unwrap();
    let found = queue::promote(&client, 100).await.unwrap();
    assert_eq!(found, (6, Some(all[0])));
    let left = "SELECT array_agg(id) FROM tidegate.event_queue WHERE delayed";
    let left: Vec<i64> = client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, [refused]);
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, report.failed), (5, 1), "{report:?}");
    assert_eq!(end_of(&client, lost).await, "FAILED 0 unreadable");
    execute(&client, "DROP TRIGGER refuse ON tidegate.event_queue").await;
    assert_eq!(drain(&db, &app, &options()).await.completed, 1);
}

#[tokio::test]
async fn i5_only_who_holds_an_event_may_end_it_as_unreadable() {
    let (_db, client) = probe().await;
    let ids = publish_acts(&client, 2).await;
    let request = LeaseRequest {
        limit: 1,
        ..lease_request()
    };
    let batch = queue::lease(&client, &request).await.unwrap();
    let lease = batch.events[0].lease;
    assert_eq!(lease.id, ids[0]);
    let end = "SELECT tidegate.end_unreadable($1, $2, 'it is lost')";
    for (id, token) in [(ids[0], uuid::Uuid::new_v4()), (ids[1], lease.token)] {
        let ended = client.query_one(end, &[&token, &id]).await.unwrap();
        assert!(!ended.get::<_, bool>(0), "{id}");
    }
    let kept = "SELECT count(payload) FROM tidegate.event_queue";
    assert_eq!(number(&client, kept).await, 2);
    let ended = client.query_one(end, &[&lease.token, &lease.id]).await;
    assert!(ended.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn a_lease_is_bounded_by_bytes_and_brings_one_event_however_large() {
    let (_db, client) = probe().await;
    let sizes: [usize; 5] = [1000, 1000, 5000, 1000, 1000];
    let events = sizes.map(|size| act(&"x".repeat(size - r#"{"name":""}"#.len())));
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let ids: Vec<i64> = published.iter().map(|event| event.id).collect();
    let mut walk = queue::Walk::default();
    let mut taken: Vec<Vec<i64>> = Vec::new();
    while taken.concat().len() < ids.len() {
        let request = LeaseRequest {
            bytes: 2500,
            walk,
            ..lease_request()
        };
        let batch = queue::lease(&client, &request).await.unwrap();
        assert!(
            batch.scanned == 100 || taken.len() == 2,
            "not the end of the queue"
        );
        taken.push(batch.events.iter().map(|event| event.lease.id).collect());
        walk = batch.walk;
    }
    assert_eq!(taken, [&ids[..2], &ids[2..3], &ids[3..]]);
}

#[tokio::test]
async fn b25_a_retention_that_no_clock_can_be_added_to_is_refused() {
    let (_db, client) = probe().await;
    for column in ["retention_completed", "retention_failed"] {
        for time in ["300000 years", "-1 day", "3661 days"] {
            let update = format!("UPDATE tidegate.event_kind SET {column} = '{time}'");
            let (code, message) = refusal(&client, &update).await;
            assert_eq!(code, SqlState::CHECK_VIOLATION, "{message}");
        }
    }
    let set =
        "SELECT tidegate.set_retention('act', completed => '300000 years', reason => 'for ever')";
    let (code, message) = refusal(&client, set).await;
    assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE);
    begins(&message, "completed: must be 0 to 3660 days");
}

#[tokio::test]
async fn jsonb_is_published_by_every_client_that_sends_it() {
    let (db, client) = probe().await;
    let payload = Json(serde_json::json!({"name": "by jsonb"}));
    let publish = "SELECT id FROM tidegate.publish('act', $1)";
    client.query_one(publish, &[&payload]).await.unwrap();
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.calls()[0].name, "by jsonb");
}
