//! The queue's statements on a real Postgres: publish, lease, finalize and what guards them.

use std::time::Duration;

use test_support::probe::{
    Probe, act, completion_of, disorder, end_of, expire_leases, lease_request, live, number, probe,
    probe_sessions, publish_acts, retry_of, start_leases, sweep,
};
use test_support::{self as support, column, contains, execute, lease_away, refused, rows};
use tidegate_core::connect::Client;
use tidegate_core::fault::Fault;
use tidegate_core::lease::{Lease, LeaseDecision, LeasedEvent};
use tidegate_core::migrate::{Migrate, StoredSettings};
use tidegate_core::progress::Status;
use tidegate_core::queue::Published;
use tidegate_core::queue::{
    self, Completed, ErrorEntry, Finalization, LeaseRequest, LeasedBatch, Retried,
};
use tidegate_core::{Error, Event as _, NewEvent};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

const MINUTE: Duration = Duration::from_mins(1);

async fn lease_with<'a>(
    client: &Client,
    change: impl FnOnce(&mut LeaseRequest<'a>),
) -> LeasedBatch {
    let mut request = lease_request();
    change(&mut request);
    queue::lease(client, &request).await.unwrap()
}

async fn lease(client: &Client, limit: u32) -> Vec<LeasedEvent> {
    lease_with(client, |request| request.limit = limit)
        .await
        .events
}

/// As [`lease`], with the worker that it was leased for.
async fn lease_of(client: &Client, worker: Uuid) -> Vec<LeasedEvent> {
    lease_with(client, |request| request.worker = worker)
        .await
        .events
}

fn ids(events: &[LeasedEvent]) -> Vec<i64> {
    events.iter().map(|event| event.lease.id).collect()
}

/// Ends an event as completed, and returns its lease if that still held it.
async fn end(client: &Client, lease: Lease) -> Vec<Lease> {
    let end = Finalization::new(lease, Status::Completed);
    support::finalize(client, &[end]).await.unwrap().ended
}

fn errors(codes: &[&'static str]) -> Vec<ErrorEntry> {
    codes
        .iter()
        .map(|code| ErrorEntry::new(None, &Fault::new(*code, "because"), 1))
        .collect()
}

#[tokio::test]
async fn b1_publish_joins_the_callers_transaction() {
    let (_db, mut client) = probe().await;
    let transaction = client.transaction().await.unwrap();
    queue::publish(&transaction, &act("undone")).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(live(&client).await, 0);
    let transaction = client.transaction().await.unwrap();
    queue::publish(&transaction, &act("done")).await.unwrap();
    let sql = "SELECT * FROM tidegate.publish('act', '{\"name\": \"by SQL\"}')";
    execute(&transaction, sql).await;
    transaction.commit().await.unwrap();
    assert_eq!(live(&client).await, 2);
}

/// What a publish answers, in Rust and in SQL, beside what the view of events tells of the event.
async fn c5_answers(client: &Client, event: &NewEvent) -> [(i64, String, i32); 4] {
    let one = queue::publish(client, event).await.unwrap();
    let many = queue::publish_batch(client, &[act("before"), event.clone()])
        .await
        .unwrap();
    let of_rust = |published: &Published| {
        let attempts = i32::try_from(published.attempts).unwrap();
        (published.id, published.status.to_owned(), attempts)
    };
    let of_sql = |row: Row| (row.get("id"), row.get("status"), row.get("attempts"));
    let sql = "SELECT * FROM tidegate.publish('act', '{}', dedup_key => 'same')";
    let by_sql = client.query_one(sql, &[]).await.unwrap();
    let sql = "SELECT id, status, attempts FROM tidegate.publish_many('[{\"kind\": \"act\", \"dedup_key\": \"same\"}]')";
    let many_by_sql = client.query_one(sql, &[]).await.unwrap();
    [
        of_rust(&one),
        of_rust(&many[1]),
        of_sql(by_sql),
        of_sql(many_by_sql),
    ]
}

#[tokio::test]
async fn c5_a_publish_answers_with_what_is_stored_of_the_event_or_of_the_one_that_it_repeats() {
    let (_db, client) = probe().await;
    let first = act("a").max_attempts(3);
    let new = queue::publish(&client, &first).await.unwrap();
    let found = (new.created, new.status, new.attempts);
    assert_eq!(found, (true, "PENDING", 0));
    let events = [act("b"), act("c").dedup("c"), act("d").dedup("c")];
    let batch = queue::publish_batch(&client, &events).await.unwrap();
    assert_eq!((batch[1].id, batch[2].created), (batch[2].id, false));
    for one in batch.iter().chain([&new]) {
        assert_eq!((one.status, one.attempts), ("PENDING", 0));
        let seen = stored(&client, one.id).await;
        assert_eq!(seen, (one.id, "PENDING".to_owned(), 0));
    }

    let repeated = act("a").dedup("same");
    let id = queue::publish(&client, &repeated).await.unwrap().id;
    for told in c5_answers(&client, &repeated).await {
        assert_eq!(told, (id, "PENDING".to_owned(), 0));
    }
    let tried = "UPDATE tidegate.event_queue SET attempts = 2 WHERE id = $1";
    client.execute(tried, &[&id]).await.unwrap();
    for told in c5_answers(&client, &repeated).await {
        assert_eq!(told, (id, "PENDING".to_owned(), 2));
    }
    lease_away(&client, &[id], 60.0).await;
    let now = stored(&client, id).await;
    assert_eq!(now, (id, "PROCESSING".to_owned(), 3));
    for told in c5_answers(&client, &repeated).await {
        assert_eq!(told, now);
    }
}

async fn stored(client: &Client, id: i64) -> (i64, String, i32) {
    let sql = "SELECT id, status, attempts FROM tidegate.events WHERE id = $1";
    let row = client.query_one(sql, &[&id]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Of each way in, and leased, delayed, in a group, tried before.
#[tokio::test]
async fn a3_a7_c1_every_unfinished_event_of_every_kind_is_in_the_one_table() {
    let (_db, client) = probe().await;
    execute(&client, "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('act', '{\"name\": \"x\"}'), ('note', NULL)").await;
    let worker = Uuid::new_v4();
    let leased = lease_of(&client, worker).await;
    let kinds: Vec<&str> = leased.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["act", "note"]);
    assert_eq!(
        leased[1].payload, None,
        "B2: a NULL payload is handed over as none"
    );
    let tried = queue::retry(&client, worker, &[again(leased[0].lease)], &[]).await;
    assert_eq!(tried.unwrap().left, [leased[0].lease.id]);
    let mut unfinished = ids(&leased);
    for kind in Probe::KINDS {
        let one = NewEvent::raw(*kind, None);
        let many = [one.clone().delay(MINUTE), one.clone().group("g")];
        unfinished.push(queue::publish(&client, &one).await.unwrap().id);
        let many = queue::publish_batch(&client, &many).await.unwrap();
        unfinished.extend(many.iter().map(|published| published.id));
    }
    for place in ["tidegate.event_queue", "tidegate.events"] {
        let all = format!("SELECT id FROM {place} ORDER BY id");
        assert_eq!(column::<i64>(&client, &all).await, unfinished, "{place}");
    }
}

/// Calls that are refused, and how the refusal begins.
const REFUSED: &str = r#"
    publish(NULL, NULL) => kind: must have 1 to 100 characters, got NULL
    publish('', NULL) => kind: must have 1 to 100 characters, got 0
    publish(repeat('k', 101), NULL) => kind: must have 1 to 100 characters, got 101
    publish('unheard', NULL) => kind: 'unheard' is not registered; registered are: act
    publish('act', NULL, group_key := '') => group_key: must have 1 to 200 characters
    publish('act', NULL, dedup_key := repeat('d', 201)) => dedup_key: must have 1 to 200 characters, got 201
    publish('act', NULL, correlation_id := '') => correlation_id: must have 1 to 200
    publish('act', NULL, available_at := 'infinity') => available_at: must be a finite time
    publish('act', NULL, expires_at := '-infinity') => expires_at: must be a finite time
    publish('act', NULL, max_attempts := 0) => max_attempts: must be 1 to 1000, got 0
    publish('act', to_jsonb(repeat('x', 2000000))) => payload: must have at most 1048576 bytes
    publish_many('{}') => events: must be a JSON array of objects, got object
    publish_many('[7]') => event 1: must be an object, got number
    publish_many('[{"kind": "act"}, {"kind": "act", "prio": 1}]') => event 2: prio is no field of an event, which must be one of kind, payload
    publish_many('[{"kind": "act"}, {"kind": ""}]') => event 2: kind: must have 1 to 100
"#;

#[tokio::test]
async fn b3_b25_bad_fields_are_refused_by_name_with_what_is_allowed() {
    let (_db, client) = probe().await;
    let long = "x".repeat(201);
    for (call, begins) in rows(REFUSED) {
        refused(&client, &format!("SELECT * FROM tidegate.{call}"), begins).await;
    }
    for event in [
        NewEvent::raw("unheard", None),
        act("x").group(long.clone()),
        act("x").max_attempts(0),
    ] {
        let error = queue::publish_batch(&client, &[act("fine"), event]).await;
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.starts_with("event 2: ")));
    }
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn d2_b25_the_table_itself_refuses_what_it_cannot_hold() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    for (row, says) in rows(
        r#"(kind) VALUES ('') => kind: must have 1 to 100 characters
           (kind) VALUES (NULL) => kind: must have 1 to 100 characters
           (kind, group_key) VALUES ('act', repeat('g', 201)) => group_key: must have
           (kind, payload) VALUES ('act', to_json(repeat('x', 1048576))) => payload: must have at most 1048576 bytes
           (kind, payload) VALUES ('act', '"canary \u0000"') => payload: must have no \u0000
           (kind, max_attempts) VALUES ('act', 0) => max_attempts: must be
           (kind, available_at) VALUES ('act', 'infinity') => available_at: must be
           (kind, attempts) VALUES ('act', -1) => attempts: must be 0 to 1000000, got -1
           (kind, errors) VALUES ('act', '{}') => errors: must be a JSON array, got object
           SET kind = '' => kind: must have 1 to 100 characters
           SET payload_bytes = 1048577 => payload_bytes: must be at most 1048576
           SET expires_at = '-infinity' => expires_at: must be a finite time"#,
    ) {
        let is_change = row.starts_with("SET");
        let verb = if is_change { "UPDATE" } else { "INSERT INTO" };
        let write = format!("{verb} tidegate.event_queue {row}");
        let error = client.execute(&write, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert!(error.message().starts_with(says), "{write}: {error:?}");
        // A constraint that fails tells the row to the server's log.
        assert_eq!(error.detail(), None, "{write}");
    }
}

#[tokio::test]
async fn an_event_of_a_group_is_planned_no_further_ahead_than_a_setting_says() {
    let (db, client) = probe().await;
    let planned = |how: &'static str, days: u32| {
        let client = &client;
        async move {
            let sql = match how {
                "one" => "SELECT tidegate.publish('act', NULL, group_key => 'victim', available_at => clock_timestamp() + $1 * interval '1 day')",
                "batch" => {
                    "SELECT tidegate.publish_many(jsonb_build_array(jsonb_build_object('kind', 'act', 'group_key', 'victim',
                                                  'available_at', clock_timestamp() + $1 * interval '1 day')))"
                }
                _ => "SELECT tidegate.publish('act', NULL, available_at => clock_timestamp() + $1 * interval '1 day')",
            };
            let done = client.execute(sql, &[&f64::from(days)]).await;
            done.map_err(|error| error.as_db_error().unwrap().message().to_owned())
        }
    };
    for how in ["one", "batch"] {
        assert!(planned(how, 29).await.is_ok());
        let refused = planned(how, 31).await.unwrap_err();
        let says = "available_at: must be within 30 days for an event of a group";
        assert!(refused.starts_with(says), "{refused}");
    }
    // Without a group it holds up nobody.
    assert!(planned("alone", 3000).await.is_ok());
    let database = db.database();
    let longer = Migrate::new(Probe::KINDS);
    let longer = longer.stored(StoredSettings {
        max_group_delay: Some(Duration::from_hours(24 * 60)),
        ..StoredSettings::default()
    });
    longer.run(&database).await.unwrap();
    assert!(planned("one", 59).await.is_ok());
    assert!(planned("one", 61).await.is_err());
}

#[tokio::test]
async fn a_transaction_that_publishes_to_thousands_of_groups_leaves_the_server_its_locks() {
    const GROUPS: i64 = 20_000;
    let (_db, [bulk, neighbour]) = probe_sessions().await;
    bulk.batch_execute("BEGIN").await.unwrap();
    let publish = "SELECT count(*) FROM generate_series(1, 20) AS batch, LATERAL (
                   SELECT jsonb_agg(jsonb_build_object('kind', 'act', 'group_key', format('%s of %s', n, batch))) AS events
                     FROM generate_series(1, 1000) AS n) AS b, LATERAL tidegate.publish_many(b.events)";
    assert_eq!(number(&bulk, publish).await, GROUPS);
    let locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()";
    assert!(number(&bulk, locks).await < 200);
    // Others publish meanwhile, to every group whose slot it has not.
    let free = "WITH others AS (SELECT format('neighbour %s', n) AS key FROM generate_series(1, 2000) AS n)
                SELECT array_agg(key) FROM others WHERE tidegate.mutex_slot(key) <> ALL (ARRAY(
                    SELECT tidegate.mutex_slot(group_key) FROM tidegate.event_queue WHERE group_key LIKE '% of %'))";
    let free: Vec<String> = bulk.query_one(free, &[]).await.unwrap().get(0);
    assert!(free.len() > 1000, "{}", free.len());
    let publish = "SELECT count(*) FROM unnest($1::text[]) AS key, LATERAL tidegate.publish('act', '{}', group_key => key)";
    let published: i64 = neighbour.query_one(publish, &[&free]).await.unwrap().get(0);
    assert_eq!(published, i64::try_from(free.len()).unwrap());
    bulk.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_group_whose_lock_is_missing_is_refused_and_the_hint_mends_it() {
    let (_db, client) = probe().await;
    execute(&client, "DELETE FROM tidegate.mutex").await;
    let alone = "SELECT count(*) FROM tidegate.publish('act', '{}')";
    let grouped = "SELECT count(*) FROM tidegate.publish('act', '{}', group_key => 'g')";
    let many =
        "SELECT count(*) FROM tidegate.publish_many('[{\"kind\": \"act\", \"group_key\": \"g\"}]')";
    assert_eq!(number(&client, alone).await, 1);
    for publish in [grouped, many] {
        let error = client.query_one(publish, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert!(error.message().contains("tidegate.mutex"), "{error:?}");
        client.batch_execute(error.hint().unwrap()).await.unwrap();
        assert_eq!(number(&client, publish).await, 1);
        execute(&client, "DELETE FROM tidegate.mutex").await;
    }
}

async fn a_year_of_partitions(client: &Client) {
    let a_year = "SELECT tidegate.make_log_partition((current_date + n)::date) FROM generate_series(0, 365) AS n";
    client.batch_execute(a_year).await.unwrap();
}

/// How many locks on the log a session has.
const LOCKS_ON_THE_LOG: &str =
    "SELECT count(*) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
                                 WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'event_log%'";

#[tokio::test]
async fn a_worker_that_asks_what_has_ended_under_its_leases_locks_few_partitions_of_a_year_of_them()
{
    let (_db, mut client) = probe().await;
    a_year_of_partitions(&client).await;
    let token = Uuid::new_v4();
    let ended = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at, lease_token)
                 SELECT 7000 + n, 'act', 'COMPLETED', 1, 5, '[]', clock_timestamp(), clock_timestamp(), clock_timestamp() + n * interval '1 day',
                        CASE WHEN n = 60 THEN gen_random_uuid() WHEN n <> 90 THEN $1 END
                   FROM unnest(ARRAY[0, 29, 30, 60, 90, 365, 500]) AS n";
    client.execute(ended, &[&token]).await.unwrap();
    let live = publish_acts(&client, 1).await[0];
    // One has ended under another lease, one by an operator's decision, one not at all, and one is unknown.
    let ids = [7000, 7029, 7030, 7060, 7090, 7365, 7500, live, 9999];
    let leases = ids.map(|id| Lease { id, token });
    let transaction = client.transaction().await.unwrap();
    let found = queue::finished_under(&transaction, &leases).await.unwrap();
    let locks = transaction.query_one(LOCKS_ON_THE_LOG, &[]).await;
    let locks: i64 = locks.unwrap().get(0);
    assert!(locks <= 2, "{locks}");
    let mut found: Vec<i64> = found.iter().map(|lease| lease.id).collect();
    found.sort_unstable();
    assert_eq!(found, [7000, 7029, 7030, 7365, 7500]);
}

#[tokio::test]
async fn who_reads_one_event_locks_few_partitions_of_a_year_of_them() {
    let (_db, mut client) = probe().await;
    a_year_of_partitions(&client).await;
    let ended = "INSERT INTO tidegate.event_log (id, kind, payload, status, attempts, max_attempts, errors, result, created_at, finished_at, expires_at, parent_id)
                 SELECT 7000 + n, 'act', '{\"a\": 1e131071}', 'COMPLETED', 1, 5, '[]', '{}', clock_timestamp(), clock_timestamp(),
                        clock_timestamp() + n * interval '1 day', nullif(7000 + n - 73, 6927) FROM generate_series(0, 365, 73) AS n";
    client.batch_execute(ended).await.unwrap();
    for id in [7000, 7073, 7365, 1] {
        let transaction = client.transaction().await.unwrap();
        let show = "SELECT payload::text FROM tidegate.logged($1)";
        let shown = transaction.query(show, &[&i64::from(id)]).await.unwrap();
        let job = "SELECT status FROM tidegate.job($1)";
        let job = transaction.query(job, &[&i64::from(id)]).await.unwrap();
        let locks: i64 = transaction
            .query_one(LOCKS_ON_THE_LOG, &[])
            .await
            .unwrap()
            .get(0);
        assert!(locks <= 2, "{locks}");
        let found = id != 1;
        let seen = (shown.len(), job.len());
        assert_eq!(seen, (usize::from(found), usize::from(found)), "{id}");
        if found {
            assert_eq!(shown[0].get::<_, &str>(0), r#"{"a": 1e131071}"#);
            assert_eq!(job[0].get::<_, &str>(0), "processed");
        }
    }
}

#[tokio::test]
async fn d2_a_status_that_there_is_not_is_refused_and_the_one_in_the_log_is_final() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    let held = lease(&client, 1).await[0].lease;
    let finalize = format!(
        "SELECT tidegate.finalize_leased('{}', ARRAY[{}::bigint], ARRAY['DONE'], ARRAY[true], '{{}}', '{{}}', '{{}}', false)",
        held.token, held.id
    );
    end(&client, held).await;
    for refused in [
        finalize.as_str(),
        "UPDATE tidegate.event_log SET status = 'FAILED'",
    ] {
        let error = client.execute(refused, &[]).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION), "{refused}");
    }
    let end = end_of(&client, held.id).await;
    assert!(end.starts_with(Status::Completed.as_str()), "{end}");
}

#[tokio::test]
async fn publish_many_answers_in_order_and_finds_duplicates_inside_and_outside_the_batch() {
    let (_db, client) = probe().await;
    let first = queue::publish(&client, &act("a").dedup("k1"))
        .await
        .unwrap();
    let rows = client
        .query(
            "SELECT id, created FROM tidegate.publish_many($1)",
            &[&serde_json::json!([
                {"kind": "act", "payload": {"name": "new"}, "group_key": "g"},
                {"kind": "act", "dedup_key": "k1"},
                {"kind": "act", "dedup_key": "k2"},
                {"kind": "act", "dedup_key": "k2"},
                {"kind": "note", "dedup_key": "k2"},
            ])],
        )
        .await
        .unwrap();
    let answer: Vec<(i64, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let created: Vec<bool> = answer.iter().map(|(_, created)| *created).collect();
    assert_eq!(
        created,
        [true, false, true, false, true],
        "a key counts within its kind"
    );
    assert_eq!(answer[1].0, first.id);
    assert_eq!(answer[2].0, answer[3].0);
    assert!(answer[0].0 < answer[2].0 && answer[2].0 < answer[4].0);
    assert!(
        client
            .query("SELECT * FROM tidegate.publish_many('[]')", &[])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn b25_a_batch_is_refused_whole_for_an_event_behind_a_duplicate() {
    let (_db, client) = probe().await;
    let taken = act("a").dedup("taken");
    queue::publish(&client, &taken).await.unwrap();
    let batch = serde_json::json!([
        {"kind": "act", "dedup_key": "new"},
        {"kind": "act", "dedup_key": "taken"},
        {"kind": "act", "dedup_key": "newer", "max_attempts": 0},
    ]);
    let publish = "SELECT id, created FROM tidegate.publish_many($1)";
    let refused = client.query(publish, &[&batch]).await.unwrap_err();
    let found = refused.as_db_error().unwrap().message();
    assert_eq!(found, "event 3: max_attempts: must be 1 to 1000, got 0");
    let live = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(number(&client, live).await, 1);
}

#[tokio::test]
async fn an_event_whose_fate_is_unknown_does_not_end() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    let of_a_later_schema = "SELECT replace(pg_get_functiondef('tidegate.read_leased'::regproc), 'ELSE 0 END', 'ELSE 7 END')";
    let function = client.query_one(of_a_later_schema, &[]).await.unwrap();
    client.batch_execute(function.get(0)).await.unwrap();
    let leased = queue::lease(&client, &lease_request()).await;
    assert!(matches!(leased, Err(Error::Unreadable(_))), "{leased:?}");
    assert_eq!(live(&client).await, 1);
}

#[tokio::test]
async fn c6_b26_leasing_takes_at_most_the_limit_lowest_id_first_and_nothing_from_an_empty_queue() {
    let (_db, client) = probe().await;
    assert!(lease(&client, 10).await.is_empty());
    let published = publish_acts(&client, 5).await;
    assert_eq!(ids(&lease(&client, 2).await), published[..2]);
    assert_eq!(ids(&lease(&client, 10).await), published[2..]);
    assert!(lease(&client, 10).await.is_empty());
}

#[tokio::test]
async fn c6_a_delayed_event_is_leased_when_its_time_has_come_and_it_was_promoted() {
    let (_db, client) = probe().await;
    let id = queue::publish(&client, &act("later").delay(MINUTE))
        .await
        .unwrap()
        .id;
    assert_eq!(queue::promote(&client, 10).await.unwrap(), (0, None));
    // Time passes: nobody writes to the row, so `delayed` is what it was.
    execute(&client, "BEGIN; SET LOCAL session_replication_role = replica;
             UPDATE tidegate.event_queue SET available_at = available_at - interval '61 seconds'; COMMIT").await;
    assert!(lease(&client, 10).await.is_empty(), "due is not yet ready");
    assert_eq!(queue::promote(&client, 10).await.unwrap(), (1, Some(id)));
    assert_eq!(ids(&lease(&client, 10).await), [id]);
}

#[tokio::test]
async fn c7_d4_d6_a11_taking_an_event_sets_status_times_and_attempts_and_returns_the_new_count() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    let worker = Uuid::new_v4();
    let leased = lease_of(&client, worker).await;
    let found = (leased[0].attempts, leased[0].max_attempts, leased[0].fate);
    assert_eq!(found, (1, 5, LeaseDecision::Run));
    let row = client
        .query_one(
            "SELECT status, attempts, processing_started_at = updated_at, updated_at > created_at,
                    lease_expires_at - updated_at = interval '1 minute'
               FROM tidegate.events",
            &[],
        )
        .await
        .unwrap();
    let seen = (row.get::<_, &str>(0), row.get::<_, i32>(1));
    assert_eq!(seen, ("PROCESSING", 1));
    assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3) && row.get::<_, bool>(4));
    let token = leased[0].lease.token;
    let renewed = queue::renew(&client, worker, &[token], MINUTE).await;
    assert_eq!(renewed.unwrap(), [(token, 0)]);
    let touched = "SELECT (updated_at > processing_started_at)::int::bigint FROM tidegate.events";
    assert_eq!(
        number(&client, touched).await,
        1,
        "D4: later touches move updated_at only"
    );
}

#[tokio::test]
async fn c2_d6_a_row_that_another_transaction_has_locked_is_skipped_without_waiting() {
    let (_db, [mut holder, client]) = probe_sessions().await;
    let published = publish_acts(&client, 3).await;
    let transaction = holder.transaction().await.unwrap();
    transaction
        .execute(
            "SELECT FROM tidegate.event_queue WHERE id = $1 FOR UPDATE",
            &[&published[0]],
        )
        .await
        .unwrap();
    let leased = tokio::time::timeout(test_support::PATIENCE, lease(&client, 10))
        .await
        .unwrap();
    assert_eq!(ids(&leased), published[1..]);
    transaction.rollback().await.unwrap();
    assert_eq!(ids(&lease(&client, 10).await), published[..1]);
}

/// Moves the end of all leases this far ahead of the database's clock, or behind it.
async fn let_leases_end_in(client: &Client, seconds: i32) {
    let sql = format!(
        "UPDATE tidegate.lease AS l SET taken_at = l.taken_at - age.by, renewed_at = l.renewed_at - age.by, expires_at = l.expires_at - age.by
           FROM (SELECT min(expires_at) - clock_timestamp() - interval '{seconds} seconds' AS by FROM tidegate.lease) AS age"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// Sweeps one second before the end of all leases. Returns how many it has broken; `None` if the machine was
/// too slow for the question.
async fn broken_a_second_early(client: &Client) -> Option<u64> {
    let began = std::time::Instant::now();
    let_leases_end_in(client, 1).await;
    let broken = sweep(client).await;
    (began.elapsed() < Duration::from_secs(1)).then_some(broken)
}

/// A lease of one event with this time-out that was swept one second before its end.
async fn leased_and_swept_early(client: &Client, timeout: Duration) -> LeasedBatch {
    for _ in 0..100 {
        let leased = lease_with(client, |request| request.timeout = timeout).await;
        if let Some(broken) = broken_a_second_early(client).await {
            assert_eq!(broken, 0, "a second before its end");
            return leased;
        }
        let fresh =
            "DELETE FROM tidegate.lease; UPDATE tidegate.event_queue SET attempts = 0, lapses = 0";
        client.batch_execute(fresh).await.unwrap();
    }
    panic!("no sweep came within a second");
}

#[tokio::test]
async fn c4_c11_c12_d7_d9_b17_an_abandoned_event_is_taken_after_its_time_out_and_not_before() {
    for timeout in [MINUTE, 5 * MINUTE] {
        let (_db, client) = probe().await;
        let id = publish_acts(&client, 1).await[0];
        let first = leased_and_swept_early(&client, timeout).await;
        assert_eq!(ids(&first.events), [id]);
        let left = "SELECT extract(epoch FROM expires_at - taken_at)::bigint FROM tidegate.lease";
        let found = number(&client, left).await.unsigned_abs();
        assert_eq!(found, timeout.as_secs());
        assert!(lease(&client, 100).await.is_empty(), "it is still leased");
        let_leases_end_in(&client, 0).await;
        assert_eq!(sweep(&client).await, 1);
        let again = lease(&client, 100).await;
        assert_eq!(ids(&again), [id]);
        assert_eq!(again[0].attempts, 2);
        assert_ne!(again[0].lease.token, first.events[0].lease.token);
    }
}

#[tokio::test]
async fn a_stale_finalizer_changes_nothing() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    let gone = Uuid::new_v4();
    let stale = lease_of(&client, gone).await[0].lease;
    expire_leases(&client).await;
    assert_eq!(sweep(&client).await, 1);
    let current = lease(&client, 1).await[0].lease;
    assert_eq!(end(&client, stale).await, []);
    let completion = completion_of(stale);
    let found = queue::complete(&client, &[completion]).await.unwrap();
    assert_eq!(found, [Completed::default()]);
    let back = queue::hand_back(&client, gone, &[stale]).await;
    assert!(back.unwrap().left.is_empty());
    let retried = queue::retry(&client, gone, &[again(stale)], &[]).await;
    assert!(retried.unwrap().left.is_empty());
    let renewed = queue::renew(&client, gone, &[stale.token], MINUTE).await;
    assert!(renewed.unwrap().is_empty());
    let held = queue::in_hand(&client, &[stale.token]).await;
    assert!(held.unwrap().is_empty());
    // What has lapsed is started by the next write of its new worker, not by the lease.
    let untouched =
        "SELECT count(*) FROM tidegate.events WHERE status = 'PROCESSING' AND attempts = 1";
    assert_eq!(number(&client, untouched).await, 1);
    assert_eq!(end(&client, current).await, [current]);
}

#[tokio::test]
async fn i5_a_retry_under_a_lost_lease_leaves_what_its_worker_has_leased_anew() {
    let (_db, client) = probe().await;
    let id = publish_acts(&client, 1).await[0];
    let worker = Uuid::new_v4();
    let lost = lease_of(&client, worker).await[0].lease;
    let requeue = "UPDATE tidegate.events SET status = 'PENDING' WHERE id = $1";
    client.execute(requeue, &[&id]).await.unwrap();
    let anew = lease_of(&client, worker).await[0].lease;
    assert_ne!(lost.token, anew.token);
    let left = queue::retry(&client, worker, &[again(lost)], &[]).await;
    assert!(left.unwrap().left.is_empty());
    let left = queue::retry(&client, worker, &[again(anew)], &[]).await;
    assert_eq!(left.unwrap().left, [id]);
}

/// To be tried again at once, after a failed attempt.
fn again(lease: Lease) -> Retried {
    Retried {
        errors: errors(&["again"]),
        ..retry_of(lease)
    }
}

#[tokio::test]
async fn i5_of_completions_under_several_leases_only_those_still_held_are_stored() {
    let (_db, client) = probe().await;
    publish_acts(&client, 7).await;
    let mut held = lease(&client, 2).await;
    let lost = lease(&client, 1).await.remove(0);
    held.extend(lease(&client, 3).await);
    let lapse = "UPDATE tidegate.lease SET expires_at = clock_timestamp() WHERE token = $1";
    client.execute(lapse, &[&lost.lease.token]).await.unwrap();
    assert_eq!(sweep(&client).await, 1);
    let again = lease(&client, 1).await.remove(0);
    assert_eq!(again.lease.id, lost.lease.id);

    // In no order, and without one of the middle of a lease.
    let ends = [&held[4], &lost, &held[0], &held[2], &held[1]].map(completed);
    let mut ended = support::finalize(&client, &ends).await.unwrap().ended;
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 4].map(|index: usize| held[index].lease));
    assert_eq!(ids(&lease(&client, 100).await), [7]);

    // The lost lease of an event beside the one that holds it.
    let mut ended = Vec::new();
    for ends in [[&lost, &again], [&again, &lost]] {
        let flushed = support::finalize(&client, &ends.map(completed))
            .await
            .unwrap();
        ended.extend(flushed.ended);
    }
    assert_eq!(ended, [again.lease]);
    assert_eq!(live(&client).await, 2);
}

fn completed(event: &LeasedEvent) -> Finalization {
    Finalization::new(event.lease, Status::Completed)
}

#[tokio::test]
async fn f2_a_released_event_has_its_attempt_back() {
    let (_db, client) = probe().await;
    let id = publish_acts(&client, 1).await[0];
    let worker = Uuid::new_v4();
    let held = lease_of(&client, worker).await[0].lease;
    let back = queue::hand_back(&client, worker, &[held]).await;
    assert_eq!(back.unwrap().left, [id]);
    let fresh = "SELECT count(*) FROM tidegate.events
                  WHERE status = 'PENDING' AND attempts = 0 AND processing_started_at IS NULL AND lease_token IS NULL";
    assert_eq!(number(&client, fresh).await, 1);
    assert_eq!(lease(&client, 1).await[0].attempts, 1);
}

#[tokio::test]
async fn b26_an_exhausted_or_expired_event_is_taken_only_to_be_ended() {
    let (_db, client) = probe().await;
    let exhausted = queue::publish(&client, &act("last").max_attempts(1))
        .await
        .unwrap()
        .id;
    lease(&client, 1).await;
    start_leases(&client).await;
    expire_leases(&client).await;
    sweep(&client).await;
    let late = act("late").start_within(MINUTE);
    let expired = queue::publish(&client, &late).await.unwrap().id;
    let pass = "UPDATE tidegate.event_queue SET expires_at = expires_at - interval '61 seconds'";
    client.execute(pass, &[]).await.unwrap();
    // The first one's worker has gone away, so it comes alone.
    for expected in [
        (exhausted, LeaseDecision::Abandoned, 1),
        (expired, LeaseDecision::Expired, 0),
    ] {
        let events = lease(&client, 100).await;
        let event = events.first().unwrap();
        let found = (event.lease.id, event.fate, event.attempts);
        assert_eq!((events.len(), found), (1, expected));
    }
}

#[tokio::test]
async fn b10_a_group_is_leased_up_to_its_first_event_that_is_not_free() {
    let (_db, client) = probe().await;
    let events: Vec<NewEvent> = ["a", "b", "a", "b", "a"]
        .iter()
        .map(|group| act(group).group(*group))
        .collect();
    let published: Vec<i64> = queue::publish_batch(&client, &events)
        .await
        .unwrap()
        .iter()
        .map(|published| published.id)
        .collect();
    client
        .execute("UPDATE tidegate.event_queue SET available_at = available_at + interval '1 hour' WHERE id = $1", &[&published[2]])
        .await
        .unwrap();
    let found = ids(&lease(&client, 10).await);
    assert_eq!(found, [published[0], published[1], published[3]]);
    assert!(
        lease(&client, 10).await.is_empty(),
        "the rest of both groups waits for its head"
    );
}

#[tokio::test]
async fn a_drain_may_lease_on_behind_what_it_holds_itself_and_nobody_else_may() {
    let (_db, client) = probe().await;
    let events: Vec<NewEvent> = (0..4).map(|_| act("x").group("g")).collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let worker = Uuid::new_v4();
    let first = lease_with(&client, |request| {
        (request.worker, request.limit) = (worker, 2);
    })
    .await
    .events;
    assert_eq!(first.len(), 2);
    assert!(lease(&client, 2).await.is_empty());
    assert!(
        lease_of(&client, worker).await.is_empty(),
        "it does not say what it holds"
    );
    let own = [first[0].lease.token];
    let next = lease_with(&client, |request| {
        (request.worker, request.held) = (worker, &own);
    })
    .await
    .events;
    assert_eq!(ids(&next), [first[1].lease.id + 1, first[1].lease.id + 2]);
    assert!(disorder(&client).await.is_empty());
}

#[tokio::test]
async fn two_batches_over_the_same_groups_in_opposite_orders_do_not_deadlock() {
    let (_db, [one, two]) = probe_sessions().await;
    let forward: Vec<NewEvent> = (0..50).map(|n| act("x").group(format!("g{n}"))).collect();
    let backward: Vec<NewEvent> = forward.iter().rev().cloned().collect();
    for _ in 0..10 {
        let (first, second) = tokio::join!(
            queue::publish_batch(&one, &forward),
            queue::publish_batch(&two, &backward)
        );
        assert_eq!((first.unwrap().len(), second.unwrap().len()), (50, 50));
    }
}

#[tokio::test]
async fn b11_neither_an_early_time_nor_a_near_deadline_lets_an_event_go_first() {
    let (_db, client) = probe().await;
    publish_acts(&client, 3).await;
    let early =
        "SELECT tidegate.publish('act', '{\"name\": \"early\"}', available_at => '2000-01-01',
                        expires_at => clock_timestamp() + interval '1 minute')";
    client.execute(early, &[]).await.unwrap();
    let mut order = Vec::new();
    for _ in 0..4 {
        let next = lease(&client, 1).await;
        order.extend(next.into_iter().map(|event| event.lease.id));
    }
    assert!(order.len() == 4 && order.is_sorted(), "{order:?}");
}

#[tokio::test]
async fn b26_the_limit_holds_under_stale_statistics() {
    let (_db, client) = probe().await;
    publish_acts(&client, 1).await;
    execute(
        &client,
        "ANALYZE tidegate.event_queue; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )
    .await;
    publish_acts(&client, 40).await;
    assert_eq!(lease(&client, 2).await.len(), 2);
    let sql = "SELECT count(*) FROM tidegate.events WHERE status = 'PROCESSING'";
    assert_eq!(number(&client, sql).await, 2);
}

#[tokio::test]
async fn a_lease_of_any_number_of_events_writes_one_row_and_none_of_theirs() {
    let (_db, client) = probe().await;
    let events: Vec<NewEvent> = (0..200)
        .map(|n| act("x").group(format!("g{}", n % 7)))
        .collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let versions =
        "SELECT md5(string_agg(ctid || ' ' || xmin, ',' ORDER BY id)) FROM tidegate.event_queue";
    let text = async || -> String { client.query_one(versions, &[]).await.unwrap().get(0) };
    let before = text().await;
    assert_eq!(lease(&client, 100).await.len(), 100);
    assert_eq!(text().await, before);
    let sql = "SELECT count(*) FROM tidegate.lease";
    assert_eq!(number(&client, sql).await, 1);
}

#[tokio::test]
async fn the_database_itself_refuses_to_lease_an_event_twice() {
    let (_db, client) = probe().await;
    publish_acts(&client, 3).await;
    lease(&client, 3).await;
    let twice = "INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
                 SELECT gen_random_uuid(), gen_random_uuid(), '{[2,9]}', 0, now(), now(), now(), 0, as_of FROM tidegate.lease";
    let error = client.execute(twice, &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::EXCLUSION_VIOLATION));
}

#[tokio::test]
async fn under_a_snapshot_that_stays_nothing_is_leased() {
    let (_db, mut client) = probe().await;
    publish_acts(&client, 1).await;
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    let refused = queue::lease(&transaction, &lease_request())
        .await
        .unwrap_err();
    contains(
        &refused.to_string(),
        "transaction_isolation: must be read committed",
    );
}

#[tokio::test]
async fn the_audit_trail_takes_rows_and_gives_none_back() {
    let (_db, client) = probe().await;
    execute(&client, "INSERT INTO tidegate.audit (action, filter, reason) VALUES ('cancel', '{\"group_key\": \"g\"}', 'test')").await;
    for change in [
        "UPDATE tidegate.audit SET reason = ''",
        "UPDATE tidegate.audit SET filter = '{}'",
        "UPDATE tidegate.audit SET filter = filter || '{\"group_key\": \"another\"}'",
        "UPDATE tidegate.audit SET filter = tidegate.without_keys(filter), count = 7",
        "UPDATE tidegate.audit SET filter = NULL",
        "DELETE FROM tidegate.audit",
        "TRUNCATE tidegate.audit",
    ] {
        let error = client.execute(change, &[]).await.unwrap_err();
        contains(error.as_db_error().unwrap().message(), "append-only");
    }
}
