//! Negative control: a server that acknowledges a commit before writing it loses acknowledged events, and
//! the checker must report this. Otherwise it would not notice a real loss either.

use super::{Figures, Size, World};
use crate::actor::{Torture, Work, new_event};
use crate::checker::check;
use crate::journal::{Record, Told};

const TRIES: u32 = 10;

pub async fn negative_control_async_commit_loses_acknowledged_events(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let settings = ["synchronous_commit=off", "wal_writer_delay=10s"];
    let options: Vec<String> = settings
        .iter()
        .flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()])
        .collect();
    let mut world = World::start("async_commit", seed, &options).await;
    // Only events must be lost, not their schema.
    let kept = world.client().await.batch_execute("CHECKPOINT").await;
    kept.unwrap();
    for round in 0..TRIES {
        publish(&world, round).await;
        world.crash_server();
        world.start_server();
        let history = world.history(false).await;
        let lost = check(&history)
            .iter()
            .filter(|violation| violation.invariant == "I1" && violation.text.ends_with("is lost"))
            .count();
        if lost > 0 {
            let figures = Figures::of(&history);
            world.forget();
            return Ok(figures);
        }
    }
    Err(format!(
        "no loss was reported in {TRIES} crashes of a server that commits asynchronously; seed {seed}"
    ))
}

async fn publish(world: &World, round: u32) {
    let client = world.client().await;
    for number in 0..50 {
        let key = format!("{round}-{number}");
        let told = Told {
            key: key.clone(),
            group: None,
        };
        let event = new_event(&told, &Torture::Plain(Work::new(&key)), 5);
        world.journal.write(Record::Trying {
            publish: key.clone(),
            events: vec![told],
        });
        let published = tidegate::publish(&client, &event).await.unwrap();
        world.journal.write(Record::Acknowledged {
            publish: key,
            ids: vec![published.id],
        });
    }
}
