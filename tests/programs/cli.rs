//! The command line as its user meets it: the real binary on a real Postgres. What it prints, how it
//! exits, and what is in the database afterwards.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::cli::{Cli, Ran, verbs};
use crate::support::probe::{act, live, number, probe, probe_database};
use crate::support::{
    self, begins, column, contains, execute, has, publish_views, rows, wait_until, words,
};
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::migrate::{Migrate, Migrations};
use tidegate::{DrainReport, Event as _, StopReason};
use tidegate_core::queue;
use tidegate_job::app::{self, Event as AppEvent};
use tokio::io::AsyncReadExt;

const VIEWED: &str = "grant_letter_viewed";

/// A payload of that kind.
const VIEW: &str = r#"{"grant_number": "G-1"}"#;

/// A kind of another program.
const OTHERS: &str = "others";

/// Publishes an event that the program cannot read, as another publisher would.
async fn publish_unreadable(client: &Client) {
    execute(
        client,
        "SELECT tidegate.publish('grant_letter_viewed', '[]')",
    )
    .await;
}

async fn row(client: &Client, sql: &str) -> Value {
    let sql = format!("SELECT to_jsonb(r)::text FROM ({sql}) AS r");
    let text: String = client.query_one(&sql, &[]).await.unwrap().get(0);
    serde_json::from_str(&text).unwrap()
}

// migrate

#[tokio::test]
async fn migrating_twice_applies_everything_once() {
    let db = support::empty_database().await;
    let cli = Cli::on(&db);
    let first = cli.json(&["migrate"]).await;
    assert_eq!(first["action"], "migrate");
    assert_eq!(first["kinds"], app::Event::KINDS.len());
    assert!(first["applied"].as_array().unwrap().len() >= 4, "{first}");
    let second = cli.json(&["migrate"]).await;
    let nothing_more = json!({"action": "migrate", "applied": [], "version": first["version"], "kinds": first["kinds"], "roles": false});
    assert_eq!(second, nothing_more);
    let third = cli.run(&["migrate"]).await;
    assert!(third.stdout.starts_with("applied  none  "), "{third:?}");
    let client = db.client().await;
    let kinds = number(&client, "SELECT count(*) FROM tidegate.event_kind").await;
    assert_eq!(kinds, i64::try_from(app::Event::KINDS.len()).unwrap());
}

#[tokio::test]
async fn two_migrations_at_once_both_succeed() {
    let db = support::empty_database().await;
    let cli = Cli::on(&db);
    let (one, other) = tokio::join!(cli.json(&["migrate"]), cli.json(&["migrate"]));
    let applied = |report: &Value| report["applied"].as_array().unwrap().len();
    assert_eq!(applied(&one).min(applied(&other)), 0, "{one} {other}");
    assert!(applied(&one).max(applied(&other)) >= 4, "{one} {other}");
}

#[tokio::test]
async fn who_keeps_a_migration_waiting_is_named_at_once() {
    let db = support::empty_database().await;
    let other = db.client().await;
    other.batch_execute("BEGIN").await.unwrap();
    let taken = "SELECT pg_backend_pid(), pg_advisory_xact_lock(1414087749, hashtext('tidegate') & 2147483647)::text";
    let pid: i32 = other.query_one(taken, &[]).await.unwrap().get(0);
    let cli = Cli::on(&db);
    let child = cli.command(&["migrate"]).spawn().unwrap();
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    wait_until("the migration waits", async || {
        number(&other, waits).await == 1
    })
    .await;
    other.batch_execute("ROLLBACK").await.unwrap();
    let ran = Ran::of(child).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let named = format!("pid {pid}, login postgres");
    assert!(ran.stderr.contains(&named), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_an_open_transaction_names_it_gives_up_and_lets_publishers_through()
 {
    const MORE: Migrations = Migrations::of_files(
        "@tidegate.more_migrations",
        &[(
            "V1__more.sql",
            "ALTER TABLE @tidegate.event_queue ADD COLUMN more integer",
        )],
    );
    let (db, idle) = support::opened().await;
    let publish = "SELECT id FROM tidegate.publish('form_archived', '{}')";
    idle.batch_execute("SET application_name = 'forgotten'; BEGIN")
        .await
        .unwrap();
    idle.batch_execute(publish).await.unwrap();
    let pid = number(&idle, "SELECT pg_backend_pid()::bigint").await;
    let database = db.database();
    let migrate = tokio::spawn({
        let database = database.clone();
        async move {
            Migrate::new(AppEvent::KINDS)
                .tables(&[MORE])
                .run(&database)
                .await
        }
    });
    let other = db.client().await;
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
                    AND relation = 'tidegate.event_queue'::regclass";
    wait_until("the migration waits", async || {
        number(&other, waits).await == 1
    })
    .await;
    let mut published = 0;
    while !migrate.is_finished() {
        let publish = tokio::time::timeout(support::PATIENCE, other.batch_execute(publish));
        publish.await.expect("publishers go on").unwrap();
        published += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = migrate.await.unwrap().unwrap_err().to_string();
    for told in [
        "V1__more",
        "55P03",
        &format!("pid {pid}, login postgres, application forgotten"),
        "idle in transaction, transaction open for 00:00:",
        "pg_terminate_backend",
    ] {
        assert!(error.contains(told), "{told}: {error}");
    }
    // Between the tries, at least.
    assert!(published > 1, "{published}");
    idle.batch_execute("ROLLBACK").await.unwrap();
    let done = Migrate::new(AppEvent::KINDS)
        .tables(&[MORE])
        .run(&database)
        .await;
    assert_eq!(done.unwrap().applied, ["V1__more"]);
}

#[tokio::test]
async fn migrating_keeps_what_an_operator_has_edited() {
    let (db, client) = support::opened().await;
    let edit = "UPDATE tidegate.event_kind SET paused = true, retention_failed = '1 year' WHERE kind = 'case_opened'";
    client.execute(edit, &[]).await.unwrap();
    execute(
        &client,
        "DELETE FROM tidegate.event_kind WHERE kind = 'form_archived'",
    )
    .await;
    let sql = "SELECT * FROM tidegate.event_kind WHERE kind = 'case_opened'";
    let edited = row(&client, sql).await;
    Cli::on(&db).json(&["migrate"]).await;
    assert_eq!(row(&client, sql).await, edited);
    let missing = "SELECT count(*) FROM tidegate.event_kind WHERE kind = 'form_archived'";
    assert_eq!(number(&client, missing).await, 1);
}

#[tokio::test]
async fn b6_the_attempt_limit_given_to_migrate_is_the_default_of_later_publishes() {
    let (db, client) = support::opened().await;
    publish_views(&client, 1).await;
    let cli = Cli::on(&db);
    let limited = Cli::on(&db).with("TIDEGATE_MAX_ATTEMPTS", "3");
    limited.json(&["migrate"]).await;
    publish_views(&client, 1).await;
    // Without the setting the last word stays.
    cli.json(&["migrate"]).await;
    cli.json(&["publish", VIEWED, "--payload", VIEW]).await;
    let insert = "INSERT INTO tidegate.event_queue (kind) VALUES ('grant_letter_viewed')";
    client.execute(insert, &[]).await.unwrap();
    let limits = row(
        &client,
        "SELECT array_agg(max_attempts ORDER BY id) AS limits FROM tidegate.event_queue",
    )
    .await;
    assert_eq!(limits["limits"], json!([5, 3, 3, 3]));
}

// publish

#[tokio::test]
async fn b1_publish_stores_every_option() {
    let (db, client) = support::opened().await;
    let line = r#"publish grant_letter_viewed --payload '{"grant_number": "G-1"}' --group g --dedup-key d
        --correlation-id c --delay 30s --expires-in 1h --max-attempts 7"#;
    let published = Cli::on(&db).json(&words(line)).await;
    let stored = row(
        &client,
        "SELECT id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts, delayed,
                round(extract(epoch FROM available_at - created_at)) AS delay,
                round(extract(epoch FROM expires_at - created_at)) AS expires_in
           FROM tidegate.events",
    )
    .await;
    assert_eq!(
        published,
        json!({"action": "publish", "id": stored["id"], "created": true, "status": "PENDING", "attempts": 0, "replaced": false})
    );
    let expected = json!({
        "id": stored["id"], "kind": VIEWED, "payload": {"grant_number": "G-1"}, "group_key": "g", "dedup_key": "d",
        "correlation_id": "c", "status": "PENDING", "attempts": 0, "max_attempts": 7, "delayed": true, "delay": 30,
        "expires_in": 3600,
    });
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn b2_a_payload_is_given_inline_in_a_file_on_stdin_or_not_at_all() {
    let (db, client) = support::opened().await;
    let register = "INSERT INTO tidegate.event_kind (kind) VALUES ('others')";
    execute(&client, register).await;
    let cli = Cli::on(&db);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "{\"grant_number\": \"file\"}\n").unwrap();
    let file = format!("@{}", file.display());
    for arguments in [
        &[
            "publish",
            VIEWED,
            "--payload",
            "{\"grant_number\": \"line\"}",
        ][..],
        &["publish", VIEWED, "--payload", &file],
        &["publish", VIEWED, "--payload", "-"],
        &["publish", OTHERS],
    ] {
        let ran = cli
            .run_with_input(arguments, "{\"grant_number\": \"stdin\"}\n")
            .await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.starts_with("published event "), "{ran:?}");
    }
    let payloads = row(
        &client,
        "SELECT array_agg(payload->>'grant_number' ORDER BY id) AS payloads FROM tidegate.event_queue",
    )
    .await;
    assert_eq!(payloads["payloads"], json!(["line", "file", "stdin", null]));
}

#[tokio::test]
async fn b3_what_cannot_be_published_is_refused_by_name() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    let long = "x".repeat(201);
    for (arguments, says) in [
        (&[VIEWED, "--payload", "{canary"][..], "--payload"),
        (&[VIEWED, "--payload", ""], "--payload"),
        (&[VIEWED, "--payload", "@/no/such/file"], "/no/such/file"),
        (
            &[VIEWED, "--payload", "[\"canary\", \"canary\", 7]"],
            "--payload: must fit kind",
        ),
        (
            &[VIEWED, "--payload", "{\"grant_number\": {\"canary\": 7}}"],
            "grant_number: invalid type: map, expected a string",
        ),
        (
            &[VIEWED],
            "--payload: must fit kind \"grant_letter_viewed\": invalid type: null",
        ),
        (&[VIEWED, "--group", &long], "--group: must have 1 to 200"),
        (
            &[VIEWED, "--dedup-key", ""],
            "--dedup-key: must have 1 to 200",
        ),
        (&[VIEWED, "--max-attempts", "0"], "--max-attempts"),
        (&[VIEWED, "--delay", "soon"], "500ms, 30s, 5m or 1h"),
        (&[VIEWED, "--expires-in", "9999y"], "longer than ten years"),
        (&["unheard_of"], "<KIND>: 'unheard_of' is not registered"),
        (&[], "<KIND>"),
    ] {
        let arguments = [&["publish"], arguments].concat();
        let ran = cli.run(&arguments).await;
        ran.failed(2, &[says]);
        assert_eq!(ran.stdout, "", "{arguments:?}");
        assert!(!ran.stderr.contains("canary"), "{ran:?}");
    }
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn an_error_names_the_flag_or_the_argument_of_the_verb() {
    let (db, _client) = support::opened().await;
    let cli = Cli::on(&db);
    let long = "x".repeat(201);
    for (line, says) in [
        (
            &["replay", "--reason", "x"][..],
            "--id, --since: one of them must be given",
        ),
        (
            &["retire", "unheard_of", "--reason", ""],
            "--reason: must be a text",
        ),
        (
            &["unblock", &long, "--retry", "--reason", "x"],
            "<GROUP>: must have 1 to 200",
        ),
        (
            &[
                "retention",
                "unheard_of",
                "--completed",
                "1d",
                "--reason",
                "x",
            ],
            "<KIND>: ",
        ),
    ] {
        let ran = cli.run(line).await;
        ran.failed(2, &[&format!("tidegate: {says}")]);
        let json = cli.run(&[line, &["--json"]].concat()).await.document();
        let error = json["error"].as_str().unwrap();
        assert!(error.starts_with(says), "{error}");
    }
}

#[tokio::test]
async fn b11_no_option_and_no_field_lets_an_event_go_first() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    for option in ["--priority", "--first", "--weight"] {
        cli.run(&["publish", VIEWED, option, "1"])
            .await
            .failed(2, &["unexpected argument", option]);
    }
    for field in ["priority", "id", "created_at"] {
        let event = json!([{"kind": VIEWED, (field): 1}]);
        let refused = client
            .query("SELECT * FROM tidegate.publish_many($1)", &[&event])
            .await
            .unwrap_err();
        let message = refused.as_db_error().unwrap().message().to_owned();
        assert!(message.contains("is no field of an event"), "{message}");
    }
    let named = "SELECT count(*) FROM (
                     SELECT column_name::text AS name FROM information_schema.columns WHERE table_schema = 'tidegate'
                     UNION ALL
                     SELECT parameter_name::text FROM information_schema.parameters WHERE specific_schema = 'tidegate') AS n
                  WHERE name ~ 'prio|weight|urgen|rank'";
    assert_eq!(number(&client, named).await, 0);
}

#[tokio::test]
async fn a_duplicate_is_distinguished_from_a_new_event() {
    let db = support::database().await;
    let cli = Cli::on(&db);
    let arguments = ["publish", VIEWED, "--payload", VIEW, "--dedup-key", "once"];
    let first = cli.json(&arguments).await;
    let client = db.client().await;
    let tried = "UPDATE tidegate.event_queue SET attempts = 2";
    client.execute(tried, &[]).await.unwrap();
    let second = cli.json(&arguments).await;
    assert_eq!(
        second,
        json!({"action": "publish", "id": first["id"], "created": false, "status": "PENDING", "attempts": 2, "replaced": false})
    );
    let told = cli.run(&arguments).await;
    assert!(told.stdout.contains("nothing was published"), "{told:?}");
    let untouched = "UPDATE tidegate.event_queue SET attempts = 0";
    client.execute(untouched, &[]).await.unwrap();
    let replaced = [&arguments[..], &["--replace"]].concat();
    assert_eq!(cli.json(&replaced).await["replaced"], true);
    cli.drain(&[]).await;
    assert_eq!(cli.json(&arguments).await["created"], true);
}

// drain

#[tokio::test]
async fn a_drain_goes_on_until_the_queue_is_empty_if_it_is_to() {
    let (db, _, services) = support::slow_letters(60).await;
    let cli = Cli::on(&db)
        .with_services(&services)
        .with("TIDEGATE_CONCURRENCY", "1")
        .with("TIDEGATE_BUDGET", "2s")
        // On a busy machine the end of a budget may cut a handler, whose event is then retried.
        .with("TIDEGATE_BACKOFF_BASE", "1ms");
    let one = cli.drain(&[]).await;
    assert!(one.goes_on() && one.ready_left > Some(0), "{one:?}");
    let all = cli.drain(&["--until-empty"]).await;
    assert!(all.is_balanced(), "{all:?}");
    assert_eq!((all.ready_left, all.backlog), (Some(0), Some(0)), "{all:?}");
    assert!(all.budget_ms >= 4000, "{all:?}");
    let calls = services.calls("archive");
    let letters: BTreeSet<&str> = calls.iter().map(|call| &*call.key).collect();
    assert_eq!(letters.len(), 60);
}

#[tokio::test]
async fn f2_a_drain_leases_at_most_max_events() {
    let (db, client) = support::opened().await;
    publish_views(&client, 5).await;
    let report = Cli::on(&db).drain(&["--max-events", "2"]).await;
    assert_eq!(
        (report.leased, report.completed, report.backlog),
        (2, 2, Some(3))
    );
    assert_eq!(report.stop_reason, StopReason::LimitReached);
}

#[tokio::test]
async fn c12_settings_come_from_the_environment_and_flags_win() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db)
        .with("TIDEGATE_BUDGET", "7s")
        .with("TIDEGATE_BATCH", "1")
        .with("TIDEGATE_CONCURRENCY", "1")
        .with("TIDEGATE_LINGER", "300ms");
    publish_views(&client, 5).await;
    let report = cli.drain(&[]).await;
    assert_eq!((report.budget_ms, report.batches), (7000, 5), "{report:?}");
    assert!(report.elapsed_ms >= 300, "{report:?}");
    publish_views(&client, 5).await;
    let flags = ["--budget", "9s", "--batch", "5", "--concurrency", "5"];
    let report = cli.drain(&flags).await;
    assert_eq!(report.budget_ms, 9000);
    assert!(report.batches < 5, "{report:?}");
    let report = cli.drain(&["--budget", "1s", "--linger", "1h"]).await;
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
}

#[tokio::test]
async fn a_bad_setting_is_refused_by_the_variables_name() {
    let db = support::database().await;
    for (variable, value) in [
        ("TIDEGATE_BUDGET", "soon"),
        ("TIDEGATE_BATCH", "0"),
        ("TIDEGATE_CONCURRENCY", "many"),
        ("TIDEGATE_LEASE_TIMEOUT", "1"),
        ("TIDEGATE_HANDLER_TIMEOUT", "-1s"),
        ("TIDEGATE_LINGER", "x"),
        ("TIDEGATE_BACKOFF_BASE", "x"),
        ("TIDEGATE_BACKOFF_MAX", "1000000y"),
        ("TIDEGATE_MAX_ATTEMPTS", "1001"),
        ("TIDEGATE_LOG", "=,="),
        ("ARCHIVE_URL", "ftp://archive"),
        ("DATABASE_URL", "postgres://"),
    ] {
        let ran = Cli::on(&db).with(variable, value).run(&["drain"]).await;
        ran.failed(2, &[variable]);
        assert_eq!(ran.stdout, "");
    }
}

#[tokio::test]
async fn c12_a_handlers_limit_must_fit_into_a_lease() {
    let db = support::database().await;
    let limited = Cli::on(&db).with("TIDEGATE_HANDLER_TIMEOUT", "55s");
    let ran = limited.run(&["drain"]).await;
    ran.failed(2, &["handler timeout", "nine tenths of the lease timeout"]);
    let longer = limited.with("TIDEGATE_LEASE_TIMEOUT", "2m");
    longer.drain(&[]).await;
}

#[tokio::test]
async fn f2_a_stop_signal_ends_a_drain_as_its_budget_would() {
    let (db, client, services) = support::slow_letters(500).await;
    let cli = Cli::on(&db).with_services(&services);
    let child = cli
        .command(&["drain", "--json", "--concurrency", "2"])
        .spawn()
        .unwrap();
    wait_until("the drain is at work", async || {
        services.calls("archive").len() >= 4
    })
    .await;
    support::terminate(&child);
    let ran = Ran::of(child).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: DrainReport = serde_json::from_value(ran.document()).unwrap();
    assert!(report.is_balanced(), "{report:?}");
    assert_eq!(report.stop_reason, StopReason::BudgetSpent);
    assert!(report.completed >= 2 && report.released >= 1, "{report:?}");
    assert_eq!((report.retried, report.lease_lost), (0, 0), "{report:?}");
    let touched =
        "SELECT count(*) FROM tidegate.events WHERE attempts > 0 OR lease_token IS NOT NULL";
    assert_eq!(number(&client, touched).await, 0);
}

#[tokio::test]
async fn a_drain_without_a_schema_says_how_to_make_one() {
    let db = support::empty_database().await;
    for verb in [&["drain"][..], &["status"], &["list"], &["publish", OTHERS]] {
        let ran = Cli::on(&db).run(verb).await;
        ran.failed(1, &["run `tidegate migrate` first"]);
    }
}

#[tokio::test]
async fn a_drain_that_fails_does_not_claim_that_the_queue_is_empty() {
    let cli = Cli::at("postgres://nobody@127.0.0.1:1/nothing");
    let ran = cli.run(&["drain"]).await;
    ran.failed(1, &["connect"]);
    assert_eq!(ran.stdout, "");
    let report = &cli.run(&["drain", "--json"]).await.document()["report"];
    assert_eq!(report["leased"], 0);
    for unknown in ["stop_reason", "backlog", "oldest_age_ms"] {
        assert!(report.get(unknown).is_none(), "{report}");
    }
}

#[tokio::test]
async fn a_drain_whose_stderr_nobody_reads_goes_on_and_reports() {
    let (db, client) = support::opened().await;
    publish_views(&client, 8000).await;
    let undecodable = "SELECT count(*) FROM generate_series(1, 3000) AS n, tidegate.publish('grant_letter_viewed', to_jsonb(n))";
    client.query_one(undecodable, &[]).await.unwrap();
    // More than the pipe and the queue of lines hold together.
    let cli = Cli::on(&db)
        .with("TIDEGATE_LOG", "debug")
        .with("TIDEGATE_METRICS", "emf");
    let mut child = cli.command(&["drain", "--json"]).spawn().unwrap();
    let mut unread = child.stderr.take().unwrap();
    let ran = Ran::of(child).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: DrainReport = serde_json::from_value(ran.document()).unwrap();
    assert!(report.is_balanced(), "{report:?}");
    let ends = (report.completed, report.failed, report.backlog);
    assert_eq!(ends, (8000, 3000, Some(0)), "{report:?}");
    let mut pipe = Vec::new();
    unread.read_to_end(&mut pipe).await.unwrap();
    assert!(pipe.len() > 10_000, "it was full: {}", pipe.len());
}

#[tokio::test]
async fn a_failure_whose_stderr_nobody_reads_ends_the_program() {
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let full = tokio::process::Command::new("yes")
        .stdout(pipe.try_clone().unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    std::io::Read::read_exact(&mut reader, &mut [0]).unwrap();
    let cli = Cli::at("postgres://postgres@127.0.0.1:1/nothing");
    let child = cli.command(&["status", "--json"]).stderr(pipe).spawn();
    let ran = Ran::of(child.unwrap()).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.document()["error"].is_string(), "{ran:?}");
    drop((full, reader));
}

// status, show, list

#[tokio::test]
async fn c13_status_tells_depth_attempts_latency_and_failure_rate_by_kind() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    publish_views(&client, 3).await;
    cli.drain(&[]).await;
    publish_unreadable(&client).await;
    cli.drain(&[]).await;
    publish_views(&client, 2).await;
    cli.json(&["publish", VIEWED, "--payload", VIEW, "--delay", "1h"])
        .await;
    execute(
        &client,
        "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '623.6 s'",
    )
    .await;
    let status = cli.json(&["status"]).await;
    has(&status, &json!({"action": "stats", "backlog": 3}));
    assert!(
        status["oldest_age_ms"].as_u64().unwrap() >= 623_600,
        "{status}"
    );
    let kinds = status["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), app::Event::KINDS.len());
    let viewed = kinds.iter().find(|kind| kind["kind"] == VIEWED).unwrap();
    for (field, value) in [
        ("pending", json!(2)),
        ("processing", json!(0)),
        ("delayed", json!(1)),
        ("completed", json!(3)),
        ("completed_with_errors", json!(0)),
        ("failed", json!(1)),
        ("failure_rate", json!(0.25)),
        // The one that failed could not be read: no handler has tried it.
        ("attempts_per_event", json!(0.75)),
    ] {
        assert_eq!(viewed[field], value, "{field}: {viewed}");
    }
    assert!(viewed["latency_p95_ms"].is_u64(), "{viewed}");
    let told = cli.run(&["status"]).await;
    assert!(
        told.stdout
            .starts_with("3 events in the queue, the oldest 10m ")
            && !told.stdout.contains("ms old")
            && told.stdout.contains("25.0 %"),
        "{told:?}"
    );
}

#[tokio::test]
async fn b8_show_finds_an_event_while_it_lives_and_after_it_has_ended() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    publish_views(&client, 1).await;
    let id = number(&client, "SELECT id FROM tidegate.event_queue")
        .await
        .to_string();
    let alive = cli.json(&["show", &id]).await;
    has(&alive, &json!({"in": "event_queue", "status": "PENDING"}));
    assert_eq!(alive["payload"], json!({"grant_number": "G-1"}));
    cli.drain(&[]).await;
    let ended = cli.json(&["show", &id]).await;
    has(
        &ended,
        &json!({"in": "event_log", "status": "COMPLETED", "attempts": 1}),
    );
    let told = cli.run(&["show", &id]).await;
    assert!(told.stdout.contains("COMPLETED"), "{told:?}");
    let unknown = cli.run(&["show", "987654321"]).await;
    unknown.failed(1, &["event 987654321 is unknown"]);
    cli.run(&["show", "one"]).await.failed(2, &["<ID>"]);
}

#[tokio::test]
async fn b20_list_shows_live_and_finished_events_newest_first_by_status_and_kind() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    publish_views(&client, 2).await;
    publish_unreadable(&client).await;
    cli.drain(&[]).await;
    publish_views(&client, 1).await;
    let later = "SELECT tidegate.publish('form_archived', NULL, delay => '1 h')";
    execute(&client, later).await;
    let statuses = async |arguments: &[&str]| -> Vec<String> {
        let listed = cli.json(&[&["list"], arguments].concat()).await;
        let events = listed["events"].as_array().unwrap();
        let ids: Vec<i64> = events
            .iter()
            .map(|event| event["id"].as_i64().unwrap())
            .collect();
        assert!(ids.is_sorted_by(|newer, older| newer > older), "{ids:?}");
        events
            .iter()
            .map(|event| event["status"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        statuses(&[]).await,
        ["PENDING", "PENDING", "FAILED", "COMPLETED", "COMPLETED"]
    );
    assert_eq!(statuses(&["--limit", "2"]).await, ["PENDING", "PENDING"]);
    assert_eq!(statuses(&["--status", "failed"]).await, ["FAILED"]);
    assert_eq!(statuses(&["--kind", "form_archived"]).await, ["PENDING"]);
    assert_eq!(
        statuses(&["--kind", VIEWED, "--status", "COMPLETED", "--limit", "1"]).await,
        ["COMPLETED"]
    );
    assert!(statuses(&["--kind", "case_opened"]).await.is_empty());
    let told = cli.run(&["list", "--status", "FAILED"]).await;
    assert!(told.stdout.contains("undecodable"), "{told:?}");
    let wrong = cli.run(&["list", "--status", "DONE"]).await;
    wrong.failed(2, &["--status", "COMPLETED_WITH_ERRORS"]);
}

// cancel and reschedule

#[tokio::test]
async fn exactly_what_a_dry_run_has_shown_is_changed_or_nothing() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    let live = "SELECT count(*) FROM tidegate.event_queue WHERE NOT delayed";
    for verb in [&["reschedule", "--delay=1h"][..], &["cancel"]] {
        publish_views(&client, 3).await;
        let filter = [verb, &["--kind", VIEWED, "--reason=why"]].concat();
        let digest = async || {
            let dry = cli.json(&[&filter[..], &["--dry-run"]].concat()).await;
            dry["digest"].as_str().unwrap().to_owned()
        };
        let (seen, before) = (digest().await, number(&client, live).await);
        publish_views(&client, 1).await;
        let late = cli.run(&[&filter[..], &["--digest", &seen]].concat()).await;
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(
            late.stdout.contains(": nothing was changed: digest: "),
            "{late:?}"
        );
        assert_eq!(number(&client, live).await, before + 1);
        let seen = digest().await;
        cli.json(&[&filter[..], &["--digest", &seen]].concat())
            .await;
        assert_eq!(number(&client, live).await, 0);
    }
}

// every verb

/// The first example in the help of a verb.
async fn example_of(verb: &str) -> String {
    let help = Cli::without_database().run(&[verb, "--help"]).await;
    assert_eq!(help.code, Some(0));
    let (_, examples) = help.stdout.split_once("Example:\n  tidegate ").unwrap();
    let example = examples.lines().next().unwrap();
    assert!(example.starts_with(verb), "{example}");
    example.to_owned()
}

#[tokio::test]
async fn with_json_stdout_is_one_document_also_when_a_verb_fails() {
    let unreachable = Cli::at("postgres://nobody@127.0.0.1:1/nothing");
    let unset = Cli::without_database();
    let describing = ["completions", "man", "schema"];
    for verb in verbs().await {
        if describing.contains(&verb.as_str()) {
            continue;
        }
        let example = example_of(&verb).await;
        let example = match verb.as_str() {
            "new" => "new fn",
            "status" => "status",
            // Without a database they would serve all the same; this address is nobody's.
            "serve" => "serve --listen=192.0.2.1:1",
            "console" => "console --listen=192.0.2.1:1",
            _ => example.trim_end_matches(" --json"),
        };
        let right = [&words(example)[..], &["--json"]].concat();
        let wrong = [&right[..], &["--no-such-flag"]].concat();
        for (cli, arguments, code) in [
            (&unreachable, &right, None),
            (&unset, &right, Some(2)),
            (&unset, &wrong, Some(2)),
        ] {
            let ran = cli.run(arguments).await;
            assert!(code.is_none_or(|code| ran.code == Some(code)), "{ran:?}");
            assert_ne!(ran.code, Some(0), "{ran:?}");
            let error = ran.document()["error"].as_str().unwrap().to_owned();
            assert!(!error.is_empty() && ran.stderr.contains(&error), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn a_verb_without_a_database_names_the_variable_that_is_missing() {
    for variables in [vec![], vec![("DATABASE_URL", "")]] {
        let mut cli = Cli::without_database();
        for (variable, value) in variables {
            cli = cli.with(variable, value);
        }
        for arguments in [
            &["migrate"][..],
            &["drain"],
            &["cleanup"],
            &["retention"],
            &["status"],
            &["list"],
            &["show", "1"],
            &["publish", VIEWED],
        ] {
            let ran = cli.run(arguments).await;
            ran.failed(2, &["neither DATABASE_URL nor DATABASE_SECRET_ID is set"]);
            assert_eq!(ran.stdout, "");
        }
    }
}

#[tokio::test]
async fn i9_the_databases_password_is_in_no_output() {
    let db = support::database().await;
    let working = db.url.replace("://postgres@", "://postgres:canary@");
    assert_ne!(working, db.url);
    let unreachable = "postgres://postgres:canary@127.0.0.1:1/nothing".to_owned();
    let missing = working.replace("/test_", "/missing_");
    let malformed = "postgres://postgres:canary@127.0.0.1:canary/x".to_owned();
    let words = "host=127.0.0.1 password=canary port=canary".to_owned();
    let unsafe_mode = format!("{working}?sslmode=prefer");
    for url in [working, unreachable, missing, malformed, words, unsafe_mode] {
        let cli = Cli::at(&url).with("TIDEGATE_LOG", "trace");
        for arguments in [&["drain", "--json"][..], &["migrate"], &["status"]] {
            let ran = cli.run(arguments).await;
            assert!(
                !ran.stdout.contains("canary") && !ran.stderr.contains("canary"),
                "{ran:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_output_that_takes_nothing_is_named() {
    let (db, _) = support::opened().await;
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let list = Cli::on(&db)
        .command(&["list"])
        .stdout(full)
        .spawn()
        .unwrap();
    Ran::of(list)
        .await
        .failed(1, &["stdout: No space left on device"]);
}

#[tokio::test]
async fn what_a_kind_does_to_a_terminal_does_not_break_a_scrape() {
    let (db, client) = support::opened().await;
    let odd = "INSERT INTO tidegate.event_kind (kind) VALUES (E'odd\\x1b'); INSERT INTO tidegate.event_queue (kind) VALUES (E'odd\\x1b')";
    client.batch_execute(odd).await.unwrap();
    let shown = Cli::on(&db)
        .run(&["status", "--format", "prometheus"])
        .await;
    assert!(
        shown.stdout.contains("odd\u{1b}") && !shown.stdout.contains("\\u{1b}"),
        "{shown:?}"
    );
}

/// The program with a reason for what it is asked to do.
pub async fn with_reason(cli: &Cli, arguments: &[&str]) -> (Option<i32>, Value) {
    let ran = cli
        .run(&[arguments, &["--reason", "why", "--json"]].concat())
        .await;
    (ran.code, ran.document())
}

#[tokio::test]
async fn the_command_line_pauses_resumes_and_unblocks_in_the_name_of_who_asks() {
    let (db, client) = probe().await;
    let cli = Cli::on(&db)
        .with("TIDEGATE_ACTOR", "ada")
        .with("USER", "root");
    assert_eq!(cli.json(&["pause", "act"]).await["changed"], true);
    let paused = cli.run(&["pause", "act"]).await;
    begins(&paused.stdout, "pause: nothing was changed\n");
    contains(&paused.stdout, "It was already so.");
    let resumed = cli.json(&["resume", "act", "--actor", "bob"]).await;
    has(&resumed, &json!({"action": "resume", "paused": false}));
    cli.run(&["pause", "akt"])
        .await
        .failed(2, &["'akt' is not registered", "act, "]);
    let head = queue::publish(&client, &act("x").group("g"))
        .await
        .unwrap()
        .id;
    let (code, cancelled) = with_reason(&cli, &["unblock", "g", "--cancel"]).await;
    assert_eq!((code, &cancelled["id"]), (Some(0), &json!(head)));
    let cli = Cli::on(&db).with("USER", "root");
    let empty = cli
        .run(&["unblock", "g", "--retry", "--reason", "why"])
        .await;
    assert_eq!(empty.code, Some(1), "{empty:?}");
    assert!(empty.stdout.contains("'g' has no live events"), "{empty:?}");
    let actors = column::<String>(&client, "SELECT actor FROM tidegate.audit ORDER BY id").await;
    assert_eq!(actors, ["ada", "ada", "bob", "ada", "root"]);
}

#[tokio::test]
async fn f5_the_command_line_names_the_argument_that_is_wrong() {
    let db = probe_database().await;
    let cli = Cli::on(&db);
    for (line, says) in rows(
        "replay --id 1 => --reason
         replay --id 1 --reason= => reason:
         replay --reason why => since:
         replay --reason why --since soon => --since
         replay --reason why --until 2026-13-01T00:00:00Z => --until
         replay --reason why --id one => --id
         replay --reason why --since 1h --status pending => status:
         replay --reason why --since 1h --limit 0 => limit:
         requeue --reason why => --id
         unblock g --reason why => --retry|--skip|--cancel
         unblock g --retry --skip --reason why => --skip
         pause => <KIND>
         retire act => --reason",
    ) {
        cli.run(&words(line)).await.failed(2, &[says]);
    }
}
