//! Owns how a producer wakes a drain after its commit: it looks whether a drain is needed, and starts one. An
//! event that wakes no drain waits for the schedule's next tick, so nothing here can fail a publish.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::chain::{Chain, StartDrain};
use tidegate_core::config::Lookup;
use tidegate_core::connect::{Database, cloud};
use tidegate_core::error::{Error, Result};
use tidegate_core::queue;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The longest time that a start may take, and the longest wait for a connection.
const LIMIT: Duration = Duration::from_secs(2);

/// The shortest time between two queries by one process.
const BETWEEN: Duration = Duration::from_millis(200);

/// Wakes a drain when something was published and no drain is at work.
///
/// If several producers publish at once, the database tells only one of them to start a drain
/// (`tidegate.should_wake`). While a drain is at work, it tells none of them to. An event that is published
/// while a drain ends is not missed, because a drain announces its end before its last look at the queue. A
/// lost wake-up costs the time until the schedule's next tick, but no event.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tidegate::{Database, NewEvent, publish};
/// # use tidegate::chain::StartDrain;
/// # use tidegate::wake::Waker;
/// # async fn place(database: Database, function: Arc<dyn StartDrain>, event: NewEvent)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let waker = Waker::new(database.clone(), function);
/// let mut client = database.connect().await?;
/// let transaction = client.transaction().await?;
/// publish(&transaction, &event).await?;
/// transaction.commit().await?;
/// waker.published(); // after the commit; returns at once
/// # Ok(())
/// # }
/// ```
pub struct Waker {
    database: Database,
    starter: Arc<dyn StartDrain>,
    published: Arc<Notify>,
    task: AbortHandle,
}

impl Waker {
    /// Creates a waker that starts drains with `starter`. Call it inside a tokio runtime, because it queries
    /// the database in the background.
    pub fn new(database: Database, starter: Arc<dyn StartDrain>) -> Self {
        let published = Arc::new(Notify::new());
        let background = follow(database.clone(), starter.clone(), published.clone());
        Self {
            database,
            starter,
            published,
            task: tokio::spawn(background).abort_handle(),
        }
    }

    /// Creates a waker that invokes the Lambda function with this ARN, which may name an alias or a version.
    /// The process needs the permission `lambda:InvokeFunction`.
    ///
    /// # Errors
    /// [`Error::Config`] if the program has no cloud: see [`tidegate_core::connect::install`].
    pub fn function(database: Database, arn: String) -> Result<Self> {
        Ok(Self::new(
            database,
            cloud("the waker of a function")?.starter(arn),
        ))
    }

    /// Reports that a publish has been committed. Returns at once and queries the database in the background,
    /// at most five times a second however often it is called. Use it in a process that goes on running.
    pub fn published(&self) {
        self.published.notify_one();
    }

    /// Like [`Waker::published`], but waits. Use it in a process that ends or is frozen after its publish.
    /// Returns whether a drain was started.
    ///
    /// # Errors
    /// When the database or the start fails. The event is published anyway, and the schedule's next tick
    /// finds it.
    pub async fn wake(&self) -> Result<bool> {
        wake(&self.database, &*self.starter).await
    }
}

/// Reads from `TIDEGATE_WAKE`, if it is set, what starts the function to wake.
///
/// # Errors
/// [`Error::Config`] when it is not the ARN of a function.
pub fn from_settings(lookup: Lookup<'_>) -> Result<Option<Arc<dyn StartDrain>>> {
    let Some(arn) = lookup("TIDEGATE_WAKE") else {
        return Ok(None);
    };
    let mut parts = arn.split(':');
    let is_function = parts.next() == Some("arn")
        && parts.nth(1) == Some("lambda")
        && parts.nth(2) == Some("function");
    if is_function {
        return Ok(Some(cloud("TIDEGATE_WAKE")?.starter(arn)));
    }
    Err(Error::Config(format!(
        "TIDEGATE_WAKE: must be the ARN of a Lambda function such as arn:aws:lambda:eu-central-1:123456789012:function:name, got {arn:?}"
    )))
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(database: Database, starter: Arc<dyn StartDrain>, published: Arc<Notify>) {
    loop {
        published.notified().await;
        wake_quietly(&database, &*starter).await;
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Does what [`Waker::wake`] does. An error is only logged.
pub async fn wake_quietly(database: &Database, starter: &dyn StartDrain) {
    if let Err(error) = wake(database, starter).await {
        tracing::warn!(%error, "no drain could be started; the next scheduled drain handles the published events");
    }
}

async fn wake(database: &Database, starter: &dyn StartDrain) -> Result<bool> {
    let wakes = {
        let client = database.pooled_within(LIMIT).await?;
        queue::should_wake(&*client).await?
    };
    if !wakes {
        return Ok(false);
    }
    Error::within("wake", LIMIT, starter.start(Chain::begin())).await?;
    Ok(true)
}
