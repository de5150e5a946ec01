//! Who is forgotten stands in no table of the queue and of the systems, nor in a file of the server.

use crate::support::probe::{probe, service};
use crate::support::{column, execute, wait_until};
use tidegate::connect::Client;
use tidegate_admin::{Audit, ForgetRequest, Whom, parse_subject};

/// Events, live and finished, a note and rows of the systems that are all about somebody, in numbers that
/// make ANALYZE copy them.
const EVERYWHERE: &str = r#"
SELECT count(p) FROM (SELECT tidegate.publish('act', '{"a": "CANARY"}', group_key => 'CANARY', correlation_id => 'CANARY',
                                              dedup_key => 'CANARY' || n) AS p FROM generate_series(1, 240) AS n) AS published;
UPDATE tidegate.event_queue
   SET last_error = 'CANARY', errors = '[{"code": "x", "message": "CANARY"}]', progress = '{"steps": {"a": "CANARY"}}',
       reported = '{"note": "CANARY"}' WHERE id % 2 = 0;
WITH moved AS (DELETE FROM tidegate.event_queue WHERE id % 4 < 2 RETURNING *)
INSERT INTO tidegate.event_log (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts, errors,
                                progress, result, created_at, finished_at, expires_at)
SELECT id, kind, payload, group_key, dedup_key, correlation_id, 'COMPLETED', 1, 5, errors, progress, '{"r": "CANARY"}',
       created_at, clock_timestamp(), clock_timestamp() + interval '30 days' FROM moved;
SELECT tidegate.note(id, 'of CANARY', 'asked'), tidegate.cancel(group_key => 'CANARY', status => 'PROCESSING', reason => 'asked')
  FROM tidegate.event_log;
INSERT INTO forms.form
SELECT 'f' || n, '000000001', 'Company', 'CANARY', 'CANARY@example.org', '1', '98765432109', 'CANARY', 'CANARY', 'Company',
       'Competence', 'CANARY', 'CANARY', 1, 1, '2027-01-11', 'submitted', NULL, NULL, now(), now() FROM generate_series(1, 40) AS n;
INSERT INTO forms.message (source, external_id, subject, form_id, content)
SELECT 's', n, 'cancellation', 'f' || n, '{"measure": "CANARY"}' FROM generate_series(1, 40) AS n;
INSERT INTO checks.issuing_check (trigger_id, application_id, work_statusom, answer, answered_at)
SELECT n, 'A1', 'DONE', '{"a": "CANARY"}', now() FROM generate_series(1, 40) AS n;
INSERT INTO medical.entity (kind, id, patient_id, organization_id, status, content, facts)
SELECT 'episode', gen_random_uuid(), '00000000-0000-0000-0000-000000000001', gen_random_uuid(), 'closed', '{"c": "CANARY"}', '{"c": "CANARY"}'
  FROM generate_series(1, 40) AS n;"#;

/// The tables, indexes and catalogs in whose files the word stands.
async fn files_with(client: &Client, word: &str) -> Vec<String> {
    execute(client, "CHECKPOINT").await;
    let files = format!(
        "SELECT c.oid::regclass::text FROM pg_class AS c
          WHERE c.relkind IN ('r', 'i', 't', 'm') AND pg_relation_filepath(c.oid) IS NOT NULL
            AND position('{word}'::bytea IN pg_read_binary_file(pg_relation_filepath(c.oid))) > 0 ORDER BY 1"
    );
    column(client, &files).await
}

#[tokio::test]
async fn whoever_is_forgotten_is_in_no_file_that_postgres_has_written_anew() {
    let (db, client) = probe().await;
    execute(&client, EVERYWHERE).await;
    execute(&client, "ANALYZE").await;
    let before = files_with(&client, "CANARY").await;
    assert!(before.len() > 10, "{before:?}");
    // Postgres' copies would stay until the next ANALYZE, which may not come.
    assert!(!before.contains(&"pg_statistic".to_owned()), "{before:?}");
    let forget = async |whom: Whom| {
        let audit = Audit::of("request 17");
        let request = ForgetRequest {
            whom,
            audit,
            ..ForgetRequest::default()
        };
        service(&db).run(&request).await.unwrap()
    };
    let group = Some("CANARY".to_owned());
    forget(Whom {
        group,
        ..Whom::default()
    })
    .await;
    for subject in [
        "person=98765432109",
        "application=A1",
        "patient=00000000-0000-0000-0000-000000000001",
    ] {
        let parsed = Some(parse_subject(subject).unwrap());
        let forgotten = forget(Whom {
            subject: parsed,
            ..Whom::default()
        });
        assert!(!forgotten.await.tables.is_empty(), "{subject}");
    }
    // A vacuum leaves bytes in the free space of pages, which no statement reads. Catalogs that databases
    // share are left alone, for the sake of other tests, and what others hold open keeps rows for a while.
    let tables: Vec<String> = column(
        &client,
        "SELECT format('%s', c.oid::regclass) FROM pg_class AS c
          WHERE c.oid = 'pg_statistic'::regclass
             OR c.relkind = 'r' AND c.relnamespace::regnamespace::text IN ('tidegate', 'forms', 'checks', 'medical')",
    )
    .await;
    let anew = format!("VACUUM FULL {}", tables.join(", "));
    wait_until("no file has the canary", async || {
        execute(&client, &anew).await;
        files_with(&client, "CANARY").await.is_empty()
    })
    .await;
}
