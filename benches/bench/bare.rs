//! The baseline of the drains: a client that leases and moves the same rows by set-based SQL, one
//! after the other on one connection, prepared, without handlers, groups, retries or limits of time.

use tokio_postgres::Client;
use uuid::Uuid;

use crate::measure::Outcome;

/// Rows at once.
const BATCH: i64 = 1000;

const LEASE: &str = "\
WITH ready AS MATERIALIZED (
    SELECT id FROM tidegate.event_queue
     WHERE NOT delayed AND available_at <= clock_timestamp()
       AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
     ORDER BY id LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED)
UPDATE tidegate.event_queue AS q
   SET status = 'PROCESSING', attempts = q.attempts + 1, processing_started_at = clock_timestamp(),
       updated_at = clock_timestamp(), lease_token = $2, lease_expires_at = clock_timestamp() + interval '1 minute'
 WHERE q.id = ANY (ARRAY(SELECT id FROM ready))
RETURNING q.id, q.kind, q.payload";

const MOVE: &str = "\
WITH gone AS (
    DELETE FROM tidegate.event_queue WHERE id = ANY ($1) AND lease_token = $2 RETURNING *)
INSERT INTO tidegate.event_log
       (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts, errors,
        created_at, processing_started_at, finished_at, expires_at, lease_token)
SELECT id, kind, payload, group_key, dedup_key, correlation_id, 'COMPLETED', attempts, max_attempts, errors,
       created_at, processing_started_at, clock_timestamp(), clock_timestamp() + interval '30 days', lease_token
  FROM gone";

/// Moves all ready rows; asks after every move, with how many there are so far, whether to go on.
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
