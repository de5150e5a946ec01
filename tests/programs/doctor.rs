//! The doctor on databases that are well, and on one for each thing that can be wrong: what it finds,
//! how it exits, and that what it prescribes helps.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, Done, DrainOptions, Event as _, NewEvent};
use tidegate_admin::doctor::{self, DoctorTarget, State};
use tidegate_core::queue;

use crate::look::run;
use crate::support::cli::{Cli, Ran};
use crate::support::probe::{Probe, ProbeApp, act, drain, number, options, pair, publish};
use crate::support::{self, TestDb, begins, contains, lease_away, project_file, rows, wait_until};
use serde_json::Value;
use tidegate_job::app;
use tokio_postgres::NoTls;

/// What the doctor says of a database, check by check.
struct Examined {
    ran: Ran,
    document: Value,
}

async fn examine(db: &TestDb) -> Examined {
    let ran = run(db, &["doctor", "--json"]).await;
    let document = ran.document();
    let checks = document["checks"].as_array().unwrap();
    let all_ok = checks.iter().all(|check| check["state"] == "ok");
    let is_sound = |check: &Value| check["state"] != "ok" || check["remedy"].is_null();
    assert!(
        checks.iter().all(is_sound),
        "what needs a remedy is not ok: {checks:?}"
    );
    let found = (&document["action"], &document["ok"]);
    assert_eq!(found, (&"doctor".into(), &all_ok.into()));
    assert_eq!(ran.code, Some(if all_ok { 0 } else { 3 }), "{ran:?}");
    Examined { ran, document }
}

impl Examined {
    fn check(&self, name: &str) -> &Value {
        let mut checks = self.document["checks"].as_array().unwrap().iter();
        checks
            .find(|check| check["name"] == name)
            .unwrap_or_else(|| panic!("no check {name:?}: {:?}", self.ran))
    }

    /// Checks a check's state and that it says all of this, and returns its remedy.
    fn finds(&self, name: &str, state: &str, says: &[&str]) -> String {
        let check = self.check(name);
        assert_eq!(check["state"], state, "{check}");
        for text in says {
            contains(check["finding"].as_str().unwrap(), text);
        }
        check["remedy"].as_str().unwrap_or_default().to_owned()
    }

    fn is_ok(&self, name: &str) {
        self.finds(name, "ok", &[]);
    }
}

/// Runs a remedy as an operator would: commands in a shell, SQL statement by statement.
async fn mend(db: &TestDb, client: &Client, remedy: &str) {
    assert!(!remedy.is_empty());
    for line in remedy.lines() {
        if let Some(command) = line.strip_prefix("tidegate ") {
            let arguments: Vec<&str> = command.split(' ').collect();
            let ran = run(db, &arguments).await;
            assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        } else {
            assert!(line.ends_with(';'), "{line}");
            client
                .batch_execute(line)
                .await
                .unwrap_or_else(|error| panic!("{line}: {error:?}"));
        }
    }
}

async fn breaking(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap();
}

/// A server that keeps what was committed, unlike that of the other tests; it ends with the value.
struct DurableServer {
    server: Child,
    db: TestDb,
}

impl DurableServer {
    fn start() -> Self {
        let mut server = Command::new("python3")
            .arg(project_file("scripts/postgres.py"))
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line.trim_end().strip_prefix("DATABASE_URL=").unwrap();
        let db = TestDb::elsewhere(url);
        Self { server, db }
    }
}

impl Drop for DurableServer {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

#[tokio::test]
async fn a_healthy_database_passes_every_check_and_a_fragile_one_does_not() {
    let server = DurableServer::start();
    let db = &server.db;
    assert_eq!(run(db, &["migrate"]).await.code, Some(0));
    let client = db.client().await;
    // The longest handler of the program needs more than the usual drain has.
    let cli = Cli::on(db).with("TIDEGATE_LEASE_TIMEOUT", "134s");
    let cli = cli.with("TIDEGATE_BUDGET", "134s");
    let healthy = cli.run(&["doctor"]).await;
    assert_eq!(healthy.code, Some(0), "{healthy:?}");
    let mut lines: Vec<&str> = healthy.stdout.lines().skip(1).collect();
    assert_eq!(lines.pop(), Some("Every check is ok."));
    let is_ok = |line: &&str| line.starts_with(" ok ");
    assert!(lines.iter().all(is_ok) && lines.len() >= 14, "{healthy:?}");
    let sql = "ALTER DATABASE postgres SET synchronous_commit = off";
    breaking(&client, sql).await;
    let report = examine(db).await;
    let remedy = report.finds(
        "durability",
        "problem",
        &["loses events", "synchronous_commit is off"],
    );
    assert_eq!(
        remedy,
        "ALTER DATABASE postgres SET synchronous_commit = on;\nSELECT pg_reload_conf();"
    );
    breaking(&client, "ALTER SYSTEM SET full_page_writes = off; ").await;
    breaking(&client, "ALTER SYSTEM SET autovacuum = off").await;
    breaking(&client, "SELECT pg_reload_conf()").await;
    let mut report = examine(db).await;
    wait_until("the server has read its settings", async || {
        report = examine(db).await;
        report.check("autovacuum")["state"] == "problem"
    })
    .await;
    mend(
        db,
        &client,
        &report.finds(
            "durability",
            "problem",
            &["full_page_writes is off; synchronous_commit is off"],
        ),
    )
    .await;
    mend(
        db,
        &client,
        &report.finds("autovacuum", "problem", &["autovacuum is off"]),
    )
    .await;
    wait_until("the server is well again", async || {
        cli.run(&["doctor"]).await.code == Some(0)
    })
    .await;
}

#[tokio::test]
async fn a_database_without_a_queue_is_reported_with_its_remedy() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let report = examine(&db).await;
    let remedy = report.finds("schema version", "problem", &["never migrated"]);
    assert_eq!(remedy, "tidegate migrate");
    report.is_ok("server version");
    report.is_ok("settings");
    let checks = report.document["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 3, "{checks:?}");
    mend(&db, &client, &remedy).await;
    let report = examine(&db).await;
    for name in [
        "schema version",
        "schema drift",
        "writable",
        "kinds",
        "leases",
        "drains",
        "failures",
        "pulled kinds",
        "limits of pulls",
        "sessions",
        "deadlines",
        "groups",
        "paused kinds",
        "services",
        "bloat",
        "autovacuum",
    ] {
        report.is_ok(name);
    }
    let told = run(&db, &["doctor"]).await;
    assert_eq!(told.code, Some(3), "{told:?}");
    // The tests' server is made to be fast.
    contains(&told.stdout, "PROBLEM  durability");
    contains(&told.stdout, "remedy: ALTER SYSTEM SET fsync = on;");
}

#[tokio::test]
async fn a_schema_of_another_version_is_reported() {
    let (db, client) = support::opened().await;
    let sql = "UPDATE tidegate.app_migrations SET version = 999 WHERE version = 1";
    breaking(&client, sql).await;
    let remedy = examine(&db).await.finds(
        "schema version",
        "problem",
        &["999", "app_migrations", "use a newer program"],
    );
    assert_eq!(remedy, "");
    breaking(&client, "DELETE FROM tidegate.app_migrations").await;
    let remedy = examine(&db).await.finds(
        "schema version",
        "problem",
        &["version 0 of tidegate.app_migrations"],
    );
    assert_eq!(remedy, "tidegate migrate");
}

#[tokio::test]
async fn drift_is_reported_part_by_part_and_mended_by_its_remedy() {
    let (db, client) = support::opened().await;
    examine(&db).await.is_ok("schema drift");
    for sql in [
        "DROP INDEX tidegate.event_queue_due",
        "DROP INDEX tidegate.event_log_dead",
        "DROP TRIGGER audit_append_only ON tidegate.audit",
        "ALTER TABLE tidegate.event_queue DISABLE TRIGGER event_queue_change",
        "ALTER TABLE tidegate.schedule DROP CONSTRAINT payload_is_at_most_64_kib",
        "ALTER TABLE tidegate.event_queue ADD CONSTRAINT \"Mine\" CHECK (id > 0)",
        "CREATE INDEX too_much ON tidegate.event_queue (last_error)",
    ] {
        breaking(&client, sql).await;
    }
    let found = [
        "missing: index event_queue_due",
        "missing: index event_log_dead",
        "missing: trigger audit.audit_append_only",
        "changed: trigger event_queue.event_queue_change",
        "missing: constraint schedule.payload_is_at_most_64_kib",
        "unexpected: constraint event_queue.Mine",
        "unexpected: index too_much",
    ];
    let report = examine(&db).await;
    let remedy = report.finds("schema drift", "problem", &found);
    let finding = report.check("schema drift")["finding"].as_str().unwrap();
    assert_eq!(finding.split("; ").count(), found.len(), "{finding}");
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("schema drift");
    breaking(&client, "CREATE TABLE tidegate.mine (id int)").await;
    examine(&db)
        .await
        .finds("schema drift", "warning", &["unexpected: table mine"]);
    breaking(&client, "DROP TABLE tidegate.mine").await;
}

#[tokio::test]
async fn each_sort_of_manual_change_is_reported() {
    let (db, client) = support::opened().await;
    for (sql, what) in rows(
        "ALTER TABLE tidegate.event_queue ALTER kind DROP NOT NULL => column event_queue.kind
         ALTER TABLE tidegate.audit ALTER reason TYPE varchar(9) => column audit.reason
         ALTER TABLE tidegate.event_kind ALTER retention_failed SET DEFAULT '1 day' => column event_kind.retention_failed
         CREATE OR REPLACE FUNCTION tidegate.check_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END' => function check_change()
         ALTER FUNCTION tidegate.publish_many IMMUTABLE => function publish_many(events jsonb)",
    ) {
        breaking(&client, sql).await;
        examine(&db)
            .await
            .finds("schema drift", "problem", &[&format!("changed: {what}")]);
    }
}

#[tokio::test]
async fn settings_of_the_database_and_what_an_operator_may_change_are_no_drift() {
    let (db, client) = support::opened().await;
    let name = db.url.rsplit('/').next().unwrap();
    for setting in [
        "search_path = tidegate, public",
        "intervalstyle = iso_8601",
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Kolkata'",
        "quote_all_identifiers = on",
    ] {
        breaking(&client, &format!("ALTER DATABASE {name} SET {setting}")).await;
    }
    let sql = "UPDATE tidegate.event_kind SET retention_failed = '1 year', paused = true";
    breaking(&client, sql).await;
    let limited = Cli::on(&db).with("TIDEGATE_MAX_ATTEMPTS", "3");
    limited.json(&["migrate"]).await;
    let report = examine(&db).await;
    report.is_ok("schema drift");
    // The connection's own settings are as they were.
    let mut client = db.client().await;
    doctor::catalog(&mut client).await.unwrap();
    let row = client.query_one("SHOW search_path", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "tidegate, public");
}

#[tokio::test]
async fn forgotten_kinds_are_reported() {
    let (db, client) = support::opened().await;
    let sql = "DELETE FROM tidegate.event_kind WHERE kind = 'case_opened'";
    breaking(&client, sql).await;
    let report = examine(&db).await;
    let remedy = report.finds("kinds", "problem", &["not registered: case_opened"]);
    mend(&db, &client, &remedy).await;
    breaking(
        &client,
        "INSERT INTO tidegate.event_queue (kind, kind_known) VALUES ('it''s new', true), ('it''s new', true)",
    )
    .await;
    let remedy = examine(&db)
        .await
        .finds("kinds", "problem", &["nobody registered: it's new (2)"]);
    mend(&db, &client, &remedy).await;
    breaking(&client, "DELETE FROM tidegate.event_queue").await;
    examine(&db).await.is_ok("kinds");
}

/// Its handler has left the program, or is not in it yet.
#[tokio::test]
async fn b29_an_event_of_a_kind_that_an_older_program_registered_is_left_alone_and_named() {
    let (db, client) = support::opened().await;
    let register = "INSERT INTO tidegate.event_kind (kind) VALUES ('it''s old')";
    breaking(&client, register).await;
    let event = NewEvent::raw("it's old", None);
    queue::publish(&client, &event).await.unwrap();
    let drained = run(&db, &["drain", "--json"]).await.document();
    let found = (&drained["leased"], &drained["backlog"]);
    assert_eq!(found, (&0.into(), &1.into()));
    let waits = "SELECT count(*) FROM tidegate.events WHERE status = 'PENDING' AND attempts = 0";
    assert_eq!(number(&client, waits).await, 1);
    let says = ["only another program handles: it's old (1)"];
    let remedy = examine(&db).await.finds("kinds", "warning", &says);
    assert_eq!(remedy, "tidegate list --kind it's old");
}

#[tokio::test]
async fn the_logs_partitions_are_looked_after() {
    let (db, client) = support::opened().await;
    let report = examine(&db).await;
    for name in ["log partitions", "log expiry", "log default"] {
        report.is_ok(name);
    }
    breaking(
        &client,
        "UPDATE tidegate.event_kind SET retention_failed = '1000 days' WHERE kind = 'case_opened'",
    )
    .await;
    let day =
        "SELECT to_char((clock_timestamp() AT TIME ZONE 'UTC') + interval '1001 days', 'YYYYMMDD')";
    let day: String = client.query_one(day, &[]).await.unwrap().get(0);
    let remedy = examine(&db)
        .await
        .finds("log partitions", "warning", &[&day]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("log partitions");
    breaking(
        &client,
        "CREATE TABLE tidegate.event_log_20200101 PARTITION OF tidegate.event_log FOR VALUES FROM ('2020-01-01') TO ('2020-01-02');
         INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
         VALUES (1, 'case_opened', 'COMPLETED', 1, 5, '[]', clock_timestamp(), clock_timestamp(), '2020-02-02')",
    )
    .await;
    let report = examine(&db).await;
    let remedy = report.finds("log expiry", "warning", &["event_log_20200101"]);
    let remedy_of_default = report.finds(
        "log default",
        "warning",
        &["1 rows in the default partition"],
    );
    assert_eq!(remedy, remedy_of_default);
    report.is_ok("schema drift");
    mend(&db, &client, &remedy).await;
    let report = examine(&db).await;
    report.is_ok("log expiry");
    report.is_ok("log default");
}

#[tokio::test]
async fn d13_lapsed_leases_and_work_that_does_not_end_are_reported() {
    let (db, client) = support::opened().await;
    support::publish_views(&client, 2).await;
    lease_away(&client, &[1, 2], 60.0).await;
    let long_ago = "UPDATE tidegate.lease SET taken_at = clock_timestamp() - interval '16 min'";
    breaking(&client, long_ago).await;
    let report = examine(&db).await;
    let remedy = report.finds("leases", "warning", &["has been worked on for 16m"]);
    assert!(remedy.starts_with("tidegate show "), "{remedy}");
    mend(&db, &client, &remedy).await;
    let sql = "UPDATE tidegate.lease SET taken_at = clock_timestamp()";
    breaking(&client, sql).await;
    examine(&db).await.finds("leases", "ok", &["2 running"]);
    let sql = "UPDATE tidegate.lease SET expires_at = clock_timestamp() - interval '6 min'";
    breaking(&client, sql).await;
    let remedy =
        examine(&db)
            .await
            .finds("leases", "problem", &["2 leases ran out more than 5m ago"]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("leases");
}

#[tokio::test]
async fn an_event_leased_ahead_of_its_group_or_left_behind_it_is_reported() {
    let (db, client) = support::opened().await;
    let viewed = "SELECT id FROM tidegate.publish('grant_letter_viewed', '{\"grant_number\": \"G-1\"}', group_key => $1)";
    let publish = async |group: Option<&str>| -> i64 {
        let row = client.query_one(viewed, &[&group]).await.unwrap();
        row.get(0)
    };
    publish(Some("first")).await;
    let ahead = publish(Some("first")).await;
    examine(&db).await.is_ok("order of groups");
    lease_away(&client, &[ahead], 60.0).await;
    let named = format!("event {ahead} of group \"first\"");
    let remedy = examine(&db)
        .await
        .finds("order of groups", "problem", &[&named]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("order of groups");

    breaking(&client, "DELETE FROM tidegate.event_queue").await;
    let behind = publish(Some("second")).await;
    let other = publish(None).await;
    lease_away(&client, &[other], 60.0).await;
    examine(&db).await.is_ok("order of groups");
    let passed = "UPDATE tidegate.lease SET clear_to = 9223372036854775807, as_of = pg_snapshot_xmax(pg_current_snapshot())";
    breaking(&client, passed).await;
    let named = format!("event {behind} of group \"second\"");
    let remedy = examine(&db)
        .await
        .finds("order of groups", "problem", &[&named]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("order of groups");
}

#[tokio::test]
async fn a_queue_without_drains_is_distinguished_from_one_with_too_few() {
    let (db, client) = support::opened().await;
    support::publish_views(&client, 1).await;
    examine(&db).await.is_ok("drains");
    breaking(
        &client,
        "UPDATE tidegate.event_queue SET available_at = clock_timestamp() - interval '12 min'",
    )
    .await;
    let remedy = examine(&db).await.finds(
        "drains",
        "problem",
        &["has been ready for 12m", "no drain runs"],
    );
    assert_eq!(remedy, "tidegate drain");
    for held in [
        "UPDATE tidegate.event_kind SET paused = true",
        "UPDATE tidegate.event_queue SET delayed = true, available_at = clock_timestamp() + interval '1 min'",
    ] {
        let mut client = db.client().await;
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(held).await.unwrap();
        let oldest = queue::oldest_ready(transaction.client(), app::Event::KINDS).await;
        assert_eq!(oldest.unwrap(), None, "{held}");
        // Waited for: the drain below would pass over what is still locked.
        transaction.rollback().await.unwrap();
    }
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("drains");
    // Something has ended, so drains run. A delayed event whose time has come waits for a drain too.
    support::publish_views(&client, 1).await;
    breaking(
        &client,
        "UPDATE tidegate.event_queue SET available_at = clock_timestamp() - interval '12 min'",
    )
    .await;
    breaking(&client, "UPDATE tidegate.event_queue SET delayed = true").await;
    let remedy = examine(&db)
        .await
        .finds("drains", "warning", &["not long or often enough"]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("drains");
}

#[tokio::test]
async fn a_share_of_dead_letters_is_reported() {
    let (db, client) = support::opened().await;
    let ended = |status: &str, events: u32| {
        format!(
            "INSERT INTO tidegate.minute_stats (minute, kind, status, events, attempts, latency_ms)
             VALUES (date_trunc('minute', clock_timestamp()), 'case_opened', '{status}', {events}, {events}, 0)"
        )
    };
    breaking(&client, &ended("COMPLETED", 100)).await;
    breaking(&client, &ended("FAILED", 9)).await;
    examine(&db).await.is_ok("failures");
    breaking(&client, &ended("COMPLETED_WITH_ERRORS", 1)).await;
    let says = ["of 110 events", "9 failed and 1 were rejected"];
    examine(&db).await.finds("failures", "warning", &says);
    breaking(&client, &ended("FAILED", 41)).await;
    let remedy =
        examine(&db)
            .await
            .finds("failures", "problem", &["50 failed and 1 were rejected"]);
    assert_eq!(remedy, "tidegate failures --since 1h");
}

#[tokio::test]
async fn blocked_groups_and_paused_kinds_are_reported() {
    let (db, client) = support::opened().await;
    breaking(
        &client,
        "SELECT tidegate.publish('form_archived', '{}', group_key => 'g', available_at => clock_timestamp() + interval '1 h');
         SELECT tidegate.publish('case_opened', '{}', group_key => 'g')",
    )
    .await;
    let report = examine(&db).await;
    report.is_ok("groups");
    report.is_ok("paused kinds");
    let sql = "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '61 min'";
    breaking(&client, sql).await;
    breaking(
        &client,
        "UPDATE tidegate.event_kind SET paused = true WHERE kind IN ('case_opened', 'grant_saved')",
    )
    .await;
    let report = examine(&db).await;
    let remedy = report.finds("groups", "warning", &["1 groups wait", "\"g\""]);
    mend(&db, &client, &remedy).await;
    let remedy = report.finds("paused kinds", "warning", &["events wait: case_opened (1)"]);
    assert_eq!(remedy, "tidegate resume case_opened");
}

#[tokio::test]
async fn b13_events_that_will_expire_are_reported_by_kind_with_the_first_deadline() {
    let (db, client) = support::opened().await;
    let soon = "INSERT INTO tidegate.event_queue (kind, payload, expires_at)
                SELECT kind, payload::json, clock_timestamp() + time
                  FROM (VALUES ('grant_letter_viewed', '{\"grant_number\": \"G-1\"}', interval '4 min'),
                               ('grant_letter_viewed', '{\"grant_number\": \"G-2\"}', '3 min'),
                               ('grant_letter_viewed', '{\"grant_number\": \"G-3\"}', '2 h')) AS e(kind, payload, time)";
    client.batch_execute(soon).await.unwrap();
    let first = "SELECT tidegate.in_words(min(expires_at)) FROM tidegate.event_queue";
    let first: String = client.query_one(first, &[]).await.unwrap().get(0);
    let says = [
        "2 events will pass their deadline",
        "grant_letter_viewed (2)",
        &first,
    ];
    let remedy = examine(&db).await.finds("deadlines", "warning", &says);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("deadlines");
}

#[tokio::test]
async fn services_that_do_not_answer_are_reported_with_the_duration() {
    let (db, client) = support::opened().await;
    breaking(&client, "INSERT INTO tidegate.event_queue (kind, available_at) VALUES ('case_opened', clock_timestamp() - interval '1 hour')").await;
    let down = |minutes: u32, code: &str| {
        format!(
            "DELETE FROM tidegate.service; INSERT INTO tidegate.service (service, state, since, retry_at, last_error, kinds)
             VALUES ('archive', 'open', clock_timestamp() - interval '{minutes} min', clock_timestamp(), '{code}', '{{case_opened}}')"
        )
    };
    breaking(&client, &down(5, "503")).await;
    let report = examine(&db).await;
    let says = ["archive has not answered for 5m", "503; 1 events wait"];
    report.finds("services", "warning", &says);
    // What waits for a service is not what nobody drains.
    report.is_ok("drains");
    breaking(&client, &down(16, "503")).await;
    let says = ["archive has not answered for 16m", "503; 1 events wait"];
    examine(&db).await.finds("services", "warning", &says);
    breaking(&client, &down(1, "credentials")).await;
    examine(&db)
        .await
        .finds("services", "problem", &["archive", "credentials"]);
    breaking(&client, &down(121, "503")).await;
    let remedy = examine(&db).await.finds("services", "problem", &["for 2h"]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("services");
    breaking(&client, "UPDATE tidegate.service SET state = 'paused'").await;
    examine(&db)
        .await
        .finds("services", "warning", &["archive has been paused"]);
}

#[tokio::test]
async fn dead_rows_and_a_table_without_autovacuum_are_reported() {
    let (db, client) = support::opened().await;
    breaking(&client, "ALTER TABLE tidegate.event_queue SET (autovacuum_enabled = off, toast.autovacuum_enabled = false)").await;
    breaking(&client, "INSERT INTO tidegate.event_queue (kind, payload) SELECT 'grant_letter_viewed', to_json(repeat('x', 250)) FROM generate_series(1, 210000)").await;
    // With the last row, the table keeps its pages.
    breaking(
        &client,
        "DELETE FROM tidegate.event_queue WHERE id < (SELECT max(id) FROM tidegate.event_queue)",
    )
    .await;
    let mut report = examine(&db).await;
    wait_until("the dead rows are counted", async || {
        report = examine(&db).await;
        report.check("bloat")["state"] == "warning"
    })
    .await;
    let says = ["dead rows in event_queue", "last autovacuum: never"];
    let remedy = report.finds("bloat", "warning", &says);
    begins(&remedy, "VACUUM (VERBOSE) ");
    mend(&db, &client, &remedy).await;
    wait_until("the empty pages are seen", async || {
        report = examine(&db).await;
        report.check("bloat")["remedy"] == "VACUUM FULL tidegate.event_queue;"
    })
    .await;
    let says = ["MiB for 1 live rows"];
    mend(&db, &client, &report.finds("bloat", "warning", &says)).await;
    let says = [
        "autovacuum_enabled is off for tidegate.event_queue",
        "toast.autovacuum_enabled is off",
    ];
    mend(&db, &client, &report.finds("autovacuum", "problem", &says)).await;
    wait_until("the table is well", async || {
        let report = examine(&db).await;
        report.check("bloat")["state"] == "ok" && report.check("autovacuum")["state"] == "ok"
    })
    .await;
}

#[tokio::test]
async fn what_keeps_vacuum_from_its_work_is_named_and_ended_by_the_remedy() {
    let (db, client) = support::opened().await;
    let holder = db.client().await;
    breaking(&holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let pid: i32 = holder
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    examine(&db).await.is_ok("vacuum horizon");
    // Nobody waits ten minutes for a test: what the check lists, with a limit of its own.
    let held = async || -> Vec<(String, String)> {
        let sql = "SELECT * FROM tidegate.vacuum_holders('0', 0)";
        let rows = client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let start = format!("session {pid} of postgres, idle in transaction,");
    let found = held().await;
    let (_, remedy) = found
        .iter()
        .find(|(text, _)| text.starts_with(&start))
        .unwrap();
    breaking(&client, remedy).await;
    wait_until("the session is gone", async || {
        held()
            .await
            .iter()
            .all(|(text, _)| !text.starts_with(&start))
    })
    .await;
}

/// The state and the text of each check, as psql has them.
async fn by_sql(client: &Client, arguments: &str) -> Vec<(String, String, String)> {
    let sql = format!("SELECT name, state, finding FROM tidegate.doctor({arguments})");
    let rows = client.query(&sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

#[tokio::test]
async fn anybody_with_psql_has_the_checks_of_the_database() {
    let (db, client) = support::opened().await;
    breaking(
        &client,
        "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'case_opened';
         INSERT INTO tidegate.event_queue (kind, available_at) VALUES ('case_opened', clock_timestamp() - interval '1 h'),
                    ('grant_letter_viewed', clock_timestamp() - interval '1 h')",
    )
    .await;
    let found = by_sql(&client, "").await;
    let report = examine(&db).await;
    for (name, state, _) in &found {
        assert_eq!(&report.check(name)["state"], state, "{name}");
    }
    // Besides these, what the program alone knows.
    let checks = report.document["checks"].as_array().unwrap();
    assert_eq!(checks.len(), found.len() + 4, "{checks:?}");
    let state = |name: &str| {
        let mut found = found.iter();
        found.find(|check| check.0 == name).unwrap().1.clone()
    };
    let states = ["kinds", "paused kinds", "drains"].map(state);
    assert_eq!(states, ["ok", "warning", "problem"]);
    // A program of another kind has nothing to drain here, and no queue.
    let of_another = by_sql(&client, "'{other}', 'drains'").await;
    assert_eq!(of_another[0].1, "ok", "{of_another:?}");
    let of_another = by_sql(&client, "'{other}', 'kinds'").await;
    contains(&of_another[0].2, "belongs to another program");
    let unknown = "SELECT tidegate.doctor(wanted => 'nothing')";
    let error = client.batch_execute(unknown).await.unwrap_err();
    let says = error.as_db_error().unwrap().message();
    assert_eq!(says, "wanted: must be the name of a check, got nothing");
}

#[tokio::test]
async fn a_check_that_waits_for_a_lock_keeps_no_other_one() {
    let (db, client) = support::opened().await;
    let mut holder = db.client().await;
    let transaction = holder.transaction().await.unwrap();
    let lock = "LOCK TABLE tidegate.schedule IN ACCESS EXCLUSIVE MODE";
    transaction.batch_execute(lock).await.unwrap();
    let found = by_sql(&client, "").await;
    let unchecked = |check: &&(String, String, String)| check.2.starts_with("could not be checked");
    let found: Vec<_> = found.iter().filter(unchecked).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "schedules");
    contains(&found[0].2, "lock timeout");
}

#[tokio::test]
async fn a_role_with_few_rights_learns_what_could_not_be_checked() {
    let (db, client) = support::opened().await;
    let role = format!("blind_{}", db.url.rsplit('/').next().unwrap());
    breaking(
        &client,
        &format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tidegate TO {role}"),
    )
    .await;
    let blind = TestDb::elsewhere(&db.url.replace("postgres@", &format!("{role}@")));
    let report = examine(&blind).await;
    let says = ["could not be checked", "permission denied for function"];
    report.finds("queue", "warning", &says);
    report.is_ok("server version");
    report.is_ok("schema drift");
    breaking(
        &client,
        &format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tidegate TO {role}"),
    )
    .await;
    let report = examine(&blind).await;
    let says = ["could not be checked", "permission denied for table lease"];
    report.finds("leases", "warning", &says);
    report.is_ok("place");
    let remedy = report.finds("vacuum horizon", "warning", &["does not see"]);
    assert_eq!(remedy, format!("GRANT pg_monitor TO {role};"));
    mend(&db, &client, &remedy).await;
    examine(&blind).await.is_ok("vacuum horizon");
    breaking(&client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_read_only_database_is_reported() {
    if support::cannot_be_pooled("a pooler's sessions keep the settings that they began with") {
        return;
    }
    let (db, client) = support::opened().await;
    let name = db.url.rsplit('/').next().unwrap();
    breaking(
        &client,
        &format!("ALTER DATABASE {name} SET default_transaction_read_only = on"),
    )
    .await;
    let remedy = examine(&db).await.finds(
        "writable",
        "problem",
        &["default_transaction_read_only is on"],
    );
    mend(&db, &db.client().await, &remedy).await;
    examine(&db).await.is_ok("writable");
}

#[tokio::test]
async fn a_database_whose_transactions_keep_a_snapshot_is_reported() {
    if support::cannot_be_pooled("a pooler's sessions keep the settings that they began with") {
        return;
    }
    let (db, client) = support::opened().await;
    examine(&db).await.is_ok("isolation");
    let name = db.url.rsplit('/').next().unwrap();
    let alter =
        format!("ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'");
    breaking(&client, &alter).await;
    let remedy = examine(&db).await.finds(
        "isolation",
        "warning",
        &["default_transaction_isolation is repeatable read"],
    );
    mend(&db, &db.client().await, &remedy).await;
    examine(&db).await.is_ok("isolation");
}

#[tokio::test]
async fn a_log_of_more_days_than_the_server_has_locks_for_is_reported() {
    let db = support::database().await;
    examine(&db).await.is_ok("locks");
    let client = db.client().await;
    let many = "SELECT tidegate.make_log_partition((current_date + n)::date) FROM generate_series(0, 400) AS n";
    client.batch_execute(many).await.unwrap();
    let room = "SELECT current_setting('max_locks_per_transaction')::bigint * current_setting('max_connections')::bigint";
    let told = format!(
        "room for {}",
        crate::support::probe::number(&client, room).await
    );
    let remedy = examine(&db).await.finds(
        "locks",
        "warning",
        &["a query of the whole log takes 28", &told],
    );
    assert!(remedy.contains("max_locks_per_transaction = "), "{remedy}");
}

#[tokio::test]
async fn c12_a_kinds_limit_beyond_lease_or_budget_is_reported_with_what_to_raise() {
    let db = support::database().await;
    assert_eq!(run(&db, &["migrate"]).await.code, Some(0));
    let says = "issuings-ai-checks may take 120s, but a drain cuts a handler after 48s";
    let remedy = examine(&db).await.finds("settings", "warning", &[says]);
    assert_eq!(
        remedy,
        "export TIDEGATE_LEASE_TIMEOUT=134s\nexport TIDEGATE_BUDGET=134s"
    );
    let mut cli = Cli::on(&db);
    for setting in remedy.lines() {
        let setting = setting.strip_prefix("export ").unwrap();
        let (name, value) = setting.split_once('=').unwrap();
        cli = cli.with(name, value);
    }
    let document = cli.run(&["doctor", "--json"]).await.document();
    let mut checks = document["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == "settings").unwrap();
    assert!(check["remedy"].is_null(), "{check}");
}

#[tokio::test]
async fn c12_a_handlers_limit_beyond_its_lease_is_reported() {
    let db = support::database().await;
    let mut options = DrainOptions::default();
    for (timeout, state) in [(30, State::Ok), (55, State::Problem)] {
        options.handler_timeout = Duration::from_secs(timeout);
        let report = doctor::examine(&DoctorTarget {
            database: &db.database(),
            kinds: app::Event::KINDS,
            options: &options,
            tables: &[],
            warnings: Vec::new(),
            uncalled: Vec::new(),
        })
        .await
        .unwrap();
        let check = report
            .checks
            .iter()
            .find(|check| check.name == "settings")
            .unwrap();
        assert_eq!(check.state, state, "{check:?}");
    }
}

#[tokio::test]
async fn what_the_programs_settings_give_up_is_named_by_the_doctor_and_at_the_start() {
    let db = support::database().await;
    for (signatures, expected) in [("verified", None), ("unverified", Some("warning"))] {
        let cli = Cli::on(&db).with("SIGNATURES", signatures);
        let ran = cli.run(&["doctor", "--json"]).await;
        let document = ran.document();
        let mut checks = document["checks"].as_array().unwrap().iter();
        let found = checks.find(|check| check["name"] == "program");
        let state = found.map(|check| check["state"].as_str().unwrap());
        assert_eq!(state, expected, "{document}");
        let named = "signatures of medical jobs are not verified: SIGNATURES=unverified";
        let seen = found.is_some_and(|check| check["finding"] == named);
        assert_eq!(seen, expected.is_some());
        assert_eq!(
            ran.stderr.contains(named),
            expected.is_some(),
            "{}",
            ran.stderr
        );
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_a_failure_and_no_finding() {
    let nowhere = TestDb::elsewhere("postgres://nobody@127.0.0.1:1/nothing");
    let ran = run(&nowhere, &["doctor", "--json"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    begins(ran.document()["error"].as_str().unwrap(), "connect: ");
    let database = Database::new(&nowhere.url, 1).unwrap();
    assert!(database.connect().await.is_err());
    assert!(tokio_postgres::connect(&nowhere.url, NoTls).await.is_err());
}

#[tokio::test]
async fn a_schema_in_which_everybody_may_make_functions_is_closed_by_the_remedy() {
    let (db, client) = support::opened().await;
    examine(&db).await.is_ok("rights");
    breaking(&client, "GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    let remedy = examine(&db).await.finds("rights", "warning", &["public"]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("rights");
}

#[tokio::test]
async fn ids_that_would_be_drawn_twice_are_reported_and_passed_by_the_remedy() {
    let (db, client) = support::opened().await;
    examine(&db).await.is_ok("ids");
    // As a copy of the rows leaves it.
    let copied = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
                  VALUES (7000, 'case_opened', 'FAILED', 1, 5, '[]', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 day')";
    breaking(&client, copied).await;
    let remedy = examine(&db).await.finds("ids", "problem", &["7000"]);
    mend(&db, &client, &remedy).await;
    examine(&db).await.is_ok("ids");
    let publish = "SELECT id FROM tidegate.publish('case_opened', NULL)";
    let id: i64 = client.query_one(publish, &[]).await.unwrap().get(0);
    assert_eq!(id, 7001);
}

#[tokio::test]
async fn compatibility_settings_of_a_role_have_no_influence() {
    if support::cannot_be_pooled("a pooler's sessions keep the settings that they began with") {
        return;
    }
    let db = support::empty_database().await;
    let client = db.client().await;
    for setting in [
        "array_nulls = off",
        "quote_all_identifiers = on",
        "IntervalStyle = sql_standard",
        "standard_conforming_strings = off",
        "DateStyle = 'German, DMY'",
        "TimeZone = 'Asia/Kathmandu'",
        "backslash_quote = off",
    ] {
        let set = format!("ALTER DATABASE {} SET {setting}", db.name());
        client.batch_execute(&set).await.unwrap();
    }
    let database = db.database();
    Migrate::new(Probe::KINDS).run(&database).await.unwrap();
    publish(
        &db.client().await,
        [act("a"), act("b").group("g"), pair("c")],
    )
    .await;
    let app = ProbeApp::new(|_, ctx| {
        Box::pin(async move { ctx.transaction().await?.complete(Done::ok()).await })
    });
    assert_eq!(drain(&db, &app, &options()).await.completed, 3);
    for line in [
        "replay --reason r --since 1h --kind act",
        "cancel --reason r --kind act",
        "cleanup",
        "retention act --completed 36h --reason r",
        "status",
        "show 1",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = run(&db, &words).await;
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    }
    let kinds = run(&db, &["retention", "act", "--json"]).await.document();
    assert_eq!(kinds["kinds"][0]["retention_completed"], "1 day 12:00:00");
    let other = db.client().await;
    let unread = "SELECT count(*) FROM tidegate.log_partitions() WHERE lower_bound = '-infinity' AND upper_bound = 'infinity'";
    assert_eq!(number(&other, unread).await, 0);
    let quoted = "SELECT count(*) FROM pg_proc AS p, unnest(p.proconfig) AS c WHERE p.pronamespace = 'tidegate'::regnamespace AND c LIKE '%\"%'";
    assert_eq!(number(&other, quoted).await, 0);
    for check in ["log partitions", "sessions", "schema drift"] {
        examine(&db).await.is_ok(check);
    }
}

#[tokio::test]
async fn a_database_that_cannot_store_every_text_is_refused() {
    let db = support::empty_database().await;
    let name = format!("{}_ascii", db.name());
    let make = format!(
        "CREATE DATABASE {name} ENCODING SQL_ASCII TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    );
    db.client().await.batch_execute(&make).await.unwrap();
    let (server, _) = db.direct().rsplit_once('/').unwrap();
    let cli = Cli::at(&format!("{server}/{name}"));
    let why = "the database must be in UTF8, got SQL_ASCII";
    cli.run(&["migrate"]).await.failed(1, &[why]);
    let examined = cli.run(&["doctor"]).await;
    contains(&examined.stdout, why);
}
