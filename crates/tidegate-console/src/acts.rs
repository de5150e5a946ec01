//! What all actions have in common. Each action is a form. It does what the verb of the command line does,
//! with the person's name for the audit, and redirects to the page where the form was. The screen that offers
//! an action also says what it does.

use std::pin::Pin;
use std::time::Duration;

use tidegate::admin::{Audit, Skipped};

use crate::desk::Desk;
use crate::form::Fields;
use crate::html::number;
use crate::problem::Problem;

/// An action: its name in the address, and what it does. It returns what it has done, in a sentence.
pub(crate) type Act = (
    &'static str,
    for<'a> fn(
        &'a Desk,
        &'a Fields,
    ) -> Pin<Box<dyn Future<Output = Result<String, Problem>> + Send + 'a>>,
);

/// Shorter than the time limit of a request. Repeating the request does the rest.
pub(crate) const APPLYING: Duration = Duration::from_secs(10);

/// The reason. It is checked before the database is asked.
pub(crate) fn reason(sent: &Fields) -> Result<String, Problem> {
    sent.needed("reason").map(str::to_owned)
}

/// The reason, with the person's name.
pub(crate) fn audit(desk: &Desk, sent: &Fields) -> Result<Audit, Problem> {
    Ok(Audit::of(reason(sent)?).by(desk.actor()))
}

/// Describes how many events were changed. If none was, the page showed an outdated state, which is a
/// conflict.
pub(crate) fn done(
    what: &str,
    count: u64,
    skipped_count: u64,
    skipped: &[Skipped],
) -> Result<String, Problem> {
    let why = skipped
        .first()
        .map(|first| format!(": event {} {}", first.id, first.reason));
    if count == 0 {
        let why = why.unwrap_or_default();
        return Err(Problem::conflict(format!("No event was {what}{why}.")));
    }
    let left = match skipped_count {
        0 => String::new(),
        _ => format!(
            "; {} skipped{}",
            number(skipped_count),
            why.unwrap_or_default()
        ),
    };
    let events = if count == 1 { "event" } else { "events" };
    Ok(format!("{} {events} {what}{left}.", number(count)))
}
