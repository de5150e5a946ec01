//! What operators ask of a program, one function a verb: the command line and the function that people call answer by these.

use std::time::Duration;

use serde::Serialize;

use super::{Service, stats_on};
use crate::change;
use crate::doctor::{self, DoctorReport, Target};
use crate::error::Error;
use crate::forget;
use crate::invocation::{RetentionRequest, StatsReport};
use crate::look::{
    self, BlockedGroupsReport, FirstRequest, LeasesReport, ListReport, ListRequest,
    SchedulesReport, ServicesReport, ShowReport, ShowRequest,
};
use crate::operate::{
    CancelReport, CancelRequest, ForgetReport, ForgetRequest, KindRequest, PauseReport,
    PolicyReport, PolicyRequest, ReplayReport, ReplayRequest, RequeueReport, RequeueRequest,
    RescheduleReport, RescheduleRequest, RetireReport, RewrapReport, RewrapRequest, ScheduleAction,
    ScheduleChange, ScheduleRequest, ServiceChange, ServiceRequest, UnblockReport, UnblockRequest,
};
use crate::queue;
use crate::retention::{self, KindsReport, RetentionReport};
use crate::rewrap;
use crate::schedule;
use crate::wake::Waker;

/// What is answered of retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Retention {
    /// How it is.
    Kept(KindsReport),
    /// What a change did.
    Changed(RetentionReport),
}

impl Service {
    /// Figures of the queue.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn stats(&self) -> Result<StatsReport, Error> {
        let client = self.looking().await?;
        stats_on(&client).await
    }

    /// Examines database, schema and queue; changes nothing.
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

    /// Something was published and is committed: wakes the function that `TIDEGATE_WAKE` names, if none is at work. What was published
    /// is, whatever comes of it; a failure is logged.
    pub async fn wake(&self) {
        if let Some(waker) = self.waker()
            && let Err(error) = waker.wake().await
        {
            tracing::warn!(%error, "no drain could be woken; the next tick finds what was published");
        }
    }

    /// What wakes the function that `TIDEGATE_WAKE` names.
    fn waker(&self) -> Option<Waker> {
        let function = self.wakes.clone()?;
        #[cfg(feature = "aws")]
        return Some(Waker::function(self.database.clone(), function));
        // Without it no settings name one.
        #[cfg(not(feature = "aws"))]
        return {
            drop(function);
            None
        };
    }

    /// Everything stored about one event, live or finished.
    ///
    /// # Errors
    /// [`Error::UnknownEvent`]; when the database fails.
    pub async fn show(&self, asked: ShowRequest) -> Result<ShowReport, Error> {
        let client = self.looking().await?;
        let event = queue::show(&client, asked.id).await?;
        let event = event.ok_or(Error::UnknownEvent(asked.id))?;
        let lineage = queue::lineage(&client, asked.id).await?;
        let wait = queue::wait_of(&client, asked.id).await?;
        Ok(ShowReport {
            event,
            lineage,
            wait,
        })
    }

    /// A page of events, newest first.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request, a kind that nobody has registered too; when the database fails.
    pub async fn list(&self, asked: &ListRequest) -> Result<ListReport, Error> {
        let (status, limit) = (asked.status()?, look::limit(asked.limit)?);
        let client = self.looking().await?;
        let events = queue::list(&client, &asked.filter(status), limit).await?;
        if let (true, Some(kind)) = (events.is_empty(), &asked.kind) {
            // Nothing of a kind that nobody has registered is a slip of the pen.
            retention::kinds(&self.database, Some(kind)).await?;
        }
        let is_full = events.len() >= limit as usize;
        let last = events.last().and_then(|event| event["id"].as_i64());
        let next = last.filter(|_| is_full);
        Ok(ListReport { events, next })
    }

    /// Groups that wait for their first event.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn blocked_groups(&self, asked: FirstRequest) -> Result<BlockedGroupsReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let groups = queue::blocked_groups(&client, limit).await?;
        Ok(BlockedGroupsReport { groups })
    }

    /// Who holds how many events since when.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn leases(&self, asked: FirstRequest) -> Result<LeasesReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let leases = queue::leases(&client, limit).await?;
        Ok(LeasesReport { leases })
    }

    /// Outside services that have failed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn services(&self) -> Result<ServicesReport, Error> {
        let client = self.looking().await?;
        let services = queue::services(&client).await?;
        Ok(ServicesReport { services })
    }

    /// Puts logged events back as new ones (F5).
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

    /// Ends live events FAILED `cancelled`, whoever has them in hand.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done by then stays done, and the same request goes on.
    pub async fn cancel(&self, asked: &CancelRequest) -> Result<CancelReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        change::cancel(&self.database, &CancelRequest { actor, ..asked }).await
    }

    /// Has waiting events start at another time, now for instance, or before another deadline.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done by then stays done, and the same request goes on.
    pub async fn reschedule(&self, asked: &RescheduleRequest) -> Result<RescheduleReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        change::reschedule(&self.database, &RescheduleRequest { actor, ..asked }).await
    }

    /// Keeps a kind from being taken.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn pause(&self, asked: &KindRequest) -> Result<PauseReport, Error> {
        let client = self.database.connect().await?;
        queue::pause(&client, &self.of_kind(asked)).await
    }

    /// Lets a paused kind be taken again.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn resume(&self, asked: &KindRequest) -> Result<PauseReport, Error> {
        let client = self.database.connect().await?;
        queue::resume(&client, &self.of_kind(asked)).await
    }

    /// Takes a kind that this program does not handle off the list of those that can be published.
    ///
    /// # Errors
    /// [`Error::Invalid`] when this program handles it, when it is not registered or when it has live events; when the
    /// database fails.
    pub async fn retire(&self, asked: &KindRequest) -> Result<RetireReport, Error> {
        if self.program.kinds.contains(&asked.kind.as_str()) {
            let wanted = "must be one that this program does not handle";
            let text = format!("kind: {wanted}, got {:?}", asked.kind);
            return Err(Error::Invalid(text));
        }
        let client = self.database.connect().await?;
        queue::retire(&client, &self.of_kind(asked)).await
    }

    /// Keeps an outside service from being called, or lets it be called again.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn change_service(&self, asked: &ServiceRequest) -> Result<ServiceChange, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::change_service(&client, &ServiceRequest { actor, ..asked }).await
    }

    /// Says how events of a kind are handled, or tells it.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn policy(&self, asked: &PolicyRequest) -> Result<PolicyReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::set_policy(&client, &PolicyRequest { actor, ..asked }).await
    }

    /// Acts on the first event of a group.
    ///
    /// # Errors
    /// As [`Service::replay`].
    pub async fn unblock(&self, asked: &UnblockRequest) -> Result<UnblockReport, Error> {
        let client = self.database.connect().await?;
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        queue::unblock(&client, &UnblockRequest { actor, ..asked }).await
    }

    /// Takes away what the program's tables, the queue and its log hold of whom the request names. What happened, when, and
    /// how it ended is left.
    ///
    /// # Errors
    /// As [`Service::replay`]. What was done by then stays done, and the same request goes on.
    pub async fn forget(&self, asked: &ForgetRequest) -> Result<ForgetReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = asked.clone();
        let asked = ForgetRequest { actor, ..asked };
        forget::forget(&self.database, self.program.records.as_deref(), &asked).await
    }

    /// Seals all payloads of queue and log with the current key: those with another one, and those that have none.
    ///
    /// # Errors
    /// [`Error::Config`] when this program has no keys; as [`Service::replay`]. What was done by then stays done.
    pub async fn rewrap(&self, asked: &RewrapRequest) -> Result<RewrapReport, Error> {
        let actor = self.actor_of(asked.actor.as_ref());
        let asked = RewrapRequest {
            actor,
            ..asked.clone()
        };
        rewrap::rewrap(&self.database, &asked).await
    }

    /// What is published again and again: those that stand still first, then by their next slot.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn schedules(&self, asked: FirstRequest) -> Result<SchedulesReport, Error> {
        let limit = look::limit(asked.limit)?;
        let client = self.looking().await?;
        let mut schedules = queue::schedules(&client, limit).await?;
        schedules.iter_mut().for_each(schedule::complete);
        Ok(SchedulesReport { schedules })
    }

    /// Makes or changes a schedule of the operators', pauses, resumes or removes one, or publishes its event now.
    ///
    /// # Errors
    /// As [`Service::replay`]; [`Error::Config`] to set one where schedules are not built in.
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

    /// How long finished events are kept, by kind; or a change of that, which may take `time` if there is a limit from
    /// outside.
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

    /// Who asks, for the audit.
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
