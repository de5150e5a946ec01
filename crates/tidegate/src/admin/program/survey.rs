//! Views of a queue of any size. Each uses one connection and one transaction with a statement timeout.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;

use super::super::ListRequest;
use super::super::list::page;
use super::Service;
use crate::error::Error;
use crate::look::{self, Dossier, SearchReport, Searched};
use crate::queue;
use crate::status::{ServiceState, ServiceStatus};
use crate::survey::{
    AuditRequest, COUNTED, DeadLetters, Depth, DrainRun, Kind, KindFigures, Overview, Rights,
    SEARCHED, Span, Step,
};

/// The most blocked groups in an overview.
const BLOCKED: u32 = 100;

/// The most drains in an overview.
const DRAINS: u32 = 8;

/// Lets a search walk indexes even in a partition of the log that has not been analyzed yet, for which the
/// planner expects to return a third of the rows.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off";

impl Service {
    /// Opens a connection for one view. If `looks_within` is set, it is in a read-only transaction with that
    /// statement timeout. It does not compile plans: for a log with many partitions, compiling a plan takes
    /// longer than running it (0.2 s for 90).
    pub(in super::super) async fn looking(&self) -> Result<Client, Error> {
        self.looking_with("").await
    }

    /// As [`Service::looking`], with these settings for the transaction.
    async fn looking_with(&self, settings: &str) -> Result<Client, Error> {
        let client = self.database.connect().await?;
        if let Some(limit) = self.looks_within {
            let millis = limit.as_millis().clamp(1, 600_000);
            let begin = format!(
                "BEGIN READ ONLY; SET LOCAL statement_timeout = {millis}; SET LOCAL jit = off; {settings}"
            );
            let answer = client.batch_execute(&begin).await;
            answer.map_err(|source| Error::Database {
                stage: "begin",
                source,
            })?;
        }
        Ok(client)
    }

    /// Returns the rights of the database login.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rights(&self) -> Result<Rights, Error> {
        queue::rights(&self.looking().await?).await
    }

    /// Returns how full the queue is and what needs attention. Counts at most [`COUNTED`] events;
    /// [`StatsRequest`](super::super::StatsRequest) counts all.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn overview(&self) -> Result<Overview, Error> {
        let client = self.looking().await?;
        let backlog = queue::backlog(&client).await?;
        let depths = queue::depths(&client).await?;
        let mut services = queue::service_states(&client).await?;
        for service in &mut services {
            count_waiting(service, &depths);
        }
        Ok(Overview {
            events: backlog.events,
            is_estimate: backlog.events >= u64::from(COUNTED),
            oldest_age_ms: backlog.oldest_age_ms,
            depths,
            blocked: queue::blocked(&client, BLOCKED).await?,
            services,
            drains: queue::drains(&client, DRAINS).await?,
        })
    }

    /// Returns the finished events of a period step by step, for one kind or all. Steps without events are
    /// left out.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn course(&self, span: Span, kind: Option<&str>) -> Result<Vec<Step>, Error> {
        queue::course(&self.looking().await?, span, kind).await
    }

    /// Returns the finished events of a period by kind.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn ended(&self, span: Span) -> Result<Vec<KindFigures>, Error> {
        queue::ended(&self.looking().await?, span).await
    }

    /// Returns the latest finished drains.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn drains(&self, limit: u32) -> Result<Vec<DrainRun>, Error> {
        let limit = look::limit(Some(limit))?;
        queue::drains(&self.looking().await?, limit).await
    }

    /// Returns the registered kinds with policy and retention.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn kinds(&self) -> Result<Vec<Kind>, Error> {
        queue::kinds(&self.looking().await?).await
    }

    /// Returns the dead letters of the last `since`, by kind, status and error code, the most frequent first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn dead_letters(
        &self,
        since: Duration,
        kind: Option<&str>,
    ) -> Result<Vec<DeadLetters>, Error> {
        queue::dead(&self.looking().await?, since, kind).await
    }

    /// Returns a page of events, newest first, as [`ListRequest`] does. But it looks at no more than
    /// [`SEARCHED`] live and [`SEARCHED`] finished events, so it takes the same time for a queue and a log of
    /// any size.
    ///
    /// # Errors
    /// As of [`ListRequest`]. An unknown kind is only refused once all events have been searched.
    pub async fn search(&self, asked: &ListRequest) -> Result<SearchReport, Error> {
        let (status, limit) = (asked.status()?, look::limit(asked.limit)?);
        let client = self.looking_with(BY_INDEX).await?;
        let mut filter = asked.filter(status);
        let floor = queue::search_floor(&client, &filter, SEARCHED).await?;
        let is_all = floor.is_none() && asked.before.is_none();
        // The event at the floor itself has not been looked at.
        filter.above = floor.as_ref().map(|floor| floor.id);
        let page = page(self.handled(), &client, &filter, limit, is_all).await?;
        if page.next.is_some() {
            return Ok(SearchReport {
                events: page.events,
                next: page.next,
                searched: None,
            });
        }
        let next = floor.as_ref().map(|floor| floor.id.saturating_add(1));
        Ok(SearchReport {
            events: page.events,
            next,
            searched: floor.map(|floor| Searched {
                events: SEARCHED,
                back_to: floor.created_at,
            }),
        })
    }

    /// Returns one event, with its content if that is requested.
    ///
    /// # Errors
    /// [`Error::UnknownEvent`]; if the database fails, for example because the login may not read the
    /// content.
    pub async fn dossier(&self, id: i64, with_content: bool) -> Result<Dossier, Error> {
        let client = self.looking().await?;
        let event = queue::event(&client, id).await?;
        let event = event.ok_or(Error::UnknownEvent(id))?;
        let content = if with_content {
            queue::content(&client, id).await?
        } else {
            None
        };
        Ok(Dossier {
            event,
            content,
            lineage: queue::lineage(&client, id).await?,
            work: queue::work(&client, id).await?,
        })
    }

    /// Returns the live events of a group in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn group(&self, key: &str, limit: u32) -> Result<Vec<Value>, Error> {
        let limit = look::limit(Some(limit))?;
        queue::group(&self.looking().await?, key, limit).await
    }

    /// Returns audit entries, latest first.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn audit(&self, asked: &AuditRequest) -> Result<Vec<Value>, Error> {
        look::limit(Some(asked.limit))?;
        queue::audit(&self.looking().await?, asked).await
    }

    /// Returns the partitions of the log with the planner's estimates.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn log_partitions(&self) -> Result<Vec<Value>, Error> {
        queue::log_partitions(&self.looking().await?).await
    }
}

/// Counts the events that wait for an unavailable service, among those that were counted.
fn count_waiting(service: &mut ServiceStatus, depths: &[Depth]) {
    if service.state == ServiceState::Closed {
        return;
    }
    let waits = depths
        .iter()
        .filter(|depth| service.kinds.contains(&depth.kind));
    for depth in waits {
        service.waiting += depth.events;
        let oldest = service.oldest.take().into_iter();
        service.oldest = oldest.chain(depth.oldest.clone()).min();
    }
}
