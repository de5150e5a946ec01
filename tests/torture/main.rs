//! The fault suite: real Postgres clusters and real worker processes that are killed, stopped, frozen and
//! given false answers, and a checker that decides whether a promise was broken.
//!
//! # Layout
//!
//! - `experiments`: one idea per file: what is broken, and how it is repaired
//! - `world`: a cluster that can crash, and the folder of evidence; `fleet`: the processes
//! - `proxy` and `served`, shared with the integration tests: a connection on which answers get lost, and
//!   what `scripts/postgres.py` serves
//! - `actor`: the processes, which are this program started again
//! - `watch`: constantly checks for states that must never exist
//! - `journal`: the records of the processes; `checker`: the verdict, and `leases` the part about leases;
//!   `controls`: the tests of the checker
//! - `figures`: the figures besides the verdict; `soak`: `make torture`
//!
//! Each experiment takes its seed from the clock, unless `TIDEGATE_TORTURE_SEED` sets one, and prints it. Two
//! runs with the same seed make the same choices, but their timing depends on the machine.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod actor;
mod checker;
mod controls;
mod experiments;
mod figures;
mod fleet;
mod journal;
mod leases;
mod soak;
mod watch;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::experiments::{Experiment, Size};
use crate::figures::Figures;

fn main() -> ExitCode {
    if actor::play() {
        return ExitCode::SUCCESS;
    }
    if let Some(length) = soak::asked_for() {
        return soak::run(length);
    }
    let arguments = Arguments::from_args();
    let controls = controls::ALL.iter().map(|control| {
        Trial::test(format!("checker::{}", control.name), move || {
            control.test();
            Ok(())
        })
    });
    let experiments = experiments::ALL.iter().map(|experiment| {
        Trial::test(experiment.name, move || {
            let seed = seed();
            eprintln!("{}: seed {seed}", experiment.name);
            let figures = run(experiment, seed, Size::Quick).map_err(Failed::from)?;
            eprintln!("{}: {figures}", experiment.name);
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, experiments.chain(controls).collect()).exit_code()
}

/// Returns the configured seed, or a new one.
fn seed() -> u64 {
    match std::env::var("TIDEGATE_TORTURE_SEED") {
        Ok(seed) if !seed.is_empty() => seed
            .parse()
            .expect("TIDEGATE_TORTURE_SEED: must be a number"),
        _ => fastrand::u64(0..1_000_000_000),
    }
}

/// Runs an experiment on this thread, because the processes end when the thread that started them ends.
fn run(experiment: &Experiment, seed: u64, size: Size) -> Result<Figures, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let limit = size.seconds(400, 1500);
    let ended =
        runtime.block_on(async { tokio::time::timeout(limit, (experiment.run)(seed, size)).await });
    ended.unwrap_or_else(|_| Err(format!("no end within {limit:?}; seed {seed}")))
}
