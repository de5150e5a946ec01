//! Owns what all requests share: the program, the settings, and what the database was last heard to allow.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Error;
use tidegate::program::Service;
use tidegate::survey::Rights;

use crate::settings::Settings;

/// What the database allows its login is asked for no more often.
const RIGHTS_KEPT: Duration = Duration::from_secs(30);

/// The database ends a statement of a page by itself after this.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Shared {
    pub service: Service,
    pub settings: Settings,
    rights: Mutex<Option<(Instant, Rights)>>,
}

impl Shared {
    pub(crate) fn new(mut service: Service, settings: Settings) -> Self {
        service.looks_within = Some(LOOKS_WITHIN);
        Self {
            service,
            settings,
            rights: Mutex::default(),
        }
    }

    /// What the database allows, as of half a minute ago at most.
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
