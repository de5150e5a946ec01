//! Owns the environment of a run: its own Postgres cluster with the default durability, which can be crashed;
//! a folder for evidence; and the contents of the database after the run.
//!
//! The cluster listens on the loopback address, uses a temporary folder, and runs as long as this process
//! holds a pipe open.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, Event, NewEvent, publish_batch};
use tokio_postgres::NoTls;

use crate::actor::{CANARY, Torture, Work, new_event};
use crate::checker::{History, Violation, check};
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::journal::{self, Journal, Record, Told};
use crate::watch::{Watch, breaches};
use test_support::served::Served;

/// Data that the checker needs but the product does not store: events that entered and left leases, charges,
/// and log rows that the cleanup has removed. Triggers write it, so it commits together with the change it
/// describes.
const WITNESS: &str = include_str!("witness.sql");

/// The database of a run, and the place of its evidence.
pub struct World {
    pub url: String,
    pub seed: u64,
    pub random: fastrand::Rng,
    pub journal: Journal,
    /// How long everything may take to end once all faults are repaired.
    pub patience: Duration,
    evidence: PathBuf,
    watch: Watch,
    server: Served,
}

impl World {
    /// Starts a cluster with options of `scripts/postgres.py serve`, and migrates it.
    pub async fn start(experiment: &str, seed: u64, options: &[String]) -> Self {
        let evidence = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("target/torture")
            .join(format!("{experiment}-{seed}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&evidence);
        for folder in ["journals", "logs"] {
            std::fs::create_dir_all(evidence.join(folder)).unwrap();
        }
        let server = serve(options);
        let url = server.url("postgres");
        prepare(&url).await;
        Self {
            watch: Watch::begin(url.clone()),
            url,
            seed,
            random: fastrand::Rng::with_seed(seed),
            journal: Journal::open(&evidence.join("journals/test.jsonl")),
            patience: Duration::from_mins(3),
            evidence,
            server,
        }
    }

    pub fn journal_path(&self, name: &str) -> PathBuf {
        self.evidence.join("journals").join(format!("{name}.jsonl"))
    }

    pub fn log_path(&self, name: &str) -> PathBuf {
        self.evidence.join("logs").join(format!("{name}.log"))
    }

    /// Opens a connection that bypasses everything under test.
    pub async fn client(&self) -> Client {
        self.try_client().await.expect("the server answers")
    }

    async fn try_client(&self) -> Option<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client.into())
    }

    /// `pg_ctl stop -m immediate`.
    pub fn crash_server(&mut self) {
        self.journal.write(Record::ServerCrashed);
        self.server.obey("crash");
    }

    pub fn start_server(&mut self) {
        self.server.obey("start");
        self.journal.write(Record::ServerStarted);
    }

    /// Returns everything that processes have recorded so far.
    pub fn journals(&self) -> Vec<journal::Left> {
        journal::read_all(&self.evidence.join("journals"))
    }

    /// Waits for a fact in the journals, as long as [`World::patience`].
    pub async fn wait_for(&self, what: &str, holds: impl Fn(&[journal::Left]) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !holds(&self.journals()) {
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}; seed {}",
                self.seed
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Publishes all events in one publish and records it like a publisher. Returns their ids.
    pub async fn publish(
        &self,
        name: &str,
        events: Vec<(Option<String>, Torture)>,
        max_attempts: u16,
    ) -> Vec<i64> {
        let told: Vec<Told> = events
            .iter()
            .map(|(group, Torture::Plain(work) | Torture::Kept(work))| Told {
                key: work.key.clone(),
                group: group.clone(),
            })
            .collect();
        let new: Vec<NewEvent> = told
            .iter()
            .zip(&events)
            .map(|(told, (_, event))| new_event(told, event, max_attempts))
            .collect();
        let publish = name.to_owned();
        self.journal.write(Record::Trying {
            publish,
            events: told,
        });
        let published = publish_batch(&self.client().await, &new).await.unwrap();
        let ids: Vec<i64> = published.iter().map(|published| published.id).collect();
        let (publish, all) = (name.to_owned(), ids.clone());
        self.journal
            .write(Record::Acknowledged { publish, ids: all });
        ids
    }

    /// Records that handlers may publish these follow-ups.
    pub fn foretell(&self, works: &[Work]) {
        for work in works {
            let told = Told {
                key: work.next_key(),
                group: work.follow_up.clone(),
            };
            self.journal.write(Record::Trying {
                publish: told.key.clone(),
                events: vec![told],
            });
        }
    }

    /// Waits until a query returns this number, as long as [`World::patience`]. Returns whether it did.
    pub async fn comes_to(&self, sql: &str, number: i64) -> bool {
        let deadline = Instant::now() + self.patience;
        while self.number(sql).await != number {
            if Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// Returns the path of a file of the evidence.
    pub fn path(&self, name: &str) -> PathBuf {
        self.evidence.join(name)
    }

    /// Reads one number from the database.
    pub async fn number(&self, sql: &str) -> i64 {
        self.client()
            .await
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0)
    }

    /// Lets the workers of `fleet` end all events within [`World::patience`], and then end themselves.
    pub async fn drain(&self, fleet: &mut Fleet) {
        let deadline = Instant::now() + self.patience;
        while Instant::now() < deadline {
            if let Some(client) = self.try_client().await {
                let left = client
                    .query_one("SELECT count(*) FROM tidegate.event_queue", &[])
                    .await;
                if left.is_ok_and(|row| row.get::<_, i64>(0) == 0) {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        fleet.finish(self);
    }

    /// Returns the history of the run. Call it when no process writes any more.
    pub async fn history(&self, drained: bool) -> History {
        let client = self.client().await;
        let replays =
            "SELECT coalesce(sum(count), 0)::bigint FROM tidegate.audit WHERE action = 'replay'";
        let replays: i64 = client.query_one(replays, &[]).await.unwrap().get(0);
        let requeued = "SELECT DISTINCT unnest(ids) FROM tidegate.audit WHERE action = 'requeue'";
        let requeued = client.query(requeued, &[]).await.unwrap();
        let (looks, mut seen) = self.watch.seen();
        seen.extend(breaches(&client).await.unwrap());
        History {
            journals: self.journals(),
            rows: table(&client, "torture.rows").await,
            takings: table(&client, "torture.takings").await,
            departures: table(&client, "torture.departures").await,
            charges: table(&client, "torture.charges").await,
            endings: table(&client, "torture.endings").await,
            looks,
            seen,
            effects: table(&client, "torture.effect").await,
            replays: replays.unsigned_abs(),
            requeued: requeued.iter().map(|row| row.get(0)).collect(),
            drained,
            leaks: self.leaks(),
        }
    }

    fn leaks(&self) -> Vec<String> {
        let logs = std::fs::read_dir(self.evidence.join("logs")).unwrap();
        logs.flat_map(|log| {
            let log = log.unwrap().path();
            let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
            let told: Vec<String> = text
                .lines()
                .filter(|line| line.contains(CANARY))
                .map(|line| format!("{}: {line}", log.display()))
                .collect();
            told
        })
        .collect()
    }

    /// Whether programs wrote their logs on different days.
    pub fn logs_tell_of_days_apart(&self) -> bool {
        let logs = std::fs::read_dir(self.evidence.join("logs")).unwrap();
        let days: BTreeSet<String> = logs
            .filter_map(|log| {
                let text = std::fs::read(log.unwrap().path()).unwrap();
                let text = String::from_utf8_lossy(&text);
                text.get(..10)
                    .filter(|day| day.starts_with("20"))
                    .map(ToOwned::to_owned)
            })
            .collect();
        days.len() > 1
    }

    /// Checks all promises, and keeps the evidence if one is broken.
    pub async fn judge(self, further: Vec<Violation>) -> Result<Figures, String> {
        let history = self.history(true).await;
        let mut violations = check(&history);
        violations.extend(further);
        if violations.is_empty() {
            let _ = std::fs::remove_dir_all(&self.evidence);
            return Ok(Figures::of(&history));
        }
        self.keep(&history);
        let mut text = format!(
            "{} violations with seed {}; evidence: {}",
            violations.len(),
            self.seed,
            self.evidence.display()
        );
        for violation in violations.iter().take(20) {
            text = format!("{text}\n{violation}");
        }
        Err(text)
    }

    /// Ends a negative control, in which a broken promise must be found.
    pub async fn convict(self, further: Vec<Violation>) -> Result<Figures, String> {
        let history = self.history(false).await;
        let found = check(&history).len() + further.len();
        if found == 0 {
            return Err(format!(
                "nothing was found although a guard is missing; seed {}; evidence: {}",
                self.seed,
                self.evidence.display()
            ));
        }
        let figures = Figures::of(&history);
        self.forget();
        Ok(figures)
    }

    /// Replaces a part of a function in the database, for a negative control.
    pub async fn unguard(&self, function: &str, guard: &str, instead: &str) {
        let client = self.client().await;
        let sql = "SELECT pg_get_functiondef($1::text::regproc)";
        let definition = client.query_one(sql, &[&function]).await.unwrap();
        let definition: String = definition.get(0);
        assert!(definition.contains(guard), "{function} has no {guard:?}");
        let without = definition.replace(guard, instead);
        client.batch_execute(&without).await.unwrap();
    }

    /// Removes the evidence of a successful run.
    pub fn forget(self) {
        let _ = std::fs::remove_dir_all(&self.evidence);
    }

    fn keep(&self, history: &History) {
        self.keep_all("rows", &history.rows);
        self.keep_all("takings", &history.takings);
        self.keep_all("departures", &history.departures);
        self.keep_all("charges", &history.charges);
        self.keep_all("endings", &history.endings);
        self.keep_all("effects", &history.effects);
    }

    fn keep_all<T: Serialize>(&self, name: &str, values: &[T]) {
        let lines: String = values
            .iter()
            .map(|value| serde_json::to_string(value).unwrap() + "\n")
            .collect();
        std::fs::write(self.evidence.join(name).with_extension("jsonl"), lines).unwrap();
    }
}

/// Creates the schema, and the triggers that record changes.
async fn prepare(url: &str) {
    let database = Database::new(url, 1).unwrap();
    let migrate = Migrate::new(Torture::KINDS);
    migrate.run(&database).await.unwrap();
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(WITNESS).await.unwrap();
}

/// Reads the rows of a table or view.
async fn table<T: DeserializeOwned>(client: &Client, name: &str) -> Vec<T> {
    let sql = format!("SELECT row_to_json(t)::text FROM {name} AS t");
    let rows = client.query(&sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| serde_json::from_str(row.get(0)).unwrap())
        .collect()
}

/// A start after a crash need not sync every file of the folder.
fn serve(options: &[String]) -> Served {
    let obeys = ["--obey", "--set", "recovery_init_sync_method=syncfs"];
    let options = options.iter().map(String::as_str);
    let arguments: Vec<&OsStr> = obeys.into_iter().chain(options).map(OsStr::new).collect();
    let served = Served::start("scripts/postgres.py", &arguments);
    served.unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}"))
}
