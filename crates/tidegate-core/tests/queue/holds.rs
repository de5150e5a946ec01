//! Which rows a call holds while its caller's transaction is open. Callers commit when their work is done, so
//! every row in this list may be missing to drains for as long: it is part of the interface, like a result.

use test_support::execute;
use test_support::probe::{act, number, pair, probe_sessions, publish};
use tidegate_core::connect::Client;

/// In the scene, a drain has events 1 to 4 in hand (4 is the first of group `g`), of which an operator has
/// taken event 1; a poller has event 9. A drain and a poller have died with 10 and 11. 12 and 13 are due
/// retries, 5 to 8 and 14 are ready, 6 to 8 behind event 4.
const SCENE: &str = "
    CREATE FUNCTION pg_temp.leased(of text[], n bigint, behind bigint) RETURNS void LANGUAGE sql AS $$
        SELECT FROM tidegate.lease(gen_random_uuid(), gen_random_uuid(), '{}', '{}', 60, of, n, 1000000, 100, '{}', NULL, behind, NULL, NULL, NULL) $$;
    UPDATE tidegate.event_queue SET kind = 'note' WHERE id IN (10);
    UPDATE tidegate.event_queue SET available_at = now() + interval '1 hour' WHERE id IN (12, 13);
    SELECT pg_temp.leased('{act}', 4, 0);
    SELECT FROM tidegate.lease('00000000-0000-0000-0000-000000000009', '00000000-0000-0000-0000-000000000009', '{}', '{}', 60,
                               '{pair}', 1, 1000000, 1, '{}', NULL, 8, NULL, NULL, NULL);
    SELECT pg_temp.leased('{note}', 1, 9);
    UPDATE tidegate.lease SET expires_at = now() WHERE ids @> 10::bigint;
    SELECT FROM tidegate.lease('00000000-0000-0000-0000-000000000011', '00000000-0000-0000-0000-000000000011', '{}', '{}', 60,
                               '{pair}', 1, 1000000, 1, '{}', NULL, 10, NULL, NULL, NULL);
    UPDATE tidegate.lease SET expires_at = now() WHERE ids @> 11::bigint;
    UPDATE tidegate.event_queue SET available_at = now() WHERE id IN (12, 13);
    -- An assignment of the time would say otherwise.
    UPDATE tidegate.event_queue SET delayed = true WHERE id IN (12, 13);
    INSERT INTO tidegate.lease_cut (token, id) SELECT token, 1 FROM tidegate.lease WHERE ids @> 1::bigint;
    INSERT INTO tidegate.service (service, state, since, retry_at, kinds) VALUES ('carrier', 'open', now() - interval '8 days', now(), '{note}')";

const POLLER: &str = "'00000000-0000-0000-0000-000000000009'";

async fn scene() -> (test_support::TestDb, Client, Client) {
    let (db, [client, guest]) = probe_sessions().await;
    execute(
        &client,
        "SELECT setval('tidegate.event_queue_id_seq', 1, false)",
    )
    .await;
    let mut events = vec![act("1"), act("2"), act("3"), act("4").group("g"), act("5")];
    events.extend((6..=8).map(|_| act("behind").group("g")));
    events.extend([
        pair("9"),
        act("10"),
        pair("11"),
        act("12"),
        pair("13"),
        act("14"),
    ]);
    publish(&client, events).await;
    execute(&client, SCENE).await;
    (db, client, guest)
}

/// Returns the rows that another session has locked: for each table, their ids or how many.
async fn held(client: &Client) -> String {
    let tables = "SELECT c.relname::text FROM pg_class AS c
                   WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1";
    let tables = client.query(tables, &[]).await.unwrap();
    let mut held = Vec::new();
    for table in tables.iter().map(|row| row.get::<_, String>(0)) {
        let name = match table.as_str() {
            "event_queue" => "t.id::text",
            "lease" => "t.ids::text",
            "event_kind" => "t.kind",
            "service" => "t.service",
            _ => "'a row'",
        };
        let sql = format!(
            "WITH free AS MATERIALIZED (SELECT t.ctid FROM tidegate.{table} AS t FOR UPDATE SKIP LOCKED)
             SELECT coalesce(string_agg({name}, ' ' ORDER BY {name}), '') FROM tidegate.{table} AS t
              WHERE t.ctid NOT IN (SELECT ctid FROM free)"
        );
        let rows: String = client.query_one(&sql, &[]).await.unwrap().get(0);
        if !rows.is_empty() {
            held.push(format!("{table} {rows}"));
        }
    }
    held.join(", ")
}

/// Each call, and the rows that it holds.
const CALLS: [(&str, &str); 20] = [
    ("tidegate.publish('act', '{\"name\": \"\"}')", ""),
    (
        "tidegate.publish('act', '{\"name\": \"\"}', group_key => 'g')",
        "mutex a row",
    ),
    (
        "tidegate.publish_many('[{\"kind\": \"act\", \"payload\": {\"name\": \"\"}, \"group_key\": \"new\"}]')",
        "mutex a row",
    ),
    ("tidegate.receive('bus', 'message')", ""),
    ("tidegate.poll(ARRAY['act'])", "event_queue 12 5"),
    ("tidegate.poll(ARRAY['act'], 100)", "event_queue 12 14 5"),
    (
        "tidegate.poll(ARRAY['pair'])",
        "event_queue 11 13, lease {[11,12)}",
    ),
    ("tidegate.poll(ARRAY['note'])", ""),
    ("tidegate.extend(POLLER)", "lease {[9,10)}"),
    (
        "tidegate.finalize(9, POLLER)",
        "event_queue 9, lease {[9,10)}",
    ),
    ("tidegate.retry(9, POLLER)", "event_queue 9, lease {[9,10)}"),
    (
        "tidegate.settle(POLLER, '[{\"id\": 9, \"verdict\": \"release\"}]')",
        "lease {[9,10)}",
    ),
    (
        "tidegate.requeue(ARRAY[2], reason => 'it hangs')",
        "event_queue 2",
    ),
    (
        "tidegate.cancel(ARRAY[2, 5], reason => 'not wanted')",
        "event_queue 2 5",
    ),
    (
        "tidegate.unblock('g', 'cancel', reason => 'not wanted')",
        "event_queue 4, mutex a row",
    ),
    (
        "tidegate.pause('act', reason => 'a break')",
        "event_kind act",
    ),
    (
        "tidegate.pause_service('carrier', reason => 'a break')",
        "service carrier",
    ),
    ("tidegate.should_wake()", "wake a row"),
    ("tidegate.why(6)", ""),
    ("tidegate.job(6)", ""),
];

#[tokio::test]
async fn what_a_call_holds_until_its_caller_commits() {
    let mut found = Vec::new();
    let mut expected = Vec::new();
    for (call, holds) in CALLS {
        let (_db, client, guest) = scene().await;
        execute(&guest, "BEGIN").await;
        let sql = format!("SELECT count(*) FROM {}", call.replace("POLLER", POLLER));
        number(&guest, &sql).await;
        found.push((call, held(&client).await));
        expected.push((call, holds.to_owned()));
    }
    assert_eq!(found, expected, "{found:#?}");
}
