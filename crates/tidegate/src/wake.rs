//! Owns how a producer wakes a drain behind its commit: it asks the database whether one is needed, and starts it. What is not
//! woken waits for the schedule; so nothing here fails a publish.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::chain::{Chain, StartDrain};
use crate::config::Lookup;
use crate::connect::Database;
use crate::error::Error;
use crate::queue;

/// A start takes no longer, nor does the wait for a connection to ask by.
const LIMIT: Duration = Duration::from_secs(2);

/// One process asks no more often.
const BETWEEN: Duration = Duration::from_millis(200);

/// Wakes a drain when something was published and none is at work.
///
/// Of all who publish at once, one is told to start a drain (`tidegate.should_wake`); while one is at work nobody is. An event
/// that is published while a drain ends is not missed: a drain says that it closes before it looks a last time. A wake-up that is lost
/// on the way costs the time to the schedule's next tick, and no event.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tidegate::{Database, NewEvent, publish};
/// # use tidegate::chain::StartDrain;
/// # use tidegate::wake::Waker;
/// # async fn place(database: Database, function: Arc<dyn StartDrain>, event: NewEvent) -> Result<(), Box<dyn std::error::Error>> {
/// let waker = Waker::new(database.clone(), function);
/// let mut client = database.connect().await?;
/// let transaction = client.transaction().await?;
/// publish(&transaction, &event).await?;
/// transaction.commit().await?;
/// waker.published(); // behind the commit; waits for nothing
/// # Ok(())
/// # }
/// ```
pub struct Waker {
    asks: Arc<Asks>,
    task: AbortHandle,
}

struct Asks {
    database: Database,
    starter: Arc<dyn StartDrain>,
    published: Notify,
}

impl Waker {
    /// Wakes drains by this. To be made where a tokio runtime runs, which asks in the background.
    #[must_use]
    pub fn new(database: Database, starter: Arc<dyn StartDrain>) -> Self {
        let asks = Arc::new(Asks {
            database,
            starter,
            published: Notify::new(),
        });
        let task = tokio::spawn(asks.clone().run()).abort_handle();
        Self { asks, task }
    }

    /// Wakes the Lambda function of this ARN, also of an alias or a version. Takes `lambda:InvokeFunction`.
    #[cfg(feature = "aws")]
    #[must_use]
    pub fn function(database: Database, arn: String) -> Self {
        let function = crate::connect::Invoked {
            by: Arc::default(),
            arn,
            trace: None,
            database: None,
        };
        Self::new(database, Arc::new(function))
    }

    /// Something was published, and that is committed. Returns at once; asks in the background, no more than five times a second
    /// however often it is called. For a process that goes on living.
    pub fn published(&self) {
        self.asks.published.notify_one();
    }

    /// As [`Waker::published`], and waits: for a process that ends or is frozen behind its publish. Tells whether a drain was
    /// started.
    ///
    /// # Errors
    /// When the database or the start fails; the event is published all the same, and the schedule's next tick finds it.
    pub async fn wake(&self) -> Result<bool, Error> {
        self.asks.ask().await
    }
}

/// The function that is woken, if `TIDEGATE_WAKE` names one.
///
/// # Errors
/// [`Error::Config`] when it is no ARN of a function.
pub fn from_settings(lookup: Lookup<'_>) -> Result<Option<String>, Error> {
    let Some(arn) = lookup("TIDEGATE_WAKE") else {
        return Ok(None);
    };
    let mut parts = arn.split(':');
    let is_function = parts.next() == Some("arn")
        && parts.nth(1) == Some("lambda")
        && parts.nth(2) == Some("function");
    if !cfg!(feature = "aws") {
        let why =
            "TIDEGATE_WAKE: this program was built without the feature aws and wakes no function";
        return Err(Error::Config(why.to_owned()));
    }
    if is_function {
        return Ok(Some(arn));
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

impl Asks {
    async fn run(self: Arc<Self>) {
        loop {
            self.published.notified().await;
            if let Err(error) = self.ask().await {
                tracing::warn!(%error, "no drain could be woken; the next tick will find what was published");
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    async fn ask(&self) -> Result<bool, Error> {
        let wakes = {
            let client = self.database.pooled_within(LIMIT).await?;
            queue::should_wake(&*client).await?
        };
        if !wakes {
            return Ok(false);
        }
        let started = tokio::time::timeout(LIMIT, self.starter.start(Chain::begin())).await;
        started.unwrap_or(Err(Error::TimedOut {
            stage: "wake",
            limit: LIMIT,
        }))?;
        Ok(true)
    }
}
