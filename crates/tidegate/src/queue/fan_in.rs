//! Events that wait for others.

use serde::{Deserialize, Serialize};
use tokio_postgres::GenericClient;

use super::{query, sql};
use crate::error::Error;
use crate::outcome::Member;

/// The result of a look at waiting events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Released {
    /// The id after which to continue; `None` at the end.
    pub looked_to: Option<i64>,
    /// The lowest id of the released events.
    pub lowest: Option<i64>,
}

/// The wait of an event for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Wait {
    /// How many events it waits for.
    pub members: u32,
    /// How many of them are known to have ended.
    pub ended_at_least: u32,
    /// The event that it waits for now; `None` when all have ended.
    pub waits_for: Option<i64>,
    /// When the wait was over, RFC 3339.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub released_at: Option<String>,
}

/// Looks at `most` waiting events after `after`, and releases those whose members have all ended.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn release_waiting(
    client: &(impl GenericClient + Sync),
    after: i64,
    most: i32,
) -> Result<Released, Error> {
    let rows = query(client, &sql::fan_in::RELEASE_WAITING, &[&after, &most]).await?;
    let row = rows.first();
    Ok(row.map_or_else(Released::default, |row| Released {
        looked_to: row.get(0),
        lowest: row.get(1),
    }))
}

/// Returns the events that the event waited for, and how they ended.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn members(client: &(impl GenericClient + Sync), id: i64) -> Result<Vec<Member>, Error> {
    let rows = query(client, &sql::fan_in::MEMBERS, &[&id]).await?;
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let read = serde_json::from_str(row.get(0));
    read.map_err(|error| Error::Unreadable(format!("members: {error}")))
}

/// Returns the wait of an event, if it was published to wait for others.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn wait_of(client: &(impl GenericClient + Sync), id: i64) -> Result<Option<Wait>, Error> {
    let rows = query(client, &sql::fan_in::WAIT_OF, &[&id]).await?;
    let read = rows.first().map(|row| serde_json::from_str(row.get(0)));
    read.transpose()
        .map_err(|error| Error::Unreadable(format!("wait: {error}")))
}
