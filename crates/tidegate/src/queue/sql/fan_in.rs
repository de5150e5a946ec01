//! Statements about events that wait for other events.

use tokio_postgres::types::Type;

use super::Statement;

/// Releases those of the next `$2` waiting events after id `$1` whose members have all ended.
pub static RELEASE_WAITING: Statement = Statement {
    name: "release_waiting",
    params: &[Type::INT8, Type::INT4],
    text: "SELECT r.looked_to, r.lowest FROM tidegate.release_waiting($1, $2) AS r",
};

/// The members that event `$1` waited for, and how each ended.
pub static MEMBERS: Statement = Statement {
    name: "members",
    params: &[Type::INT8],
    text: "SELECT tidegate.members($1)::text",
};

/// The wait of event `$1`.
pub static WAIT_OF: Statement = Statement {
    name: "wait_of",
    params: &[Type::INT8],
    text: "\
SELECT json_build_object('members', cardinality(w.members), 'ended_at_least', w.reached, 'waits_for', w.waits_for,
                         'released_at', to_char(w.released_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))::text
  FROM tidegate.fan_in AS w WHERE w.event_id = $1",
};

/// All statements of this file.
#[cfg(feature = "internals")]
pub static ALL: &[&Statement] = &[&RELEASE_WAITING, &MEMBERS, &WAIT_OF];
