//! Handlers with work: they wait, write, or report when they started.

use std::time::{Duration, Instant};

use tidegate::{DrainOptions, Hooks, drain_with};
use tidegate_core::queue;
use tokio::sync::watch;

use crate::events::{App, WAIT};
use crate::measure::{Findings, Outcome, percentile, rate};
use crate::setup::{Bench, FEW_ROUNDS, Groups, defaults};

pub async fn waiting(bench: &Bench) -> Outcome<Findings> {
    const AT_ONCE: u16 = 64;
    let (queue, count) = (bench.queue("waiting").await?, bench.scaled(5000));
    let options = DrainOptions {
        concurrency: AT_ONCE.into(),
        ..defaults()
    };
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        queue
            .prepare_kind("bench_wait", count, Groups::None)
            .await?;
        let drained = queue.drain(count, &options).await?;
        found.add("tidegate", "events/s", drained.rate());
        let ideal = f64::from(AT_ONCE) / WAIT.as_secs_f64();
        found.add("ideal", "events/s", ideal);
    }
    found.at_least("tidegate", 0.95, "ideal");
    bench.drop(queue).await?;
    Ok(found)
}

pub async fn transactions(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("transactions").await?, bench.scaled(5000));
    let table = "CREATE TABLE bench_effect (number bigint NOT NULL, text text NOT NULL)";
    queue.client.batch_execute(table).await?;
    let name = |at_once: usize| format!("at once: {at_once}");
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        for at_once in [1, 8, 32] {
            queue.client.batch_execute("TRUNCATE bench_effect").await?;
            queue
                .prepare_kind("bench_write", count, Groups::None)
                .await?;
            let options = DrainOptions {
                concurrency: at_once,
                ..defaults()
            };
            let drained = queue.drain(count, &options).await?;
            found.add(name(at_once), "events/s", drained.rate());
            let written = queue.number("SELECT count(*) FROM bench_effect").await?;
            if written != i64::from(count) {
                return Err(format!("{count} handlers wrote {written} rows").into());
            }
        }
    }
    found.at_least(&name(8), 3.0, &name(1));
    found.compare(&name(32), &name(1));
    bench.drop(queue).await?;
    Ok(found)
}

pub async fn latency(bench: &Bench) -> Outcome<Findings> {
    let queue = bench.queue("latency").await?;
    let count = if bench.quick { 200 } else { 1000 };
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        queue.clear().await?;
        queue.settle().await?;
        let app = App::new();
        let (stop, stopped) = watch::channel(false);
        let hooks = Hooks {
            stop: Some(stopped),
            ..Hooks::default()
        };
        let options = DrainOptions {
            linger: Duration::from_mins(5),
            ..defaults()
        };
        let (database, handlers) = (queue.database(8)?, app.clone());
        let drain =
            tokio::spawn(async move { drain_with(&database, handlers, &options, hooks).await });
        publish_steadily(&queue.client, &app, count).await?;
        while app.pickups().len() < usize::try_from(count)? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.send_replace(true);
        drain.await??;
        let pickups = app.pickups();
        found.add("half of them within", "ms", percentile(&pickups, 50));
        found.add("99 of 100 within", "ms", percentile(&pickups, 99));
    }
    found.at_most("half of them within", 20.0);
    found.note("the time contains the publish itself, one durable commit");
    bench.drop(queue).await?;
    Ok(found)
}

/// Publishes one event every 10 ms.
async fn publish_steadily(client: &tokio_postgres::Client, app: &App, count: u32) -> Outcome<()> {
    let began = Instant::now();
    for number in 0..count {
        let due = began + Duration::from_millis(10) * number;
        tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        queue::publish(client, &app.stamp()).await?;
    }
    if rate(count, began.elapsed()) < 95.0 {
        return Err("this machine is too busy to publish 100 events a second".into());
    }
    Ok(())
}
