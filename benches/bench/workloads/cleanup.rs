//! Removing finished events after their retention: whole partitions, compared with rows.

use std::time::{Duration, Instant};

use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};

use crate::events::TEXT_BYTES;
use crate::measure::{Findings, Outcome, rate};
use crate::setup::{Bench, FEW_ROUNDS, Queue};

const RATE: &str = "rows/s";

/// Rows that the baseline deletes in one transaction.
const BATCH: i64 = 10_000;

pub async fn run(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("cleanup").await?, bench.scaled(1_000_000));
    let mut found = Findings::default();
    for _ in bench.rounds(FEW_ROUNDS) {
        expired(&queue, count).await?;
        found.add("cleanup", RATE, rate(count, clean(&queue, count).await?));
        expired(&queue, count).await?;
        let deleting = delete_in_batches(&queue, count).await?;
        found.add("DELETE in batches of 10,000", RATE, rate(count, deleting));
    }
    let bare = "DELETE in batches of 10,000";
    found.at_least("cleanup", 20.0, bare);
    found.note("vacuum has yet to come behind the DELETE");
    bench.drop(queue).await?;
    Ok(found)
}

/// Creates the partition of the day before yesterday with this many expired rows.
async fn expired(queue: &Queue, count: u32) -> Outcome<()> {
    queue.clear().await?;
    let made = "SELECT 'event_log_' || to_char(day, 'YYYYMMDD'), (tidegate.make_log_partition(day)).outcome
                  FROM (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date - 2 AS day) AS past";
    let name: String = queue.client.query_one(made, &[]).await?.get(0);
    let sql = format!(
        "INSERT INTO tidegate.event_log (id, kind, payload, status, attempts, max_attempts, errors, created_at,
                processing_started_at, finished_at, expires_at, lease_token)
         SELECT n, 'bench_noop', jsonb_build_object('number', n, 'text', repeat('x', {TEXT_BYTES})), 'COMPLETED', 1, 5, '[]',
                past.noon - interval '30 days 1 second', past.noon - interval '30 days', past.noon - interval '30 days',
                past.noon, gen_random_uuid()
           FROM generate_series(1, $1::bigint) AS n,
                (SELECT ((clock_timestamp() AT TIME ZONE 'UTC')::date - 2 + time '12:00') AT TIME ZONE 'UTC' AS noon) AS past"
    );
    queue.client.execute(&sql, &[&i64::from(count)]).await?;
    queue.settle().await?;
    let rows = queue
        .number(&format!("SELECT count(*) FROM tidegate.{name}"))
        .await?;
    if rows == i64::from(count) {
        Ok(())
    } else {
        Err(format!("{name} should have {count} rows, and has {rows}").into())
    }
}

async fn clean(queue: &Queue, count: u32) -> Outcome<Duration> {
    let database = queue.database(1)?;
    let began = Instant::now();
    let report = cleanup(
        &database,
        &CleanupOptions::default(),
        CleanupHooks::default(),
    )
    .await?;
    let elapsed = began.elapsed();
    if report.rows_dropped == u64::from(count) {
        Ok(elapsed)
    } else {
        Err(format!("{count} rows should have gone: {report:?}").into())
    }
}

/// The baseline: deletes by the primary key, one batch after the other.
async fn delete_in_batches(queue: &Queue, count: u32) -> Outcome<Duration> {
    let sql = "WITH gone AS (
                   DELETE FROM tidegate.event_log
                    WHERE id = ANY (ARRAY(SELECT id FROM tidegate.event_log
                                           WHERE id > $1 AND expires_at <= clock_timestamp() ORDER BY id LIMIT $2))
                RETURNING id)
               SELECT count(*), max(id) FROM gone";
    let statement = queue.client.prepare(sql).await?;
    let began = Instant::now();
    let (mut deleted, mut last) = (0, Some(0_i64));
    while let Some(id) = last {
        let row = queue.client.query_one(&statement, &[&id, &BATCH]).await?;
        deleted += row.get::<_, i64>(0);
        last = row.get(1);
    }
    if deleted == i64::from(count) {
        Ok(began.elapsed())
    } else {
        Err(format!("{count} rows should have gone, {deleted} have").into())
    }
}
