//! A batch of jobs about one patient whose worker is killed in the middle. Each kind is run more than once in
//! `again.rs`.
//!
//! The worker is this very test binary, started again for one ignored test.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::Database;
use tidegate_job::app::App;

use super::world::{CLIENT, USER, World, drain, id, part, payload, signed, with};
use crate::support::probe::{expire_leases, live};
use crate::support::wait_until;
use crate::support::worker::Worker;

/// Jobs of one patient, in the order in which they were asked for.
struct Batch {
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
    let batch = &requests();
    let whole = submitted(batch).await;
    whole.drain().await;
    let whole = whole.effects().await;
    assert_eq!(failures(&whole), Vec::<Value>::new());

    let world = submitted(batch).await;
    kill_in(&world, batch.killed_in).await;
    let ended = ended(&world).await;
    assert_eq!(ended.len(), batch.killed_in, "{ended:?}");
    expire_leases(&world.client).await;
    wait_until("the rest has come again", async || {
        world.drain().await;
        live(&world.client).await == 0
    })
    .await;

    assert_eq!(world.effects().await, whole);
    for (id, job) in ended {
        let id = id.parse().unwrap();
        assert_eq!(world.job(id).await, job, "it had ended");
    }
    let runs = "SELECT jsonb_agg(attempts ORDER BY id) FROM tidegate.event_log";
    let runs: Vec<i64> = serde_json::from_value(world.value(runs).await).unwrap();
    // What stood right behind it may have been handed over already, and counts as begun.
    let (before, rest) = runs.split_at(batch.killed_in);
    assert!(before.iter().all(|runs| *runs == 1), "{runs:?}");
    let counted = rest[0] == 2 && rest.iter().all(|runs| *runs <= 2);
    assert!(counted, "{runs:?}");
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

fn requests() -> Batch {
    let content = |number| part(&json!({"id": id(number), "requester_employee": USER}));
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
