//! The verb `submit`: submits data of producers in other languages, from the command line.

use serde_json::json;
use serde_json::value::RawValue;
use tidegate::Error;
use tidegate_cli::clap::Parser;
use tidegate_cli::{Answer, Ask, json_argument};

use super::forms::SubmitReport;
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

/// Stores the submitted data.
///
/// # Errors
/// As [`Subject::take_in`].
pub async fn submit(ask: Ask, request: Submit) -> Result<Answer, Error> {
    let json: Box<RawValue> = json_argument("JSON", &request.document)?;
    let failed = |stage| move |source| Error::Database { stage, source };
    let mut client = ask.service.database.connect().await?;
    let tx = client.transaction().await.map_err(failed("begin"))?;
    let report = request
        .what
        .take_in(&tx, None, json.get().as_bytes())
        .await?;
    tx.commit().await.map_err(failed("commit"))?;
    let mut document = json!(report);
    document["action"] = json!("submit");
    Ok(Answer::new(document, told(&report)))
}

fn told(report: &SubmitReport) -> String {
    match report.id {
        Some(id) => format!("published event {id}"),
        None if report.repeated => "it was submitted before; nothing was stored".to_owned(),
        None => "stored; it is not about one of our cases, so there is nothing to do".to_owned(),
    }
}
