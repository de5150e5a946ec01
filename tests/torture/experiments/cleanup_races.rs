//! Row 16: cleanups, replays and requeues beside running workers, some of which die. Many events have
//! only one attempt, so an event that is being handled has used up its attempts, like one that the
//! cleanup must end.

use std::time::{Duration, Instant};

use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate_core::connect::{Client, Database};
use tidegate_core::queue::retention::make_partitions;

use super::killed_workers::publisher;
use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::Publisher;

pub async fn cleanup_replay_and_requeue_beside_finalizes_touch_only_what_they_may(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("cleanup_races", seed, &[]).await;
    let retention = "UPDATE tidegate.event_kind SET retention_completed = '0', retention_failed = '300 milliseconds'";
    world.client().await.batch_execute(retention).await.unwrap();
    // The part of a first cleanup that takes long.
    make_partitions(&world.client().await).await.unwrap();
    let mut fleet = Fleet::default();
    for _ in 0..3 {
        fleet.start_worker(&world, worker(&world));
    }
    for one_by_one in [true, false] {
        let publisher = Publisher {
            max_attempts: if one_by_one { 1 } else { 3 },
            ..publisher(&mut world, one_by_one)
        };
        fleet.start_publisher(&world, publisher);
    }
    let until = Instant::now() + size.seconds(10, 45);
    // The name distinguishes it from an operator, who may take any event.
    let url = world.url.clone() + "?application_name=cleanup";
    let operator = world.client().await;
    let operating = async {
        let (one, other, replayed) = tokio::join!(
            clean(&url, until),
            clean(&url, until),
            operate(&operator, until)
        );
        (one + other, replayed)
    };
    let mut random = world.random.fork();
    let killing = async {
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(random.u64(200..800))).await;
            let place = random.usize(0..fleet.workers.len());
            fleet.workers[place].kill(&world);
            fleet.workers.swap_remove(place);
            fleet.start_worker(&world, worker(&world));
        }
    };
    let ((cleaned, replayed), ()) = tokio::join!(operating, killing);
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    let mut further = Vec::new();
    if cleaned == 0 || replayed == 0 {
        further.push(Violation {
            invariant: "races",
            text: format!("nothing was tried: {cleaned} cleaned, {replayed} replayed"),
        });
    }
    world.judge(further).await
}

/// Runs cleanups without a pause. Returns how many events they removed or ended.
async fn clean(url: &str, until: Instant) -> u64 {
    let database = Database::new(url, 1).unwrap();
    let options = CleanupOptions {
        budget: Duration::from_secs(3),
        batch: 50,
        ..CleanupOptions::default()
    };
    let mut touched = 0;
    while Instant::now() < until {
        let report = cleanup(&database, &options, CleanupHooks::default())
            .await
            .unwrap();
        touched += report.rows_deleted + report.rows_dropped;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    touched
}

/// Replays failed events and requeues live ones. Returns how many events were replayed.
async fn operate(operator: &Client, until: Instant) -> i64 {
    let mut replayed = 0;
    while Instant::now() < until {
        let replay = "SELECT (tidegate.replay(ids => ARRAY(SELECT id FROM tidegate.event_log ORDER BY random() LIMIT 5),
                                              reason => 'torture')->>'replayed')::bigint
                       WHERE EXISTS (SELECT FROM tidegate.event_log)";
        replayed += refused_or(operator.query(replay, &[]).await).unwrap_or(0);
        let requeue = "SELECT (tidegate.requeue(ARRAY(SELECT id FROM tidegate.event_queue ORDER BY random() LIMIT 3), 'torture')
                               ->>'requeued')::bigint
                        WHERE EXISTS (SELECT FROM tidegate.event_queue)";
        refused_or(operator.query(requeue, &[]).await);
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    replayed
}

/// Between the two queries of a statement, no event may be left, and an empty list is refused.
fn refused_or(answer: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>) -> Option<i64> {
    match answer {
        Ok(rows) => rows.first().map(|row| row.get(0)),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some("22023"), "{error:?}");
            None
        }
    }
}
