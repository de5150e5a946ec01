//! Owns the verbs about a file of targets, which need no database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::config::environment;
use tidegate::testing::Attempt;
use tidegate::{DrainOptions, Error, Json};
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, json_argument};
use tidegate_core::queue::Targets;
use tidegate_targets::Address;

use crate::file::{FileFault, listed, read};
use crate::relay::{Passed, Relay};

/// Check a file of targets, without a database and without AWS.
#[derive(Parser)]
#[command(
    name = "check",
    after_help = "Example:\n  tidegate-relay check tidegate.toml"
)]
pub struct Check {
    /// The file.
    file: PathBuf,
}

pub async fn check(request: Check) -> Result<Answer, Error> {
    let path = request.file.display();
    let (found, faults) = match looked_at(&request.file)? {
        Ok((targets, warnings)) => (Some(targets), warnings),
        Err(faults) => (None, faults),
    };
    let lines = faults.iter().map(|fault| format!("{path}:{fault}"));
    let counts = found.as_ref().map(|found| {
        let (targets, kinds) = (found.targets.len(), found.kinds.len());
        format!("targets: {targets}, kinds: {kinds}")
    });
    let text = lines.chain(counts).collect::<Vec<String>>().join("\n");
    let faults = faults
        .iter()
        .map(|fault| json!({"line": fault.line, "fault": fault.text, "warning": fault.is_warning}));
    let faults: Vec<Value> = faults.collect();
    let document = json!({"action": "check", "ok": found.is_some(), "faults": faults});
    Ok(Answer::new(document, text).with_code(u8::from(found.is_none())))
}

/// Send one event to its targets, without the queue.
#[derive(Parser)]
#[command(
    name = "try",
    after_help = "Example:\n  tidegate-relay try tidegate.toml order_placed '{\"order_id\": 7}'"
)]
pub struct Try {
    /// The file.
    file: PathBuf,
    /// The kind of the event.
    kind: String,
    /// Payload: JSON text, @FILE to read a file, or - to read stdin.
    payload: String,
}

pub async fn try_out(request: Try) -> Result<Answer, Error> {
    let payload = json_argument("payload", &request.payload)?;
    let targets = targets_of(&request.file)?;
    let kind = targets
        .kinds
        .get(&request.kind)
        .filter(|kind| !kind.targets.is_empty());
    let Some(kind) = kind else {
        let must = "must be a kind of the file that goes to a target";
        return Err(Error::Invalid(format!(
            "kind: {must}, got {:?}",
            request.kind
        )));
    };
    let bytes = payload.get().len();
    let limit = json!(kind.policy)["handler_timeout_ms"].as_u64();
    let attempt = match limit {
        Some(limit) => Attempt::first().handler_timeout(Duration::from_millis(limit)),
        None => Attempt::first(),
    };
    let relay = Relay::new(&environment).with(&targets);
    let ran = attempt
        .run(&relay, &Passed::new(&request.kind, payload))
        .await;
    let verdict = |result: &Result<Option<Json>, _>| match result {
        Ok(Some(result)) => format!("done: {result}"),
        Ok(None) => "done".to_owned(),
        Err(error) => format!("{error}"),
    };
    let handlers = ran
        .handlers
        .iter()
        .map(|one| (one.name, verdict(&one.result)));
    let verdicts: BTreeMap<&str, String> = handlers.collect();
    let status = ran
        .status
        .map_or("retried", tidegate::testing::Status::as_str);
    let lines = verdicts
        .iter()
        .map(|(name, verdict)| format!("{name}: {verdict}\n"));
    let text = format!(
        "{bytes} bytes of payload, {:?}\n{}{status}",
        ran.took,
        lines.collect::<String>()
    );
    let document = json!({
        "action": "try", "payload_bytes": bytes, "took_ms": ran.took.as_millis(),
        "verdicts": verdicts, "status": status,
    });
    Ok(Answer::new(document, text).with_code(u8::from(status != "COMPLETED")))
}

/// Print the IAM policy that a function needs for the targets of a file.
#[derive(Parser)]
#[command(
    name = "permissions",
    after_help = "Example:\n  tidegate-relay permissions tidegate.toml > policy.json"
)]
pub struct Permissions {
    /// The file.
    file: PathBuf,
}

pub async fn permissions(request: Permissions) -> Result<Answer, Error> {
    let mut actions: [BTreeMap<&str, BTreeSet<String>>; 2] = Default::default();
    for target in targets_of(&request.file)?.targets.into_values() {
        let address: Address = serde_json::from_value(target.address)
            .map_err(|error| Error::Unreadable(format!("address: {error}")))?;
        for (of, needed) in actions
            .iter_mut()
            .zip([address.permissions(), address.looks()])
        {
            for (action, resource) in needed {
                of.entry(action).or_default().insert(resource);
            }
        }
    }
    let [calls, looks] = actions;
    let looks = looks.into_iter().map(|look| ("OptionalForDoctor", look));
    let all = calls.into_iter().map(|call| ("Calls", call)).chain(looks);
    let statements = all.enumerate().map(|(number, (sid, (action, resources)))| {
        json!({"Sid": format!("{sid}{number}"), "Effect": "Allow", "Action": action, "Resource": resources})
    });
    let statements: Vec<Value> = statements.collect();
    let document = json!({"Version": "2012-10-17", "Statement": statements});
    let text = format!("{document:#}");
    Ok(Answer::new(document, text))
}

type Found = Result<(Targets, Vec<FileFault>), Vec<FileFault>>;

fn looked_at(path: &Path) -> Result<Found, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Invalid(format!("file: {}: {error}", path.display())))?;
    Ok(read(&text, &DrainOptions::from_settings(&environment)?))
}

fn targets_of(path: &Path) -> Result<Targets, Error> {
    let found = looked_at(path)?.map(|(targets, _)| targets);
    found.map_err(|faults| Error::Invalid(format!("file: {}", listed(&faults))))
}
