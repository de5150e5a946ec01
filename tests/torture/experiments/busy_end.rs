//! Part of row 35: an event has a follow-up to a group that a producer holds, so its end must wait. The next
//! event of its own group is quick. It does not end before it, whether it works in a transaction of its own
//! or not.

use std::time::Duration;

use tidegate::publish;

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker, new_event};
use crate::checker::starts;
use crate::journal::{Record, Told};

/// How many groups have such a pair of events.
const GROUPS: usize = 6;

pub async fn an_event_does_not_end_before_the_earlier_one_of_its_group_whose_end_waits(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("busy_end", seed, &[]).await;
    let further = end_pairs(&world).await;
    world.judge(further).await
}

async fn end_pairs(world: &World) -> Vec<Violation> {
    let held = "held".to_owned();
    let producer = world.client().await;
    producer.batch_execute("BEGIN").await.unwrap();
    let told = Told {
        key: "of the producer".to_owned(),
        group: Some(held.clone()),
    };
    let first = new_event(&told, &Torture::Plain(Work::new(&told.key)), 5);
    world.journal.write(Record::Trying {
        publish: "producer".to_owned(),
        events: vec![told],
    });
    let id = publish(&producer, &first).await.unwrap().id;
    let ahead = publish_pairs(world, &held).await;
    let mut fleet = Fleet::default();
    let patient = Worker {
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 4,
        budget_ms: 60_000,
        ..worker(world)
    };
    fleet.start_worker(world, patient);
    world
        .wait_for("the handlers of the first ones have ended", |journals| {
            let starts = starts(journals);
            let ended = |id: &i64| {
                let of_event = starts.get(id).into_iter().flatten();
                of_event.clone().any(|start| start.end.is_some())
            };
            ahead.iter().all(ended)
        })
        .await;
    // Long enough for several tries to write these ends.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut further = early_ends(world).await;
    producer.batch_execute("COMMIT").await.unwrap();
    world.journal.write(Record::Acknowledged {
        publish: "producer".to_owned(),
        ids: vec![id],
    });
    world.drain(&mut fleet).await;
    let overtaken = "SELECT count(*) FROM torture.ending AS ahead
                       JOIN tidegate.event_log AS a ON a.id = ahead.id
                       JOIN tidegate.event_log AS b ON b.group_key = a.group_key AND b.id > a.id
                       JOIN torture.ending AS behind ON behind.id = b.id
                      WHERE behind.position < ahead.position AND a.group_key LIKE 'own%'";
    let overtaken = world.number(overtaken).await;
    if overtaken > 0 {
        let text = format!("{overtaken} events ended before an earlier one of their group");
        further.push(Violation::new("I4", text));
    }
    further
}

async fn early_ends(world: &World) -> Vec<Violation> {
    let ended = "SELECT l.id, extract(epoch FROM l.finished_at - l.processing_started_at)::float8 FROM tidegate.event_log AS l";
    let ended = world.client().await.query(ended, &[]).await.unwrap();
    let early = ended.iter().map(|row| {
        let (id, after): (i64, f64) = (row.get(0), row.get(1));
        let text = format!(
            "event {id} ended {after:.3} s after its lease, while it or the one before it must wait"
        );
        Violation::new("I4", text)
    });
    early.collect()
}

/// Returns the ids of the first events of the groups.
async fn publish_pairs(world: &World, held: &str) -> Vec<i64> {
    let mut ahead = Vec::new();
    let mut all = Vec::new();
    for number in 0..GROUPS {
        let first = Work {
            follow_up: Some(held.to_owned()),
            silent: number % 4 < 2,
            ..Work::new(format!("{number} ahead"))
        };
        world.foretell(std::slice::from_ref(&first));
        let next = Work {
            silent: number % 3 == 0,
            ..Work::new(format!("{number} behind"))
        };
        let next = if number % 2 == 0 {
            Torture::Plain(next)
        } else {
            Torture::Kept(next)
        };
        let group = Some(format!("own {number}"));
        all.push((group.clone(), Torture::Plain(first)));
        all.push((group, next));
        ahead.push(all.len() - 2);
    }
    let ids = world.publish("pairs", all, 5).await;
    ahead.into_iter().map(|place| ids[place]).collect()
}
