//! Draining events without work: the queue's own speed, and the effect of groups, depth, concurrent
//! drains and network distance.

use std::time::{Duration, Instant};

use tidegate::{DrainOptions, Hooks, drain_with};
use tokio::sync::watch;

use crate::bare::bare_move;
use crate::events::App;
use crate::measure::{Findings, Outcome, cpu_time, rate};
use crate::proxy;
use crate::setup::{Bench, FEW_ROUNDS, Groups, Queue, ROUNDS, connect, defaults};

const RATE: &str = "events/s";

pub async fn plain(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("drain").await?, bench.scaled(200_000));
    let mut found = Findings::default();
    for _ in bench.rounds(ROUNDS) {
        queue.prepare(count, Groups::None).await?;
        let before = queue.cpu_of_both().await?;
        let drained = queue.drain(count, &defaults()).await?;
        if let (Some(before), Some(after)) = (before, queue.cpu_of_both().await?) {
            let both = rate(count, after.saturating_sub(before));
            found.add("tidegate, CPU of both sides", "events/CPU-s", both);
        }
        found.add("tidegate", RATE, drained.rate());
        found.add(
            "tidegate, client's CPU",
            "events/CPU-s",
            rate(count, drained.cpu),
        );
        queue.prepare_bare(count).await?;
        let (began, cpu) = (Instant::now(), cpu_time()?);
        let moved = bare_move(&connect(&queue.url).await?, |_| true).await?;
        if moved != count {
            return Err(format!("the bare move moved {moved} of {count}").into());
        }
        found.add("bare move", RATE, rate(count, began.elapsed()));
        let used = cpu_time()?.saturating_sub(cpu);
        found.add("bare move, client's CPU", "events/CPU-s", rate(count, used));
    }
    found.at_least("tidegate", 1.8, "bare move");
    found.compare("tidegate, client's CPU", "bare move, client's CPU");
    bench.drop(queue).await?;
    Ok(found)
}

pub async fn groups(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("groups").await?, bench.scaled(200_000));
    let half = count / 2;
    let variants = [
        ("no groups", count, Groups::None),
        ("1,000 groups", count, Groups::Of(1000)),
        ("a group for each two", count, Groups::Of(half)),
        ("no groups, half as many", half, Groups::None),
        ("one group, half as many", half, Groups::Of(1)),
    ];
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        for (name, count, groups) in variants {
            queue.prepare(count, groups).await?;
            let drained = queue.drain(count, &defaults()).await?;
            found.add(name, RATE, drained.rate());
        }
    }
    found.at_least("1,000 groups", 0.85, "no groups");
    found.at_least("a group for each two", 0.85, "no groups");
    found.at_least("one group, half as many", 0.85, "no groups, half as many");
    bench.drop(queue).await?;
    Ok(found)
}

/// There are fewer of the larger payloads, so that all variants have some hundred megabytes at most.
pub async fn payloads(bench: &Bench) -> Outcome<Findings> {
    let queue = bench.queue("payloads").await?;
    // Without compression, because the text consists of one letter and would compress to nothing.
    let plain = ["event_queue", "event_log"]
        .map(|table| format!("ALTER TABLE tidegate.{table} ALTER payload SET STORAGE EXTERNAL"));
    queue.client.batch_execute(&plain.join(";")).await?;
    let variants = [
        ("20 bytes", 0, bench.scaled(200_000)),
        ("1 KiB", 1 << 10, bench.scaled(100_000)),
        ("64 KiB", 64 << 10, bench.scaled(5_000)),
        // The maximum size, including what surrounds the text.
        ("1 MiB", (1 << 20) - 100, bench.scaled(400)),
    ];
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        for (name, text_bytes, count) in variants {
            queue.clear().await?;
            let filled = queue.fill_with("bench_noop", count, Groups::None, text_bytes);
            filled.await?;
            queue.settle().await?;
            let bytes = "SELECT sum(payload_bytes)::bigint FROM tidegate.event_queue";
            let bytes = u32::try_from(queue.number(bytes).await?)?;
            let drained = queue.drain(count, &defaults()).await?;
            found.add(name, RATE, drained.rate());
            let megabytes = rate(bytes, drained.elapsed) / 1e6;
            found.add(format!("{name}, payload"), "MB/s", megabytes);
            found.add(
                format!("{name}, client's CPU"),
                "events/CPU-s",
                rate(count, drained.cpu),
            );
        }
    }
    bench.drop(queue).await?;
    Ok(found)
}

pub async fn deep(bench: &Bench) -> Outcome<Findings> {
    let (shallow, deep) = (bench.queue("shallow").await?, bench.queue("deep").await?);
    let (count, depth) = (bench.scaled(200_000), bench.scaled(2_000_000));
    let options = DrainOptions {
        max_events: Some(count.into()),
        ..defaults()
    };
    let mut found = Findings::default();
    deep.fill("bench_noop", depth - count, Groups::None).await?;
    for _ in bench.rounds(FEW_ROUNDS) {
        shallow.prepare(count, Groups::None).await?;
        let drained = shallow.drain(count, &options).await?;
        found.add("nothing behind", RATE, drained.rate());
        // Refill the events that the last round removed, at the end of the queue, and remove its dead
        // rows.
        deep.fill("bench_noop", count, Groups::None).await?;
        for sql in ["TRUNCATE tidegate.event_log", "VACUUM tidegate.event_queue"] {
            deep.client.batch_execute(sql).await?;
        }
        deep.settle().await?;
        let drained = deep.drain(count, &options).await?;
        found.add("1,800,000 behind", RATE, drained.rate());
    }
    found.at_least("1,800,000 behind", 0.95, "nothing behind");
    bench.drop(shallow).await?;
    bench.drop(deep).await?;
    Ok(found)
}

pub async fn ahead(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("ahead").await?, bench.scaled(100_000));
    let mut found = Findings::default();
    for _ in bench.rounds(ROUNDS) {
        queue.prepare(count, Groups::None).await?;
        let (ready, whole) = until_done(&queue, count).await?;
        found.add("nothing ahead", RATE, rate(count, ready));
        found.add("nothing ahead, to the report", "s", whole.as_secs_f64());
        queue.clear().await?;
        delayed_and_blocked(&queue, count).await?;
        queue.fill("bench_noop", count, Groups::None).await?;
        queue.settle().await?;
        let (ready, whole) = until_done(&queue, count).await?;
        found.add("delayed and blocked ahead", RATE, rate(count, ready));
        found.add("the same, to the report", "s", whole.as_secs_f64());
    }
    found.at_least("delayed and blocked ahead", 0.8, "nothing ahead");
    found.note("rates until the last ready event is in the log; the report comes when a walk past all that is not ready has found nothing more");
    bench.drop(queue).await?;
    Ok(found)
}

/// Creates this many events that are due tomorrow, among them the first events of groups, and as many
/// events behind those.
async fn delayed_and_blocked(queue: &Queue, count: u32) -> Outcome<()> {
    let sql = "INSERT INTO tidegate.event_queue (kind, payload, group_key, available_at)
               SELECT 'bench_noop', jsonb_build_object('number', n, 'text', repeat('x', 170)),
                      CASE WHEN n <= $1 / 100 THEN 'blocked-' || n WHEN n > $1 THEN 'blocked-' || n % ($1 / 100) + 1 END,
                      clock_timestamp() + CASE WHEN n <= $1 THEN interval '1 day' ELSE interval '0' END
                 FROM generate_series(1, $1::bigint * 2) AS n";
    queue.client.execute(sql, &[&i64::from(count)]).await?;
    Ok(())
}

/// Returns how long it takes until `count` events are in the log, and until the drain reports that the
/// queue is empty.
async fn until_done(queue: &Queue, count: u32) -> Outcome<(Duration, Duration)> {
    let (progress, mut told) = watch::channel(tidegate::DrainReport::default());
    let hooks = Hooks {
        progress: Some(progress),
        ..Hooks::default()
    };
    let (database, options) = (queue.database(8)?, defaults());
    let began = Instant::now();
    let done = async {
        let all = told.wait_for(|report| report.completed >= u64::from(count));
        let all = all.await.map(drop);
        all.map(|()| began.elapsed())
    };
    let (report, done) = tokio::join!(drain_with(&database, App::new(), &options, hooks), done);
    let report = report?;
    if report.completed != u64::from(count) {
        return Err(format!("{count} events should have completed: {report:?}").into());
    }
    Ok((done?, began.elapsed()))
}

pub async fn parallel(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("parallel").await?, bench.scaled(200_000));
    let mut found = Findings::default();
    let name = |drains: usize| format!("drains at once: {drains}");
    for _ in bench.rounds(FEW_ROUNDS) {
        for drains in [1, 2, 4, 8] {
            queue.prepare(count, Groups::None).await?;
            let elapsed = drain_together(&queue, count, drains).await?;
            found.add(name(drains), RATE, rate(count, elapsed));
        }
    }
    for drains in [2, 4, 8] {
        found.at_least(&name(drains), 0.95, &name(1));
    }
    found.note("no drain failed, none lost a lease, and every event is in the log once");
    bench.drop(queue).await?;
    Ok(found)
}

/// Runs several drains at the same time, and checks that every event was leased and logged once.
async fn drain_together(queue: &Queue, count: u32, drains: usize) -> Outcome<Duration> {
    let began = Instant::now();
    let mut running = Vec::new();
    for _ in 0..drains {
        let database = queue.database(8)?;
        let drain = async move { tidegate::drain(&database, App::new(), &defaults()).await };
        running.push(tokio::spawn(drain));
    }
    let mut reports = Vec::new();
    for drain in running {
        reports.push(drain.await??);
    }
    let sum = |of: fn(&tidegate::DrainReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (leased, completed) = (sum(|report| report.leased), sum(|report| report.completed));
    let lost = sum(|report| report.lease_lost);
    let elapsed = began.elapsed();
    let logged = "SELECT count(DISTINCT id) FROM tidegate.event_log";
    let (rows, ids) = (
        queue
            .number("SELECT count(*) FROM tidegate.event_log")
            .await?,
        queue.number(logged).await?,
    );
    let all = u64::from(count);
    if (leased, completed, lost) != (all, all, 0) || rows != ids || rows != i64::from(count) {
        return Err(format!(
            "{drains} drains of {count} events: {leased} leased, {completed} completed, {lost} lost, {rows} rows of {ids} events in the log: {reports:?}"
        )
        .into());
    }
    Ok(elapsed)
}

pub async fn distance(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("distance").await?, bench.scaled(200_000));
    let far = through_proxy(&queue.url, Duration::from_millis(1))?;
    let near = through_proxy(&queue.url, Duration::ZERO)?;
    let mut found = Findings::default();
    for _ in bench.rounds(ROUNDS) {
        for (name, url) in [
            ("loopback", &queue.url),
            ("1 ms away", &far),
            ("proxy without delay", &near),
        ] {
            queue.prepare(count, Groups::None).await?;
            let drained = queue.drain_over(url, count, &defaults()).await?;
            found.add(name, RATE, drained.rate());
        }
    }
    found.at_least("1 ms away", 0.8, "loopback");
    found.compare("proxy without delay", "loopback");
    let (near, far) = (round_trip(&queue.url).await?, round_trip(&far).await?);
    found.note(format!(
        "round trip of SELECT 1: {near:.2} ms on loopback, {far:.2} ms through the proxy with delay; the proxy runs on the same cores"
    ));
    bench.drop(queue).await?;
    Ok(found)
}

/// Returns the URL of the same database through a proxy.
fn through_proxy(url: &str, delay: Duration) -> Outcome<String> {
    let (credentials, rest) = url.split_once('@').ok_or("the URL names no user")?;
    let (address, name) = rest.split_once('/').ok_or("the URL names no database")?;
    let proxy = proxy::start(address.parse()?, delay)?;
    Ok(format!("{credentials}@{proxy}/{name}"))
}

async fn round_trip(url: &str) -> Outcome<f64> {
    let client = connect(url).await?;
    let mut times = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        client.simple_query("SELECT 1").await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(crate::measure::percentile(&times, 50))
}
