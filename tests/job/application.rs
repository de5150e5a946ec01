//! Owns a database, the stand-in for the services and the shipped program between them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate_job::app::App;

use crate::support::services::Services;
use crate::support::{TestDb, database};
use tidegate::connect::Client;
use tidegate::{Database, DrainOptions, DrainReport, RetryPolicy};

pub struct World {
    pub database: Database,
    pub client: Client,
    pub services: Services,
    pub app: Arc<App>,
    pub db: TestDb,
}

impl World {
    pub async fn new() -> Self {
        let services = Services::start().await;
        let app = App::from_settings(&|name| services.setting(name));
        Self::with(services, app.expect("the URLs are well formed")).await
    }

    pub async fn with(services: Services, app: App) -> Self {
        let db = database().await;
        Self {
            database: db.database(),
            client: db.client().await,
            services,
            app: Arc::new(app),
            db,
        }
    }

    /// A further connection.
    pub async fn connect(&self) -> Client {
        self.db.client().await
    }

    pub async fn drain(&self) -> DrainReport {
        drain(&self.database, &self.app, &retrying_in_an_hour()).await
    }

    /// Lets events that wait for their retry run at the next drain.
    pub async fn requeue(&self) {
        self.execute("UPDATE tidegate.events SET status = 'PENDING'")
            .await;
    }

    /// The time until services are tried again, and until events that wait may run, has passed.
    pub async fn time_passes(&self) {
        self.execute(
            "UPDATE tidegate.service SET retry_at = clock_timestamp() WHERE state IN ('open', 'probing');
             UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE available_at > clock_timestamp()",
        )
        .await;
    }

    pub async fn execute(&self, sql: &str) {
        let done = self.client.batch_execute(sql).await;
        done.expect("the statement is right");
    }

    /// The one value of a query, as JSON.
    pub async fn value(&self, sql: &str) -> Value {
        let sql = format!("SELECT to_jsonb(({sql}))");
        let row = self.client.query_one(&sql, &[]).await;
        let value: Option<Value> = row.expect("the query is right").get(0);
        value.unwrap_or(Value::Null)
    }
}

/// A retry waits an hour: the test itself says when it may come, see [`World::requeue`].
pub fn retrying_in_an_hour() -> DrainOptions {
    let hour = Duration::from_hours(1);
    DrainOptions {
        retry: RetryPolicy {
            base: hour,
            max: hour,
        },
        ..DrainOptions::default()
    }
}

/// Drains once.
pub async fn drain(database: &Database, app: &Arc<App>, options: &DrainOptions) -> DrainReport {
    let report = tidegate::drain(database, Arc::clone(app), options).await;
    let report = report.expect("the database answers");
    assert!(report.is_balanced(), "{report:?}");
    report
}
