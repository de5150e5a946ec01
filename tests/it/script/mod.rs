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
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};

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
        max_shrink_iters: 2000,
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

#[test]
fn i1_i7_any_script_of_steps_leaves_the_tables_that_the_model_says() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(World::new());
    let mut runner = TestRunner::new(config());
    let outcome = runner.run(&vec(step(), 1..LONGEST), |script| {
        let played = runtime.block_on(play(&world, &script));
        played.map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, script)) => {
            let lines: Vec<String> = script.iter().map(|step| format!("    {step:?}")).collect();
            panic!("this script fails:\n{}\n{reason}", lines.join("\n"));
        }
        Err(TestError::Abort(reason)) => panic!("no scripts: {reason}"),
    }
}
