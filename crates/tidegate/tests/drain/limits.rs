//! Services whose calls are limited: how often they are called by however many drains, and what that costs
//! everything else. The service is a stand-in that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use test_support::probe::{live, number, publish};
use test_support::{TestDb, opened_for};
use tidegate::connect::Client;
use tidegate::{
    Context, Dispatch, Done, DrainOptions, DrainReport, HandlerResult, Handlers, NewEvent,
    StopReason,
};

tidegate::events! {
    enum Calls {
        /// Calls the carrier.
        Parcel(Empty) = "parcel",
        /// Calls nobody.
        Note(Empty) = "note",
        /// Calls the carrier and the printer.
        Both(Empty) = "both",
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Empty {}

/// What is called, and how many calls of it there are.
#[derive(Default)]
struct Counter {
    now: AtomicUsize,
    most: AtomicUsize,
    calls: AtomicUsize,
}

impl Counter {
    async fn call(&self) -> HandlerResult {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Done::ok())
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct Works {
    carrier: Counter,
    printer: Counter,
    notes: AtomicUsize,
}

impl Works {
    async fn note(&self) -> HandlerResult {
        self.notes.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Ok(Done::ok())
    }
}

impl Dispatch for Works {
    type Event = Calls;

    fn handlers<'a>(&'a self, event: &'a Calls, _: &'a Context) -> Handlers<'a> {
        let carrier = || Handlers::one("send", self.carrier.call()).calls("carrier");
        match event {
            Calls::Parcel(_) => carrier(),
            Calls::Note(_) => Handlers::one("note", self.note()),
            Calls::Both(_) => carrier().and("print", self.printer.call()).calls("printer"),
        }
    }
}

fn parcels(count: usize) -> impl Iterator<Item = NewEvent> {
    (0..count).map(|_| NewEvent::of(&Calls::Parcel(Empty {})).unwrap())
}

fn notes(count: usize) -> impl Iterator<Item = NewEvent> {
    (0..count).map(|_| NewEvent::of(&Calls::Note(Empty {})).unwrap())
}

/// Default settings, with all the time that a busy machine may need.
async fn drain(db: &TestDb, works: &Arc<Works>) -> DrainReport {
    drain_by(db, works, DrainOptions::default().concurrency).await
}

async fn drain_by(db: &TestDb, works: &Arc<Works>, concurrency: usize) -> DrainReport {
    let options = DrainOptions {
        budget: Duration::from_mins(4),
        concurrency,
        ..DrainOptions::default()
    };
    let report = tidegate::drain(&db.database(), works.clone(), &options).await;
    let report = report.unwrap();
    assert!(report.is_balanced(), "{report:?}");
    report
}

async fn limit(client: &Client, service: &str, running: Option<i32>, per_second: Option<f64>) {
    let sql = "SELECT tidegate.limit_service($1, $2, $3, 'a test') IS NOT NULL";
    let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&service, &running, &per_second];
    client.query_one(sql, values).await.unwrap();
}

/// Drains until nothing is left: what a drain could not start because others had all places is the next
/// one's.
async fn drain_all(db: &TestDb, works: &Arc<Works>, drains: usize) {
    let client = db.client().await;
    while live(&client).await > 0 {
        join_all((0..drains).map(|_| drain(db, works))).await;
        let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE available_at > clock_timestamp()";
        client.batch_execute(due).await.unwrap();
    }
    let charged =
        "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1 OR status <> 'COMPLETED'";
    assert_eq!(number(&client, charged).await, 0);
    let kept = "SELECT count(*) FROM tidegate.service_place";
    assert_eq!(number(&client, kept).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_events_than_a_limit_run_at_once_in_four_drains() {
    let (db, client) = opened_for::<Calls>().await;
    limit(&client, "carrier", Some(3), None).await;
    publish(&client, parcels(300).chain(notes(1000))).await;
    let in_groups = parcels(100).enumerate();
    publish(
        &client,
        in_groups.map(|(n, event)| event.group(format!("group {}", n % 5))),
    )
    .await;
    let works = Arc::new(Works::default());
    drain_all(&db, &works, 4).await;
    assert_eq!(works.carrier.calls(), 400);
    assert_eq!(works.carrier.most(), 3);
    assert_eq!(works.notes.load(Ordering::SeqCst), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_events_than_a_limit_start_in_a_second_in_four_drains() {
    let (db, client) = opened_for::<Calls>().await;
    limit(&client, "carrier", None, Some(50.0)).await;
    publish(&client, parcels(150).chain(notes(1000))).await;
    let works = Arc::new(Works::default());
    let began = Instant::now();
    drain_all(&db, &works, 4).await;
    // Slower is allowed.
    let least = Duration::from_secs_f64(149.0 / 50.0);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    assert_eq!(works.carrier.calls(), 150);
    assert_eq!(works.notes.load(Ordering::SeqCst), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_calls_two_limited_services_keeps_to_both() {
    let (db, client) = opened_for::<Calls>().await;
    limit(&client, "carrier", Some(4), None).await;
    limit(&client, "printer", Some(2), Some(200.0)).await;
    let both = (0..60).map(|_| NewEvent::of(&Calls::Both(Empty {})).unwrap());
    publish(&client, both.chain(parcels(60))).await;
    let works = Arc::new(Works::default());
    drain_all(&db, &works, 2).await;
    assert_eq!((works.carrier.calls(), works.printer.calls()), (120, 60));
    let most = (works.carrier.most(), works.printer.most());
    assert!(most.0 <= 4 && most.1 <= 2, "{most:?}");
}

/// Somebody has all places, for good.
async fn all_places_taken(client: &Client) {
    let sql = "UPDATE tidegate.service SET kinds = '{parcel}';
               INSERT INTO tidegate.service_place (service, worker, places, until)
               SELECT service, gen_random_uuid(), max_running, clock_timestamp() + interval '1 hour' FROM tidegate.service";
    client.batch_execute(sql).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_all_places_for_ever_holds_up_only_what_needs_one() {
    let (db, client) = opened_for::<Calls>().await;
    limit(&client, "carrier", Some(2), None).await;
    all_places_taken(&client).await;
    publish(&client, parcels(3000).chain(notes(2000))).await;
    // One of them took its worker along, and is to run alone.
    let suspect = "UPDATE tidegate.event_queue SET lapses = 1, attempts = 1 WHERE id = (SELECT min(id) FROM tidegate.event_queue)";
    client.batch_execute(suspect).await.unwrap();
    let works = Arc::new(Works::default());
    for concurrency in [1, 8] {
        let report = drain_by(&db, &works, concurrency).await;
        assert_eq!(report.stop_reason, StopReason::QueueEmpty, "{report:?}");
        assert_eq!(live(&client).await, 3000, "{report:?}");
    }
    assert_eq!(works.notes.load(Ordering::SeqCst), 2000);
    assert_eq!(works.carrier.calls(), 0);
    let charged = "SELECT sum(attempts)::bigint FROM tidegate.event_queue";
    assert_eq!(number(&client, charged).await, 1);
    // Its worker was gone, and now that is known.
    let over = "UPDATE tidegate.service_place SET until = clock_timestamp()";
    client.batch_execute(over).await.unwrap();
    limit(&client, "carrier", Some(500), None).await;
    assert_eq!(drain(&db, &works).await.completed, 3000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_concerns_another_program_keeps_this_one_from_nothing() {
    let (db, client) = opened_for::<Calls>().await;
    limit(&client, "loading dock", Some(1), Some(0.0001)).await;
    let theirs = "INSERT INTO tidegate.event_kind (kind) VALUES ('pallet');
                  UPDATE tidegate.service SET kinds = '{pallet}';
                  INSERT INTO tidegate.event_queue (kind) VALUES ('pallet')";
    client.batch_execute(theirs).await.unwrap();
    publish(&client, parcels(100)).await;
    let works = Arc::new(Works::default());
    let report = drain(&db, &works).await;
    let found = (report.completed, report.stop_reason);
    assert_eq!(found, (100, StopReason::QueueEmpty), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_set_or_lifted_takes_effect_in_a_run_under_way() {
    let (db, client) = opened_for::<Calls>().await;
    publish(&client, parcels(400)).await;
    let works = Arc::new(Works::default());
    let run = {
        let (db, works) = (db.database(), works.clone());
        let options = DrainOptions {
            budget: Duration::from_mins(4),
            ..DrainOptions::default()
        };
        tokio::spawn(async move { tidegate::drain(&db, works, &options).await })
    };
    while works.carrier.calls() < 10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One start in two hours: the run would not end within its time.
    limit(&client, "carrier", None, Some(0.0001)).await;
    let stands = async {
        let mut calls = works.carrier.calls();
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = works.carrier.calls();
            if std::mem::replace(&mut calls, now) == now {
                return;
            }
        }
    };
    stands.await;
    limit(&client, "carrier", None, Some(0.0)).await;
    let report = run.await.unwrap().unwrap();
    assert_eq!(report.failed, 0, "{report:?}");
    drain_all(&db, &works, 1).await;
    assert_eq!(works.carrier.calls(), 400);
}

#[tokio::test]
async fn places_are_claimed_up_to_the_limit_and_free_again_when_their_worker_is_gone() {
    let (_db, client) = opened_for::<Calls>().await;
    limit(&client, "carrier", Some(4), Some(2.0)).await;
    let claim = |worker: u128, running: i32, wanted: i32, starts: i32| {
        let (client, worker) = (&client, uuid::Uuid::from_u128(worker));
        async move {
            let sql = "SELECT places, starting FROM tidegate.claim_service('carrier', $1, $2, $3, $4, 3600)";
            let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                &[&worker, &running, &wanted, &starts];
            let row = client.query_one(sql, values).await.unwrap();
            (row.get::<_, i32>(0), row.get::<_, i32>(1))
        }
    };
    // Of starts no more than reach a second ahead.
    assert_eq!(claim(1, 0, 3, 10).await, (3, 3));
    assert_eq!(claim(2, 0, 3, 0).await, (1, 0));
    assert_eq!(claim(2, 0, 3, 1).await, (1, 0));
    // What runs keeps its places when the limit is lowered.
    limit(&client, "carrier", Some(1), None).await;
    assert_eq!(claim(1, 2, 1, 0).await, (2, 0));
    assert_eq!(claim(2, 0, 1, 0).await, (0, 0));
    assert_eq!(claim(1, 0, 0, -2).await, (0, 0));
    assert_eq!(claim(2, 0, 1, 0).await, (1, 0));
    let over = "UPDATE tidegate.service_place SET until = clock_timestamp()";
    client.batch_execute(over).await.unwrap();
    assert_eq!(claim(3, 0, 5, 0).await, (1, 0));
}
