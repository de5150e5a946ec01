//! A second queue in another schema of the same database: while the workers of the first one are killed and
//! frozen, its events are handled once, in order, and by its own drain alone.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate::connect::Schema;
use tidegate::migrate::Migrate;
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, Event, Handlers, NewEvent, drain,
    publish_batch,
};

use super::killed_workers::fleet;
use super::{Figures, Size, World, worker};

const GROUPS: u64 = 7;
const BATCH: u64 = 20;

#[derive(Serialize, Deserialize)]
pub struct Note {
    number: u64,
}

tidegate::events! {
    /// The events of the second queue.
    pub enum Neighbour {
        Note(Note) = "neighbours_note",
    }
}

/// Notes the numbers that it handles, by group.
#[derive(Default)]
struct Noting(Mutex<Vec<u64>>);

impl Dispatch for Noting {
    type Event = Neighbour;

    fn handlers<'a>(&'a self, event: &'a Neighbour, _: &'a Context) -> Handlers<'a> {
        let Neighbour::Note(note) = event;
        Handlers::one("note", async move {
            self.0.lock().unwrap().push(note.number);
            Ok(Done::ok())
        })
    }
}

pub async fn a_queue_beside_one_whose_workers_are_killed_notices_nothing(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("two_queues", seed, &[]).await;
    let schema = Schema::named("neighbour").unwrap();
    let second = Database::new(&world.url, 4).unwrap();
    let second = second.with_schema(schema).unwrap();
    let migrate = Migrate::new(Neighbour::KINDS);
    migrate
        .run(&second)
        .await
        .map_err(|error| error.to_string())?;
    let mut fleet = fleet(&mut world, 3);
    let until = Instant::now() + size.seconds(10, 60);
    let (beside, mut random) = (tokio::spawn(quiet_life(second, until)), world.random.fork());
    while Instant::now() < until {
        let pause = Duration::from_millis(random.u64(50..400));
        tokio::time::sleep(pause).await;
        let place = random.usize(0..fleet.workers.len());
        fleet.workers[place].kill(&world);
        fleet.workers.swap_remove(place);
        fleet.start_worker(&world, worker(&world));
    }
    let lived = beside.await.map_err(|error| error.to_string())?;
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    let figures = world.judge(Vec::new()).await?;
    lived.map(|()| figures)
}

/// Publishes and drains in the second queue until this time. Fails if an event is lost, doubled or out of
/// its order.
async fn quiet_life(queue: Database, until: Instant) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the second queue: {error}");
    let app = Arc::new(Noting::default());
    let options = DrainOptions {
        budget: Duration::from_secs(20),
        ..DrainOptions::default()
    };
    let mut published = 0;
    while Instant::now() < until {
        let client = queue.connect().await.map_err(|error| failed(&error))?;
        let events = (published..published + BATCH).map(|number| {
            let event = NewEvent::of(&Neighbour::Note(Note { number })).unwrap();
            event.group(format!("g{}", number % GROUPS))
        });
        let stored = publish_batch(&client, &events.collect::<Vec<_>>()).await;
        published += stored.map_err(|error| failed(&error))?.len() as u64;
        let report = drain(&queue, app.clone(), &options).await;
        let report = report.map_err(|error| failed(&error))?;
        if (report.completed, report.backlog) != (BATCH, Some(0)) {
            return Err(failed(&format!("{report:?}")));
        }
    }
    let handled = app.0.lock().unwrap().clone();
    let of = |group: u64| {
        let numbers = handled.iter().copied();
        numbers.filter(move |number| number % GROUPS == group)
    };
    let in_order = (0..GROUPS).all(|group| of(group).is_sorted());
    if handled.len() as u64 == published && in_order {
        return Ok(());
    }
    Err(failed(&format!(
        "of {published} events, {} were handled; in order: {in_order}",
        handled.len()
    )))
}
