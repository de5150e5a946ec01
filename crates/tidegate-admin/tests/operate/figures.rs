//! Figures of finished events and drains, and what keeps them exact.

use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, completion_of, drain, lease_request, number, options, probe, probe_sessions,
    publish_acts,
};
use test_support::{self as support, TestDb, column, counted, execute, statement};
use tidegate::connect::Client;
use tidegate::drain::StopReason;
use tidegate::{Database, Done, DrainOptions, HandlerError};
use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};
use tidegate_core::lease::Lease;
use tidegate_core::queue::{self, Completion};

/// Returns kinds and statuses for which the figures differ from the log, with attempts and latencies.
async fn miscounted(client: &Client) -> Vec<String> {
    let sql =
        "SELECT format('%s %s: %s in the log, %s in the figures', kind, status, l.sums, m.sums)
                 FROM (SELECT kind, status, format('%s %s', count(*), sum(attempts)) AS sums
                         FROM tidegate.event_log GROUP BY 1, 2) AS l
                 FULL JOIN (SELECT kind, status, format('%s %s', sum(events), sum(attempts)) AS sums
                              FROM tidegate.minute_stats GROUP BY 1, 2) AS m USING (kind, status)
                WHERE l.sums IS DISTINCT FROM m.sums";
    column(client, sql).await
}

/// An application that completes a third of the events, rejects a third and fails a third.
fn mixed() -> std::sync::Arc<ProbeApp> {
    ProbeApp::doing(|call| async move {
        match call.id % 3 {
            0 => Ok(Done::ok()),
            1 => Err(HandlerError::reject("no", "never")),
            _ => Err(HandlerError::retry("down", "later")),
        }
    })
}

async fn cleaned(database: &Database) {
    cleanup(
        database,
        &CleanupOptions::default(),
        CleanupHooks::default(),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn what_ends_is_counted_however_it_ends() {
    let (db, client) = probe().await;
    publish_acts(&client, 300).await;
    let report = drain(&db, &mixed(), &options()).await;
    assert_eq!((report.completed, report.failed), (100, 100), "{report:?}");
    let mut ids = Vec::new();
    for name in ["cancelled", "deleted", "late"] {
        let event = act(name).start_before(std::time::SystemTime::now() + Duration::from_hours(1));
        ids.push(queue::publish(&client, &event).await.unwrap().id);
    }
    let sql = "SELECT tidegate.cancel(ids => ARRAY[$1::bigint], reason => 'test')";
    client.query_one(sql, &[&ids[0]]).await.unwrap();
    let delete = "DELETE FROM tidegate.events WHERE id = $1";
    client.execute(delete, &[&ids[1]]).await.unwrap();
    let late = "UPDATE tidegate.event_queue SET expires_at = '2020-01-01'";
    client.execute(late, &[]).await.unwrap();
    cleaned(&db.database()).await;
    let ended = "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE kind = 'act'";
    assert_eq!(number(&client, ended).await, 303);
    assert_eq!(miscounted(&client).await, [""; 0]);
    let bounds = "SELECT count(*) FROM tidegate.minute_stats
                   WHERE within_ms IS NULL OR latency_ms > events * within_ms";
    assert_eq!(number(&client, bounds).await, 0);
}

#[tokio::test]
async fn who_keeps_the_figures_locked_keeps_nobody_waiting() {
    let (db, [client, mut other]) = probe_sessions().await;
    publish_acts(&client, 30).await;
    drain(&db, &mixed(), &options()).await;
    let held = other.transaction().await.unwrap();
    let all = "SELECT FROM tidegate.minute_stats FOR UPDATE";
    assert!(!held.query(all, &[]).await.unwrap().is_empty());
    // Who waits for one of these rows, waits for ever.
    let patient = "ALTER FUNCTION tidegate.complete SET lock_timeout = 0; ALTER FUNCTION tidegate.finalize_leased SET lock_timeout = 0";
    client.batch_execute(patient).await.unwrap();
    publish_acts(&client, 30).await;
    let report = drain(&db, &mixed(), &options()).await;
    assert_eq!(report.stop_reason, StopReason::QueueEmpty);
    cleaned(&db.database()).await;
    held.rollback().await.unwrap();
    assert_eq!(miscounted(&client).await, [""; 0]);
}

/// Adds figures for each minute of the last days to the table, under two kinds.
async fn of_days(client: &Client, days: i32) {
    let sql = "INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
               SELECT date_trunc('minute', clock_timestamp()) - make_interval(mins => n), kind, 'COMPLETED', 50, n, 2 * n, 3 * n
                 FROM generate_series(0, $1 * 1440) AS n, unnest('{act,note}'::text[]) AS kind";
    client.execute(sql, &[&days]).await.unwrap();
}

#[tokio::test]
async fn old_minutes_become_hours_and_days_and_no_sum_falls() {
    const SUMS: &str =
        "SELECT sum(events + attempts + latency_ms)::bigint FROM tidegate.minute_stats";
    const ROWS: &str = "SELECT count(*) FROM tidegate.minute_stats";
    let (db, client) = probe().await;
    of_days(&client, 5).await;
    let (sums, rows) = (number(&client, SUMS).await, number(&client, ROWS).await);
    cleaned(&db.database()).await;
    assert_eq!(number(&client, SUMS).await, sums);
    let folded = number(&client, ROWS).await;
    assert!(folded < rows / 20, "{folded} of {rows}");
    let minutes = "SELECT count(*) FROM tidegate.minute_stats
                    WHERE minute > clock_timestamp() - interval '2 hours'";
    assert!(number(&client, minutes).await >= 2 * 119);
    for _ in 0..2 {
        cleaned(&db.database()).await;
        let found = number(&client, ROWS).await;
        assert_eq!(found, folded, "there is nothing to do again");
    }
}

/// Returns the stop reason and completed count of the recorded drains.
async fn runs(db: &TestDb) -> Vec<(String, i64)> {
    let sql = "SELECT stop_reason, (report->>'completed')::bigint FROM tidegate.drain_run
                WHERE ended_at - started_at >= '0' ORDER BY ended_at";
    let rows = db.client().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn a_drain_leaves_its_report_for_a_week() {
    let (db, client) = probe().await;
    publish_acts(&client, 3).await;
    let app = ProbeApp::new(|_, _| Box::pin(async { Ok(Done::ok()) }));
    drain(&db, &app, &options()).await;
    assert_eq!(runs(&db).await, [("queue_empty".to_owned(), 3)]);
    let taken = "UPDATE tidegate.drain_slot SET until = 'infinity', worker = gen_random_uuid()";
    client.execute(taken, &[]).await.unwrap();
    publish_acts(&client, 1).await;
    let report = tidegate::drain(&db.database(), app, &DrainOptions::default()).await;
    assert_eq!(report.unwrap().stop_reason, StopReason::NoSlot);
    let found = runs(&db).await.len();
    assert_eq!(found, 1, "a drain without a slot has done nothing");
    cleaned(&db.database()).await;
    assert_eq!(runs(&db).await.len(), 1);
    let age = "UPDATE tidegate.drain_run SET ended_at = ended_at - interval '8 days', started_at = started_at - interval '8 days'";
    client.execute(age, &[]).await.unwrap();
    cleaned(&db.database()).await;
    assert_eq!(runs(&db).await.len(), 0);
}

/// Publishes this many events, each of a kind that a publisher has made up.
async fn of_made_up_kinds(client: &Client, events: i32) {
    let sql = "INSERT INTO tidegate.event_queue (kind, kind_known) SELECT 'made-up-' || n, true FROM generate_series(1, $1) AS n";
    client.execute(sql, &[&events]).await.unwrap();
}

#[tokio::test]
async fn kinds_that_a_publisher_makes_up_are_counted_under_one_name() {
    let (db, client) = probe().await;
    of_made_up_kinds(&client, 500).await;
    let live = "SELECT count(*) * 1000000 + sum(events)::bigint FROM tidegate.stats WHERE kind = '(unregistered)'";
    assert_eq!(number(&client, live).await, 1_000_500);
    publish_acts(&client, 30).await;
    let report = drain(&db, &mixed(), &options()).await;
    assert_eq!(report.failed, 510, "{report:?}");
    of_made_up_kinds(&client, 10).await;
    let cancel = "SELECT tidegate.cancel(ids => ARRAY(SELECT id FROM tidegate.event_queue WHERE kind LIKE 'made-up-%'), reason => 'test')";
    client.query_one(cancel, &[]).await.unwrap();
    for table in ["minute_stats", "daily_stats", "stats"] {
        let kinds = format!("SELECT count(*) FROM tidegate.{table} WHERE kind LIKE 'made-up-%'");
        assert_eq!(number(&client, &kinds).await, 0, "{table}");
    }
    let counted = "SELECT (SELECT sum(events) FROM tidegate.minute_stats WHERE kind = '(unregistered)')
                        + 1000 * (SELECT sum(events) FROM tidegate.daily_stats WHERE kind = '(unregistered)')
                        + 1000000 * (SELECT failed FROM tidegate.stats WHERE kind = '(unregistered)')";
    let counted = format!("SELECT ({counted})::bigint");
    assert_eq!(number(&client, &counted).await, 510_510_510);
    let stays = "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE kind = 'act'";
    assert_eq!(number(&client, stays).await, 30);
    // They stay when retention removes the events.
    let over = "UPDATE tidegate.event_log SET expires_at = clock_timestamp() - interval '2 days'";
    client.batch_execute(over).await.unwrap();
    cleaned(&db.database()).await;
    let sql = "SELECT count(*) FROM tidegate.event_log";
    assert_eq!(number(&client, sql).await, 0);
    let archived = "SELECT sum(events)::bigint FROM tidegate.daily_stats WHERE kind = '(unregistered)' AND status = 'FAILED'";
    assert_eq!(number(&client, archived).await, 510);
}

/// Ends this many events of a kind at once, each with a code of its own.
async fn of_made_up_codes(client: &Client, kind: &str, events: i32) {
    let sql = "SELECT tidegate.count_ended(array_agg($1::text), array_agg('FAILED'::text), array_agg(1), array_agg(now()), now(),
                                           array_agg(repeat('c' || n, 500)), array_agg(n::bigint)) FROM generate_series(1, $2::int) AS n";
    client.execute(sql, &[&kind, &events]).await.unwrap();
}

#[tokio::test]
async fn codes_that_a_handler_makes_up_have_at_most_fifty_rows_of_figures_an_hour() {
    const CODES: &str = "SELECT count(DISTINCT code) FROM tidegate.minute_stats WHERE kind = 'act'";
    const LENGTH: &str = "SELECT max(length(code))::bigint FROM tidegate.minute_stats";
    const EVENTS: &str = "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE kind = 'act'";
    let (db, client) = probe().await;
    for _ in 0..3 {
        of_made_up_codes(&client, "act", 1000).await;
    }
    // The first that came have their own rows, later ones share one.
    assert_eq!(number(&client, CODES).await, 51);
    assert_eq!(number(&client, EVENTS).await, 3000);
    assert_eq!(number(&client, LENGTH).await, 200);
    let other = "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE code = '(other)'";
    assert_eq!(number(&client, other).await, 2850);
    // Of a day that has had many codes, the most frequent stay.
    let day = "UPDATE tidegate.minute_stats SET minute = date_trunc('day', now(), 'UTC') - interval '3 days 7 hours';
               INSERT INTO tidegate.minute_stats (minute, kind, status, events, attempts, latency_ms, code, last_id)
               SELECT date_trunc('day', now(), 'UTC') - make_interval(days => 3, hours => n % 5 + 1), 'act', 'FAILED', 10, 10, 10, 'd' || n, n
                 FROM generate_series(1, 60) AS n;
               UPDATE tidegate.minute_stats SET events = 20, last_id = 77 WHERE code = 'd60'";
    client.batch_execute(day).await.unwrap();
    let events = number(&client, EVENTS).await;
    cleaned(&db.database()).await;
    assert_eq!(number(&client, CODES).await, 51);
    assert_eq!(number(&client, EVENTS).await, events);
    let kept = "SELECT last_id FROM tidegate.minute_stats WHERE code = 'd60'";
    assert_eq!(number(&client, kept).await, 77);
    // A publisher makes no codes, and a kind that nobody registered shares the rows of all of these.
    of_made_up_codes(&client, "made-up", 100).await;
    let unregistered =
        "SELECT count(DISTINCT code) FROM tidegate.minute_stats WHERE kind = '(unregistered)'";
    assert_eq!(number(&client, unregistered).await, 51);
}

#[tokio::test]
async fn what_a_transaction_completes_is_counted_as_what_a_drain_completes() {
    let (_db, client) = probe().await;
    execute(&client, "ALTER TABLE tidegate.event_queue DISABLE TRIGGER event_queue_check;
             INSERT INTO tidegate.event_queue (kind, payload_bytes, attempts, created_at)
             SELECT kind, 0, 2, clock_timestamp() - age
               FROM unnest(ARRAY['act', 'made-up-1', 'made-up-2']) AS kind,
                    unnest(ARRAY[interval '0', '3 seconds', '2 hours']) AS age, generate_series(1, 4)").await;
    let batch = queue::lease(&client, &lease_request()).await.unwrap();
    let (alone, together) = batch.events.split_at(18);
    for event in alone {
        let Lease { id, token } = event.lease;
        let complete = format!("SELECT tidegate.complete_held({id}, '{token}')");
        client.batch_execute(&complete).await.unwrap();
    }
    let completion = Completion {
        token: together[0].lease.token,
        done: together.iter().map(|event| event.lease.id).collect(),
        ..Completion::default()
    };
    queue::complete(&client, &[completion]).await.unwrap();
    let figures = "SELECT string_agg(concat_ws(' ', kind, within_ms, events, attempts, hours), ', ')
                     FROM (SELECT kind, within_ms, sum(events) AS events, sum(attempts) AS attempts,
                                  div(sum(latency_ms), 3600000) AS hours
                             FROM tidegate.minute_stats WHERE within_ms IS NULL GROUP BY 1, 2 ORDER BY 1, 2) AS s";
    let found: String = client.query_one(figures, &[]).await.unwrap().get(0);
    assert_eq!(found, "(unregistered) 8 24 16, act 4 12 8");
    let all =
        "SELECT sum(events)::bigint * 1000 + sum(attempts)::bigint FROM tidegate.minute_stats";
    assert_eq!(number(&client, all).await, 36_108);
    let rows = number(&client, "SELECT count(*) FROM tidegate.minute_stats").await;
    assert!(rows <= 12, "{rows} rows");
}

#[tokio::test]
async fn a_transaction_leaves_the_row_in_the_log_that_a_drain_leaves() {
    let (_db, client) = probe().await;
    execute(&client, "UPDATE tidegate.event_kind SET retention_completed = '3 days' WHERE kind = 'act';
             INSERT INTO tidegate.event_queue
                    (kind, payload, payload_bytes, group_key, dedup_key, correlation_id, attempts, max_attempts, created_at,
                     expires_at, errors, progress, parent_id, replay_of, traceparent)
             SELECT 'act', '{\"n\": 1.10}', 10, 'g', 'd' || n, 'c', 2, 9, now() - interval '1 hour', now() + interval '1 hour',
                    '[{\"code\": \"x\"}]', '{\"steps\": {\"s\": 1}}', 7, 8 + n, '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
               FROM generate_series(1, 2) AS n").await;
    let batch = queue::lease(&client, &lease_request()).await.unwrap();
    let [alone, together] = [0, 1].map(|n| batch.events[n].lease);
    let complete = format!(
        "SELECT tidegate.complete_held({}, '{}')",
        alone.id, alone.token
    );
    client.batch_execute(&complete).await.unwrap();
    let completion = completion_of(together);
    queue::complete(&client, &[completion]).await.unwrap();
    let rows = "SELECT count(*) * 10 + count(DISTINCT to_jsonb(l) - ARRAY['id', 'dedup_key', 'replay_of', 'finished_at', 'expires_at']
                       || jsonb_build_object('kept', l.expires_at - l.finished_at, 'keys', left(l.dedup_key, 1), 'of', l.replay_of - l.id))
                  FROM tidegate.event_log AS l";
    assert_eq!(number(&client, rows).await, 21);
    let kept =
        "SELECT count(*) FROM tidegate.event_log WHERE expires_at - finished_at = interval '3 days'
                    AND payload::text = '{\"n\": 1.10}' AND progress IS NOT NULL AND attempts = 3";
    assert_eq!(number(&client, kept).await, 2);
}

#[tokio::test]
async fn absurd_figures_end_no_event_and_stop_no_reader_and_no_cleanup() {
    let (db, client) = probe().await;
    let most = i64::MAX;
    let absurd = format!(
        "SELECT tidegate.add_figures('{{act,act,act,act,act}}', '{{COMPLETED,FAILED,COMPLETED,COMPLETED,made up}}', '{{8,-1,2147483647,NULL,1}}',
                                     '{{{most},-5,{most},{most},1}}', '{{{most},{most},{most},-1,1}}', '{{1e308,-1e308,NaN,Infinity,1}}')
           FROM generate_series(1, 20);
         SELECT tidegate.add_figures('{{NULL,act}}', '{{FAILED,NULL}}', '{{}}', '{{NULL}}', '{{NULL}}', '{{NULL}}'), tidegate.add_figures('{{act}}', NULL, NULL, NULL, NULL, NULL);
         SELECT tidegate.count_completed(kind, {}, at::timestamptz, clock_timestamp())
           FROM unnest('{{act,made up,(unregistered)}}'::text[], '{{-infinity,infinity,290000-01-01}}'::text[]) AS n(kind, at),
                generate_series(1, 3)",
        i32::MAX
    );
    client.batch_execute(&absurd).await.unwrap();
    // As they stood before there was a limit, and in a minute whose events are folded.
    let before = format!(
        "INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
         SELECT m, 'act', 'COMPLETED', b, {most}, {most}, {most}
           FROM (SELECT date_trunc('minute', clock_timestamp()) AS m
                  UNION ALL SELECT date_trunc('hour', clock_timestamp()) - interval '3 hours' + n * interval '1 minute'
                              FROM generate_series(10, 11) AS n) AS minutes, unnest(ARRAY[50, 250, 1000, NULL]) AS b"
    );
    client.batch_execute(&before).await.unwrap();
    publish_acts(&client, 300).await;
    let report = drain(&db, &mixed(), &options()).await;
    counted(
        &report,
        "completed 100, completed_with_errors 100, failed 100",
    );
    let gone = "SELECT count(*) FROM tidegate.event_log WHERE errors->-1->>'code' = 'unstorable'";
    assert_eq!(number(&client, gone).await, 0);
    cleaned(&db.database()).await;
    let folded = "SELECT count(*) FROM tidegate.minute_stats WHERE minute < clock_timestamp() - interval '2 hours'
                     AND (minute <> date_trunc('hour', minute) OR events NOT BETWEEN 0 AND 100000000000000000)";
    assert_eq!(number(&client, folded).await, 0);
    for statement in [
        statement("ended"),
        statement("course"),
        statement("prometheus_ended"),
    ] {
        let nothing: Option<&str> = None;
        let (length, step) = (86_400_f64, 60_f64);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&length, &step, &nothing];
        let values = &values[..statement.params.len()];
        assert!(
            !client
                .query(&support::usual(statement.text), values)
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn times_without_an_end_in_the_log_stop_no_reader() {
    let (_db, client) = probe().await;
    let forever = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
                   SELECT 1000 + n, 'act', 'COMPLETED', 1, 5, '[]', c, f, clock_timestamp() + interval '1 day'
                     FROM (VALUES (1, timestamptz '-infinity', timestamptz 'infinity'), (2, 'now', 'infinity'), (3, '-infinity', 'now'),
                                  (4, '4713-01-01 BC', 'now')) AS t(n, c, f)";
    client.batch_execute(forever).await.unwrap();
    let read =
        "SELECT count(*) FROM (SELECT * FROM tidegate.stats OFFSET 0) AS v WHERE v::text <> ''";
    assert!(number(&client, read).await > 0);
}

#[tokio::test]
async fn what_no_reader_could_count_with_is_written_nowhere() {
    let (_db, client) = support::opened().await;
    let lease = "INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
                 VALUES (gen_random_uuid(), gen_random_uuid(), '{[1,1]}', 0, 'now', 'now', 'now', 0, '0')";
    execute(&client, &format!("{lease}; INSERT INTO tidegate.service (service) VALUES ('s'); INSERT INTO tidegate.event_queue (kind) VALUES ('act')")).await;
    for absurd in [
        "lease SET started_to = 9223372036854775807",
        "lease SET taken_at = 'infinity'",
        "lease SET renewed_at = '-infinity'",
        "lease SET expires_at = '-infinity'",
        "service SET since = '-infinity'",
        "service SET answered_at = 'infinity'",
        "service SET failures = -1",
        "event_queue SET waits_since = 'infinity'",
        "event_queue SET attempts = 1000001",
        "event_queue SET lapses = 2147483647",
        "event_queue SET lapses = -1",
    ] {
        let refused = client
            .batch_execute(&format!("UPDATE tidegate.{absurd}"))
            .await
            .unwrap_err();
        let code = refused.code().unwrap().code();
        assert!(matches!(code, "23514" | "22023"), "{absurd}: {refused}");
    }
}
