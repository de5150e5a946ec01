//! What the systems' own tables keep of people: until they are forgotten, or it has been kept for long
//! enough.

use serde_json::json;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::support;
use crate::support::cli::Cli;
use crate::support::probe::number;
use crate::support::{column, contains, execute, wait_until};
use tidegate::Database;
use tidegate::connect::Client;
use tidegate_admin::retention::{CleanupHooks, CleanupOptions, CleanupReport, cleanup};

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

async fn cleaned(database: &Database, dry_run: bool) -> CleanupReport {
    let options = CleanupOptions {
        dry_run,
        ..CleanupOptions::default()
    };
    let cleaned = cleanup(database, &options, CleanupHooks::default()).await;
    cleaned.unwrap()
}

/// Keeps the rows that these functions remove for so long.
async fn keep(client: &Client, functions: &[&str], kept: &str) {
    for function in functions {
        let declare = format!("SELECT tidegate.declare_retention('{function}.expire', '{kept}')");
        execute(client, &declare).await;
    }
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
    let unset = cleaned(&database, false).await;
    assert!(unset.records.is_empty(), "{unset:?}");
    assert_eq!(counted(&client).await, [4, 4, 1, 3, 10]);

    keep(&client, &["forms", "checks"], "730 days").await;
    let preview = cleaned(&database, true).await;
    assert_eq!(counted(&client).await, [4, 4, 1, 3, 10]);
    let report = cleaned(&database, false).await;
    assert_eq!(preview.records, report.records);
    // A form's messages are as old as the form; what is open or has an event is not old; a grant stays.
    assert_eq!(counted(&client).await, [3, 2, 1, 2, 10], "{report:?}");
    assert_eq!(report.records["forms.message"], 2);
    let linked = "SELECT count(*) FROM forms.awarded_grant WHERE form_id IS NOT NULL";
    assert_eq!(number(&client, linked).await, 0);

    keep(&client, &["medical"], "3650 days").await;
    let report = cleaned(&database, false).await;
    // An open episode keeps its encounter, and a young encounter its episode: trees go whole.
    assert_eq!(report.records["medical.entity"], 3);
    assert_eq!(counted(&client).await, [3, 2, 1, 2, 7]);

    // The events end, and what they needed goes.
    let cancel = "SELECT tidegate.cancel(ARRAY(SELECT id FROM tidegate.event_queue), reason => 'not wanted')";
    client.batch_execute(cancel).await.unwrap();
    cleaned(&database, false).await;
    assert_eq!(counted(&client).await, [2, 2, 1, 1, 6]);

    // The audit says what has gone, and each line by which function's rule.
    let removed = "SELECT format('%s %s', filter->'tables', count) FROM tidegate.audit WHERE filter->>'step' = 'records' ORDER BY id";
    let removed: Vec<String> = column(&client, removed).await;
    assert_eq!(
        removed,
        [
            r#"{"checks.issuing_check": 1} 1"#,
            r#"{"forms.form": 1, "forms.message": 2} 3"#,
            r#"{"medical.entity": 3} 3"#,
            r#"{"checks.issuing_check": 1} 1"#,
            r#"{"forms.form": 1, "forms.message": 0} 1"#,
            r#"{"medical.entity": 1} 1"#,
        ]
    );
}

#[tokio::test]
async fn migrate_sets_how_long_rows_are_kept_and_refuses_what_is_no_such_time() {
    let (db, client) = support::opened().await;
    let kept = "SELECT format('%s %s', expire, kept) FROM tidegate.records ORDER BY expire";
    let with = |time: &str| Cli::on(&db).with("FORMS_RETENTION", time);
    for wrong in ["2 moons", "1h", "-1d"] {
        let wanted = "FORMS_RETENTION: must be a duration of a day or more, such as 730d";
        let told = with(wrong).run(&["migrate"]).await;
        assert_eq!(told.code, Some(2), "{told:?}");
        contains(&told.stderr, wanted);
    }
    let migrated = with("730d").with("MEDICAL_RETENTION", "36h");
    assert_eq!(migrated.run(&["migrate"]).await.code, Some(0));
    let kept_now: Vec<String> = column(&client, kept).await;
    assert_eq!(
        kept_now,
        ["forms.expire 730 days", "medical.expire 1 day 12:00:00"]
    );
    assert_eq!(Cli::on(&db).run(&["migrate"]).await.code, Some(0));
    assert_eq!(column::<String>(&client, kept).await, [""; 0]);
}

#[tokio::test]
async fn nobody_chooses_what_has_expired_or_removes_it_without_a_line_in_the_audit() {
    let (db, client) = support::opened().await;
    client.batch_execute(ROWS).await.unwrap();
    assert_eq!(
        Cli::on(&db).run(&["migrate", "--roles"]).await.code,
        Some(0)
    );
    let before = counted(&client).await;
    execute(&client, "SET ROLE tidegate_operate").await;
    for call in [
        "forms.expire(now(), 100000, false)",
        "checks.expire(now(), 100000, false)",
        "medical.expire(now(), 100000, false)",
        "forms.forget('old', false)",
        "forms.forget_person('98765432109', false)",
        "checks.forget('1', false)",
        "medical.forget('00000000-0000-0000-0000-000000000001', false)",
        "tidegate.declare_retention('forms.expire', '1 day')",
        "tidegate.declare_subject('form', 'forms.forget')",
        "tidegate.expire_records('forms.expire', now(), 100000, false)",
    ] {
        let refused = client.batch_execute(&format!("SELECT {call}")).await;
        let code = refused.unwrap_err().code().cloned();
        assert_eq!(code, Some(SqlState::INSUFFICIENT_PRIVILEGE), "{call}");
    }
    let forgotten = "SELECT tidegate.forget_subject('person', '98765432109', 'request 17', 'ada')";
    execute(&client, forgotten).await;
    let change =
        "UPDATE forms.notice SET text = 'Declined.' WHERE (about, part) = ('declined', 'status')";
    execute(&client, change).await;
    execute(&client, "RESET ROLE").await;
    let after = counted(&client).await;
    assert_eq!((before[0], after[0]), (4, 0));
    let line = "SELECT format('%s %s %s %s', action, actor, filter, count) FROM tidegate.audit ORDER BY id";
    assert_eq!(
        column::<String>(&client, line).await,
        [
            r#"forget ada {"tables": {"forms.form": 4, "forms.message": 2}, "subject": "person"} 6"#,
            r#"change_notice  {"part": "status", "about": "declined"} 1"#,
        ]
    );
}

#[tokio::test]
async fn no_program_takes_the_subject_of_another_one() {
    let (_db, client) = support::opened().await;
    execute(
        &client,
        "SELECT tidegate.declare_subject('form', 'forms.forget')",
    )
    .await;
    for (call, why) in [
        (
            "declare_subject('form', 'forms.forget_person')",
            "subject: must be a name that is not taken, got form, which forms.forget forgets",
        ),
        (
            "declare_subject('employee', 'forms.nothing')",
            "forget: must be a function (id text, dry_run boolean), got forms.nothing",
        ),
        (
            "declare_retention('forms.nothing', '1 day')",
            "expire: must be a function (until timestamptz, most integer, dry_run boolean), got forms.nothing",
        ),
        (
            "declare_retention('forms.expire', '1 hour')",
            "kept: must be 1 to 36600 days, got 01:00:00",
        ),
    ] {
        support::refused(&client, &format!("SELECT tidegate.{call}"), why).await;
    }
}

#[tokio::test]
async fn a_programs_function_that_takes_long_keeps_no_operator_waiting() {
    let (db, client) = support::opened().await;
    let waits = "CREATE TABLE public.go ();
        CREATE FUNCTION public.slow(until timestamptz, most integer, dry_run boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN
            WHILE NOT EXISTS (SELECT FROM public.go) LOOP
                PERFORM pg_sleep(0.01);
            END LOOP;
            RETURN '{}';
        END $$;
        SELECT tidegate.declare_retention('public.slow', '1 day')";
    execute(&client, waits).await;
    let database = db.database();
    let meanwhile = async {
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
        wait_until("the function is at work", async || {
            number(&client, asleep).await == 1
        })
        .await;
        execute(&client, "SELECT tidegate.forget('{}', 'asked')").await;
        execute(&client, "INSERT INTO public.go DEFAULT VALUES").await;
    };
    tokio::join!(cleaned(&database, false), meanwhile);
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

    // Nothing more is found, which is told by the code, and what is no UUID is refused. So is the id that a
    // client gave its form, because another client's form may have it.
    assert_eq!(cli.run(&forget).await.code, Some(1));
    let of_client =
        "UPDATE forms.form SET client_id = $1, id = $1::uuid::text || '/open' WHERE id = 'open'";
    client.execute(of_client, &[&patient]).await.unwrap();
    for (wrong, wanted) in [
        (
            "form=open",
            "subject: must be CLIENT/ID for the form of a client",
        ),
        ("patient=7", "subject: a patient must be a UUID"),
        (
            "doctor=7",
            "subject: must be one of application, form, patient, person, got",
        ),
    ] {
        let told = cli
            .run(&["--json", "forget", "--subject", wrong, "--reason", "17"])
            .await;
        assert_ne!(told.code, Some(0));
        let error = told.document()["error"].to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let form = format!("form={patient}/open");
    let forget = ["--json", "forget", "--subject", &form, "--reason", "17"];
    let told = cli.run(&forget).await.document();
    assert_eq!(told["tables"]["forms.form"], 1, "{told}");
}
