//! What operators request of a program, with one function for each verb. The command line and the Lambda
//! function for operators call these.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Client;

use super::{Service, change, stats_on};
use crate::doctor::{self, DoctorReport, Target};
use crate::error::Error;
use crate::event::NewEvent;
use crate::forget;
use crate::invocation::{RetentionRequest, StatsReport};
use crate::look::{
    self, BlockedGroupsReport, FirstRequest, LeasesReport, ListReport, ListRequest,
    SchedulesReport, ServicesReport, ShowReport, ShowRequest,
};
use crate::operate::{
    CancelReport, CancelRequest, ForgetReport, ForgetRequest, KindRequest, PauseReport,
    PolicyReport, PolicyRequest, ReplayReport, ReplayRequest, RequeueReport, RequeueRequest,
    RescheduleReport, RescheduleRequest, RetireReport, ScheduleAction, ScheduleChange,
    ScheduleRequest, ScheduleStatus, ServiceChange, ServiceRequest, UnblockReport, UnblockRequest,
};
use crate::queue::{self, ListFilter, Published, Times};
use crate::retention::{self, KindsReport, RetentionReport};
use crate::schedule;
use crate::wake::Waker;

/// The answer to a request about retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Retention {
    /// The retention in effect.
    Kept(KindsReport),
    /// The result of a change.
    Changed(RetentionReport),
}

impl Service {
    /// Returns figures of the queue.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn stats(&self) -> Result<StatsReport, Error> {
        let client = self.looking().await?;
        stats_on(&client).await
    }

    /// Examines the database, the schema and the queue. Changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn doctor(&self) -> Result<DoctorReport, Error> {
        doctor::examine(&Target {
            database: &self.database,
            kinds: self.program.kinds,
            options: &self.options,
            tables: &self.program.tables,
        })
        .await
    }

    /// Wakes the function that `TIDEGATE_WAKE` names, if no drain is at work. Call it after the commit of a
    /// publish. A failure is only logged, because the publish is not affected.
    pub async fn wake(&self) {
        if let Some(waker) = self.waker()
            && let Err(error) = waker.wake().await
        {
            tracing::warn!(%error, "no drain could be started; the next scheduled drain handles the published events");
        }
    }

    /// Returns the waker of the function that `TIDEGATE_WAKE` names.
    fn waker(&self) -> Option<Waker> {
        let starter = self.wakes.clone()?;
        Some(Waker::new(self.database.clone(), starter))
    }

    /// Returns everything that is stored about one event, live or finished.
    ///
    /// # Errors
    /// [`Error::UnknownEvent`]; when the database fails.
    pub async fn show(&self, asked: ShowRequest) -> Result<ShowReport, Error> {
        let client = self.looking().await?;
        let event = queue::show(&client, asked.id).await?;
        let event = event.ok_or(Error::UnknownEvent(asked.id))?;
        let lineage = queue::lineage(&client, asked.id).await?;
        Ok(ShowReport { event, lineage })
    }

    /// Returns a page of events, newest first. `"handled": false` marks an event whose kind this program does
    /// not have.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request, also for a kind that is not registered and
    /// has no events; when the database fails.
    pub async fn list(&self, asked: &ListRequest) -> Result<ListReport, Error> {
        let (status, limit) = (asked.status()?, look::limit(asked.limit)?);
        let client = self.looking().await?;
        self.page(&client, &asked.filter(status), limit, true).await
    }

    /// Returns a page of events. `is_all` says whether the filter accepts events of any age, so that an empty
    /// page means that there are none.
    pub(super) async fn page(
        &self,
        client: &Client,
        filter: &ListFilter<'_>,
        limit: u32,
        is_all: bool,
    ) -> Result<ListReport, Error> {
        let mut events = queue::list(client, filter, limit).await?;
        if let (true, true, Some(kind)) = (is_all, events.is_empty(), filter.kind) {
            // The name of an unknown kind is most likely misspelled, so refuse it rather than return an empty
            // page.
            refuse_unknown(client, kind).await?;
        }
        for event in &mut events {
            self.mark_foreign(event);
        }
        let is_full = events.len() >= limit as usize;
        let last = events.last().and_then(|event| event["id"].as_i64());
        let next = last.filter(|_| is_full);
        Ok(ListReport { events, next })
    }

    /// Returns groups that wait for their first event.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn blocked_groups(&self, asked: FirstRequest) -> Result<BlockedGroupsReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let groups = queue::blocked_groups(&client, limit).await?;
        Ok(BlockedGroupsReport { groups })
    }

    /// Returns the leases: which worker holds how many events, and since when.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn leases(&self, asked: FirstRequest) -> Result<LeasesReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let leases = queue::leases(&client, limit).await?;
        Ok(LeasesReport { leases })
    }

    /// Returns the external services that have failed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn services(&self) -> Result<ServicesReport, Error> {
        let client = self.looking().await?;
        let services = queue::services(&client).await?;
        Ok(ServicesReport { services })
    }

    /// Publishes an event for an operator, with an audit row, and wakes the function that drains, unless the
    /// event is delayed. The event has the program's attempt limit, unless it sets its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the event, the reason or the actor; when the database
    /// fails.
    pub async fn publish_by_hand(
        &self,
        event: NewEvent,
        reason: &str,
        actor: Option<&String>,
    ) -> Result<Published, Error> {
        let event = match self.stored.max_attempts {
            Some(attempts) if event.max_attempts.is_none() => event.max_attempts(attempts),
            _ => event,
        };
        event.check()?;
        let actor = self.actor_of(actor);
        let mut client = self.database.connect().await?;
        let published =
            queue::publish_by_hand(&mut client, &event, reason, actor.as_deref()).await?;
        if event.delay.is_none() {
            self.wake().await;
        }
        Ok(published)
    }

    /// Publishes finished events again as new ones (F5).
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request; when the database fails.
    pub async fn replay(&self, asked: &ReplayRequest) -> Result<ReplayReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::replay(&client, &ReplayRequest { actor, ..asked }).await
    }

    /// Runs live events again.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn requeue(&self, asked: &RequeueRequest) -> Result<RequeueReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::requeue(&client, &RequeueRequest { actor, ..asked }).await
    }

    /// Ends live events as FAILED with the code `cancelled`, even if a worker has leased them.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done before the error stays done, and the same request can be sent
    /// again to continue.
    pub async fn cancel(&self, asked: &CancelRequest) -> Result<CancelReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        change::cancel(&self.database, &CancelRequest { actor, ..asked }).await
    }

    /// Moves the start time of waiting events, for instance to now, or their deadline.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done before the error stays done, and the same request can be sent
    /// again to continue.
    pub async fn reschedule(&self, asked: &RescheduleRequest) -> Result<RescheduleReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        change::reschedule(&self.database, &RescheduleRequest { actor, ..asked }).await
    }

    /// Pauses a kind: its events are no longer leased.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn pause(&self, asked: &KindRequest) -> Result<PauseReport, Error> {
        let client = self.database.connect().await?;
        queue::pause(&client, &self.of_kind(asked)).await
    }

    /// Resumes a paused kind.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn resume(&self, asked: &KindRequest) -> Result<PauseReport, Error> {
        let client = self.database.connect().await?;
        queue::resume(&client, &self.of_kind(asked)).await
    }

    /// Retires a kind that this program does not handle, so it can no longer be published.
    ///
    /// # Errors
    /// [`Error::Invalid`] when this program handles the kind, when it is not registered, or when it has live
    /// events; when the database fails.
    pub async fn retire(&self, asked: &KindRequest) -> Result<RetireReport, Error> {
        if self.program.kinds.contains(&asked.kind.as_str()) {
            let wanted = "must be one that this program does not handle";
            let text = format!("kind: {wanted}, got {:?}", asked.kind);
            return Err(Error::Invalid(text));
        }
        let client = self.database.connect().await?;
        queue::retire(&client, &self.of_kind(asked)).await
    }

    /// Stops calls of an external service, allows them again, or limits them.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn change_service(&self, asked: &ServiceRequest) -> Result<ServiceChange, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::change_service(&client, &ServiceRequest { actor, ..asked }).await
    }

    /// Changes how events of a kind are handled, or returns how they are.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn policy(&self, asked: &PolicyRequest) -> Result<PolicyReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::set_policy(&client, &PolicyRequest { actor, ..asked }).await
    }

    /// Retries, skips or cancels the first event of a group.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn unblock(&self, asked: &UnblockRequest) -> Result<UnblockReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::unblock(&client, &UnblockRequest { actor, ..asked }).await
    }

    /// Removes the data of the person in the request from the program's tables, the queue and its log. What
    /// happened, when, and how it ended stays.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done before the error stays done, and the same request can be sent
    /// again to continue.
    pub async fn forget(&self, asked: &ForgetRequest) -> Result<ForgetReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        let asked = ForgetRequest { actor, ..asked };
        forget::forget(&self.database, self.program.records.as_deref(), &asked).await
    }

    /// Returns the schedules: those that have stopped first, then the others by their next slot.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn schedules(&self, asked: FirstRequest) -> Result<SchedulesReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let mut schedules = queue::schedules(&client, limit).await?;
        schedules.iter_mut().for_each(complete);
        Ok(SchedulesReport { schedules })
    }

    /// Creates or changes a schedule that operators keep, pauses, resumes or removes one, or publishes its
    /// event now.
    ///
    /// # Errors
    /// As [`Service::replay`]; [`Error::Config`] to set a schedule in a program that is built without them.
    pub async fn change_schedule(&self, asked: &ScheduleRequest) -> Result<ScheduleChange, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = ScheduleRequest {
            actor,
            ..asked.clone()
        };
        let (mut payload, mut first) = (None, None);
        if let ScheduleAction::Set(wanted) = &asked.action {
            first = Some(schedule::check(wanted)?);
            let text = wanted.payload.as_ref().map(ToString::to_string);
            payload = schedule::sealed(&wanted.kind, text).await?;
        }
        let client = self.database.connect().await?;
        let change = queue::change_schedule(&client, &asked, payload.as_deref()).await?;
        Ok(ScheduleChange {
            next_at: first,
            ..change
        })
    }

    /// Returns how long finished events are kept, by kind, or changes it. A change runs within `time` if the
    /// caller has a limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request; when the database fails.
    pub async fn retention(
        &self,
        asked: &RetentionRequest,
        time: Option<Duration>,
    ) -> Result<Retention, Error> {
        let Some(mut change) = asked.change(self.options.budget)? else {
            let kinds = retention::kinds(&self.database, asked.kind.as_deref());
            return Ok(Retention::Kept(kinds.await?));
        };
        change.actor = self.actor_of(change.actor.as_ref());
        change.budget = time.map_or(change.budget, |time| time.min(change.budget));
        let report = retention::change(&self.database, &change).await?;
        Ok(Retention::Changed(report))
    }

    /// Marks an event whose kind this program does not have.
    fn mark_foreign(&self, event: &mut Value) {
        let kind = event["kind"].as_str().unwrap_or_default();
        if !self.program.kinds.contains(&kind) {
            event["handled"] = Value::Bool(false);
        }
    }

    /// Returns the operator's name, for the audit.
    fn actor_of(&self, asked: Option<&String>) -> Option<String> {
        asked.or(self.actor.as_ref()).cloned()
    }

    fn of_kind(&self, asked: &KindRequest) -> KindRequest {
        KindRequest {
            actor: self.actor_of(asked.actor.as_ref()),
            ..asked.clone()
        }
    }
}

/// Fills in the next slot of a schedule for which no drain has computed it yet.
fn complete(status: &mut ScheduleStatus) {
    if status.next_at.is_some() || status.problem.is_some() {
        return;
    }
    let times = Times {
        cron: status.cron.clone(),
        every: status.every_ms.map(|every| every / 1000),
        time_zone: status.time_zone.clone(),
    };
    status.next_at = schedule::first_after(&times, status.since_s);
}

/// An error lists no more kinds than this.
const MOST_NAMED: usize = 50;

/// Refuses a kind that is neither registered nor the kind of any event, live or finished: its name is most
/// likely misspelled.
async fn refuse_unknown(client: &Client, kind: &str) -> Result<(), Error> {
    let kinds = queue::registered(client).await?;
    if kinds.iter().any(|known| known == kind) {
        return Ok(());
    }
    let any = ListFilter {
        kind: Some(kind),
        ..ListFilter::default()
    };
    if !queue::list(client, &any, 1).await?.is_empty() {
        return Ok(());
    }
    let mut named = kinds.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>();
    if kinds.len() > MOST_NAMED {
        named.push(format!("and {} more", kinds.len() - MOST_NAMED));
    }
    let there_are = match named.as_slice() {
        [] => "no kinds are registered".to_owned(),
        _ => format!("the kinds are {}", named.join(", ")),
    };
    Err(Error::Invalid(format!(
        "kind: {kind:?} is not registered, and there are no events of it; {there_are}"
    )))
}
