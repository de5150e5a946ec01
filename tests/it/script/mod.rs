//! Random scripts of everything that producers, workers, operators and the cleanup can do, one step after the
//! other, on the real database and on a model of a few hundred lines. After each step both answered the same,
//! every row is the same, and the order of every group is kept. A script that fails is cut down to the
//! shortest one that still does, and printed; its seed goes to `regressions.txt`, to be tried first ever
//! after.
//!
//! More scripts than `make test` has time for: `PROPTEST_CASES=5000 cargo test --test it script::`.
//!
//! Every step can be done in every state, so a script is just a list, and cutting it down needs no help.

mod model;
mod step;
mod world;

use std::env;
use std::ffi::OsStr;

use proptest::collection::vec;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner,
};
use tidegate::migrate::Migrate;
use tidegate::{Database, Event};
use tokio::runtime::{Builder, Runtime};

use self::model::Model;
use self::step::{Step, step};
use self::world::World;
use crate::probe::{Probe, probe_database};
use crate::support::{self, Cluster, TestDb};

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
        let (found, disorder) = world.tables().await;
        if !disorder.is_empty() {
            return Err(place(format!("out of order: {disorder:?}")));
        }
        let expected = model.tables();
        if expected != found {
            let what = format!("the model has\n{expected:#?}\nand the database\n{found:#?}");
            return Err(place(what));
        }
    }
    Ok(())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Tries scripts on this world; the shortest that fails, and why.
fn shortest_failure(
    runner: &mut TestRunner,
    runtime: &Runtime,
    world: &World,
) -> Option<(Vec<Step>, String)> {
    let outcome = runner.run(&vec(step(), 1..LONGEST), |script| {
        let played = runtime.block_on(play(world, &script));
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
    let runtime = runtime();
    let world = runtime.block_on(async { World::new(probe_database().await, "").await });
    let failure = shortest_failure(&mut TestRunner::new(config()), &runtime, &world);
    if let Some((script, reason)) = failure {
        let lines: Vec<String> = script.iter().map(|step| format!("    {step:?}")).collect();
        panic!("this script fails:\n{}\n{reason}", lines.join("\n"));
    }
}

/// A function of the database with another piece in place of one.
fn patch(function: &str, piece: &str, other: &str) -> String {
    format!(
        "DO $do$
         DECLARE
             source constant text := pg_get_functiondef('tidegate.{function}'::regproc);
             changed constant text := replace(source, $a${piece}$a$, $b${other}$b$);
         BEGIN
             ASSERT source <> changed;
             EXECUTE changed;
         END $do$"
    )
}

/// What is wrong is shown by a script no longer than this; on the day of writing each was shown by ten steps
/// or fewer.
const SHORT: usize = LONGEST / 2;

/// A server that nobody else uses. What a walk knows is as old as the server's oldest transaction: beside
/// others, a script fails in one run and not in the next, and cannot be cut down.
struct Alone {
    cluster: Cluster,
}

impl Alone {
    async fn start() -> Self {
        // An automatic ANALYZE is a transaction too.
        let cluster = Cluster::start(&["--set", "autovacuum=off"].map(OsStr::new));
        let database = Database::new(&cluster.url("template1"), 1).unwrap();
        let migrate = Migrate::new(&database, Probe::KINDS);
        migrate.run().await.unwrap();
        Self { cluster }
    }

    async fn world(&self, name: &str, sql: &str) -> World {
        let admin = support::connect(&self.cluster.url("postgres")).await;
        let create = format!("CREATE DATABASE {name}");
        admin.batch_execute(&create).await.unwrap();
        World::new(TestDb::elsewhere(&self.cluster.url(name)), sql).await
    }
}

/// Changes of the database that scripts must notice.
fn sabotage() -> [(&'static str, String); 10] {
    [
        (
            "a lapse charges what had not started",
            patch("lapse", "e.id <= l.started_to AND", ""),
        ),
        (
            "a requeue does not bring a delayed event back among the ready",
            "DROP TRIGGER event_queue_delayed_update ON tidegate.event_queue".to_owned(),
        ),
        (
            "a second error takes the place of the first",
            "CREATE OR REPLACE FUNCTION tidegate.append_errors(errors jsonb, added jsonb, at timestamptz) RETURNS jsonb
                 LANGUAGE sql AS $$ SELECT coalesce(added, errors) $$"
                .to_owned(),
        ),
        (
            "a cancelled event's token goes to the log",
            "CREATE FUNCTION name() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN NEW.lease_token := coalesce(NEW.lease_token, gen_random_uuid()); RETURN NEW; END $$;
             CREATE TRIGGER name BEFORE INSERT ON tidegate.event_log FOR EACH ROW EXECUTE FUNCTION name()"
                .to_owned(),
        ),
        (
            "what stands behind stays when something goes back",
            patch(
                "hand_back",
                "b.id >= first.id AND b.id <@ own",
                "b.id = first.id AND b.id <@ own",
            ),
        ),
        (
            "a lease does not look for strays",
            patch("lease", "WHERE q.stray AND q.group_key IS NOT NULL", "WHERE false"),
        ),
        (
            "a lease does not mind that it has passed something",
            patch("lease", "p.keys, p.first,", "NULL::text[], p.first,"),
        ),
        (
            "what lapsed is leased with others",
            patch("lease", "        kept := 1;", "        NULL;"),
        ),
        (
            "what is in hand is given another time",
            patch("reschedule", "u.id <> ALL (held) AND", ""),
        ),
        (
            "what has had an attempt is replaced",
            patch(
                "replace_waiting",
                "AND q.attempts = 0 AND q.lapses = 0 AND q.progress IS NULL AND q.last_error IS NULL",
                "",
            ),
        ),
    ]
}

/// Checks that scripts notice each of these flaws, and are cut down to what shows it.
fn noticed(flaws: impl IntoIterator<Item = (&'static str, String)>) {
    let runtime = runtime();
    let server = runtime.block_on(Alone::start());
    let mut missed = Vec::new();
    for (number, (name, sql)) in flaws.into_iter().enumerate() {
        let world = runtime.block_on(server.world(&format!("sabotage_{number}"), &sql));
        let config = Config {
            failure_persistence: None,
            cases: 6000,
            max_shrink_iters: 500,
            ..Config::default()
        };
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &SEED);
        let mut runner = TestRunner::new_with_rng(config, random);
        match shortest_failure(&mut runner, &runtime, &world) {
            Some((script, _)) if script.len() <= SHORT => {}
            Some((script, reason)) => missed.push(format!("{name}: {script:#?}\n{reason}")),
            None => missed.push(format!("not noticed: {name}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

/// Of some seeds, one with which the rarest flaw shows early.
const SEED: [u8; 32] = [5; 32];

/// How many of the flaws one test has; the next one has the rest, beside it.
const HALF: usize = 7;

#[test]
fn scripts_notice_what_is_wrong_with_a_database_and_are_cut_down_to_what_shows_it() {
    noticed(sabotage().into_iter().take(HALF));
}

#[test]
fn scripts_notice_what_else_is_wrong_with_a_database() {
    noticed(sabotage().into_iter().skip(HALF));
}
