//! The verbs: each asks the program, and turns the report into an answer.

pub mod bar;
mod cleanup;
pub mod describe;
mod drain;
pub mod new;
mod prometheus;
mod publish;
mod status;

use tidegate::Error;
use tidegate_admin::program::{Failure, Runtime};
use tidegate_admin::{MigrateRequest, Reported, Request};
use tidegate_core::migrate::MigrateReport;

use crate::answer::{Answer, write};
use crate::args::Verb;
use crate::text::{Text, report, width, wrapped};

/// Answers a verb that every program has.
pub async fn answer(runtime: &Runtime, verb: Verb, json: bool) -> Result<Answer, Failure> {
    match verb {
        Verb::Publish(args) => publish::publish(runtime, args).await,
        Verb::Drain(args) => drain::drain(runtime, &args, json).await,
        Verb::Status(args) => status::status(runtime, &args, json).await,
        Verb::Listed(Request::Cleanup(wanted)) => cleanup::cleanup(runtime, &wanted, json).await,
        Verb::Listed(Request::Migrate(wanted)) if wanted.print => {
            Ok(printed(&wanted, &runtime.run(&wanted).await?, json)?)
        }
        Verb::Listed(request) => Ok(listed(runtime, &request).await?),
        Verb::Completions { .. } | Verb::Man { .. } | Verb::Schema { .. } => Err(no_verb().into()),
    }
}

/// Answers a request as the command line would, but without a bar.
///
/// # Errors
/// As [`Runtime::run`].
pub async fn listed(runtime: &Runtime, request: &Request) -> Result<Answer, Error> {
    match request {
        Request::List(wanted) => run(runtime, wanted).await,
        Request::Show(wanted) => run(runtime, wanted).await,
        request => Ok(answered(request.report(runtime).await?)),
    }
}

/// Prints the SQL of a migration, as it is, unless a document has it.
pub fn printed(
    wanted: &MigrateRequest,
    report: &MigrateReport,
    json: bool,
) -> Result<Answer, Error> {
    if let Some(script) = report
        .script
        .as_ref()
        .filter(|script| !json && !script.is_empty())
    {
        write(script);
    }
    Ok(Answer::new(Reported::of(wanted, report)?.document, ""))
}

async fn run<V: Text>(runtime: &Runtime, wanted: &V) -> Result<Answer, Error> {
    written(wanted, &runtime.run(wanted).await?)
}

/// The answer with a report that has a text of its own.
fn written<V: Text>(wanted: &V, report: &V::Report) -> Result<Answer, Error> {
    Ok(fitted(Reported::of(wanted, report)?, wanted.text(report)))
}

/// The answer with a report whose text is drawn from its schema.
fn answered(reported: Reported) -> Answer {
    let text = report::text(&reported, width());
    fitted(reported, text)
}

fn fitted(reported: Reported, mut text: String) -> Answer {
    if let Some(width) = width() {
        text = wrapped(&text, width);
    }
    Answer::new(reported.document, text).with_code(reported.code)
}

/// The error for the verbs that `CommandLine` answers earlier, before a runtime exists.
fn no_verb() -> Error {
    Error::Invalid("this verb does not use the program".to_owned())
}
