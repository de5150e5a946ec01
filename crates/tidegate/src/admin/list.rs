//! The verb `list`: lists events, newest first.

use serde_json::Value;
use tokio_postgres::Client;

use super::prelude::*;
use super::{Moment, event_id, length, parse_moment};
use crate::look::{self, STATUSES, rows};
use crate::queue::{self, ListFilter};

/// List events, newest first, live and finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate list --status FAILED --since 2h --limit 20")]
pub struct ListRequest {
    /// Only events in this state: PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = STATUSES, ignore_case = true)]
    pub status: Option<String>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation: Option<String>,
    /// Only events created at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_moment)]
    #[serde(default, deserialize_with = "written")]
    pub since: Option<Moment>,
    /// Only events created before this time, written like --since.
    #[arg(long, value_parser = parse_moment)]
    #[serde(default, deserialize_with = "written")]
    pub until: Option<Moment>,
    /// Only events with an id lower than this: the next page of a list that ended with this id.
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub before: Option<i64>,
    /// Maximum number of events to list, 1 to 10000.
    #[arg(long, default_value = "50", value_parser = length())]
    pub limit: Option<u32>,
}

impl ListRequest {
    /// Returns the status as the queue writes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such status.
    pub(crate) fn status(&self) -> Result<Option<&'static str>, Error> {
        let Some(asked) = &self.status else {
            return Ok(None);
        };
        let mut known = STATUSES.into_iter();
        let status = known.find(|status| status.eq_ignore_ascii_case(asked));
        status.map(Some).ok_or_else(|| {
            let list = STATUSES.join(", ");
            Error::Invalid(format!("status: must be one of {list}, got {asked:?}"))
        })
    }

    pub(crate) fn filter<'a>(&'a self, status: Option<&'a str>) -> ListFilter<'a> {
        ListFilter {
            status,
            kind: self.kind.as_deref(),
            group: self.group.as_deref(),
            correlation: self.correlation.as_deref(),
            since: self.since,
            until: self.until,
            before: self.before,
            above: None,
        }
    }
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "list")]
#[non_exhaustive]
pub struct ListReport {
    /// Newest first.
    #[schemars(with = "Vec<rows::ListedEvent>")]
    pub events: Vec<Value>,
    /// The id of the last event, to be used as the `before` of the next page. `None` if there is no next
    /// page.
    pub next: Option<i64>,
}

impl Verb for ListRequest {
    const NAME: &'static str = "list";
    const CHANGES: bool = false;
    const LOGGED: Option<&'static [&'static str]> = Some(&["next"]);

    type Report = ListReport;

    async fn run(&self, service: &Service) -> Result<ListReport, Error> {
        let (status, limit) = (self.status()?, look::limit(self.limit)?);
        let client = service.looking().await?;
        let filter = self.filter(status);
        page(service.handled(), &client, &filter, limit, true).await
    }
}

/// Returns a page of events. `"handled": false` marks an event whose kind is not one of `kinds`. `is_all`
/// says whether the filter accepts events of any age, so that an empty page means that there are none.
pub(super) async fn page(
    kinds: &[&str],
    client: &Client,
    filter: &ListFilter<'_>,
    limit: u32,
    is_all: bool,
) -> Result<ListReport, Error> {
    let mut events = queue::list(client, filter, limit).await?;
    if let (true, true, Some(kind)) = (is_all, events.is_empty(), filter.kind) {
        // The name of an unknown kind is most likely misspelled, so refuse it rather than return an empty
        // page.
        refuse_unknown(client, kind).await?;
    }
    for event in &mut events {
        if !kinds.contains(&event["kind"].as_str().unwrap_or_default()) {
            event["handled"] = Value::Bool(false);
        }
    }
    let is_full = events.len() >= limit as usize;
    let last = events.last().and_then(|event| event["id"].as_i64());
    let next = last.filter(|_| is_full);
    Ok(ListReport { events, next })
}

/// An error lists no more kinds than this.
const MOST_NAMED: usize = 50;

/// Refuses a kind that is neither registered nor the kind of any event, live or finished: its name is most
/// likely misspelled.
async fn refuse_unknown(client: &Client, kind: &str) -> Result<(), Error> {
    let kinds = queue::registered(client).await?;
    if kinds.iter().any(|known| known == kind) {
        return Ok(());
    }
    let any = ListFilter {
        kind: Some(kind),
        ..ListFilter::default()
    };
    if !queue::list(client, &any, 1).await?.is_empty() {
        return Ok(());
    }
    let mut named = kinds.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>();
    if kinds.len() > MOST_NAMED {
        named.push(format!("and {} more", kinds.len() - MOST_NAMED));
    }
    let there_are = match named.as_slice() {
        [] => "no kinds are registered".to_owned(),
        _ => format!("the kinds are {}", named.join(", ")),
    };
    Err(Error::Invalid(format!(
        "kind: {kind:?} is not registered, and there are no events of it; {there_are}"
    )))
}
