//! Runs a [`Program`] as an AWS Lambda function: reads an invocation, lets the program answer within the
//! deadline, and returns the report.
//!
//! It owns what only Lambda has: deadlines, freezing between invocations, the log that CloudWatch reads, and
//! messages from SQS, SNS and `EventBridge` (`envelope` knows their formats, `intake` which of them to
//! redeliver). It knows no SQL and no handler, and a request only by its action.
//!
//! An invocation is a request, a message or a tick. A request goes to the program as one of the command line
//! does. A message goes to the program's intake, which may publish events in the transaction that receives
//! it. A tick starts a drain, whose handlers run on a runtime of their own. If handlers go on after the
//! answer, the process starts anew.
//!
//! Invalid settings do not make the start fail. A function that fails during its start gives its caller no
//! reason. So the error is kept, and every invocation answers with it.

mod envelope;
mod intake;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use lambda_runtime::tower::{self, layer::layer_fn};
use lambda_runtime::{Diagnostic, LambdaEvent, LambdaInvocation, service_fn};
use serde_json::Value;
use tidegate_aws::{DeadMessages, Invoked, SelfInvoke};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Instrument;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use envelope::{Bearer, enveloped};
use tidegate::chain::StartDrain;
use tidegate::config::environment;
use tidegate::{DrainOptions, Hooks, Json};
use tidegate_admin::logs::{
    FlushAtExit, PATIENCE, SPANS, details_of_ours_alone, flush, log_filter, log_writer,
    note_request, write_metrics, write_object,
};
use tidegate_admin::program::{Failure, Runtime, log_panics};
use tidegate_admin::{Program, is_scheduled_event};

/// Time reserved for the answer: a fifth of the invocation's time, within these bounds. A drain may exceed
/// its budget by [`tidegate::drain::OVERRUN`] and is still answered.
const RESERVE: (Duration, Duration) = (Duration::from_millis(1200), Duration::from_secs(3));

/// No deadline is further away: a function on Managed Instances may run for 90 minutes.
const LONGEST: Duration = Duration::from_hours(24);

/// The error that ends the function: its runtime interface failed.
pub use lambda_runtime::Error;

/// Runs the program as a Lambda function until it is stopped. A complete `main`:
///
/// ```no_run
/// # use tidegate::{Context, Dispatch, Done, Handlers};
/// # use tidegate_admin::Program;
/// # tidegate::events! { pub enum Shop { Opened(()) = "opened" } }
/// # struct Handling;
/// # impl Dispatch for Handling {
/// #     type Event = Shop;
/// #     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
/// #         match event {
/// #             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
/// #         }
/// #     }
/// # }
/// fn main() -> Result<(), tidegate_lambda::Error> {
///     tidegate_lambda::run(Program::new(|_settings| Ok(Handling)))
/// }
/// ```
///
/// The environment contains the settings. The payload of an invocation names the action, for example
/// `{"action": "drain"}`. A payload from an `EventBridge` schedule starts a drain. The answer is the report.
/// A handler that blocks its thread cannot be stopped. If one continues after an answer, `still_running`
/// counts it, and the process executes its program again before it asks for the next invocation.
///
/// Messages from SQS, SNS or `EventBridge` are passed to the program's intake ([`Program::receive`]), one by
/// one. SQS is told which messages to redeliver, so its event source mapping must have
/// `ReportBatchItemFailures`. Without it, Lambda treats any answer as success, and a failed message is lost.
///
/// # Errors
/// If Lambda's runtime interface cannot be used.
pub fn run(program: Program) -> Result<(), Error> {
    let _flush = FlushAtExit;
    tidegate_aws::install();
    let logs = start_logs(program.origin());
    let ready = logs.and_then(|()| takes_one_at_a_time(&environment));
    let mut ready = ready.and_then(|()| program.start(&environment));
    if let Ok(runtime) = &mut ready {
        // CloudWatch reads the metrics from the function's log.
        runtime.metrics_to = write_metrics;
        // The function's own deadline is the budget, unless there is a setting for it.
        if environment("TIDEGATE_BUDGET").is_none() {
            runtime.options.budget = LONGEST;
        }
    }
    if let Err(error) = &ready {
        tracing::error!(error = %error, "the settings are not valid; every invocation will fail");
    }
    // Handlers have their own runtime. If they block all its threads, the function can still answer in time.
    let handlers = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let shell = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let served = shell.block_on(serve(Arc::new(ready), handlers.handle().clone()));
    handlers.shutdown_background();
    served
}

/// Refuses a function that gets several invocations at once, as on Managed Instances: the time of one would
/// be that of its neighbours, and a restart after a handler that blocks its thread would end them.
fn takes_one_at_a_time(lookup: tidegate_core::config::Lookup<'_>) -> Result<(), tidegate::Error> {
    let most = lookup("AWS_LAMBDA_MAX_CONCURRENCY");
    if most.as_deref().is_none_or(|most| most == "1") {
        return Ok(());
    }
    let text =
        "AWS_LAMBDA_MAX_CONCURRENCY: must be 1; for more drains at once, raise TIDEGATE_MAX_DRAINS";
    Err(tidegate::Error::Config(text.to_owned()))
}

/// Starts logging in the format of CloudWatch: one JSON object per line on stdout, at the level of
/// `TIDEGATE_LOG`. Only the crate `origin` logs details. With the feature `otel`, spans are recorded if a
/// setting names a collector.
///
/// # Errors
/// [`tidegate::Error::Config`] if `TIDEGATE_LOG` is invalid, and the default level is used; if a setting of
/// traces is invalid, and no spans are recorded; if there can be no further thread, and nothing is logged.
pub fn start_logs(origin: &'static str) -> Result<(), tidegate::Error> {
    let filter = log_filter(&environment, LevelFilter::INFO);
    let levels = filter.as_ref().map_or_else(
        |_| Targets::new().with_default(LevelFilter::INFO),
        Clone::clone,
    );
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(log_writer(std::io::stdout())?)
        .with_filter(levels.clone().and(details_of_ours_alone(origin)));
    let logs = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otel")]
    let (logs, filter) = {
        let (traces, read) = tidegate_otel::install(&environment, origin, levels);
        (logs.with(traces), read.and(filter))
    };
    logs.init();
    filter.map(drop)
}

async fn serve(
    ready: Arc<Result<Runtime, tidegate::Error>>,
    handlers: Handle,
) -> Result<(), Error> {
    // Prepare a connection while the first invocation is fetched.
    if let Ok(runtime) = &*ready {
        runtime.database.prepare();
    }
    let (stop, stopped) = watch::channel(false);
    let (busy, idle) = watch::channel(false);
    let watched = stopped.clone();
    tokio::spawn(exit_on_signal(stop, idle));
    let spoiled = Arc::new(AtomicBool::new(false));
    let noted = spoiled.clone();
    let invoker = Arc::<SelfInvoke>::default();
    // Where refused messages of SQS go.
    let dead = environment("TIDEGATE_DEAD_MESSAGES_URL").map(DeadMessages::new);
    let dead = Arc::new(dead);
    let is_warm = AtomicBool::new(false);
    let handler = service_fn(move |event: LambdaEvent<Json>| {
        let (ready, noted, dead) = (ready.clone(), noted.clone(), dead.clone());
        let starts = matches!(&*ready, Ok(runtime) if runtime.options.starts_drains);
        tidegate_core::trace::note_invocation(event.context.xray_trace_id.clone());
        note_request(&event.context.request_id);
        let starts = starts.then(|| (invoker.clone(), event.context.clone()));
        let (stopped, handlers) = (stopped.clone(), handlers.clone());
        let is_cold = !is_warm.swap(true, Ordering::Relaxed);
        let invocation = recorded_invocation(&event, is_cold);
        let hooks = Hooks {
            stop: Some(stopped.clone()),
            handlers: Some(handlers.clone()),
            starter: starts.map(|(invoker, context)| starter(invoker, &context)),
            ..Hooks::default()
        };
        let answering = async move {
            let (ready, dead) = (ready.as_ref().as_ref(), dead.as_ref().as_ref());
            logged(event, ready, hooks, &noted, dead).await
        };
        answering.instrument(invocation)
    });
    let runtime = lambda_runtime::Runtime::new(handler).layer(layer_fn(|inner| WatchedRuntime {
        inner,
        busy: busy.clone(),
        spoiled: spoiled.clone(),
        stopped: watched.clone(),
    }));
    // Not earlier: if the runtime fails to start, its own panic message names the missing variable.
    log_panics();
    runtime.run().await
}

/// What starts further drains: it invokes this function under the same ARN.
fn starter(by: Arc<SelfInvoke>, context: &lambda_runtime::Context) -> Arc<dyn StartDrain> {
    Arc::new(Invoked {
        by,
        arn: context.invoked_function_arn.clone(),
        trace: context.xray_trace_id.clone(),
    })
}

/// The span around an invocation. It has no place in a trace: a drain's span shows its attributes.
fn recorded_invocation(event: &LambdaEvent<Json>, is_cold: bool) -> tracing::Span {
    let is_timed = || is_scheduled_event(&outline(&event.payload));
    tracing::debug_span!(
        target: SPANS,
        "invocation",
        "faas.trigger" = if is_timed() { "timer" } else { "other" },
        "faas.invocation_id" = event.context.request_id,
        "faas.coldstart" = is_cold,
    )
}

/// Answers an invocation and logs the result.
async fn logged(
    event: LambdaEvent<Json>,
    ready: Result<&Runtime, &tidegate::Error>,
    hooks: Hooks,
    spoiled: &AtomicBool,
    dead: Option<&DeadMessages>,
) -> Result<Json, FailedInvocation> {
    let deadline = event.context.deadline();
    let answering = answer(event, ready, hooks, spoiled, dead);
    // What the answer needs comes first.
    #[cfg(feature = "otel")]
    let answering = tidegate_otel::recorded(Box::pin(answering), || {
        time_until(deadline).map(|left| left / 2)
    });
    let answered = answering.await;
    match &answered {
        // As an object, of which Logs Insights can ask each field.
        Ok(report) if tracing::enabled!(tracing::Level::INFO) => {
            let report = loggable(report);
            let line = format!(
                r#"{{"message":"invocation answered","target":"tidegate_lambda","report":{report}}}"#
            );
            write_object("INFO", &line);
        }
        Ok(_) => {}
        Err(FailedInvocation(diagnostic)) => tracing::error!(
            error_type = diagnostic.error_type,
            error = diagnostic.error_message,
            "invocation failed"
        ),
    }
    // The function is frozen after its answer, and its lines with it.
    flush(time_until(deadline).map_or(PATIENCE, |left| PATIENCE.min(left / 2)));
    answered
}

/// Removes everything from a report that may name a person (I9). Of events and groups that were viewed or
/// changed, it keeps only ids and counts.
fn loggable(report: &Json) -> Json {
    let Ok(mut fields) = report.read::<BTreeMap<String, Json>>() else {
        return report.clone();
    };
    let action = fields.get("action").and_then(|action| action.read().ok());
    let action: String = action.unwrap_or_default();
    let Some(told) = tidegate_admin::logged(&action) else {
        return report.clone();
    };
    fields.retain(|name, value| {
        if ["events", "groups"].contains(&name.as_str())
            && let Ok(listed) = value.read::<Vec<Json>>()
        {
            *value = Value::from(listed.len()).into();
            return true;
        }
        name == "action" || told.contains(&name.as_str())
    });
    Json::of(&fields).unwrap_or_else(|_| Value::Null.into())
}

/// The document as values, to see what it is. A field of which no value can be made, such as a detail with
/// the number `1e400`, is given as its text.
fn outline(payload: &Json) -> Value {
    let Ok(fields) = payload.read::<BTreeMap<String, Json>>() else {
        return payload.read().unwrap_or_default();
    };
    let values = fields.into_iter().map(|(name, json)| {
        let value = json.read::<Value>();
        (name, value.unwrap_or_else(|_| json.get().into()))
    });
    values.collect()
}

async fn answer(
    event: LambdaEvent<Json>,
    ready: Result<&Runtime, &tidegate::Error>,
    hooks: Hooks,
    spoiled: &AtomicBool,
    dead: Option<&DeadMessages>,
) -> Result<Json, FailedInvocation> {
    let runtime = ready.map_err(|error| FailedInvocation::new("Configuration", error))?;
    let refused = |error: tidegate::Error| FailedInvocation::new("InvalidInvocation", &error);
    // An emulator that names no deadline gives a drain the time that it has on the command line.
    let usual = || (runtime.options.budget == LONGEST).then(|| DrainOptions::default().budget);
    let left = time_until(event.context.deadline());
    let time = left.map(less_reserve).or_else(usual);
    let event_payload = enveloped(event.payload);
    let payload = outline(&event_payload);
    let answered = if let Some(bearer) = Bearer::of(&payload).map_err(refused)? {
        let taking_in = intake::take_in(runtime, bearer, &event_payload, time, dead);
        Box::pin(taking_in).await
    } else {
        let request = runtime.actions.request(payload).map_err(refused)?;
        runtime.answer(&request, time, hooks).await
    };
    spoiled.fetch_or(leaves_handlers(&answered), Ordering::Relaxed);
    answered.map_err(|error| FailedInvocation::new(error_type(&error), &error))
}

/// Whether handlers of a drain continue after its answer.
fn leaves_handlers(answered: &Result<Json, Failure>) -> bool {
    match answered {
        Ok(report) => outline(report)["still_running"].as_u64() > Some(0),
        Err(Failure::Drain(drain)) => drain.report.still_running > 0,
        Err(_) => false,
    }
}

/// Restarts the process in place. A handler that was given up but blocks its thread would otherwise continue
/// during the next invocation, or after a thaw, with effects that nobody expects any more. If the process
/// exited, Lambda would report the invocation that was just answered as failed. Therefore the process
/// executes its own program again: no thread survives, and Lambda only sees a request for the next
/// invocation.
fn begin_anew() -> ! {
    tracing::warn!("handlers continue after the answer; the process restarts");
    flush(PATIENCE);
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let error = match std::env::current_exe() {
        Ok(program) => {
            let mut again = Command::new(program);
            again.args(arguments);
            if let Some(name) = name {
                again.arg0(name);
            }
            again.exec()
        }
        Err(error) => error,
    };
    tracing::error!(error = %error, "the process cannot restart, and ends");
    flush(PATIENCE);
    std::process::exit(1);
}

/// The type of a failure as one word, for the caller's retry rules and metrics.
fn error_type(failure: &Failure) -> &'static str {
    let (error, other) = match failure {
        Failure::Drain(drain) => (&drain.source, "DrainFailed"),
        Failure::Other(error) => (error, "RequestFailed"),
    };
    match error {
        tidegate::Error::Config(_) => "Configuration",
        tidegate::Error::Secret(_) => "SecretUnavailable",
        tidegate::Error::Connect(_) => "DatabaseUnreachable",
        tidegate::Error::Login(_) => "DatabaseLoginRefused",
        tidegate::Error::Invalid(_) => "InvalidInvocation",
        tidegate::Error::Migrate(_) => "MigrationFailed",
        _ => other,
    }
}

/// The time until a deadline. `None` if the deadline cannot be right: local emulators send one in 1970. A
/// deadline that has just passed leaves no time.
fn time_until(deadline: SystemTime) -> Option<Duration> {
    let now = SystemTime::now();
    let left = deadline.duration_since(now).unwrap_or_default();
    let over = now.duration_since(deadline).unwrap_or_default();
    (left.max(over) <= LONGEST).then_some(left)
}

/// How much of the time until its deadline an invocation may use.
fn less_reserve(left: Duration) -> Duration {
    left.saturating_sub((left / 5).clamp(RESERVE.0, RESERVE.1))
}

/// Tracks the current invocation, from its arrival until its answer is sent.
struct WatchedRuntime<S> {
    inner: S,
    busy: watch::Sender<bool>,
    /// A handler continues after the answer.
    spoiled: Arc<AtomicBool>,
    /// Becomes true when the process must end.
    stopped: watch::Receiver<bool>,
}

impl<S> tower::Service<LambdaInvocation> for WatchedRuntime<S>
where
    S: tower::Service<LambdaInvocation>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, invocation: LambdaInvocation) -> Self::Future {
        let (busy, spoiled) = (self.busy.clone(), self.spoiled.clone());
        let stopped = self.stopped.clone();
        busy.send_replace(true);
        let posted = self.inner.call(invocation);
        Box::pin(async move {
            let posted = posted.await;
            // A process that must end exits, which also ends all its threads.
            if spoiled.load(Ordering::Relaxed) && !*stopped.borrow() {
                begin_anew();
            }
            busy.send_replace(false);
            posted
        })
    }
}

/// At SIGTERM or Ctrl-C, stops a running drain as its budget would, waits until the answer is sent, and ends
/// the process. Emulators and Managed Instances send such a signal. Lambda itself sends none to a function
/// without extensions: there the deadline ends a drain.
async fn exit_on_signal(stop: watch::Sender<bool>, mut idle: watch::Receiver<bool>) {
    tidegate_admin::program::stop_signal().await;
    stop.send_replace(true);
    let _ = idle.wait_for(|busy| !busy).await;
    flush(PATIENCE);
    std::process::exit(0);
}

/// An answer with the reason why there is no report.
#[derive(Debug)]
struct FailedInvocation(Diagnostic);

impl FailedInvocation {
    fn new(error_type: &str, error: &dyn std::fmt::Display) -> Self {
        Self(Diagnostic {
            error_type: error_type.to_owned(),
            error_message: error.to_string(),
        })
    }
}

impl From<FailedInvocation> for Diagnostic {
    fn from(refusal: FailedInvocation) -> Self {
        refusal.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn time_left(deadline: SystemTime) -> Option<Duration> {
        time_until(deadline).map(less_reserve)
    }

    fn in_ms(left: u64) -> SystemTime {
        SystemTime::now() + Duration::from_millis(left)
    }

    #[test]
    fn i9_what_somebody_looked_at_is_answered_and_not_logged() {
        use serde_json::json;
        for (report, logged) in [
            (
                json!({"action": "show", "id": 7, "kind": "paid", "status": "FAILED", "payload": "canary", "group_key": "canary"}),
                json!({"action": "show", "id": 7, "kind": "paid", "status": "FAILED"}),
            ),
            (
                json!({"action": "list", "next": 7, "events": [{"id": 7, "last_error": "canary"}]}),
                json!({"action": "list", "next": 7, "events": 1}),
            ),
            (
                json!({"action": "blocked_groups", "groups": [{"group_key": "canary"}]}),
                json!({"action": "blocked_groups", "groups": 1}),
            ),
            (
                json!({"action": "doctor", "ok": false, "checks": [{"finding": "canary"}]}),
                json!({"action": "doctor", "ok": false}),
            ),
        ] {
            assert_eq!(loggable(&report.into()), logged.into());
        }
    }

    #[test]
    fn f2_the_invocations_deadline_less_the_reserve_bounds_the_budget() {
        for (left, usable) in [(60_000, 57_000), (10_000, 8000), (3000, 1800), (1200, 0)] {
            let [left, usable] = [left, usable].map(Duration::from_millis);
            assert_eq!(less_reserve(left), usable, "{left:?}");
        }
        // The time that is left now, which decreases constantly.
        let usable = time_left(in_ms(60_000)).unwrap();
        assert!(
            !usable.is_zero() && usable <= Duration::from_secs(57),
            "{usable:?}"
        );
    }

    #[test]
    fn f2_a_drain_that_overruns_its_budget_is_answered_before_any_deadline() {
        for left in (u64::try_from(RESERVE.0.as_millis()).unwrap()..=900_000).step_by(10) {
            let left = Duration::from_millis(left);
            let latest = less_reserve(left) + tidegate::drain::OVERRUN;
            let for_the_answer = Duration::from_millis(200);
            assert!(latest + for_the_answer <= left, "{left:?}: {latest:?}");
        }
    }

    #[test]
    fn an_implausible_deadline_counts_as_unknown() {
        let soon_after = UNIX_EPOCH + Duration::from_millis(600);
        for deadline in [UNIX_EPOCH, soon_after, in_ms(2 * 86_400_000)] {
            assert_eq!(time_left(deadline), None);
        }
    }

    #[test]
    fn several_invocations_at_once_are_refused_by_the_variable() {
        let with = |most: &'static str| takes_one_at_a_time(&move |_: &str| Some(most.to_owned()));
        assert!(with("1").is_ok() && takes_one_at_a_time(&|_| None).is_ok());
        let refused = with("8").unwrap_err().to_string();
        assert!(refused.contains("AWS_LAMBDA_MAX_CONCURRENCY: must be 1"));
    }

    #[test]
    fn a_deadline_that_has_just_passed_leaves_no_time() {
        assert_eq!(
            time_left(in_ms(0) - Duration::from_millis(500)),
            Some(Duration::ZERO)
        );
    }
}
