//! What the queue and the transactions promise around the rules (requirements E1 to E15).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Event as _;
use tidegate_job::app::medical::{self, KINDS, Refusal};
use tidegate_job::app::{App, Event};
use uuid::Uuid;

use super::cases::LISTED;
use super::world::{
    CANARY, CLIENT, OTHER_CLIENT, OTHER_PATIENT, PATIENT, USER, World, drain, drain_one, id, part,
    payload, signed, submit, with,
};
use crate::support::cli::Cli;
use crate::support::services::Mode;
use crate::support::{contains, wait_until};

const EPISODE: u128 = 1;

fn new_episode(number: u128, referrals: &[Uuid]) -> Value {
    payload(
        &json!({"id": id(number), "name": CANARY, "type": "primary_care", "status": "active",
        "managing_organization": CLIENT, "period": {"start": "2027-03-01"}, "care_manager": USER,
        "referral_requests": referrals}),
    )
}

fn rename(number: u128, name: &str) -> Value {
    payload(&json!({"id": id(number), "request_params": {"name": name, "care_manager": USER}}))
}

fn request(number: u128) -> Value {
    let content = part(&json!({"id": id(number), "requester_employee": USER}));
    json!({"kind": "service_request", "id": id(number), "status": "active", "content": content})
}

fn recall(number: u128) -> Value {
    let content = part(&json!({"id": id(number), "requester_employee": USER}));
    payload(&json!({"service_request_id": id(number), "signed_data": signed(&content)}))
}

#[test]
fn e4_all_21_kinds_are_events_under_their_exact_names() {
    assert_eq!(KINDS.len(), 21);
    assert!(LISTED.iter().map(|(kind, _)| kind).eq(KINDS));
    for kind in KINDS {
        assert!(
            Event::KINDS.contains(kind) && kind.ends_with("_job"),
            "{kind}"
        );
        assert!(
            medical::schemas().contains_key(medical::schema_name(kind).unwrap()),
            "{kind}"
        );
    }
}

#[test]
fn e1_every_invalid_field_is_reported_at_once_and_none_is_quoted() {
    let bad = json!({"request_id": "", "patient_id": "secret", "user_id": 1, "id": id(1), "secret": true,
        "request_params": {"period": {"end": "2027-02-30"}, "closing_summary": null}});
    let Err(Refusal::Fields(errors)) = medical::validate("episode_close_job", &bad) else {
        panic!("it is refused");
    };
    let told: BTreeSet<(&str, &str)> = errors
        .iter()
        .map(|error| (error.entry.as_str(), error.rule.as_str()))
        .collect();
    let expected = [
        ("$", "unknown"),
        ("$.client_id", "required"),
        ("$.patient_id", "format"),
        ("$.request_id", "length"),
        ("$.request_params.closing_summary", "type"),
        ("$.request_params.period.end", "format"),
        ("$.request_params.status_reason", "required"),
        ("$.user_id", "type"),
    ];
    assert_eq!(told, BTreeSet::from(expected));
    assert!(!format!("{errors:?}").contains("secret"), "{errors:?}");
    assert!(matches!(
        medical::validate("tea_job", &bad),
        Err(Refusal::UnknownKind)
    ));
    assert!(matches!(
        medical::validate("episode_close_job", &json!([])),
        Err(Refusal::Fields(_))
    ));
}

#[test]
fn e1_an_approval_is_for_resources_or_for_a_service_request() {
    let base = payload(&json!({"id": id(3), "granted_to": id(9), "access_level": "write"}));
    let resources = json!({"resources": [{"entity": "episode", "id": id(1)}]});
    let request = json!({"service_request": id(2)});
    let validate = |payload: &Value| medical::validate("approval_create_job", payload);
    assert!(validate(&with(&base, &resources)).is_ok());
    assert!(validate(&with(&base, &request)).is_ok());
    for wrong in [base.clone(), with(&with(&base, &resources), &request)] {
        let Err(Refusal::Fields(errors)) = validate(&wrong) else {
            panic!("it is refused");
        };
        assert_eq!(errors[0].rule, "exclusive");
    }
}

#[tokio::test]
async fn e2_e3_while_a_job_is_pending_an_equal_one_is_the_same_job() {
    let mut world = World::new().await;
    let first = world
        .submit("episode_create_job", &new_episode(EPISODE, &[]))
        .await;
    assert!(first.created);
    let later = with(
        &new_episode(EPISODE, &[]),
        &json!({"request_id": "request-2"}),
    );
    let again = world.submit("episode_create_job", &later).await;
    let found = (again.id, again.created);
    assert_eq!(found, (first.id, false), "E2: not the request's id");
    for other in [
        json!({"user_id": id(77)}),
        json!({"client_id": OTHER_CLIENT}),
        json!({"patient_id": OTHER_PATIENT}),
        json!({"name": "other"}),
    ] {
        let other = with(&new_episode(EPISODE, &[]), &other);
        assert!(
            world.submit("episode_create_job", &other).await.created,
            "{other}"
        );
    }
    // One after the other: two patients' jobs for one new id would make one of them wait for a retry.
    drain(&world.database, &world.app, 1).await;
    let after = world.submit("episode_create_job", &later).await;
    assert!(
        after.created && after.id > first.id,
        "it is over: a new job"
    );
}

#[tokio::test]
async fn e3_concurrent_twins_are_one_job() {
    let world = World::new().await;
    let twins = (0..8).map(|_| async {
        let mut client = world.connect().await;
        submit(
            &mut client,
            "episode_create_job",
            &new_episode(EPISODE, &[]),
        )
        .await
    });
    let published = futures_util::future::join_all(twins).await;
    let ids: BTreeSet<i64> = published.iter().map(|one| one.id).collect();
    assert_eq!(ids.len(), 1, "{published:?}");
    assert_eq!(published.iter().filter(|one| one.created).count(), 1);
    let sql = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(world.value(sql).await, 1);
}

#[tokio::test]
async fn e3_an_approval_is_asked_for_once_however_often() {
    let mut world = World::new().await;
    let approval = payload(
        &json!({"id": id(3), "granted_to": id(9), "access_level": "read",
        "service_request": id(2)}),
    );
    let one = world.submit("approval_create_job", &approval).await;
    let again = with(&approval, &json!({"request_id": "request-2"}));
    let again = world.submit("approval_create_job", &again).await;
    assert_eq!((again.id, again.created), (one.id, false));
    let other = with(&approval, &json!({"id": id(4)}));
    assert!(world.submit("approval_create_job", &other).await.created);
    drain(&world.database, &world.app, 1).await;
    let after = world.submit("approval_create_job", &approval).await;
    assert!(after.created && after.id > one.id, "it is over: a new job");
}

#[tokio::test]
async fn e5_e7_each_patients_jobs_are_handled_in_order_by_however_many_workers() {
    let mut world = World::new().await;
    let of = |patient: Uuid, payload: Value| with(&payload, &json!({"patient_id": patient}));
    for (patient, episode) in [(PATIENT, 1), (OTHER_PATIENT, 2)] {
        world
            .submit(
                "episode_create_job",
                &of(patient, new_episode(episode, &[])),
            )
            .await;
    }
    for turn in 0..20 {
        for (patient, episode) in [(PATIENT, 1), (OTHER_PATIENT, 2)] {
            let job = of(patient, rename(episode, &format!("name {turn}")));
            world.submit("episode_update_job", &job).await;
        }
    }
    let workers = (0..4).map(|_| drain(&world.database, &world.app, 4));
    let reports = futures_util::future::join_all(workers).await;
    let completed: u64 = reports.iter().map(|report| report.completed).sum();
    // Workers that came while a group was held find nothing; what is left is for the next drain.
    let completed = completed + world.drain().await.completed;
    assert_eq!(completed, 42, "{reports:?}");
    for patient in [PATIENT, OTHER_PATIENT] {
        let in_order = world
            .value(&format!(
                "SELECT array_agg(event_id ORDER BY id) = array_agg(event_id ORDER BY event_id)
                   FROM medical.audit WHERE patient_id = '{patient}'"
            ))
            .await;
        assert_eq!(in_order, true, "E7");
    }
    let names = world
        .value("SELECT jsonb_agg(DISTINCT content->'name') FROM medical.entity")
        .await;
    assert_eq!(names, json!(["name 19"]));
    let groups = world
        .value("SELECT count(DISTINCT group_key) FROM tidegate.event_log")
        .await;
    assert_eq!(groups, 2, "one group for each patient");
}

#[tokio::test]
async fn e10_a_job_that_two_workers_run_changes_the_patient_once_and_tells_once() {
    let mut world = World::new().await;
    world.seed(&[request(2)]).await;
    let job = world.submit("service_request_recall_job", &recall(2)).await;
    world.services.set("sms", Mode::Slow { delay_ms: 1_500 });
    let (database, app) = (world.database.clone(), world.app.clone());
    let slow = tokio::spawn(async move { drain_one(&database, &app).await });
    wait_until(
        "the first worker waits for the message service",
        async || !world.services.calls("sms").is_empty(),
    )
    .await;
    world.services.set("sms", Mode::Up);
    // Redelivery: somebody gives the job to another worker while the first still has it.
    world.requeue().await;
    let second = world.drain().await;
    assert_eq!(second.completed, 1, "{second:?}");
    let entity = "SELECT to_jsonb(e) FROM medical.entity e";
    let after = world.value(entity).await;

    let report = slow.await.expect("the worker lives");

    let found = (report.completed, report.lease_lost + report.retried);
    assert_eq!(found, (0, 1), "{report:?}");
    assert_eq!(world.job(job.id).await["status"], "processed");
    assert_eq!(world.value(entity).await, after, "nothing has moved");
    assert_eq!(world.value("SELECT count(*) FROM medical.audit").await, 1);
    assert_eq!(
        world.services.kept("sms").len(),
        1,
        "{:?}",
        world.services.kept("sms")
    );
    // And one that has ended cannot be given to anybody.
    world.requeue().await;
    assert_eq!(world.drain().await.leased, 0);
}

#[tokio::test]
async fn e12_a_failure_after_the_first_write_leaves_nothing() {
    let mut world = World::new().await;
    let fail = |table: &str| {
        format!(
            "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'told to' USING ERRCODE = '53100'; END $$;
             CREATE TRIGGER fail AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.fail()"
        )
    };
    let heal = |table: &str| format!("DROP TRIGGER fail ON {table}; DROP FUNCTION public.fail()");
    let job = world
        .submit("episode_create_job", &new_episode(EPISODE, &[]))
        .await;
    // Both come after the episode's own row: its audit, and the end of the job.
    for table in ["medical.audit", "tidegate.event_log"] {
        world.execute(&fail(table)).await;
        let report = world.drain().await;
        world.execute(&heal(table)).await;
        assert_eq!(report.completed, 0, "{table}: {report:?}");
        assert!(world.entities().await.is_empty(), "{table}");
        let sql = "SELECT count(*) FROM medical.audit";
        assert_eq!(world.value(sql).await, 0, "{table}");
        assert_eq!(world.job(job.id).await["status"], "pending", "{table}");
        world.requeue().await;
    }
    assert_eq!(world.drain().await.completed, 1);
    assert_eq!(world.entities().await, ["episode active"]);
    let audit = "SELECT to_jsonb(a) - 'id' - 'at' FROM medical.audit a";
    let expected = json!({"event_id": job.id, "event_kind": "episode_create_job", "request_id": "request-1",
        "user_id": USER, "client_id": CLIENT, "patient_id": PATIENT, "entity_kind": "episode",
        "entity_id": id(EPISODE), "status_before": null, "status_after": "active"});
    assert_eq!(world.value(audit).await, expected);
    let rewritten = world
        .client
        .execute("UPDATE medical.audit SET user_id = patient_id", &[])
        .await;
    assert!(rewritten.is_err(), "the audit is append-only");
}

#[tokio::test]
async fn a_closed_episode_closes_its_referrals_in_the_same_transaction() {
    let mut world = World::new().await;
    world.seed(&[request(2), request(3), request(404)]).await;
    world
        .submit(
            "episode_create_job",
            &new_episode(EPISODE, &[id(2), id(3), id(404)]),
        )
        .await;
    world.drain().await;
    // One that is gone by the time.
    let gone = format!("DELETE FROM medical.entity WHERE id = '{}'", id(404));
    world.execute(&gone).await;
    let close = payload(
        &json!({"id": id(EPISODE), "request_params": {"period": {"end": "2027-04-01"},
        "closing_summary": CANARY, "status_reason": "cured"}}),
    );
    let job = world.submit("episode_close_job", &close).await;
    let referrals = "SELECT count(*) FROM tidegate.events WHERE kind = 'service_request_close_job'";
    world
        .execute(
            "ALTER TABLE tidegate.event_log ADD CONSTRAINT not_now CHECK (kind <> 'episode_close_job') NOT VALID",
        )
        .await;
    world.drain().await;
    let found = world.value(referrals).await;
    assert_eq!(found, 0, "no end, no referrals closed");
    assert!(
        world
            .entities()
            .await
            .contains(&"episode active".to_owned())
    );

    world
        .execute("ALTER TABLE tidegate.event_log DROP CONSTRAINT not_now")
        .await;
    world.requeue().await;
    let report = world.drain().await;

    assert_eq!(report.published, 3, "one for each referral");
    assert_eq!(world.job(job.id).await["status"], "processed");
    let closed = [
        "episode closed",
        "service_request completed",
        "service_request completed",
    ];
    assert_eq!(world.entities().await, closed);
    let ends = "SELECT jsonb_agg(status_code ORDER BY id) FROM tidegate.jobs WHERE kind = 'service_request_close_job'";
    let seen = world.value(ends).await;
    assert_eq!(seen, json!([200, 200, 404]), "each for itself");
    let groups = "SELECT jsonb_agg(DISTINCT group_key) FROM tidegate.event_log";
    let expected = json!([format!("patient:{PATIENT}")]);
    assert_eq!(world.value(groups).await, expected);
    let end = "SELECT content->'period'->>'end' FROM medical.entity WHERE kind = 'episode'";
    assert_eq!(world.value(end).await, "2027-04-01");
}

#[tokio::test]
async fn e13_jobs_have_a_word_and_a_number_and_e15_expected_errors_are_not_retried() {
    let mut world = World::new().await;
    world.seed(&[request(2)]).await;
    // One that does not answer would be waited for.
    world.services.set("sms", Mode::Refuse { status: 422 });
    let told = |job: &Value| json!([job["status"], job["status_number"], job["status_code"]]);
    let pending = world
        .submit("episode_create_job", &new_episode(EPISODE, &[]))
        .await;
    let found = told(&world.job(pending.id).await);
    assert_eq!(found, json!(["pending", 0, null]));
    world.drain().await;
    let seen = told(&world.job(pending.id).await);
    assert_eq!(seen, json!(["processed", 1, 200]));
    let conflict = world
        .run("episode_create_job", &new_episode(EPISODE, &[]))
        .await;
    assert_eq!(told(&conflict), json!(["failed", 2, 422]));
    let attempts = "SELECT attempts FROM tidegate.event_log ORDER BY id DESC LIMIT 1";
    assert_eq!(world.value(attempts).await, 1, "E15: no retry");

    let down = world.submit("service_request_recall_job", &recall(2)).await;
    for _ in 0..5 {
        world.drain().await;
        let expected = ["episode active", "service_request active"];
        assert_eq!(world.entities().await, expected);
        if world.job(down.id).await["status_number"] == 0 {
            // Not through the view, which would grant a further attempt.
            world
                .execute("UPDATE tidegate.event_queue SET available_at = clock_timestamp()")
                .await;
        }
    }
    let given_up = world.job(down.id).await;
    assert_eq!(told(&given_up), json!(["failed_with_error", 3, 500]));
    assert_eq!(
        world.value(attempts).await,
        5,
        "E15: every attempt was used"
    );
    assert_eq!(
        world.services.calls("signature").len(),
        1,
        "a verified signature stays verified"
    );
}

#[tokio::test]
async fn e15_a_job_whose_service_answers_500_waits_for_a_day_and_ends_failed_with_error() {
    let mut world = World::new().await;
    // What the program declares counts.
    Cli::on(&world.db).json(&["migrate"]).await;
    let limits = "SELECT jsonb_object_agg(kind, policy->'give_up_after_ms') FROM tidegate.event_kind WHERE policy <> '{}'";
    let of_a_day = KINDS.iter().map(|kind| (*kind, json!(86_400_000)));
    let mut declared: Value = of_a_day.collect();
    declared["issuings-ai-checks"] = json!(3_600_000);
    assert_eq!(world.value(limits).await, declared);
    let check = "SELECT policy->'handler_timeout_ms' FROM tidegate.event_kind WHERE kind = 'issuings-ai-checks'";
    assert_eq!(world.value(check).await, 120_000);

    world.seed(&[request(2)]).await;
    world.services.set("sms", Mode::Refuse { status: 500 });
    let job = world.submit("service_request_recall_job", &recall(2)).await;
    for _ in 0..6 {
        world.drain().await;
        world.time_passes().await;
    }
    for (hours, number, code) in [(23, 0, Value::Null), (1, 3, json!(500))] {
        let age = format!(
            "UPDATE tidegate.service SET since = since - interval '{hours} hours';
             UPDATE tidegate.event_queue SET waits_since = waits_since - interval '{hours} hours'"
        );
        world.execute(&age).await;
        world.drain().await;
        let told = world.job(job.id).await;
        assert_eq!(
            (&told["status_number"], &told["status_code"]),
            (&json!(number), &code),
            "{told}"
        );
        world.time_passes().await;
    }
    let end = "SELECT jsonb_build_array(attempts, errors->-1->>'code') FROM tidegate.event_log";
    assert_eq!(world.value(end).await, json!([0, "service_down"]));
    assert_eq!(world.entities().await, ["service_request active"]);
}

#[tokio::test]
async fn an_unreachable_signature_service_is_no_bad_signature() {
    let mut world = World::new().await;
    for (number, status) in (10..).zip([401, 403, 404, 405, 407, 413, 429, 503]) {
        world.services.set("signature", Mode::Refuse { status });
        let content = part(&json!({"id": id(number), "requester_employee": USER}));
        let create = payload(&json!({"signed_data": signed(&content)}));
        let job = world.run("service_request_create_job", &create).await;
        assert_eq!(job["status"], "pending", "{status}: {job}");
        let spent = "SELECT sum(attempts) FROM tidegate.event_queue";
        assert_eq!(world.value(spent).await, 0, "{status}");
        world.services.set("signature", Mode::Up);
        world.time_passes().await;
        assert_eq!(world.drain().await.completed, 1, "{status}");
    }
    for (number, status) in (100..).zip([400, 422]) {
        world.services.set("signature", Mode::Refuse { status });
        let content = part(&json!({"id": id(number), "requester_employee": USER}));
        let create = payload(&json!({"signed_data": signed(&content)}));
        let job = world.run("service_request_create_job", &create).await;
        assert_eq!(job["status_code"], 422, "{status}: {job}");
    }
}

#[tokio::test]
async fn signed_jobs_wait_without_a_signature_service_unless_nobody_wants_one() {
    let mut world = World::new().await;
    let content = part(&json!({"id": id(1), "requester_employee": USER}));
    let create = payload(&json!({"signed_data": signed(&content)}));
    world.submit("service_request_create_job", &create).await;
    for (signatures, completed) in [("verified", 0), ("unverified", 1)] {
        let setting = |name: &str| match name {
            "SIGNATURE_URL" => None,
            "SIGNATURES" => Some(signatures.to_owned()),
            _ => world.services.setting(name),
        };
        world.app = Arc::new(App::from_settings(&setting).unwrap());
        world.time_passes().await;
        assert_eq!(world.drain().await.completed, completed, "{signatures}");
    }
    let bad = App::from_settings(&|name| (name == "SIGNATURES").then(|| "maybe".to_owned()));
    let refused = bad.err().unwrap().to_string();
    contains(&refused, "SIGNATURES: must be verified or unverified");
}

#[tokio::test]
async fn a11_a18_a_signature_service_that_fails_is_named_and_stops_no_messages() {
    for status in [401, 503] {
        let mut world = World::new().await;
        world.seed(&[request(2)]).await;
        world.services.set("signature", Mode::Refuse { status });
        let job = world.submit("service_request_recall_job", &recall(2)).await;
        // More often in a row than a service may fail.
        for _ in 0..6 {
            let report = world.drain().await;
            assert_eq!(report.leased, report.deferred, "{status}: {report:?}");
            world.time_passes().await;
        }
        let shut =
            "SELECT jsonb_agg(ARRAY[service, state]) FROM tidegate.service WHERE state <> 'closed'";
        let open = json!([["signature", "open"]]);
        assert_eq!(world.value(shut).await, open, "{status}");
        let told = "SELECT jsonb_build_array(split_part(last_error, ' ', 2), attempts) FROM tidegate.event_queue";
        assert_eq!(world.value(told).await, json!(["signature", 0]), "{status}");
        let shown = Cli::on(&world.db)
            .json(&["show", &job.id.to_string()])
            .await;
        let waited = &shown["progress"]["deferred"]["signature"]["calls"];
        let calls = world.services.calls("signature").len();
        assert_eq!(*waited, calls, "what cost no attempt is counted: {shown}");
        world.services.set("signature", Mode::Up);
        // A drain may find that all events that wait have been tried, and begins again with the next one.
        for _ in 0..2 {
            world.drain().await;
            world.time_passes().await;
        }
        assert_eq!(world.job(job.id).await["status"], "processed", "{status}");
        let attempts = "SELECT attempts FROM tidegate.event_log";
        assert_eq!(world.value(attempts).await, 1);
    }
}

#[tokio::test]
async fn jobs_that_need_a_signature_as_well_give_up_and_hold_no_others() {
    let mut world = World::new().await;
    Cli::on(&world.db).json(&["migrate"]).await;
    world.seed(&[request(2)]).await;
    world.services.set("signature", Mode::Down);
    for number in 0..20_u128 {
        let mut recall = recall(2);
        recall["patient_id"] = json!(id(1000 + number));
        world.submit("service_request_recall_job", &recall).await;
    }
    let resend = payload(&json!({"service_request_id": id(2)}));
    let resend = world.submit("service_request_resend_job", &resend).await;
    let report = drain(&world.database, &world.app, 8).await;
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(report.leased - 1, report.deferred, "{report:?}");
    assert_eq!(world.job(resend.id).await["status"], "processed");
    let calls = world.services.calls("signature").len();
    assert!(calls <= 12, "after five it is known, of {calls} calls");

    let age = "UPDATE tidegate.service SET since = since - interval '1 day';
               UPDATE tidegate.event_queue SET waits_since = waits_since - interval '1 day',
                      available_at = clock_timestamp() - interval '1 day'";
    world.execute(age).await;
    world.drain().await;
    let ends = "SELECT jsonb_agg(DISTINCT jsonb_build_array(status, status_code)) FROM tidegate.jobs WHERE kind = 'service_request_recall_job'";
    let given_up = json!([["failed_with_error", 500]]);
    assert_eq!(world.value(ends).await, given_up);
}

#[tokio::test]
async fn e14_the_database_refuses_every_other_transition() {
    let mut world = World::new().await;
    for code in [200, 422] {
        let job = world
            .run("episode_create_job", &new_episode(EPISODE, &[]))
            .await;
        assert_eq!(job["status_code"], code);
    }
    world
        .execute(
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('episode_close_job', '7')",
        )
        .await;
    assert_eq!(world.drain().await.failed, 1);
    let statuses = ["COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED", "PENDING"];
    for (from, to) in statuses
        .iter()
        .flat_map(|from| statuses.map(|to| (*from, to)))
    {
        let update =
            format!("UPDATE tidegate.event_log SET status = '{to}' WHERE status = '{from}'");
        let refused = world.client.execute(&update, &[]).await.is_err();
        assert_eq!(refused, from != "PENDING" && from != to, "{from} to {to}");
    }
    world
        .submit("episode_create_job", &new_episode(2, &[]))
        .await;
    for table in ["tidegate.event_queue", "tidegate.events"] {
        for to in &statuses[..3] {
            let update = format!("UPDATE {table} SET status = '{to}'");
            assert!(
                world.client.execute(&update, &[]).await.is_err(),
                "{table}: 0 to {to} by hand"
            );
        }
    }
}

#[tokio::test]
async fn a_service_request_ends_with_the_seventh_day_after_its_own() {
    let mut world = World::new().await;
    let content = part(&json!({"id": id(2), "requester_employee": USER}));
    let create = payload(&json!({"signed_data": signed(&content)}));
    world.run("service_request_create_job", &create).await;
    let end = "SELECT to_char(expires_at AT TIME ZONE 'UTC', 'HH24:MI:SS') FROM medical.entity";
    assert_eq!(world.value(end).await, "23:59:59");
    let days = "SELECT (expires_at AT TIME ZONE 'UTC')::date - (created_at AT TIME ZONE 'UTC')::date FROM medical.entity";
    assert_eq!(world.value(days).await, 7);
}

#[tokio::test]
async fn a_message_that_went_out_is_not_sent_again_when_the_database_fails() {
    let mut world = World::new().await;
    world.seed(&[request(2)]).await;
    let job = world.submit("service_request_recall_job", &recall(2)).await;
    world
        .execute("ALTER TABLE medical.audit ADD CONSTRAINT not_now CHECK (event_id = 0) NOT VALID")
        .await;
    world.drain().await;
    assert_eq!(world.entities().await, ["service_request active"]);
    world
        .execute("ALTER TABLE medical.audit DROP CONSTRAINT not_now")
        .await;
    world.requeue().await;
    world.drain().await;
    assert_eq!(world.job(job.id).await["status"], "processed");
    assert_eq!(world.entities().await, ["service_request recalled"]);
    assert_eq!(world.services.calls("sms").len(), 1);
}

#[tokio::test]
async fn a_slow_service_holds_no_lock_on_the_patients_data() {
    let mut world = World::new().await;
    world.seed(&[request(2)]).await;
    world.submit("service_request_recall_job", &recall(2)).await;
    world.services.set("sms", Mode::Slow { delay_ms: 1_500 });
    let (database, app) = (world.database.clone(), world.app.clone());
    let slow = tokio::spawn(async move { drain_one(&database, &app).await });
    wait_until("the worker waits for the message service", async || {
        !world.services.calls("sms").is_empty()
    })
    .await;
    wait_until("its first transaction is over", async || {
        let lock = "SELECT id FROM medical.entity FOR UPDATE NOWAIT";
        tokio::time::timeout(Duration::from_secs(1), world.client.query(lock, &[]))
            .await
            .is_ok_and(|answer| answer.is_ok())
    })
    .await;
    assert!(!slow.is_finished(), "the message is still being sent");
    slow.await.expect("the worker lives");
    assert_eq!(world.entities().await, ["service_request recalled"]);
}

#[tokio::test]
async fn a8_a_stored_payload_that_does_not_fit_ends_alone() {
    let mut world = World::new().await;
    world
        .execute("INSERT INTO tidegate.event_queue (kind, payload) VALUES ('episode_close_job', '{\"id\": 1}')")
        .await;
    let good = world
        .submit("episode_create_job", &new_episode(EPISODE, &[]))
        .await;
    world.drain().await;
    assert_eq!(world.job(good.id).await["status"], "processed");
    let bad = "SELECT status FROM tidegate.jobs WHERE kind = 'episode_close_job'";
    assert_eq!(world.value(bad).await, "failed_with_error");
}
