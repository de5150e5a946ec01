//! A publish wakes a drain if none is at work. Of many publishers only one does so, and no event is missed
//! while a drain ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use test_support::execute;
use test_support::probe::{ProbeApp, act, live, number, probe, probe_sessions, slot_of};
use tidegate::chain::{Chain, StartDrain};
use tidegate::connect::Client;
use tidegate::drain::StopReason;
use tidegate::wake::Waker;
use tidegate::{Database, DrainOptions, Error};
use tidegate_core::queue::{self, Taken};
use tokio::task::JoinSet;
use uuid::Uuid;

async fn take(client: &Client, worker: Uuid) -> Taken {
    let minute = Duration::from_mins(1);
    let taken = queue::take_slot(client, worker, "here", 8, minute, Chain::begin(), None).await;
    taken.unwrap()
}

async fn should_wake(client: &Client) -> bool {
    queue::should_wake(client).await.unwrap()
}

/// Moves past the time in which one wake-up is enough.
async fn later(client: &Client) {
    let sql = "UPDATE tidegate.wake SET sent_at = sent_at - interval '2 seconds'";
    client.batch_execute(sql).await.unwrap();
}

#[tokio::test]
async fn one_of_many_publishers_wakes_and_none_while_a_drain_is_at_work() {
    let (_db, [client, other]) = probe_sessions().await;
    assert!(should_wake(&client).await);
    assert!(!should_wake(&other).await, "another one does already");
    later(&client).await;
    assert!(should_wake(&other).await, "that one was lost");
    let worker = Uuid::new_v4();
    assert_eq!(slot_of(&take(&client, worker).await), Some((1, true)));
    later(&client).await;
    assert!(!should_wake(&client).await, "a drain is at work");
    queue::leave_slot(&client, 1, worker).await.unwrap();
    assert!(should_wake(&client).await, "it has gone");
    // No publisher waits for a session that locks the row, and a publisher that asks too early gets its
    // answer.
    execute(&client, "BEGIN; SELECT FROM tidegate.wake FOR UPDATE").await;
    later_is_no_matter(&other).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    queue::publish(&client, &act("a")).await.unwrap();
    let refused = queue::should_wake(&client).await.unwrap_err().to_string();
    assert!(refused.contains("in a transaction of its own"), "{refused}");
}

async fn later_is_no_matter(client: &Client) {
    assert!(!should_wake(client).await);
}

#[tokio::test]
async fn drains_know_whether_publishers_rely_on_them() {
    let (_db, client) = probe().await;
    let worker = Uuid::new_v4();
    assert_eq!(slot_of(&take(&client, worker).await), Some((1, false)));
    queue::leave_slot(&client, 1, worker).await.unwrap();
    should_wake(&client).await;
    let long_ago = "UPDATE tidegate.wake SET asked_at = now() - interval '61 minutes'";
    client.batch_execute(long_ago).await.unwrap();
    assert_eq!(slot_of(&take(&client, worker).await), Some((1, false)));
    // Publishers' requests are recorded while a drain is at work, too.
    assert!(!should_wake(&client).await);
    queue::leave_slot(&client, 1, worker).await.unwrap();
    assert_eq!(slot_of(&take(&client, worker).await), Some((1, true)));
}

#[tokio::test]
async fn what_is_published_while_drains_end_is_never_left_to_a_tick() {
    let (db, client) = probe().await;
    // From now on, drains know that publishers rely on them.
    should_wake(&client).await;
    later(&client).await;
    let app = ProbeApp::succeeding();
    let mut woken = 0;
    for round in 0..150 {
        let mut drains = JoinSet::new();
        for _ in 0..2 {
            queue::publish(&client, &act("a")).await.unwrap();
            if should_wake(&client).await {
                woken += 1;
                let (database, app) = (db.database(), app.clone());
                drains.spawn(async move {
                    let options = DrainOptions {
                        max_drains: if round % 2 == 0 { 1 } else { 8 },
                        ..DrainOptions::default()
                    };
                    tidegate::drain(&database, app, &options).await.unwrap()
                });
            }
            // The second publish comes at a random moment of the first one's drain, or after its end.
            if round % 10 == 0 {
                while drains.join_next().await.is_some() {}
            } else if round % 10 > 1 {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..70_000))).await;
            }
        }
        let reports = drains.join_all().await;
        assert_eq!(live(&client).await, 0, "round {round}: {reports:?}");
    }
    assert!(
        (151..300).contains(&woken),
        "some met a drain at work, and some none: {woken}"
    );
}

/// Publishes an event when a drain leaves its slot: its last lease has not seen it, and whoever publishes
/// still sees the drain at work.
const AT_THE_LAST_MOMENT: &str = "
    CREATE TABLE public.moment (left_at timestamptz);
    CREATE FUNCTION public.at_the_last_moment() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.moment VALUES (clock_timestamp());
        IF (SELECT count(*) FROM public.moment) = 1 THEN
            INSERT INTO tidegate.event_queue (kind, payload) VALUES ('act', '{\"name\": \"late\"}');
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER at_the_last_moment BEFORE UPDATE ON tidegate.drain_slot FOR EACH ROW
        WHEN (OLD.worker IS NOT NULL AND NEW.worker IS NULL) EXECUTE FUNCTION public.at_the_last_moment()";

#[tokio::test]
async fn a_drain_on_which_publishers_rely_looks_again_after_it_has_left_its_slot() {
    for relied_on in [true, false] {
        let (db, client) = probe().await;
        client.batch_execute(AT_THE_LAST_MOMENT).await.unwrap();
        if relied_on {
            should_wake(&client).await;
        }
        queue::publish(&client, &act("first")).await.unwrap();
        let app = ProbeApp::succeeding();
        let options = DrainOptions::default();
        let report = tidegate::drain(&db.database(), app, &options)
            .await
            .unwrap();
        assert_eq!(report.stop_reason, StopReason::QueueEmpty, "{report:?}");
        assert_eq!(report.completed, 1 + u64::from(relied_on), "{report:?}");
        assert_eq!(live(&client).await, i64::from(!relied_on));
        let slots = "SELECT count(*) FROM tidegate.drain_slot WHERE worker IS NOT NULL";
        assert_eq!(number(&client, slots).await, 0);
    }
}

#[tokio::test]
async fn what_a_drain_sees_but_cannot_lease_does_not_keep_it() {
    let (db, [client, holder]) = probe_sessions().await;
    should_wake(&client).await;
    for name in ["a", "b"] {
        queue::publish(&client, &act(name)).await.unwrap();
    }
    execute(
        &holder,
        "BEGIN; SELECT FROM tidegate.event_queue FOR UPDATE",
    )
    .await;
    let app = ProbeApp::succeeding();
    let report = tidegate::drain(&db.database(), app, &DrainOptions::default())
        .await
        .unwrap();
    assert_eq!(report.stop_reason, StopReason::QueueEmpty, "{report:?}");
    assert_eq!((report.leased, report.backlog), (0, Some(2)), "{report:?}");
}

/// Counts the drains that it is asked to start.
struct Counted(AtomicUsize);

impl StartDrain for Counted {
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<(), Error>> {
        assert_eq!(chain.hop, 0);
        self.0.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn ten_thousand_publishes_at_once_wake_once() {
    let (db, client) = probe().await;
    let counted = Arc::new(Counted(AtomicUsize::new(0)));
    let waker = Waker::new(db.database(), counted.clone());
    for _ in 0..10_000 {
        waker.published();
        tokio::task::yield_now().await;
    }
    let asked = "SELECT count(*) FROM tidegate.wake WHERE sent_at > '-infinity'";
    while number(&client, asked).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Any request still to come finds that the wake-up was sent.
    assert!(!waker.wake().await.unwrap() || counted.0.load(Ordering::SeqCst) <= 2);
    later(&client).await;
    assert!(waker.wake().await.unwrap());
    assert!(counted.0.load(Ordering::SeqCst) <= 3);
    let nowhere = Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
    let waker = Waker::new(nowhere, counted);
    assert!(waker.wake().await.is_err());
}
