//! Payloads under a seal: the database never holds what they say, and whoever has no key neither publishes
//! nor handles one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::support::cli::{Cli, Ran};
use crate::support::probe::number;
use crate::support::seal::{NEW, OLD, keys};
use crate::support::services::Services;
use crate::support::{self, TestDb, contains, execute};
use serde_json::json;
use tempfile::NamedTempFile;
use tidegate::connect::Client;

const CANARY: &str = "canary-in-a-payload";

fn with_keys(db: &TestDb, file: &NamedTempFile) -> Cli {
    Cli::on(db).with("TIDEGATE_PAYLOAD_KEYS_FILE", file.path().to_str().unwrap())
}

async fn done(cli: &Cli, arguments: &[&str]) -> Ran {
    let ran = cli.run(arguments).await;
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
    ran
}

async fn publish(cli: &Cli) -> Ran {
    let payload = format!(r#"{{"grant_number": "{CANARY}"}}"#);
    done(
        cli,
        &["publish", "grant_letter_viewed", "--payload", &payload],
    )
    .await
}

/// Rows of queue and log in which the canary stands.
async fn told(client: &Client) -> i64 {
    let sql = format!(
        "SELECT (SELECT count(*) FROM tidegate.event_queue AS q WHERE q::text LIKE '%{CANARY}%')
              + (SELECT count(*) FROM tidegate.event_log AS l WHERE l.payload::text LIKE '%{CANARY}%' OR l.progress::text LIKE '%{CANARY}%')"
    );
    number(client, &sql).await
}

#[tokio::test]
async fn a_sealed_payload_is_handled_by_who_has_its_key_and_stands_in_no_row() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let cli = with_keys(&db, &file);
    publish(&cli).await;
    let sealed = "SELECT count(*) FROM tidegate.event_queue WHERE payload->'tidegate_sealed'->>'key' = '2031'";
    assert_eq!(number(&client, sealed).await, 1);
    assert_eq!(told(&client).await, 0);
    done(&cli, &["drain"]).await;
    let completed = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, completed).await, 1);
    assert_eq!(told(&client).await, 0);
    // What it was about is read under the seal by a replay, too.
    done(&cli, &["replay", "--id", "1", "--reason", "again"]).await;
    done(&cli, &["drain"]).await;
    assert_eq!(number(&client, completed).await, 2);
}

#[tokio::test]
async fn without_the_key_an_event_waits_at_no_cost_and_its_neighbours_go_on() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    publish(&with_keys(&db, &file)).await;
    for _ in 0..20 {
        publish(&Cli::on(&db)).await;
    }
    // Five hundred that nobody here can open, and two thousand neighbours.
    let many = "INSERT INTO tidegate.event_queue (kind, payload) SELECT kind, payload FROM tidegate.event_queue, generate_series(1, 499) WHERE id = 1;
                SELECT tidegate.publish_many(jsonb_agg(jsonb_build_object('kind', 'grant_letter_viewed', 'payload', '{\"grant_number\": \"G\"}'::jsonb)))
                  FROM generate_series(1, 1980)";
    client.batch_execute(many).await.unwrap();
    let other = keys(&[("2032", NEW)]);
    for cli in [Cli::on(&db), with_keys(&db, &other)] {
        done(&cli, &["drain"]).await;
        let completed =
            "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED' AND attempts = 1";
        assert_eq!(number(&client, completed).await, 2000);
        // The second time it is put off for the same reason, which is listed once.
        let waits = "SELECT count(*) FROM tidegate.event_queue WHERE attempts = 0 AND jsonb_array_length(errors) = 1
                        AND last_error LIKE '%\"2031\", which this program does not have%' AND available_at > clock_timestamp()";
        assert_eq!(number(&client, waits).await, 500);
        let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
        client.batch_execute(due).await.unwrap();
    }
    // Nothing ends them, and so they come less and less often.
    let old = "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '2 hours'";
    client.batch_execute(old).await.unwrap();
    done(&Cli::on(&db), &["drain"]).await;
    let later = "SELECT count(*) FROM tidegate.event_queue WHERE available_at BETWEEN clock_timestamp() + interval '20 minutes'
                    AND clock_timestamp() + interval '1 hour'";
    assert_eq!(number(&client, later).await, 500);
    let sql = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
    execute(&client, sql).await;
    done(&with_keys(&db, &file), &["drain"]).await;
    let left = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(number(&client, left).await, 0);
}

#[tokio::test]
async fn a_seal_that_does_not_hold_fails_its_event_alone() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let cli = with_keys(&db, &file);
    publish(&cli).await;
    let moved = "INSERT INTO tidegate.event_queue (kind, payload) SELECT 'case_opened', payload FROM tidegate.event_queue;
                 INSERT INTO tidegate.event_queue (kind, payload) VALUES ('case_opened', '{\"tidegate_sealed\":7}')";
    client.batch_execute(moved).await.unwrap();
    done(&cli, &["drain"]).await;
    let ended = "SELECT count(*) FROM tidegate.event_log WHERE status = 'FAILED' AND errors->-1->>'code' = 'sealed' AND attempts = 0";
    assert_eq!(number(&client, ended).await, 2);
    let completed = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, completed).await, 1);
}

#[tokio::test]
async fn a_queue_that_takes_no_plaintext_refuses_it_from_everybody_and_quotes_none() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let cli = with_keys(&db, &file);
    publish(&Cli::on(&db)).await;
    let payload = format!("{{\"grant_number\": \"{CANARY}\"}}");
    let ways = [
        format!("SELECT tidegate.publish('grant_letter_viewed', '{payload}')"),
        format!(
            "SELECT tidegate.publish_many('[{{\"kind\": \"grant_letter_viewed\", \"payload\": {payload}}}]')"
        ),
        format!(
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('grant_letter_viewed', '{payload}')"
        ),
    ];
    // A session that has published before, and has its plans, is refused like any other.
    for publish in ways.iter().cycle().take(30) {
        execute(&client, &format!("BEGIN; {publish}; ROLLBACK")).await;
    }
    let sealed = with_keys(&db, &file).with("TIDEGATE_PAYLOADS", "sealed");
    // With the roles, each function would be new to the session.
    done(&sealed, &["migrate"]).await;
    for publish in ways {
        let refused = client.batch_execute(&publish).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        contains(refused.message(), "payload: must be sealed");
        assert!(!format!("{refused:?}").contains(CANARY), "{refused:?}");
    }
    let plain = Cli::on(&db)
        .run(&[
            "--json",
            "publish",
            "grant_letter_viewed",
            "--payload",
            &payload,
        ])
        .await;
    assert!(
        plain.document()["error"]
            .to_string()
            .contains("must be sealed"),
        "{}",
        plain.stdout
    );
    let sql = "SELECT tidegate.publish('grant_letter_viewed', NULL)";
    execute(&client, sql).await;
    publish(&cli).await;
    assert_eq!(told(&client).await, 1, "what was there before");
}

#[tokio::test]
async fn what_only_begins_like_a_seal_is_plaintext() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let sealed = with_keys(&db, &file).with("TIDEGATE_PAYLOADS", "sealed");
    done(&sealed, &["migrate"]).await;
    publish(&sealed).await;
    let whole = "SELECT payload::text FROM tidegate.event_queue";
    let whole: String = client.query_one(whole, &[]).await.unwrap().get(0);
    let insert = "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('grant_letter_viewed', $1::text::json)";
    assert_eq!(client.execute(insert, &[&whole]).await.unwrap(), 1);
    let last = format!("\",\"name\":\"{CANARY}\"}}}}");
    for plain in [
        format!(r#"{{"tidegate_sealed":0,"name":"{CANARY}"}}"#),
        whole.replace("\"}}", &last),
        whole.replace("\"}}", &format!("\"}},\"name\":\"{CANARY}\"}}")),
        whole.replace("\"2031\"", &format!("\"{CANARY} 1\"")),
        whole.replace("\"data\":\"", &format!("\"data\":\"{CANARY} ")),
        whole.replace("{\"v\":1", &format!("{{\"name\":\"{CANARY}\",\"v\":1")),
        whole.replace("{\"v\"", "{ \"v\""),
    ] {
        let refused = client.execute(insert, &[&plain]).await.unwrap_err();
        let refused = refused.as_db_error().expect("the database refuses it");
        contains(refused.message(), "must be sealed");
        let publish = ["publish", "grant_letter_viewed", "--payload", &plain];
        let without = Cli::on(&db).run(&publish).await;
        assert!(without.stderr.contains("must be sealed"), "{plain}");
        // A program with keys seals it like any other.
        done(&sealed, &publish).await;
    }
    assert_eq!(told(&client).await, 0);
    let stored = "SELECT count(*) FROM tidegate.event_queue WHERE payload->'tidegate_sealed'->>'key' = '2031'";
    assert_eq!(number(&client, stored).await, 9);
}

#[tokio::test]
async fn what_a_queue_takes_is_a_setting_that_the_doctor_finds_right() {
    let db = support::database().await;
    let wrong = Cli::on(&db).with("TIDEGATE_PAYLOADS", "some");
    let told = wrong.run(&["--json", "migrate"]).await.document()["error"].to_string();
    contains(&told, "TIDEGATE_PAYLOADS: must be any or sealed");
    for takes in ["sealed", "any"] {
        let cli = Cli::on(&db).with("TIDEGATE_PAYLOADS", takes);
        done(&cli, &["migrate"]).await;
        let doctor = cli.run(&["--json", "doctor"]).await.document();
        let checks = doctor["checks"].as_array().unwrap();
        let drift = checks.iter().find(|check| check["name"] == "schema drift");
        assert_eq!(drift.unwrap()["state"], "ok", "{takes}");
    }
    publish(&Cli::on(&db)).await;
}

/// The statement of docs/guides/privacy.md that looks for events of a key, asked about this key.
async fn found(client: &Client, key: &str) -> usize {
    let page = include_str!("../../docs/guides/privacy.md");
    let statement = page.split("```sql\n").nth(1).unwrap();
    let statement = statement.split("```").next().unwrap();
    assert_eq!(statement.matches("2030-01").count(), 1, "{statement}");
    let asked = statement.replace("2030-01", key);
    client.query(&asked, &[]).await.unwrap().len()
}

#[tokio::test]
async fn a_new_key_seals_and_old_ones_open_until_no_row_names_them() {
    let (db, client) = support::opened().await;
    // Nobody can read this one, and it is in nobody's way.
    let unreadable = r#"INSERT INTO tidegate.event_queue (kind, payload, available_at) VALUES
        ('grant_letter_viewed', '{"tidegate_sealed":{"v":1,"key":"\ud800","wrapped":"","data":""}}', '2099-01-01')"#;
    client.batch_execute(unreadable).await.unwrap();
    let old = keys(&[("2031", OLD)]);
    publish(&with_keys(&db, &old)).await;
    done(&with_keys(&db, &old), &["drain"]).await;
    publish(&with_keys(&db, &old)).await;
    let both = keys(&[("2032", NEW), ("2031", OLD)]);
    let rotated = with_keys(&db, &both);
    publish(&rotated).await;
    let seen = (found(&client, "2031").await, found(&client, "2032").await);
    assert_eq!(seen, (2, 1));
    done(&rotated, &["drain"]).await;
    let completed = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, completed).await, 3);
    assert_eq!(
        (found(&client, "2031").await, found(&client, "2032").await),
        (2, 1)
    );
    // They go when their retention ends.
    let over = "UPDATE tidegate.event_log SET expires_at = clock_timestamp() - interval '1 day'
                 WHERE payload->'tidegate_sealed'->>'key' = '2031'";
    client.batch_execute(over).await.unwrap();
    done(&rotated, &["cleanup"]).await;
    assert_eq!(
        (found(&client, "2031").await, found(&client, "2032").await),
        (0, 1)
    );
    let alone = keys(&[("2032", NEW)]);
    done(
        &with_keys(&db, &alone),
        &["replay", "--id", "4", "--reason", "again"],
    )
    .await;
    done(&with_keys(&db, &alone), &["drain"]).await;
    assert_eq!(number(&client, completed).await, 2);
    assert_eq!(told(&client).await, 0);
}

#[tokio::test]
async fn what_handlers_publish_is_sealed_as_well() {
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let services = Services::start().await;
    let mut cli = with_keys(&db, &file);
    for (variable, url) in services.variables() {
        cli = cli.with(variable, &url);
    }
    let form = json!({
        "id": "f1",
        "company": {"number": "000000001", "name": "Company 1",
            "contact": {"name": CANARY, "email": "c@example.org", "phone": "0000"}},
        "employee": {"national_id": "00000000001", "name": "Employee 1"},
        "expert": {"name": "Expert 1", "company": "Company 2", "competence": "Ergonomics"},
        "need": {"reason": "Reason", "requirement": "Requirement", "estimated_cost": 1, "hours": 1, "start_date": "2027-01-11"},
        "status": "draft",
    });
    done(&cli, &["submit", "form", &form.to_string()]).await;
    done(&cli, &["drain"]).await;
    let events = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED' AND payload->'tidegate_sealed' IS NOT NULL";
    let found = number(&client, events).await;
    assert_eq!(found, 3, "form_submitted, form_archived, case_opened");
    assert_eq!(told(&client).await, 0);
}

#[tokio::test]
async fn a_file_of_keys_that_others_can_read_is_refused() {
    let db = support::database().await;
    let file = keys(&[("2031", NEW)]);
    let path = file.path().to_str().unwrap();
    let chmod = format!(
        "{path}: others must not be able to read it, and its mode is 644: chmod 600 {path}"
    );
    for (mode, refused) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let ran = with_keys(&db, &file).run(&["status"]).await;
        if refused {
            ran.failed(2, &["TIDEGATE_PAYLOAD_KEYS_FILE", &chmod]);
        } else {
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    }
}

#[tokio::test]
async fn keys_that_are_none_are_refused_by_the_settings_name_and_not_quoted() {
    let db = support::database().await;
    let file = keys(&[("2031", "c2hvcnQ=")]);
    let ran = with_keys(&db, &file).run(&["drain"]).await;
    ran.failed(
        2,
        &[
            "TIDEGATE_PAYLOAD_KEYS_FILE",
            "2031: must be 32 bytes in base64",
        ],
    );
    assert!(!format!("{ran:?}").contains("c2hvcnQ"), "{ran:?}");
}
