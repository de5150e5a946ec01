//! Owns what a run knows of the outside services that its handlers call: which may be called, whether a
//! failure is charged to the event, and what to report. Handlers' tasks query it, and the loop passes on what
//! the database says. It writes nothing.
//!
//! A call that its service has not answered costs the event no attempt. The exception: if the service has
//! answered another event since this event was last put back, the failure is the event's own. A call at which
//! the service failed costs an attempt and counts for the service, so that a service which fails at every
//! event stops after a few.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::lease::{Lease, LeasedEvent};
use tidegate_core::queue::{Limited, ServiceReport, Watched};
use tidegate_core::status::ServiceState;
use tokio::time::Instant;

use crate::handler::{HandlerError, HandlerResult, NOT_CALLED, ServiceCall};

/// After this many unanswered calls in a row, the run makes no more calls until the database has answered the
/// report.
const OPEN_AFTER: u32 = 5;

/// The shortest time between two requests of this run for an event to try a service with. Other events must
/// be leased too.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long an event goes back to the queue if it unexpectedly calls a limited service.
const NO_PLACE: Duration = Duration::from_secs(1);

/// The most services whose calls are counted one by one.
const MOST_COUNTED: usize = 100;

/// The calls of a service. Each event counts as a call, also if several share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ServiceCalls {
    /// All calls.
    pub calls: u64,
    /// The service crashed, answered 500, or exceeded the handler's time limit.
    pub failed: u64,
    /// Its answer could not be read: code `bad_answer`.
    pub bad_answer: u64,
    /// It had too many calls: codes `throttled` and `429`.
    pub throttled: u64,
    /// It did not answer for another reason.
    pub unavailable: u64,
    /// How long all calls took, with the wait for events that share a call.
    pub took_ms: u64,
    /// How long the longest took.
    pub longest_ms: u64,
}

impl ServiceCalls {
    /// Records a call, and how it failed.
    fn note(&mut self, took: Duration, failed: (ServiceCall, &str)) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.calls += 1;
        self.took_ms += took_ms;
        self.longest_ms = self.longest_ms.max(took_ms);
        *match failed {
            (ServiceCall::Failed, "bad_answer") => &mut self.bad_answer,
            (ServiceCall::Failed, _) => &mut self.failed,
            (ServiceCall::Unanswered | ServiceCall::Busy, "throttled" | "429") => {
                &mut self.throttled
            }
            (ServiceCall::Unanswered | ServiceCall::Busy, _) => &mut self.unavailable,
            (ServiceCall::Answered | ServiceCall::Unknown | ServiceCall::Elsewhere, _) => return,
        } += 1;
    }

    pub(crate) fn add(&mut self, next: Self) {
        self.calls += next.calls;
        self.failed += next.failed;
        self.bad_answer += next.bad_answer;
        self.throttled += next.throttled;
        self.unavailable += next.unavailable;
        self.took_ms += next.took_ms;
        self.longest_ms = self.longest_ms.max(next.longest_ms);
    }
}

/// What is known of all services. A service that is not listed is answering, and there is nothing to report
/// about it.
#[derive(Default)]
pub(crate) struct Services {
    /// Whether anything is known of any service. Until then, which is nearly always the case, no handler's
    /// task waits for another's.
    watched: AtomicBool,
    /// Counts changes of the limits.
    limits: AtomicU64,
    known: Mutex<Known>,
    /// The calls of this run, by service.
    made: Mutex<BTreeMap<String, ServiceCalls>>,
}

#[derive(Default)]
struct Known {
    services: HashMap<String, KnownService>,
    /// The event that may call a service which is open.
    probe: Option<(Lease, String)>,
}

#[derive(Default)]
struct KnownService {
    state: ServiceState,
    /// Whether failures were reported to the database, and no answer since.
    troubled: bool,
    answers: i64,
    /// When it is to be tried.
    due: Option<Instant>,
    /// When this run last requested an event to try it with. Another program may be the one that handles such
    /// events.
    requested_at: Option<Instant>,
    /// Unanswered calls in a row that the database has not heard of, or only recently.
    in_row: u32,
    /// Kinds that wait for it, as far as the database knows.
    kinds: BTreeSet<String>,
    report: Option<ServiceReport>,
    limited: Option<Limited>,
    /// Events that have a place while it is limited.
    running: BTreeSet<Lease>,
}

impl KnownService {
    fn may_be_called(&self) -> bool {
        self.state == ServiceState::Closed && self.in_row < OPEN_AFTER
    }

    fn report(&mut self) -> &mut ServiceReport {
        self.report.get_or_insert_default()
    }

    fn wait(&mut self, kind: &str) {
        if self.kinds.insert(kind.to_owned()) {
            self.report().kinds.push(kind.to_owned());
        }
    }
}

impl Known {
    fn is_probe(&self, lease: Lease, service: &str) -> bool {
        let probe = self.probe.as_ref();
        probe.is_some_and(|(probing, name)| *probing == lease && name == service)
    }

    /// Ends the probe of a service, if this is the probing event. Returns whether it is.
    fn end_probe(&mut self, lease: Lease, service: &str) -> bool {
        let probed = self.is_probe(lease, service);
        if probed {
            self.probe = None;
        }
        probed
    }
}

impl Services {
    /// Returns `None` while all services answer.
    fn known(&self) -> Option<MutexGuard<'_, Known>> {
        self.watched.load(Ordering::Acquire).then(|| self.lock())
    }

    fn watch(&self) -> MutexGuard<'_, Known> {
        self.watched.store(true, Ordering::Release);
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why a handler of this event may not call its service, or `None` if it may.
    pub(crate) fn refuse(
        &self,
        service: &'static str,
        event: &LeasedEvent,
    ) -> Option<HandlerError> {
        let mut known = self.known()?;
        let is_probe = known.is_probe(event.lease, service);
        let known = known.services.get_mut(service)?;
        if !known.may_be_called() && !is_probe {
            known.wait(&event.kind);
            let why = format!("{service} does not answer, and was not called");
            return Some(HandlerError::unavailable(NOT_CALLED, why).deferred(service));
        }
        if known.limited.is_some() && !known.running.contains(&event.lease) {
            known.wait(&event.kind);
            let why = format!("calls of {service} are limited, and it was not called");
            let error = HandlerError::unavailable("service_limited", why);
            return Some(error.after(NO_PLACE).blameless());
        }
        None
    }

    pub(crate) fn limited(&self) -> BTreeMap<String, Limited> {
        let Some(known) = self.known() else {
            return BTreeMap::new();
        };
        let services = known.services.iter();
        let limited =
            services.filter_map(|(name, service)| Some((name, service.limited.as_ref()?)));
        limited
            .map(|(name, limited)| (name.clone(), limited.clone()))
            .collect()
    }

    /// Returns a number that changes with the limits.
    pub(crate) fn limits_version(&self) -> u64 {
        self.limits.load(Ordering::Acquire)
    }

    /// Gives an event a place of the service that it calls.
    pub(crate) fn begin(&self, service: &str, lease: Lease) {
        if let Some(service) = self.watch().services.get_mut(service) {
            service.running.insert(lease);
        }
    }

    /// Returns how many events have a place of the service.
    pub(crate) fn running(&self, service: &str) -> usize {
        let known = self.known();
        let service = known.as_ref().and_then(|all| all.services.get(service));
        service.map_or(0, |service| service.running.len())
    }

    /// Learns from the result of a call that took so long, and decides whether a failure is charged to the
    /// event.
    pub(crate) fn judge(
        &self,
        service: &'static str,
        event: &LeasedEvent,
        took: Duration,
        result: HandlerResult,
    ) -> HandlerResult {
        let call = match &result {
            Err(error) if error.call == ServiceCall::Elsewhere => return result,
            Err(error) if !error.is_rejection() => error.call,
            _ => ServiceCall::Answered,
        };
        let fault = result
            .as_ref()
            .err()
            .and_then(|error| error.faults().first());
        let code = fault.map_or("", |fault| &fault.code);
        self.note_made(service, took, (call, code));
        let error = match (result, call) {
            (Err(error), ServiceCall::Failed | ServiceCall::Unanswered | ServiceCall::Busy) => {
                error
            }
            (result, ServiceCall::Answered) => {
                self.answered(service, event);
                return result;
            }
            (result, _) => return result,
        };
        let mut known = self.watch();
        let probed = known.end_probe(event.lease, service);
        let known = known.services.entry(service.to_owned()).or_default();
        // One call that many events share is one failure.
        let calls = u32::from(error.shared.is_none_or(|shared| shared.is_first));
        known.in_row += calls;
        known.wait(&event.kind);
        let report = known.report();
        report.failed += calls;
        report.probed |= probed;
        report.code = error.faults().first().map(|fault| fault.code.to_string());
        report.retry_after = report.retry_after.max(error.delay());
        if call == ServiceCall::Failed {
            return Err(error);
        }
        let before = event.progress.as_ref();
        let waited = before.and_then(|progress| progress.deferred.get(service));
        let answered_since =
            waited.is_some_and(|then| !known.troubled || known.answers > then.answers);
        if answered_since && call != ServiceCall::Busy {
            return Err(error);
        }
        Err(error.deferred(service))
    }

    fn note_made(&self, service: &str, took: Duration, failed: (ServiceCall, &str)) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let is_counted = made.len() < MOST_COUNTED || made.contains_key(service);
        let name = if is_counted { service } else { "other" };
        if !made.contains_key(name) {
            made.insert(name.to_owned(), ServiceCalls::default());
        }
        if let Some(calls) = made.get_mut(name) {
            calls.note(took, failed);
        }
    }

    pub(crate) fn take_made(&self) -> BTreeMap<String, ServiceCalls> {
        std::mem::take(&mut self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answered(&self, service: &str, event: &LeasedEvent) {
        let Some(mut known) = self.known() else {
            return;
        };
        let probed = known.end_probe(event.lease, service);
        let Some(known) = known.services.get_mut(service) else {
            return;
        };
        known.in_row = 0;
        if probed || known.troubled || known.report.is_some() {
            let report = known.report();
            report.answered = true;
            report.failed = 0;
            report.probed |= probed;
        }
    }

    pub(crate) fn begin_probe(&self, lease: Lease, service: String) {
        self.watch().probe = Some((lease, service));
    }

    /// Frees the places of an event that has left the handlers. If it was to try a service and did not get
    /// that far, another event must. If its handlers have ended without the call (`ended` names its kind),
    /// its kind does not wait for the service.
    pub(crate) fn note_left(&self, lease: Lease, ended: Option<&str>) {
        let Some(mut known) = self.known() else {
            return;
        };
        for service in known.services.values_mut() {
            service.running.remove(&lease);
        }
        if let Some((_, service)) = known.probe.take_if(|(probing, _)| *probing == lease)
            && let Some(known) = known.services.get_mut(&service)
        {
            let report = known.report();
            report.probed = true;
            if let Some(kind) = ended {
                report.uncalled = Some(kind.to_owned());
                known.kinds.remove(kind);
            }
        }
    }

    /// Learns what the database says: all services that have recently not answered or are limited. Returns
    /// whether one may be called again.
    pub(crate) fn apply_stored_states(&self, watched: &[Watched]) -> bool {
        let known = if watched.is_empty() {
            self.known()
        } else {
            Some(self.watch())
        };
        let Some(mut known) = known else {
            return false;
        };
        let now = Instant::now();
        for said in watched {
            known.services.entry(said.service.clone()).or_default();
        }
        let mut opened = false;
        for (name, service) in &mut known.services {
            let said = watched.iter().find(|said| said.service == *name);
            let was_shut = service.state != ServiceState::Closed;
            service.state = said.map(|said| said.state).unwrap_or_default();
            service.troubled = said.is_some_and(|said| said.troubled);
            let limited = said.and_then(|said| said.limited.clone());
            if service.limited != limited {
                service.limited = limited;
                self.limits.fetch_add(1, Ordering::Release);
            }
            service.answers = said.map_or(service.answers, |said| said.answers);
            let retry_in = said.and_then(|said| said.retry_in);
            service.due = retry_in.map(|seconds| now + Duration::from_secs_f64(seconds.max(0.0)));
            if service.state != ServiceState::Closed || !service.troubled {
                service.in_row = 0;
            }
            opened |= was_shut && service.state == ServiceState::Closed;
        }
        opened
    }

    /// Returns how often a service was reported to have answered.
    pub(crate) fn answers(&self, service: &str) -> i64 {
        let known = self.known();
        let known = known.as_ref().and_then(|all| all.services.get(service));
        known.map_or(0, |service| service.answers)
    }

    pub(crate) fn take_reports(&self) -> Vec<ServiceReport> {
        let Some(mut known) = self.known() else {
            return Vec::new();
        };
        let named = known.services.iter_mut().filter_map(|(name, service)| {
            service.report.take().map(|report| ServiceReport {
                service: name.clone(),
                ..report
            })
        });
        named.collect()
    }

    pub(crate) fn has_reports(&self) -> bool {
        self.has(|service| service.report.is_some())
    }

    /// Returns a service that is to be tried now, unless this run has just requested an event for it.
    pub(crate) fn due(&self, now: Instant) -> Option<String> {
        let known = self.known()?;
        let mut services = known.services.iter();
        let due = services.find(|(_, service)| {
            service.report.is_none()
                && service.due.is_some_and(|due| due <= now)
                && service
                    .requested_at
                    .is_none_or(|requested| now >= requested + ASK_AGAIN)
        });
        due.filter(|_| known.probe.is_none())
            .map(|(name, _)| name.clone())
    }

    pub(crate) fn note_requested(&self, service: &str, now: Instant) {
        if let Some(service) = self.watch().services.get_mut(service) {
            service.requested_at = Some(now);
        }
    }

    /// Whether any service may not be called.
    pub(crate) fn has_shut(&self) -> bool {
        self.has(|service| service.state != ServiceState::Closed)
    }

    fn has(&self, matches: impl Fn(&KnownService) -> bool) -> bool {
        let known = self.known();
        known.is_some_and(|known| known.services.values().any(matches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::DrainReport;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn calls_are_counted_by_service_and_class_and_beyond_a_hundred_services_together() {
        let services = Services::default();
        let judge = |service, took, result| {
            let _ = services.judge(service, &LeasedEvent::sample(1, None), took, result);
        };
        judge("ship", SECOND * 3, Ok(crate::Done::ok()));
        for error in [
            HandlerError::call_failed("boom", "it crashed"),
            HandlerError::timed_out(SECOND, false),
            HandlerError::call_failed("bad_answer", "no JSON"),
            HandlerError::unavailable("throttled", "too many"),
            HandlerError::unavailable("429", "too many"),
            HandlerError::unavailable("503", "down"),
            HandlerError::unavailable("bad_answer", "in front of it"),
            HandlerError::retry("throttled", "says nothing of it"),
            HandlerError::reject("bad_answer", "the event's own"),
        ] {
            judge("ship", SECOND, Err(error));
        }
        for n in 0..MOST_COUNTED {
            let name: &'static str = Box::leak(format!("s{n}").into());
            judge(name, SECOND, Ok(crate::Done::ok()));
        }
        judge("ship", SECOND, Ok(crate::Done::ok()));
        let made = services.take_made();
        let ship = ServiceCalls {
            calls: 11,
            failed: 2,
            bad_answer: 1,
            throttled: 2,
            unavailable: 2,
            took_ms: 13_000,
            longest_ms: 3000,
        };
        assert_eq!((made["ship"], made["other"].calls), (ship, 1));
        assert_eq!(made.len(), MOST_COUNTED + 1);
        let report = || DrainReport {
            services: made.clone(),
            ..DrainReport::default()
        };
        let both = report().followed_by(report()).services["ship"];
        assert_eq!((both.calls, both.failed, both.longest_ms), (22, 4, 3000));
        assert_eq!(
            (
                both.bad_answer,
                both.throttled,
                both.unavailable,
                both.took_ms
            ),
            (2, 4, 4, 26_000)
        );
    }

    #[test]
    fn a_call_that_many_events_share_has_failed_once_and_is_the_services_fault() {
        let services = Services::default();
        let failed = HandlerError::unavailable("503", "down");
        for id in 0..100 {
            let event = LeasedEvent::sample(id, None);
            let failed = failed.clone().of_call(100, id == 0);
            let judged = services
                .judge("search", &event, SECOND, Err(failed))
                .unwrap_err();
            assert_eq!(judged.deferred, Some("search"));
            assert_eq!(judged.shared.unwrap().together, None);
            assert!(services.refuse("search", &event).is_none());
        }
        assert_eq!(services.take_reports()[0].failed, 1);
    }

    #[test]
    fn a_call_at_which_the_service_failed_is_charged_and_counts_until_one_is_answered() {
        let services = Services::default();
        let event = |id| LeasedEvent::sample(id, None);
        let fail = |id| {
            let failed = Err(HandlerError::call_failed("boom", "it crashed"));
            let judged = services
                .judge("ship", &event(id), SECOND, failed)
                .unwrap_err();
            assert!(!judged.blameless && judged.deferred.is_none());
        };
        (1..OPEN_AFTER).for_each(|id| fail(i64::from(id)));
        let listed = HandlerError::retry("stock", "none left").answered();
        let judged = services
            .judge("ship", &event(9), SECOND, Err(listed))
            .unwrap_err();
        assert!(!judged.blameless && services.refuse("ship", &event(10)).is_none());
        (0..OPEN_AFTER).for_each(|id| fail(i64::from(id)));
        let refused = services.refuse("ship", &event(10)).unwrap();
        assert!(refused.blameless && refused.deferred == Some("ship"));
        let report = &services.take_reports()[0];
        assert!(report.answered);
        assert_eq!(
            (report.failed, report.code.as_deref()),
            (OPEN_AFTER, Some("boom"))
        );
    }
}
