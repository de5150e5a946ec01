//! Queues in several databases: groups have their place, and one that is down or full keeps no other waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate::shards::Shards;
use tidegate::{Database, DrainOptions, queue};

use crate::probe::{ProbeApp, act, disorder, live, probe_database};

#[tokio::test]
async fn all_are_drained_and_one_that_is_down_keeps_no_other_waiting() {
    let databases = [
        probe_database().await,
        probe_database().await,
        probe_database().await,
    ];
    let down = Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
    let names = ["a", "b", "c"];
    let up = names
        .iter()
        .zip(&databases)
        .map(|(name, db)| (*name, db.database()));
    let shards = Shards::new(up.chain([("down", down)])).unwrap();
    let shards = shards.leaving("down").unwrap();
    let mut clients = BTreeMap::new();
    for (name, db) in names.iter().zip(&databases) {
        clients.insert(*name, db.client().await);
    }
    for n in 0..600 {
        let group = format!("group-{}", n % 60);
        let client = &clients[shards.of(&group).name()];
        queue::publish(client, &act(&group).group(&group))
            .await
            .unwrap();
    }
    let status = shards.status().await;
    let waiting = |name: &str| {
        let status = status.iter().find(|status| status.name == name).unwrap();
        status.backlog.as_ref().ok().map(|backlog| backlog.events)
    };
    let each: Vec<Option<u64>> = names.iter().map(|name| waiting(name)).collect();
    assert!(
        each.iter()
            .all(|events| events.is_some_and(|events| events > 60)),
        "{each:?}"
    );
    assert_eq!(waiting("down"), None);
    let app = ProbeApp::succeeding();
    let reports = shards.drain(&app, &DrainOptions::default()).await;
    assert_eq!(reports.len(), 4);
    let mut completed = 0;
    for report in &reports {
        match (&*report.name, report.drained.as_ref().unwrap()) {
            ("down", drained) => assert!(drained.is_err()),
            (_, drained) => completed += drained.as_ref().unwrap().completed,
        }
    }
    assert_eq!(completed, 600);
    for client in clients.values() {
        assert_eq!(live(client).await, 0);
        assert_eq!(disorder(client).await, [""; 0]);
    }
    // Each group was in one of them alone.
    let mut of_groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, client) in &clients {
        let sql = "SELECT DISTINCT group_key FROM tidegate.event_log";
        for row in client.query(sql, &[]).await.unwrap() {
            of_groups.entry(row.get(0)).or_default().insert(name);
        }
    }
    assert_eq!(of_groups.len(), 60);
    assert!(of_groups.values().all(|places| places.len() == 1));
}

#[tokio::test]
async fn the_one_with_the_oldest_event_comes_first_and_a_full_one_has_its_part_of_the_time() {
    let (full, old) = (probe_database().await, probe_database().await);
    let (busy, other) = (full.client().await, old.client().await);
    crate::probe::publish_acts(&busy, 500).await;
    crate::probe::publish_acts(&other, 1).await;
    let age = "UPDATE tidegate.event_queue SET created_at = created_at - interval '1 hour'";
    other.batch_execute(age).await.unwrap();
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            if call.name != "0" {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(tidegate::Done::ok())
        })
    });
    let shards = Shards::new([("full", full.database()), ("old", old.database())]).unwrap();
    let options = DrainOptions {
        budget: Duration::from_secs(6),
        ..DrainOptions::default()
    };
    let reports = shards.at_once(1).drain(&app, &options).await;
    let order: Vec<&str> = reports.iter().map(|report| &*report.name).collect();
    assert_eq!(order, ["old", "full"]);
    let of = |at: usize| reports[at].drained.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(of(0).completed, 1);
    assert!(of(1).completed > 0 && of(1).backlog > 0, "{:?}", of(1));
}
