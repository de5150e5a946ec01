//! Periodic events: each slot has its one event, however many drains meet it and whatever happens to them;
//! nothing that is wrong with one schedule concerns another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use test_support::probe::{
    Act, Probe, ProbeApp, act, drain, live, number, options, probe, probe_sessions,
};
use test_support::seal::{NEW, OLD, keys};
use test_support::worker::Worker;
use test_support::{
    self as support, TestDb, begins, column, contains, counted, execute, wait_until,
};
use tidegate::connect::{Client, Schema};
use tidegate::schedule::plan;
use tidegate::seal::PayloadKeys;
use tidegate::{CatchUp, Context, Dispatch, Done, DrainOptions, Event, Handlers, Schedule};
use tidegate_admin::program::Runtime;
use tidegate_admin::{DoctorRequest, MigrateRequest, Program, SchedulesRequest};
use tidegate_core::error::describe;
use tidegate_core::queue::{self, due_schedules, fire_schedules};
use tokio::sync::Notify;

/// What a schedule of this name publishes.
fn named(name: &str) -> Probe {
    Probe::Act(Act {
        name: name.to_owned(),
    })
}

fn cron(name: &str, expression: &str) -> Schedule<Probe> {
    Schedule::cron(name, expression, named(name))
}

fn hourly(name: &str) -> Schedule<Probe> {
    Schedule::every(name, Duration::from_hours(1), named(name))
}

/// Stores a schedule as a migration of another program does.
async fn set(client: &Client, schedule: Schedule<Probe>) {
    let declared = schedule.declared().unwrap();
    put_schedule(client, "other", &declared).await.unwrap();
}

async fn put_schedule(
    client: &Client,
    keeper: &str,
    declared: &queue::Declared,
) -> Result<(), String> {
    let sql = queue::put_schedule(&Schema::default(), keeper, declared).unwrap();
    let stored = client.batch_execute(&sql).await;
    stored.map_err(|error| describe(&error))
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
        set(&client, hourly(&format!("s{n}"))).await;
    }
    let past = format!("UPDATE tidegate.schedule SET since = {HOUR_AGO}");
    client.batch_execute(&past).await.unwrap();
    let mut drains = Vec::new();
    for _ in 0..4 {
        let client = db.client().await;
        let due = due_schedules(&client, Probe::KINDS, 0, 100, None).await;
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
    set(&client, hourly("hourly")).await;
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
    set(&client, hourly("hourly")).await;
    since(&client, "hourly", HOUR_AGO).await;
    let due = due_schedules(&client, Probe::KINDS, 0, 100, None)
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
    for change in ["declared", "paused", "resumed", "dropped"] {
        set(&client, hourly("x")).await;
        execute(&client, "SELECT tidegate.resume_schedule('x', 'r')").await;
        since(&client, "x", HOUR_AGO).await;
        let due = due_schedules(&client, Probe::KINDS, 0, 100, None)
            .await
            .unwrap();
        match change {
            "declared" => set(&client, cron("x", "@daily")).await,
            "dropped" => execute(&client, "SELECT tidegate.drop_schedule('other', 'x')").await,
            _ => execute(&client, "SELECT tidegate.pause_schedule('x', 'r')").await,
        }
        if change == "resumed" {
            execute(&client, "SELECT tidegate.resume_schedule('x', 'r')").await;
        }
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
        let gap = cron(&format!("gap{at}"), &format!("10 {hour} * * *"));
        let fold = cron(&format!("fold{at}"), "45 1 * * *");
        for schedule in [gap, fold] {
            let schedule = schedule.time_zone(*zone).catch_up(CatchUp::All);
            set(&client, schedule).await;
        }
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
    let due = queue::due_schedules(client, Probe::KINDS, 0, 1000, Some(now)).await;
    let firings: Vec<_> = due.unwrap().iter().map(|due| plan(due, 100)).collect();
    let fired = queue::fire_schedules(client, &firings).await.unwrap();
    fired.iter().map(|one| one.published).sum()
}

#[tokio::test]
async fn a_weeks_outage_is_made_up_for_as_the_schedule_says() {
    let (_db, client) = probe().await;
    let now = epoch(&client, "2026-06-08 12:00:30Z").await;
    for (catch_up, expected) in [
        (CatchUp::None, vec![]),
        (
            CatchUp::Last,
            vec!["schedule:last@2026-06-08T06:00:00Z".to_owned()],
        ),
        (
            CatchUp::All,
            (2..=8)
                .map(|day| format!("schedule:all@2026-06-0{day}T06:00:00Z"))
                .collect(),
        ),
    ] {
        let name = catch_up.as_str();
        set(&client, cron(name, "0 6 * * *").catch_up(catch_up)).await;
        since(&client, name, "'2026-06-01 12:00Z'").await;
        fire_at(&client, now).await;
        assert_eq!(slots(&client).await, expected);
        execute(&client, "TRUNCATE tidegate.event_queue").await;
        let next = format!(
            "SELECT count(*) FROM tidegate.schedule WHERE name = '{name}' AND next_at = '2026-06-09 06:00Z'"
        );
        assert_eq!(number(&client, &next).await, 1);
    }
}

/// 10,080 slots: a drain makes up for some of them, and neighbours are fired beside them.
#[tokio::test]
async fn a_week_of_minutes_is_made_up_for_a_part_in_each_drain() {
    let (db, client) = probe().await;
    let minutes = cron("minutes", "* * * * *").catch_up(CatchUp::All);
    set(&client, minutes).await;
    set(&client, hourly("neighbour")).await;
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
    set(&client, cron("daily", "@daily")).await;
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
        "INSERT INTO tidegate.schedule (keeper, name, kind, payload, every, since)
         SELECT 'other', 's' || n, 'act', '{{\"name\": \"x\"}}', '1 hour', {HOUR_AGO} FROM generate_series(1, 10000) AS n"
    );
    client.batch_execute(&many).await.unwrap();
    let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
    counted(&report, "scheduled 10000, completed 10000, backlog 0");
}

#[tokio::test]
async fn what_somebody_holds_for_ever_keeps_no_other_schedule_and_no_drain() {
    let (db, [client, mut holder, mut changer]) = probe_sessions().await;
    let held = hourly("a-held").group("held").catch_up(CatchUp::All);
    let others = ["b-changed", "c-dedup"].map(hourly);
    for schedule in others
        .into_iter()
        .chain([held, hourly("d-free").group("free")])
    {
        set(&client, schedule).await;
    }
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
        set(&client, hourly(name)).await;
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
    for name in ["a-broken", "b-zone", "c-never"] {
        set(&client, cron(name, "@daily")).await;
    }
    for name in ["d-refused", "e-trigger", "f-fine"] {
        set(&client, hourly(name)).await;
    }
    // As a program with another calendar would store them.
    let upset = "UPDATE tidegate.schedule SET cron = 'every now and then' WHERE name = 'a-broken';
                 UPDATE tidegate.schedule SET time_zone = 'Mars/Olympus' WHERE name = 'b-zone';
                 UPDATE tidegate.schedule SET cron = '0 0 30 2 *' WHERE name = 'c-never';
                 UPDATE tidegate.schedule SET since = clock_timestamp() - interval '1 hour';
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
        set(&client, hourly(name)).await;
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
        let due = due_schedules(&client, Probe::KINDS, 0, 100, None).await;
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
    set(&client, hourly("mine")).await;
    let theirs = "INSERT INTO tidegate.event_kind (kind) VALUES ('theirs');
                  INSERT INTO tidegate.schedule (keeper, name, kind, every)
                  VALUES ('other', 'theirs', 'theirs', '1 hour'), ('other', 'gone', 'gone', '1 hour');
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
    set(&client, hourly("soon")).await;
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
        let kept = cron("kept", "30 2 * * *").time_zone("Europe/Kyiv");
        let changed = |catch_up| hourly("changed").group("g").catch_up(catch_up);
        match self {
            Self::Nothing => vec![],
            Self::First => vec![
                kept,
                changed(CatchUp::None),
                Schedule::cron("dropped", "@daily", Probe::Note(())),
            ],
            Self::Second => vec![
                kept,
                changed(CatchUp::All),
                Schedule::cron("added", "@weekly", Probe::Note(()))
                    .start_within(Duration::from_hours(2)),
            ],
            Self::Wrong => vec![Schedule::cron("wrong", "99 * * * *", Probe::Note(()))],
        }
    }
}

fn service(db: &TestDb, version: Daily) -> Runtime {
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
    let sql = "SELECT string_agg(format('%s %s %s %s', name, keeper, revision, paused), ', ' ORDER BY name) FROM tidegate.schedule";
    text(client, sql).await
}

#[tokio::test]
async fn what_a_program_declares_follows_it_and_what_operators_did_stays() {
    let (db, client) = probe().await;
    set(&client, hourly("foreign")).await;
    for _ in 0..2 {
        migrate(&db, Daily::First).await.unwrap();
        let expected =
            "changed operate 1 f, dropped operate 1 f, foreign other 1 f, kept operate 1 f";
        assert_eq!(kept(&client).await, expected);
    }
    let pause = "SELECT tidegate.pause_schedule('kept', 'not now'), tidegate.pause_schedule('changed', 'nor this')";
    client.batch_execute(pause).await.unwrap();
    migrate(&db, Daily::Second).await.unwrap();
    assert_eq!(
        kept(&client).await,
        "added operate 1 f, changed operate 3 t, foreign other 1 f, kept operate 2 t"
    );
    let audited = "SELECT string_agg(action || ' ' || (filter->>'name'), ', ' ORDER BY id) FROM tidegate.audit WHERE reason LIKE 'the program declares it%' AND filter->>'keeper' = 'operate'";
    assert_eq!(
        text(&client, audited).await,
        "set_schedule kept, set_schedule changed, set_schedule dropped, remove_schedule dropped, set_schedule changed, set_schedule added"
    );
    // A program takes nothing over.
    let taken = "UPDATE tidegate.schedule SET keeper = 'another' WHERE name = 'added'";
    client.batch_execute(taken).await.unwrap();
    let told = migrate(&db, Daily::Second).await.unwrap_err().to_string();
    contains(&told, "\"added\"");
    contains(&told, "which another keeps");
    // Another program's stay.
    migrate(&db, Daily::Nothing).await.unwrap();
    assert_eq!(kept(&client).await, "added another 1 f, foreign other 1 f");
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

#[tokio::test]
async fn what_a_program_may_not_declare_is_refused_by_its_field() {
    let (_db, client) = probe().await;
    let (day, long) = (Duration::from_hours(24), "x".repeat(70_000));
    for (schedule, says) in [
        (cron("x", "@sometimes"), "cron: must be five fields"),
        (cron("x", "0 0 30 2 *"), "cron: must be due at some time"),
        (
            cron("x", "@daily").time_zone("Kyiv"),
            "time_zone: must be a name of the IANA",
        ),
        (
            hourly("x").time_zone("Europe/Kyiv"),
            "time_zone: must not be given with every",
        ),
        (
            Schedule::every("x", Duration::from_millis(1500), named("x")),
            "every: must be whole seconds",
        ),
        (
            Schedule::every("x", day * 367, named("x")),
            "every: must be 1 second",
        ),
        (hourly("x").start_within(day * 500), "start_within: must be"),
        (
            hourly("x").start_within(Duration::from_millis(10)),
            "start_within: must be whole seconds",
        ),
        (hourly("a name"), "name: must have 1 to 100 letters"),
        (
            Schedule::cron("x", "@daily", named(&long)),
            "payload: must have at most 65536 bytes",
        ),
    ] {
        let refused = match schedule.declared() {
            Ok(declared) => put_schedule(&client, "other", &declared).await.unwrap_err(),
            Err(error) => error.to_string(),
        };
        contains(&refused, says);
    }
    let mut unknown = hourly("x").declared().unwrap();
    unknown.kind = "nothing".to_owned();
    let refused = put_schedule(&client, "other", &unknown).await.unwrap_err();
    contains(&refused, "is not registered");
}

/// A process has its keys for ever, and the other tests of this one have none.
#[tokio::test]
async fn a_schedules_payload_is_stored_and_published_under_the_seal() {
    let (db, _) = probe().await;
    let output = Worker::of("periodic::sealed", &db, &[]).output();
    contains(&output, "1 passed");
}

#[tokio::test]
#[ignore = "the process of the test above"]
async fn sealed() {
    let db = TestDb::elsewhere(&std::env::var("DATABASE_URL").unwrap());
    let client = db.client().await;
    // Before there were keys.
    migrate(&db, Daily::Second).await.unwrap();
    let plain = "SELECT (SELECT count(*) FROM tidegate.schedule WHERE payload::text LIKE '%changed%')
                      + (SELECT count(*) FROM tidegate.event_log WHERE payload::text LIKE '%changed%')";
    assert_eq!(number(&client, plain).await, 1);
    let file = keys(&[("2032", NEW), ("2031", OLD)]);
    let (url, path) = (db.url.clone(), file.path().display().to_string());
    let lookup = move |name: &str| match name {
        "DATABASE_URL" => Some(url.clone()),
        "TIDEGATE_PAYLOAD_KEYS_FILE" => Some(path.clone()),
        // Where plaintext is refused, it is refused of a schedule, too.
        "TIDEGATE_PAYLOADS" => Some("sealed".to_owned()),
        _ => None,
    };
    let sealing = Program::new(|_| Ok(Daily::Second)).start(&lookup).unwrap();
    sealing.migrate(MigrateRequest::default()).await.unwrap();
    assert_eq!(number(&client, plain).await, 0);
    since(&client, "changed", HOUR_AGO).await;
    let drained = drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!((drained.scheduled, drained.completed), (1, 1));
    let sealed =
        "SELECT count(*) FROM tidegate.event_log WHERE payload->'tidegate_sealed' IS NOT NULL";
    let found = (number(&client, sealed).await, number(&client, plain).await);
    assert_eq!(found, (1, 0));
    let declared = hourly("plain").declared().unwrap();
    let refused = put_schedule(&client, "other", &declared).await.unwrap_err();
    contains(&refused, "payload: must be sealed");
    // One that an earlier key has sealed is sealed anew.
    let old = std::fs::read_to_string(keys(&[("2031", OLD)]).path()).unwrap();
    let old = PayloadKeys::parse(&old).unwrap();
    let changed = hourly("changed").group("g").catch_up(CatchUp::All);
    let mut changed = changed.declared().unwrap();
    let payload = RawValue::from_string(changed.payload.unwrap()).unwrap();
    changed.payload = Some(old.seal("act", &payload).unwrap().get().to_owned());
    put_schedule(&client, "operate", &changed).await.unwrap();
    let stale =
        "SELECT count(*) FROM tidegate.schedule WHERE payload->'tidegate_sealed'->>'key' = '2031'";
    assert_eq!(number(&client, stale).await, 1);
    sealing.migrate(MigrateRequest::default()).await.unwrap();
    assert_eq!(number(&client, stale).await, 0);
}
