//! Owns one deployment of a program for several queues, such as tenants', each a database's or a schema's. It
//! finds the queue that a request is for, and takes them one after the other if the request is for all. The
//! queue's service does the work.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::Request;
use super::databases::one_after_the_other;
use super::{Failure, NEXT_TICK, Program, Service};
use crate::config::Lookup;
use crate::drain::Hooks;
use crate::error::{Error, Result};

/// The variable that names the databases: a list such as `north=night/north, south=night/south#acme`, the id of
/// a secret and perhaps a schema. Without an id, the schema is in the database of the other settings. For an
/// entry without a name, the schema is the name, or else the id; for an ARN the name of its secret is.
const IDS: &str = "DATABASE_SECRET_IDS";

/// The variable that selects the one database of a program for one database.
const ONE: &str = "TIDEGATE_DATABASE";

/// How many databases are worked on at once.
const AT_ONCE: usize = 4;

/// A queue's name, and the id of its secret, perhaps with `#` and a schema.
type Named = (String, String);

/// The settings of one database.
type Settings<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// A program with its settings, for one database or for several.
pub struct Deployment {
    services: Vec<(String, Service)>,
    /// Whether `DATABASE_SECRET_IDS` names the databases, so that requests can name one too.
    has_names: bool,
}

impl Program {
    /// Like [`Program::start`], but for all databases that `DATABASE_SECRET_IDS` names. If it is not set, for
    /// the one that the other settings name.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn deploy(self, lookup: Lookup<'_>) -> Result<Deployment> {
        let Some(databases) = named(lookup)? else {
            let service = self.start(lookup)?;
            return Ok(Deployment {
                services: vec![(String::new(), service)],
                has_names: false,
            });
        };
        let handlers = self.handling(lookup)?;
        let program = Arc::new(self);
        let services = databases.into_iter().map(|database| {
            let of_this = of(lookup, &database);
            let service = program.clone().serve(&of_this, handlers.clone())?;
            Ok((database.0.clone(), service))
        });
        let services = services.collect::<Result<_>>()?;
        Ok(Deployment {
            services,
            has_names: true,
        })
    }
}

/// Parses `DATABASE_SECRET_IDS`.
fn named(lookup: Lookup<'_>) -> Result<Option<Vec<Named>>> {
    let Some(list) = lookup(IDS) else {
        return Ok(None);
    };
    let refused = |what: String| Err(Error::Config(format!("{IDS}: {what}")));
    let mut databases: Vec<Named> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let (name, id) = entry.split_once('=').unwrap_or((name_of(entry), entry));
        let (name, id) = (name.trim(), id.trim());
        if name.is_empty() || id.is_empty() {
            return refused(format!(
                "must be a comma-separated list of name=id, name=id#schema or name=#schema, got {entry:?}"
            ));
        }
        if databases.iter().any(|(known, _)| known == name) {
            return refused(format!("names must differ, got {name:?} twice"));
        }
        databases.push((name.to_owned(), id.to_owned()));
    }
    let has_ids = databases
        .iter()
        .any(|(_, id)| !id_and_schema(id).0.is_empty());
    for other in ["DATABASE_URL", "DATABASE_SECRET_ID", NEXT_TICK] {
        if lookup(other).is_some() && (has_ids || other == NEXT_TICK) {
            return refused(format!("must be set alone, and {other} is set too"));
        }
    }
    Ok(Some(databases))
}

/// Parts an entry without its name: the id of its secret, which is empty for the database of the other
/// settings, and the schema.
fn id_and_schema(entry: &str) -> (&str, Option<&str>) {
    match entry.split_once('#') {
        Some((id, schema)) => (id.trim(), Some(schema.trim())),
        None => (entry, None),
    }
}

/// Returns the name of a queue whose entry has none: its schema, or else what its id names.
fn name_of(entry: &str) -> &str {
    let (id, schema) = id_and_schema(entry);
    schema.unwrap_or_else(|| name_of_secret(id))
}

/// Returns the name of a database whose entry is only an id. For an ARN it is the name of the secret, without
/// the hyphen and the six characters with which Secrets Manager ends every ARN.
fn name_of_secret(id: &str) -> &str {
    let secret = match id.split_once(":secret:") {
        Some((service, secret)) if service.starts_with("arn:") => secret,
        _ => return id,
    };
    match secret.rsplit_once('-') {
        Some((name, end)) if end.len() == 6 && !name.is_empty() => name,
        _ => secret,
    }
}

/// Returns the settings of one of several databases. The name of the database distinguishes them in metrics.
fn of<'a>(lookup: Lookup<'a>, (name, id): &'a Named) -> impl Fn(&str) -> Option<String> + 'a {
    let (id, schema) = id_and_schema(id);
    move |setting| match setting {
        IDS => None,
        ONE => Some(name.clone()),
        "DATABASE_SECRET_ID" if !id.is_empty() => Some(id.to_owned()),
        "TIDEGATE_SCHEMA" if schema.is_some() => schema.map(str::to_owned),
        _ => lookup(setting),
    }
}

/// Returns the settings of the one database that a program works on.
pub(super) fn one_of(lookup: Lookup<'_>) -> Result<Settings<'_>> {
    let Some(databases) = named(lookup)? else {
        return Ok(Box::new(lookup));
    };
    let chosen = lookup(ONE);
    let found = databases
        .iter()
        .find(|(name, _)| Some(name) == chosen.as_ref());
    let Some(found) = found.cloned() else {
        let names: Vec<&str> = databases.iter().map(|(name, _)| &**name).collect();
        return Err(Error::Config(format!(
            "{ONE}: must be one of those that {IDS} names, {}; {}",
            names.join(", "),
            chosen.map_or("it is not set".to_owned(), |name| format!("got {name:?}"))
        )));
    };
    Ok(Box::new(move |setting| of(lookup, &found)(setting)))
}

impl Deployment {
    /// Returns the service of each database.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().map(|(_, service)| service)
    }

    /// Returns the services mutably, to change how each of them answers.
    pub fn services_mut(&mut self) -> impl Iterator<Item = &mut Service> {
        self.services.iter_mut().map(|(_, service)| service)
    }

    /// Returns the service of the only database.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are several databases.
    pub fn only(&self) -> Result<&Service> {
        match &self.services[..] {
            [(_, service)] => Ok(service),
            _ => Err(Error::Invalid(format!(
                "database: a function that receives messages must serve one database, but {IDS} names several"
            ))),
        }
    }

    /// Answers the payload of an invocation, as [`Service::answer`] does. `hooks` returns the hooks for the
    /// database of a name.
    ///
    /// With several databases, the payload's `database` names one of them. Without it, `drain`, `cleanup`,
    /// `stats`, `migrate` and `doctor` run on all of them, four at a time and the most urgent first. The
    /// answer's `databases` then holds a report for each.
    ///
    /// # Errors
    /// See [`Failure`]. On several databases, only when the request fails on every one; otherwise the answer
    /// says which failed.
    pub async fn answer(
        &self,
        mut payload: Value,
        time: Option<Duration>,
        hooks: impl Fn(Option<&str>) -> Hooks,
    ) -> Result<Value, Failure> {
        let (first_name, first) = &self.services[0];
        let database = match payload.as_object_mut() {
            Some(fields) if self.has_names => fields.remove("database"),
            _ => None,
        };
        let request = first.actions.request(payload)?;
        if !self.has_names {
            return first.answer(&request, time, hooks(None)).await;
        }
        match database {
            Some(Value::String(name)) => {
                let service = self.named(&name)?;
                service.answer(&request, time, hooks(Some(&name))).await
            }
            Some(_) => Err(self.refused("got no string").into()),
            None if self.services.len() == 1 => {
                first.answer(&request, time, hooks(Some(first_name))).await
            }
            None => self.of_all(&request, time, hooks).await,
        }
    }

    fn named(&self, name: &str) -> Result<&Service> {
        let found = self.services.iter().find(|(known, _)| known == name);
        let (_, service) = found.ok_or_else(|| self.refused(&format!("got {name:?}")))?;
        Ok(service)
    }

    fn refused(&self, what: &str) -> Error {
        let names: Vec<&str> = self.services.iter().map(|(name, _)| &**name).collect();
        let names = names.join(", ");
        Error::Invalid(format!("database: must be one of {names}; {what}"))
    }

    async fn of_all(
        &self,
        request: &Request,
        time: Option<Duration>,
        hooks: impl Fn(Option<&str>) -> Hooks,
    ) -> Result<Value, Failure> {
        let most = request.on_all(&self.services[0].1, time)?;
        let (action, budget) = most.ok_or_else(|| self.refused("this action needs one"))?;
        let budget = time.map_or(budget, |time| time.min(budget));
        let databases = self.services().map(|service| &service.database).collect();
        let answers = one_after_the_other(databases, budget, AT_ONCE, |at, part| {
            let (name, service) = &self.services[at];
            service.answer(request, Some(part), hooks(Some(name)))
        });
        self.together(action, answers.await)
    }

    /// Combines the answers of all databases into one.
    fn together(
        &self,
        action: &str,
        answers: Vec<(usize, Option<Result<Value, Failure>>)>,
    ) -> Result<Value, Failure> {
        let (mut entries, mut first) = (Vec::new(), None);
        let (mut failed, mut skipped, mut still_running) = (0, 0, 0);
        for (at, answer) in answers {
            let database = &self.services[at].0;
            entries.push(match answer {
                Some(Ok(report)) => {
                    still_running += report["still_running"].as_u64().unwrap_or(0);
                    json!({"database": database, "report": report})
                }
                Some(Err(failure)) => {
                    tracing::error!(database, error = %failure, "a database failed");
                    failed += 1;
                    if let Failure::Drain(error) = &failure {
                        still_running += error.report.still_running;
                    }
                    let entry = json!({"database": database, "error": failure.to_string()});
                    first.get_or_insert(failure);
                    entry
                }
                None => {
                    skipped += 1;
                    json!({"database": database, "skipped": true})
                }
            });
        }
        match first {
            Some(failure) if failed + skipped == entries.len() => Err(failure),
            _ => Ok(json!({
                "action": action, "databases": entries, "failed": failed, "skipped": skipped, "still_running": still_running,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    fn refusal(pairs: &'static [(&str, &str)]) -> String {
        one_of(&settings(pairs)).err().unwrap().to_string()
    }

    #[test]
    fn each_database_has_its_secret_and_its_name_in_the_metrics() {
        let lookup = settings(&[
            (IDS, "north=night/north, night/south"),
            (ONE, "north"),
            ("AWS_LAMBDA_FUNCTION_NAME", "drains"),
            ("TIDEGATE_BATCH", "7"),
        ]);
        let found = named(&lookup).unwrap().unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["north", "night/south"]);
        assert_eq!(one_of(&lookup).unwrap()("TIDEGATE_SCHEMA"), None);
        let one = one_of(&lookup).unwrap();
        assert_eq!(one("DATABASE_SECRET_ID").unwrap(), "night/north");
        assert_eq!(one("AWS_LAMBDA_FUNCTION_NAME").unwrap(), "drains");
        assert_eq!(one(ONE).unwrap(), "north");
        assert_eq!(
            (one(IDS), one("TIDEGATE_BATCH")),
            (None, Some("7".to_owned()))
        );
        let in_schemas = settings(&[
            (IDS, "n=#acme, #globex, night/east#initech"),
            (ONE, "globex"),
            ("DATABASE_URL", "postgres://h/d"),
        ]);
        assert!(one_of(&in_schemas).is_err(), "a secret beside the URL");
        let in_schemas = settings(&[
            (IDS, "n=#acme, #globex"),
            (ONE, "globex"),
            ("DATABASE_URL", "postgres://h/d"),
        ]);
        let one = one_of(&in_schemas).unwrap();
        assert_eq!(one("TIDEGATE_SCHEMA").unwrap(), "globex");
        assert_eq!(one("DATABASE_URL").unwrap(), "postgres://h/d");
        assert_eq!(one("DATABASE_SECRET_ID"), None);
        let of_secret = settings(&[(IDS, "night/east#initech"), (ONE, "initech")]);
        let one = one_of(&of_secret).unwrap();
        assert_eq!(one("DATABASE_SECRET_ID").unwrap(), "night/east");
        assert_eq!(one("TIDEGATE_SCHEMA").unwrap(), "initech");
        let alone = settings(&[("DATABASE_URL", "postgres://h/d")]);
        assert!(named(&alone).unwrap().is_none());
        assert!(one_of(&alone).unwrap()("DATABASE_URL").is_some());
    }

    #[test]
    fn an_arn_without_a_name_has_the_name_of_its_secret() {
        let arn = |secret: &str| format!("arn:aws:secretsmanager:eu-central-1:1:secret:{secret}");
        for (secret, name) in [
            ("night/north-AbCdEf", "night/north"),
            ("north-west-AbCdEf", "north-west"),
            ("rds!cluster-0a1b-AbCdEf", "rds!cluster-0a1b"),
            ("north", "north"),
            ("-AbCdEf", "-AbCdEf"),
        ] {
            assert_eq!(name_of(&arn(secret)), name);
        }
        for id in ["night/north-AbCdEf", "a:secret:b-AbCdEf"] {
            assert_eq!(name_of(id), id);
        }
        let list = format!("{}, south={}", arn("north-AbCdEf"), arn("x-AbCdEf"));
        let lookup = |name: &str| (name == IDS).then(|| list.clone());
        let found = named(&lookup).unwrap().unwrap();
        assert_eq!(found[0], ("north".to_owned(), arn("north-AbCdEf")));
        assert_eq!(found[1], ("south".to_owned(), arn("x-AbCdEf")));
    }

    #[test]
    fn lists_that_say_nothing_clear_are_refused_by_the_variables_name() {
        for (pairs, why) in [
            (&[(IDS, "a=1,,b=2")][..], "name=#schema, got \"\""),
            (&[(IDS, "a=1,a=2")], "names must differ, got \"a\" twice"),
            (&[(IDS, "=1")], "name=#schema, got \"=1\""),
            (
                &[(IDS, "a=1"), ("DATABASE_URL", "x")],
                "DATABASE_URL is set too",
            ),
            // Each would move it to its own time.
            (
                &[(IDS, "a=1,b=2"), (NEXT_TICK, "arn")],
                "TIDEGATE_NEXT_TICK is set too",
            ),
        ] {
            let refused = refusal(pairs);
            assert!(refused.contains(IDS) && refused.contains(why), "{refused}");
        }
        let refused = refusal(&[(IDS, "a=1,b=2"), (ONE, "c")]);
        assert!(
            refused.starts_with(ONE) || refused.contains("a, b; got \"c\""),
            "{refused}"
        );
        assert!(refusal(&[(IDS, "a=1,b=2")]).contains("it is not set"));
    }
}
