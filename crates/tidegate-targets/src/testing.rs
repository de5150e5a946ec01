//! What the tests of all kinds of targets share: answers, an event, and what an answer means, in short.

use tidegate::HandlerError;
use tidegate_aws::Response;

use crate::outcome::Answers;
use crate::sent::Sent;

pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
    Response {
        status,
        headers: headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect(),
        body: body.as_bytes().to_vec(),
        is_cut: false,
    }
}

pub(crate) fn ids(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("id-{at}")).collect()
}

pub(crate) fn sent<'a>(payload: &'a str, group: Option<&'a str>) -> Sent<'a> {
    Sent {
        kind: "order_placed",
        payload,
        event_id: 7,
        attempt: 2,
        published: 1_700_000_000_123_456,
        group,
        correlation_id: Some("case 9"),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    }
}

/// An error in short: how it counts, its code, and how long the target wants to be left alone.
pub(crate) fn short(error: &HandlerError) -> String {
    let shown = format!("{error:?}");
    let call = shown
        .split("call: ")
        .nth(1)
        .and_then(|rest| rest.split([',', ' ']).next())
        .unwrap();
    let class = match (error.is_rejection(), call) {
        (true, _) => "reject",
        (false, "Unanswered") => "unavailable",
        (false, "Failed") => "failed",
        (false, "Busy") => "busy",
        (false, "Answered") => "retry",
        (false, other) => other,
    };
    let after = shown
        .split("after: Some(")
        .nth(1)
        .and_then(|rest| rest.split(')').next());
    let after = after
        .map(|after| format!(" after {after}"))
        .unwrap_or_default();
    format!("{class} {}{after}", error.faults()[0].code)
}

/// What an answer means: `done` for all, or for the whole call, or for each.
pub(crate) fn meant(answers: Answers) -> String {
    match answers {
        Err(error) => format!("call: {}", short(&error)),
        Ok(all) if all.iter().all(Result::is_ok) => "done".to_owned(),
        Ok(all) => {
            let each = all
                .iter()
                .map(|one| one.as_ref().map_or_else(short, |_| "done".to_owned()));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Compares what each answer of a table means with what stands beside it.
pub(crate) fn each_means(table: &str, read: impl Fn(&Response) -> Answers) {
    for line in table.trim().lines() {
        let (given, means) = line.rsplit_once(" => ").unwrap();
        let (status, rest) = given.split_once(" [").unwrap();
        let (headers, body) = rest.split_once(']').unwrap();
        let headers = headers.split_once(": ");
        let given = answer(status.parse().unwrap(), headers.as_slice(), body.trim());
        assert_eq!(meant(read(&given)), means, "{line}");
    }
}
