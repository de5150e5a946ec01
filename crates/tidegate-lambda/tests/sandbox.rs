//! What a run leaves behind in its process, and what a frozen one may still trust.
//!
//! A function here is this very test binary, started again for an ignored test that runs a program as Lambda
//! does: it executes itself anew as the real one does.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use test_support::clock::Clock;
use test_support::probe::{
    Probe, ProbeApp, act, end_of, live, number, options, probe, publish_acts,
};
use test_support::worker::Worker;
use test_support::{self as support, Answer, Deadline, RuntimeApi, TestDb, wait_until};
use tidegate::{Context, Database, Dispatch, Done, DrainOptions, DrainReport, Handlers};
use tidegate_admin::Program;
use tidegate_core::queue;
use tokio_postgres::NoTls;

/// Where a handler of [`Blocking`] writes as long as it goes on.
const SIGNS: &str = "TIDEGATE_TEST_SIGNS";

/// Its events named `blocking` keep their threads for ever.
struct Blocking;

impl Dispatch for Blocking {
    type Event = Probe;

    fn handlers<'a>(&'a self, event: &'a Probe, _: &'a Context) -> Handlers<'a> {
        Handlers::one("act", async move {
            let blocks = matches!(event, Probe::Act(act) if act.name == "blocking");
            if let Some(signs) = std::env::var_os(SIGNS).filter(|_| blocks) {
                give_signs(Path::new(&signs));
            }
            Ok(Done::ok())
        })
    }
}

fn give_signs(file: &Path) {
    let mut signs = File::create(file).unwrap();
    loop {
        signs.write_all(b".").unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "the function of the tests in this file"]
fn function() {
    tidegate_lambda::run(Program::new(|_| Ok(Blocking))).unwrap();
}

/// A function with a handler that can block, until the test is over.
struct Function {
    api: RuntimeApi,
    _process: Worker,
    folder: tempfile::TempDir,
}

impl Function {
    async fn on(db: &TestDb) -> Self {
        let (api, folder) = (RuntimeApi::start().await, tempfile::tempdir().unwrap());
        let signs = folder.path().join("signs").display().to_string();
        let mut variables = vec![
            (SIGNS, signs),
            ("TIDEGATE_HANDLER_TIMEOUT", "300ms".to_owned()),
        ];
        variables.extend(api.variables());
        Self {
            _process: Worker::of("function", db, &variables),
            api,
            folder,
        }
    }

    async fn drain(&self, deadline: Duration) -> Answer {
        let asked = json!({"action": "drain"}).to_string();
        self.api.invoke(asked, Deadline::In(deadline)).await
    }

    /// How many signs of life the handler has given.
    fn signs(&self) -> u64 {
        let file = self.folder.path().join("signs");
        file.metadata().unwrap().len()
    }
}

fn report(answer: Answer) -> DrainReport {
    assert!(!answer.is_error, "{answer:?}");
    serde_json::from_value(answer.body).unwrap()
}

#[tokio::test]
async fn a_handler_that_goes_on_behind_its_answer_does_not_live_to_see_the_next_invocation() {
    let (db, client) = probe().await;
    let blocking = act("blocking").max_attempts(1);
    let blocking = queue::publish(&client, &blocking).await.unwrap().id;
    let function = Function::on(&db).await;
    let spoiled = report(function.drain(support::PATIENCE).await);
    assert_eq!((spoiled.failed, spoiled.still_running), (1, 1));
    let end = "FAILED 1 timeout attempts_exhausted";
    assert_eq!(end_of(&client, blocking).await, end);

    publish_acts(&client, 3).await;
    let next = report(function.drain(support::PATIENCE).await);
    assert_eq!((next.completed, next.still_running), (3, 0), "{next:?}");
    let given = function.signs();
    assert!(given > 0, "it was alive until then");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(function.signs(), given, "the handler goes on");
    assert_eq!(live(&client).await, 0);
}

/// So far a clock jumps while a machine is suspended, in seconds: longer than any lease.
const SUSPENDED: i64 = 3600;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the tests in this file"]
async fn suspended_worker() {
    let url = std::env::var("DATABASE_URL").unwrap();
    let first = url.clone();
    let app = ProbeApp::new(move |_, _| {
        let url = first.clone();
        Box::pin(async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let begun = "UPDATE stage SET at = 'running' WHERE at = 'new'";
            client.batch_execute(begun).await.unwrap();
            // It may be through a pooler.
            let thawed = "SELECT 1 FROM stage WHERE at = 'thawed'";
            while client.simple_query(thawed).await.unwrap().len() < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(Done::ok())
        })
    });
    let options = DrainOptions {
        lease_timeout: Duration::from_mins(10),
        handler_timeout: Duration::from_mins(5),
        budget: support::PATIENCE,
        ..options()
    };
    let database = Database::new(&url, 2).unwrap();
    let report = tidegate::drain(&database, app, &options).await.unwrap();
    println!("REPORT {}", serde_json::to_string(&report).unwrap());
}

/// As after a machine was suspended: the monotonic clock has stood still, the wall clock has not.
#[tokio::test]
async fn i5_what_waited_while_its_machine_was_suspended_is_not_begun_under_the_old_lease() {
    let Some(clock) = Clock::get() else {
        return;
    };
    let (db, client) = probe().await;
    let stage = "CREATE TABLE stage (at text NOT NULL); INSERT INTO stage VALUES ('new')";
    client.batch_execute(stage).await.unwrap();
    let events = 50;
    publish_acts(&client, events).await;
    let variables = clock.variables();
    let variables: Vec<(&str, String)> = variables
        .iter()
        .map(|(name, value)| (&**name, value.clone()))
        .collect();
    let worker = Worker::of("suspended_worker", &db, &variables);
    let runs = "SELECT count(*) FROM stage WHERE at = 'running'";
    wait_until("a handler runs", async || number(&client, runs).await == 1).await;
    clock.set(SUSPENDED);
    let thaw = "UPDATE stage SET at = 'thawed'";
    client.batch_execute(thaw).await.unwrap();
    let report = worker.report().expect("it ends by itself");
    // A drain leases a little ahead while it does not know how long handlers take.
    let ahead = u64::try_from(options().concurrency).unwrap();
    assert!(report.released >= ahead, "{report:?}");
    assert!(report.is_balanced() && report.lease_lost == 0, "{report:?}");
    // Under the next lease.
    let found = report.completed;
    assert_eq!(found, u64::try_from(events).unwrap(), "{report:?}");
    assert_eq!(live(&client).await, 0);
}
