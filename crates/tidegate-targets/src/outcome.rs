//! Owns the grammar of answers, which is the same for all targets that handle events, and what an answer
//! means for each event. The grammar includes what an SQS handler may return, `{"batchItemFailures": […]}`. A
//! handler that knows more may say more, in that list or in `results`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate::{Fault, HandlerError, Json, NewEvent};

/// What became of an event that succeeded.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub result: Option<Json>,
    pub follow_ups: Vec<Next>,
}

/// An event to publish, and what decides whether its target may.
#[derive(Debug)]
pub(crate) struct Next {
    pub kind: String,
    pub group: Option<String>,
    pub event: NewEvent,
}

/// An answer for each event of a request, or one failure of all.
pub(crate) type Answers = Result<Vec<Result<Outcome, HandlerError>>, HandlerError>;

/// The keys of an answer.
const FAILURES: &str = "batchItemFailures";
const RESULTS: &str = "results";

/// What an entry must be.
const ENTRY: &str = "must be an object with itemIdentifier, and no fields but verdict, errors, after, result \
                     and followUps, each of its type";

/// The longest time until the next try, in seconds.
const MOST_AFTER: f64 = 86_400.0;

/// How long an event is put off if its target does not say.
const USUAL_SNOOZE: Duration = Duration::from_mins(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    item_identifier: String,
    verdict: Option<Verdict>,
    errors: Option<Vec<EntryError>>,
    after: Option<f64>,
    result: Option<Json>,
    follow_ups: Option<Vec<FollowUp>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Done,
    Retry,
    Reject,
    Snooze,
    Release,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryError {
    code: Option<String>,
    message: Option<String>,
    details: Option<Json>,
}

/// An event to publish, with the fields of `publish_many()`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FollowUp {
    kind: String,
    payload: Option<Box<RawValue>>,
    group_key: Option<String>,
    dedup_key: Option<String>,
    correlation_id: Option<String>,
    /// Seconds.
    delay: Option<f64>,
    expires_at: Option<jiff::Timestamp>,
    max_attempts: Option<u16>,
}

/// How a function reads a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOrder {
    /// Each event for itself.
    Each,
    /// In order, and no further than the first failure.
    InOrder,
}

/// Returns what an answer means for each event of its request. `None` if it says nothing about them, which
/// means that all succeeded.
pub(crate) fn of_answer(answer: &[u8], ids: &[String], reading: BatchOrder) -> Option<Answers> {
    let answer: &RawValue = match serde_json::from_slice(answer) {
        Ok(answer) => answer,
        Err(_) if answer.iter().all(u8::is_ascii_whitespace) => return None,
        Err(error) => return Some(Err(bad(format!("the answer is not JSON: {error}")))),
    };
    // It is JSON: what is no object says nothing.
    let fields: Fields<'_> = serde_json::from_str(answer.get()).ok()?;
    let status = fields
        .get("statusCode")
        .and_then(|status| status.get().parse::<u16>().ok());
    match entries(fields, ids) {
        // A function that was written for a URL does not raise: it answers with a status.
        Ok(None) => status.filter(|status| *status >= 400).map(|status| {
            let why = format!("the answer has the statusCode {status}");
            Err(HandlerError::call_failed("status_code", why))
        }),
        Ok(Some(entries)) => Some(of_entries(entries, ids, reading)),
        Err(why) => Some(Err(bad(why))),
    }
}

/// The fields of an answer. Each stays the text that it is, so that no number of a result changes.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Returns the entries of an answer with their verdicts; `None` if it has neither list.
fn entries(mut fields: Fields<'_>, ids: &[String]) -> Result<Option<Entries>, String> {
    let mut found = None;
    for (key, usual) in [(FAILURES, Verdict::Retry), (RESULTS, Verdict::Done)] {
        let Some(list) = fields.remove(key) else {
            continue;
        };
        let all = found.get_or_insert_with(Entries::new);
        let list: Option<Vec<&RawValue>> = serde_json::from_str(list.get())
            .map_err(|_| format!("{key}: must be a list of objects with itemIdentifier"))?;
        for (at, entry) in list.unwrap_or_default().into_iter().enumerate() {
            // The decoder's own message may quote the answer.
            let entry = serde_json::from_str::<Entry>(entry.get()).map_err(|_| ENTRY.to_owned());
            let added = entry.and_then(|entry| add(all, entry, usual, ids));
            added.map_err(|why| format!("{key}[{at}]: {why}"))?;
        }
    }
    let lower = |key: &str| key.to_lowercase().replace('_', "");
    let strange = fields
        .keys()
        .find(|key| lower(key) == lower(FAILURES) || lower(key) == RESULTS);
    match strange {
        Some(key) => Err(format!("{key}: must be {FAILURES} or {RESULTS}")),
        None => Ok(found),
    }
}

/// Entries by the place of their event in the request.
type Entries = HashMap<usize, (Verdict, Entry)>;

fn add(all: &mut Entries, entry: Entry, usual: Verdict, ids: &[String]) -> Result<(), String> {
    let id = &entry.item_identifier;
    let place = ids.iter().position(|known| known == id);
    let Some(place) = place else {
        return Err("itemIdentifier: must be the id of an event of the request".to_owned());
    };
    let has_errors = entry
        .errors
        .as_ref()
        .is_some_and(|errors| !errors.is_empty());
    let verdict = match entry.verdict.unwrap_or(usual) {
        Verdict::Done if has_errors => Verdict::Reject,
        verdict => verdict,
    };
    if entry
        .after
        .is_some_and(|after| !(0.0..=MOST_AFTER).contains(&after))
    {
        return Err(format!("after: must be 0 to {MOST_AFTER} seconds"));
    }
    if verdict != Verdict::Done && (entry.result.is_some() || entry.follow_ups.is_some()) {
        return Err("result, followUps: must be given only for an event that is done".to_owned());
    }
    match all.insert(place, (verdict, entry)) {
        Some((earlier, _)) if earlier != verdict => {
            Err("itemIdentifier: an event must have one verdict, got two".to_owned())
        }
        _ => Ok(()),
    }
}

fn of_entries(mut entries: Entries, ids: &[String], reading: BatchOrder) -> Answers {
    let mut failed = false;
    let answers = (0..ids.len()).map(|place| {
        let Some((verdict, entry)) = entries.remove(&place) else {
            return Ok(Ok(Outcome::default()));
        };
        if verdict == Verdict::Retry
            && reading == BatchOrder::InOrder
            && std::mem::replace(&mut failed, true)
        {
            return Ok(Err(released("an earlier event of the call failed")));
        }
        of_entry(verdict, entry)
    });
    answers.collect::<Result<_, _>>().map_err(bad)
}

fn of_entry(verdict: Verdict, entry: Entry) -> Result<Result<Outcome, HandlerError>, String> {
    let after = entry.after.map(Duration::from_secs_f64);
    let errors = entry.errors.unwrap_or_default();
    let error = match verdict {
        Verdict::Done => {
            let follow_ups = entry.follow_ups.unwrap_or_default();
            let follow_ups = follow_ups
                .into_iter()
                .map(FollowUp::event)
                .collect::<Result<_, _>>();
            return Ok(Ok(Outcome {
                result: entry.result,
                follow_ups: follow_ups.map_err(|why| format!("followUps: {why}"))?,
            }));
        }
        Verdict::Reject => HandlerError::reject_all(faults(errors, "rejected")),
        Verdict::Retry => HandlerError::reject_all(faults(errors, "failed"))
            .into_retry()
            .answered(),
        Verdict::Snooze => {
            let why = errors.into_iter().find_map(|error| error.message);
            let why = why.unwrap_or_else(|| "the target put it off".to_owned());
            HandlerError::snooze(after.unwrap_or(USUAL_SNOOZE), why).answered()
        }
        Verdict::Release => released("the target did not start it"),
    };
    Ok(Err(match after {
        Some(after) if verdict == Verdict::Retry => error.after(after),
        _ => error,
    }))
}

/// Puts an event back that was not started.
fn released(why: &str) -> HandlerError {
    HandlerError::snooze(Duration::ZERO, why).answered()
}

fn faults(errors: Vec<EntryError>, usual: &'static str) -> Vec<Fault> {
    let fault = |error: EntryError| {
        let code = error.code.unwrap_or_else(|| usual.to_owned());
        let fault = Fault::new(code, error.message.unwrap_or_default());
        match error.details {
            Some(details) => fault.with_details(details),
            None => fault,
        }
    };
    if errors.is_empty() {
        vec![Fault::new(usual, "the target reported a failure")]
    } else {
        errors.into_iter().map(fault).collect()
    }
}

impl FollowUp {
    fn event(self) -> Result<Next, String> {
        let (kind, group) = (self.kind.clone(), self.group_key.clone());
        let mut event = NewEvent::raw(self.kind, self.payload);
        let texts = [
            (
                self.group_key,
                NewEvent::group as fn(NewEvent, String) -> NewEvent,
            ),
            (self.dedup_key, NewEvent::dedup),
            (self.correlation_id, NewEvent::correlation),
        ];
        for (text, set) in texts {
            if let Some(text) = text {
                event = set(event, text);
            }
        }
        if let Some(delay) = self.delay {
            let delay = Duration::try_from_secs_f64(delay);
            event = event.delay(delay.map_err(|error| format!("delay: must be seconds: {error}"))?);
        }
        if let Some(deadline) = self.expires_at {
            event = event.start_before(deadline.into());
        }
        if let Some(attempts) = self.max_attempts {
            event = event.max_attempts(attempts);
        }
        Ok(Next { kind, group, event })
    }
}

/// The failure of a whole call whose answer cannot be read. No event ends by accident.
pub(crate) fn bad(why: impl std::fmt::Display) -> HandlerError {
    HandlerError::call_failed("bad_answer", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of the events a, b and c.
    fn ids() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).into()
    }

    /// What an answer means for each event, in short.
    fn meant(answer: &str, reading: BatchOrder) -> String {
        let short = |answer: &Result<Outcome, HandlerError>| match answer {
            Ok(outcome) => match (&outcome.result, outcome.follow_ups.len()) {
                (None, 0) => "done".to_owned(),
                (result, count) => {
                    format!("done {} {count}", result.as_ref().map_or("", Json::get))
                }
            },
            Err(error) => error.to_string(),
        };
        match of_answer(answer.as_bytes(), &ids(), reading) {
            None => "nothing".to_owned(),
            Some(Err(error)) => format!("call: {error}"),
            Some(Ok(answers)) => answers.iter().map(short).collect::<Vec<_>>().join("; "),
        }
    }

    #[test]
    fn an_answer_means_the_same_for_each_event_as_an_answer_to_sqs() {
        let failed = "retry: failed: the target reported a failure";
        for (answer, means) in [
            ("", "nothing"),
            ("null", "nothing"),
            ("{}", "nothing"),
            (r#""ok""#, "nothing"),
            (r#"{"statusCode": 200}"#, "nothing"),
            (
                r#"{"statusCode": 500}"#,
                "call: retry: status_code: the answer has the statusCode 500",
            ),
            (r#"{"batchItemFailures": null}"#, "done; done; done"),
            (r#"{"batchItemFailures": []}"#, "done; done; done"),
            (
                r#"{"batchItemFailures": [{"itemIdentifier": "b"}]}"#,
                &format!("done; {failed}; done"),
            ),
            (
                r#"{"batchItemFailures": [{"itemIdentifier": "b", "verdict": "reject", "errors": [{"code": "stock", "message": "none"}]}]}"#,
                "done; reject: stock: none; done",
            ),
            (
                r#"{"batchItemFailures": [{"itemIdentifier": "a", "verdict": "snooze"}, {"itemIdentifier": "c", "verdict": "release"}]}"#,
                "snooze: snoozed: the target put it off; done; snooze: snoozed: the target did not start it",
            ),
            (
                r#"{"results": [{"itemIdentifier": "a", "result": 7, "followUps": [{"kind": "k", "delay": 1.5}]}]}"#,
                "done 7 1; done; done",
            ),
            (
                r#"{"results": [{"itemIdentifier": "a", "result": {"z": [12345678901234.567891, 10.10], "z": 1e400}}]}"#,
                r#"done {"z": [12345678901234.567891, 10.10], "z": 1e400} 0; done; done"#,
            ),
            (
                r#"{"results": [{"itemIdentifier": "a", "errors": [{"code": "x"}]}]}"#,
                "reject: x: ; done; done",
            ),
            (
                r#"{"results": [{"itemIdentifier": "a", "errors": []}], "batchItemFailures": []}"#,
                "done; done; done",
            ),
        ] {
            assert_eq!(meant(answer, BatchOrder::Each), means, "{answer}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_fails_the_call_and_ends_no_event() {
        for answer in [
            "ok",
            r#"{"batchItemFailures": [{"itemIdentifier": "d"}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": ""}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": null}]}"#,
            r#"{"batchItemFailures": [{"id": "a"}]}"#,
            r#"{"batchItemFailures": ["canary"]}"#,
            r#"{"batchItemFailures": "canary"}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "canary"}]}"#,
            r#"{"batchItemFailures": {"itemIdentifier": "a"}}"#,
            r#"{"BatchItemFailures": [{"itemIdentifier": "a"}]}"#,
            r#"{"batch_item_failures": [{"itemIdentifier": "a"}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "a", "verdict": "reject"}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "a", "verdict": "maybe"}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "a", "after": 86401}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "a", "after": -1}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "a", "result": 1}]}"#,
            r#"{"results": [{"itemIdentifier": "a", "followUps": [{"kind": "k", "delay": -1}]}]}"#,
            r#"{"results": [{"itemIdentifier": "a", "followUps": [{"kind": "k", "queue": "x"}]}]}"#,
        ] {
            let means = meant(answer, BatchOrder::Each);
            assert!(
                means.starts_with("call: retry: bad_answer: "),
                "{answer}: {means}"
            );
            assert!(!means.contains("canary"), "{means}");
        }
    }

    #[test]
    fn of_a_function_that_stops_only_the_first_failure_is_charged() {
        let answer = r#"{"batchItemFailures": [{"itemIdentifier": "c"}, {"itemIdentifier": "b"}]}"#;
        let means = "done; retry: failed: the target reported a failure; snooze: snoozed: an earlier event of the call failed";
        assert_eq!(meant(answer, BatchOrder::InOrder), means);
    }
}
