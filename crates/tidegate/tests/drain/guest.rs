//! A program that polls in a transaction of its own, and commits when its work is done, holds what it has
//! taken and nothing else: drains go on with everything else as if it were not there.

use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, drain, live, number, options, pair, probe, probe_sessions, publish,
};
use test_support::{TestDb, execute};
use tidegate::connect::Client;
use tidegate_core::queue;
use uuid::Uuid;

/// What the others have to do.
struct Scene {
    name: &'static str,
    /// Run first, when eight events `act` and eight `pair` are there.
    before: &'static str,
    /// Run in the transaction that stays open.
    guest: &'static str,
    /// How many events the guest holds.
    held: i64,
}

const SCENES: &[Scene] = &[
    Scene {
        name: "retries of another kind are due",
        before: "UPDATE tidegate.event_queue SET delayed = true WHERE kind = 'pair'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 1,
    },
    Scene {
        name: "deadlines of another kind have passed",
        before: "UPDATE tidegate.event_queue SET available_at = now() + interval '1 hour' WHERE kind = 'pair';
                 UPDATE tidegate.event_queue SET expires_at = now() - interval '1 s' WHERE kind = 'pair'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 1,
    },
    Scene {
        name: "a drain has died with all events",
        before: "SELECT tidegate.lease(gen_random_uuid(), gen_random_uuid(), '{}', '{}', 60, ARRAY['act', 'pair'], 16, 1000000, 16,
                                       '{}', NULL, 0, NULL, NULL, NULL);
                 UPDATE tidegate.lease SET expires_at = now() - interval '1 s'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 0,
    },
    Scene {
        name: "a poller of another kind has died",
        before: "SELECT tidegate.poll(ARRAY['pair'], 8); UPDATE tidegate.lease SET expires_at = now() - interval '1 s'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 1,
    },
    Scene {
        name: "a service of another kind has not answered for a week",
        before: "INSERT INTO tidegate.service (service, state, since, retry_at, kinds)
                 VALUES ('carrier', 'open', now() - interval '8 days', now() + interval '1 hour', '{pair}');
                 UPDATE tidegate.event_queue SET available_at = now() - interval '8 days' WHERE kind = 'pair'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 1,
    },
    Scene {
        name: "one event comes alone, because its worker has died",
        before: "UPDATE tidegate.event_queue SET lapses = 1 WHERE id = (SELECT min(id) FROM tidegate.event_queue WHERE kind = 'act')",
        guest: "SELECT tidegate.poll(ARRAY['act'], 8)",
        held: 1,
    },
    Scene {
        name: "an event that nobody ends in time stands first",
        before: "UPDATE tidegate.event_queue SET expires_at = now() - interval '1 s' WHERE kind = 'act'",
        guest: "SELECT tidegate.poll(ARRAY['act'])",
        held: 8,
    },
];

async fn scene() -> (TestDb, Client, Client) {
    let (db, [client, guest]) = probe_sessions().await;
    publish(&client, (0..8).map(|n| act(&n.to_string()))).await;
    publish(&client, (0..8).map(|n| pair(&n.to_string()))).await;
    (db, client, guest)
}

#[tokio::test]
async fn a_poller_that_does_not_commit_holds_what_it_has_taken_and_nothing_else() {
    for scene_of in SCENES {
        let (db, client, guest) = scene().await;
        execute(&client, scene_of.before).await;
        execute(&guest, "BEGIN").await;
        execute(&guest, scene_of.guest).await;
        let app = ProbeApp::succeeding();
        let report = drain(&db, &app, &options()).await;
        let left = live(&client).await;
        assert_eq!(left, scene_of.held, "{}: {report:?}", scene_of.name);
        execute(&guest, "ROLLBACK").await;
        drain(&db, &app, &options()).await;
        assert_eq!(live(&client).await, 0, "{}: afterwards", scene_of.name);
    }
}

/// What a guest may call while an operator takes an event from a live worker.
const GUESTS: [&str; 3] = [
    "SELECT tidegate.poll(ARRAY['act'])",
    "SELECT tidegate.extend(token) FROM tidegate.lease WHERE worker = token",
    "SELECT tidegate.settle(token, jsonb_build_array(jsonb_build_object('id', lower(ids), 'verdict', 'release')))
       FROM tidegate.lease WHERE worker = token",
];

#[tokio::test]
async fn what_an_operator_takes_from_a_live_worker_is_not_held_by_a_poller() {
    for call in GUESTS {
        let (_db, client, guest) = scene().await;
        execute(&client, "SELECT tidegate.poll(ARRAY['act'])").await;
        let worker = Uuid::new_v4();
        let take = "SELECT tidegate.lease($1, $1, '{}', '{}', 60, ARRAY['pair'], 8, 1000000, 8, '{}', NULL, 0, NULL, NULL, NULL)";
        let take = take.replacen("$1", "gen_random_uuid()", 1);
        client.execute(&take, &[&worker]).await.unwrap();
        let requeue = "SELECT tidegate.requeue(ARRAY[(SELECT max(id) FROM tidegate.event_queue)], 'it hangs')";
        execute(&client, requeue).await;
        execute(&guest, "BEGIN").await;
        execute(&guest, call).await;
        let token = "SELECT token FROM tidegate.lease WHERE worker = $1";
        let token: Uuid = client.query_one(token, &[&worker]).await.unwrap().get(0);
        let held = queue::renew(&client, worker, &[token], Duration::from_mins(1)).await;
        assert_eq!(held.unwrap().len(), 1, "{call}");
        let cuts = "SELECT count(*) FROM tidegate.lease_cut";
        assert_eq!(
            number(&client, cuts).await,
            0,
            "{call}: taken from the lease"
        );
        execute(&guest, "ROLLBACK").await;
    }
}

#[tokio::test]
async fn what_waits_behind_a_group_at_work_is_not_held_by_a_poller_that_passed_it() {
    let (db, [client, guest]) = probe_sessions().await;
    publish(
        &client,
        (0..40).map(|n| act("waits").group(format!("g{}", n % 4))),
    )
    .await;
    publish(&client, [act("free")]).await;
    // The four heads are in hand of a worker.
    let heads = "SELECT tidegate.lease(gen_random_uuid(), gen_random_uuid(), '{}', '{}', 60, ARRAY['act'], 4, 1000000, 4,
                                       '{}', NULL, 0, NULL, NULL, NULL)";
    execute(&client, heads).await;
    execute(&guest, "BEGIN").await;
    for most in ["1", "10", "1000"] {
        let taken = format!("SELECT count(*) FROM tidegate.poll(ARRAY['act'], {most})");
        let expected = i64::from(most == "1");
        assert_eq!(number(&guest, &taken).await, expected, "{most}");
    }
    let ended =
        "UPDATE tidegate.lease SET expires_at = now() - interval '1 s' WHERE worker <> token";
    execute(&client, ended).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!(live(&client).await, 1, "the poller's own");
    execute(&guest, "ROLLBACK").await;
}

#[tokio::test]
async fn a_queue_that_is_only_polled_goes_on_with_retries_and_what_the_dead_held() {
    let (_db, client) = probe().await;
    // What stands in front is paused, or waits behind an event of its group that is due in an hour.
    publish(&client, (0..3).map(|n| pair(&n.to_string()))).await;
    publish(&client, (0..3).map(|_| act("later").group("later"))).await;
    let mine = publish(
        &client,
        (0..6).map(|n| act("g").group(format!("g{}", n % 2))),
    )
    .await;
    publish(&client, [act("a"), act("b")]).await;
    let due = format!(
        "UPDATE tidegate.event_queue SET available_at = now() + interval '1 hour';
         UPDATE tidegate.event_queue SET available_at = now() - id * interval '1 s' WHERE id <> {0};
         UPDATE tidegate.event_queue SET available_at = now() - interval '1 hour' WHERE kind = 'pair';
         UPDATE tidegate.event_queue SET delayed = true WHERE id <> {0};
         UPDATE tidegate.event_kind SET paused = true WHERE kind = 'pair'",
        mine[0] - 3
    );
    execute(&client, &due).await;
    let one = "WITH taken AS (SELECT * FROM tidegate.poll(ARRAY['pair', 'act']))
               SELECT count(*) FROM taken, tidegate.finalize(taken.id, taken.token)";
    for n in 0..4 {
        // One dies at its event, and the next takes it over.
        assert_eq!(
            number(
                &client,
                "SELECT count(*) FROM tidegate.poll(ARRAY['pair', 'act'])"
            )
            .await,
            1
        );
        execute(
            &client,
            "UPDATE tidegate.lease SET expires_at = now() - interval '1 s' WHERE NOT ended",
        )
        .await;
        assert_eq!(number(&client, one).await, 1, "{n}");
    }
    for n in 4..8 {
        assert_eq!(number(&client, one).await, 1, "{n}");
    }
    assert_eq!(number(&client, one).await, 0);
    let attempts = "SELECT sum(attempts)::bigint FROM tidegate.event_log WHERE kind = 'act'";
    assert_eq!(number(&client, attempts).await, 8 + 4, "one for each death");
    let rows = "SELECT count(*) FROM tidegate.lease";
    assert!(number(&client, rows).await <= 1, "ended leases are removed");
}
