//! Texts for people on a terminal: no table is wider than it, states have colours, log lines do not tear the
//! progress bar, and times have one form.

use std::sync::Arc;

use tidegate::Done;

use crate::look::{has_colour, on_terminal, run};
use crate::support::cli::Cli;
use crate::support::probe::{ProbeApp, number, options, probe, publish_acts};
use crate::support::{self, contains, execute, lacks, words};

/// A queue with long names, and something for each table.
const LONG: &str = "
INSERT INTO tidegate.event_kind (kind) VALUES ('external_letter_received_from_the_authority'), (repeat('k', 100)), ('quiet');
SELECT tidegate.publish(kind, '{}', group_key => 'customer-' || repeat('7', 60)) FROM tidegate.event_kind, generate_series(1, 2)
 WHERE kind LIKE '%authority' OR kind LIKE 'kkk%';
UPDATE tidegate.event_queue SET last_error = '503: ' || repeat('the archive does not answer ', 6), attempts = 1,
       available_at = clock_timestamp() + interval '1 hour';
INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
SELECT 9007199254740000 + n, kind, 'COMPLETED_WITH_ERRORS', 1, 5, '[{\"code\": \"no_such_authority_in_this_country\", \"message\": \"of many words, and of more\"}]',
       now(), now(), now() + interval '1 day' FROM tidegate.event_kind, generate_series(1, 2) AS n WHERE kind LIKE '%authority' OR kind LIKE 'kkk%';
INSERT INTO tidegate.minute_stats (minute, kind, status, events, attempts, latency_ms, code, last_id)
SELECT date_trunc('minute', now()), kind, 'COMPLETED_WITH_ERRORS', 2, 2, 2, 'no_such_authority_in_this_country', 9007199254740001
  FROM tidegate.event_kind WHERE kind LIKE '%authority' OR kind LIKE 'kkk%';
SELECT tidegate.report_service('archive-of-the-authority', gen_random_uuid(), false, 1, repeat('503 ', 9), 60, '{quiet}', false);
UPDATE tidegate.service SET state = 'open', retry_at = now() + interval '1 hour';
SELECT tidegate.put_schedule('report', 'nightly-report', 'quiet', NULL, '@daily', NULL, 'UTC', NULL, NULL, 'last');
UPDATE tidegate.drain_slot SET worker = '00000000-0000-0000-0000-000000000007', until = now() + interval '1 hour',
       name = '2026/11/24/[$LATEST]0123456789abcdef0123456789abcdef' WHERE slot = 1;
INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000007', int8multirange(int8range(id, id, '[]')), id,
       '2020-02-03T04:05:06.7+02:00', now(), now() - interval '1 hour', 0, '3' FROM tidegate.event_queue ORDER BY id LIMIT 1";

const WORKER: &str = "00000000-0000-0000-0000-000000000007";

/// Verbs with tables, and what they must show in any width.
const TABLES: [(&str, &[&str]); 8] = [
    (
        "status",
        &[
            "external_letter_received_from_the_authority",
            "kinds without events",
        ],
    ),
    (
        "list",
        &[
            "9007199254740001",
            "9007199254740002",
            "COMPLETED_WITH_ERRORS",
        ],
    ),
    (
        "list --waiting",
        &["external_letter_received_from_the_authority"],
    ),
    (
        "leases",
        &[WORKER, "expired", "2020-02-03 02:05:06Z", "tidegate drain"],
    ),
    ("services", &["archive-of-the-authority", "down"]),
    (
        "failures",
        &[
            "9007199254740001",
            "no_such_authority_in_this_country",
            "2 ",
        ],
    ),
    ("schedules", &["nightly-report"]),
    (
        "blocked-groups",
        &["external_letter_received_from_the_authority"],
    ),
];

#[tokio::test]
async fn no_table_is_wider_than_the_terminal_and_none_cuts_an_id() {
    let (db, client) = support::opened().await;
    execute(&client, LONG).await;
    for (verb, shown) in TABLES {
        let arguments = words(verb);
        let narrow = Cli::on(&db)
            .with("COLUMNS", "80")
            .run(&arguments)
            .await
            .stdout;
        // A command is copied whole.
        let lines = narrow.lines().filter(|line| !line.contains(": `tidegate "));
        for line in lines {
            assert!(line.chars().count() <= 80, "{verb}: {line}");
        }
        let whole = run(&db, &arguments).await.stdout;
        for text in shown {
            contains(&narrow, text);
            contains(&whole, text);
        }
        // Nobody's pipe has a row in two lines.
        assert!(
            whole.lines().count() < narrow.lines().count(),
            "{verb}: {whole}"
        );
        lacks(&whole, "+00");
    }
    // What does not fit stands below its row, each cell with its head.
    let list = Cli::on(&db).with("COLUMNS", "80").run(&["list"]).await;
    contains(
        &list.stdout,
        "\n      kind external_letter_received_from_the_authority*, attempts 1, created",
    );
    for help in [&["--help"][..], &["list", "--help"], &["replay", "--help"]] {
        let text = Cli::on(&db).with("COLUMNS", "80").run(help).await.stdout;
        let mut lines = text.lines().filter(|line| !line.starts_with("  tidegate "));
        let long = lines.find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{help:?}");
    }
}

#[tokio::test]
async fn a_status_folds_kinds_without_events_and_failures_name_what_to_do() {
    let (db, client) = support::opened().await;
    execute(&client, LONG).await;
    let status = run(&db, &["status"]).await.stdout;
    lacks(&status, "form_archived");
    lacks(&status, "quiet");
    let kinds = number(&client, "SELECT count(*) FROM tidegate.event_kind").await;
    contains(
        &status,
        &format!("… and {} kinds without events", kinds - 2),
    );
    let failures = run(&db, &["failures", "--kind", "quiet"]).await.stdout;
    contains(&failures, "since     20");
    contains(&failures, "failed    0  events ended FAILED");
    let wrong = run(&db, &["failures", "--status", "PENDING"]).await;
    wrong.failed(2, &["--status", "FAILED"]);
}

#[tokio::test]
async fn an_event_is_shown_in_the_order_of_a_persons_questions() {
    let (db, client) = support::opened().await;
    execute(&client, LONG).await;
    let text = run(&db, &["show", "9007199254740001"]).await.stdout;
    let at = |name: &str| {
        let found = text
            .lines()
            .position(|line| line.starts_with(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    let order = [
        "id",
        "kind",
        "status",
        "why",
        "created_at",
        "finished_at",
        "kept_until",
        "attempts",
        "errors",
        "in",
    ];
    assert!(order.is_sorted_by_key(|name| at(name)), "{text}");
    contains(&text, "no_such_authority_in_this_country: of many words");
    lacks(&text, "expires_at");
    lacks(&text, "+00:00");
    let log = Cli::on(&db).json(&["show", "9007199254740001"]).await;
    assert!(
        log["kept_until"].is_string() && log["deadline"].is_null(),
        "{log}"
    );
    let limit = "UPDATE tidegate.event_queue SET expires_at = '2999-01-01' RETURNING id";
    let live: i64 = client.query(limit, &[]).await.unwrap()[0].get(0);
    let live = Cli::on(&db).json(&["show", &live.to_string()]).await;
    assert!(
        live["deadline"].as_str().unwrap().starts_with("2999"),
        "{live}"
    );
    assert!(
        live.get("expires_at").is_none() && live["kept_until"].is_null(),
        "{live}"
    );
    let payload = run(&db, &["show", &live["id"].to_string()]).await.stdout;
    let (_, last) = payload.split_once("\npayload ").unwrap();
    assert_eq!(last.lines().next().unwrap().trim(), "{}");
    assert!(last.starts_with(' '), "{payload}");
}

#[tokio::test]
async fn states_have_colours_on_a_terminal_unless_they_are_refused() {
    let (db, client) = support::opened().await;
    execute(&client, LONG).await;
    for arguments in [&["list"][..], &["services"], &["leases"], &["doctor"]] {
        let text = on_terminal(&db, arguments, None).await;
        assert!(has_colour(&text), "{arguments:?}: {text:?}");
        let text = on_terminal(&db, arguments, Some("1")).await;
        assert!(!has_colour(&text), "{arguments:?}: {text:?}");
    }
    let listed = on_terminal(&db, &["list"], None).await;
    contains(&listed, "\u{1b}[33mCOMPLETED_WITH_ERRORS\u{1b}[0m");
}

#[tokio::test]
async fn log_lines_do_not_tear_the_progress_bar() {
    let (db, client) = support::opened().await;
    // Of each kind, the first ten have a line.
    let many = "INSERT INTO tidegate.event_queue (kind, payload) SELECT k.kind, '[]' FROM generate_series(1, 100), tidegate.event_kind AS k";
    execute(&client, many).await;
    let kinds = number(&client, "SELECT count(*) FROM tidegate.event_kind").await;
    let text = on_terminal(&db, &["drain"], None).await;
    contains(&text, &format!("/{kinds}00 events, "));
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("event failed for good"))
        .collect();
    assert!(lines.len() > 100, "{}", lines.len());
    for line in lines {
        // What stands in the line when it is complete: what was written since it was last cleared.
        let seen = line.rsplit("\u{1b}[2K").next().unwrap_or(line);
        lacks(seen, " events, ");
    }
}

#[tokio::test]
async fn a_lease_says_where_its_worker_runs_and_a_failed_drain_says_that_it_failed() {
    let (db, client) = probe().await;
    let db = Arc::new(db);
    publish_acts(&client, 1).await;
    let (seen, names) = std::sync::mpsc::channel();
    let other = Arc::clone(&db);
    let app = ProbeApp::doing(move |_| {
        let (db, seen) = (Arc::clone(&other), seen.clone());
        async move {
            let client = db.client().await;
            let name = "SELECT name FROM tidegate.leases";
            let name: String = client.query_one(name, &[]).await.unwrap().get(0);
            seen.send(name).unwrap();
            // From now on a drain that leases fails.
            let lose = "ALTER FUNCTION tidegate.lease RENAME TO gone";
            client.batch_execute(lose).await.unwrap();
            Ok(Done::ok())
        }
    });
    let mut options = options();
    options.worker = Some(format!("here {}", "x".repeat(300)));
    let failed = tidegate::drain(&db.database(), app, &options).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(names.recv().unwrap(), format!("here {}", "x".repeat(195)));
    let run = "SELECT concat_ws(' ', stop_reason, report->>'stop_reason', length(report->>'error') > 0) FROM tidegate.drain_run";
    let run: String = client.query_one(run, &[]).await.unwrap().get(0);
    assert_eq!(run, "failed failed t");
}
