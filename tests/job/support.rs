//! What the test programs of the job share: the support crate, with databases that have the job's tables and
//! kinds.

#![allow(dead_code, unused_imports, reason = "each program uses a part of it")]

use serde_json::{Value, json};
use tidegate::Event;
use tidegate::connect::Client;
use tidegate_job::app;
use uuid::Uuid;

use services::{Mode, Services};
pub use test_support::*;

/// [`test_support::probe`], on databases of the job.
pub mod probe {
    pub use test_support::probe::*;

    pub async fn probe_database() -> super::TestDb {
        super::database_for::<Probe>().await
    }

    pub async fn probe() -> (super::TestDb, super::Client) {
        super::opened_for::<Probe>().await
    }
}

/// Returns a migrated database with the job's tables and kinds.
pub async fn database() -> TestDb {
    opened().await.0
}

/// Returns [`database`], and a connection to it.
pub async fn opened() -> (TestDb, Client) {
    opened_like("job", app::Event::KINDS, &[app::TABLES]).await
}

/// The same, with the kinds of these events, too.
pub async fn opened_for<E: Event>() -> (TestDb, Client) {
    let (database, client) = opened().await;
    test_support::register::<E>(&client).await;
    (database, client)
}

pub async fn database_for<E: Event>() -> TestDb {
    opened_for::<E>().await.0
}

/// A request that no other one equals.
pub fn use_job() -> Value {
    json!({"request_id": "r1", "patient_id": Uuid::new_v4(), "user_id": Uuid::new_v4(), "client_id": Uuid::new_v4(),
        "service_request_id": Uuid::new_v4(), "used_by_employee": Uuid::new_v4(), "used_by_legal_entity": Uuid::new_v4()})
}

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
