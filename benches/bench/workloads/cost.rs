//! The cost of draining: the server's disk, the client's memory, and a tick that finds no event.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::{Event, publish_batch};
use tidegate_core::queue::{self, LeaseRequest, Walk};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::bare::bare_move;
use crate::events::{Note, Work};
use crate::explain::explain;
use crate::measure::{Findings, Outcome, percentile};
use crate::setup::{Bench, FEW_ROUNDS, Groups, Queue, connect, defaults};

pub async fn footprint(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("footprint").await?, bench.scaled(200_000));
    // Dead rows must be counted before autovacuum removes them.
    let by_hand = "ALTER TABLE tidegate.event_queue SET (autovacuum_enabled = false)";
    queue.client.batch_execute(by_hand).await?;
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        queue.prepare(count, Groups::None).await?;
        let before = Cost::read(&queue).await?;
        queue.drain(count, &defaults()).await?;
        Cost::read(&queue)
            .await?
            .add(&before, "tidegate", count, &mut found);
        queue.prepare_bare(count).await?;
        let before = Cost::read_of(&queue, "bare.event_queue").await?;
        bare_move(&connect(&queue.url).await?, |_| true).await?;
        Cost::read_of(&queue, "bare.event_queue").await?.add(
            &before,
            "bare move",
            count,
            &mut found,
        );
    }
    for _ in bench.rounds(FEW_ROUNDS) {
        whole_life(&queue, count, &mut found).await?;
    }
    for what in [
        "WAL",
        "dead rows",
        "queue's indexes",
        "queue's table",
        "log with indexes",
    ] {
        found.compare(&format!("tidegate, {what}"), &format!("bare move, {what}"));
    }
    found.note("per event, from leased to logged; the WAL contains the full page images that follow a checkpoint");
    bench.drop(queue).await?;
    Ok(found)
}

/// Publishes and drains without a checkpoint between: the pages of the queue are new, so none is written
/// whole.
async fn whole_life(queue: &Queue, count: u32, found: &mut Findings) -> Outcome<()> {
    queue.clear().await?;
    queue.settle().await?;
    let empty = Cost::read(queue).await?.wal_bytes;
    for start in (0..count).step_by(1000) {
        let numbers = start..count.min(start + 1000);
        let events: Vec<_> = numbers.map(|n| Work::Noop(Note::new(n.into()))).collect();
        publish_batch(&queue.client, &events).await?;
    }
    let published = Cost::read(queue).await?.wal_bytes;
    queue.drain(count, &defaults()).await?;
    let drained = Cost::read(queue).await?.wal_bytes;
    let mut add = |name, bytes| found.add(name, "bytes", bytes / f64::from(count));
    add("whole life, WAL of publishing", published - empty);
    add(
        "whole life, WAL of draining, no page images",
        drained - published,
    );
    add("whole life, WAL", drained - empty);
    Ok(())
}

/// Current values of the server's counters.
struct Cost {
    wal_bytes: f64,
    dead: f64,
    queue: f64,
    indexes: f64,
    log: f64,
}

impl Cost {
    async fn read(queue: &Queue) -> Outcome<Self> {
        Self::read_of(queue, "tidegate.event_queue").await
    }

    async fn read_of(queue: &Queue, table: &str) -> Outcome<Self> {
        // The counters of a session become visible when it is idle, or a second later.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, s.n_dead_tup::float8, pg_relation_size(s.relid)::float8, pg_indexes_size(s.relid)::float8,
                          (SELECT sum(pg_total_relation_size(t.relid)) FROM pg_partition_tree('tidegate.event_log') AS t
                            WHERE t.isleaf)::float8
                     FROM pg_stat_user_tables AS s WHERE s.relid = $1::text::regclass";
        let row = queue.client.query_one(sql, &[&table]).await?;
        Ok(Self {
            wal_bytes: row.get(0),
            dead: row.get(1),
            queue: row.get(2),
            indexes: row.get(3),
            log: row.get(4),
        })
    }

    fn add(&self, before: &Self, name: &str, count: u32, found: &mut Findings) {
        let each = |after: f64, before: f64| (after - before) / f64::from(count);
        let mut add = |what: &str, unit, value| found.add(format!("{name}, {what}"), unit, value);
        add("WAL", "bytes", each(self.wal_bytes, before.wal_bytes));
        add("dead rows", "rows", each(self.dead, before.dead));
        add("queue's table", "bytes", each(self.queue, before.queue));
        add(
            "queue's indexes",
            "bytes",
            each(self.indexes, before.indexes),
        );
        add("log with indexes", "bytes", each(self.log, before.log));
    }
}

pub async fn memory(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.shipped("memory").await?, bench.scaled(2_000_000));
    let sql = "INSERT INTO tidegate.event_queue (kind, payload)
               SELECT 'grant_letter_viewed', json_build_object('grant_number', 'G-' || n)
                 FROM generate_series(1, $1::bigint) AS n";
    queue.client.execute(sql, &[&i64::from(count)]).await?;
    queue.settle().await?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["drain", "--budget", "10m", "--json"])
        .env("DATABASE_URL", &queue.url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (resident, highest) = sampled(&mut child).await?;
    let mut report = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut report).await?;
    }
    let report: Value = serde_json::from_str(&report)?;
    if report["completed"] != count {
        return Err(format!("{count} events should have completed: {report}").into());
    }
    let quarter = resident.len().div_ceil(4);
    let mut found = Findings::default();
    found.add("first quarter", "MB", percentile(&resident[..quarter], 50));
    let late = &resident[resident.len() - quarter..];
    found.add("last quarter", "MB", percentile(late, 50));
    found.add("highest", "MB", highest);
    found.compare("last quarter", "first quarter");
    found.at_most("highest", 20.0);
    let seconds = report["elapsed_ms"].as_f64().unwrap_or(f64::NAN) / 1000.0;
    found.note(format!(
        "{} samples of one run of {seconds:.1} s, {:.0} events/s",
        resident.len(),
        f64::from(count) / seconds
    ));
    bench.drop(queue).await?;
    Ok(found)
}

/// Returns the resident memory of a process in megabytes, sampled until it ends, and its peak.
async fn sampled(child: &mut Child) -> Outcome<(Vec<f64>, f64)> {
    let status = format!("/proc/{}/status", child.id().ok_or("it has ended")?);
    let (mut resident, mut highest) = (Vec::new(), 0.0);
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(100));
        tokio::select! {
            ended = child.wait() => {
                let ended = ended?;
                let enough = ended.success() && !resident.is_empty();
                return if enough { Ok((resident, highest)) } else { Err(format!("tidegate drain: {ended}").into()) };
            }
            () = pause => {}
        }
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        if let (Some(now), Some(most)) = (megabytes(&text, "VmRSS:"), megabytes(&text, "VmHWM:")) {
            resident.push(now);
            highest = most;
        }
    }
}

fn megabytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

pub async fn empty(bench: &Bench) -> Outcome<Findings> {
    let queue = bench.queue("empty").await?;
    let mut found = Findings::default();
    queue.clear().await?;
    queue.settle().await?;
    nothing(&queue, "never used", &mut found).await?;
    let count = bench.scaled(200_000);
    let by_hand = "ALTER TABLE tidegate.event_queue SET (autovacuum_enabled = false)";
    queue.client.batch_execute(by_hand).await?;
    queue.prepare(count, Groups::None).await?;
    queue.drain(count, &defaults()).await?;
    // The first scan after a drain marks the dead index entries that it steps over.
    nothing(&queue, "after a drain, before vacuum", &mut found).await?;
    let vacuum = "VACUUM ANALYZE tidegate.event_queue";
    queue.client.batch_execute(vacuum).await?;
    nothing(&queue, "after vacuum", &mut found).await?;
    found.note("a tick is a whole run: two connections, promote, lease, the count of what is left");
    bench.drop(queue).await?;
    Ok(found)
}

/// Measures a tick, the lease alone on a warm connection, and the pages that it reads.
async fn nothing(queue: &Queue, state: &str, found: &mut Findings) -> Outcome<()> {
    let buffers = lease_buffers(queue).await?;
    found.add(
        format!("{state}: pages of the first lease"),
        "pages",
        buffers,
    );
    let buffers = lease_buffers(queue).await?;
    found.add(format!("{state}: pages of a lease"), "pages", buffers);
    for _ in 0..20 {
        let elapsed = queue.drain(0, &defaults()).await?.elapsed;
        let ms = elapsed.as_secs_f64() * 1000.0;
        found.add(format!("{state}: tick"), "ms", ms);
        let request = LeaseRequest {
            token: Uuid::new_v4(),
            worker: Uuid::new_v4(),
            held: &[],
            over: &[],
            timeout: Duration::from_mins(1),
            kinds: Work::KINDS,
            limit: 8,
            bytes: 8_000_000,
            first_window: 8,
            passed_by: &[],
            probe: None,
            walk: Walk::default(),
        };
        let began = Instant::now();
        queue::lease(&queue.client, &request).await?;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        found.add(format!("{state}: lease"), "ms", ms);
    }
    Ok(())
}

/// Returns the number of table and index pages that a lease without a result accesses, in memory or
/// not.
async fn lease_buffers(queue: &Queue) -> Outcome<f64> {
    let kinds = format!("'{{{}}}'", Work::KINDS.join(","));
    let values = [
        "gen_random_uuid()",
        "gen_random_uuid()",
        "'{}'",
        "'{}'",
        "60",
        &kinds,
        "8",
        "8000000",
        "8",
        "'{}'",
        "NULL",
        "0",
        "NULL",
        "NULL",
        "NULL",
    ];
    let lease = tidegate_core::queue::statements().find(|known| known.name == "lease");
    let lease = lease.ok_or("there is no statement lease")?;
    let plan = explain(&queue.client, lease, "ANALYZE, BUFFERS", &values).await?;
    let root = &plan["Plan"];
    let pages = |field: &str| root[field].as_f64().unwrap_or(0.0);
    Ok(pages("Shared Hit Blocks") + pages("Shared Read Blocks"))
}
