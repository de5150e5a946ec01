//! Shipped events by the dozen, for tests of the programs.

use tokio_postgres::Client;

/// Publishes events that every program completes, for their one handler does nothing.
pub async fn publish_views(client: &Client, count: i32) {
    let sql = "SELECT count(*) FROM generate_series(1, $1) AS n,
                      tidegate.publish('grant_letter_viewed', jsonb_build_object('grant_number', 'G-' || n))";
    client.query_one(sql, &[&count]).await.unwrap();
}

/// Publishes events whose one handler calls the archive. Their texts hold "canary".
pub async fn publish_letters(client: &Client, count: i32) {
    let sql = "SELECT count(*) FROM generate_series(1, $1) AS n,
                      tidegate.publish('external_letter_received', jsonb_build_object('letter_id', 'canary' || n, 'grant',
                          jsonb_build_object('grant_number', 'canary' || n, 'measure', '{\"case_number\": \"canary\", \"measure_id\": \"M1\"}'::jsonb,
                              'company_number', '000000001', 'amount', 1, 'valid_from', '2027-01-11', 'valid_to', '2027-06-30')))";
    client.query_one(sql, &[&count]).await.unwrap();
}
