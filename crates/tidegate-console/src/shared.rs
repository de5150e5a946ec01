//! The state that all requests share: the program, the settings and the rights of the database login.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Error;
use tidegate_admin::program::Runtime;
use tidegate_admin::prometheus::Exporter;
use tidegate_admin::views::Rights;
use tidegate_http::Refusals;

use crate::checkup::Checkup;
use crate::settings::Settings;

/// How long the rights of the database login are cached.
const RIGHTS_KEPT: Duration = Duration::from_secs(30);

/// The database cancels a page's statement after this time.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

/// The longest wait for a place among the database sessions.
const WAITS: Duration = Duration::from_secs(2);

pub(crate) struct ConsoleState {
    pub runtime: Runtime,
    pub settings: Settings,
    pub exporter: Exporter,
    pub checkup: Checkup,
    pub refusals: Refusals,
    rights: Mutex<Option<(Instant, Rights)>>,
}

impl ConsoleState {
    pub(crate) fn new(mut runtime: Runtime, settings: Settings) -> Self {
        runtime.looks_within = Some(LOOKS_WITHIN);
        runtime.database = runtime.database.with_at_most(settings.sessions, WAITS);
        Self {
            exporter: Exporter::new(runtime.database.clone()),
            checkup: Checkup::default(),
            refusals: Refusals::default(),
            runtime,
            settings,
            rights: Mutex::default(),
        }
    }

    /// The rights of the database login, as they were at most 30 seconds ago.
    pub(crate) async fn rights(&self) -> Result<Rights, Error> {
        let known = self
            .rights
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((at, rights)) = known
            && at.elapsed() < RIGHTS_KEPT
        {
            return Ok(rights);
        }
        let rights = self.runtime.rights().await?;
        let mut known = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Instant::now(), rights.clone()));
        Ok(rights)
    }
}
