//! The verb `receive-issuing`: receives a bus message from the command line.

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate::Error;
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, Ask, json_argument};

use super::ReceiveIssuingReport;

/// Receive a message from the bus, and publish an event if the message requests an AI check.
#[derive(Parser)]
#[command(
    name = "receive-issuing",
    after_help = "Example:\n  tidegate receive-issuing --message '{\"kind\": \"issuing\", \"stage\": \"ai-check\", \"triggerId\": \"T1\", \"applicationId\": \"A1\"}'"
)]
pub struct ReceiveIssuing {
    /// The message: JSON text, @FILE to read a file, or - to read stdin.
    #[arg(long)]
    message: String,
}

/// Stores the check that the message requests.
///
/// # Errors
/// As [`super::answer`].
pub async fn receive_issuing(ask: Ask, request: ReceiveIssuing) -> Result<Answer, Error> {
    let message: Box<RawValue> = json_argument("--message", &request.message)?;
    let unreadable = |error| Error::Invalid(format!("--message: {error}"));
    let message: Value = serde_json::from_str(message.get()).map_err(unreadable)?;
    let fields = json!({"message": message});
    let answer = ask.service.further("receive_issuing", fields).await?;
    let report: ReceiveIssuingReport =
        serde_json::from_value(answer.clone()).map_err(unreadable)?;
    let text = match report.id {
        None => "the message requests no check; nothing was stored".to_owned(),
        Some(id) if report.created => format!("published event {id}"),
        Some(id) => format!("event {id} already makes this check; nothing was stored"),
    };
    Ok(Answer::new(answer, text))
}
