//! Owns a one-time schedule of `EventBridge` Scheduler that each drain moves to the time of the next work.
//! <https://docs.aws.amazon.com/scheduler/latest/APIReference/API_UpdateSchedule.html>

use std::time::{Duration, SystemTime};

use futures_util::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tidegate_core::Error;
use tidegate_core::chain::NextTick;
use tokio::sync::OnceCell;

use crate::invoke::{SelfInvoke, failed};
use crate::request::Arn;
use crate::sdk::CALL_TIMEOUT;

/// The parts of a schedule that an update must repeat, because it resets what it leaves out.
const REPEATED: [&str; 7] = [
    "ActionAfterCompletion",
    "Description",
    "FlexibleTimeWindow",
    "GroupName",
    "KmsKeyArn",
    "ScheduleExpressionTimezone",
    "Target",
];

/// The schedule is refused if its time has passed, and is exact to a minute.
const SOONEST: Duration = Duration::from_mins(1);

/// The schedule with this ARN: `arn:aws:scheduler:REGION:ACCOUNT:schedule/GROUP/NAME`. It needs the
/// permissions `scheduler:GetSchedule` and `scheduler:UpdateSchedule`, and `iam:PassRole` on its role.
pub(crate) struct TickSchedule {
    by: SelfInvoke,
    arn: String,
    group: String,
    name: String,
    /// Read once: nobody changes these parts while the process lives.
    described: OnceCell<Map<String, Value>>,
}

impl TickSchedule {
    /// # Errors
    /// [`Error::Config`] when it is not the ARN of a schedule.
    pub(crate) fn new(setting: &str, arn: String) -> Result<Self, Error> {
        let named = arn.split(':').nth(5).and_then(|resource| {
            let (group, name) = resource.strip_prefix("schedule/")?.split_once('/')?;
            (!group.is_empty() && !name.is_empty() && !name.contains('/'))
                .then(|| (group.to_owned(), name.to_owned()))
        });
        let is_schedule = arn.starts_with("arn:") && arn.split(':').nth(2) == Some("scheduler");
        let Some((group, name)) = named.filter(|_| is_schedule) else {
            return Err(Error::Config(format!(
                "{setting}: must be the ARN of a schedule such as arn:aws:scheduler:eu-central-1:123456789012:schedule/group/name, got {arn:?}"
            )));
        };
        Ok(Self {
            by: SelfInvoke::default(),
            arn,
            group,
            name,
            described: OnceCell::new(),
        })
    }

    async fn send(&self, method: &str, query: &str, body: String) -> Result<String, Error> {
        let place = Arn::of(&self.arn)?;
        let host = self.by.requests.endpoint("SCHEDULER", &place).await?;
        let url = format!("{host}/schedules/{}{query}", self.name);
        let headers = [("content-type", "application/json")];
        let to = place.of_service();
        self.by.send(to, method, &url, &headers, body).await
    }

    async fn describe(&self) -> Result<Map<String, Value>, Error> {
        let query = format!("?groupName={}", self.group);
        let text = self.send("GET", &query, String::new()).await?;
        let mut schedule: Map<String, Value> = serde_json::from_str(&text).map_err(failed)?;
        schedule.retain(|name, value| REPEATED.contains(&name.as_str()) && !value.is_null());
        Ok(schedule)
    }

    async fn move_to(&self, at: Option<SystemTime>) -> Result<(), Error> {
        let described = self.described.get_or_try_init(|| self.describe()).await?;
        let soonest = SystemTime::now() + SOONEST;
        let time = Timestamp::try_from(at.unwrap_or(soonest).max(soonest)).map_err(failed)?;
        let mut schedule = described.clone();
        schedule.extend([
            (
                "ScheduleExpression".to_owned(),
                json!(time.strftime("at(%Y-%m-%dT%H:%M:%S)").to_string()),
            ),
            ("ScheduleExpressionTimezone".to_owned(), json!("UTC")),
            (
                "State".to_owned(),
                json!(if at.is_some() { "ENABLED" } else { "DISABLED" }),
            ),
        ]);
        let body = Value::Object(schedule).to_string();
        self.send("PUT", "", body).await.map(drop)
    }
}

impl NextTick for TickSchedule {
    fn set(&self, at: Option<SystemTime>) -> BoxFuture<'_, Result<(), Error>> {
        Error::within("next_tick", CALL_TIMEOUT, self.move_to(at)).boxed()
    }
}
