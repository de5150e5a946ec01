//! Owns the handling of `issuings-ai-checks`: the four steps, in order (B33 to B35).
//!
//! The AI service is slow: tens of seconds are normal. A running check therefore holds only its place
//! at the gate. It holds no transaction and no connection of the pool. It occupies one handler of the
//! drain and no other (B16).
//!
//! A postponed check completes its event and emits a new event, which has all its attempts. The
//! statement that moves the old event to the log also publishes the new one (A17), fenced by the lease:
//! both happen or neither. The handler needs no transaction, because nothing else is written.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{
    Context, Done, DrainOptions, Error, HandlerError, HandlerResult, Lookup, NewEvent, Verdicts,
    config,
};
use tokio::time::Instant;

use super::IssuingCheck;
use super::store::{self, Standing};
use crate::app::client::{HttpClient, HttpService};

/// The service that checks applications.
pub(crate) const AI_CHECK: &str = "ai_check";

/// How many checks run at a time, in all drains together. If this many are NEW, because another system
/// performs some of them, a check is postponed (B34).
pub(crate) const PLACES: u16 = 2;

/// Time reserved for storing the answer: a tenth of the handler's time limit, at most this long.
const RESERVE: Duration = Duration::from_secs(2);

/// A place expires this long after the time limit of its handler. A place therefore expires only if its
/// worker died.
const PLACE_MARGIN: Duration = Duration::from_secs(5);

/// How often a check looks whether a place that it waits for is free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// No check is postponed for less, so that it does not return constantly.
const LEAST_DELAY: Duration = Duration::from_secs(1);

/// How checks are performed and postponed.
#[derive(Debug, Clone)]
pub(crate) struct Checks {
    service: HttpService,
    delay: Duration,
}

/// How an event ended. Stored as its result.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Overdue,
    PutOff,
    Checked,
    /// The check had an answer already. The service was not called again (D8).
    AnsweredBefore,
}

impl End {
    fn done(self) -> HandlerResult {
        Done::with(&json!({ "ended": self }))
    }
}

impl Checks {
    /// Reads `AI_CHECK_URL` and `TIDEGATE_BUDGET`. A check that finds the gate full is postponed by the time
    /// budget of a drain, so that it is not due before the drain that postpones it has ended.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(crate) fn from_settings(lookup: Lookup<'_>, http: &HttpClient) -> Result<Self, Error> {
        let service = HttpService::from_setting(AI_CHECK, "AI_CHECK_URL", lookup, http)?;
        let budget = DrainOptions::default().budget;
        let budget = config::read(lookup, "TIDEGATE_BUDGET", budget, &[])?;
        let delay = budget.max(LEAST_DELAY);
        Ok(Self { service, delay })
    }

    /// Runs the four steps: looks at the check, takes a place, asks the service, stores its answer.
    pub(crate) async fn check_issuing(&self, check: &IssuingCheck, ctx: &Context) -> HandlerResult {
        check.check().reject("payload")?;
        match store::standing(ctx, check).await? {
            Standing::Answered => return End::AnsweredBefore.done(),
            Standing::Overdue => return end_overdue(check, ctx).await,
            Standing::Open => {}
        }
        if let Some(full_at) = take_place(check, ctx).await? {
            return self.put_off(check, ctx, full_at);
        }
        let checked = self.ask(check, ctx).await;
        if checked.is_err() {
            leave_place(check, ctx).await;
        }
        checked
    }

    /// Emits the event again with the same payload, group, correlation id, deadline and number of
    /// attempts. The new event starts with no attempts used. It may have the deduplication key of the
    /// old event, which has ended by then.
    fn put_off(&self, check: &IssuingCheck, ctx: &Context, now: SystemTime) -> HandlerResult {
        let left = ctx
            .start_before()
            .map(|deadline| deadline.duration_since(now).unwrap_or_default());
        let attempts = u16::try_from(ctx.max_attempts()).ok();
        let event = check
            .event()?
            .delay(delay_within(self.delay, left))
            .set_if(ctx.group_key(), NewEvent::group)
            .set_if(ctx.start_before(), NewEvent::start_before)
            .set_if(attempts, NewEvent::max_attempts);
        ctx.emit(&event)?;
        End::PutOff.done().map(Done::put_off)
    }

    /// Calls the AI service, and stores its answer together with the end of the event.
    async fn ask(&self, check: &IssuingCheck, ctx: &Context) -> HandlerResult {
        let key = check.key().reject("payload")?;
        let body = json!({
            "reference": key,
            "triggerId": check.trigger_id,
            "applicationId": check.application_id,
        });
        let time = time_left(ctx);
        let limit = time.saturating_sub(RESERVE.min(time / 10));
        let answer = self.service.post_within("checks", &key, &body, limit);
        let answer: Value = answer.await?;
        let tx = ctx.transaction().await?;
        let stored = store::answer(&tx, check, &answer.to_string()).await;
        stored.map_err(unstored)?;
        tx.complete(End::Checked.done()?).await
    }
}

/// How long to postpone a check that must start within `left`, if it has a deadline. If the
/// full delay would reach the deadline, the check is postponed for half of the remaining time, so that
/// it returns in time, but for at least one second, so that it does not return constantly. In its last
/// second it is scheduled for its deadline. It never starts then: it ends as expired (B13).
fn delay_within(delay: Duration, left: Option<Duration>) -> Duration {
    match left {
        Some(left) if left <= delay => (left / 2).max(LEAST_DELAY).min(left),
        _ => delay,
    }
}

/// Takes a place, or returns the time when there was none. If another system has one place, and another
/// check of ours the other, it waits for that one: postponing this check would leave the place idle. It waits
/// for at most half of the handler's time, and leaves the rest to the call.
async fn take_place(
    check: &IssuingCheck,
    ctx: &Context,
) -> Result<Option<SystemTime>, HandlerError> {
    let began = Instant::now();
    loop {
        let left = time_left(ctx);
        let full = store::take_place(ctx, check, PLACES.into(), left + PLACE_MARGIN);
        match full.await? {
            Some((_, true)) if began.elapsed() < left => tokio::time::sleep(LOOK_AGAIN).await,
            full => return Ok(full.map(|(at, _)| at)),
        }
    }
}

fn time_left(ctx: &Context) -> Duration {
    ctx.deadline().saturating_duration_since(Instant::now())
}

async fn end_overdue(check: &IssuingCheck, ctx: &Context) -> HandlerResult {
    let tx = ctx.transaction().await?;
    store::leave(&tx, check, "OVERDUE").await?;
    tx.complete(End::Overdue.done()?).await
}

/// Releases the place of a failed check, so that other checks need not wait while this one waits. If
/// the place cannot be released now, it expires by itself.
async fn leave_place(check: &IssuingCheck, ctx: &Context) {
    let left = async {
        let client = ctx.connection().await?;
        Ok::<_, HandlerError>(store::leave(&client, check, "PLANNED").await?)
    };
    if let Err(error) = left.await {
        tracing::warn!(%error, "a check keeps its place until it runs out");
    }
}

/// An answer that Postgres cannot store, for example one with `\u0000` in it, is the service's fault. The
/// check is tried again, and after the last attempt an alarm tells somebody.
fn unstored(error: Error) -> HandlerError {
    if error.is_bad_data() {
        return HandlerError::call_failed("ai_check_answer", "the answer cannot be stored");
    }
    HandlerError::retry("error", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn b34_a_check_is_put_off_past_its_drain() {
        for (budget, delay) in [
            (None, DrainOptions::default().budget),
            (Some("5m"), 300 * SECOND),
            (Some("1ms"), SECOND),
        ] {
            let set = |name: &str| budget.filter(|_| name == "TIDEGATE_BUDGET");
            let set = |name: &str| set(name).map(ToOwned::to_owned);
            let checks = Checks::from_settings(&set, &HttpClient::default());
            assert_eq!(checks.unwrap().delay, delay, "{budget:?}");
        }
    }

    #[test]
    fn b34_a_check_is_not_put_off_past_its_deadline_and_does_not_spin_before_it() {
        let delay = 30 * SECOND;
        for (left, expected) in [
            (None, delay),
            (Some(31 * SECOND), delay),
            (Some(30 * SECOND), 15 * SECOND),
            (Some(3 * SECOND), 3 * SECOND / 2),
            (Some(2 * SECOND), SECOND),
            (Some(3 * SECOND / 2), SECOND),
            (Some(SECOND / 2), SECOND / 2),
            (Some(Duration::ZERO), Duration::ZERO),
        ] {
            assert_eq!(delay_within(delay, left), expected, "{left:?}");
        }
        let mut left = 30 * SECOND;
        let mut times = 0;
        while left > Duration::ZERO {
            left -= delay_within(delay, Some(left));
            times += 1;
        }
        assert!(times <= 7, "{times}");
    }
}
