//! Owns the environment of the bench: its own durable cluster, new databases, and queues that are always
//! filled in the same way.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidegate::migrate::Migrate;
use tidegate::{Database, DrainOptions, DrainReport, Event};
use tidegate_job::app;
use tidegate_job::app::TABLES;
use tokio_postgres::{Client, NoTls};

use crate::bare;
use crate::events::{App, TEXT_BYTES, Work};
use crate::measure::{Outcome, cpu_time, cpu_time_of_server, percentile, rate};

/// Number of rounds in which the variants of a workload are measured in turn.
pub const ROUNDS: u32 = 5;

/// Number of rounds of a slow workload.
pub const FEW_ROUNDS: u32 = 3;

/// Minimum number of rounds, however long they take.
pub const LEAST_ROUNDS: u32 = 2;

/// After this time a workload begins no further round, so that a slow machine also finishes in time.
const SHARE: Duration = Duration::from_mins(1);

/// The server, and the amount of work to do on it.
pub struct Bench {
    url: String,
    pub quick: bool,
    /// The server that was started here. It ends when this value is dropped.
    server: Option<Server>,
}

struct Server(Child);

impl Drop for Server {
    /// Closing its input tells the server to stop. When the script has ended, its files are removed.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A path inside the project.
pub fn project_file(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// Opens a plain connection, separate from everything that is measured.
pub async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Bench {
    /// Starts a cluster with durable commits, or uses the server at the URL `given`. Queues that are
    /// compared with each other must use the same server.
    pub async fn start(given: Option<String>, quick: bool) -> Outcome<Self> {
        let (url, server) = match given {
            Some(url) => (url, None),
            None => start_server().map(|(url, server)| (url, Some(server)))?,
        };
        let bench = Self { url, quick, server };
        if bench.server.is_some() {
            bench.calm().await?;
        }
        bench.refuse_unsafe().await?;
        Ok(bench)
    }

    /// Checkpoints happen only when the bench requests one before a measurement, not during it.
    async fn calm(&self) -> Outcome<()> {
        let admin = connect(&self.url).await?;
        for setting in ["max_wal_size = '8GB'", "checkpoint_timeout = '1h'"] {
            admin
                .batch_execute(&format!("ALTER SYSTEM SET {setting}"))
                .await?;
        }
        admin.batch_execute("SELECT pg_reload_conf()").await?;
        Ok(())
    }

    async fn refuse_unsafe(&self) -> Outcome<()> {
        let admin = connect(&self.url).await?;
        for name in ["fsync", "synchronous_commit", "full_page_writes"] {
            let row = admin
                .query_one("SELECT current_setting($1)", &[&name])
                .await?;
            let value: String = row.get(0);
            if value != "on" {
                return Err(format!(
                    "the server has {name} = {value}: figures without durable commits mean nothing"
                )
                .into());
            }
        }
        Ok(())
    }

    /// Returns up to `most` rounds. There are fewer in a quick run, or when the workload has used up its
    /// time.
    pub fn rounds(&self, most: u32) -> impl Iterator<Item = u32> {
        let began = Instant::now();
        let most = if self.quick {
            most.min(FEW_ROUNDS)
        } else {
            most
        };
        (0..most).take_while(move |round| *round < LEAST_ROUNDS || began.elapsed() < SHARE)
    }

    /// Returns a tenth in a quick run.
    pub fn scaled(&self, full: u32) -> u32 {
        if self.quick { full / 10 } else { full }
    }

    /// Returns what a reader must know to judge the figures.
    pub async fn head(&self) -> Outcome<Value> {
        let client = connect(&self.url).await?;
        let sql = "SELECT name, CASE WHEN source = 'default' THEN setting || ' (default)' ELSE setting END
                     FROM (SELECT name, current_setting(name) AS setting, source FROM pg_settings) AS s
                    WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level',
                          'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'autovacuum', 'jit')
                    ORDER BY name";
        let mut settings = Map::new();
        for row in client.query(sql, &[]).await? {
            settings.insert(row.get(0), Value::String(row.get(1)));
        }
        let cores = std::thread::available_parallelism()?.get();
        let commit = self.commit_ms(&client).await?;
        Ok(
            json!({"tidegate": env!("CARGO_PKG_VERSION"), "cores": cores, "processor": processor(),
                  "operating_system": operating_system(), "load_before": load(), "commit_ms": commit,
                  "set": if self.quick { "quick" } else { "full" }, "server": settings}),
        )
    }

    /// Measures a durable commit of one row on this machine, in milliseconds: the disk's part of every
    /// figure.
    async fn commit_ms(&self, client: &Client) -> Outcome<f64> {
        client
            .batch_execute("CREATE TABLE IF NOT EXISTS commit_probe (n integer)")
            .await?;
        let mut times = Vec::new();
        for _ in 0..100 {
            let began = Instant::now();
            client
                .batch_execute("INSERT INTO commit_probe VALUES (1)")
                .await?;
            times.push(began.elapsed().as_secs_f64() * 1000.0);
        }
        client.batch_execute("DROP TABLE commit_probe").await?;
        Ok((percentile(&times, 50) * 1000.0).round() / 1000.0)
    }

    /// Creates a new database with the schema and the bench's kinds.
    pub async fn queue(&self, name: &str) -> Outcome<Queue> {
        self.queue_of(name, Work::KINDS).await
    }

    /// Creates a new database with the schema, the shipped application and its kinds.
    pub async fn shipped(&self, name: &str) -> Outcome<Queue> {
        self.queue_of(name, app::Event::KINDS).await
    }

    async fn queue_of(&self, name: &str, kinds: &[&str]) -> Outcome<Queue> {
        let admin = connect(&self.url).await?;
        let name = format!("tidegate_bench_{name}");
        admin
            .batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            .await?;
        admin
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await?;
        let server = self
            .url
            .rsplit_once('/')
            .map_or(&*self.url, |found| found.0);
        let url = format!("{server}/{name}");
        let database = Database::new(&url, 1)?;
        Migrate::new(kinds).tables(&[TABLES]).run(&database).await?;
        let client = connect(&url).await?;
        Ok(Queue { url, name, client })
    }

    /// Drops a database to free its disk space.
    pub async fn drop(&self, queue: Queue) -> Outcome<()> {
        let name = queue.name.clone();
        drop(queue);
        let admin = connect(&self.url).await?;
        admin
            .batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
            .await?;
        Ok(())
    }
}

fn start_server() -> Outcome<(String, Server)> {
    let mut child = Command::new("python3")
        .arg(project_file("scripts/postgres.py"))
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("install Python 3, which starts Postgres: {error}"))?;
    let stdout = child
        .stdout
        .take()
        .ok_or("the server's output is no pipe")?;
    let server = Server(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let url = line.trim_end().strip_prefix("DATABASE_URL=");
    let url = url.ok_or("scripts/postgres.py said why above")?.to_owned();
    Ok((url, server))
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|rest| rest.split_once(':'));
    model.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |found| found.1.trim().to_owned(),
    )
}

fn operating_system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}", std::env::consts::OS, release.trim())
}

/// Returns the load average of the last minute. Above 1, other processes affect the measurements.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// The database of a workload.
pub struct Queue {
    pub url: String,
    name: String,
    /// For preparation and checks.
    pub client: Client,
}

/// How the events are grouped when a queue is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    None,
    /// This many groups. Consecutive events are in different groups.
    Of(u32),
}

/// A drain that emptied its queue.
pub struct Drained {
    pub report: DrainReport,
    pub count: u32,
    pub elapsed: Duration,
    pub cpu: Duration,
}

impl Drained {
    pub fn rate(&self) -> f64 {
        rate(self.count, self.elapsed)
    }
}

/// The default options, with a sufficient time budget.
pub fn defaults() -> DrainOptions {
    DrainOptions {
        budget: Duration::from_mins(10),
        ..DrainOptions::default()
    }
}

impl Queue {
    pub fn database(&self, pool: usize) -> Outcome<Database> {
        Ok(Database::new(&self.url, pool)?)
    }

    /// Empties the queue and the log.
    pub async fn clear(&self) -> Outcome<()> {
        self.client
            .batch_execute("TRUNCATE tidegate.event_queue, tidegate.event_log, tidegate.lease")
            .await?;
        Ok(())
    }

    /// Adds events with about 200 bytes of payload, as plain rows.
    pub async fn fill(&self, kind: &str, count: u32, groups: Groups) -> Outcome<()> {
        self.fill_with(kind, count, groups, TEXT_BYTES).await
    }

    /// The same, with this much text in each.
    pub async fn fill_with(
        &self,
        kind: &str,
        count: u32,
        groups: Groups,
        text_bytes: usize,
    ) -> Outcome<()> {
        let group = match groups {
            Groups::None => "NULL".to_owned(),
            Groups::Of(count) => format!("'group-' || n % {count}"),
        };
        let sql = format!(
            "INSERT INTO tidegate.event_queue (kind, payload, group_key)
             SELECT $1, json_build_object('number', n, 'text', repeat('x', {text_bytes})), {group}
               FROM generate_series(1, $2::bigint) AS n"
        );
        self.client
            .execute(&sql, &[&kind, &i64::from(count)])
            .await?;
        Ok(())
    }

    /// Updates the statistics, and writes every page to the disk.
    pub async fn settle(&self) -> Outcome<()> {
        self.client
            .batch_execute("ANALYZE tidegate.event_queue, tidegate.event_log")
            .await?;
        self.client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    /// Prepares a queue with only this many events without work.
    pub async fn prepare(&self, count: u32, groups: Groups) -> Outcome<()> {
        self.prepare_kind("bench_noop", count, groups).await
    }

    /// Moves the same events into the table of the bare move, and leaves the queue empty.
    pub async fn prepare_bare(&self, count: u32) -> Outcome<()> {
        self.prepare(count, Groups::None).await?;
        bare::take_over(&self.client).await
    }

    pub async fn prepare_kind(&self, kind: &str, count: u32, groups: Groups) -> Outcome<()> {
        self.clear().await?;
        self.fill(kind, count, groups).await?;
        self.settle().await
    }

    /// Drains `count` events over a connection to `url`, and checks that all were drained.
    pub async fn drain_over(
        &self,
        url: &str,
        count: u32,
        options: &DrainOptions,
    ) -> Outcome<Drained> {
        let database = Database::new(url, options.concurrency)?;
        self.drain_as(&database, App::new(), count, options).await
    }

    pub async fn drain(&self, count: u32, options: &DrainOptions) -> Outcome<Drained> {
        self.drain_over(&self.url, count, options).await
    }

    pub async fn drain_as(
        &self,
        database: &Database,
        app: Arc<App>,
        count: u32,
        options: &DrainOptions,
    ) -> Outcome<Drained> {
        let (began, cpu) = (Instant::now(), cpu_time()?);
        let report = tidegate::drain(database, app, options).await?;
        let drained = Drained {
            count,
            elapsed: began.elapsed(),
            cpu: cpu_time()?.saturating_sub(cpu),
            report,
        };
        if drained.report.completed != u64::from(count) {
            let report = &drained.report;
            return Err(format!("{count} events should have completed: {report:?}").into());
        }
        Ok(drained)
    }

    /// Returns the CPU time of the server so far, and of this process; `None` for a server elsewhere.
    pub async fn cpu_of_both(&self) -> Outcome<Option<Duration>> {
        let row = self.client.query_one("SELECT pg_backend_pid()", &[]);
        let server = cpu_time_of_server(row.await?.get(0)).ok();
        let client = cpu_time()?;
        Ok(server.map(|server| server + client))
    }

    /// Reads one number from the database.
    pub async fn number(&self, sql: &str) -> Outcome<i64> {
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}
