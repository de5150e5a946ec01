//! The steps of a cleanup and the retention of kinds. The migration describes each function's work and locks.

use tokio_postgres::types::Type;

use super::Statement;

/// The database's current time.
pub static CLOCK: Statement = Statement {
    name: "clock",
    params: &[],
    text: "SELECT clock_timestamp()",
};

/// Days that need a partition.
pub static MISSING_DAYS: Statement = Statement {
    name: "missing_log_days",
    params: &[Type::TIMESTAMPTZ],
    text: "\
SELECT day::text FROM tidegate.missing_log_days($1) AS day ORDER BY day",
};

/// The number of a day's rows in the default partition, as far as it matters.
pub static ROWS_IN_DEFAULT: Statement = Statement {
    name: "rows_in_default",
    params: &[Type::TEXT],
    text: "SELECT tidegate.rows_in_default($1::date)",
};

/// Creates the partition of one day.
pub static MAKE_PARTITION: Statement = Statement {
    name: "make_log_partition",
    params: &[Type::TEXT],
    text: "SELECT m.outcome, m.moved FROM tidegate.make_log_partition($1::date) AS m",
};

/// The log's partitions, soonest to expire first. `over`: all its rows have expired. `due`: it may hold
/// expired rows.
pub static PARTITIONS: Statement = Statement {
    name: "log_partitions",
    params: &[Type::TIMESTAMPTZ],
    text: "\
SELECT p.partition, coalesce(p.upper_bound <= $1, false) AS over, coalesce(p.lower_bound <= $1, true) AS due,
       p.closed, p.sealed
  FROM tidegate.log_partitions($1) AS p
 ORDER BY p.upper_bound, p.partition",
};

/// The number of expired rows in each partition.
pub static EXPIRED_ROWS: Statement = Statement {
    name: "expired_rows",
    params: &[Type::TIMESTAMPTZ],
    text: "SELECT e.partition, e.events FROM tidegate.expired_rows($1) AS e",
};

/// Ends the events of one page of the live queue that no drain would hand to a handler any more.
pub static SWEEP: Statement = Statement {
    name: "sweep_events",
    params: &[
        Type::INT8,
        Type::INT4,
        Type::FLOAT8,
        Type::BOOL,
        Type::TEXT,
        Type::TIMESTAMPTZ,
    ],
    text: "\
SELECT s.expired, s.abandoned, s.last_id
  FROM tidegate.sweep_events($1, $2, make_interval(secs => $3), $4, $5, $6) AS s",
};

/// Counts one step of a partition that no event can finish into any more.
pub static SEAL: Statement = Statement {
    name: "seal_log_partition",
    params: &[Type::TEXT, Type::TIMESTAMPTZ],
    text: "SELECT tidegate.seal_log_partition($1, $2)",
};

/// Drops a sealed partition whose rows have all expired.
pub static DROP: Statement = Statement {
    name: "drop_log_partition",
    params: &[Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ],
    text: "SELECT d.dropped FROM tidegate.drop_log_partition($1, $2, $3) AS d",
};

/// Deletes a batch of expired rows from one partition.
pub static DELETE: Statement = Statement {
    name: "delete_expired",
    params: &[
        Type::TEXT,
        Type::TEXT,
        Type::INT4,
        Type::TEXT,
        Type::TIMESTAMPTZ,
    ],
    text: "SELECT d.deleted, d.next FROM tidegate.delete_expired($1, $2, $3, $4, $5) AS d",
};

/// Removes old records of messages from outside.
pub static FORGET: Statement = Statement {
    name: "forget_received",
    params: &[Type::INT4, Type::BOOL, Type::TEXT, Type::TIMESTAMPTZ],
    text: "SELECT tidegate.forget_received($1, $2, $3, $4)",
};

/// Merges the figures of old minutes, and removes old records of drains.
pub static FOLD_FIGURES: Statement = Statement {
    name: "fold_figures",
    params: &[Type::INT4],
    text: "SELECT greatest(tidegate.fold_figures($1), tidegate.forget_runs($1))",
};

/// The retention of all kinds, or of one.
pub static RETENTIONS: Statement = Statement {
    name: "retentions",
    params: &[Type::TEXT],
    text: "\
SELECT k.kind, k.retention_completed::text, k.retention_failed::text,
       (extract(epoch FROM k.retention_completed) * 1000)::int8, (extract(epoch FROM k.retention_failed) * 1000)::int8
  FROM tidegate.event_kind AS k WHERE $1 IS NULL OR k.kind = $1 ORDER BY k.kind",
};

/// Sets the retention of one kind, in days and seconds. Null leaves it unchanged.
pub static SET_RETENTION: Statement = Statement {
    name: "set_retention",
    params: &[
        Type::TEXT,
        Type::INT4,
        Type::FLOAT8,
        Type::INT4,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
    ],
    text: "\
SELECT $1, r.retention_completed::text, r.retention_failed::text,
       (extract(epoch FROM r.retention_completed) * 1000)::int8, (extract(epoch FROM r.retention_failed) * 1000)::int8
  FROM tidegate.set_retention($1, make_interval(days => $2, secs => $3), make_interval(days => $4, secs => $5),
                              $6, $7) AS r",
};

/// Days without a partition to which rows of a kind in one partition would move.
pub static MISSING_RETENTION_DAYS: Statement = Statement {
    name: "missing_retention_days",
    params: &[Type::TEXT, Type::TEXT],
    text: "SELECT day::text FROM tidegate.missing_retention_days($1, $2) AS day ORDER BY day",
};

/// Sets a new expiry for a batch of a kind's finished events.
pub static APPLY_RETENTION: Statement = Statement {
    name: "apply_retention",
    params: &[
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT4,
        Type::TEXT,
        Type::TEXT,
    ],
    text: "SELECT a.redated, a.next FROM tidegate.apply_retention($1, $2, $3, $4, $5, $6) AS a",
};

/// All statements of this file.
pub static ALL: &[&Statement] = &[
    &CLOCK,
    &MISSING_DAYS,
    &ROWS_IN_DEFAULT,
    &MAKE_PARTITION,
    &PARTITIONS,
    &EXPIRED_ROWS,
    &SWEEP,
    &SEAL,
    &DROP,
    &DELETE,
    &FORGET,
    &FOLD_FIGURES,
    &RETENTIONS,
    &SET_RETENTION,
    &MISSING_RETENTION_DAYS,
    &APPLY_RETENTION,
];
