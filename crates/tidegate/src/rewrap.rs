//! Owns how stored payloads are sealed again with the current key: page by page, in the queue and every partition of
//! the log. It knows no SQL.

use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::connect::Database;
use crate::error::Error;
use crate::operate::{RewrapReport, RewrapRequest};
use crate::queue::retention::partitions;
use crate::queue::{self, Unsealed};
use crate::seal::{self, PayloadKeys, Unopened};

/// How many payloads one statement reads. Each may be a megabyte long.
const PAGE: i32 = 100;

/// The most broken payloads that a report lists.
const TOLD: usize = 100;

pub(crate) async fn rewrap(
    database: &Database,
    request: &RewrapRequest,
    budget: Option<Duration>,
) -> Result<RewrapReport, Error> {
    let Some(keys) = seal::keys().await? else {
        let why = "must be set, or TIDEGATE_PAYLOAD_KEYS_SECRET_ID: there is no key to seal with";
        return Err(Error::Config(format!("TIDEGATE_PAYLOAD_KEYS_FILE: {why}")));
    };
    let began = Instant::now();
    let client = database.connect().await?;
    let mut run = Run {
        client: &client,
        keys,
        request,
        until: budget.and_then(|budget| began.checked_add(budget)),
        has_read: false,
        report: RewrapReport {
            dry_run: request.dry_run,
            key: keys.current().to_owned(),
            ..RewrapReport::default()
        },
    };
    // Works on the queue first: an event that ends in the meantime is found in the log.
    run.place(None).await?;
    for partition in partitions(&client, SystemTime::now()).await? {
        run.place(Some(&partition.name)).await?;
    }
    // A schedule stores the payload of its events.
    run.place(Some("schedule")).await?;
    Ok(run.report)
}

struct Run<'a> {
    client: &'a Client,
    keys: &'a PayloadKeys,
    request: &'a RewrapRequest,
    /// The time after which no more pages begin.
    until: Option<Instant>,
    has_read: bool,
    report: RewrapReport,
}

impl Run<'_> {
    async fn place(&mut self, partition: Option<&str>) -> Result<(), Error> {
        let mut after = i64::MIN;
        while !self.is_over() {
            let key = self.keys.current();
            let page = queue::unsealed(self.client, partition, key, after, PAGE).await?;
            // Also if nothing was found: a log without anything to seal is read no longer than the budget, too.
            self.has_read = true;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.id;
            let (mut ids, mut payloads) = (Vec::new(), Vec::new());
            for found in &page {
                if let Some(payload) = self.anew(found)? {
                    ids.push(found.id);
                    payloads.push(payload.get().to_owned());
                }
            }
            if !self.request.dry_run && !ids.is_empty() {
                let new = (&*ids, &*payloads);
                queue::rewrap(self.client, partition, new, self.request).await?;
            }
        }
        self.report.incomplete = true;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.has_read && self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns the payload sealed with the current key and counts it; `None` when that is impossible.
    fn anew(&mut self, found: &Unsealed) -> Result<Option<Box<RawValue>>, Error> {
        let text = found.payload.as_bytes();
        if !seal::is_sealed(text) {
            let plain: Box<RawValue> = serde_json::from_slice(text)
                .map_err(|error| Error::Unreadable(format!("event {}: {error}", found.id)))?;
            self.report.sealed += 1;
            return self.keys.seal(&found.kind, &plain).map(Some);
        }
        match self.keys.rewrapped(text) {
            Ok(payload) => {
                self.report.rewrapped += u64::from(payload.is_some());
                Ok(payload)
            }
            Err(Unopened::NoKey(name)) => {
                *self.report.no_key.entry(name).or_default() += 1;
                Ok(None)
            }
            Err(Unopened::Broken) => {
                if self.report.broken.len() < TOLD {
                    self.report.broken.push(found.id);
                }
                Ok(None)
            }
        }
    }
}
