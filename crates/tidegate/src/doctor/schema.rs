//! Checks of the schema: its version, changes by hand, and the kinds.

use tokio_postgres::Row;

use super::catalog::{self, Drift, EXPECTED};
use super::finding::Wrong;
use super::{Finding, Probe};
use crate::connect::Database;
use crate::error::{Error, Result};
use crate::migrate;
use crate::queue;
use crate::queue::statement::statements;

/// Further differences are counted, not listed: an operator repairs the first ones and checks again.
const MOST_DIFFERENCES: usize = 20;

statements! {
    /// Schemas in which every login may create objects, among those on the search path and the queue's own. A
    /// function there can make other logins run it.
    pub(super) OPEN_SCHEMAS: "open_schemas" [] = "\
SELECT quote_ident(n.nspname), format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC;', n.nspname)
  FROM pg_catalog.pg_namespace AS n
 WHERE (n.nspname = ANY (pg_catalog.current_schemas(false)) OR n.nspname IN ('public', 'tidegate'))
   AND pg_catalog.has_schema_privilege('public', n.oid, 'CREATE')
 ORDER BY 1";

    /// Other databases of the server in which the queue's roles have rights, if their logins may come here.
    pub(super) SHARED_ROLES: "shared_roles" [] = "\
SELECT format('%s (%s)', quote_ident(d.datname), string_agg(DISTINCT quote_ident(r.rolname), ', ')),
       format(E'GRANT CONNECT ON DATABASE %1$I TO each_login_of_this_queue;\\nREVOKE CONNECT ON DATABASE %1$I FROM PUBLIC;', current_database())
  FROM pg_catalog.pg_database AS own
  JOIN pg_catalog.pg_shdepend AS here ON here.dbid = own.oid AND here.deptype = 'a' AND here.refclassid = 'pg_catalog.pg_authid'::regclass
   AND here.classid = 'pg_catalog.pg_namespace'::regclass AND here.objid = 'tidegate'::regnamespace
  JOIN pg_catalog.pg_roles AS r ON r.oid = here.refobjid AND starts_with(r.rolname, 'tidegate' || '_')
  JOIN pg_catalog.pg_shdepend AS there ON there.refobjid = r.oid AND there.refclassid = here.refclassid AND there.deptype = 'a'
  JOIN pg_catalog.pg_database AS d ON d.oid = there.dbid AND d.oid <> own.oid
 WHERE own.datname = current_database() AND has_database_privilege('public', own.oid, 'CONNECT')
 GROUP BY d.datname
 ORDER BY d.datname";

    /// Whether the queue was copied here.
    pub(super) IS_COPY: "is_copy" [] = "SELECT tidegate.is_copy()";

    /// The last id that the sequence returned, and the highest stored id.
    IDS: "ids" [] = "\
SELECT (SELECT last_value FROM tidegate.event_queue_id_seq),
       coalesce(greatest((SELECT max(id) FROM tidegate.event_queue), (SELECT max(id) FROM tidegate.event_log)), 0)";

    /// Kinds of live events that no program has registered, or that are not among `$1`, and whether one
    /// has registered them. Those that are only pulled belong to no program.
    STRANGE_KINDS: "strange_kinds" [TEXT_ARRAY] = "\
SELECT format('%s (%s)', live.kind, live.events),
       CASE WHEN k.kind IS NULL THEN format('INSERT INTO tidegate.event_kind (kind) VALUES (%L);', live.kind)
            ELSE 'tidegate list --kind ' || live.kind END,
       k.kind IS NOT NULL
  FROM (SELECT kind, count(*) AS events FROM tidegate.event_queue GROUP BY kind) AS live
  LEFT JOIN tidegate.event_kind AS k USING (kind)
 WHERE k.kind IS NULL OR live.kind <> ALL ($1) AND k.targets IS DISTINCT FROM '{}'
 ORDER BY live.kind";

    /// Targets that were declared more than a day ago, and for which no event has ended since.
    UNCALLED_TARGETS: "uncalled_targets" [] = "\
SELECT t.target, 'tidegate-relay try FILE ' || coalesce(min(k.kind), 'KIND') || ' PAYLOAD'
  FROM tidegate.target AS t LEFT JOIN tidegate.event_kind AS k ON t.target = ANY (k.targets)
 WHERE t.since <= statement_timestamp() - interval '1 day'
 GROUP BY t.target
HAVING NOT EXISTS (SELECT FROM tidegate.minute_stats AS m WHERE m.kind = ANY (array_agg(k.kind)) AND m.minute >= min(t.since))
 ORDER BY t.target";
}

pub(super) async fn version(probe: &Probe<'_>) -> Result<Finding> {
    let versions = migrate::versions(&probe.client, probe.target.tables).await?;
    if versions.iter().all(|version| version.found == 0) {
        let text = "the database has no queue: it was never migrated";
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    let Some(other) = versions.iter().find(|version| version.differs()) else {
        let known = versions
            .iter()
            .map(|one| format!("{} {}", one.history, one.known));
        return Ok(Finding::ok(known.collect::<Vec<_>>().join(", ")));
    };
    let text = other.to_string();
    let registered = queue::registered(&probe.client).await?;
    Ok(if foreign(&registered, probe.target.kinds).is_some() {
        Finding::problem(
            text,
            "run doctor with the program that the queue belongs to",
        )
    } else if other.found < other.known {
        Finding::problem(text, "tidegate migrate")
    } else {
        Finding::beyond_us(format!("{text}; use a newer program"))
    })
}

/// Checks whether the queue was copied from elsewhere, with leases and slots of workers that are not here.
pub(super) async fn place(probe: &Probe<'_>) -> Result<Finding> {
    if probe.row(&IS_COPY).await?.get(0) {
        let text = "this queue was copied here; its leases and slots are those of workers elsewhere, and hold up events";
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    Ok(Finding::ok("the queue is where it was migrated"))
}

/// Checks the sequence of ids. A copy of a database may contain the events, but not the current value of the
/// sequence.
pub(super) async fn ids(probe: &Probe<'_>) -> Result<Finding> {
    let row = probe.row(&IDS).await?;
    let (last, highest): (i64, i64) = (row.get(0), row.get(1));
    if last < highest {
        let text = format!(
            "new events get ids that older events already have: {last} was drawn last, and {highest} is stored"
        );
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    Ok(Finding::ok(format!(
        "no event has an id above {last}, the last one drawn"
    )))
}

pub(super) async fn drift(probe: &Probe<'_>) -> Result<Finding> {
    let mut client = probe.target.database.connect().await?;
    let found = catalog::catalog(&mut client).await?;
    let expected = probe.target.database.schema().written(EXPECTED);
    let drift = catalog::drift(&expected, &found);
    if drift.is_empty() {
        let text = format!("all {} parts are as the migrations made them", found.len());
        return Ok(Finding::ok(text));
    }
    let mut texts: Vec<String> = drift.iter().map(Drift::text).collect();
    if texts.len() > MOST_DIFFERENCES {
        let more = texts.len() - MOST_DIFFERENCES;
        texts.truncate(MOST_DIFFERENCES);
        texts.push(format!("and {more} more"));
    }
    let mut remedies: Vec<String> = drift.iter().filter_map(Drift::remedy).collect();
    remedies.truncate(MOST_DIFFERENCES);
    let (text, remedy) = (texts.join("; "), remedies.join("\n"));
    let mut finding = if drift.iter().any(Drift::is_harmful) {
        Finding::problem(text, remedy)
    } else {
        Finding::warning(text, remedy)
    };
    finding.remedy = finding.remedy.filter(|remedy| !remedy.is_empty());
    Ok(finding)
}

pub(super) async fn kinds(probe: &Probe<'_>) -> Result<Finding> {
    let kinds = probe.target.kinds;
    if let Some(theirs) = foreign(&queue::registered(&probe.client).await?, kinds) {
        let text = format!("this queue belongs to another program, with the kinds {theirs}");
        let remedy = "run doctor with that program; `migrate --share` lets both use the queue";
        return Ok(Finding::problem(text, remedy));
    }
    let unregistered = queue::unregistered(&probe.client, kinds).await?;
    if !unregistered.is_empty() {
        let text = format!(
            "this program's kinds are not registered: {}",
            unregistered.join(", ")
        );
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    let strange = probe.rows(&STRANGE_KINDS, &[&kinds]).await?;
    let (foreign, nobodys): (Vec<Row>, Vec<Row>) = strange.into_iter().partition(|row| row.get(2));
    let listed = |rows: &[Row]| Wrong::of(rows, |row| (row.get(0), row.get(1)));
    if !nobodys.is_empty() {
        return Ok(listed(&nobodys).or_ok("", ", ", |list, remedy| {
            let text =
                format!("the next drain fails events of kinds that nobody registered: {list}");
            Finding::problem(text, remedy)
        }));
    }
    // Events of a registered kind that this program does not know wait for the program that does.
    let (foreign, count) = (listed(&foreign), kinds.len());
    let ok = format!("{count} kinds are registered, no event has another");
    if !foreign.remedies.is_empty() {
        return Ok(foreign.or_ok("", ", ", |list, _| {
            let text = format!("events of kinds that only another program handles: {list}");
            Finding::warning(text, &*foreign.remedies[0])
        }));
    }
    let uncalled = probe.wrong(&UNCALLED_TARGETS, &[]).await?;
    Ok(uncalled.or_ok(ok, ", ", |list, remedy| {
        let text = format!("targets without an event since they were declared: {list}");
        Finding::warning(text, remedy)
    }))
}

/// Refuses a queue in which only other programs have registered kinds. This program's kinds and tables do not
/// belong there.
pub(crate) async fn refuse_foreign(database: &Database, kinds: &[&str]) -> Result<()> {
    let client = database.connect().await?;
    let sql = "SELECT to_regclass('tidegate.event_kind') IS NOT NULL";
    let found = migrate::first_row(&client, sql, &[]).await?;
    if !found.is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    match foreign(&queue::registered(&client).await?, kinds) {
        None => Ok(()),
        Some(theirs) => Err(Error::Migrate(format!(
            "this queue belongs to another program, with the kinds {theirs}; `migrate --share`, or \"share\": true in an invocation, lets both use it"
        ))),
    }
}

/// Returns another program's kinds, if only other programs have registered any.
fn foreign(registered: &[String], kinds: &[&str]) -> Option<String> {
    const NAMED: usize = 5;
    let is_ours = |kind: &String| kinds.contains(&kind.as_str());
    if registered.is_empty() || kinds.is_empty() || registered.iter().any(is_ours) {
        return None;
    }
    let more = if registered.len() > NAMED {
        ", …"
    } else {
        ""
    };
    Some(registered[..registered.len().min(NAMED)].join(", ") + more)
}
