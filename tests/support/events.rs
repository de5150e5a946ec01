//! Publishes shipped events for tests of the programs, and leases events for workers that do not exist.

use tidegate::connect::Client;

use crate::services::{Mode, Services};
use crate::{TestDb, opened};

/// Publishes events that every program completes, because their only handler does nothing.
pub async fn publish_views(client: &Client, count: i32) {
    let sql = "SELECT count(*) FROM generate_series(1, $1) AS n,
                      tidegate.publish('grant_letter_viewed', jsonb_build_object('grant_number', 'G-' || n))";
    client.query_one(sql, &[&count]).await.unwrap();
}

/// Publishes events whose only handler calls the archive. Their texts contain "canary".
pub async fn publish_letters(client: &Client, count: i32) {
    let sql = "SELECT count(*) FROM generate_series(1, $1) AS n,
                      tidegate.publish('external_letter_received', jsonb_build_object('letter_id', 'canary' || n, 'grant',
                          jsonb_build_object('grant_number', 'canary' || n, 'measure', '{\"case_number\": \"canary\", \"measure_id\": \"M1\"}'::jsonb,
                              'company_number', '000000001', 'amount', 1, 'valid_from', '2027-01-11', 'valid_to', '2027-06-30')))";
    client.query_one(sql, &[&count]).await.unwrap();
}

/// Returns a database with letters, and services whose archive takes a tenth of a second for each.
pub async fn slow_letters(count: i32) -> (TestDb, Client, Services) {
    let (db, client) = opened().await;
    let services = Services::start().await;
    services.set("archive", Mode::Slow { delay_ms: 100 });
    publish_letters(&client, count).await;
    (db, client, services)
}

/// Leases events for a worker that does not exist and may have started all of them. The lease expires after
/// this many seconds. With a negative number, it has already expired.
pub async fn lease_away(client: &Client, ids: &[i64], seconds: f64) {
    let lease = "INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at,
                                             clear_to, as_of)
                 SELECT gen_random_uuid(), gen_random_uuid(), tidegate.ranges(array_agg(q.id)), max(q.id),
                        array_agg(DISTINCT hashtext(q.group_key)) FILTER (WHERE q.group_key IS NOT NULL),
                        clock_timestamp(), clock_timestamp(), clock_timestamp() + make_interval(secs => $2), 0,
                        pg_snapshot_xmin(pg_current_snapshot())
                   FROM tidegate.event_queue AS q WHERE q.id = ANY ($1)";
    assert_eq!(client.execute(lease, &[&ids, &seconds]).await.unwrap(), 1);
}
