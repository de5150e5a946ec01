//! Metrics for Prometheus: of a queue with events in every state, over HTTP, and in a file. Dashboards,
//! alerts and the page about metrics only mention metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tidegate::Database;
use tidegate::connect::Client;
use tidegate_admin::prometheus::{Exporter, Format, metrics};
use tidegate_job::app;
use tidegate_job::http::{self, Access, Scrapes};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::callers;
use crate::http::Api;
use crate::support::as_user;
use crate::support::cli::Cli;
use crate::support::probe::{ProbeApp, drain, options, probe, probe_database, publish_acts};
use crate::support::{self, TestDb, contains, execute, project_file};

/// Returns the URL of a login that may only read figures, in a database with the roles.
async fn readable(db: &TestDb, kinds: &[&'static str]) -> String {
    let owner = db.database();
    let migrate = tidegate::migrate::Migrate::new(kinds).tables(&[app::TABLES]);
    migrate.with_roles().run(&owner).await.unwrap();
    let login = format!("metrics_of_{}", db.name());
    let sql =
        format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE tidegate_read");
    db.client().await.batch_execute(&sql).await.unwrap();
    as_user(&db.url, &login)
}

async fn told(url: &str) -> String {
    let database = Database::new(url, 1).unwrap();
    metrics(&database, Format::Text).await.unwrap()
}

/// Returns the samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Returns the metrics' names with their types.
fn types(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            (name.to_owned(), kind.to_owned())
        })
        .collect()
}

/// A queue with events in every state, and with everything that belongs to no kind.
const EVERYTHING: &str = "
INSERT INTO tidegate.event_kind (kind, paused) VALUES ('idle', false), ('halted', true), ('served', false);
SELECT tidegate.report_service('carrier', gen_random_uuid(), false, 1, 'down', 60, '{served}', false);
SELECT tidegate.pause_service('carrier', 'a test', NULL);
SELECT tidegate.publish('act', '{}'), tidegate.publish('act', '{}');
UPDATE tidegate.event_queue SET created_at = created_at - interval '1 hour', available_at = available_at - interval '1 hour';
SELECT tidegate.publish('act', '{}', available_at => clock_timestamp() + interval '2 hours');
SELECT tidegate.publish('act', '{}', group_key => 'g', available_at => clock_timestamp() + interval '2 hours');
UPDATE tidegate.event_queue SET attempts = 1 WHERE group_key = 'g';
SELECT tidegate.publish('act', '{}', group_key => 'g');
SELECT tidegate.publish('act', '{}', expires_at => clock_timestamp() + interval '10 minutes');
SELECT tidegate.publish('halted', '{}');
SELECT tidegate.publish('served', '{}');
INSERT INTO tidegate.event_kind (kind) VALUES ('gone');
SELECT tidegate.publish('gone', '{}');
DELETE FROM tidegate.event_kind WHERE kind = 'gone'";

#[tokio::test]
async fn every_state_is_counted_and_whoever_may_read_figures_may_ask() {
    let (db, client) = probe().await;
    let url = readable(&db, &["act"]).await;
    publish_acts(&client, 5).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    client.batch_execute(EVERYTHING).await.unwrap();
    let ids = "SELECT array_agg(id ORDER BY id) FROM tidegate.event_queue";
    let ids: Vec<i64> = client.query_one(ids, &[]).await.unwrap().get(0);
    support::lease_away(&client, &ids[..1], -60.0).await;
    let text = told(&url).await;
    let told = samples(&text);
    let expected = samples(
        r#"tidegate_events{kind="act",state="running"} 1
tidegate_events{kind="act",state="ready"} 3
tidegate_events{kind="act",state="planned"} 1
tidegate_events{kind="act",state="retrying"} 1
tidegate_events{kind="halted",state="paused"} 1
tidegate_events{kind="served",state="waiting_for_service"} 1
tidegate_events{kind="other",state="ready"} 1
tidegate_events{kind="idle",state="ready"} 0
tidegate_events_truncated 0
tidegate_finished_total{kind="act",status="completed"} 5
tidegate_finished_total{kind="idle",status="completed"} 0
tidegate_attempts_total{kind="act"} 5
tidegate_latency_seconds_bucket{kind="act",le="+Inf"} 5
tidegate_latency_seconds_count{kind="act"} 5
tidegate_stuck_events 1
tidegate_blocked_groups 1
tidegate_expiring_events{within="1h"} 1
tidegate_service_open{service="carrier"} 1
tidegate_drains_running 0
tidegate_up 1"#,
    );
    for (sample, value) in &expected {
        assert_eq!(told.get(sample), Some(value), "{sample}\n{text}");
    }
    assert!(
        told[r#"tidegate_oldest_ready_seconds{kind="act"}"#] >= 3600.0,
        "{text}"
    );
    assert!(
        told["tidegate_last_drain_timestamp_seconds"] > 1_700_000_000.0,
        "{text}"
    );
    assert!(!text.contains("gone"), "{text}");
}

#[tokio::test]
async fn counters_never_fall_when_the_log_is_cleaned_up() {
    let (db, client) = probe().await;
    let url = readable(&db, &["act"]).await;
    publish_acts(&client, 20).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let counters = |text: &str| {
        let is_counter =
            |name: &String| name.contains("_total{") || name.contains("latency_seconds");
        let all = samples(text)
            .into_iter()
            .filter(|(name, _)| is_counter(name));
        all.collect::<BTreeMap<String, f64>>()
    };
    let before = counters(&told(&url).await);
    let finished = r#"tidegate_finished_total{kind="act",status="completed"}"#;
    assert_eq!(before.get(finished), Some(&20.0));
    // Everything is old: events leave the log, and minutes are merged into hours and days.
    let old = "UPDATE tidegate.event_log SET finished_at = finished_at - interval '400 days', expires_at = expires_at - interval '400 days';
               UPDATE tidegate.minute_stats SET minute = minute - interval '3 days 17 minutes'";
    client.batch_execute(old).await.unwrap();
    let cleaned = Cli::on(&db).json(&["cleanup"]).await;
    assert_eq!(cleaned["stop_reason"], "done", "{cleaned}");
    let left = "SELECT count(*) FROM tidegate.event_log";
    assert_eq!(crate::support::probe::number(&client, left).await, 0);
    let folded = "SELECT count(*) FROM tidegate.minute_stats WHERE minute <> date_trunc('day', minute, 'UTC')";
    assert_eq!(crate::support::probe::number(&client, folded).await, 0);
    assert_eq!(counters(&told(&url).await), before);
    publish_acts(&client, 1).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let after = counters(&told(&url).await);
    for (name, value) in before {
        assert!(
            after[&name] >= value,
            "{name} fell from {value} to {}",
            after[&name]
        );
    }
}

#[tokio::test]
async fn of_a_large_queue_a_scrape_reads_a_bounded_part_and_says_so() {
    let (db, client) = probe().await;
    let many =
        "INSERT INTO tidegate.event_queue (kind) SELECT 'act' FROM generate_series(1, 150000)";
    client.batch_execute(many).await.unwrap();
    let text = told(&db.url).await;
    let told = samples(&text);
    let ready = r#"tidegate_events{kind="act",state="ready"}"#;
    assert_eq!(told.get("tidegate_events_truncated"), Some(&1.0));
    assert_eq!(told.get(ready), Some(&100_000.0));
}

/// Serves the HTTP interface with these metrics.
async fn served(database: Database, access: Access, scrapes: Scrapes) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let router = http::measured(database, access, scrapes);
    tokio::spawn(http::serve(listener, router, std::future::pending()));
    url
}

fn http_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn there_are_no_metrics_over_http_unless_they_are_enabled() {
    let db = support::database().await;
    let client = http_client();
    let off = served(db.database(), Access::open(), Scrapes::Off).await;
    assert_eq!(client.get(&off).send().await.unwrap().status(), 404);
    let on = served(db.database(), Access::open(), Scrapes::Open).await;
    let text = client.get(&on).send().await.unwrap();
    assert_eq!(text.headers()["content-type"], Format::Text.content_type());
    assert!(text.text().await.unwrap().contains("\ntidegate_up 1\n"));
    let accept = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5";
    let open = client
        .get(&on)
        .header("accept", accept)
        .send()
        .await
        .unwrap();
    let expected = Format::OpenMetrics.content_type();
    assert_eq!(open.headers()["content-type"], expected);
    assert!(open.text().await.unwrap().ends_with("# EOF\n"));
    let post = client.post(&on).send().await.unwrap();
    assert_eq!(post.status(), 405);
}

#[tokio::test]
async fn beyond_this_machine_metrics_need_a_credential_that_is_good_for_them() {
    let api = Api::asking(callers::access(&[("TIDEGATE_HTTP_AUTH", "keys")])).await;
    let database = Database::new(api.db.direct(), 4).unwrap();
    let access = callers::access(&[("TIDEGATE_HTTP_AUTH", "keys")]);
    let url = served(database, access, Scrapes::Known).await;
    let client = http_client();
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    for (scope, status) in [("jobs", 403), ("metrics", 200)] {
        let (key, _) = callers::key(&api, Uuid::from_u128(7), &[scope]).await;
        let answer = client.get(&url).bearer_auth(key).send().await.unwrap();
        assert_eq!(answer.status(), status, "{scope}");
    }
}

#[tokio::test]
async fn scrapes_that_follow_each_other_share_an_answer() {
    let (db, client) = probe().await;
    let exporter = Exporter::new(db.database());
    let ready = async || {
        let text = exporter.answer(Format::Text).await;
        samples(&text)
            .get(r#"tidegate_events{kind="act",state="ready"}"#)
            .copied()
    };
    // A machine that stalls for ten seconds queries twice, but not in every round.
    for _ in 0..20 {
        let before = ready().await;
        publish_acts(&client, 1).await;
        if ready().await == before {
            return;
        }
    }
    panic!("no answer was shared");
}

#[tokio::test]
async fn an_unreachable_database_is_a_metric() {
    let away = Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
    let url = served(away, Access::open(), Scrapes::Open).await;
    let answer = http_client().get(&url).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let found = samples(&answer.text().await.unwrap());
    assert_eq!(found, BTreeMap::from([("tidegate_up".to_owned(), 0.0)]));
}

#[tokio::test]
async fn a_database_that_says_nothing_holds_up_a_scrape_no_longer_than_its_statements_may_take() {
    let (db, other) = probe().await;
    execute(
        &other,
        "BEGIN; LOCK TABLE tidegate.event_kind IN ACCESS EXCLUSIVE MODE",
    )
    .await;
    let exporter = Exporter::new(db.database());
    let text = support::ended("the scrape", exporter.answer(Format::Text)).await;
    assert!(text.ends_with("tidegate_up 0\n"), "{text}");
    let cancelled = async || {
        let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tidegate.event_kind'::regclass";
        crate::support::probe::number(&other, sql).await == 0
    };
    support::wait_until("nobody waits for the lock any more", cancelled).await;
}

#[tokio::test]
async fn a_file_for_node_exporter_is_replaced_at_once_and_readable_by_all() {
    let db = support::database().await;
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("tidegate.prom");
    let path = file.to_str().unwrap();
    let asked = ["status", "--format", "prometheus", "--output", path];
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let ran = Cli::on(&db).run(&asked).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("\ntidegate_up 1\n") && text.ends_with('\n'),
        "{text}"
    );
    let found = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(found, 0o644);
    let away = Cli::at("postgres://nobody@127.0.0.1:1/nothing");
    away.run(&asked).await.failed(1, &["connect"]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("tidegate_up 0\n"), "{text}");
    let names: Vec<_> = std::fs::read_dir(room.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["tidegate.prom"]);
}

#[tokio::test]
async fn metrics_are_printed_and_what_cannot_be_written_is_refused_by_name() {
    let db = support::database().await;
    let room = tempfile::tempdir().unwrap();
    let asked = ["status", "--format", "prometheus"];
    let printed = Cli::on(&db).run(&asked).await;
    assert!(printed.stdout.contains("\ntidegate_up 1\n"), "{printed:?}");
    for (name, told) in [
        ("tidegate.txt", "--output: must end in .prom"),
        ("no/tidegate.prom", "no/tidegate.prom"),
    ] {
        let path = room.path().join(name);
        let wrong = [&asked[..], &["--output", path.to_str().unwrap()]].concat();
        Cli::on(&db)
            .run(&wrong)
            .await
            .failed(2, &["--output", told]);
    }
    let text = ["status", "--output", "tidegate.prom"];
    Cli::on(&db)
        .run(&text)
        .await
        .failed(2, &["--output: needs --format prometheus"]);
    let json = [&asked[..], &["--json"]].concat();
    Cli::on(&db)
        .run(&json)
        .await
        .failed(2, &["--format prometheus"]);
}

fn file(path: &str) -> String {
    std::fs::read_to_string(project_file(path)).unwrap()
}

/// Returns the words of a text that could be metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("tidegate_"));
    words.map(str::to_owned).collect()
}

/// Returns all existing metrics, by the names of samples.
async fn known() -> (BTreeMap<String, String>, BTreeSet<String>) {
    let (db, client) = probe().await;
    publish_acts(&client, 1).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    client.batch_execute(EVERYTHING).await.unwrap();
    let text = told(&db.url).await;
    let names = samples(&text).into_keys();
    let names = names.map(|name| name.split('{').next().unwrap_or_default().to_owned());
    (types(&text), names.collect())
}

#[tokio::test]
async fn the_page_about_metrics_lists_each_with_its_type_and_dashboards_and_alerts_know_no_other() {
    let (types, names) = known().await;
    let page = file("docs/reference/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `tidegate_"));
    let mut listed = BTreeMap::new();
    for row in rows {
        let mut cells = row
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned());
        let name = format!("tidegate_{}", cells.next().unwrap());
        let found = listed.insert(name.clone(), cells.next().unwrap());
        assert_eq!(found, None, "{name} is listed twice");
    }
    assert_eq!(listed, types);
    let dashboard = file("observability/grafana/tidegate-prometheus.json");
    for (place, text) in [
        ("the dashboard", &dashboard),
        ("alerts", &file("observability/prometheus/alerts.yaml")),
        (
            "their tests",
            &file("observability/prometheus/alerts_test.yaml"),
        ),
    ] {
        let used = metrics_in(text);
        assert!(used.len() >= 9, "{place}: {used:?}");
        let unknown: Vec<&String> = used.difference(&names).collect();
        assert!(unknown.is_empty(), "{place}: {unknown:?} of {names:?}");
    }
    let used = metrics_in(&dashboard);
    let of = |name: &str| used.iter().any(|used| used.starts_with(name));
    let missing: Vec<&String> = types.keys().filter(|name| !of(name)).collect();
    assert!(missing.is_empty(), "the dashboard shows no {missing:?}");
    let alerts = file("observability/prometheus/alerts.yaml");
    for line in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        contains(&page, &format!("`{line}`"));
    }
}

fn queries(panel: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().unwrap().iter();
    targets
        .map(|target| target["rawSql"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the query as Grafana would send it.
fn sent(sql: &str) -> String {
    let mut parts = sql.split("$__timeFilter(");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (column, rest) = part.split_once(')').unwrap();
        let window = "BETWEEN clock_timestamp() - interval '6 hours' AND clock_timestamp()";
        write!(text, "{column} {window}{rest}").unwrap();
    }
    assert!(!text.contains("$__"), "{text}");
    text
}

#[tokio::test]
async fn every_query_of_the_dashboard_runs_for_whoever_may_read_figures() {
    let db = probe_database().await;
    let url = readable(&db, &["act"]).await;
    publish_acts(&db.client().await, 3).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    publish_acts(&db.client().await, 1).await;
    let reader: Client = support::connect(&url).await;
    let dashboard: Value =
        serde_json::from_str(&file("observability/grafana/tidegate-postgres.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 8);
    for panel in panels {
        for sql in queries(panel) {
            let rows = reader.query(&sent(&sql), &[]).await;
            let rows = rows.unwrap_or_else(|error| panic!("{}: {error:?}", panel["title"]));
            assert!(!rows.is_empty(), "{} shows nothing", panel["title"]);
        }
    }
}
