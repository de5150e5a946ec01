//! Random scripts of everything that producers, workers, operators and the cleanup can do, one step after
//! the other, on the real database and on a model of a few hundred lines. After each step both answered
//! the same, and every row is the same. A script that fails is cut down to the shortest one that still
//! does, and printed; its seed goes to `regressions.txt`, to be tried first ever after.
//!
//! More scripts than `make test` has time for: `PROPTEST_CASES=5000 cargo test --test it script::`.
//!
//! Every step can be done in every state, so a script is just a list, and cutting it down needs no help.

mod model;
mod step;
mod world;

use std::env;

use proptest::collection::vec;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner,
};

use self::model::Model;
use self::step::{Step, step};
use self::world::World;

/// As many scripts as take a few seconds.
const CASES: u32 = 48;

const LONGEST: usize = 40;

fn config() -> Config {
    let mut config = Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/it/script/regressions.txt"
        )))),
        ..Config::default()
    };
    if env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    config
}

/// Plays a script on both; tells where they differ.
async fn play(world: &World, script: &[Step]) -> Result<(), String> {
    let mut model = Model::default();
    world.reset().await;
    for (index, step) in script.iter().enumerate() {
        let place = |what: String| format!("step {} ({step:?}): {what}", index + 1);
        world.apply(&mut model, step).await.map_err(place)?;
        let (expected, found) = (model.tables(), world.tables().await);
        if expected != found {
            let what = format!("the model has\n{expected:#?}\nand the database\n{found:#?}");
            return Err(place(what));
        }
    }
    Ok(())
}

/// Tries scripts on a database that was changed by `sql`; the shortest that fails, and why.
fn shortest_failure(runner: &mut TestRunner, sql: &str) -> Option<(Vec<Step>, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(World::new(sql));
    let outcome = runner.run(&vec(step(), 1..LONGEST), |script| {
        let played = runtime.block_on(play(&world, &script));
        played.map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => None,
        Err(TestError::Fail(reason, script)) => Some((script, reason.to_string())),
        Err(TestError::Abort(reason)) => panic!("no scripts: {reason}"),
    }
}

#[test]
fn i1_i7_any_script_of_steps_leaves_the_tables_that_the_model_says() {
    let failure = shortest_failure(&mut TestRunner::new(config()), "");
    if let Some((script, reason)) = failure {
        let lines: Vec<String> = script.iter().map(|step| format!("    {step:?}")).collect();
        panic!("this script fails:\n{}\n{reason}", lines.join("\n"));
    }
}

/// Changes of the database that scripts must notice, and in how many steps it can be shown.
const SABOTAGE: [(&str, &str, usize); 6] = [
    (
        "a release keeps the attempt counted",
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN NEW.attempts := greatest(NEW.attempts, OLD.attempts); RETURN NEW; END $$;
         CREATE TRIGGER keep BEFORE UPDATE ON tidegate.event_queue FOR EACH ROW EXECUTE FUNCTION keep()",
        3,
    ),
    (
        "a requeue does not bring a delayed event back among the ready",
        "DROP TRIGGER event_queue_delayed_update ON tidegate.event_queue",
        3,
    ),
    (
        "a second error takes the place of the first",
        "CREATE OR REPLACE FUNCTION tidegate.append_errors(errors jsonb, added jsonb, at timestamptz) RETURNS jsonb
             LANGUAGE sql AS $$ SELECT coalesce(added, errors) $$",
        5,
    ),
    (
        "a cancelled event's token goes to the log",
        "CREATE FUNCTION name() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN NEW.lease_token := coalesce(NEW.lease_token, gen_random_uuid()); RETURN NEW; END $$;
         CREATE TRIGGER name BEFORE INSERT ON tidegate.event_log FOR EACH ROW EXECUTE FUNCTION name()",
        2,
    ),
    (
        "a lease does not look at what is behind the ids that its worker knows",
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('tidegate.lease_page'::regproc), 'q.id > clear_to', 'q.id > last_id'); END $$",
        3,
    ),
    (
        "a lease does not ask for the groups that its worker doubts",
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('tidegate.lease_page'::regproc),
             'OR group_key IN (SELECT a.group_key FROM unnest(asked)', 'OR false AND group_key IN (SELECT a.group_key FROM unnest(asked)'); END $$",
        8,
    ),
];

#[test]
fn scripts_notice_what_is_wrong_with_a_database_and_are_cut_down_to_what_shows_it() {
    for (name, sql, steps) in SABOTAGE {
        let config = Config {
            failure_persistence: None,
            cases: 200,
            ..Config::default()
        };
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, random);
        let failure = shortest_failure(&mut runner, sql);
        let (script, reason) = failure.unwrap_or_else(|| panic!("not noticed: {name}"));
        assert!(script.len() <= steps, "{name}: {script:#?}\n{reason}");
    }
}
