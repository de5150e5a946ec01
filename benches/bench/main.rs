//! `make bench`: runs every workload and its baselines in turn, in the same run, on a durable cluster
//! of its own.
//!
//! # Layout
//!
//! - [`setup`]: the environment (cluster, databases, filled queues)
//! - [`workloads`]: the measurements; [`bare`] and [`proxy`]: what they need
//! - [`measure`]: the definition of a measurement
//! - [`report`] and [`chart`]: the output
//!
//! A missed target is marked but does not fail the run. A wrong result, such as an event that was
//! logged twice, ends the bench.

mod bare;
mod chart;
mod events;
mod explain;
mod measure;
mod proxy;
mod report;
mod setup;
mod workloads;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Map, Value, json};

use self::measure::{Findings, Outcome};
use self::setup::{Bench, project_file};

/// Measure the queue against its baselines.
#[derive(Parser)]
struct Arguments {
    /// Names of the workloads to run; without any, all workloads run.
    workloads: Vec<String>,
    /// Use a tenth of the events and fewer rounds.
    #[arg(long)]
    quick: bool,
    /// List the workloads and exit.
    #[arg(long)]
    list: bool,
    /// Connection string of a server to measure, instead of a new one; the bench creates its own databases
    /// there.
    #[arg(long)]
    server: Option<String>,
    /// Ignored: cargo passes it to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The database's own message is a cause, not the text of the error.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

async fn run(arguments: Arguments) -> Outcome<()> {
    let known: Vec<&str> = workloads::ALL.iter().map(|known| known.name).collect();
    if arguments.list {
        for workload in workloads::ALL {
            println!("{:<13} {}", workload.name, workload.about);
        }
        return Ok(());
    }
    let wanted = &arguments.workloads;
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(format!("workloads: must be of {known}, got {unknown:?}").into());
    }
    let began = Instant::now();
    let bench = Bench::start(arguments.server, arguments.quick).await?;
    let head = bench.head().await?;
    report::head(&head);
    let mut found = Vec::new();
    for workload in workloads::ALL {
        if wanted.is_empty() || wanted.iter().any(|name| name == workload.name) {
            let (load, from) = (setup::load(), Instant::now());
            let findings = (workload.run)(&bench).await;
            let mut findings =
                findings.map_err(|error| format!("{}: {}", workload.name, with_causes(&*error)))?;
            if load > 2.5 {
                findings.note(format!("the machine was busy before it: load {load}"));
            }
            report::table(workload.name, workload.about, &findings, from.elapsed());
            found.push((workload.name, findings));
            // After each workload, so that an interrupted run keeps its results.
            keep(&head, &found)?;
        }
    }
    let elapsed = began.elapsed().as_secs();
    println!("{elapsed} s in all; a target that is MISSED does not fail the bench");
    println!("written: bench-results/bench.json, bench.csv and bench.svg");
    Ok(())
}

/// Writes the figures for programs, each value of each round, and the chart.
fn keep(head: &Value, found: &[(&str, Findings)]) -> Outcome<()> {
    let folder = project_file("bench-results");
    std::fs::create_dir_all(&folder)?;
    let workloads: Map<String, Value> = found
        .iter()
        .map(|(name, findings)| ((*name).to_owned(), findings.document()))
        .collect();
    let document = json!({"head": head, "workloads": workloads});
    let json = serde_json::to_string_pretty(&document)?;
    std::fs::write(folder.join("bench.json"), json)?;
    let lines = found
        .iter()
        .map(|(name, findings)| findings.lines(name))
        .collect::<String>();
    let csv = format!("workload,series,unit,round,value\n{lines}");
    std::fs::write(folder.join("bench.csv"), csv)?;
    std::fs::write(folder.join("bench.svg"), chart::draw(found))?;
    Ok(())
}
