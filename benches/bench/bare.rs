//! The baseline for drains: a client that leases rows by marking each one and then moves them. It uses
//! prepared set-based SQL on one connection, without handlers, groups, retries or time limits. It has its own
//! table, with the columns and indexes that such leases need, and ends events in the queue's log.

use tokio_postgres::Client;
use uuid::Uuid;

use crate::measure::Outcome;

/// Rows per statement.
const BATCH: i64 = 1000;

/// Half-full pages and no index on the columns that a lease writes, so that marking a row is a HOT update.
const TABLE: &str = "\
CREATE SCHEMA IF NOT EXISTS bare;
CREATE TABLE IF NOT EXISTS bare.event_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL, payload jsonb, group_key text, dedup_key text,
    correlation_id text, status text NOT NULL DEFAULT 'PENDING', attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 5, delayed boolean NOT NULL DEFAULT false,
    available_at timestamptz NOT NULL DEFAULT clock_timestamp(), expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    processing_started_at timestamptz, lease_token uuid, lease_expires_at timestamptz, last_error text,
    errors jsonb NOT NULL DEFAULT '[]', progress jsonb, parent_id bigint, replay_of bigint, traceparent text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS event_queue_ready ON bare.event_queue (id) WHERE NOT delayed;
CREATE INDEX IF NOT EXISTS event_queue_due ON bare.event_queue (available_at) WHERE delayed;
CREATE INDEX IF NOT EXISTS event_queue_group ON bare.event_queue (group_key, id) WHERE group_key IS NOT NULL;
TRUNCATE bare.event_queue";

const LEASE: &str = "\
WITH ready AS MATERIALIZED (
    SELECT id FROM bare.event_queue
     WHERE NOT delayed AND available_at <= clock_timestamp()
       AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
     ORDER BY id LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED)
UPDATE bare.event_queue AS q
   SET status = 'PROCESSING', attempts = q.attempts + 1, processing_started_at = clock_timestamp(),
       updated_at = clock_timestamp(), lease_token = $2, lease_expires_at = clock_timestamp() + interval '1 minute'
 WHERE q.id = ANY (ARRAY(SELECT id FROM ready))
RETURNING q.id, q.kind, q.payload";

const MOVE: &str = "\
WITH gone AS (
    DELETE FROM bare.event_queue WHERE id = ANY ($1) AND lease_token = $2 RETURNING *)
INSERT INTO tidegate.event_log
       (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts, errors,
        created_at, processing_started_at, finished_at, expires_at, lease_token)
SELECT id, kind, payload::json, group_key, dedup_key, correlation_id, 'COMPLETED', attempts, max_attempts, errors,
       created_at, processing_started_at, clock_timestamp(), clock_timestamp() + interval '30 days', lease_token
  FROM gone";

/// Moves the events of the queue into this table.
pub async fn take_over(client: &Client) -> Outcome<()> {
    client.batch_execute(TABLE).await?;
    let copy = "INSERT INTO bare.event_queue (kind, payload, group_key)
                SELECT kind, payload::jsonb, group_key FROM tidegate.event_queue ORDER BY id";
    client.batch_execute(copy).await?;
    client
        .batch_execute("TRUNCATE tidegate.event_queue")
        .await?;
    client.batch_execute("ANALYZE bare.event_queue").await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// Moves all ready rows. After every move it asks whether to continue, with the number of rows so far.
pub async fn bare_move(client: &Client, mut go_on: impl FnMut(u32) -> bool) -> Outcome<u32> {
    let lease = client.prepare(LEASE).await?;
    let finish = client.prepare(MOVE).await?;
    let mut total = 0;
    loop {
        let token = Uuid::new_v4();
        let rows = client.query(&lease, &[&BATCH, &token]).await?;
        if rows.is_empty() {
            return Ok(total);
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        total += u32::try_from(client.execute(&finish, &[&ids, &token]).await?)?;
        if !go_on(total) {
            return Ok(total);
        }
    }
}
