//! Checks of the server and of this program's settings.

use tokio_postgres::Row;

use super::finding::Wrong;
use super::{Finding, Probe};
use crate::error::{Error, Result};
use crate::migrate::refuse_old_server;
use crate::queue::statement::statements;

statements! {
    /// Whether the server is a standby.
    IS_STANDBY: "is_standby" [] = "SELECT pg_is_in_recovery()";
}

pub(super) async fn version(probe: &Probe<'_>) -> Result<Finding> {
    let names = ["server_version", "server_version_num"];
    let settings = probe.settings(&names, |_| true).await?;
    let [version, number] = &settings[..] else {
        return Err(Error::Unreadable("settings: no version".to_owned()));
    };
    let number = number.get::<_, String>(1).parse().unwrap_or(0);
    Ok(judge_version(&version.get::<_, String>(1), number))
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
    let effect = "nothing is leased and nothing cleaned up";
    let name = "default_transaction_isolation";
    must_be(probe, name, "'read committed'", ok, effect).await
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
    Ok(match options.check() {
        Ok(()) => Finding::ok(format!(
            "a handler's limit of {:?} fits into a lease of {:?}",
            options.handler_timeout, options.lease_timeout
        )),
        Err(error) => {
            let allowed = options.lease_timeout.mul_f64(0.9).as_millis();
            let text = error.to_string();
            Finding::problem(text, format!("export TIDEGATE_HANDLER_TIMEOUT={allowed}ms"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn versions_before_15_are_too_old() {
        assert_eq!(judge_version("14.19", 140_019).state, State::Problem);
        assert_eq!(judge_version("15.0", 150_000).state, State::Ok);
        assert_eq!(judge_version("18.6", 180_006).state, State::Ok);
    }
}
