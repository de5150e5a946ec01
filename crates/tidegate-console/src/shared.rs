//! The state that all requests share: the program, the settings and the rights of the database login.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Error;
use tidegate::program::Service;
use tidegate::prometheus::Exporter;
use tidegate::survey::Rights;

use crate::settings::Settings;

/// How long the rights of the database login are cached.
const RIGHTS_KEPT: Duration = Duration::from_secs(30);

/// The database cancels a page's statement after this time.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Shared {
    pub service: Service,
    pub settings: Settings,
    pub exporter: Exporter,
    rights: Mutex<Option<(Instant, Rights)>>,
}

impl Shared {
    pub(crate) fn new(mut service: Service, settings: Settings) -> Self {
        service.looks_within = Some(LOOKS_WITHIN);
        Self {
            exporter: Exporter::new(service.database.clone()),
            service,
            settings,
            rights: Mutex::default(),
        }
    }

    /// Returns the rights of the database login, from the cache if it is recent.
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
        let rights = self.service.rights().await?;
        let mut known = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Instant::now(), rights.clone()));
        Ok(rights)
    }
}
