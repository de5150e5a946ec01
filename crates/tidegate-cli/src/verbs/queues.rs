//! Answers a verb on one of several queues, or on all of them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{Request, StatsRequest};
use tidegate::program::{Queues, Service, Turn, together};

use super::answer;
use crate::answer::{Answer, Failed};
use crate::args::{StatusFormat, Verb};

/// The longest time for all queues. A drain and a cleanup have a budget.
const LONGEST: Duration = Duration::from_hours(24);

/// Answers a verb on the queue with this name, or on all if there are several and none is named.
pub async fn on_queues(
    queues: &Queues,
    name: Option<&str>,
    verb: Verb,
    json: bool,
) -> Result<Answer, Failed> {
    match for_all(&verb) {
        Some(request) if name.or(queues.chosen()).is_none() && queues.are_several().await? => {
            on_all(queues, &request, &verb).await
        }
        _ => answer(&*queues.one(name).await?, verb, json).await,
    }
}

/// Returns the request of a verb that works on all queues.
fn for_all(verb: &Verb) -> Option<Request> {
    match verb {
        Verb::Drain(args) if !args.until_empty => Some(Request::Drain(args.request.clone())),
        Verb::Status(args) if !args.watch && matches!(args.format, StatusFormat::Text) => {
            Some(Request::Stats(StatsRequest {}))
        }
        Verb::Listed(
            request @ (Request::Migrate(_) | Request::Cleanup(_) | Request::Doctor(_)),
        ) => Some(request.clone()),
        _ => None,
    }
}

async fn on_all(queues: &Queues, request: &Request, verb: &Verb) -> Result<Answer, Failed> {
    let each = queues.each(request, Some(LONGEST), |_, service: Arc<Service>, part| {
        let verb = within(verb, part);
        // One bar cannot show several drains.
        async move { answer(&service, verb, true).await }
    });
    let (action, turns) = each.await?;
    let (mut told, mut code) = (Vec::new(), 0);
    let turns = turns.into_iter().map(|(name, turn)| {
        let mut tell = |text: &str, ended: u8| {
            told.push(format!("{name}\n{}\n", indented(text)));
            code = code.max(ended);
        };
        if matches!(turn, Turn::Skipped) {
            tell("there was no time for it", 1);
        }
        let turn = turn.map(|done: Result<Answer, Failed>| match done {
            Ok(answer) => {
                tell(&answer.text, answer.code);
                Ok(answer.document)
            }
            Err(failed) => {
                tell(&failed.error.to_string(), 1);
                Err(failed.error)
            }
        });
        (name, turn)
    });
    let document = together(action, turns.collect(), |_: &Error| 0)?;
    if let Some(idle @ 1..) = document["idle"].as_u64() {
        told.push(format!("{idle} queues had nothing to do"));
    }
    Ok(Answer {
        document,
        text: told.join("\n"),
        code,
    })
}

fn indented(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the verb with this time at most.
fn within(verb: &Verb, part: Duration) -> Verb {
    let mut verb = verb.clone();
    match &mut verb {
        Verb::Drain(args) => args.request.budget = Some(part),
        Verb::Listed(Request::Cleanup(request)) => request.budget = Some(part),
        _ => {}
    }
    verb
}
