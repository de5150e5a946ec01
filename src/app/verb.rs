//! The verbs `submit` and `receive-issuing`: data of producers in other languages, from the command line.

use serde_json::{Value, json};
use tidegate::Error;
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, Ask, json_argument};

use super::submission::Subject;

/// Submit a form, a grant letter or a notice, and publish its event in the same transaction.
#[derive(Parser)]
#[command(
    name = "submit",
    after_help = "Example:\n  tidegate submit form @form.json\n  tidegate submit viewed '{\"grant_number\": \"G-1\"}'\n  \
        tidegate submit cancellation '{\"source\": \"cases\", \"external_id\": \"7\", \"measure\": {\"case_number\": \"2027/1\", \"measure_id\": \"1\"}}'"
)]
pub struct Submit {
    /// Type of the document.
    what: Subject,
    /// The document: JSON text, @FILE to read a file, or - to read stdin.
    #[arg(value_name = "JSON")]
    document: String,
}

/// Stores the submitted data and publishes its event, in one transaction.
///
/// # Errors
/// As [`Subject::take_in`].
pub async fn submit(ask: Ask, request: Submit) -> Result<Answer, Error> {
    let json = json!(json_argument("JSON", &request.document)?);
    let failed = |stage| move |source| Error::Database { stage, source };
    let mut client = ask.runtime.database.connect().await?;
    let tx = client.transaction().await.map_err(failed("begin"))?;
    let report = request.what.take_in(&tx, None, &json).await?;
    tx.commit().await.map_err(failed("commit"))?;
    let text = match report.id {
        Some(id) => format!("published event {id}"),
        None if report.repeated => "it was submitted before; nothing was stored".to_owned(),
        None => "stored; it is kept until a form has its case".to_owned(),
    };
    let mut document = json!(report);
    document["action"] = json!("submit");
    Ok(Answer::new(document, text))
}

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

/// Passes the message to the action `receive_issuing`.
///
/// # Errors
/// As [`super::checks::answer`].
pub async fn receive_issuing(ask: Ask, request: ReceiveIssuing) -> Result<Answer, Error> {
    let message = json!({"message": json_argument("--message", &request.message)?});
    let answer = ask.runtime.further("receive_issuing", message).await?;
    let text = match (answer["id"].as_i64(), &answer["created"]) {
        (None, _) => "the message requests no check; nothing was stored".to_owned(),
        (Some(id), Value::Bool(true)) => format!("published event {id}"),
        (Some(id), _) => format!("event {id} already makes this check; nothing was stored"),
    };
    Ok(Answer::new(answer, text))
}
