//! A publish that takes the place of the live event with its deduplication key.

use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, disorder, drain, expire_leases, lease_request, live, number, options, probe,
    probe_sessions, sweep,
};
use test_support::{TestDb, begins, contains, wait_for_a_lock};
use tidegate::connect::Client;
use tidegate::{Done, HandlerError, NewEvent, Published};
use tidegate_core::queue;

fn keyed(name: &str) -> NewEvent {
    act(name).dedup("order-7")
}

async fn publish(client: &Client, event: &NewEvent) -> Published {
    queue::publish(client, event).await.unwrap()
}

/// A new event's id.
async fn first(client: &Client, event: NewEvent) -> i64 {
    let published = publish(client, &event).await;
    assert!(published.created && !published.replaced, "{published:?}");
    published.id
}

/// What handlers were given, of all that was live.
async fn handled(db: &TestDb) -> Vec<String> {
    let app = ProbeApp::succeeding();
    drain(db, &app, &options()).await;
    app.calls().into_iter().map(|call| call.name).collect()
}

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test]
async fn the_last_one_runs_once_at_its_own_time_and_in_the_firsts_place() {
    let (db, client) = probe().await;
    let group = |event: NewEvent| event.group("g");
    let id = first(&client, group(keyed("old").correlation("a")).delay(HOUR)).await;
    let behind = first(&client, group(act("behind"))).await;
    let created = "SELECT extract(epoch FROM created_at)::bigint FROM tidegate.event_queue ORDER BY id LIMIT 1";
    let age = number(&client, created).await;
    for (name, delay) in [("newer", HOUR * 2), ("newest", Duration::ZERO)] {
        let event = group(keyed(name)).delay(delay).max_attempts(9);
        let event = event.correlation("b").start_within(HOUR * 3).replace();
        let published = publish(&client, &event).await;
        let told = (published.id, published.created, published.replaced);
        assert_eq!(told, (id, false, true));
        assert_eq!((published.status, published.attempts), ("PENDING", 0));
        assert_eq!(disorder(&client).await, [""; 0]);
    }
    let row = "SELECT count(*) FROM tidegate.event_queue WHERE correlation_id = 'b' AND max_attempts = 9
                  AND expires_at > now() + interval '2 hours' AND NOT delayed AND payload->>'name' = 'newest'";
    assert_eq!(number(&client, row).await, 1);
    assert_eq!((number(&client, created).await, behind > id), (age, true));
    assert_eq!(handled(&db).await, ["newest", "behind"]);
    // The key is free again.
    first(&client, keyed("another").replace()).await;
}

#[tokio::test]
async fn a_leased_event_is_kept_and_its_end_does_not_wait_for_the_publisher() {
    let (_db, [mut producer, client]) = probe_sessions().await;
    let id = first(&client, keyed("old")).await;
    let request = lease_request();
    queue::lease(&client, &request).await.unwrap();
    let transaction = producer.transaction().await.unwrap();
    let event = keyed("new").replace();
    let published = queue::publish(&transaction, &event).await.unwrap();
    let told = (published.id, published.created, published.replaced);
    assert_eq!(told, (id, false, false));
    assert_eq!((published.status, published.attempts), ("PROCESSING", 1));
    // The producer's transaction is open, and the row is not locked by it.
    let lock = "SELECT id FROM tidegate.event_queue FOR UPDATE NOWAIT";
    client.query_one(lock, &[]).await.unwrap();
}

#[tokio::test]
async fn one_that_is_leased_while_a_replacement_waits_for_it_is_kept_and_free_of_locks() {
    let (db, [mut worker, mut producer]) = probe_sessions().await;
    let witness = db.client().await;
    first(&witness, keyed("old")).await;
    let leasing = worker.transaction().await.unwrap();
    queue::lease(&leasing, &lease_request()).await.unwrap();
    let waiting = tokio::spawn(async move {
        let transaction = producer.transaction().await.unwrap();
        let published = queue::publish(&transaction, &keyed("new").replace()).await;
        let published = published.unwrap();
        let lock = "SELECT id FROM tidegate.event_queue FOR UPDATE NOWAIT";
        let free = witness.query_one(lock, &[]).await.is_ok();
        transaction.commit().await.unwrap();
        (published.replaced, published.status, free)
    });
    let other = db.client().await;
    wait_for_a_lock(&other).await;
    leasing.commit().await.unwrap();
    let told = waiting.await.unwrap();
    assert_eq!(told, (false, "PROCESSING", true));
    let kept = "SELECT count(*) FROM tidegate.event_queue WHERE payload->>'name' = 'old'";
    assert_eq!(number(&other, kept).await, 1);
}

#[tokio::test]
async fn what_a_handler_has_seen_is_kept_and_no_attempt_is_lost() {
    let (db, client) = probe().await;
    let id = first(&client, keyed("old")).await;
    let app = ProbeApp::new(|_, _| {
        Box::pin(async { Err(HandlerError::retry("down", "away").after(HOUR)) })
    });
    drain(&db, &app, &options()).await;
    let published = publish(&client, &keyed("new").replace()).await;
    assert_eq!((published.id, published.replaced), (id, false));
    assert_eq!((published.status, published.attempts), ("PENDING", 1));
    // Also without an attempt, as after a snooze or a call that was not answered.
    let snoozed = act("snoozed").dedup("snoozed");
    first(&client, snoozed).await;
    let app = ProbeApp::new(|_, _| Box::pin(async { Err(HandlerError::snooze(HOUR, "not yet")) }));
    drain(&db, &app, &options()).await;
    let again = act("new").dedup("snoozed").replace();
    let published = publish(&client, &again).await;
    assert_eq!((published.replaced, published.attempts), (false, 0));
    // And one that its worker has taken and never begun is as good as new.
    let untouched = first(&client, act("old").dedup("untouched")).await;
    let request = queue::LeaseRequest {
        first_window: 0,
        ..lease_request()
    };
    queue::lease(&client, &request).await.unwrap();
    expire_leases(&client).await;
    sweep(&client).await;
    let again = act("new").dedup("untouched").replace();
    let published = publish(&client, &again).await;
    assert_eq!((published.id, published.replaced), (untouched, true));
}

#[tokio::test]
async fn a_replacement_that_is_not_allowed_is_refused_by_the_field() {
    let (db, client) = probe().await;
    first(&client, keyed("old").group("g")).await;
    let refused = async |event: NewEvent| {
        let answer = queue::publish(&client, &event).await;
        answer.unwrap_err().to_string()
    };
    let moved = refused(keyed("new").replace()).await;
    begins(&moved, "group_key: must be the group of the live event");
    let moved = refused(keyed("new").group("h").replace()).await;
    assert!(moved.contains("got h"), "{moved}");
    let late = keyed("new").group("g").delay(HOUR * 24 * 31).replace();
    let late = refused(late).await;
    contains(&late, "available_at: must be within 30 days");
    let keyless = refused(act("new").replace()).await;
    assert!(keyless.contains("dedup_key: must be given"), "{keyless}");
    let batch = queue::publish_batch(&client, &[keyed("new").group("g").replace()]).await;
    let batch = batch.unwrap_err().to_string();
    assert!(batch.contains("on_duplicate: must be keep"), "{batch}");
    let sql = "SELECT tidegate.publish('act', '{}', dedup_key => 'k', on_duplicate => 'drop')";
    let unknown = client.query_one(sql, &[]).await.unwrap_err();
    let unknown = unknown.as_db_error().unwrap().message().to_owned();
    contains(
        &unknown,
        "on_duplicate: must be keep or replace, got 'drop'",
    );
    let found = (live(&client).await, handled(&db).await);
    assert_eq!(found, (1, vec!["old".to_owned()]));
}

#[tokio::test]
async fn an_event_that_ends_while_a_replacement_waits_for_it_makes_room_for_a_new_one() {
    let (db, [mut operator, producer]) = probe_sessions().await;
    let witness = db.client().await;
    let id = first(&witness, keyed("old")).await;
    let cancelling = operator.transaction().await.unwrap();
    let cancel = "SELECT tidegate.cancel(ARRAY[$1::bigint], reason => 'r')";
    cancelling.query_one(cancel, &[&id]).await.unwrap();
    let waiting = tokio::spawn(async move { publish(&producer, &keyed("new").replace()).await });
    wait_for_a_lock(&witness).await;
    cancelling.commit().await.unwrap();
    let published = waiting.await.unwrap();
    assert!(published.created && published.id > id, "{published:?}");
    let app = ProbeApp::new(|_, _| Box::pin(async { Ok(Done::ok()) }));
    drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [published.id]);
}

#[tokio::test]
async fn nobody_who_knows_its_key_puts_off_an_event_that_is_ready_or_holds_a_group() {
    let (_db, client) = probe().await;
    first(&client, keyed("ready")).await;
    let later = keyed("replaced").delay(HOUR * 24 * 3650).replace();
    assert!(publish(&client, &later).await.replaced);
    let ready = "SELECT count(*) FROM tidegate.event_queue
                  WHERE NOT delayed AND available_at <= now() AND payload->>'name' = 'replaced'";
    assert_eq!(number(&client, ready).await, 1);
    // Of a group, it was planned 29 of 30 days ago.
    let held = act("head").dedup("order-8").group("g");
    let planned = HOUR * 24 * 29;
    first(&client, held.clone().delay(planned)).await;
    let ago = "UPDATE tidegate.event_queue SET created_at = created_at - interval '29 days' WHERE group_key = 'g'";
    client.execute(ago, &[]).await.unwrap();
    for _ in 0..2 {
        let again = held.clone().delay(planned).replace();
        assert!(publish(&client, &again).await.replaced);
        let waits = "SELECT extract(day FROM available_at - now())::bigint FROM tidegate.event_queue WHERE group_key = 'g'";
        assert!(number(&client, waits).await <= 1);
    }
}
