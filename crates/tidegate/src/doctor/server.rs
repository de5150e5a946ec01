//! Checks of the server and of this program's settings.

use tokio_postgres::Row;

use super::{Finding, Probe};
use crate::error::Error;
use crate::migrate::refuse_old_server;
use crate::queue::{query, sql};

pub(super) async fn version(probe: &Probe<'_>) -> Result<Finding, Error> {
    let names = ["server_version", "server_version_num"];
    let settings = query(&probe.client, &sql::doctor::SETTINGS, &[&&names[..]]).await?;
    let [version, number] = &settings[..] else {
        return Err(Error::Unreadable("settings: no version".to_owned()));
    };
    let number = number.get::<_, String>(1).parse().unwrap_or(0);
    Ok(judge_version(&version.get::<_, String>(1), number))
}

fn judge_version(version: &str, number: u32) -> Finding {
    match refuse_old_server(version, number) {
        Ok(()) => Finding::ok(format!("Postgres {version}")),
        Err(told) => Finding::beyond_us(told),
    }
}

pub(super) async fn writable(probe: &Probe<'_>) -> Result<Finding, Error> {
    let standby = query(&probe.client, &sql::doctor::IS_STANDBY, &[]).await?;
    if standby.first().is_some_and(|row| row.get(0)) {
        return Ok(Finding::beyond_us(
            "this server is a standby: let DATABASE_URL name the primary",
        ));
    }
    let names = ["default_transaction_read_only"];
    let settings = query(&probe.client, &sql::doctor::SETTINGS, &[&&names[..]]).await?;
    let read_only = settings.first().filter(|row| row.get::<_, &str>(1) == "on");
    Ok(match read_only {
        None => Finding::ok("transactions may write"),
        Some(row) => Finding::problem(
            "default_transaction_read_only is on: nothing can be published or finished",
            format!(
                "SET default_transaction_read_only = off;\n{}",
                correction(row, "off")
            ),
        ),
    })
}

pub(super) async fn isolation(probe: &Probe<'_>) -> Result<Finding, Error> {
    let names = ["default_transaction_isolation"];
    let settings = query(&probe.client, &sql::doctor::SETTINGS, &[&&names[..]]).await?;
    let other = settings
        .first()
        .map(|row| (row, row.get::<_, String>(1)))
        .filter(|(_, level)| level != "read committed");
    Ok(match other {
        None => Finding::ok("transactions see what was committed before each of their statements"),
        Some((row, level)) => Finding::problem(
            format!(
                "default_transaction_isolation is {level}: nothing is leased and nothing cleaned up"
            ),
            format!(
                "SET default_transaction_isolation = 'read committed';\n{}",
                correction(row, "'read committed'")
            ),
        ),
    })
}

pub(super) async fn durability(probe: &Probe<'_>) -> Result<Finding, Error> {
    let names = ["fsync", "full_page_writes", "synchronous_commit"];
    let settings = query(&probe.client, &sql::doctor::SETTINGS, &[&&names[..]]).await?;
    let off: Vec<&Row> = settings
        .iter()
        .filter(|row| row.get::<_, &str>(1) == "off")
        .collect();
    if off.is_empty() {
        return Ok(Finding::ok(
            "what was committed survives a crash of the server",
        ));
    }
    let listed: Vec<&str> = off.iter().map(|row| row.get(0)).collect();
    let text = format!(
        "a crash of the server loses events that were acknowledged: {} is off",
        listed.join(", ")
    );
    let mut remedies: Vec<String> = off.iter().map(|row| correction(row, "on")).collect();
    remedies.push("SELECT pg_reload_conf();".to_owned());
    Ok(Finding::problem(text, remedies.join("\n")))
}

/// Returns the statement that changes a setting in the place where its current value is set.
fn correction(row: &Row, value: &str) -> String {
    let (name, source): (String, String) = (row.get(0), row.get(2));
    let (database, role): (String, String) = (row.get(3), row.get(4));
    match source.as_str() {
        "database" => format!("ALTER DATABASE {database} SET {name} = {value};"),
        "user" => format!("ALTER ROLE {role} SET {name} = {value};"),
        "database user" => {
            format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = {value};")
        }
        _ => format!("ALTER SYSTEM SET {name} = {value};"),
    }
}

/// Checks the drains' settings. A program's own drains cannot even start with wrong settings, but a program
/// that embeds the engine may use other settings.
#[expect(clippy::unused_async, reason = "every check is one")]
pub(super) async fn settings(probe: &Probe<'_>) -> Result<Finding, Error> {
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
