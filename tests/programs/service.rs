//! Services that do not answer: what an outage costs events, their neighbours and the service itself. The
//! service is a stand-in whose state the test sets; the time until it is tried again is not waited for but
//! set as well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::cli::Cli;
use crate::support::probe::{end_of, live, number, publish};
use crate::support::{TestDb, contains, database_for, has, opened_for};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate::connect::Client;
use tidegate::{
    Context, Dispatch, Done, DrainOptions, DrainReport, HandlerError, HandlerResult, Handlers,
    NewEvent, ServiceState, StopReason,
};
use tidegate_core::queue;

tidegate::events! {
    #[derive(Debug)]
    enum Mailing {
        /// Calls the service.
        Letter(Letter) = "letter",
        /// Calls nobody.
        Note(Letter) = "note_down",
        /// Calls nobody, and then the service.
        Both(Letter) = "both",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Letter {
    name: String,
}

/// The service, and who calls it.
#[derive(Default)]
struct Post {
    down: AtomicBool,
    /// It takes its time: until this is over.
    slow: AtomicBool,
    /// A later version of the program calls nobody.
    skips: AtomicBool,
    calls: AtomicUsize,
    noted: AtomicUsize,
    /// The ids of what was sent, in order.
    sent: Mutex<Vec<i64>>,
}

impl Post {
    fn down() -> Arc<Self> {
        let post = Self::default();
        post.down.store(true, Ordering::SeqCst);
        Arc::new(post)
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn send(&self, letter: &Letter, ctx: &Context) -> HandlerResult {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        while self.slow.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if letter.name == "crash" && self.down.load(Ordering::SeqCst) {
            return Err(HandlerError::call_failed("500", "it crashed"));
        }
        if letter.name == "hang" {
            std::future::pending::<()>().await;
        }
        if letter.name == "throttled" {
            return Err(HandlerError::busy("429", "not now"));
        }
        if letter.name == "odd" {
            return Err(HandlerError::unavailable("\0", "no code"));
        }
        if letter.name == "poison" || self.down.load(Ordering::SeqCst) {
            return Err(HandlerError::unavailable("503", "not now"));
        }
        self.sent.lock().unwrap().push(ctx.event_id());
        Ok(Done::ok())
    }

    async fn note(&self) -> HandlerResult {
        self.noted.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Ok(Done::ok())
    }
}

impl Dispatch for Post {
    type Event = Mailing;

    fn handlers<'a>(&'a self, event: &'a Mailing, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Mailing::Letter(_) if self.skips.load(Ordering::SeqCst) => {
                Handlers::one("send", self.note())
            }
            Mailing::Letter(letter) => {
                Handlers::one("send", self.send(letter, ctx)).calls("carrier")
            }
            Mailing::Note(_) => Handlers::one("note", self.note()),
            Mailing::Both(letter) => Handlers::one("note", self.note())
                .and("send", self.send(letter, ctx))
                .calls("carrier"),
        }
    }
}

fn letter(name: &str) -> NewEvent {
    NewEvent::of(&Mailing::Letter(Letter {
        name: name.to_owned(),
    }))
    .unwrap()
}

fn note() -> NewEvent {
    NewEvent::of(&Mailing::Note(Letter {
        name: String::new(),
    }))
    .unwrap()
}

/// A run at default settings, with all the time that a busy machine may need.
async fn drain(db: &TestDb, post: &Arc<Post>) -> DrainReport {
    let options = DrainOptions {
        budget: Duration::from_mins(2),
        ..DrainOptions::default()
    };
    let report = tidegate::drain(&db.database(), post.clone(), &options).await;
    let report = report.unwrap();
    assert!(report.is_balanced(), "{report:?}");
    report
}

/// The time until the service is tried again, and until events that were put back may run, has passed.
async fn time_passes(client: &Client) {
    let sql = "UPDATE tidegate.service SET retry_at = clock_timestamp() WHERE state IN ('open', 'probing');
               UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE available_at > clock_timestamp()";
    client.batch_execute(sql).await.unwrap();
}

/// State and unanswered calls in a row.
async fn carrier(client: &Client) -> (ServiceState, u32) {
    let services = queue::services(client).await.unwrap();
    services
        .iter()
        .find(|service| service.service == "carrier")
        .map_or_else(Default::default, |found| (found.state, found.failures))
}

/// Attempts that the live events have lost, together.
async fn attempts(client: &Client) -> i64 {
    let sql = "SELECT coalesce(sum(attempts), 0)::bigint FROM tidegate.event_queue";
    number(client, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_no_attempt_and_few_calls_and_holds_up_nothing_else() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    let mut events: Vec<NewEvent> = (0..3000).map(|n| letter(&n.to_string())).collect();
    events.extend((0..200).map(|n| letter(&n.to_string()).group(format!("group {}", n % 20))));
    events.extend((0..1000).map(|_| note()));
    let ids = publish(&client, events).await;
    // Ten ticks, of which each meets the service as it is: down.
    let (mut deferred, mut made) = (0, 0);
    for tick in 0..10 {
        let report = drain(&db, &post).await;
        assert_eq!((report.failed, report.retried), (0, 0), "{report:?}");
        assert_eq!(report.stop_reason, StopReason::QueueEmpty);
        if tick == 0 {
            assert_eq!(report.completed, 1000, "{report:?}");
        }
        deferred += report.deferred;
        let calls = report.services["carrier"];
        assert_eq!(calls.unavailable, calls.calls, "{report:?}");
        made += calls.calls;
        let [down] = report.services_down.as_slice() else {
            panic!("{report:?}")
        };
        assert_eq!((down.service.as_str(), down.waiting), ("carrier", 3200));
        time_passes(&client).await;
    }
    assert_eq!((live(&client).await, attempts(&client).await), (3200, 0));
    // What was at work when it went down, and one for each tick.
    assert!(post.calls() <= 5 + 64 + 10, "{} calls", post.calls());
    assert_eq!(made, post.calls() as u64);
    assert!(deferred >= 5 + 9, "{deferred}");
    post.set_down(false);
    let report = drain(&db, &post).await;
    assert_eq!(report.completed, 3200, "{report:?}");
    assert_eq!(carrier(&client).await, (ServiceState::Closed, 0));
    let charged = "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1 OR errors <> '[]'";
    assert_eq!(number(&client, charged).await, 0);
    in_order(&ids[3000..3200], &post);
}

/// Events of each of the twenty groups were sent in the order they were published.
fn in_order(ids: &[i64], post: &Post) {
    let sent = post.sent.lock().unwrap();
    let place: HashMap<i64, usize> = sent.iter().enumerate().map(|(n, id)| (*id, n)).collect();
    for (number, id) in ids.iter().enumerate().skip(20) {
        assert!(place[id] > place[&ids[number - 20]], "event {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_a_healthy_service_never_answers_spends_its_attempts_alone() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Arc::new(Post::default());
    let poison = publish(&client, vec![letter("poison")]).await[0];
    for _ in 0..12 {
        publish(&client, (0..50).map(|n| letter(&n.to_string()))).await;
        drain(&db, &post).await;
        time_passes(&client).await;
    }
    let end = end_of(&client, poison).await;
    assert!(end.starts_with("FAILED 5 "), "{end}");
    assert_eq!(post.sent.lock().unwrap().len(), 600);
    let innocents =
        "SELECT count(*) FROM tidegate.event_log WHERE status <> 'COMPLETED' OR attempts > 1";
    assert_eq!(number(&client, innocents).await, 1);
    assert_eq!(carrier(&client).await.0, ServiceState::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_a_busy_service_puts_off_costs_no_attempt_though_others_are_answered() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Arc::new(Post::default());
    publish(&client, vec![letter("throttled")]).await;
    for _ in 0..12 {
        publish(&client, (0..50).map(|n| letter(&n.to_string()))).await;
        drain(&db, &post).await;
        time_passes(&client).await;
    }
    assert_eq!(post.sent.lock().unwrap().len(), 600);
    assert!(post.calls() >= 612, "{}", post.calls());
    assert_eq!((live(&client).await, attempts(&client).await), (1, 0));
}

/// Whose fault a crash is, nobody knows: each is charged, and a service that crashes at every event stops
/// after a few. So does one that never answers in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_fails_at_every_event_costs_a_few_attempts_and_all_others_wait() {
    for name in ["crash", "hang"] {
        let (db, client) = opened_for::<Mailing>().await;
        let post = Post::down();
        publish(&client, (0..300).map(|_| letter(name))).await;
        let options = DrainOptions {
            budget: Duration::from_mins(2),
            concurrency: 4,
            handler_timeout: Duration::from_millis(200),
            ..DrainOptions::default()
        };
        let report = tidegate::drain(&db.database(), post.clone(), &options).await;
        report.unwrap();
        assert_eq!(carrier(&client).await.0, ServiceState::Open, "{name}");
        let charged = attempts(&client).await;
        // Those at work when it opens; a slow machine may have tried it once more.
        assert!((5..20).contains(&charged), "{name}: {charged} attempts");
        assert_eq!(
            (live(&client).await, i64::try_from(post.calls())),
            (300, Ok(charged)),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_tries_one_event_however_many_are_there() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    publish(&client, (0..500).map(|n| letter(&n.to_string()))).await;
    drain(&db, &post).await;
    let calls = post.calls();
    time_passes(&client).await;
    post.slow.store(true, Ordering::SeqCst);
    let others = async {
        while post.calls() == calls {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // One is trying; they find nothing to do.
        let together = (0..3).map(|_| drain(&db, &post));
        let reports = futures_util::future::join_all(together).await;
        // The next hold is so long that no machine needs it for the end of a run.
        let held_often = "UPDATE tidegate.service SET holds = 9";
        client.batch_execute(held_often).await.unwrap();
        post.slow.store(false, Ordering::SeqCst);
        reports
    };
    let (report, reports) = tokio::join!(drain(&db, &post), others);
    assert_eq!(post.calls(), calls + 1, "{report:?}, {reports:?}");
    assert_eq!(carrier(&client).await.0, ServiceState::Open);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_tries_a_service_is_another_event_each_time_and_a_prober_that_dies_is_followed() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    let first = publish(&client, vec![letter("poison"), letter("a"), letter("b")]).await[0];
    for _ in 0..6 {
        drain(&db, &post).await;
        time_passes(&client).await;
    }
    assert_eq!(carrier(&client).await.0, ServiceState::Open);
    // It is well again; what never works does not keep the others from finding out.
    post.set_down(false);
    // A worker was about to try, and is gone.
    let gone = "UPDATE tidegate.service SET state = 'probing', prober = gen_random_uuid()";
    client.batch_execute(gone).await.unwrap();
    for _ in 0..3 {
        time_passes(&client).await;
        drain(&db, &post).await;
    }
    let sent = post.sent.lock().unwrap().clone();
    assert_eq!((sent.len(), sent.contains(&first)), (2, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_handlers_of_an_event_that_waits_run_once() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    let both = Mailing::Both(Letter {
        name: "x".to_owned(),
    });
    publish(&client, vec![NewEvent::of(&both).unwrap()]).await;
    for _ in 0..3 {
        drain(&db, &post).await;
        time_passes(&client).await;
    }
    post.set_down(false);
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 1);
    assert_eq!(post.noted.load(Ordering::SeqCst), 1);
    assert_eq!(post.sent.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_refused_open_the_circuit_at_once_and_a_service_says_when_to_come_back()
 {
    let (_db, client) = opened_for::<Mailing>().await;
    let report = |code: &'static str, seconds: Option<f64>| {
        let client = &client;
        async move {
            let sql = "SELECT tidegate.report_service('x', gen_random_uuid(), false, 1, $1, $2, '{letter}', false) IS NOT NULL";
            client.query_one(sql, &[&code, &seconds]).await.unwrap();
            let sql = "SELECT state, extract(epoch FROM retry_at - clock_timestamp())::float8 FROM tidegate.service";
            let row = client.query_one(sql, &[]).await.unwrap();
            (row.get::<_, String>(0), row.get::<_, Option<f64>>(1))
        }
    };
    assert_eq!(report("503", None).await, ("closed".to_owned(), None));
    let (state, retry_in) = report("credentials", None).await;
    assert_eq!(state, "open");
    assert!(
        retry_in.is_some_and(|seconds| seconds < 6.0),
        "{retry_in:?}"
    );
    let reset = "UPDATE tidegate.service SET state = 'closed', failures = 4";
    client.batch_execute(reset).await.unwrap();
    let (state, retry_in) = report("429", Some(600.0)).await;
    assert_eq!(state, "open");
    assert!(
        retry_in.is_some_and(|seconds| seconds > 500.0),
        "{retry_in:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_flaps_is_left_alone_for_longer_and_kills_nothing() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    let total = 400;
    publish(&client, (0..total).map(|n| letter(&n.to_string()))).await;
    let mut holds = Vec::new();
    for turn in 0..20 {
        post.set_down(turn % 2 == 0);
        let options = DrainOptions {
            max_events: Some(30),
            ..DrainOptions::default()
        };
        tidegate::drain(&db.database(), post.clone(), &options)
            .await
            .unwrap();
        let sql = "SELECT coalesce(max(holds), 0)::bigint FROM tidegate.service";
        holds.push(number(&client, sql).await);
        time_passes(&client).await;
    }
    post.set_down(false);
    drain(&db, &post).await;
    let completed = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, completed).await, i64::from(total));
    assert!(holds.iter().max() > Some(&2), "{holds:?}");
}

#[tokio::test]
async fn an_operator_pauses_a_service_and_resumes_it() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Arc::new(Post::default());
    let cli = Cli::on(&db).with("TIDEGATE_ACTOR", "ada");
    let why = ["--reason", "the carrier moves house"];
    let paused = [&["service", "carrier", "--pause"][..], &why].concat();
    let done = cli.json(&paused).await;
    has(&done, &json!({"state": "paused", "known": false}));
    publish(&client, (0..100).map(|n| letter(&n.to_string()))).await;
    let report = drain(&db, &post).await;
    assert_eq!((report.completed, post.calls()), (0, 0), "{report:?}");
    let told = cli.run(&["services"]).await;
    assert!(
        ["carrier", "paused", "100"]
            .iter()
            .all(|word| told.stdout.contains(word)),
        "{told:?}"
    );
    let told = cli.run(&["status"]).await;
    assert!(told.stdout.contains("carrier is paused since"), "{told:?}");
    // Time does not end it.
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 0);
    let resumed = [&["service", "carrier", "--resume"][..], &why].concat();
    assert_eq!(cli.json(&resumed).await["changed"], true);
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 100);
    let audit = "SELECT count(*) FROM tidegate.audit WHERE actor = 'ada' AND action IN ('pause_service', 'resume_service')";
    let found = (number(&client, audit).await, attempts(&client).await);
    assert_eq!(found, (2, 0));
    let unknown = [&["service", "carier", "--resume"][..], &why].concat();
    cli.run(&unknown).await.failed(
        2,
        &["service: must be a service that has failed or was paused, got 'carier'"],
    );
    let misspelled = [&["service", "carier", "--pause"][..], &why].concat();
    let told = cli.run(&misspelled).await;
    contains(&told.stdout, "spelled as handlers spell it");
    cli.run(&["service", "carrier", "--pause"])
        .await
        .failed(2, &["--reason"]);
}

/// A resumed service has not answered by that: whoever resumes it too early charges nobody.
#[tokio::test]
async fn a_service_resumed_while_it_is_still_down_costs_no_event_an_attempt() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    let cli = Cli::on(&db).with("TIDEGATE_ACTOR", "ada");
    publish(&client, (0..6).map(|n| letter(&n.to_string()))).await;
    drain(&db, &post).await;
    for round in ["--resume", "--pause", "--resume", "--resume"] {
        let called = post.calls();
        cli.json(&["service", "carrier", round, "--reason", "they say it is up"])
            .await;
        time_passes(&client).await;
        drain(&db, &post).await;
        assert_eq!(post.calls() > called, round == "--resume", "{round}");
        assert_eq!(attempts(&client).await, 0, "{round}");
    }
    post.set_down(false);
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 6);
    let watched = "SELECT count(*) FROM tidegate.service AS s WHERE tidegate.is_watched(s)";
    assert_eq!(number(&client, watched).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_another_program_keeps_this_one_from_nothing() {
    let (db, client) = opened_for::<Mailing>().await;
    let theirs = "INSERT INTO tidegate.service (service, state, retry_at, kinds)
                  VALUES ('theirs', 'open', clock_timestamp() - interval '1 hour', '{case_opened}')";
    client.batch_execute(theirs).await.unwrap();
    let post = Arc::new(Post::default());
    publish(&client, (0..3000).map(|n| letter(&n.to_string()))).await;
    let report = drain(&db, &post).await;
    assert_eq!(report.completed, 3000, "{report:?}");
    let still = "SELECT count(*) FROM tidegate.service WHERE state = 'open'";
    assert_eq!(number(&client, still).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_a_services_row_for_ever_holds_up_no_drain() {
    let db = database_for::<Mailing>().await;
    let (client, mut holder) = (db.client().await, db.client().await);
    let post = Post::down();
    publish(&client, (0..20).map(|n| letter(&n.to_string()))).await;
    drain(&db, &post).await;
    time_passes(&client).await;
    let held = holder.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.service FOR UPDATE";
    held.batch_execute(lock).await.unwrap();
    publish(&client, (0..2000).map(|_| note())).await;
    let report = drain(&db, &post).await;
    assert_eq!((report.completed, report.failed), (2000, 0), "{report:?}");
    // A handler that fails meanwhile cannot tell, and loses no attempt by that.
    let opened = "SELECT count(*) FROM tidegate.service WHERE state <> 'open'";
    assert_eq!(number(&client, opened).await, 0);
    held.rollback().await.unwrap();
    post.set_down(false);
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 20);
    assert_eq!(attempts(&client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_failure_that_cannot_be_stored_harms_only_its_own_event() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Arc::new(Post::default());
    let mut events = vec![letter("odd")];
    events.extend((0..2000).map(|n| letter(&n.to_string())));
    publish(&client, events).await;
    let report = drain(&db, &post).await;
    assert_eq!((report.completed, report.failed), (2000, 0), "{report:?}");
    assert_eq!(live(&client).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_service_that_nobody_calls_any_more_is_done_in_one_drain() {
    let (db, client) = opened_for::<Mailing>().await;
    let ids = publish(&client, (0..100).map(|n| letter(&n.to_string()))).await;
    let ghost = "INSERT INTO tidegate.service (service, state, retry_at, kinds)
                 VALUES ('ghost', 'open', clock_timestamp(), '{letter}')";
    client.batch_execute(ghost).await.unwrap();
    let post = Arc::new(Post::default());
    let report = drain(&db, &post).await;
    assert_eq!(
        (report.completed, report.backlog),
        (100, Some(0)),
        "{report:?}"
    );
    assert_eq!(post.calls(), ids.len());
    // One event tries it, and none of the others has to.
    assert!(report.batches < 10, "{report:?}");
    let shut =
        "SELECT count(*) FROM tidegate.service WHERE service = 'ghost' AND state <> 'closed'";
    assert_eq!(number(&client, shut).await, 0);
}

/// Whatever waits for the carrier, and the carrier itself, has waited for this much longer.
async fn has_waited(client: &Client, time: &str) {
    let sql = format!(
        "UPDATE tidegate.service SET since = since - interval '{time}';
         UPDATE tidegate.event_queue
            SET available_at = available_at - interval '{time}', waits_since = waits_since - interval '{time}'
          WHERE NOT delayed OR waits_since IS NOT NULL"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// How many events have ended with this code.
async fn given_up(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.event_log
                WHERE status = 'FAILED' AND errors->-1->>'code' = 'service_down' AND attempts = 0";
    number(client, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_what_has_waited_for_a_service_for_a_week_ends_and_nothing_else_does() {
    let db = database_for::<Mailing>().await;
    let client = db.client().await;
    let post = Post::down();
    let planned = letter("planned").delay(Duration::from_hours(24));
    let mut events: Vec<NewEvent> = (0..30).map(|n| letter(&n.to_string())).collect();
    events.extend([letter("head").group("g"), note().group("g"), planned]);
    let ids = publish(&client, events).await;
    // Some have had an attempt, and others have not.
    drain(&db, &post).await;
    has_waited(&client, "6 days 23 hours").await;
    assert_eq!(drain(&db, &post).await.given_up, 0);
    let told = Cli::on(&db).run(&["doctor"]).await.stdout;
    // They wait from their next try on, which may be a moment ahead.
    let says = |left| told.contains(&format!("events wait, the first ends FAILED in {left}"));
    assert!(says("59m") || says("1h"), "{told}");
    let fresh = publish(&client, vec![letter("fresh"), letter("fresh").group("g")]).await;
    has_waited(&client, "1 hour").await;
    let sql =
        "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE id = ANY ($1)";
    client.execute(sql, &[&fresh]).await.unwrap();
    let report = drain(&db, &post).await;
    assert_eq!((report.given_up, report.failed), (31, 0), "{report:?}");
    assert_eq!(given_up(&client).await, 31);
    // Its group goes on, and what is planned or new waits.
    let end = end_of(&client, ids[31]).await;
    assert!(end.starts_with("COMPLETED "), "{end}");
    assert_eq!((live(&client).await, attempts(&client).await), (3, 0));
    let counted = "SELECT sum(events)::bigint FROM tidegate.daily_stats WHERE status = 'FAILED'";
    assert_eq!(number(&client, counted).await, 31);
    // The outage is over: what has waited for less is done.
    post.set_down(false);
    time_passes(&client).await;
    assert_eq!(drain(&db, &post).await.completed, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_waits_as_long_as_its_policy_says_and_what_is_paused_waits_on() {
    let db = database_for::<Mailing>().await;
    let client = db.client().await;
    let (cli, post) = (Cli::on(&db), Post::down());
    publish(&client, (0..10).map(|n| letter(&n.to_string()))).await;
    drain(&db, &post).await;
    let late = r#"SELECT tidegate.register_kind('letter', '{"give_up_after_ms": 3600000}')"#;
    client.batch_execute(late).await.unwrap();
    has_waited(&client, "2 hours").await;
    let why = ["--reason", "we wait"];
    cli.json(&[&["pause", "letter"][..], &why].concat()).await;
    let ended = async || cli.json(&["cleanup", "--dry-run"]).await["given_up"].clone();
    let found = (drain(&db, &post).await.given_up, ended().await);
    assert_eq!(found, (0, json!(0)));
    let told = cli.run(&["doctor"]).await.stdout;
    assert!(!told.contains("ends FAILED"), "{told}");
    cli.json(&[&["resume", "letter"][..], &why].concat()).await;
    assert_eq!(ended().await, 10);
    cli.json(&[&["service", "carrier", "--pause"][..], &why].concat())
        .await;
    has_waited(&client, "2 hours").await;
    let seen = (drain(&db, &post).await.given_up, ended().await);
    assert_eq!(seen, (0, json!(0)));
    let sql = "UPDATE tidegate.service SET state = 'open'";
    client.batch_execute(sql).await.unwrap();
    let cleanup = cli.json(&["cleanup"]).await;
    let expected = (&json!(10), 10);
    assert_eq!((&cleanup["given_up"], given_up(&client).await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_expected_after_the_next_try_of_the_service_that_holds_it_or_its_group_up() {
    let db = database_for::<Mailing>().await;
    let client = db.client().await;
    let post = Post::down();
    let events = [letter("head").group("g"), note().group("g"), note()];
    let ids = publish(&client, events).await;
    drain(&db, &post).await;
    let late = "UPDATE tidegate.service SET state = 'open', kinds = '{letter}', retry_at = clock_timestamp() + interval '10 minutes'";
    client.batch_execute(late).await.unwrap();
    let tick = Duration::from_mins(1);
    let next = "SELECT to_char(retry_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') FROM tidegate.service";
    let next: String = client.query_one(next, &[]).await.unwrap().get(0);
    for id in &ids[..2] {
        let eta = queue::job(&client, *id, tick).await.unwrap().unwrap().eta;
        assert!(eta > next, "{eta} {next}");
    }
    let done = queue::job(&client, ids[2], tick).await.unwrap().unwrap();
    assert!(done.eta < next, "it waits for nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_waited_for_a_service_and_calls_none_any_more_is_done_in_one_drain() {
    let (db, client) = opened_for::<Mailing>().await;
    let post = Post::down();
    publish(&client, (0..100).map(|n| letter(&n.to_string()))).await;
    drain(&db, &post).await;
    post.skips.store(true, Ordering::SeqCst);
    time_passes(&client).await;
    let report = drain(&db, &post).await;
    assert_eq!(report.completed, 100, "{report:?}");
    assert!(report.batches < 10, "{report:?}");
}
