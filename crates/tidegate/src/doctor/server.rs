//! Checks of the server and of this program's settings.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::finding::Wrong;
use super::{Finding, IS_MIGRATED, Probe};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::migrate::{refuse_encoding, refuse_old_server};
use crate::queue::statement::statements;

statements! {
    /// Whether the server is a standby.
    IS_STANDBY: "is_standby" [] = "SELECT pg_is_in_recovery()";

    /// Those of the kinds `$2` whose policy allows handlers more than `$1` milliseconds, and how many.
    LONG_HANDLERS: "long_handlers" [INT8, TEXT_ARRAY] = "\
SELECT k.kind, (k.policy->>'handler_timeout_ms')::bigint
  FROM tidegate.event_kind AS k
 WHERE k.kind = ANY ($2) AND (k.policy->>'handler_timeout_ms')::bigint > $1
 ORDER BY k.kind";
}

pub(super) async fn version(probe: &Probe<'_>) -> Result<Finding> {
    let names = ["server_encoding", "server_version", "server_version_num"];
    let settings = probe.settings(&names, |_| true).await?;
    let [encoding, version, number] = &settings[..] else {
        return Err(Error::Unreadable("settings: no version".to_owned()));
    };
    let number = number.get::<_, String>(1).parse().unwrap_or(0);
    let (encoding, version): (String, String) = (encoding.get(1), version.get(1));
    Ok(match refuse_encoding(&encoding) {
        Ok(()) => judge_version(&version, number),
        Err(why) => Finding::beyond_us(why),
    })
}

fn judge_version(version: &str, number: u32) -> Finding {
    match refuse_old_server(version, number) {
        Ok(()) => Finding::ok(format!("Postgres {version}")),
        Err(why) => Finding::beyond_us(why),
    }
}

pub(super) async fn writable(probe: &Probe<'_>) -> Result<Finding> {
    let standby = probe.row(&IS_STANDBY).await?;
    if standby.get(0) {
        return Ok(Finding::beyond_us(
            "this server is a standby: let DATABASE_URL name the primary",
        ));
    }
    let (name, ok) = ("default_transaction_read_only", "transactions may write");
    let effect = "nothing can be published or finished";
    must_be(probe, name, "off", ok, effect).await
}

pub(super) async fn isolation(probe: &Probe<'_>) -> Result<Finding> {
    let ok = "transactions see what was committed before each of their statements";
    let (name, right) = ("default_transaction_isolation", "'read committed'");
    let is_other = |value: &str| value != "read committed";
    let other = probe.settings(&[name], is_other).await?;
    Ok(match other.first() {
        None => Finding::ok(ok),
        Some(row) => Finding::warning(
            format!(
                "{name} is {}: drains and verbs begin their own transactions, but poll() and cleanups by SQL are refused",
                row.get::<_, String>(1)
            ),
            format!("SET {name} = {right};\n{}", correction(row, right)),
        ),
    })
}

/// Checks that a setting of transactions has this value, which is written as in SQL.
async fn must_be(
    probe: &Probe<'_>,
    name: &str,
    right: &str,
    ok: &str,
    effect: &str,
) -> Result<Finding> {
    let differs = |value: &str| value != right.trim_matches('\'');
    let other = probe.settings(&[name], differs).await?;
    Ok(match other.first() {
        None => Finding::ok(ok),
        Some(row) => Finding::problem(
            format!("{name} is {}: {effect}", row.get::<_, String>(1)),
            format!("SET {name} = {right};\n{}", correction(row, right)),
        ),
    })
}

pub(super) async fn durability(probe: &Probe<'_>) -> Result<Finding> {
    let names = ["fsync", "full_page_writes", "synchronous_commit"];
    let off = probe.settings(&names, |value| value == "off").await?;
    let off = Wrong::of(&off, |row| (row.get(0), correction(row, "on")));
    let ok = "what was committed survives a crash of the server";
    Ok(off.or_ok(ok, ", ", |list, remedy| {
        let text =
            format!("a crash of the server loses events that were acknowledged: {list} is off");
        Finding::problem(text, remedy + "\nSELECT pg_reload_conf();")
    }))
}

/// Returns the statement that changes a setting in the place where its current value is set.
fn correction(row: &Row, value: &str) -> String {
    format!("{}{value};", row.get::<_, String>(2))
}

/// Checks the drains' settings. A program's own drains cannot even start with wrong settings, but a program
/// that embeds the engine may use other settings.
pub(super) async fn settings(probe: &Probe<'_>) -> Result<Finding> {
    let options = probe.target.options;
    if let Err(error) = options.check() {
        let allowed = options.lease_timeout.mul_f64(0.9).as_millis();
        let remedy = format!("export TIDEGATE_HANDLER_TIMEOUT={allowed}ms");
        return Ok(Finding::problem(error.to_string(), remedy));
    }
    let ok = format!(
        "a handler's limit of {:?} fits into a lease of {:?}",
        options.handler_timeout, options.lease_timeout
    );
    if !probe.row(&IS_MIGRATED).await?.get::<_, bool>(0) {
        return Ok(Finding::ok(ok));
    }
    let (lease, budget) = (options.lease_timeout.mul_f64(0.9), options.budget);
    let most = lease.min(Budget::for_handlers(budget));
    let parameter = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
    let values: [&(dyn ToSql + Sync); 2] = [&parameter, &probe.target.kinds];
    let rows = probe.rows(&LONG_HANDLERS, &values).await?;
    let limit = |row: &Row| Duration::from_millis(row.get::<_, i64>(1).unsigned_abs());
    let longest = rows.iter().map(limit).max().unwrap_or_default();
    let kinds = Wrong::of(&rows, |row| {
        let text = format!("{} may take {:?}", row.get::<_, &str>(0), limit(row));
        (text, String::new())
    });
    Ok(kinds.or_ok(ok, ", ", |list, _| {
        let text = format!("{list}, but a drain cuts a handler after {most:?}");
        Finding::warning(text, room_for(longest, lease, budget))
    }))
}

/// Returns what to set for handlers that run this long: the lease, the budget or both.
fn room_for(longest: Duration, lease: Duration, budget: Duration) -> String {
    let longer = |setting, time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        format!("export {setting}={seconds}s")
    };
    let larger = longest.mul_f64(1.0 / 0.9);
    let mut remedies = Vec::new();
    if lease < longest {
        remedies.push(longer("TIDEGATE_LEASE_TIMEOUT", larger));
    }
    if Budget::for_handlers(budget) < longest {
        remedies.push(longer("TIDEGATE_BUDGET", larger));
    }
    remedies.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn what_is_too_short_for_a_handler_is_named_with_what_fits() {
        let seconds = Duration::from_secs;
        let longest = seconds(120);
        assert_eq!(
            room_for(longest, seconds(54), seconds(50)),
            "export TIDEGATE_LEASE_TIMEOUT=134s\nexport TIDEGATE_BUDGET=134s"
        );
        let (lease, budget) = (seconds(120), seconds(122));
        assert_eq!(room_for(longest, lease, budget), "");
        assert_eq!(
            room_for(longest, lease, seconds(121)),
            "export TIDEGATE_BUDGET=134s"
        );
    }

    #[test]
    fn versions_before_15_are_too_old() {
        assert_eq!(judge_version("14.19", 140_019).state, State::Problem);
        assert_eq!(judge_version("15.0", 150_000).state, State::Ok);
        assert_eq!(judge_version("18.6", 180_006).state, State::Ok);
    }
}
