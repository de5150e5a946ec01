//! What the systems' own tables keep of people: until they are forgotten, or it has been kept for long
//! enough.

use serde_json::json;
use tidegate::Database;
use tidegate::connect::Client;
use tidegate::retention::{CleanupHooks, CleanupOptions, CleanupReport, cleanup};
use tidegate_job::app::records::People;
use uuid::Uuid;

use std::sync::Arc;
use test_support as support;
use test_support::cli::Cli;
use test_support::probe::number;

const ROWS: &str = "
INSERT INTO forms.form SELECT id, '000000001', 'Company', 'Contact', 'c@example.org', '1', '98765432109', 'Employee', 'Expert', 'Company',
       'Competence', 'Reason', 'Requirement', 1, 1, '2027-01-11', status, NULL, NULL, now() - age, now() - age
  FROM (VALUES ('old', interval '800 days', 'cancelled'), ('young', '10 days', 'cancelled'), ('open', '800 days', 'submitted'), ('busy', '800 days', 'cancelled')) AS v(id, age, status);
INSERT INTO forms.message (source, external_id, subject, form_id, content, received_at) VALUES
    ('s', '1', 'cancellation', 'old', '{}', now()), ('s', '2', 'cancellation', 'young', '{}', now() - interval '800 days'),
    ('s', '3', 'grant_letter', NULL, '{}', now() - interval '800 days'), ('s', '4', 'grant_letter', NULL, '{}', now());
INSERT INTO forms.awarded_grant VALUES ('G1', 'old', 'C', 'M', '000000001', 1, '2027-01-11', '2027-01-12', 'D', 'J');
INSERT INTO checks.issuing_check (trigger_id, application_id, work_statusom, updated_at) VALUES
    ('1', '1', 'OVERDUE', now() - interval '800 days'), ('2', '2', 'OVERDUE', now()), ('3', '3', 'PLANNED', now() - interval '800 days');
INSERT INTO medical.entity (kind, id, patient_id, organization_id, status, content, updated_at)
SELECT 'episode', gen_random_uuid(), p, gen_random_uuid(), 'closed', '{}', now() - age
  FROM (VALUES ('00000000-0000-0000-0000-000000000001'::uuid, interval '5000 days'), ('00000000-0000-0000-0000-000000000001', '1 day'),
               ('00000000-0000-0000-0000-000000000002', '1 day')) AS v(p, age);
INSERT INTO medical.entity (kind, id, patient_id, parent_id, organization_id, status, content, updated_at)
SELECT kind, lpad(id, 32, '0')::uuid, '00000000-0000-0000-0000-000000000003', lpad(parent, 32, '0')::uuid, gen_random_uuid(), status, '{}', now() - age
  FROM (VALUES ('episode', 'a', NULL, 'active', interval '5000 days'), ('encounter', 'aa', 'a', 'finished', '5000 days'),
               ('episode', 'b', NULL, 'closed', '5000 days'), ('encounter', 'bb', 'b', 'finished', '1 day'),
               ('episode', 'c', NULL, 'closed', '5000 days'), ('encounter', 'cc', 'c', 'finished', '5000 days'))
       AS v(kind, id, parent, status, age);
INSERT INTO medical.entity (kind, id, patient_id, organization_id, status, content, updated_at)
VALUES ('episode', lpad('d', 32, '0')::uuid, '00000000-0000-0000-0000-000000000004', gen_random_uuid(), 'closed', '{}', now() - interval '5000 days');
SELECT tidegate.publish('form_cancelled', '{}', group_key => 'form:busy'),
       tidegate.publish('issuings-ai-checks', '{}', group_key => 'application:3'),
       tidegate.publish('episode_cancel_job', '{}', group_key => 'patient:00000000-0000-0000-0000-000000000004');";

async fn cleaned(
    database: &Database,
    dry_run: bool,
    setting: fn(&str) -> Option<String>,
) -> Result<CleanupReport, tidegate::Error> {
    let options = CleanupOptions {
        dry_run,
        ..CleanupOptions::default()
    };
    let hooks = CleanupHooks {
        records: Some(Arc::new(People::new(setting))),
        ..CleanupHooks::default()
    };
    cleanup(database, &options, hooks).await
}

async fn counted(client: &Client) -> [i64; 5] {
    let mut counts = [0; 5];
    for (count, table) in counts.iter_mut().zip([
        "forms.form",
        "forms.message",
        "forms.awarded_grant",
        "checks.issuing_check",
        "medical.entity",
    ]) {
        *count = number(client, &format!("SELECT count(*) FROM {table}")).await;
    }
    counts
}

#[tokio::test]
async fn rows_are_kept_as_long_as_their_setting_says_and_for_ever_without_one() {
    let (db, client) = support::opened().await;
    client.batch_execute(ROWS).await.unwrap();
    let database = db.database();
    let unset = cleaned(&database, false, |_| None).await.unwrap();
    assert!(unset.records.is_empty(), "{unset:?}");
    assert_eq!(counted(&client).await, [4, 4, 1, 3, 10]);

    let two_years = |name: &str| (name != "MEDICAL_RETENTION").then(|| "730d".to_owned());
    let preview = cleaned(&database, true, two_years).await.unwrap();
    assert_eq!(counted(&client).await, [4, 4, 1, 3, 10]);
    let report = cleaned(&database, false, two_years).await.unwrap();
    assert_eq!(preview.records, report.records);
    // A form's messages are as old as the form; what is open or has an event is not old; a grant stays.
    assert_eq!(counted(&client).await, [3, 2, 1, 2, 10], "{report:?}");
    assert_eq!(report.records["forms.message"], 2);
    let linked = "SELECT count(*) FROM forms.awarded_grant WHERE form_id IS NOT NULL";
    assert_eq!(number(&client, linked).await, 0);

    let ten_years = |name: &str| (name == "MEDICAL_RETENTION").then(|| "3650d".to_owned());
    let report = cleaned(&database, false, ten_years).await.unwrap();
    // An open episode keeps its encounter, and a young encounter its episode: trees go whole.
    assert_eq!(report.records["medical.entity"], 3);
    assert_eq!(counted(&client).await, [3, 2, 1, 2, 7]);

    // The events end, and what they needed goes.
    let cancel = "SELECT tidegate.cancel(ARRAY(SELECT id FROM tidegate.event_queue), reason => 'not wanted')";
    client.batch_execute(cancel).await.unwrap();
    for setting in [two_years as fn(&str) -> Option<String>, ten_years] {
        cleaned(&database, false, setting).await.unwrap();
    }
    assert_eq!(counted(&client).await, [2, 2, 1, 1, 6]);
}

#[tokio::test]
async fn a_retention_that_is_none_is_refused_by_its_name() {
    let db = support::database().await;
    for wrong in ["2 moons", "1h", "-1d"] {
        let setting = match wrong {
            "2 moons" => |name: &str| (name == "FORMS_RETENTION").then(|| "2 moons".to_owned()),
            "1h" => |name: &str| (name == "FORMS_RETENTION").then(|| "1h".to_owned()),
            _ => |name: &str| (name == "FORMS_RETENTION").then(|| "-1d".to_owned()),
        };
        let refused = cleaned(&db.database(), false, setting).await.unwrap_err();
        let wanted = "FORMS_RETENTION: must be a duration of a day or more, such as 730d";
        assert!(refused.to_string().contains(wanted), "{refused}");
    }
}

#[tokio::test]
async fn a_patient_is_forgotten_from_the_command_line_and_others_are_not() {
    let (db, client) = support::opened().await;
    client.batch_execute(ROWS).await.unwrap();
    let patient = Uuid::from_u128(1);
    let publish = format!(
        "SELECT tidegate.publish('episode_close_job', '{{\"canary\": true}}', group_key => 'patient:{patient}')"
    );
    client.batch_execute(&publish).await.unwrap();
    let cli = Cli::on(&db);
    let subject = format!("patient={patient}");
    let forget = ["--json", "forget", "--subject", &subject, "--reason", "17"];
    let told = cli.run(&[&forget[..], &["--dry-run"]].concat()).await;
    assert_eq!(told.document()["tables"], json!({"medical.entity": 2}));
    let told = cli.run(&forget).await;
    assert_eq!(told.code, Some(0), "{}", told.stdout);
    let document = told.document();
    assert_eq!(
        (
            &document["forgotten"],
            &document["cancelled"],
            &document["tables"]["medical.entity"]
        ),
        (&json!(1), &json!(1), &json!(2)),
        "{document}"
    );
    assert_eq!(counted(&client).await[4], 8);
    let left =
        "SELECT count(*) FROM tidegate.event_log WHERE payload IS NULL AND group_key IS NULL";
    assert_eq!(number(&client, left).await, 1);

    // Nothing more is found, which is told by the code, and what is no UUID is refused.
    assert_eq!(cli.run(&forget).await.code, Some(1));
    for (wrong, wanted) in [
        ("patient=7", "subject: a patient must be a UUID"),
        ("doctor=7", "subject: must be one of patient, person, form"),
    ] {
        let told = cli
            .run(&["--json", "forget", "--subject", wrong, "--reason", "17"])
            .await;
        assert_ne!(told.code, Some(0));
        let error = told.document()["error"].to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
