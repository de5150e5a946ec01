//! Payloads whose shape has changed, and programs of different ages beside each other.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use test_support::TestDb;
use test_support::probe::{Act, ProbeApp, act, drain, number, probe, publish_acts};
use tidegate::{Context, Dispatch, Done, DrainOptions, DrainReport, Handlers, NewEvent};
use tidegate_core::queue;

/// The same payload after a change: the name in two parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renamed {
    first: String,
    last: String,
}

fn renamed(Act { name }: Act) -> Renamed {
    Renamed {
        first: String::new(),
        last: name,
    }
}

tidegate::events! {
    #[derive(Debug)]
    enum Newer {
        Act(Renamed) = "act" version 2 { 1 => renamed },
        Note(()) = "note",
        Pair(Act) = "pair",
    }
}

/// The newer program.
#[derive(Default)]
struct NewerApp {
    seen: Mutex<Vec<Renamed>>,
}

impl Dispatch for NewerApp {
    type Event = Newer;

    fn handlers<'a>(&'a self, event: &'a Newer, _ctx: &'a Context) -> Handlers<'a> {
        let done = async { Ok(Done::ok()) };
        match event {
            Newer::Act(act) => {
                self.seen.lock().unwrap().push(act.clone());
                Handlers::one("act", done)
            }
            Newer::Note(()) => Handlers::one("note", done),
            Newer::Pair(_) => Handlers::one("first", done),
        }
    }
}

async fn drained(db: &TestDb, app: &Arc<NewerApp>) -> DrainReport {
    let options = DrainOptions::default();
    tidegate::drain(&db.database(), app.clone(), &options)
        .await
        .unwrap()
}

fn of_version_2(last: &str) -> NewEvent {
    NewEvent::of(&Newer::Act(Renamed {
        first: "A".to_owned(),
        last: last.to_owned(),
    }))
    .unwrap()
    .max_attempts(1)
}

#[tokio::test]
async fn an_event_of_a_newer_version_waits_for_a_newer_program_and_its_neighbours_go_on() {
    let (db, client) = probe().await;
    let events: Vec<NewEvent> = (0..500).map(|n| of_version_2(&n.to_string())).collect();
    queue::publish_batch(&client, &events).await.unwrap();
    publish_acts(&client, 2000).await;
    let grouped = [of_version_2("head").group("g"), act("behind").group("g")];
    queue::publish_batch(&client, &grouped).await.unwrap();
    let older = ProbeApp::succeeding();
    for _ in 0..2 {
        let report = drain(&db, &older, &DrainOptions::default()).await;
        assert_eq!(report.failed, 0, "{report:?}");
        let waits = "SELECT count(*) FROM tidegate.event_queue
                      WHERE attempts = 0 AND jsonb_array_length(errors) = 1 AND errors->0->>'code' = 'newer_version'
                        AND available_at > clock_timestamp() + interval '30 seconds'";
        assert_eq!(number(&client, waits).await, 501);
        let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";
        client.execute(due, &[]).await.unwrap();
    }
    let completed =
        "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED' AND attempts = 1";
    assert_eq!(number(&client, completed).await, 2000);
    assert!(older.calls().iter().all(|call| call.name != "behind"));
    let newer = Arc::new(NewerApp::default());
    let report = drained(&db, &newer).await;
    assert_eq!(
        (report.completed, report.backlog),
        (502, Some(0)),
        "{report:?}"
    );
    let seen = newer.seen.lock().unwrap();
    let of_group: Vec<&Renamed> = seen
        .iter()
        .filter(|act| act.last == "head" || act.last == "behind")
        .collect();
    let found = of_group.iter().map(|act| &*act.last).collect::<Vec<_>>();
    assert_eq!(found, ["head", "behind"]);
    assert!(of_group[0].first == "A" && of_group[1].first.is_empty());
}

#[tokio::test]
async fn what_is_old_is_lifted_also_when_it_is_replayed() {
    let (db, client) = probe().await;
    let id = queue::publish(&client, &act("live")).await.unwrap().id;
    let ended = queue::publish(&client, &act("ended")).await.unwrap().id;
    let wait = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 hour' WHERE id = $1";
    client.execute(wait, &[&id]).await.unwrap();
    drain(&db, &ProbeApp::succeeding(), &DrainOptions::default()).await;
    let replay =
        "SELECT tidegate.replay(ARRAY[$1::bigint], reason => 'tried with the newer program')";
    client.execute(replay, &[&ended]).await.unwrap();
    let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
    client.execute(due, &[]).await.unwrap();
    let newer = Arc::new(NewerApp::default());
    let report = drained(&db, &newer).await;
    assert_eq!(
        (report.completed, report.backlog),
        (2, Some(0)),
        "{report:?}"
    );
    let seen = newer.seen.lock().unwrap();
    let lifted = ["live", "ended"].map(|last| Renamed {
        first: String::new(),
        last: last.to_owned(),
    });
    assert_eq!(*seen, lifted);
}

#[tokio::test]
async fn producers_of_every_language_name_the_version_in_the_payload() {
    let (db, client) = probe().await;
    // As jsonb keeps it: with its keys in an order of its own.
    let publish =
        r#"SELECT tidegate.publish('act', '{"last": "L", "tidegate_version": 2, "first": "F"}')"#;
    client.batch_execute(publish).await.unwrap();
    let newer = Arc::new(NewerApp::default());
    assert_eq!(drained(&db, &newer).await.completed, 1);
    let seen = newer.seen.lock().unwrap();
    assert_eq!((&*seen[0].first, &*seen[0].last), ("F", "L"));
}

#[tokio::test]
async fn an_event_that_nobody_can_read_holds_its_group_no_longer_than_a_planned_one_may() {
    let (db, client) = probe().await;
    let sealed = r#"INSERT INTO tidegate.event_queue (kind, payload, group_key) VALUES
        ('act', '{"tidegate_sealed":{"v":1,"key":"nobodys","wrapped":"","data":""}}', 'sealed')"#;
    client.batch_execute(sealed).await.unwrap();
    let events = [
        of_version_2("head").group("newer"),
        act("behind").group("newer"),
        act("behind").group("sealed"),
        of_version_2("alone"),
    ];
    queue::publish_batch(&client, &events).await.unwrap();
    let older = ProbeApp::succeeding();
    let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp()";
    // Its age alone says nothing: it may have been planned a month ahead.
    let old = "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '60 days'";
    let aged = |days: u32| {
        format!(
            "UPDATE tidegate.event_queue SET errors = jsonb_set(errors, '{{0,at}}', to_jsonb(clock_timestamp() - interval '{days} days'))
              WHERE errors <> '[]'"
        )
    };
    client.batch_execute(old).await.unwrap();
    for first_look in [String::new(), aged(29)] {
        client.batch_execute(&first_look).await.unwrap();
        client.batch_execute(due).await.unwrap();
        let report = drain(&db, &older, &DrainOptions::default()).await;
        assert_eq!((report.failed, report.completed), (0, 0), "{report:?}");
    }
    client.batch_execute(&aged(31)).await.unwrap();
    client.batch_execute(due).await.unwrap();
    let report = drain(&db, &older, &DrainOptions::default()).await;
    assert_eq!((report.failed, report.completed), (2, 2), "{report:?}");
    let ended = "SELECT count(*) FROM tidegate.event_log WHERE status = 'FAILED' AND attempts = 0 AND errors->-1->>'code' = 'held_too_long'
                    AND errors->0->>'code' IN ('newer_version', 'sealed')";
    assert_eq!(number(&client, ended).await, 2);
    let alone = "SELECT count(*) FROM tidegate.event_queue WHERE group_key IS NULL AND errors->-1->>'code' = 'newer_version'";
    let found = number(&client, alone).await;
    assert_eq!(found, 1, "what holds nobody back waits on");
}
