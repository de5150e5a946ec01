//! A session holds the vacuum horizon while events pass through the queue. Dead rows stay, so every
//! scan from the start of the queue steps over more and more of them.

use std::time::{Duration, Instant};

use tidegate::{DrainReport, Hooks, drain_with};
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::bare::bare_move;
use crate::events::App;
use crate::measure::{Findings, Outcome, rate};
use crate::setup::{Bench, Groups, LEAST_ROUNDS, Queue, connect, defaults};

/// The number of ended events over time.
type Course = Vec<(Duration, u32)>;

/// The time of the bare move grows with the square of the moved rows, so it is ended after this
/// long.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn run(bench: &Bench) -> Outcome<Findings> {
    let (queue, count) = (bench.queue("horizon").await?, bench.scaled(1_000_000));
    let mut found = Findings::default();
    for _ in bench.rounds(LEAST_ROUNDS) {
        queue.prepare(count, Groups::None).await?;
        let holder = hold_horizon(&queue).await?;
        let course = drained(&queue).await?;
        drop(holder);
        add(&mut found, "tidegate", &course, count)?;
        queue.prepare_bare(count).await?;
        let holder = hold_horizon(&queue).await?;
        let course = moved(&queue).await?;
        drop(holder);
        let moved = course.last().map_or(0, |(_, moved)| *moved);
        add(&mut found, "bare move", &course, moved)?;
        if moved < count {
            found.note(format!("the bare move was ended after {PATIENCE:?} with {moved} events moved; its quarters are of these"));
        }
    }
    found.at_least("tidegate, last quarter", 0.95, "tidegate, first quarter");
    found.compare("bare move, last quarter", "bare move, first quarter");
    found.compare("tidegate, whole", "bare move, whole");
    bench.drop(queue).await?;
    Ok(found)
}

/// Opens a session with a snapshot from before the first event ends, and keeps it.
async fn hold_horizon(queue: &Queue) -> Outcome<Client> {
    let client = connect(&queue.url).await?;
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    client.batch_execute(sql).await?;
    Ok(client)
}

async fn drained(queue: &Queue) -> Outcome<Course> {
    let (progress, mut told) = watch::channel(DrainReport::default());
    let hooks = Hooks {
        progress: Some(progress),
        ..Hooks::default()
    };
    let database = queue.database(8)?;
    let began = Instant::now();
    // In a task of its own, to record the course while it happens.
    let watching = tokio::spawn(async move {
        let mut course = Vec::new();
        while told.changed().await.is_ok() {
            let completed = told.borrow_and_update().completed;
            course.push((began.elapsed(), u32::try_from(completed).unwrap_or(0)));
        }
        course
    });
    drain_with(&database, App::new(), &defaults(), hooks).await?;
    Ok(watching.await?)
}

async fn moved(queue: &Queue) -> Outcome<Course> {
    let client = connect(&queue.url).await?;
    let began = Instant::now();
    let mut course = Vec::new();
    let go_on = |total| {
        course.push((began.elapsed(), total));
        began.elapsed() < PATIENCE
    };
    bare_move(&client, go_on).await?;
    Ok(course)
}

fn add(found: &mut Findings, name: &str, course: &Course, count: u32) -> Outcome<()> {
    let until = |part: u32| {
        let point = course.iter().find(|(_, ended)| *ended >= part);
        point.map(|(time, _)| *time).ok_or("not all events ended")
    };
    let (quarter, last) = (
        count / 4,
        until(count)?.saturating_sub(until(count / 4 * 3)?),
    );
    let mut add = |part: &str, rate| found.add(format!("{name}, {part}"), "events/s", rate);
    add("first quarter", rate(quarter, until(quarter)?));
    add("last quarter", rate(quarter, last));
    add("whole", rate(count, until(count)?));
    Ok(())
}
