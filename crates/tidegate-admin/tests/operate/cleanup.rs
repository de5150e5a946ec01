//! Retention and cleanup on a real Postgres: what is removed and what never is, at the very instant, under
//! locks, beside a running drain; and that the daily statistics outlive the rows.

use std::time::{Duration, SystemTime};

use test_support::probe::{
    ProbeApp, act, drain, end_of, live, number, options, probe, publish_acts,
};
use test_support::{self as support, TestDb, column, counted, lease_away, wait_until};
use tidegate::connect::Client;
use tidegate::{Done, HandlerError};
use tidegate_admin::retention::{
    CleanupHooks, CleanupOptions, CleanupReport, CleanupStop, cleanup,
};
use tidegate_core::queue;

const MICROSECOND: Duration = Duration::from_micros(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

async fn clean(db: &TestDb, change: impl FnOnce(&mut CleanupOptions)) -> CleanupReport {
    let mut options = CleanupOptions::default();
    change(&mut options);
    cleanup(&db.database(), &options, CleanupHooks::default())
        .await
        .unwrap()
}

/// Puts `count` finished `act` events into the log that expire then; they finished a day before.
async fn log_rows(client: &Client, count: i32, expires_at: SystemTime) {
    let sql = "INSERT INTO tidegate.event_log
                      (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
               SELECT nextval('tidegate.event_queue_id_seq'), 'act', (ARRAY['COMPLETED', 'FAILED'])[1 + n % 2], 1 + n % 3,
                      5, '[]', $2::timestamptz - interval '1 day 2 seconds', $2::timestamptz - interval '1 day', $2::timestamptz
                 FROM generate_series(1, $1) AS n";
    client.execute(sql, &[&count, &expires_at]).await.unwrap();
}

async fn clock(client: &Client) -> SystemTime {
    let row = client.query_one("SELECT clock_timestamp()", &[]).await;
    row.unwrap().get(0)
}

/// Makes the partition of the day that was this long ago, and fills it with `count` rows.
async fn expired_partition(client: &Client, age: Duration, count: i32) -> String {
    let then = clock(client).await - age;
    let day = "SELECT (($1::timestamptz AT TIME ZONE 'UTC')::date)::text, to_char($1::timestamptz AT TIME ZONE 'UTC', '\"event_log_\"YYYYMMDD')";
    let row = client.query_one(day, &[&then]).await.unwrap();
    let made = "SELECT m.outcome FROM tidegate.make_log_partition($1::text::date) AS m";
    let day: String = row.get(0);
    let made = client.query_one(made, &[&day]).await.unwrap();
    assert_eq!(made.get::<_, &str>(0), "made", "{day}");
    log_rows(client, count, then).await;
    let partition: String = row.get(1);
    let inside = format!("SELECT count(*) FROM tidegate.{partition}");
    assert_eq!(number(client, &inside).await, i64::from(count));
    partition
}

async fn exists(client: &Client, relation: &str) -> bool {
    let sql = format!("SELECT count(to_regclass('tidegate.{relation}'))");
    number(client, &sql).await == 1
}

async fn log_count(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.event_log").await
}

async fn execute(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap();
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    column(client, sql).await
}

// retention

#[tokio::test]
async fn b21_f4_finished_events_are_kept_as_long_as_their_kind_and_status_say() {
    let (db, client) = probe().await;
    let retention = "UPDATE tidegate.event_kind SET retention_completed = '0', retention_failed = '1 day' WHERE kind = 'act'";
    execute(&client, retention).await;
    let note = tidegate::NewEvent::raw("note".to_owned(), None);
    let events = [act("done"), act("rejected"), note];
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let ids: Vec<i64> = published.iter().map(|published| published.id).collect();
    let app = ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "rejected" => Err(HandlerError::reject("no", "no")),
            _ => Ok(Done::ok()),
        }
    });
    drain(&db, &app, &options()).await;
    let kept = "SELECT (expires_at - finished_at)::text FROM tidegate.event_log ORDER BY id";
    assert_eq!(texts(&client, kept).await, ["00:00:00", "1 day", "30 days"]);
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.rows_deleted, report.partitions_dropped), (1, 0));
    assert_eq!(end_of(&client, ids[0]).await, "");
    assert_ne!(end_of(&client, ids[1]).await, "");
    assert_ne!(end_of(&client, ids[2]).await, "");
}

#[tokio::test]
async fn b31_the_boundary_instant_is_expired_and_a_microsecond_later_is_not() {
    let (db, client) = probe().await;
    // The first lies in the default partition, the second in the one that contains the instant.
    for make in [false, true] {
        let now = clock(&client).await - 40 * DAY;
        if make {
            expired_partition(&client, 40 * DAY, 0).await;
        }
        for expires_at in [now - MICROSECOND, now, now + MICROSECOND] {
            log_rows(&client, 1, expires_at).await;
        }
        let report = clean(&db, |options| options.now = Some(now)).await;
        assert_eq!(report.rows_deleted, 2, "{report:?}");
        let kept = client.query_one("DELETE FROM tidegate.event_log RETURNING expires_at", &[]);
        let kept: SystemTime = kept.await.unwrap().get(0);
        assert_eq!(kept, now + MICROSECOND);
    }
}

#[tokio::test]
async fn b31_b15_the_cutoff_includes_its_own_instant() {
    let (db, client) = probe().await;
    let now = clock(&client).await - HOUR;
    for created_at in [now - DAY - MICROSECOND, now - DAY, now - DAY + MICROSECOND] {
        let dead = "INSERT INTO tidegate.event_queue (kind, attempts, max_attempts, created_at) VALUES ('act', 5, 5, $1)";
        client.execute(dead, &[&created_at]).await.unwrap();
    }
    let report = clean(&db, |options| {
        options.now = Some(now);
        options.older_than = DAY;
    })
    .await;
    assert_eq!((report.abandoned, report.expired), (2, 0));
    let kept = client.query_one("SELECT created_at FROM tidegate.event_queue", &[]);
    let kept: SystemTime = kept.await.unwrap().get(0);
    assert_eq!(kept, now - DAY + MICROSECOND);
}

#[tokio::test]
async fn with_the_clock_set_back_nothing_unexpired_goes_and_forward_it_cannot_be_set() {
    let (db, client) = probe().await;
    let now = clock(&client).await;
    let partition = expired_partition(&client, 3 * DAY, 10).await;
    log_rows(&client, 1, now - 2 * HOUR).await;
    log_rows(&client, 1, now + 2 * HOUR).await;
    let event =
        "INSERT INTO tidegate.event_queue (kind, expires_at) VALUES ('act', $1), ('act', $2)";
    client
        .execute(event, &[&(now - HOUR), &(now + HOUR)])
        .await
        .unwrap();
    let back = clean(&db, |options| options.now = Some(now - 5 * DAY)).await;
    counted(&back, "rows_deleted 0, rows_dropped 0, expired 0");
    assert!(exists(&client, &partition).await);
    let forward = clean(&db, |options| options.now = Some(now + 1000 * DAY)).await;
    counted(&forward, "rows_deleted 1, rows_dropped 10, expired 1");
    let far =
        "SELECT deleted FROM tidegate.delete_expired('event_log_default', now => '3000-01-01')";
    assert_eq!(number(&client, far).await, 0);
    let far =
        "SELECT cardinality(expired)::bigint FROM tidegate.sweep_events(0, now => '3000-01-01')";
    assert_eq!(number(&client, far).await, 0);
    assert_eq!((log_count(&client).await, live(&client).await), (2, 1));
}

// partitions

#[tokio::test]
async fn migrate_makes_the_partitions_of_a_week_for_each_retention_in_use() {
    let db = support::empty_database().await;
    let database = db.database();
    let migrate = tidegate::migrate::Migrate::new(&["a"]);
    migrate.run(&database).await.unwrap();
    let client = db.client().await;
    let sql =
        "SELECT count(*) FROM tidegate.log_partitions() WHERE upper_bound - lower_bound = '1 day'";
    assert_eq!(number(&client, sql).await, 16);
    let report = clean(&db, |_| ()).await;
    counted(&report, "partitions_made 0, skipped 0");
}

#[tokio::test]
async fn a_partition_is_made_of_no_day_on_which_nothing_can_expire() {
    let (_db, client) = support::opened().await;
    let made = "SELECT m.outcome FROM tidegate.make_log_partition($1::text::date) AS m";
    for days in [-3668, 3668] {
        let day = format!("SELECT ((now() AT TIME ZONE 'UTC')::date + {days})::text");
        let day: String = client.query_one(&day, &[]).await.unwrap().get(0);
        let outcome = client.query_one(made, &[&day]).await.unwrap();
        assert_eq!(outcome.get::<_, String>(0), "made", "{day}");
    }
    let partitions = "SELECT count(*) FROM tidegate.log_partitions()";
    let before = number(&client, partitions).await;
    for day in [
        Some("1999-12-31"),
        Some("9999-12-31"),
        Some("infinity"),
        Some("-infinity"),
        None,
    ] {
        let error = client.query_one(made, &[&day]).await.unwrap_err();
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with("day: must be "), "{message}");
    }
    assert_eq!(number(&client, partitions).await, before);
}

#[tokio::test]
async fn a_made_partition_is_like_the_log_itself() {
    let (db, client) = probe().await;
    let retention = "UPDATE tidegate.event_kind SET retention_failed = '45 days'";
    execute(&client, retention).await;
    let report = clean(&db, |_| ()).await;
    assert_eq!(report.partitions_made, 8, "{report:?}");
    let of = async |table: &str, sql: &str| texts(&client, &sql.replace("$1", table)).await;
    let made = "SELECT partition FROM tidegate.log_partitions() WHERE upper_bound IS NOT NULL ORDER BY lower_bound";
    for name in texts(&client, made).await {
        for (what, least, sql) in [
            (
                "column",
                20,
                "SELECT attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull FROM pg_attribute WHERE attrelid = 'tidegate.$1'::regclass AND attnum > 0 ORDER BY attname",
            ),
            (
                "index",
                6,
                "SELECT replace(pg_get_indexdef(i.indexrelid), '$1', 'log') || (SELECT ' of ' || h.inhparent::regclass FROM pg_inherits AS h WHERE h.inhrelid = i.indexrelid) FROM pg_index AS i WHERE i.indrelid = 'tidegate.$1'::regclass ORDER BY regexp_replace(pg_get_indexdef(i.indexrelid), '.* USING ', '')",
            ),
            (
                "constraint",
                0,
                "SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'tidegate.$1'::regclass AND contype <> 'n' ORDER BY 1",
            ),
            (
                "trigger",
                1,
                "SELECT replace(pg_get_triggerdef(oid), '$1', 'log') FROM pg_trigger WHERE tgrelid = 'tidegate.$1'::regclass ORDER BY 1",
            ),
        ] {
            let default = of("event_log_default", sql).await;
            assert!(default.len() >= least, "{what}: {default:?}");
            assert_eq!(of(&name, sql).await, default, "{what} of {name}");
        }
    }
}

#[tokio::test]
async fn b14_a_partition_whose_last_row_has_expired_is_dropped_whole() {
    let (db, client) = probe().await;
    let gone = expired_partition(&client, 2 * DAY, 100).await;
    let older = expired_partition(&client, 3 * DAY, 50).await;
    let report = clean(&db, |options| {
        options.actor = Some("night shift".to_owned());
    })
    .await;
    assert_eq!((report.partitions_dropped, report.rows_dropped), (2, 150));
    assert_eq!(report.rows_deleted, 0);
    assert_eq!(report.stop_reason, CleanupStop::Done);
    assert_eq!(report.dropped[0].partition, older);
    assert!(!exists(&client, &gone).await && !exists(&client, &older).await);
    let audit = "SELECT format('%s %s %s', actor, filter->>'partition', count) FROM tidegate.audit WHERE action = 'cleanup' ORDER BY id";
    let expected = [
        format!("night shift {older} 50"),
        format!("night shift {gone} 100"),
    ];
    assert_eq!(texts(&client, audit).await, expected);
}

#[tokio::test]
async fn a_refused_step_stops_no_other_and_is_reported_at_the_end() {
    let (db, client) = probe().await;
    let gone = expired_partition(&client, 2 * DAY, 100).await;
    let used = expired_partition(&client, 3 * DAY, 50).await;
    let view = format!("CREATE VIEW of_somebody AS SELECT id FROM tidegate.{used}");
    execute(&client, &view).await;
    let late = clock(&client).await - DAY;
    log_rows(&client, 7, late).await;
    let refused = cleanup(
        &db.database(),
        &CleanupOptions::default(),
        CleanupHooks::default(),
    )
    .await;
    let told = refused.unwrap_err().to_string();
    let named = told.contains("of_somebody") || told.contains(&used);
    assert!(named, "{told}");
    assert!(!exists(&client, &gone).await && exists(&client, &used).await);
    execute(&client, "DROP VIEW of_somebody").await;
    clean(&db, |_| ()).await;
    assert_eq!(log_count(&client).await, 0);
}

#[tokio::test]
async fn rows_of_a_new_partitions_day_move_out_of_the_default_one_unless_they_are_too_many() {
    let (db, client) = probe().await;
    let sql = "UPDATE tidegate.event_kind SET retention_failed = '45 days'";
    execute(&client, sql).await;
    let now = clock(&client).await;
    log_rows(&client, 10_000, now + 46 * DAY).await;
    log_rows(&client, 10_001, now + 48 * DAY).await;
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.partitions_made, report.rows_moved), (7, 10_000));
    assert_eq!((report.left_to_default, report.skipped), (1, 0));
    let in_default = "SELECT count(*) FROM tidegate.event_log_default";
    assert_eq!(number(&client, in_default).await, 10_001);
    assert_eq!(log_count(&client).await, 20_001);
}

#[tokio::test]
async fn an_event_finishes_though_no_partition_is_made_for_it() {
    let (db, client) = probe().await;
    let sql = "UPDATE tidegate.event_kind SET retention_completed = '400 days'";
    execute(&client, sql).await;
    let ids = publish_acts(&client, 1).await;
    let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!(report.completed, 1);
    assert_ne!(end_of(&client, ids[0]).await, "");
    let in_default = "SELECT count(*) FROM tidegate.event_log_default";
    assert_eq!(number(&client, in_default).await, 1);
}

// the live queue

#[tokio::test]
async fn b14_f4_pending_leased_and_retryable_events_are_never_touched() {
    let (db, client) = probe().await;
    let events = "INSERT INTO tidegate.event_queue (kind, attempts, max_attempts, available_at, expires_at, created_at)
        SELECT 'act', e.*, clock_timestamp() - interval '400 days' FROM (VALUES
            (0, 5, clock_timestamp(), NULL::timestamptz),
            (4, 5, clock_timestamp() + interval '1 hour', NULL),
            (0, 5, clock_timestamp(), clock_timestamp() + interval '1 hour'),
            (1, 5, clock_timestamp(), NULL),
            (5, 5, clock_timestamp(), NULL),
            (1, 5, clock_timestamp(), clock_timestamp() - interval '1 hour')) AS e";
    execute(&client, events).await;
    lease_away(&client, &[4, 5, 6], 3600.0).await;
    let all = "SELECT to_jsonb(q)::text FROM tidegate.event_queue AS q ORDER BY id";
    let before = texts(&client, all).await;
    assert_eq!(before.len(), 6);
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.expired, report.abandoned), (0, 0));
    assert_eq!(texts(&client, all).await, before);
    assert_eq!(log_count(&client).await, 0);
}

/// Whoever cleans up finds out who has died, as a drain does; an event with an attempt left stays.
#[tokio::test]
async fn c12_what_a_worker_that_is_gone_held_is_free_and_charged_after_a_cleanup() {
    let (db, client) = probe().await;
    let ids = publish_acts(&client, 2).await;
    let last = "UPDATE tidegate.event_queue SET attempts = 4 WHERE id = $1";
    client.execute(last, &[&ids[1]]).await.unwrap();
    lease_away(&client, &ids, -1.0).await;
    let dry = clean(&db, |options| options.dry_run = true).await;
    assert_eq!((dry.expired, dry.abandoned), (0, 1));
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.expired, report.abandoned), (0, 1));
    let left = "SELECT format('%s %s %s %s', id, attempts, lapses, errors->0->>'code') FROM tidegate.event_queue";
    let expected = format!("{} 1 1 lapsed", ids[0]);
    assert_eq!(texts(&client, left).await, [expected]);
    assert_eq!(end_of(&client, ids[1]).await, "FAILED 5 lapsed abandoned");
    let sql = "SELECT count(*) FROM tidegate.lease";
    assert_eq!(number(&client, sql).await, 0);
}

#[tokio::test]
async fn b15_expired_and_dead_events_end_in_the_log_with_the_drains_codes() {
    let (db, client) = probe().await;
    let events = "INSERT INTO tidegate.event_queue (kind, payload, group_key, correlation_id, attempts, max_attempts, available_at, expires_at)
        VALUES ('act', '{\"name\": \"n\"}', 'g', 'c', 1, 5, clock_timestamp() + interval '1 hour', clock_timestamp() - interval '1 second'),
               ('pair', NULL, NULL, NULL, 5, 5, clock_timestamp(), NULL),
               ('note', NULL, NULL, NULL, 5, 5, clock_timestamp(), clock_timestamp() - interval '1 second');
        UPDATE tidegate.event_queue SET lapses = 1 WHERE kind = 'pair';
        UPDATE tidegate.event_queue SET kind = 'unheard_of' WHERE kind = 'note';
        UPDATE tidegate.event_kind SET paused = true, retention_failed = '12 days' WHERE kind = 'act'";
    execute(&client, events).await;
    // A page at a time.
    let report = clean(&db, |options| options.batch = 1).await;
    assert_eq!((report.expired, report.abandoned), (2, 1));
    assert_eq!(live(&client).await, 0);
    let ended = "SELECT format('%s %s %s %s %s %s', kind, status, attempts, errors->0->>'code', errors->0->>'message', expires_at - finished_at)
                   FROM tidegate.event_log ORDER BY id";
    let expected = [
        "act FAILED 1 expired not started before its deadline 12 days",
        "pair FAILED 5 abandoned its worker went away on the last attempt 90 days",
        "unheard_of FAILED 5 expired not started before its deadline 90 days",
    ];
    assert_eq!(texts(&client, ended).await, expected);
    let whole = "SELECT count(*) FROM tidegate.event_log WHERE payload->>'name' = 'n' AND group_key = 'g' AND correlation_id = 'c'
                    AND deadline < finished_at AND lease_token IS NULL AND errors->0->'handler' = 'null' AND errors->0->>'at' IS NOT NULL";
    assert_eq!(number(&client, whole).await, 1);
    let audited =
        "SELECT sum(cardinality(ids))::bigint FROM tidegate.audit WHERE filter->>'step' = 'sweep'";
    assert_eq!(number(&client, audited).await, 3);
}

/// The drain and the cleanup end an event in the same words: both are asked for the same.
#[tokio::test]
async fn a_swept_event_reads_as_one_that_a_drain_has_ended() {
    let (db, client) = probe().await;
    let late = "INSERT INTO tidegate.event_queue (kind, attempts, max_attempts, expires_at)
                VALUES ('act', 1, 5, clock_timestamp() - interval '1 second'), ('act', 5, 5, NULL)";
    execute(&client, late).await;
    clean(&db, |_| ()).await;
    execute(&client, late).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let ends = "SELECT (array_agg((to_jsonb(l) - '{id,finished_at,created_at,expires_at,deadline,lease_token,processing_started_at,errors}'::text[])
                                  || jsonb_build_object('error', (errors->0) - 'at') ORDER BY id))::text
                  FROM tidegate.event_log AS l GROUP BY id > 2 ORDER BY id > 2";
    let ends = texts(&client, ends).await;
    assert_eq!(ends.len(), 2);
    assert_eq!(ends[0], ends[1]);
}

#[tokio::test]
async fn a_group_goes_on_once_its_expired_head_is_swept() {
    let (db, client) = probe().await;
    let head = "SELECT id FROM tidegate.publish('note', NULL, group_key => 'g', expires_at => clock_timestamp() - interval '1 second')";
    execute(&client, head).await;
    let sql = "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'note'";
    execute(&client, sql).await;
    let behind = queue::publish(&client, &act("behind").group("g"))
        .await
        .unwrap();
    let app = ProbeApp::succeeding();
    assert_eq!(drain(&db, &app, &options()).await.completed, 0);
    assert_eq!(clean(&db, |_| ()).await.expired, 1);
    assert_eq!(drain(&db, &app, &options()).await.completed, 1);
    assert_eq!(app.ids(), [behind.id]);
}

#[tokio::test]
async fn a_row_that_another_session_has_locked_is_passed_over() {
    let (db, client) = probe().await;
    let dead = "INSERT INTO tidegate.event_queue (kind, attempts, max_attempts) VALUES ('act', 5, 5), ('act', 5, 5)";
    execute(&client, dead).await;
    let other = db.client().await;
    execute(
        &other,
        "BEGIN; SELECT FROM tidegate.event_queue ORDER BY id LIMIT 1 FOR UPDATE",
    )
    .await;
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.abandoned, report.lock_timeouts), (1, 0));
    execute(&other, "ROLLBACK").await;
    assert_eq!(clean(&db, |_| ()).await.abandoned, 1);
}

// one run

#[tokio::test]
async fn a_dry_run_changes_nothing_and_tells_what_the_next_run_does() {
    let (db, client) = probe().await;
    let sql = "UPDATE tidegate.event_kind SET retention_failed = '0' WHERE kind = 'act'";
    execute(&client, sql).await;
    let now = clock(&client).await;
    expired_partition(&client, 3 * DAY, 30).await;
    log_rows(&client, 7, now - 20 * DAY).await;
    log_rows(&client, 5, now + 2 * DAY).await;
    let dead = "INSERT INTO tidegate.event_queue (kind, attempts, expires_at) VALUES ('act', 5, NULL), ('act', 0, clock_timestamp()), ('act', 0, NULL)";
    execute(&client, dead).await;
    let state = "SELECT jsonb_build_object(
            'queue', (SELECT jsonb_agg(q ORDER BY id) FROM tidegate.event_queue AS q),
            'log', (SELECT jsonb_agg(to_jsonb(l) || jsonb_build_object('in', tableoid::regclass) ORDER BY id) FROM tidegate.event_log AS l),
            'partitions', (SELECT jsonb_agg(p ORDER BY partition) FROM tidegate.log_partitions() AS p),
            'audit', (SELECT count(*) FROM tidegate.audit))::text";
    let before = texts(&client, state).await;
    let dry = clean(&db, |options| options.dry_run = true).await;
    assert_eq!(texts(&client, state).await, before);
    let done = clean(&db, |_| ()).await;
    let counts = |report: &CleanupReport| {
        let mut counts = report.clone();
        (counts.dry_run, counts.elapsed_ms) = (false, 0);
        counts
    };
    assert!(dry.dry_run && !done.dry_run);
    assert_eq!(counts(&dry), counts(&done));
    counted(&done, "rows_dropped 30, rows_deleted 7, rows_moved 5");
    assert_eq!((done.expired, done.abandoned), (1, 1));
    assert_eq!(done.partitions_made, 8);
}

#[tokio::test]
async fn a_run_ends_with_its_budget_and_the_next_one_goes_on() {
    let (db, client) = probe().await;
    let now = clock(&client).await;
    log_rows(&client, 2000, now - 20 * DAY).await;
    let run = async |budget| {
        clean(&db, |options| {
            options.batch = 10;
            options.budget = budget;
        })
        .await
    };
    let first = run(Duration::from_millis(1)).await;
    assert_eq!(first.stop_reason, CleanupStop::BudgetSpent, "{first:?}");
    let left = log_count(&client).await;
    assert!(left > 0, "{first:?}");
    let last = run(Duration::from_mins(5)).await;
    assert_eq!(last.stop_reason, CleanupStop::Done, "{last:?}");
    assert_eq!(i64::try_from(last.rows_deleted).unwrap(), left);
    assert_eq!(log_count(&client).await, 0);
}

#[tokio::test]
async fn a_stop_signal_ends_a_run_between_two_steps() {
    let (db, client) = probe().await;
    let now = clock(&client).await;
    log_rows(&client, 100, now - 20 * DAY).await;
    let (_stop, stopped) = tokio::sync::watch::channel(true);
    let hooks = CleanupHooks {
        stop: Some(stopped),
        ..CleanupHooks::default()
    };
    let report = cleanup(&db.database(), &CleanupOptions::default(), hooks)
        .await
        .unwrap();
    assert_eq!(report.stop_reason, CleanupStop::BudgetSpent);
    assert_eq!(log_count(&client).await, 100);
}

// races

#[tokio::test]
async fn cleanup_ends_while_a_reader_holds_the_log_and_finalizes_go_on_beside_it() {
    let (db, client) = probe().await;
    let partition = expired_partition(&client, 2 * DAY, 20).await;
    publish_acts(&client, 50).await;
    let reader = db.client().await;
    execute(&reader, "BEGIN; SELECT count(*) FROM tidegate.event_log").await;
    let app = ProbeApp::succeeding();
    let options = options();
    let both = futures_util::future::join(clean(&db, |_| ()), drain(&db, &app, &options));
    let (report, drained) = support::ended("what goes on beside a reader", both).await;
    assert_eq!(drained.completed, 50);
    // The drop waited in vain, and the rows went one by one instead.
    assert_eq!(report.stop_reason, CleanupStop::Done);
    assert!(
        report.lock_timeouts >= 3 && report.skipped == 1,
        "{report:?}"
    );
    assert_eq!((report.rows_deleted, report.partitions_dropped), (20, 0));
    assert!(exists(&client, &partition).await);
    execute(&reader, "COMMIT").await;
    let report = clean(&db, |_| ()).await;
    assert_eq!((report.partitions_dropped, report.rows_dropped), (1, 0));
}

#[tokio::test]
async fn a_partition_locked_against_everything_is_left_to_the_next_run() {
    let (db, client) = probe().await;
    let locked = expired_partition(&client, 2 * DAY, 20).await;
    let free = expired_partition(&client, 3 * DAY, 10).await;
    let other = db.client().await;
    let lock = format!("BEGIN; LOCK TABLE tidegate.{locked} IN ACCESS EXCLUSIVE MODE");
    execute(&other, &lock).await;
    let report = support::ended("cleanup", clean(&db, |_| ())).await;
    assert_eq!((report.partitions_dropped, report.rows_dropped), (1, 10));
    assert!(
        report.skipped >= 1 && report.lock_timeouts >= 3,
        "{report:?}"
    );
    assert!(!exists(&client, &free).await);
    execute(&other, "COMMIT").await;
    assert_eq!(clean(&db, |_| ()).await.rows_dropped, 20);
}

#[tokio::test]
async fn a_finalize_waits_behind_a_waiting_step_no_longer_than_its_lock_timeout() {
    let (db, client) = probe().await;
    let partition = expired_partition(&client, 2 * DAY, 1).await;
    let reader = db.client().await;
    execute(&reader, "BEGIN; SELECT count(*) FROM tidegate.event_log").await;
    let dropper = db.client().await;
    let drop = format!("SELECT count(dropped) FROM tidegate.drop_log_partition('{partition}')");
    let dropping = tokio::spawn(async move { dropper.query_one(&drop, &[]).await });
    let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.mode = 'AccessExclusiveLock' AND NOT l.granted";
    // On a busy machine it may have given up before it is seen to wait.
    wait_until("the drop waits or has given up", async || {
        number(&client, waiting).await > 0 || dropping.is_finished()
    })
    .await;
    log_rows(&client, 1, clock(&client).await + 30 * DAY).await;
    let gave_up = dropping.await.unwrap().unwrap_err();
    assert_eq!(gave_up.code().unwrap().code(), "55P03");
    // The row came in while the reader still reads.
    execute(&reader, "COMMIT").await;
    assert_eq!(log_count(&client).await, 2);
}

#[tokio::test]
async fn two_cleanups_at_once_do_the_work_of_one() {
    let (db, client) = probe().await;
    let now = clock(&client).await;
    for age in 2..6 {
        expired_partition(&client, age * DAY, 40).await;
    }
    log_rows(&client, 300, now - 30 * DAY).await;
    let dead = "INSERT INTO tidegate.event_queue (kind, attempts) SELECT 'act', 5 FROM generate_series(1, 100)";
    execute(&client, dead).await;
    let run = async || clean(&db, |options| options.batch = 10).await;
    let (one, other) = tokio::join!(run(), run());
    let sum = |count: fn(&CleanupReport) -> u64| count(&one) + count(&other);
    assert_eq!(sum(|report| report.abandoned), 100, "{one:?} {other:?}");
    // A step that did not get its turn is the next run's.
    let last = run().await;
    assert_eq!(
        sum(|r| r.rows_dropped + r.rows_deleted) + last.rows_dropped + last.rows_deleted,
        460
    );
    assert_eq!((live(&client).await, log_count(&client).await), (0, 100));
}

// statistics

#[tokio::test]
async fn b23_statistics_by_day_kind_and_status_equal_the_log_and_outlive_it() {
    let (db, client) = probe().await;
    let note = tidegate::NewEvent::raw("note".to_owned(), None);
    let events = [
        act("done"),
        act("rejected"),
        act("tried"),
        act("failed"),
        note,
    ];
    queue::publish_batch(&client, &events).await.unwrap();
    let app = ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "rejected" => Err(HandlerError::reject("no", "no")),
            "tried" if call.attempt == 1 => Err(HandlerError::retry("later", "not yet")),
            "failed" => Err(HandlerError::retry("later", "not yet")),
            _ => Ok(Done::ok()),
        }
    });
    drain(&db, &app, &options()).await;
    // More than there are sums for one kind, status and minute.
    let cancel = "SELECT tidegate.cancel(ids => ARRAY[$1::bigint], reason => 'test')";
    for planned in publish_acts(&client, 10).await {
        client.query_one(cancel, &[&planned]).await.unwrap();
    }
    // Days are UTC's, wherever the session thinks it is.
    execute(&client, "SET timezone = 'Pacific/Kiritimati'").await;
    let log = "SELECT format('%s %s %s %s %s', (finished_at AT TIME ZONE 'UTC')::date, kind, status, count(*), sum(attempts))
                 FROM tidegate.event_log GROUP BY (finished_at AT TIME ZONE 'UTC')::date, kind, status ORDER BY 1";
    let stats = "SELECT format('%s %s %s %s %s', day, kind, status, events, attempts) FROM tidegate.daily_stats ORDER BY 1";
    let logged = texts(&client, log).await;
    assert_eq!(logged.len(), 4, "{logged:?}");
    assert_eq!(texts(&client, stats).await, logged);
    let sql = "UPDATE tidegate.event_log SET expires_at = clock_timestamp() - interval '2 days'";
    execute(&client, sql).await;
    assert_eq!(clean(&db, |_| ()).await.rows_deleted, 15);
    assert_eq!(log_count(&client).await, 0);
    assert_eq!(texts(&client, stats).await, logged);
}

#[tokio::test]
async fn a_row_on_its_way_into_a_partition_holds_up_its_drop() {
    let (db, client) = probe().await;
    let late = clock(&client).await - 2 * DAY;
    let partition = expired_partition(&client, 2 * DAY, 10).await;
    let writer = db.client().await;
    execute(&writer, "BEGIN").await;
    log_rows(&writer, 1, late).await;
    let drop = format!("SELECT dropped FROM tidegate.drop_log_partition('{partition}')");
    let refused = client.query_one(&drop, &[]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55P03");
    execute(&writer, "COMMIT").await;
    assert_eq!(clean(&db, |_| ()).await.rows_dropped, 11);
}

#[tokio::test]
async fn the_days_without_a_partition_are_found_in_one_look() {
    let (_db, client) = probe().await;
    let kinds = "INSERT INTO tidegate.event_kind (kind, retention_completed, retention_failed)
                 SELECT 'kind-' || n, n * interval '17 days', n * interval '19 days' FROM generate_series(1, 40) AS n";
    execute(&client, kinds).await;
    execute(&client, "BEGIN; SET LOCAL track_functions = 'all'").await;
    let days = "SELECT count(*) FROM tidegate.missing_log_days()";
    assert!(number(&client, days).await > 200);
    let looks = "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'log_partitions'";
    assert_eq!(number(&client, looks).await, 1);
}

#[tokio::test]
async fn an_event_that_may_have_fewer_attempts_than_it_has_had_was_not_abandoned() {
    let (db, client) = probe().await;
    let spend = "UPDATE tidegate.event_queue SET attempts = 2, max_attempts = 2";
    let mut ids = Vec::new();
    for by in ["drain", "poll", "cleanup"] {
        let id = publish_acts(&client, 1).await[0];
        client.batch_execute(spend).await.unwrap();
        match by {
            "drain" => {
                let report = drain(
                    &db,
                    &ProbeApp::new(|_, _| Box::pin(async { Ok(Done::ok()) })),
                    &options(),
                )
                .await;
                assert_eq!((report.failed, report.abandoned), (0, 1), "{report:?}");
            }
            "poll" => client
                .batch_execute("SELECT tidegate.poll('{act}')")
                .await
                .unwrap(),
            _ => drop(clean(&db, |_| {}).await),
        }
        ids.push(id);
    }
    for id in ids {
        assert_eq!(end_of(&client, id).await, "FAILED 2 attempts_exhausted");
    }
}
