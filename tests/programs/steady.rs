//! Rounds of load on one server and one `tidegate serve`: more requests at once than it takes, drains
//! beside them, a cleanup behind them. Every acknowledged job ends once and nothing grows. It is short in
//! `make test`; `make torture` lets it go on for `TIDEGATE_LOAD_DURATION` and tells its figures.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, DrainReport, Event};

use crate::load::{Answers, GRANTED, burst, narrow_role};
use crate::support::cli::Cli;
use crate::support::probe::number;
use crate::support::{self, Cluster, TestDb};
use tidegate_job::app;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Fewest rounds: of fewer nothing can be said about growth.
const ROUNDS: usize = 8;

/// The first of them, in which allocators and tables come to their size.
const WARM: usize = 2;

/// Requests of each client in a round.
const EACH: usize = 4;

/// What the program may grow by once it is warm, however long it serves: allocators keep what a burst took.
/// In the shortest run this is less than a leak of 4 KiB a request, in six minutes than one of 100 bytes.
const ROOM_KB: i64 = 4 * 1024;

/// What the disk may be needed for: some bursts, and the dead rows that the server lets come together before
/// it clears them away.
const ROOM_BYTES: i64 = 64 * 1024 * 1024;

/// Rows that a round may leave behind: what its cleanup writes into the audit.
const ROOM_ROWS: i64 = 8;

/// A server with the durability of the defaults, and the program under load.
struct Site {
    cluster: Cluster,
    observer: Client,
    base: String,
    server: Child,
    /// Open while it serves.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Site {
    async fn open() -> Self {
        let durable = ["fsync=on", "synchronous_commit=on", "full_page_writes=on"];
        let options = durable.map(|setting| ["--set", setting]).concat();
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        let cluster = Cluster::start(&options);
        let url = cluster.url("postgres");
        let database = Database::new(&url, 1).unwrap();
        Migrate::new(app::Event::KINDS)
            .tables(&[app::TABLES])
            .run(&database)
            .await
            .unwrap();
        let observer = support::connect(&url).await;
        let at_once =
            "UPDATE tidegate.event_kind SET retention_completed = '0', retention_failed = '0'";
        observer.batch_execute(at_once).await.unwrap();
        let narrow = narrow_role(&TestDb::elsewhere(&url), &observer).await;
        let (server, base, output) = serve(&narrow).await;
        Self {
            cluster,
            observer,
            base,
            server,
            _output: output,
        }
    }

    fn program(&self) -> Cli {
        Cli::on(&TestDb::elsewhere(&self.cluster.url("postgres")))
    }

    async fn drain(&self, arguments: &[&str]) -> DrainReport {
        let document = self.program().json(&[&["drain"], arguments].concat()).await;
        let report: DrainReport = serde_json::from_value(document).unwrap();
        assert!(report.is_balanced(), "{report:?}");
        report
    }

    /// Asks, drains beside it and behind it; what was answered, and what has ended.
    async fn round(&self, http: &reqwest::Client) -> (Answers, Vec<i64>) {
        let (answers, _) = tokio::join!(
            burst(http, &self.base, EACH),
            self.drain(&["--linger", "300ms"])
        );
        let last = self.drain(&[]).await;
        assert_eq!(last.backlog, Some(0), "{last:?}");
        let ended = self
            .observer
            .query("SELECT id FROM tidegate.event_log", &[])
            .await;
        let ended = ended.unwrap().iter().map(|row| row.get(0)).collect();
        (answers, ended)
    }

    async fn look(&self) -> Look {
        let count = async |sql: &str| number(&self.observer, sql).await;
        Look {
            memory_kb: memory_kb(self.server.id().expect("it serves")).await,
            connections: count("SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'narrow%'")
                .await,
            dead_rows: count(
                "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE schemaname = 'tidegate'",
            )
            .await,
            rows: count(&rows()).await,
            tables: count(&size("pg_table_size")).await,
            indexes: count(&size("pg_indexes_size")).await,
        }
    }
}

fn size(of: &str) -> String {
    format!(
        "SELECT sum({of}(c.oid))::bigint FROM pg_class AS c
          WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'r'"
    )
}

/// All rows of the schema, as they are counted and not as they are estimated.
fn rows() -> String {
    let counted =
        "query_to_xml(format('SELECT count(*) AS n FROM %s', c.oid::regclass), false, true, '')";
    format!(
        "SELECT sum((xpath('/row/n/text()', {counted}))[1]::text::bigint)::bigint FROM pg_class AS c
          WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'r'"
    )
}

async fn serve(url: &str) -> (Child, String, Lines<BufReader<ChildStdout>>) {
    let mut server = support::command("tidegate")
        .args(["serve", "--listen", "127.0.0.1:0"])
        // More requests are what this is about.
        .env("DATABASE_URL", url)
        .env("TIDEGATE_LOG", "error")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(server.stdout.take().unwrap()).lines();
    let line = output.next_line().await.unwrap().unwrap();
    let base = line.strip_prefix("listening on ").unwrap().to_owned();
    (server, base, output)
}

/// Resident memory of a process, as `ps` tells it everywhere.
async fn memory_kb(process: u32) -> i64 {
    let told = Command::new("ps")
        .args(["-o", "rss=", "-p", &process.to_string()])
        .output()
        .await
        .unwrap();
    String::from_utf8(told.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// What could grow.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    memory_kb: i64,
    connections: i64,
    dead_rows: i64,
    rows: i64,
    tables: i64,
    indexes: i64,
}

/// What is told in the end.
#[derive(Default)]
struct Figures {
    took: Duration,
    requests: usize,
    refused: usize,
    acknowledged: usize,
    /// At the end of each round.
    looks: Vec<Look>,
}

impl Figures {
    /// Where something stood early, once all was warm, and late: medians of three rounds, so that neither one
    /// burst nor one look at an unlucky moment says anything.
    fn ends(&self, of: impl Fn(&Look) -> i64) -> [i64; 2] {
        let warm = &self.looks[WARM..];
        [&warm[..3], &warm[warm.len() - 3..]].map(|looks| {
            let mut told: Vec<i64> = looks.iter().map(&of).collect();
            told.sort_unstable();
            told[1]
        })
    }

    /// What has grown that must not.
    fn grown(&self) -> Vec<&'static str> {
        let rounds = i64::try_from(self.looks.len()).unwrap();
        let [early, late] = self.ends(|look| look.memory_kb);
        let memory = late - early > ROOM_KB;
        let [early, late] = self.ends(|look| look.rows);
        let rows = late - early > rounds * ROOM_ROWS;
        let [_, bytes] = self.halves(|look| look.tables + look.indexes);
        let [first, second] = self.halves(|look| look.connections);
        let connections = first.max(second) > i64::try_from(GRANTED).unwrap();
        let found = [
            (memory, "memory"),
            (rows, "rows"),
            (bytes > ROOM_BYTES, "disk"),
            (connections, "connections"),
        ];
        let found = found.into_iter().filter(|(grown, _)| *grown);
        found.map(|(_, what)| what).collect()
    }

    /// The most of something in each half of the rounds.
    fn halves(&self, of: impl Fn(&Look) -> i64) -> [i64; 2] {
        let (first, second) = self.looks.split_at(self.looks.len() / 2);
        [first, second].map(|half| half.iter().map(&of).max().unwrap_or(0))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rounds {}, seconds {}, requests {}, refused {}, acknowledged {}, lost 0; \
             the most in the first half of the rounds and in the second:",
            self.looks.len(),
            self.took.as_secs(),
            self.requests,
            self.refused,
            self.acknowledged
        )?;
        for (name, [first, second]) in [
            ("memory in kB", self.halves(|look| look.memory_kb)),
            ("connections", self.halves(|look| look.connections)),
            ("dead rows", self.halves(|look| look.dead_rows)),
            ("rows", self.halves(|look| look.rows)),
            ("tables in kB", self.halves(|look| look.tables / 1024)),
            ("indexes in kB", self.halves(|look| look.indexes / 1024)),
        ] {
            write!(f, " {name} {first} {second},")?;
        }
        let (first, last) = (self.looks.first(), self.looks.last());
        let memory = |look: Option<&Look>| look.map_or(0, |look| look.memory_kb);
        write!(
            f,
            " memory after the first and the last round {} {}",
            memory(first),
            memory(last)
        )
    }
}

/// How long, if the environment asks for it.
fn length() -> Duration {
    let text = std::env::var("TIDEGATE_LOAD_DURATION").unwrap_or_default();
    if text.is_empty() {
        return Duration::ZERO;
    }
    let length = humantime::parse_duration(&text);
    length.expect("TIDEGATE_LOAD_DURATION: must be a time such as 10m or 8h")
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_rounds_of_too_many_requests_lose_nothing_and_leave_nothing_behind() {
    let (site, length) = (Site::open().await, length());
    let http = reqwest::Client::builder()
        .no_proxy()
        // A connection that the server closes when it has been idle must not fail a request.
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();
    let (began, mut figures) = (Instant::now(), Figures::default());
    while figures.looks.len() < ROUNDS || began.elapsed() < length {
        let (answers, ended) = site.round(&http).await;
        let acknowledged: HashSet<i64> = answers.acknowledged.iter().copied().collect();
        let distinct: HashSet<i64> = ended.iter().copied().collect();
        assert_eq!(acknowledged.len(), answers.acknowledged.len(), "ids");
        assert_eq!(
            distinct, acknowledged,
            "what ended and what was acknowledged"
        );
        assert_eq!(distinct.len(), ended.len(), "each has ended once");
        let cleaned = site.program().json(&["cleanup"]).await;
        let left = number(&site.observer, "SELECT count(*) FROM tidegate.event_log").await;
        assert_eq!(left, 0, "{cleaned}");
        figures.acknowledged += answers.acknowledged.len();
        figures.refused += answers.refused;
        figures.requests += answers.acknowledged.len() + answers.refused;
        figures.looks.push(site.look().await);
    }
    figures.took = began.elapsed();
    eprintln!("load: {figures}");
    assert!(figures.acknowledged > 0, "{figures}");
    assert_eq!(figures.grown(), [""; 0], "{figures}");
}
