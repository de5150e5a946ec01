//! The role of this program when it is started by itself: a worker that drains until its standard input
//! closes, or a publisher. Both record each action before and after it.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use serde::{Deserialize, Serialize};
use tidegate::connect::Client;
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, Event, HandlerError, HandlerResult, Handlers,
    Hooks, NewEvent, RetryPolicy, drain_with,
};
use tidegate_core::queue;
use tokio::sync::watch;
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;

use crate::journal::{Journal, Record, Told, Verdict};

/// The environment variable that turns this process into an actor.
pub const ROLE: &str = "TIDEGATE_TORTURE_ROLE";

/// Part of every payload. No log line may contain it.
pub const CANARY: &str = "canary-of-a-patient";

tidegate::events! {
    /// The published events.
    pub enum Torture {
        /// Its effect is outside the event's transaction.
        Plain(Work) = "plain",
        /// Its effect is a row written in `Context::transaction`.
        Kept(Work) = "kept",
    }
}

/// The task of a handler.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Work {
    pub key: String,
    pub canary: String,
    /// How long each attempt takes. The last value applies to all further attempts.
    #[serde(default)]
    pub takes_ms: Vec<u64>,
    /// This many attempts fail with a retry.
    #[serde(default)]
    pub retries: u32,
    #[serde(default)]
    pub reject: bool,
    /// A success has no result, so its end is written by the statement for events without results.
    #[serde(default)]
    pub silent: bool,
    /// Where the worker dies.
    #[serde(default)]
    pub crash: Option<Crash>,
    /// The first attempt stops its own process between the end of the handler and the finalize.
    #[serde(default)]
    pub freeze: bool,
    /// The first attempt blocks its thread until this file exists.
    #[serde(default)]
    pub gate: Option<PathBuf>,
    /// The service that it calls does not answer until this file exists.
    #[serde(default)]
    pub down_until: Option<PathBuf>,
    /// A success publishes a follow-up to this group.
    #[serde(default)]
    pub follow_up: Option<String>,
    /// A statement for the database. An event of kind `kept` executes it in its transaction.
    #[serde(default)]
    pub statement: Option<String>,
    /// How long the first attempt takes after that.
    #[serde(default)]
    pub lingers_ms: u64,
    /// Pads the payload to this size.
    #[serde(default)]
    pub ballast: String,
}

/// The point where a worker kills itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crash {
    /// The lease is committed, but the handler has not started. Only in the first attempt.
    AfterLease,
    /// The effect is written, but the event is not finalized. Only in the first attempt.
    AfterEffect,
    /// The same in every attempt.
    Always,
    /// Before the effect, in every attempt.
    Abort,
}

impl Work {
    /// Creates a task that takes no time.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            canary: CANARY.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the key of its follow-up.
    pub fn next_key(&self) -> String {
        format!("{} next", self.key)
    }
}

/// The instructions for an actor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Role {
    Worker(Worker),
    Publisher(Publisher),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Worker {
    pub url: String,
    pub journal: PathBuf,
    pub lease_ms: u64,
    pub handler_ms: u64,
    pub concurrency: usize,
    pub batch: u32,
    pub budget_ms: u64,
    /// The most events that one drain leases.
    pub max_events: Option<u64>,
    /// Run only one drain.
    pub once: bool,
    /// Memory limit of the process, including the stacks of its threads.
    pub memory_mb: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Publisher {
    pub url: String,
    pub journal: PathBuf,
    pub name: String,
    pub seed: u64,
    pub groups: u32,
    /// More than one: use `publish_batch`. One: use the SQL function.
    pub batch: usize,
    pub pause_ms: u64,
    /// Maximum number of attempts of the events.
    pub max_attempts: u16,
}

/// Plays the role in the environment, if there is one.
pub fn play() -> bool {
    let Ok(role) = std::env::var(ROLE) else {
        return false;
    };
    // The parent process may be killed while this process is stopped and cannot notice.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::DEBUG)
        .init();
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = stop.send(true);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    match serde_json::from_str(&role).unwrap() {
        Role::Worker(worker) => {
            worker.limit_memory();
            runtime.block_on(worker.work(stopped));
        }
        Role::Publisher(publisher) => runtime.block_on(publisher.publish(&stopped)),
    }
    true
}

impl Worker {
    async fn work(self, stopped: watch::Receiver<bool>) {
        let database = Database::new(&self.url, self.concurrency).unwrap();
        let journal = Arc::new(Journal::open(&self.journal));
        let app = Arc::new(App {
            journal: journal.clone(),
        });
        let options = self.options();
        loop {
            let hooks = Hooks {
                stop: Some(stopped.clone()),
                ..Hooks::default()
            };
            match drain_with(&database, app.clone(), &options, hooks).await {
                Ok(report) => journal.write(Record::Reported {
                    report: Box::new(report),
                }),
                Err(error) => {
                    journal.write(Record::Failed {
                        error: error.to_string(),
                    });
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            if self.once || *stopped.borrow() {
                journal.write(Record::Grew {
                    kilobytes: most_memory(),
                });
                return;
            }
        }
    }

    fn limit_memory(&self) {
        if let Some(megabytes) = self.memory_mb {
            let most = Some(megabytes << 20);
            let limit = Rlimit {
                current: most,
                maximum: most,
            };
            setrlimit(Resource::As, limit).unwrap();
        }
    }

    fn options(&self) -> DrainOptions {
        let budget = Duration::from_millis(self.budget_ms);
        DrainOptions {
            budget,
            batch: self.batch,
            concurrency: self.concurrency,
            lease_timeout: Duration::from_millis(self.lease_ms),
            handler_timeout: Duration::from_millis(self.handler_ms),
            linger: if self.once { Duration::ZERO } else { budget },
            retry: RetryPolicy {
                base: Duration::from_millis(20),
                max: Duration::from_millis(200),
            },
            // This includes slots of killed workers, until their leases expire.
            max_drains: 1000,
            max_events: self.max_events,
            ..DrainOptions::default()
        }
    }
}

/// The peak memory of this process.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

struct App {
    journal: Arc<Journal>,
}

impl Dispatch for App {
    type Event = Torture;

    fn handlers<'a>(&'a self, event: &'a Torture, ctx: &'a Context) -> Handlers<'a> {
        let (Torture::Plain(work) | Torture::Kept(work)) = event;
        if work.crash == Some(Crash::AfterLease) && ctx.attempt() == 1 {
            signal_self(Signal::KILL);
        }
        match event {
            Torture::Plain(work) => Handlers::one("plain", self.plain(work, ctx)).calls("outside"),
            Torture::Kept(work) => Handlers::one("kept", self.kept(work, ctx)),
        }
    }
}

impl App {
    async fn plain(&self, work: &Work, ctx: &Context) -> HandlerResult {
        self.start(work, ctx).await;
        if let Some(statement) = &work.statement {
            ctx.connection().await?.batch_execute(statement).await?;
        }
        let result = verdict(work, ctx);
        self.end(ctx, &result);
        Self::misfortune(work, ctx);
        result
    }

    async fn kept(&self, work: &Work, ctx: &Context) -> HandlerResult {
        self.start(work, ctx).await;
        let result = self.write(work, ctx).await;
        if result.is_err() {
            self.end(ctx, &result);
        }
        result
    }

    async fn write(&self, work: &Work, ctx: &Context) -> HandlerResult {
        let transaction = ctx.transaction().await?;
        let attempt = i64::from(ctx.attempt());
        let insert = "INSERT INTO torture.effect (id, attempt) VALUES ($1, $2)";
        transaction
            .execute(insert, &[&ctx.event_id(), &attempt])
            .await?;
        if let Some(statement) = &work.statement {
            transaction.execute(statement.as_str(), &[]).await?;
        }
        if attempt == 1 && work.lingers_ms > 0 {
            tokio::time::sleep(Duration::from_millis(work.lingers_ms)).await;
        }
        let done = verdict(work, ctx)?;
        // Recorded before the commit, because the next event of the group may start right after it.
        self.end(ctx, &Ok(done.clone()));
        Self::misfortune(work, ctx);
        transaction.complete(done).await
    }

    async fn start(&self, work: &Work, ctx: &Context) {
        let attempt = ctx.attempt();
        self.journal.write(Record::Started {
            id: ctx.event_id(),
            attempt,
            key: work.key.clone(),
        });
        let index = (attempt as usize - 1).min(work.takes_ms.len().saturating_sub(1));
        if let Some(length) = work.takes_ms.get(index) {
            tokio::time::sleep(Duration::from_millis(*length)).await;
        }
        if work.crash == Some(Crash::Abort) {
            std::process::abort();
        }
        if let Some(gate) = work.gate.as_ref().filter(|_| attempt == 1) {
            while !gate.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn end(&self, ctx: &Context, result: &HandlerResult) {
        let verdict = match result {
            Ok(_) => Verdict::Done,
            Err(error) if error.faults()[0].code == "503" => Verdict::Unavailable,
            Err(error) if error.to_string().starts_with("retry") => Verdict::Retry,
            Err(_) => Verdict::Reject,
        };
        self.journal.write(Record::Ended {
            id: ctx.event_id(),
            attempt: ctx.attempt(),
            verdict,
        });
    }

    /// What happens to the process after the effect.
    fn misfortune(work: &Work, ctx: &Context) {
        match work.crash {
            Some(Crash::AfterEffect) if ctx.attempt() == 1 => signal_self(Signal::KILL),
            Some(Crash::Always) => signal_self(Signal::KILL),
            _ => {}
        }
        if work.freeze && ctx.attempt() == 1 {
            signal_self(Signal::STOP);
        }
    }
}

fn signal_self(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
    // A signal reaches the process at once, but possibly another one of its threads.
    std::thread::sleep(Duration::from_millis(20));
}

fn verdict(work: &Work, ctx: &Context) -> HandlerResult {
    if work.down_until.as_ref().is_some_and(|file| !file.exists()) {
        return Err(HandlerError::unavailable("503", "not now"));
    }
    if ctx.attempt() <= work.retries {
        return Err(HandlerError::retry("down", "for now"));
    }
    if work.reject {
        return Err(HandlerError::reject("odd", "as it was told to"));
    }
    if let Some(group) = &work.follow_up {
        let told = Told {
            key: work.next_key(),
            group: Some(group.clone()),
        };
        let next = Torture::Plain(Work::new(&told.key));
        ctx.emit(&new_event(&told, &next, 5))?;
    }
    if work.silent {
        return Ok(Done::ok());
    }
    Done::with(&ctx.attempt())
}

impl Publisher {
    async fn publish(self, stopped: &watch::Receiver<bool>) {
        let journal = Journal::open(&self.journal);
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut client = None;
        let mut count = 0;
        while !*stopped.borrow() {
            count += 1;
            let name = format!("{}-{count}", self.name);
            let batch = self.batch(&name, &mut random);
            let told = batch.iter().map(|(told, _)| told.clone()).collect();
            if client.is_none() {
                client = connect(&self.url).await;
            }
            if let Some(connected) = &client {
                journal.write(Record::Trying {
                    publish: name.clone(),
                    events: told,
                });
                if !self.send(connected, &journal, name, &batch).await {
                    client = None;
                }
            }
            tokio::time::sleep(Duration::from_millis(self.pause_ms)).await;
        }
    }

    fn batch(&self, name: &str, random: &mut fastrand::Rng) -> Vec<(Told, Torture)> {
        let event = |position: usize| {
            let key = format!("{name}-{position}");
            let group = random.u32(0..=self.groups + self.groups / 4);
            let work = Work {
                takes_ms: vec![random.u64(0..25)],
                retries: u32::from(random.u8(0..20) == 0),
                reject: random.u8(0..50) == 0,
                silent: random.bool(),
                ..Work::new(&key)
            };
            let told = Told {
                key,
                group: (group < self.groups).then(|| format!("g{group}")),
            };
            let event = if random.bool() {
                Torture::Plain(work)
            } else {
                Torture::Kept(work)
            };
            (told, event)
        };
        (0..self.batch).map(event).collect()
    }

    /// Publishes and records the result. Returns false if the connection cannot be used again.
    async fn send(
        &self,
        client: &Client,
        journal: &Journal,
        publish: String,
        batch: &[(Told, Torture)],
    ) -> bool {
        let limit = Duration::from_secs(10);
        let sent = tokio::time::timeout(limit, self.send_either_way(client, batch)).await;
        let outcome = sent.unwrap_or_else(|_| Err((false, "no answer".to_owned())));
        match outcome {
            Ok(ids) => {
                journal.write(Record::Acknowledged { publish, ids });
                true
            }
            Err((true, error)) => {
                journal.write(Record::Refused { publish, error });
                true
            }
            Err((false, error)) => {
                journal.write(Record::Unknown { publish, error });
                false
            }
        }
    }

    /// Returns the ids. On failure, returns whether the publish was certainly refused, and why.
    async fn send_either_way(
        &self,
        client: &Client,
        batch: &[(Told, Torture)],
    ) -> Result<Vec<i64>, (bool, String)> {
        if let [(told, event)] = batch {
            // Occasionally publish an event that must be refused.
            let kind = if fastrand::u8(0..40) == 0 {
                "unregistered"
            } else {
                event.kind()
            };
            return publish_by_sql(client, told, (kind, event), self.max_attempts).await;
        }
        let events: Vec<NewEvent> = batch
            .iter()
            .map(|(told, event)| new_event(told, event, self.max_attempts))
            .collect();
        let published = queue::publish_batch(client, &events).await;
        let published = published.map_err(|error| match error {
            tidegate::Error::Invalid(text) => (true, text),
            other => (false, other.to_string()),
        })?;
        Ok(published.iter().map(|published| published.id).collect())
    }
}

/// Builds the event with its options.
pub fn new_event(told: &Told, event: &Torture, max_attempts: u16) -> NewEvent {
    let new = NewEvent::of(event).unwrap().max_attempts(max_attempts);
    match &told.group {
        Some(group) => new.group(group),
        None => new,
    }
}

/// Publishes like a producer in another language.
async fn publish_by_sql(
    client: &Client,
    told: &Told,
    (kind, event): (&str, &Torture),
    max_attempts: u16,
) -> Result<Vec<i64>, (bool, String)> {
    let payload = event.encode().unwrap().get().to_owned();
    let sql = "SELECT id FROM tidegate.publish($1, $2::text::jsonb, $3, max_attempts => $4)";
    let max_attempts = i32::from(max_attempts);
    let values: [&(dyn ToSql + Sync); 4] = [&kind, &payload, &told.group, &max_attempts];
    match client.query_one(sql, &values).await {
        Ok(row) => Ok(vec![row.get(0)]),
        // Only the answer of the statement itself is certain, because the server may die during it.
        Err(error)
            if error
                .code()
                .is_some_and(|code| code.code().starts_with("22")) =>
        {
            Err((true, error.to_string()))
        }
        Err(error) => Err((false, error.to_string())),
    }
}

async fn connect(url: &str) -> Option<Client> {
    let limit = Duration::from_secs(5);
    let connecting = tokio::time::timeout(limit, tokio_postgres::connect(url, NoTls)).await;
    let (client, connection) = connecting.ok()?.ok()?;
    tokio::spawn(connection);
    Some(client.into())
}
