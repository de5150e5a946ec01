//! Runs the doctor's checks in the background of the requests, one run at a time for all readers. Some checks
//! read all live events, so they take longer than a page may. The page shows the last result with its age.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate::Error;
use tidegate_admin::doctor::DoctorReport;
use tokio::sync::watch;

use crate::problem::Problem;

/// How long a page waits for a run that it has started.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// As [`PATIENCE`], where nothing runs between two requests.
pub(crate) const PATIENCE_IF_FROZEN: Duration = Duration::from_secs(20);

/// A run that takes longer is given up.
const LIMIT: Duration = Duration::from_mins(2);

/// A page starts another run when the last result is older.
const FRESH: Duration = Duration::from_mins(5);

/// The last result, and whether a run is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub last: Option<Arc<Examined>>,
    pub is_running: bool,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Examined {
    /// When it ended.
    pub at: SystemTime,
    pub result: Result<DoctorReport, Problem>,
}

/// The last result, for all readers.
#[derive(Default)]
pub(crate) struct Checkup(Arc<watch::Sender<Seen>>);

impl Checkup {
    /// Returns the last result. If there is none, if it is old, or if the reader asks for a run, starts a run
    /// and waits for its end, but no longer than `patience`.
    pub(crate) async fn look<F>(&self, is_requested: bool, patience: Duration, examine: F) -> Seen
    where
        F: Future<Output = Result<DoctorReport, Error>> + Send + 'static,
    {
        let started = self.0.send_if_modified(|seen| {
            let starts = !seen.is_running && (is_requested || seen.is_old());
            seen.is_running |= starts;
            starts
        });
        if started {
            let mut seen = self.0.subscribe();
            tokio::spawn(run(self.0.clone(), examine));
            // If the run does not end in time, the page says that the checks are running.
            let _ = tokio::time::timeout(patience, seen.wait_for(|seen| !seen.is_running)).await;
        }
        self.0.borrow().clone()
    }
}

impl Seen {
    fn is_old(&self) -> bool {
        let age = self.last.as_ref().map(|last| last.at.elapsed());
        // A clock that was set back makes the result old.
        age.is_none_or(|age| age.is_err() || age.is_ok_and(|age| age > FRESH))
    }
}

async fn run<F>(seen: Arc<watch::Sender<Seen>>, examine: F)
where
    F: Future<Output = Result<DoctorReport, Error>> + Send + 'static,
{
    // A task of its own, so that after a panic of a check no run seems to be under way for ever.
    let examining = tokio::spawn(tokio::time::timeout(LIMIT, examine));
    let result = match examining.await {
        Ok(Ok(report)) => report.map_err(Problem::from),
        Ok(Err(_)) => Err(Problem::late("The checks took too long.")),
        Err(error) => {
            tracing::error!(%error, "a check of the doctor panicked");
            Err(Problem::late("A check has failed; see the log."))
        }
    };
    let at = SystemTime::now();
    seen.send_replace(Seen {
        last: Some(Arc::new(Examined { at, result })),
        is_running: false,
    });
}
