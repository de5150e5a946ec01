//! A batch of each family of jobs whose worker is killed in the middle.
//!
//! The worker is this very test binary, started again for one ignored test.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::Database;
use tidegate_job::app::App;
use tidegate_job::app::medical::KINDS;

use super::cases::{changed, episode, package_content, report_content, request};
use super::world::{CLIENT, USER, World, drain, id, payload, signed, with};
use crate::probe::{expire_leases, live};
use crate::process::Worker;
use crate::support::wait_until;

/// Jobs of one patient, in the order in which they were asked for.
struct Batch {
    family: &'static str,
    /// What is there before.
    seed: Vec<Value>,
    /// Kinds and the payloads' own fields.
    jobs: Vec<(&'static str, Value)>,
    /// The job in which the worker is killed, from 0.
    killed_in: usize,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the test in this file"]
async fn worker() {
    let app = App::from_settings(&|name| std::env::var(name).ok()).unwrap();
    let url = std::env::var("DATABASE_URL").expect("only the other test starts this one");
    drain(&Database::new(&url, 2).unwrap(), &Arc::new(app), 1).await;
}

#[tokio::test]
async fn e9_of_a_batch_whose_worker_is_killed_the_rest_comes_again_and_what_had_ended_stays() {
    let batches = batches();
    let mut kinds: BTreeSet<&str> = BTreeSet::from(["service_request_close_job"]);
    for batch in &batches {
        kinds.extend(batch.jobs.iter().map(|(kind, _)| kind));
        let family = batch.family;
        let whole = submitted(batch).await;
        whole.drain().await;
        let whole = whole.effects().await;
        assert_eq!(failures(&whole), Vec::<Value>::new(), "{family}");

        let world = submitted(batch).await;
        kill_in(&world, batch.killed_in).await;
        let ended = ended(&world).await;
        assert_eq!(ended.len(), batch.killed_in, "{family}: {ended:?}");
        expire_leases(&world.client).await;
        wait_until("the rest has come again", async || {
            world.drain().await;
            live(&world.client).await == 0
        })
        .await;

        assert_eq!(world.effects().await, whole, "{family}");
        for (id, job) in ended {
            let id = id.parse().unwrap();
            assert_eq!(world.job(id).await, job, "{family}: it had ended");
        }
        let runs = "SELECT jsonb_agg(attempts ORDER BY id) FROM tidegate.event_log";
        let runs: Vec<i64> = serde_json::from_value(world.value(runs).await).unwrap();
        // What stood right behind it may have been handed over already, and counts as begun.
        let (before, rest) = runs.split_at(batch.killed_in);
        assert!(before.iter().all(|runs| *runs == 1), "{family}: {runs:?}");
        let counted = rest[0] == 2 && rest.iter().all(|runs| *runs <= 2);
        assert!(counted, "{family}: {runs:?}");
    }
    assert!(
        KINDS.iter().all(|kind| kinds.contains(kind)),
        "every kind is in a batch, or follows from one"
    );
}

async fn submitted(batch: &Batch) -> World {
    let mut world = World::new().await;
    world.seed(&batch.seed).await;
    for (number, (kind, own)) in batch.jobs.iter().enumerate() {
        let own = with(own, &json!({"request_id": format!("request-{number}")}));
        assert!(
            world.submit(kind, &payload(&own)).await.created,
            "{kind} is a job of its own"
        );
    }
    world
}

/// Kills a worker that has written what a job changes, and has not committed it.
async fn kill_in(world: &World, job: usize) {
    let gate = world.connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(9)")
        .await
        .unwrap();
    let stop = format!(
        "CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(9); RETURN NULL; END $$;
         CREATE TRIGGER stop AFTER INSERT ON medical.audit FOR EACH ROW
             WHEN (NEW.request_id = 'request-{job}') EXECUTE FUNCTION public.stop()"
    );
    world.execute(&stop).await;
    let variables = world.services.variables();
    let worker = Worker::of("medical::crash::worker", &world.db, &variables);
    let stopped = "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
                    WHERE datname = current_database() AND locktype = 'advisory' AND classid = 0 AND objid = 9 AND NOT granted";
    wait_until("the worker is in the middle of the job", async || {
        world.value(stopped).await == 1
    })
    .await;
    worker.signal("-KILL");
    worker.output();
}

/// The jobs that have ended, by id.
async fn ended(world: &World) -> serde_json::Map<String, Value> {
    let ended = "SELECT coalesce(jsonb_object_agg(id, to_jsonb(j)), '{}') FROM tidegate.jobs j WHERE status <> 'pending'";
    serde_json::from_value(world.value(ended).await).unwrap()
}

fn failures(effects: &Value) -> Vec<Value> {
    let jobs = effects["jobs"].as_array().unwrap();
    let failed = jobs.iter().filter(|job| job[1] != "processed");
    failed.cloned().collect()
}

fn batches() -> Vec<Batch> {
    vec![
        approvals(),
        reports(),
        episodes(),
        packages(),
        procedures(),
        requests(),
    ]
}

fn approvals() -> Batch {
    let create = |number, what: Value| {
        let own = json!({"id": id(number), "granted_to": id(9), "access_level": "read"});
        ("approval_create_job", with(&own, &what))
    };
    let resend = |number| ("approval_resend_job", json!({"id": id(number)}));
    let resources = json!({"resources": [{"entity": "episode", "id": id(1)}]});
    Batch {
        family: "approvals",
        seed: vec![episode("active"), request("active")],
        jobs: vec![
            create(3, resources),
            resend(3),
            create(4, json!({"service_request": id(2)})),
            resend(4),
        ],
        killed_in: 2,
    }
}

fn reports() -> Batch {
    let job = |kind, content: &Value| (kind, json!({"signed_data": signed(content)}));
    let create = "diagnostic_report_package_create_job";
    let cancel = "diagnostic_report_package_cancel_job";
    let content = report_content();
    let error = json!("entered_in_error");
    let other = json!({"diagnostic_report": {"id": id(14), "recorded_by": USER}});
    Batch {
        family: "reports",
        seed: vec![],
        jobs: vec![
            job(create, &content),
            job(
                cancel,
                &changed(&content, "/observations/0/status", error.clone()),
            ),
            job(create, &other),
            job(cancel, &changed(&other, "/diagnostic_report/status", error)),
        ],
        killed_in: 1,
    }
}

fn episodes() -> Batch {
    let create = |number, referrals: Value| {
        let own = json!({"id": id(number), "name": "Episode", "type": "primary_care", "status": "active",
            "managing_organization": CLIENT, "period": {"start": "2027-03-01"}, "care_manager": USER,
            "referral_requests": referrals});
        ("episode_create_job", own)
    };
    let of = |number, params: Value| json!({"id": id(number), "request_params": params});
    let update = json!({"name": "Other name", "care_manager": id(8)});
    let close = json!({"period": {"end": "2027-04-01"}, "closing_summary": "Summary", "status_reason": "cured"});
    let cancel = json!({"explanatory_letter": "Letter", "status_reason": "mistake"});
    Batch {
        family: "episodes",
        seed: vec![request("active")],
        jobs: vec![
            create(1, json!([id(2)])),
            ("episode_update_job", of(1, update)),
            ("episode_close_job", of(1, close)),
            create(11, json!([])),
            ("episode_cancel_job", of(11, cancel)),
        ],
        killed_in: 2,
    }
}

fn packages() -> Batch {
    let visit = json!({"id": id(90), "period": {"start": "2027-03-01"}});
    let create = |content: &Value| {
        let own = json!({"visit": visit, "signed_data": signed(content)});
        ("package_create_job", own)
    };
    let cancel = |content: &Value| {
        (
            "package_cancel_job",
            json!({"signed_data": signed(content)}),
        )
    };
    let content = package_content();
    let error = json!("entered_in_error");
    let other = json!({"encounter": {"id": id(30), "episode": id(1)}, "devices": [{"id": id(31)}]});
    Batch {
        family: "packages",
        seed: vec![episode("active")],
        jobs: vec![
            create(&content),
            create(&other),
            cancel(&changed(&content, "/devices/0/status", error.clone())),
            cancel(&changed(&other, "/encounter/status", error)),
        ],
        killed_in: 1,
    }
}

fn procedures() -> Batch {
    let content = |number| json!({"id": id(number), "text": "Text"});
    let create = |number| {
        (
            "procedure_create_job",
            json!({"signed_data": signed(&content(number))}),
        )
    };
    let cancel = |number| {
        let content = with(&content(number), &json!({"status": "entered_in_error"}));
        let own = json!({"id": id(number), "signed_data": signed(&content)});
        ("procedure_cancel_job", own)
    };
    Batch {
        family: "procedures",
        seed: vec![],
        jobs: vec![create(20), create(21), cancel(20), cancel(21)],
        killed_in: 2,
    }
}

fn requests() -> Batch {
    let content = |number| json!({"id": id(number), "requester_employee": USER});
    let create = |number| {
        (
            "service_request_create_job",
            json!({"signed_data": signed(&content(number))}),
        )
    };
    let signing = |kind, number| {
        let own =
            json!({"service_request_id": id(number), "signed_data": signed(&content(number))});
        (kind, own)
    };
    let of = |kind, more: Value| (kind, with(&json!({"service_request_id": id(2)}), &more));
    let using =
        |employee| json!({"used_by_employee": id(employee), "used_by_legal_entity": CLIENT});
    let completing =
        json!({"completed_with": {"entity": "procedure", "id": id(20)}, "status_reason": "done"});
    let procedure = json!({"kind": "procedure", "id": id(20), "status": "completed", "content": {"id": id(20)}});
    Batch {
        family: "service requests",
        seed: vec![procedure],
        jobs: vec![
            create(2),
            of("service_request_resend_job", json!({})),
            of("service_request_use_job", using(8)),
            of("service_request_release_job", json!({})),
            of("service_request_use_job", using(9)),
            of("service_request_process_job", json!({})),
            of("service_request_complete_job", completing),
            create(40),
            signing("service_request_recall_job", 40),
            create(41),
            signing("service_request_cancel_job", 41),
        ],
        killed_in: 5,
    }
}
