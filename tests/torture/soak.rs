//! The longest part of `make torture`: it runs one experiment after another, in rounds, until the time is up
//! or a promise is broken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::experiments::{self, Size};
use crate::figures::Figures;
use crate::{run as run_one, seed};

/// The duration, if the environment sets one.
pub fn asked_for() -> Option<Duration> {
    let text = std::env::var("TIDEGATE_TORTURE_DURATION").ok()?;
    let length = humantime::parse_duration(&text);
    Some(length.expect("TIDEGATE_TORTURE_DURATION: must be a time such as 10m or 8h"))
}

/// Runs until then, and finishes the current round.
pub fn run(length: Duration) -> ExitCode {
    let mut seeds = fastrand::Rng::with_seed(seed());
    let began = Instant::now();
    let mut all = Figures::default();
    println!("torture for {length:?}");
    // A round that has begun is finished. A round that would end far beyond the time is not begun.
    for experiment in experiments::ALL.iter().cycle() {
        let round = seeds.u64(0..1_000_000_000);
        println!(
            "{:>6.0?} {} with seed {round}",
            began.elapsed(),
            experiment.name
        );
        let ended = catch_unwind(AssertUnwindSafe(|| run_one(experiment, round, Size::Long)));
        let failure = match ended {
            Ok(Ok(figures)) => {
                println!("       {figures}");
                all.add(figures);
                None
            }
            Ok(Err(violations)) => Some(violations),
            Err(_) => Some(format!(
                "{} did not come to its end (seed {round}); evidence: target/torture",
                experiment.name
            )),
        };
        if let Some(failure) = failure {
            println!(
                "{failure}\nfaults: BROKEN after {:.0?}; {all}",
                began.elapsed()
            );
            return ExitCode::FAILURE;
        }
        if began.elapsed() >= length {
            println!(
                "faults: every promise was kept for {:.0?}; {all}",
                began.elapsed()
            );
            return ExitCode::SUCCESS;
        }
    }
    ExitCode::SUCCESS
}
