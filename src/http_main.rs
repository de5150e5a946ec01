//! The Lambda function: decodes the invocation, has it answered within the invocation's deadline,
//! returns the report. No logic of its own.
//!
//! The surprise: settings that do not hold are not a failed start. A function that dies while
//! starting tells its caller nothing, so the error is kept and every invocation answers with it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use serde_json::Value;
use tidegate::config::environment;
use tidegate::drain::Hooks;
use tidegate::invocation::Request;
use tidegate::service::{Failure, Service};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// Kept of the invocation's time for answering: a fifth, within these bounds.
const RESERVE: (Duration, Duration) = (Duration::from_millis(1200), Duration::from_secs(3));

/// No Lambda function runs longer, so no deadline is further away.
const LONGEST: Duration = Duration::from_mins(15);

fn main() -> Result<(), lambda_runtime::Error> {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve())
}

async fn serve() -> Result<(), lambda_runtime::Error> {
    let service = Arc::new(Service::new(&environment));
    if let Err(error) = service.as_ref() {
        tracing::error!(error = %error, "settings do not hold; every invocation will fail");
    }
    let (stop, stopped) = watch::channel(false);
    let (busy, idle) = watch::channel(0_u32);
    tokio::spawn(exit_on_signal(stop, idle));
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| {
        let (service, stopped, busy) = (service.clone(), stopped.clone(), busy.clone());
        async move {
            busy.send_modify(|running| *running += 1);
            let answer = answer(service.as_ref().as_ref(), event, stopped).await;
            busy.send_modify(|running| *running -= 1);
            answer
        }
    }))
    .await
}

async fn answer(
    service: Result<&Service, &tidegate::Error>,
    event: LambdaEvent<Value>,
    stop: watch::Receiver<bool>,
) -> Result<Value, Refusal> {
    let service = service.map_err(|error| Refusal::new("Configuration", error))?;
    let request = Request::decode(event.payload)
        .map_err(|error| Refusal::new("InvalidInvocation", &error))?;
    let hooks = Hooks {
        stop: Some(stop),
        progress: None,
    };
    let answered = service
        .answer(&request, time_left(event.context.deadline), hooks)
        .await;
    match answered {
        Ok(report) => {
            tracing::info!(request_id = event.context.request_id, report = %report, "invocation answered");
            Ok(report)
        }
        Err(error) => {
            tracing::error!(request_id = event.context.request_id, error = %error, "invocation failed");
            Err(Refusal::new(stage(&error), &error))
        }
    }
}

/// What went wrong, in a word, for the caller's retry rules and metrics.
fn stage(error: &Failure) -> &'static str {
    match error {
        Failure::Drain(_) => "DrainFailed",
        Failure::Other(tidegate::Error::Connect(_)) => "DatabaseUnreachable",
        Failure::Other(tidegate::Error::Migrate(_)) => "MigrationFailed",
        Failure::Other(tidegate::Error::Config(_)) => "Configuration",
        Failure::Other(_) | Failure::Report(_) => "RequestFailed",
    }
}

/// The time this invocation may use, less the reserve; `None` when the deadline is not to be
/// believed: local emulators send one in 1970.
fn time_left(deadline_ms: u64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let left = Duration::from_millis(deadline_ms).checked_sub(now)?;
    if left.is_zero() || left > LONGEST {
        return None;
    }
    Some(left.saturating_sub((left / 5).clamp(RESERVE.0, RESERVE.1)))
}

/// Stops a running drain as its budget would, waits for its answer, and ends the process.
async fn exit_on_signal(stop: watch::Sender<bool>, mut idle: watch::Receiver<u32>) {
    tidegate::service::stop_signal().await;
    let _ = stop.send(true);
    let _ = idle.wait_for(|running| *running == 0).await;
    std::process::exit(0);
}

/// An answer that says why there is no report.
#[derive(Debug)]
struct Refusal(Diagnostic);

impl Refusal {
    fn new(error_type: &str, error: &dyn std::fmt::Display) -> Self {
        Self(Diagnostic {
            error_type: error_type.to_owned(),
            error_message: error.to_string(),
        })
    }
}

impl From<Refusal> for Diagnostic {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_ms(left: u64) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_millis()).unwrap() + left
    }

    #[test]
    fn f2_the_invocations_deadline_less_the_reserve_bounds_the_budget() {
        let left = time_left(in_ms(60_000)).unwrap();
        assert!(
            left <= Duration::from_secs(57) && left > Duration::from_secs(56),
            "{left:?}"
        );
        let left = time_left(in_ms(3_000)).unwrap();
        assert!(
            left <= Duration::from_millis(1800) && left > Duration::from_millis(1500),
            "{left:?}"
        );
    }

    #[test]
    fn an_implausible_deadline_counts_as_unknown() {
        for deadline in [0, 600, in_ms(3_600_000)] {
            assert_eq!(time_left(deadline), None);
        }
    }
}
