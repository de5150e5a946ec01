//! The verbs: each calls the library and turns its report into an answer.

pub mod bar;
mod cleanup;
pub mod describe;
mod drain;
pub mod new;
mod prometheus;
mod publish;
mod status;

use tidegate::Error;
use tidegate::admin::{Request, document};
use tidegate::program::Service;

use crate::answer::{Answer, Failed};
use crate::args::Verb;
use crate::text::{Text, width, wrapped};

/// Answers a verb that every program has.
pub async fn answer(service: &Service, verb: Verb, json: bool) -> Result<Answer, Failed> {
    match verb {
        Verb::Publish(args) => publish::publish(service, args).await,
        Verb::Drain(args) => drain::drain(service, &args, json).await,
        Verb::Status(args) => status::status(service, &args, json).await,
        Verb::Listed(Request::Cleanup(wanted)) => cleanup::cleanup(service, &wanted, json).await,
        Verb::Listed(request) => Ok(listed(service, &request).await?),
        Verb::Completions { .. } | Verb::Man { .. } | Verb::Schema { .. } => Err(no_verb().into()),
    }
}

macro_rules! answer_listed {
    ($($file:ident: $($(#[$attribute:meta])* $name:ident($request:ident)),+;)*) => {
        /// Answers a verb of the library's list.
        ///
        /// # Errors
        /// As [`Service::run`].
        pub async fn listed(service: &Service, request: &Request) -> Result<Answer, Error> {
            match request {
                $($(Request::$name(wanted) => run(service, wanted).await,)+)*
                Request::Further { .. } => Err(no_verb()),
            }
        }
    };
}

tidegate::each_verb!(answer_listed);

async fn run<V: Text>(service: &Service, wanted: &V) -> Result<Answer, Error> {
    answered(wanted, &service.run(wanted).await?)
}

/// Returns the answer with this report.
fn answered<V: Text>(wanted: &V, report: &V::Report) -> Result<Answer, Error> {
    let mut text = wanted.text(report);
    if let Some(width) = width() {
        text = wrapped(&text, width);
    }
    Ok(Answer {
        code: wanted.code(report),
        ..Answer::new(document::<V>(report)?, text)
    })
}

/// A verb that is answered earlier, before a service exists.
fn no_verb() -> Error {
    Error::Invalid("this verb does not use the program".to_owned())
}
