//! Periodic events: each slot has its one event, however many drains meet it and whatever happens to them;
//! nothing that is wrong with one schedule concerns another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use test_support::cli::Cli;
use test_support::probe::{
    Act, Probe, ProbeApp, act, drain, live, number, options, probe, probe_sessions,
};
use test_support::seal::{OLD, keys};
use test_support::{
    self as support, TestDb, begins, column, contains, counted, execute, has, rows, wait_until,
    words,
};
use tidegate::admin::{
    Audit, DoctorRequest, ForgetRequest, MigrateRequest, SchedulesRequest, Whom,
};
use tidegate::connect::Client;
use tidegate::program::Service;
use tidegate::queue::{due_schedules, fire_schedules};
use tidegate::schedule::plan;
use tidegate::{
    CatchUp, Context, Dispatch, Done, DrainOptions, Event, Handlers, Program, Schedule, queue,
};
use tokio::sync::Notify;

/// A schedule of operators', made by SQL: `definition` are further arguments.
async fn set(client: &Client, name: &str, definition: &str) {
    let sql = format!(
        "SELECT tidegate.set_schedule('{name}', 'act', '{{\"name\": \"{name}\"}}', {definition}, reason => 'a test')"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// Has it be due for the first time after this.
async fn since(client: &Client, name: &str, instant: &str) {
    let sql = format!(
        "UPDATE tidegate.schedule SET since = {instant}, next_at = '-infinity' WHERE name = '{name}'"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn epoch(client: &Client, instant: &str) -> f64 {
    let sql = format!("SELECT extract(epoch FROM timestamptz '{instant}')::float8");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// The slots of all events in the queue, in the order of their ids.
async fn slots(client: &Client) -> Vec<String> {
    let sql =
        "SELECT dedup_key FROM tidegate.event_queue WHERE correlation_id = dedup_key ORDER BY id";
    column(client, sql).await
}

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

const HOUR_AGO: &str = "clock_timestamp() - interval '1 hour'";

// exactly once

#[tokio::test]
async fn of_drains_that_meet_a_slot_at_one_instant_one_publishes_its_event() {
    let (db, client) = probe().await;
    for n in 0..20 {
        set(&client, &format!("s{n}"), "every => '1 hour'").await;
    }
    let past = format!("UPDATE tidegate.schedule SET since = {HOUR_AGO}");
    client.batch_execute(&past).await.unwrap();
    let mut drains = Vec::new();
    for _ in 0..4 {
        let client = db.client().await;
        let due = due_schedules(&client, Probe::KINDS, (0, 100), None).await;
        let firings: Vec<_> = due.unwrap().iter().map(|due| plan(due, 10)).collect();
        let found = firings
            .iter()
            .map(|firing| firing.slots.len())
            .sum::<usize>();
        assert_eq!(found, 20);
        drains.push((client, firings));
    }
    let at_once = drains.iter().map(async |(client, firings)| {
        let fired = fire_schedules(client, firings).await.unwrap();
        fired.iter().map(|one| one.published).sum::<u64>()
    });
    let published: u64 = futures_util::future::join_all(at_once).await.iter().sum();
    assert_eq!((published, live(&client).await), (20, 20));
    // Whoever comes too late finds another slot there.
    for (client, firings) in &drains {
        assert_eq!(fire_schedules(client, firings).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_slot_whose_event_has_ended_is_not_published_again() {
    let (db, client) = probe().await;
    set(&client, "hourly", "every => '1 hour'").await;
    since(&client, "hourly", HOUR_AGO).await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    counted(&report, "scheduled 1, completed 1, backlog 0");
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.scheduled, report.completed), (0, 0));
    let told = "SELECT count(*) FROM tidegate.schedule AS s JOIN tidegate.event_log AS l ON l.id = s.last_event_id
                 WHERE l.dedup_key = 'schedule:hourly@' || to_char(s.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
                   AND s.next_at = s.last_at + interval '1 hour' AND s.next_at > clock_timestamp()";
    assert_eq!(number(&client, told).await, 1);
}

#[tokio::test]
async fn a_drain_that_is_killed_while_it_fires_leaves_the_slot_to_the_next_one() {
    let (_db, [client, mut killed]) = probe_sessions().await;
    set(&client, "hourly", "every => '1 hour'").await;
    since(&client, "hourly", HOUR_AGO).await;
    let due = due_schedules(&client, Probe::KINDS, (0, 100), None)
        .await
        .unwrap();
    let firings = [plan(&due[0], 10)];
    let transaction = killed.transaction().await.unwrap();
    let fired = fire_schedules(&transaction, &firings).await.unwrap();
    assert_eq!(fired[0].published, 1);
    // Until it is gone the others pass by, without waiting.
    assert_eq!(fire_schedules(&client, &firings).await.unwrap(), []);
    transaction.rollback().await.unwrap();
    let found = fire_schedules(&client, &firings).await.unwrap()[0].published;
    assert_eq!(found, 1);
    assert_eq!(live(&client).await, 1);
}

#[tokio::test]
async fn what_was_found_of_an_earlier_definition_is_not_fired() {
    let (_db, client) = probe().await;
    for change in [
        "SELECT tidegate.set_schedule('x', 'note', every => '1 day', reason => 'r')",
        "SELECT tidegate.pause_schedule('x', 'r')",
        "SELECT tidegate.pause_schedule('x', 'r'), tidegate.resume_schedule('x', 'r')",
        "SELECT tidegate.remove_schedule('x', 'r')",
    ] {
        set(&client, "x", "every => '1 hour'").await;
        execute(&client, "SELECT tidegate.resume_schedule('x', 'r')").await;
        since(&client, "x", HOUR_AGO).await;
        let due = due_schedules(&client, Probe::KINDS, (0, 100), None)
            .await
            .unwrap();
        client.batch_execute(change).await.unwrap();
        let fired = fire_schedules(&client, &[plan(&due[0], 10)]).await.unwrap();
        assert_eq!((fired.len(), live(&client).await), (0, 0), "{change}");
    }
}

// the calendar

/// An hour's ticks over both changes of the clock, each met twice: every local day has its one event.
#[tokio::test]
async fn a_daily_schedule_has_one_event_a_day_over_both_changes_of_the_clock() {
    let (_db, client) = probe().await;
    let zones = [
        ("Europe/Kyiv", 3),
        ("America/New_York", 2),
        ("Australia/Lord_Howe", 2),
    ];
    for (at, (zone, hour)) in zones.iter().enumerate() {
        let definition =
            format!("cron => '10 {hour} * * *', time_zone => '{zone}', catch_up => 'all'");
        set(&client, &format!("gap{at}"), &definition).await;
        let definition = format!("cron => '45 1 * * *', time_zone => '{zone}', catch_up => 'all'");
        set(&client, &format!("fold{at}"), &definition).await;
    }
    for (from, days) in [("2026-03-05 12:00Z", 40), ("2026-09-30 12:00Z", 40)] {
        let reset = format!(
            "UPDATE tidegate.schedule SET since = '{from}', next_at = '-infinity'; TRUNCATE tidegate.event_queue"
        );
        client.batch_execute(&reset).await.unwrap();
        let start = epoch(&client, from).await;
        for hour in 0..days * 24 {
            let now = start + f64::from(hour) * 3600.0;
            fire_at(&client, now).await;
            assert_eq!(fire_at(&client, now).await, 0);
        }
        let fired = slots(&client).await;
        assert_eq!(fired.len(), usize::try_from(days).unwrap() * 6);
        assert_eq!(fired.iter().collect::<BTreeSet<_>>().len(), fired.len());
    }
}

/// Fires what is due at this second, as a drain does. Returns the number of events.
async fn fire_at(client: &Client, now: f64) -> u64 {
    let due = queue::due_schedules(client, Probe::KINDS, (0, 1000), Some(now)).await;
    let firings: Vec<_> = due.unwrap().iter().map(|due| plan(due, 100)).collect();
    let fired = queue::fire_schedules(client, &firings).await.unwrap();
    fired.iter().map(|one| one.published).sum()
}

#[tokio::test]
async fn a_weeks_outage_is_made_up_for_as_the_schedule_says() {
    let (_db, client) = probe().await;
    let now = epoch(&client, "2026-06-08 12:00:30Z").await;
    for (policy, expected) in [
        ("none", vec![]),
        (
            "last",
            vec!["schedule:last@2026-06-08T06:00:00Z".to_owned()],
        ),
        (
            "all",
            (2..=8)
                .map(|day| format!("schedule:all@2026-06-0{day}T06:00:00Z"))
                .collect(),
        ),
    ] {
        set(
            &client,
            policy,
            &format!("cron => '0 6 * * *', catch_up => '{policy}'"),
        )
        .await;
        since(&client, policy, "'2026-06-01 12:00Z'").await;
        fire_at(&client, now).await;
        assert_eq!(slots(&client).await, expected);
        execute(&client, "TRUNCATE tidegate.event_queue").await;
        let next = format!(
            "SELECT count(*) FROM tidegate.schedule WHERE name = '{policy}' AND next_at = '2026-06-09 06:00Z'"
        );
        assert_eq!(number(&client, &next).await, 1);
    }
}

/// 10,080 slots: a drain makes up for some of them, and neighbours are fired beside them.
#[tokio::test]
async fn a_week_of_minutes_is_made_up_for_a_part_in_each_drain() {
    let (db, client) = probe().await;
    set(&client, "minutes", "cron => '* * * * *', catch_up => 'all'").await;
    set(&client, "neighbour", "every => '1 hour'").await;
    since(&client, "minutes", "clock_timestamp() - interval '7 days'").await;
    since(&client, "neighbour", HOUR_AGO).await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.scheduled, report.completed), (1001, 1001));
    let report = drain(&db, &app, &options()).await;
    assert_eq!(report.scheduled, 1000);
    let stamps = "SELECT count(DISTINCT dedup_key) FROM tidegate.event_log WHERE dedup_key LIKE 'schedule:minutes@%'";
    assert_eq!(number(&client, stamps).await, 2000);
}

#[tokio::test]
async fn a_clock_that_was_ahead_is_reported_and_mended_by_resuming() {
    let (db, client) = probe().await;
    set(&client, "daily", "cron => '@daily'").await;
    let ahead = "UPDATE tidegate.schedule SET next_at = clock_timestamp() + interval '1 year', last_at = clock_timestamp() + interval '364 days'";
    client.batch_execute(ahead).await.unwrap();
    let told = || async {
        let doctor = DoctorRequest {};
        let report = service(&db, Daily::Nothing).run(&doctor).await.unwrap();
        let mut checks = report.checks.into_iter();
        checks.find(|check| check.name == "schedules").unwrap()
    };
    let finding = told().await;
    contains(&finding.finding, "daily: its last slot is in the future");
    let expected = Some("tidegate schedule daily --resume --reason mended");
    assert_eq!(finding.remedy.as_deref(), expected);
    let sql = "SELECT tidegate.resume_schedule('daily', 'mended')";
    execute(&client, sql).await;
    let found = drain(&db, &ProbeApp::succeeding(), &options())
        .await
        .scheduled;
    assert_eq!(found, 0);
    let next = "SELECT count(*) FROM tidegate.schedule WHERE next_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '24 hours'";
    assert_eq!(number(&client, next).await, 1);
}

// nobody waits for anybody

#[tokio::test]
async fn ten_thousand_schedules_that_are_due_at_once_are_fired_by_one_drain() {
    let (db, client) = probe().await;
    let many = format!(
        "INSERT INTO tidegate.schedule (name, kind, payload, every, since)
         SELECT 's' || n, 'act', '{{\"name\": \"x\"}}', '1 hour', {HOUR_AGO} FROM generate_series(1, 10000) AS n"
    );
    client.batch_execute(&many).await.unwrap();
    let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
    counted(&report, "scheduled 10000, completed 10000, backlog 0");
}

#[tokio::test]
async fn what_somebody_holds_for_ever_keeps_no_other_schedule_and_no_drain() {
    let (db, [client, mut holder, mut changer]) = probe_sessions().await;
    set(
        &client,
        "a-held",
        "every => '1 hour', group_key => 'held', catch_up => 'all'",
    )
    .await;
    set(&client, "b-changed", "every => '1 hour'").await;
    set(&client, "c-dedup", "every => '1 hour'").await;
    set(&client, "d-free", "every => '1 hour', group_key => 'free'").await;
    let past = "UPDATE tidegate.schedule SET since = clock_timestamp() - interval '5 hours'";
    client.batch_execute(past).await.unwrap();
    // A group's lock, a row that is being changed, and an event of the same name that is not committed.
    let transaction = holder.transaction().await.unwrap();
    queue::publish(&transaction, &act("held").group("held"))
        .await
        .unwrap();
    let slot = "SELECT 'schedule:c-dedup@' || to_char(date_trunc('hour', clock_timestamp() AT TIME ZONE 'UTC'), 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let slot = text(&client, slot).await;
    queue::publish(&transaction, &act("taken").dedup(slot))
        .await
        .unwrap();
    let change = changer.transaction().await.unwrap();
    let sql = "UPDATE tidegate.schedule SET group_key = 'x' WHERE name = 'b-changed'";
    execute(&change, sql).await;
    let app = ProbeApp::succeeding();
    // What waits in a step keeps the rest of that step for the next look.
    let mut scheduled = 0;
    for _ in 0..2 {
        scheduled += drain(&db, &app, &options()).await.scheduled;
        let first = "UPDATE tidegate.schedule SET id = DEFAULT WHERE name = 'c-dedup'";
        client.batch_execute(first).await.unwrap();
    }
    assert_eq!(scheduled, 1);
    let fired =
        "SELECT count(*) FROM tidegate.schedule WHERE last_at IS NOT NULL AND name = 'd-free'";
    assert_eq!(number(&client, fired).await, 1);
    transaction.rollback().await.unwrap();
    change.rollback().await.unwrap();
    // Five slots of the first one.
    assert_eq!(drain(&db, &app, &options()).await.scheduled, 7);
}

#[tokio::test]
async fn a_step_that_has_waited_once_fires_no_further_schedule() {
    let (_db, [client, mut holder]) = probe_sessions().await;
    for name in ["waits", "free"] {
        set(&client, name, "every => '1 hour'").await;
    }
    let due = "UPDATE tidegate.schedule SET next_at = date_trunc('hour', clock_timestamp())";
    client.batch_execute(due).await.unwrap();
    let transaction = holder.transaction().await.unwrap();
    let key =
        "SELECT tidegate.slot_name(name, next_at) FROM tidegate.schedule WHERE name = 'waits'";
    let key = text(&client, key).await;
    let taken = act("taken").dedup(key);
    queue::publish(&transaction, &taken).await.unwrap();
    let fire = "SELECT count(*) FROM tidegate.fire_schedules((
                    SELECT jsonb_agg(jsonb_build_object('id', id, 'revision', revision, 'from', extract(epoch FROM next_at),
                                     'slots', jsonb_build_array(extract(epoch FROM next_at))) ORDER BY name DESC)
                      FROM tidegate.schedule WHERE last_at IS NULL))";
    assert_eq!(number(&client, fire).await, 0);
    transaction.rollback().await.unwrap();
    assert_eq!(number(&client, fire).await, 2);
}

#[tokio::test]
async fn what_cannot_be_read_or_published_stands_still_and_the_rest_is_fired() {
    let (db, client) = probe().await;
    for (name, definition) in [
        ("a-broken", "cron => 'every now and then'"),
        ("b-zone", "cron => '@daily', time_zone => 'Mars/Olympus'"),
        ("c-never", "cron => '0 0 30 2 *'"),
        ("d-refused", "every => '1 hour'"),
        ("e-trigger", "every => '1 hour'"),
        ("f-fine", "every => '1 hour'"),
    ] {
        set(&client, name, definition).await;
    }
    let upset = "UPDATE tidegate.schedule SET since = clock_timestamp() - interval '1 hour';
                 UPDATE tidegate.schedule SET payload = '{\"name\": \"\\u0000\"}' WHERE name = 'd-refused';
                 CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
                 CREATE TRIGGER refuse BEFORE INSERT ON tidegate.event_queue FOR EACH ROW
                    WHEN (NEW.dedup_key LIKE 'schedule:e-%') EXECUTE FUNCTION refuse()";
    client.batch_execute(upset).await.unwrap();
    let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!((report.scheduled, report.completed), (1, 1));
    let stopped = "SELECT string_agg(name || ' ' || split_part(problem, ':', 1), ', ' ORDER BY name) FROM tidegate.schedule
                    WHERE problem IS NOT NULL AND next_at = 'infinity'";
    let stopped = text(&client, stopped).await;
    let expected = "a-broken cron, b-zone time_zone, c-never cron, d-refused payload";
    assert_eq!(stopped, expected);
    // What may pass has kept its slot.
    execute(&client, "DROP TRIGGER refuse ON tidegate.event_queue").await;
    let found = drain(&db, &ProbeApp::succeeding(), &options())
        .await
        .scheduled;
    assert_eq!(found, 1);
    let doctor = DoctorRequest {};
    let report = service(&db, Daily::Nothing).run(&doctor).await.unwrap();
    let mut checks = report.checks.iter();
    let told = checks.find(|check| check.name == "schedules").unwrap();
    contains(
        &told.finding,
        "b-zone: time_zone: must be a name of the IANA database",
    );
}

#[tokio::test]
async fn a_schedule_stops_for_what_its_publish_refuses_and_for_nothing_else() {
    let (_db, client) = probe().await;
    for name in ["behind", "refused"] {
        set(&client, name, "every => '1 hour'").await;
        since(&client, name, HOUR_AGO).await;
    }
    let spoil =
        "UPDATE tidegate.schedule SET payload = '{\"name\": \"\\u0000\"}' WHERE name = 'refused'";
    client.batch_execute(spoil).await.unwrap();
    // The next id has been given before, as after a restore that has left the sequence behind.
    let live = queue::publish(&client, &act("x")).await.unwrap().id;
    let back = format!("SELECT setval('tidegate.event_queue_id_seq', {live}, false)");
    number(&client, &back).await;
    let look = async || {
        let due = due_schedules(&client, Probe::KINDS, (0, 100), None).await;
        let firings: Vec<_> = due.unwrap().iter().map(|due| plan(due, 10)).collect();
        let fired = fire_schedules(&client, &firings).await.unwrap();
        let told = fired.into_iter().map(|one| {
            let why = one.refused.unwrap_or_default();
            (one.published, why)
        });
        told.collect::<Vec<_>>()
    };
    let first = look().await;
    assert_eq!(first.len(), 2, "{first:?}");
    assert!(first[0].1.contains("event_queue_pkey"), "{first:?}");
    assert!(first[1].1.starts_with("payload: must have no"), "{first:?}");
    let stopped = "SELECT string_agg(name || ': ' || problem, '') FROM tidegate.schedule WHERE next_at = 'infinity' OR problem IS NOT NULL";
    let stopped = text(&client, stopped).await;
    begins(&stopped, "refused: payload: must have no");
    // The next look has the next id, and asks no more for what was refused.
    assert_eq!(look().await, [(1, String::new())]);
}

#[tokio::test]
async fn a_slot_waits_while_its_kind_is_paused_or_only_another_program_handles_it() {
    let (db, client) = probe().await;
    set(&client, "mine", "every => '1 hour'").await;
    let theirs = "INSERT INTO tidegate.event_kind (kind) VALUES ('theirs'), ('gone');
                  SELECT tidegate.set_schedule('theirs', 'theirs', every => '1 hour', reason => 'r'),
                         tidegate.set_schedule('gone', 'gone', every => '1 hour', reason => 'r');
                  DELETE FROM tidegate.event_kind WHERE kind = 'gone';
                  UPDATE tidegate.schedule SET since = clock_timestamp() - interval '1 hour';
                  SELECT tidegate.pause('act', 'r')";
    client.batch_execute(theirs).await.unwrap();
    let app = ProbeApp::succeeding();
    assert_eq!(drain(&db, &app, &options()).await.scheduled, 0);
    let schedules = service(&db, Daily::Nothing)
        .run(&SchedulesRequest::default())
        .await
        .unwrap();
    let states = schedules
        .schedules
        .iter()
        .map(|one| (one.name.as_str(), one.state.as_str()));
    let states: BTreeSet<_> = states.collect();
    let expected = [
        ("gone", "unregistered_kind"),
        ("mine", "paused_kind"),
        ("theirs", "waiting"),
    ];
    assert_eq!(states, BTreeSet::from(expected));
    execute(&client, "SELECT tidegate.resume('act', 'r')").await;
    assert_eq!(drain(&db, &app, &options()).await.scheduled, 1);
}

/// A handler that goes on for as long as it likes keeps no slot waiting.
#[tokio::test]
async fn a_slot_that_comes_while_a_drain_is_busy_is_met_by_it() {
    let (db, client) = probe().await;
    set(&client, "soon", "every => '1 hour'").await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, may) = (begun.clone(), go_on.clone());
    let app = ProbeApp::new(move |call, ctx| {
        let (told, may) = (told.clone(), may.clone());
        Box::pin(async move {
            if call.name == "long" {
                told.notify_one();
                may.notified().await;
            } else {
                assert!(ctx.slot().unwrap().ends_with(":00:00Z"));
                assert!(ctx.correlation_id().unwrap().starts_with("schedule:soon@2"));
            }
            Ok(Done::ok())
        })
    });
    queue::publish(&client, &act("long")).await.unwrap();
    let options = DrainOptions {
        handler_timeout: Duration::from_secs(50),
        ..options()
    };
    let drained = drain(&db, &app, &options);
    let meanwhile = async {
        begun.notified().await;
        since(&client, "soon", HOUR_AGO).await;
        let ended = "SELECT count(*) FROM tidegate.event_log WHERE dedup_key LIKE 'schedule:soon@%' AND status = 'COMPLETED'";
        wait_until("the slot's event has ended", async || {
            number(&client, ended).await == 1
        })
        .await;
        go_on.notify_one();
    };
    let (report, ()) = tokio::join!(drained, meanwhile);
    assert_eq!((report.scheduled, report.completed), (1, 2));
}

// what a program declares

/// A program in several versions.
#[derive(Clone, Copy)]
enum Daily {
    Nothing,
    First,
    Second,
    Wrong,
}

impl Dispatch for Daily {
    type Event = Probe;

    fn handlers<'a>(&'a self, _: &'a Probe, _: &'a Context) -> Handlers<'a> {
        Handlers::one("nothing", async { Ok(Done::ok()) })
    }

    fn schedules(&self) -> Vec<Schedule<Probe>> {
        let named = |name: &str| {
            Probe::Act(Act {
                name: name.to_owned(),
            })
        };
        let kept = Schedule::cron("kept", "30 2 * * *", named("kept")).time_zone("Europe/Kyiv");
        let hourly = |catch_up| {
            Schedule::every("changed", Duration::from_hours(1), named("changed"))
                .group("g")
                .catch_up(catch_up)
        };
        match self {
            Self::Nothing => vec![],
            Self::First => vec![
                kept,
                hourly(CatchUp::None),
                Schedule::cron("dropped", "@daily", Probe::Note(())),
            ],
            Self::Second => vec![
                kept,
                hourly(CatchUp::All),
                Schedule::cron("added", "@weekly", Probe::Note(()))
                    .start_within(Duration::from_hours(2)),
            ],
            Self::Wrong => vec![Schedule::cron("wrong", "99 * * * *", Probe::Note(()))],
        }
    }
}

fn service(db: &TestDb, version: Daily) -> Service {
    let url = db.url.clone();
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    Program::new(move |_| Ok(version)).start(&lookup).unwrap()
}

async fn migrate(db: &TestDb, version: Daily) -> Result<(), tidegate::Error> {
    let migrated = service(db, version)
        .migrate(MigrateRequest::default())
        .await;
    migrated.map(|_| ())
}

async fn kept(client: &Client) -> String {
    let sql = "SELECT string_agg(format('%s %s %s %s', name, coalesce(keeper, '-'), revision, paused), ', ' ORDER BY name) FROM tidegate.schedule";
    text(client, sql).await
}

#[tokio::test]
async fn what_a_program_declares_follows_it_and_what_operators_did_stays() {
    let (db, client) = probe().await;
    set(&client, "manual", "every => '1 hour'").await;
    for _ in 0..2 {
        migrate(&db, Daily::First).await.unwrap();
        let expected = "changed drain 1 f, dropped drain 1 f, kept drain 1 f, manual - 1 f";
        assert_eq!(kept(&client).await, expected);
    }
    let pause = "SELECT tidegate.pause_schedule('kept', 'not now'), tidegate.pause_schedule('changed', 'nor this')";
    client.batch_execute(pause).await.unwrap();
    migrate(&db, Daily::Second).await.unwrap();
    assert_eq!(
        kept(&client).await,
        "added drain 1 f, changed drain 3 t, kept drain 2 t, manual - 1 f"
    );
    let audited = "SELECT string_agg(action || ' ' || (filter->>'name'), ', ' ORDER BY id) FROM tidegate.audit WHERE reason LIKE 'the program declares it%'";
    assert_eq!(
        text(&client, audited).await,
        "set_schedule kept, set_schedule changed, set_schedule dropped, remove_schedule dropped, set_schedule changed, set_schedule added"
    );
    // Operators change what is theirs, and a program takes nothing over.
    for refused in [
        "SELECT tidegate.set_schedule('kept', 'act', every => '1 hour', reason => 'r')",
        "SELECT tidegate.remove_schedule('kept', 'r')",
    ] {
        let told = client.batch_execute(refused).await.unwrap_err();
        contains(told.as_db_error().unwrap().message(), "which drain keeps");
    }
    client
        .batch_execute("SELECT tidegate.remove_schedule('added', 'r')")
        .await
        .unwrap_err();
    let taken = "UPDATE tidegate.schedule SET keeper = 'another' WHERE name = 'added'";
    client.batch_execute(taken).await.unwrap();
    let told = migrate(&db, Daily::Second).await.unwrap_err().to_string();
    contains(&told, "\"added\"");
    contains(&told, "which another keeps");
    // Another program's stay.
    migrate(&db, Daily::Nothing).await.unwrap();
    assert_eq!(kept(&client).await, "added another 1 f, manual - 1 f");
}

#[tokio::test]
async fn a_schedule_that_is_declared_wrongly_keeps_the_database_as_it_is() {
    let db = support::empty_database().await;
    let told = migrate(&db, Daily::Wrong).await.unwrap_err().to_string();
    contains(&told, "\"wrong\"");
    contains(&told, "cron: must be five fields");
    let client = db.client().await;
    let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'tidegate'";
    assert_eq!(number(&client, made).await, 0);
}

// operators

const VIEWED: &str = "grant_letter_viewed";

#[tokio::test]
async fn operators_make_pause_run_and_remove_schedules_on_the_command_line() {
    let (db, client) = support::opened().await;
    let cli = Cli::on(&db);
    let schedule = async |arguments: &str| {
        let line = format!("schedule nightly {arguments} --reason 'asked for'");
        cli.json(&words(&line)).await
    };
    let what = r#"--kind grant_letter_viewed --payload '{"grant_number": "G"}'"#;
    let made = schedule(&format!(
        "{what} --cron '30 2 * * *' --time-zone Europe/Kyiv"
    ))
    .await;
    let found = (&made["change"], made["next_at"].is_string());
    assert_eq!(found, (&json!("set"), true));
    let ran = schedule("--run").await;
    assert_eq!(
        number(
            &client,
            &format!(
                "SELECT id FROM tidegate.event_queue WHERE id = {}",
                ran["event_id"]
            )
        )
        .await,
        ran["event_id"].as_i64().unwrap()
    );
    let listed = cli.json(&["schedules"]).await;
    let one = &listed["schedules"][0];
    has(
        one,
        &json!({"state": "waiting", "keeper": null, "next_at": made["next_at"]}),
    );
    let paused = schedule("--pause").await;
    has(&paused, &json!({"paused": true, "changed": true}));
    let told = cli.run(&["schedules"]).await;
    contains(&told.stdout, "30 2 * * * Europe/Kyiv");
    contains(&told.stdout, "operators");
    schedule("--resume").await;
    schedule("--remove").await;
    let actions = "SELECT string_agg(action || ' ' || reason, ', ' ORDER BY id) FROM tidegate.audit WHERE action LIKE '%schedule'";
    assert_eq!(
        text(&client, actions).await,
        "set_schedule asked for, run_schedule asked for, pause_schedule asked for, resume_schedule asked for, remove_schedule asked for"
    );
}

#[tokio::test]
async fn what_operators_may_not_make_is_refused_by_its_field() {
    let db = support::database().await;
    let cli = Cli::on(&db);
    for (arguments, says) in rows(
        "--kind grant_letter_viewed --cron @sometimes => --cron: must be five fields
         --kind grant_letter_viewed => --cron, --every: must be one of them, got none
         --kind grant_letter_viewed --cron @daily --time-zone Kyiv => --time-zone: must be a name of the IANA
         --kind grant_letter_viewed --every 1500ms => --every: must be whole seconds
         --kind grant_letter_viewed --every 1h --start-within 500days => --start-within: must be
         --kind nothing --every 1h => is not registered
         --pause => <NAME>: must be the name of a schedule, got nightly",
    ) {
        let line = format!("schedule nightly {arguments} --reason r");
        let ran = cli.run(&words(&line)).await;
        assert!(ran.code != Some(0) && ran.stderr.contains(says), "{ran:?}");
    }
}

/// Operators' schedules of a group go with it; a program's are about nobody.
#[tokio::test]
async fn who_is_forgotten_is_published_about_no_more() {
    let (db, client) = probe().await;
    migrate(&db, Daily::First).await.unwrap();
    set(&client, "about", "every => '1 hour', group_key => 'g'").await;
    set(&client, "other", "every => '1 hour', group_key => 'h'").await;
    let mut asked = ForgetRequest {
        whom: Whom {
            group: Some("g".to_owned()),
            ..Whom::default()
        },
        audit: Audit::of("request 17"),
        dry_run: true,
    };
    let service = service(&db, Daily::First);
    assert_eq!(service.run(&asked).await.unwrap().schedules, 1);
    let left = "SELECT string_agg(name, ' ' ORDER BY name) FROM tidegate.schedule";
    let before = text(&client, left).await;
    assert_eq!(before, "about changed dropped kept other");
    asked.dry_run = false;
    assert_eq!(service.run(&asked).await.unwrap().schedules, 1);
    assert_eq!(text(&client, left).await, "changed dropped kept other");
    let audited = "SELECT count(*) FROM tidegate.audit WHERE action = 'forget_schedules' AND count = 1 AND reason = 'request 17'";
    assert_eq!(number(&client, audited).await, 1);
}

#[tokio::test]
async fn a_schedules_payload_is_stored_and_published_under_the_seal() {
    const CANARY: &str = "canary-in-a-schedule";
    let (db, client) = support::opened().await;
    let file = keys(&[("2031", OLD)]);
    let cli = Cli::on(&db).with("TIDEGATE_PAYLOAD_KEYS_FILE", file.path().to_str().unwrap());
    let payload = format!(r#"{{"grant_number": "{CANARY}"}}"#);
    let set = [
        "schedule",
        "s",
        "--kind",
        VIEWED,
        "--payload",
        &payload,
        "--every",
        "1h",
        "--reason",
        "r",
    ];
    // Before there were keys.
    Cli::on(&db).json(&set).await;
    let told = format!(
        "SELECT (SELECT count(*) FROM tidegate.schedule AS s WHERE s::text LIKE '%{CANARY}%')
              + (SELECT count(*) FROM tidegate.event_queue AS q WHERE q::text LIKE '%{CANARY}%')
              + (SELECT count(*) FROM tidegate.audit AS a WHERE a::text LIKE '%{CANARY}%')"
    );
    assert_eq!(number(&client, &told).await, 1);
    cli.json(&set).await;
    assert_eq!(number(&client, &told).await, 0);
    since(&client, "s", HOUR_AGO).await;
    let drained = cli.json(&["drain"]).await;
    has(&drained, &json!({"scheduled": 1, "completed": 1}));
    let sealed =
        "SELECT count(*) FROM tidegate.event_log WHERE payload->'tidegate_sealed' IS NOT NULL";
    let found = (number(&client, sealed).await, number(&client, &told).await);
    assert_eq!(found, (1, 0));
    // Where plaintext is refused, it is refused here too.
    cli.with("TIDEGATE_PAYLOADS", "sealed")
        .json(&["migrate"])
        .await;
    let refused = Cli::on(&db).run(&set).await;
    contains(&refused.stderr, "payload: must be sealed");
}
