//! Operators' actions. Each calls a function of the schema, which also writes the audit row.

use tokio_postgres::types::Type;

use super::Statement;

/// Publishes logged events again as new ones. A time is either an instant or a number of seconds ago.
pub static REPLAY: Statement = Statement {
    name: "replay",
    params: &[
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::BOOL,
        Type::BOOL,
        Type::BOOL,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
    ],
    text: "\
SELECT tidegate.replay(ids => $1, kind => $2, status => $3,
                       since => coalesce($4, clock_timestamp() - make_interval(secs => $5)),
                       until => coalesce($6, clock_timestamp() - make_interval(secs => $7)),
                       reason => $8, actor => $9, \"limit\" => $10, dry_run => $11, again => $12,
                       failed_handlers_only => $13, expires_in => make_interval(secs => $14),
                       code => $15, digest => $16)::text",
};

/// Breaks leases, so that their events run again at the next drain.
pub static REQUEUE: Statement = Statement {
    name: "requeue",
    params: &[Type::INT8_ARRAY, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.requeue($1, $2, $3)::text",
};

/// Records in the audit that an operator has published an event, in the same transaction.
pub static RECORD_PUBLISH: Statement = Statement {
    name: "record_publish",
    params: &[Type::INT8, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.record_publish($1, $2, $3)",
};

/// Ends one page of live events.
pub static CANCEL: Statement = Statement {
    name: "cancel",
    params: &[
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::INT4,
        Type::INT8,
        Type::BOOL,
    ],
    text: "\
SELECT tidegate.cancel(ids => $1, kind => $2, dedup_key => $3, correlation_id => $4, group_key => $5, status => $6,
                       since => coalesce($7, clock_timestamp() - make_interval(secs => $8)),
                       until => coalesce($9, clock_timestamp() - make_interval(secs => $10)),
                       reason => $11, actor => $12, \"limit\" => $13, after => $14, dry_run => $15)::text",
};

/// Changes the start time of one page of waiting events. A time is either an instant or a number of seconds
/// from now.
pub static RESCHEDULE: Statement = Statement {
    name: "reschedule",
    params: &[
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::INT4,
        Type::INT8,
        Type::BOOL,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::TIMESTAMPTZ,
        Type::FLOAT8,
        Type::BOOL,
    ],
    text: "\
SELECT tidegate.reschedule(ids => $1, kind => $2, dedup_key => $3, correlation_id => $4, group_key => $5, status => $6,
                           since => coalesce($7, clock_timestamp() - make_interval(secs => $8)),
                           until => coalesce($9, clock_timestamp() - make_interval(secs => $10)),
                           reason => $11, actor => $12, \"limit\" => $13, after => $14, dry_run => $15,
                           available_at => coalesce($16, clock_timestamp() + make_interval(secs => $17)),
                           expires_at => coalesce($18, clock_timestamp() + make_interval(secs => $19)),
                           no_deadline => $20)::text",
};

/// Pauses a kind.
pub static PAUSE: Statement = Statement {
    name: "pause",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.pause($1, $2, $3)::text",
};

/// Resumes a kind.
pub static RESUME: Statement = Statement {
    name: "resume",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.resume($1, $2, $3)::text",
};

/// Retires a kind.
pub static RETIRE: Statement = Statement {
    name: "retire",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.retire($1, $2, $3)::text",
};

/// Sets how events of a kind are handled.
pub static SET_POLICY: Statement = Statement {
    name: "set_policy",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.set_policy($1, $2::jsonb, $3, $4)::text",
};

/// Acts on the first event of a group.
pub static UNBLOCK: Statement = Statement {
    name: "unblock",
    params: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.unblock($1, $2, $3, $4)::text",
};

/// Events of these groups or with these correlation ids, in the queue or in one partition of the log.
pub static FIND_SUBJECT: Statement = Statement {
    name: "find_subject",
    params: &[Type::TEXT, Type::TEXT_ARRAY, Type::TEXT_ARRAY],
    text: "SELECT tidegate.find_subject($1, $2, $3)",
};

/// The follow-ups and replays of events, by id.
pub static OFFSPRING: Statement = Statement {
    name: "offspring",
    params: &[Type::INT8_ARRAY, Type::INT8, Type::INT4],
    text: "SELECT tidegate.offspring($1, $2, $3)",
};

/// Removes the content of events, and cancels the live ones.
pub static FORGET: Statement = Statement {
    name: "forget",
    params: &[
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::TEXT,
        Type::BOOL,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
    ],
    text: "SELECT tidegate.forget($1, $2, $3, $4, $5, $6)::text",
};

/// All statements of this file.
pub static ALL: &[&Statement] = &[
    &REPLAY,
    &REQUEUE,
    &RECORD_PUBLISH,
    &CANCEL,
    &RESCHEDULE,
    &PAUSE,
    &RESUME,
    &RETIRE,
    &SET_POLICY,
    &UNBLOCK,
    &FIND_SUBJECT,
    &OFFSPRING,
    &FORGET,
];
