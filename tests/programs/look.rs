//! Looking at the queue from the command line: figures, once or again and again, one event,
//! lists, blocked groups.

use std::process::Stdio;

use crate::support::cli::{Cli, Ran};
use crate::support::probe::service;
use crate::support::{self, TestDb, binary, contains, execute, has, lease_away};
use serde_json::{Map, Value, json};
use tidegate::Hooks;
use tidegate::connect::Client;
use tidegate_admin::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::types::ToSql;

/// Runs the program on a database.
pub async fn run(db: &TestDb, arguments: &[&str]) -> Ran {
    Cli::on(db).run(arguments).await
}

async fn json(db: &TestDb, arguments: &[&str]) -> Value {
    Cli::on(db).json(arguments).await
}

const PUBLISH: &str =
    "SELECT id FROM tidegate.publish($1, '{}', group_key => $2, correlation_id => $3)";

async fn publish(client: &Client, kind: &str, group: Option<&str>, about: Option<&str>) -> i64 {
    let row = client.query_one(PUBLISH, &[&kind, &group, &about]).await;
    row.unwrap().get(0)
}

/// Puts a finished event into the log as it stands there.
async fn log(client: &Client, id: i64, parent: Option<i64>, replay_of: Option<i64>) {
    let sql = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at,
                                               finished_at, expires_at, parent_id, replay_of)
               VALUES ($1, 'case_opened', 'COMPLETED', 2, 5, '[]', clock_timestamp(), clock_timestamp(),
                       clock_timestamp() + interval '1 day', $2, $3)";
    client
        .execute(sql, &[&id, &parent, &replay_of])
        .await
        .unwrap();
}

// status

#[tokio::test]
async fn c13_status_tells_what_the_whole_queue_does_and_what_needs_an_operator() {
    let (db, client) = support::opened().await;
    for _ in 0..3 {
        publish(&client, "form_archived", None, None).await;
    }
    let head = publish(&client, "case_opened", Some("g"), None).await;
    publish(&client, "case_opened", Some("g"), None).await;
    publish(&client, "grant_letter_viewed", None, None).await;
    execute(&client, &format!(
            "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 h', attempts = 3 WHERE id = {head};
             UPDATE tidegate.event_kind SET paused = true WHERE kind = 'grant_letter_viewed';
             INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
             SELECT n, 'case_opened', CASE WHEN n > 102 THEN 'COMPLETED' WHEN n > 101 THEN 'FAILED' ELSE 'COMPLETED_WITH_ERRORS' END,
                    1, 5, '[]', t, t, t + interval '1 day'
               FROM generate_series(101, 108) AS n,
                    LATERAL (SELECT clock_timestamp() - CASE WHEN n = 101 THEN interval '2 h' WHEN n < 106 THEN '10 min' ELSE '0 s' END) AS at(t);
             INSERT INTO tidegate.minute_stats (minute, kind, status, events, attempts, latency_ms, code)
             SELECT date_trunc('minute', clock_timestamp()) - f.age::interval, 'case_opened', f.status, f.n, f.n, f.n, 'x'
               FROM (VALUES ('90 min', 'FAILED', 1), ('150 min', 'COMPLETED_WITH_ERRORS', 2), ('0 min', 'COMPLETED', 12),
                            ('3 days', 'FAILED', 16)) AS f(age, status, n)"
        )).await;
    lease_away(&client, &[head - 2], -1.0).await;
    lease_away(&client, &[head - 1], 3600.0).await;
    let status = json(&db, &["status"]).await;
    let expected = json!({"action": "stats", "backlog": 6, "in_flight": 2, "stuck": 1, "delayed": 1, "blocked_groups": 1,
        "failed_last_day": 1, "rejected_last_day": 2, "finished_last_hour": 12});
    has(&status, &expected);
    let rate = status["throughput_per_second"].as_f64().unwrap();
    assert!(
        rate > 0.0 && rate <= 0.2,
        "12 within one or two minutes: {rate}"
    );
    let kind = |name: &str| {
        let mut kinds = status["kinds"].as_array().unwrap().iter();
        kinds.find(|kind| kind["kind"] == name).unwrap().clone()
    };
    assert_eq!(kind("grant_letter_viewed")["paused"], true);
    let opened = json!({"events": 2, "max_attempts_used": 3, "paused": false});
    has(&kind("case_opened"), &opened);
    assert_eq!(kind("form_archived")["stuck"], 1);
    let told = run(&db, &["status"]).await.stdout;
    for text in [
        "in flight 2, stuck 1, delayed 1, blocked groups 1; dead letters of the last day 1 failed, 2 rejected",
        "finished in the last hour 12",
        "paused",
    ] {
        assert!(told.contains(text), "{text:?} is not in {told}");
    }
}

/// Live events of a kind that have been ready for so many minutes, each with a deadline so many minutes from
/// now.
async fn waiting(client: &Client, kind: &str, events: i32, ready: i32, deadline: i32) {
    let published = "INSERT INTO tidegate.event_queue (kind, available_at, expires_at)
         SELECT $1, clock_timestamp() - make_interval(mins => $3), clock_timestamp() + make_interval(mins => $4)
           FROM generate_series(1, $2)";
    let values: [&(dyn ToSql + Sync); 4] = [&kind, &events, &ready, &deadline];
    client.execute(published, &values).await.unwrap();
}

/// What status says of each kind that has events that will expire.
async fn expiring(db: &TestDb) -> Vec<(String, u64)> {
    let status = json(db, &["status"]).await;
    let kinds = status["expiring"].as_array().cloned().unwrap_or_default();
    let told = |kind: &Value| {
        let name = kind["kind"].as_str().unwrap().to_owned();
        (name, kind["events"].as_u64().unwrap())
    };
    kinds.iter().map(told).collect()
}

#[tokio::test]
async fn b13_events_near_their_deadline_are_reported_before_it() {
    let (db, client) = support::opened().await;
    for (minutes, events) in [(-1, 1), (3, 2), (4, 3), (6, 4)] {
        waiting(&client, "form_archived", events, 0, minutes).await;
    }
    assert_eq!(expiring(&db).await, [("form_archived".to_owned(), 5)]);
    // What is in hand may not have begun; what may have is not late any more.
    let held = "SELECT array_agg(id) FROM tidegate.event_queue WHERE expires_at < clock_timestamp() + interval '200 s'
                   AND expires_at > clock_timestamp()";
    let held: Vec<i64> = client.query_one(held, &[]).await.unwrap().get(0);
    lease_away(&client, &held, 3600.0).await;
    let started = |id: i64| format!("UPDATE tidegate.lease SET started_to = {id}");
    client.batch_execute(&started(0)).await.unwrap();
    assert_eq!(expiring(&db).await, [("form_archived".to_owned(), 5)]);
    client.batch_execute(&started(held[1])).await.unwrap();
    assert_eq!(expiring(&db).await, [("form_archived".to_owned(), 3)]);
    // Put off, by a plan or a backoff, until it is too late.
    waiting(&client, "case_opened", 1, -31, 30).await;
    waiting(&client, "case_opened", 1, -29, 30).await;
    let expected = [
        ("form_archived".to_owned(), 3),
        ("case_opened".to_owned(), 1),
    ];
    assert_eq!(expiring(&db).await, expected);
    let told = run(&db, &["status"]).await.stdout;
    for text in [
        "3 form_archived will pass their deadline",
        "1 case_opened will",
    ] {
        assert!(told.contains(text), "{text:?} is not in {told}");
    }
}

#[tokio::test]
async fn b13_events_too_far_back_for_their_deadline_are_reported_once_the_rate_is_known() {
    let (db, client) = support::opened().await;
    let finish = async |kind: &str, events: i64| {
        let finished = "INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
             VALUES (date_trunc('minute', clock_timestamp() - interval '2 min'), $1, 'COMPLETED', 1, $2, $2, $2)";
        client.execute(finished, &[&kind, &events]).await.unwrap();
    };
    // Nobody knows how long it takes.
    waiting(&client, "form_archived", 100, 10, 60).await;
    assert_eq!(expiring(&db).await, []);
    // Five in five minutes and a part of one: a minute or more each, so that sixty or fewer are in time.
    finish("form_archived", 5).await;
    let told = expiring(&db).await;
    let (kind, events) = &told[0];
    assert!(told.len() == 1 && kind == "form_archived", "{told:?}");
    assert!((40..=52).contains(events), "{events}");
    // What was published now tells by its rate only how much was published before.
    waiting(&client, "case_opened", 100, 1, 60).await;
    finish("case_opened", 5).await;
    assert_eq!(expiring(&db).await.len(), 1);
}

// status --watch

#[tokio::test]
async fn a_repeated_status_is_for_people() {
    let db = support::database().await;
    let ran = run(&db, &["status", "--watch", "--json"]).await;
    ran.failed(2, &["--watch", "cannot be used with --json"]);
    let told = ran.document()["error"].as_str().unwrap().to_owned();
    assert!(told.contains("--watch"), "{told}");
    run(&db, &["status", "--interval", "2s"])
        .await
        .failed(2, &["--watch"]);
    for interval in ["0s", "2h", "soon"] {
        let ran = run(&db, &["status", "--watch", "--interval", interval]).await;
        ran.failed(2, &["--interval", "must be"]);
    }
}

/// A repeated status, and what it has printed.
struct Watched {
    child: tokio::process::Child,
    printed: String,
}

impl Watched {
    /// Starts it by `launcher`, or by itself.
    fn on(db: &TestDb, launcher: &[&str]) -> Self {
        let mut command = tokio::process::Command::new("env");
        command
            .args(launcher)
            .arg(binary("tidegate"))
            .args(["status", "--watch", "--interval", "100ms"])
            .env("DATABASE_URL", &db.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        Self {
            child: command.spawn().unwrap(),
            printed: String::new(),
        }
    }

    /// Waits until this is printed, behind all that was waited for before.
    async fn prints(&mut self, text: &str) {
        let from = self.printed.len();
        let stdout = self.child.stdout.as_mut().unwrap();
        let mut buffer = [0; 4096];
        let seen = tokio::time::timeout(support::PATIENCE, async {
            while !self.printed[from..].contains(text) {
                let read = stdout.read(&mut buffer).await.unwrap();
                assert!(read > 0, "it ended before {text:?}: {}", self.printed);
                self.printed
                    .push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        });
        let seen = seen.await.is_ok();
        assert!(seen, "{text:?} is not in {}", &self.printed[from..]);
    }

    /// Checks that it ends well.
    async fn ends(mut self) {
        drop(self.child.stdout.take());
        let ended = tokio::time::timeout(support::PATIENCE, self.child.wait());
        assert_eq!(ended.await.expect("it ends").unwrap().code(), Some(0));
    }
}

#[tokio::test]
async fn b9_a_repeated_status_follows_the_queue_through_an_outage() {
    let (db, client) = support::opened().await;
    let admin = admin(&db).await;
    publish(&client, "form_archived", None, None).await;
    let mut watched = Watched::on(&db, &[]);
    watched.prints("1 event in the queue").await;
    publish(&client, "form_archived", None, None).await;
    watched.prints("2 events in the queue").await;
    let name = db.url.rsplit('/').next().unwrap();
    drop(client);
    let allow =
        |connections: bool| format!("ALTER DATABASE {name} WITH allow_connections {connections}");
    admin.batch_execute(&allow(false)).await.unwrap();
    watched.prints("not currently accepting connections").await;
    admin.batch_execute(&allow(true)).await.unwrap();
    watched.prints("2 events in the queue").await;
    assert!(!watched.printed.contains('\u{1b}'), "{}", watched.printed);
    support::terminate(&watched.child);
    watched.ends().await;
}

#[tokio::test]
async fn a_repeated_status_clears_a_terminal_and_ends_with_ctrl_c() {
    let db = support::database().await;
    let mut watched = Watched::on(&db, &["python3", "-c", TERMINAL]);
    watched.prints("\u{1b}[H\u{1b}[J").await;
    watched.prints("the queue is empty").await;
    let stdin = watched.child.stdin.as_mut().unwrap();
    stdin.write_all(b"\x03").await.unwrap();
    watched.ends().await;
}

/// Runs a program on a terminal of its own, which gets what is typed on stdin. Exits as the program does.
const TERMINAL: &str = r"
import fcntl, os, pty, select, subprocess, sys, termios
master, slave = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                         preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
typed = [0]
while child.poll() is None or select.select([master], [], [], 0.1)[0]:
    ready, _, _ = select.select([master] + typed, [], [], 0.05)
    if master in ready:
        try:
            os.write(1, os.read(master, 65536))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if 0 in ready:
        keys = os.read(0, 100)
        typed = typed if keys else []
        os.write(master, keys)
sys.exit(child.returncode)
";

/// What a program writes to a terminal.
pub async fn on_terminal(db: &TestDb, arguments: &[&str], no_color: Option<&str>) -> String {
    let mut command = tokio::process::Command::new("python3");
    command
        .args(["-c", TERMINAL])
        .arg(binary("tidegate"))
        .args(arguments);
    command
        .env("DATABASE_URL", &db.url)
        .env("TERM", "xterm-256color");
    command
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null());
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    let output = tokio::time::timeout(support::PATIENCE, command.output());
    let output = output.await.expect("it ends").unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether there is a colour among the escape sequences. Weight is none.
pub fn has_colour(text: &str) -> bool {
    let mut sequences = text.split("\u{1b}[").skip(1);
    sequences.any(|sequence| {
        let end = sequence
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(0);
        let numbers = sequence[..end]
            .split(';')
            .map(|number| number.parse().unwrap_or(0));
        sequence[end..].starts_with('m')
            && numbers
                .into_iter()
                .any(|number: u32| matches!(number, 30..=38 | 40..=48 | 90..=107))
    })
}

#[tokio::test]
async fn no_color_removes_all_colours_and_a_pipe_has_none() {
    let db = support::database().await;
    publish(&db.client().await, "case_opened", None, None).await;
    // Colours or, in clap's help, weight: with NO_COLOR not even that.
    for (arguments, is_plain) in [
        (&["--help"][..], true),
        (&["list", "--no-such-flag"], true),
        (&["list"], true),
        (&["status"], true),
        (&["drain", "--budget", "5s"], false),
    ] {
        let plain = on_terminal(&db, arguments, Some("1")).await;
        assert!(!has_colour(&plain), "{arguments:?}: {plain:?}");
        assert!(
            !is_plain || !plain.contains('\u{1b}'),
            "{arguments:?}: {plain:?}"
        );
        let piped = run(&db, arguments).await;
        assert!(
            !format!("{}{}", piped.stdout, piped.stderr).contains('\u{1b}'),
            "{piped:?}"
        );
    }
    let styled = on_terminal(&db, &["list", "--no-such-flag"], None).await;
    assert!(styled.contains('\u{1b}'), "{styled:?}");
    let empty = on_terminal(&db, &["list", "--no-such-flag"], Some("")).await;
    assert_eq!(empty, styled, "an empty NO_COLOR refuses nothing");
}

/// A connection to the server that is not one to the test's database.
async fn admin(db: &TestDb) -> Client {
    let (server, _) = db.direct().rsplit_once('/').unwrap();
    let url = format!("{server}/postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client.into()
}

// show

#[tokio::test]
async fn b8_show_has_the_origin_of_an_event_and_its_outcome() {
    let (db, client) = support::opened().await;
    log(&client, 1002, Some(1001), None).await;
    log(&client, 1005, None, Some(1002)).await;
    let shown = json(&db, &["show", "1002"]).await;
    has(
        &shown,
        &json!({"parent_id": 1001, "replay_of": null, "status": "COMPLETED"}),
    );
    assert_eq!(json(&db, &["show", "1005"]).await["replay_of"], 1002);
}

// list

#[tokio::test]
async fn b20_list_filters_by_group_object_and_time() {
    let (db, client) = support::opened().await;
    let grouped = publish(&client, "form_archived", Some("it's"), None).await;
    let about = publish(&client, "form_archived", None, Some("form 7")).await;
    let old = publish(&client, "case_opened", None, Some("form 7")).await;
    let age = "UPDATE tidegate.event_queue SET created_at = '2026-01-31T12:00:00Z', last_error = 'down: no answer' WHERE id = $1";
    client.execute(age, &[&old]).await.unwrap();
    execute(&client, "INSERT INTO tidegate.event_log (id, kind, group_key, correlation_id, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
             VALUES (100, 'case_opened', 'it''s', 'form 7', 'FAILED', 1, 5, '[{\"code\": \"down\"}]', '2026-01-31T13:00:00Z', clock_timestamp(), clock_timestamp())").await;
    for (arguments, expected) in [
        (&["--group", "it's"][..], vec![100, grouped]),
        (&["--correlation-id", "form 7"], vec![100, old, about]),
        (
            &["--correlation-id", "form 7", "--kind", "form_archived"],
            vec![about],
        ),
        (&["--created-since", "1h"], vec![about, grouped]),
        (&["--created-until", "1h"], vec![100, old]),
        (&["--created-until", "2026-01-31T13:00:00Z"], vec![old]),
        (
            &[
                "--created-since",
                "2026-01-31T14:00:00+01:00",
                "--created-until",
                "1h",
            ],
            vec![100],
        ),
        (
            &["--created-since", "2026-01-31T12:00:00Z"],
            vec![100, old, about, grouped],
        ),
        (&["--before", "100"], vec![old, about, grouped]),
        (&["--status", "PENDING", "--created-until", "1h"], vec![old]),
        (&["--status", "FAILED", "--created-since", "1h"], vec![]),
        // What ended; a live event has not.
        (&["--since", "1h"], vec![100]),
        (&["--since", "1h", "--until", "30m"], vec![]),
        (&["--until", "2026-01-31T13:00:00Z"], vec![]),
        (&["--status", "PENDING", "--since", "1h"], vec![]),
        (&["--code", "down"], vec![100, old]),
        (&["--code", "down", "--since", "1h"], vec![100]),
        (&["--code", "dow"], vec![]),
    ] {
        let listed = json(&db, &[&["list"], arguments].concat()).await;
        assert_eq!(listed["action"], "list");
        assert_eq!(ids_of(&listed), expected, "{arguments:?}");
    }
}

fn ids_of(listed: &Value) -> Vec<i64> {
    let events = listed["events"].as_array().unwrap().iter();
    events.map(|event| event["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn a_kind_that_nobody_has_registered_is_refused_and_not_taken_for_one_without_events() {
    let db = support::database().await;
    let none = run(&db, &["list", "--kind", "form_archived"]).await;
    assert_eq!(none.code, Some(0), "{none:?}");
    let slip = run(&db, &["list", "--kind", "form_archive"]).await;
    slip.failed(
        2,
        &[
            "kind: \"form_archive\" is not registered, and no event that was searched is of it",
            "case_opened, ",
            "form_archived",
        ],
    );
    // It was registered once.
    let client = db.client().await;
    log(&client, 100, None, None).await;
    let retired = "DELETE FROM tidegate.event_kind WHERE kind = 'case_opened'";
    client.batch_execute(retired).await.unwrap();
    let listed = json(&db, &["list", "--kind", "case_opened"]).await;
    assert_eq!(ids_of(&listed), [100]);
    // There are some, though none of this status.
    let pending = ["list", "--kind", "case_opened", "--status", "PENDING"];
    assert_eq!(ids_of(&json(&db, &pending).await), [0; 0]);
}

#[tokio::test]
async fn events_of_kinds_that_the_program_does_not_have_are_listed_and_marked() {
    let (db, client) = support::opened().await;
    let registered = "INSERT INTO tidegate.event_kind (kind) VALUES ('parcel_lost')";
    client.batch_execute(registered).await.unwrap();
    let foreign = publish(&client, "parcel_lost", None, None).await;
    let ours = publish(&client, "form_archived", None, None).await;
    let of_kind = json(&db, &["list", "--kind", "parcel_lost"]).await;
    assert_eq!(ids_of(&of_kind), [foreign]);
    let all = json(&db, &["list"]).await;
    assert_eq!(ids_of(&all), [ours, foreign]);
    assert_eq!(all["events"][0]["handled"], Value::Null);
    assert_eq!(all["events"][1]["handled"], false);
    let text = run(&db, &["list"]).await.stdout;
    contains(&text, "parcel_lost*");
    contains(&text, "* this program does not handle this kind");
    assert!(!text.contains("form_archived*"), "{text}");
}

/// A kind, a group or a correlation id with which somebody would command the terminal of who reads it: clear
/// it, write into its clipboard, turn the direction of writing, add a line.
const COMMANDS: &str =
    "a\u{1b}[2J\u{1b}]52;c;ZXZpbA==\u{7}\u{9b}2J\u{202e}\u{2066}\u{2028}b\rc\nforged  1  line";

#[tokio::test]
async fn what_a_publisher_wrote_commands_no_terminal() {
    let (db, client) = support::opened().await;
    let sql = "SELECT set_config('tidegate.registered_kind', $1, true)";
    client.batch_execute("BEGIN").await.unwrap();
    client.execute(sql, &[&COMMANDS]).await.unwrap();
    let hostile = "INSERT INTO tidegate.event_queue (kind, group_key, correlation_id, payload) VALUES ($1, $1, $1, '{}') RETURNING id";
    let id: i64 = client
        .query_one(hostile, &[&COMMANDS])
        .await
        .unwrap()
        .get(0);
    client.batch_execute("COMMIT").await.unwrap();
    publish(&client, "form_archived", Some(COMMANDS), None).await;
    let failed = "UPDATE tidegate.event_queue SET attempts = 1, last_error = $1, expires_at = clock_timestamp() + interval '1 s',
                         available_at = clock_timestamp() + interval '1 hour' WHERE id = $2";
    client.execute(failed, &[&COMMANDS, &id]).await.unwrap();
    let service = "INSERT INTO tidegate.service (service, state, failures, last_error) VALUES ('down', 'open', 1, $1)";
    client.execute(service, &[&COMMANDS]).await.unwrap();
    let (shown, chosen) = (id.to_string(), format!("--group={COMMANDS}"));
    for verb in [
        &["status"][..],
        &["list"],
        &["list", "--kind", COMMANDS],
        &["show", &shown],
        &["blocked-groups"],
        &["services"],
        &["doctor"],
        &["drain"],
        &["cancel", &chosen, "--dry-run", "--reason", "a test"],
        &["publish", COMMANDS],
    ] {
        let ran = run(&db, verb).await;
        let told = ran.stdout + &ran.stderr;
        let commands: String = told
            .chars()
            .filter(|one| COMMANDS_OF.contains(one))
            .collect();
        assert!(commands.is_empty(), "{verb:?}: {commands:?} in {told}");
        let forged = told.lines().any(|line| line.trim().starts_with("forged"));
        assert!(!forged, "{verb:?}: {told}");
    }
    let listed = run(&db, &["list"]).await.stdout;
    assert!(listed.contains("a\\u{1b}[2J"), "{listed}");
    // Programs read what was written.
    let document = run(&db, &["list", "--json"]).await;
    assert!(!document.stdout.contains(COMMANDS_OF), "{document:?}");
    assert_eq!(document.document()["events"][0]["group_key"], COMMANDS);
}

const COMMANDS_OF: &[char] = &[
    '\u{1b}', '\u{7}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\r',
];

#[tokio::test]
async fn a_filter_that_means_nothing_is_refused_by_name() {
    let db = support::database().await;
    for (flag, value, allowed) in [
        (
            "--since",
            "yesterday",
            "2026-01-31T12:00:00Z, or a duration such as 2h",
        ),
        ("--until", "2026-01-31", "must be an RFC 3339 time"),
        ("--before", "x", "a whole number"),
        ("--limit", "0", "1..=10000"),
    ] {
        let wrong = run(&db, &["list", flag, value]).await;
        wrong.failed(2, &[flag, value, allowed]);
    }
}

#[tokio::test]
async fn each_page_of_a_list_tells_the_command_for_the_next() {
    let (db, client) = support::opened().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(publish(&client, "form_archived", Some("it's"), None).await);
    }
    let first = ["list", "--group", "it's", "--limit", "2"];
    let mut next: Vec<String> = first.map(ToOwned::to_owned).into();
    let mut listed: Vec<i64> = Vec::new();
    loop {
        let arguments: Vec<&str> = next.iter().map(String::as_str).collect();
        let ran = run(&db, &arguments).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let lines: Vec<&str> = ran.stdout.lines().collect();
        listed.extend(
            lines
                .iter()
                .filter_map(|line| line.split_whitespace().next()?.parse::<i64>().ok()),
        );
        let Some(command) = lines.last().unwrap().strip_prefix("next page: tidegate ") else {
            break;
        };
        // As a shell takes it apart.
        let shell = tokio::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {command}")])
            .output()
            .await
            .unwrap();
        next = String::from_utf8(shell.stdout)
            .unwrap()
            .lines()
            .map(ToOwned::to_owned)
            .collect();
    }
    ids.reverse();
    assert_eq!(listed, ids);
    let page = json(&db, &["list", "--limit", "2"]).await;
    let found = (ids_of(&page), &page["next"]);
    assert_eq!(found, (ids[..2].to_vec(), &json!(ids[1])));
    let before = ids[3].to_string();
    let last = json(&db, &["list", "--limit", "2", "--before", &before]).await;
    let seen = (ids_of(&last), &last["next"]);
    assert_eq!(seen, (ids[4..].to_vec(), &Value::Null));
}

// blocked-groups

#[tokio::test]
async fn blocked_groups_are_listed_with_what_holds_them_back() {
    let (db, client) = support::opened().await;
    let none = run(&db, &["blocked-groups"]).await;
    let found = (none.code, none.stdout.trim());
    assert_eq!(found, (Some(0), "blocked groups: none"));
    let of_none = json!({"action": "blocked_groups", "groups": []});
    assert_eq!(json(&db, &["blocked-groups"]).await, of_none);
    let mut heads = Vec::new();
    for group in ["a", "b"] {
        heads.push(publish(&client, "form_archived", Some(group), None).await);
        publish(&client, "case_opened", Some(group), None).await;
        publish(&client, "case_opened", Some(group), None).await;
    }
    publish(&client, "case_opened", Some("runs"), None).await;
    let delay = "UPDATE tidegate.event_queue SET attempts = 2, last_error = '503: down', available_at = '2999-01-01T00:00:00Z' WHERE id = ANY ($1)";
    client.execute(delay, &[&heads]).await.unwrap();
    let listed = json(&db, &["blocked-groups"]).await["groups"].take();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let first = &listed[0];
    let expected = json!({"group_key": "a", "head_id": heads[0], "waiting": 2, "attempts": 2});
    has(first, &expected);
    let told = run(&db, &["blocked-groups", "--limit", "1"]).await.stdout;
    for text in [
        "a ",
        "form_archived",
        " 2         5 ",
        "which is due at 2999-01-01 00:00:00Z",
        "503: down",
        "tidegate unblock GROUP --retry|--skip|--cancel",
    ] {
        assert!(told.contains(text), "{text:?} is not in {told}");
    }
    assert_eq!(told.matches("form_archived").count(), 1, "{told}");
}

// leases

#[tokio::test]
async fn leases_are_listed_with_who_holds_how_much_since_when() {
    let (db, client) = support::opened().await;
    let none = run(&db, &["leases"]).await;
    let found = (none.code, none.stdout.trim());
    assert_eq!(found, (Some(0), "leases: none"));
    let of_none = json!({"action": "leases", "leases": []});
    assert_eq!(json(&db, &["leases"]).await, of_none);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(publish(&client, "form_archived", None, None).await);
    }
    lease_away(&client, &ids[1..4], 3600.0).await;
    lease_away(&client, &ids[4..], -60.0).await;
    let long_ago = "UPDATE tidegate.lease SET taken_at = '2020-02-03T04:05:06Z', started_to = $1 WHERE ids @> $1::bigint";
    client.execute(long_ago, &[&ids[2]]).await.unwrap();
    let listed = json(&db, &["leases"]).await["leases"].take();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let held = |lease: &Value| {
        ["events", "started", "first_id", "last_id", "expired"].map(|field| lease[field].clone())
    };
    let first = [
        json!(3),
        json!(2),
        json!(ids[1]),
        json!(ids[3]),
        json!(false),
    ];
    assert_eq!(held(&listed[0]), first);
    let second = [
        json!(1),
        json!(1),
        json!(ids[4]),
        json!(ids[4]),
        json!(true),
    ];
    assert_eq!(held(&listed[1]), second);
    let worker = |lease: &Value| lease["worker"].as_str().unwrap().to_owned();
    assert_ne!(worker(&listed[0]), worker(&listed[1]));
    let told = run(&db, &["leases"]).await.stdout;
    for text in [
        &worker(&listed[0]),
        &worker(&listed[1]),
        "2020-02-03 04:05:06",
        "expired",
        "tidegate requeue --id ID",
    ] {
        assert!(told.contains(text), "{text:?} is not in {told}");
    }
    let told = run(&db, &["leases", "--limit", "1"]).await.stdout;
    assert!(told.contains(&worker(&listed[0])), "{told}");
    assert!(!told.contains(&worker(&listed[1])), "{told}");
}

#[tokio::test]
async fn b2_an_event_is_shown_letter_by_letter_also_one_that_no_program_can_read() {
    let (db, client) = support::opened().await;
    let deep = "[".repeat(6000) + &"]".repeat(6000);
    let mut events = Vec::new();
    for payload in [
        r#"{"z":12345678901234.567891,"big":18446744073709551616,"a":10.10,"z":1}"#,
        r#"{"name":"\ud800"}"#,
        &deep,
        "1e400",
    ] {
        let sql = "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('case_opened', $1::text::json) RETURNING id";
        let id: i64 = client.query_one(sql, &[&payload]).await.unwrap().get(0);
        events.push((id, payload));
    }
    let program = service(&db);
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    for status in ["PENDING", "FAILED"] {
        for (id, payload) in &events {
            let (is, stored) = (
                format!(r#""status":"{status}""#),
                format!(r#""payload":{payload}"#),
            );
            let fields = Map::from_iter([("id".to_owned(), json!(id))]);
            let request = Request::read("show", fields).unwrap();
            let answer = program
                .answer(&request, None, Hooks::default())
                .await
                .unwrap();
            let number = id.to_string();
            let document = run(&db, &["show", &number, "--json"]).await.stdout;
            for shown in [answer.get(), &document] {
                assert!(shown.contains(&is) && shown.contains(&stored), "{shown}");
            }
            let text = run(&db, &["show", &number]).await.stdout;
            assert!(squeezed(&text).contains(&squeezed(payload)), "{text}");
            let job = "SELECT count(*) FROM tidegate.job($1)";
            let jobs: i64 = client.query_one(job, &[id]).await.unwrap().get(0);
            assert_eq!(jobs, 1);
        }
        assert_eq!(run(&db, &["drain"]).await.code, Some(0));
    }
}
