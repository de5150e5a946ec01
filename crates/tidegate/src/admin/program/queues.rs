//! Owns one program for several queues, such as tenants', each a database's or a schema's. It finds the queue
//! that a request is for, and takes them one after the other if the request is for all. The queue's service
//! does the work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::super::Request;
use super::queue_list::{self, Entry, LIST, QUERY};
use super::turns::{Turn, Turns, by_urgency, look_at_all};
use super::{Failure, NEXT_TICK, Program, Service};
use crate::config::Lookup;
use crate::connect::Database;
use crate::drain::{DrainReport, Hooks};
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::queue::Look;

/// The variable that selects the queue of a program that works on one of several.
const ONE: &str = "TIDEGATE_QUEUE";

/// The longest time to read the list of queues.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// What the place of a queue depends on, besides the id of its secret.
const PLACE: [&str; 7] = [
    "DATABASE_HOST",
    "DATABASE_PORT",
    "DATABASE_NAME",
    "DATABASE_AUTH",
    "DATABASE_CA_FILE",
    "DATABASE_CA_PEM",
    "TIDEGATE_SCHEMA",
];

/// A queue's service, and its name in the list.
type Named = (Entry, Arc<Service>);

/// A program with its settings, for one queue or for several.
pub struct Queues {
    source: Source,
    /// The queue that `TIDEGATE_QUEUE` names.
    chosen: Option<String>,
    /// The service of a queue but for its place.
    template: Service,
    places: Places,
    known: Mutex<Arc<[Named]>>,
}

/// Where the list of queues comes from.
enum Source {
    /// There is no list: the settings name one queue.
    One,
    Settings,
    Query(String),
}

/// The databases that queues are in. Queues with the same login share it.
struct Places {
    settings: BTreeMap<&'static str, String>,
    usual: Option<Database>,
    by_secret: Mutex<BTreeMap<String, Database>>,
    pool: usize,
}

impl Places {
    fn new(lookup: Lookup<'_>, usual: Option<Database>, pool: usize) -> Self {
        let settings = PLACE
            .into_iter()
            .filter_map(|name| Some((name, lookup(name)?)));
        Self {
            settings: settings.collect(),
            usual,
            by_secret: Mutex::default(),
            pool,
        }
    }

    fn of(&self, entry: &Entry) -> Result<Database> {
        let database = match &entry.secret {
            Some(secret) => self.of_secret(secret)?,
            None => self.usual.clone().ok_or_else(|| {
                let text = format!("{LIST}: DATABASE_URL or DATABASE_SECRET_ID must be set");
                Error::Config(text)
            })?,
        };
        match &entry.schema {
            Some(schema) => database.with_schema(schema.clone()),
            None => Ok(database),
        }
    }

    fn of_secret(&self, secret: &str) -> Result<Database> {
        let mut known = self
            .by_secret
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = known.get(secret) {
            return Ok(database.clone());
        }
        let lookup = |name: &str| match name {
            "DATABASE_SECRET_ID" => Some(secret.to_owned()),
            _ => self.settings.get(name).cloned(),
        };
        let database = Database::from_settings(&lookup, self.pool)?;
        known.insert(secret.to_owned(), database.clone());
        Ok(database)
    }
}

impl Program {
    /// Like [`Program::start`], but for all queues that `TIDEGATE_QUEUES` or `TIDEGATE_QUEUES_QUERY` names.
    /// If neither is set, for the one that the other settings name.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn queues(self, lookup: Lookup<'_>) -> Result<Queues> {
        let listed = queue_list::of_settings(lookup)?;
        let source = match (&listed, lookup(QUERY)) {
            (Some(_), Some(_)) => {
                return Err(Error::Config(format!(
                    "{LIST} and {QUERY} are both set; set only one of them"
                )));
            }
            (Some(_), None) => Source::Settings,
            (None, Some(query)) => Source::Query(query),
            (None, None) => Source::One,
        };
        if !matches!(source, Source::One) && lookup(NEXT_TICK).is_some() {
            return Err(Error::Config(format!(
                "{NEXT_TICK}: must not be set for several queues"
            )));
        }
        let handlers = self.handling(lookup)?;
        let size = Program::pool_of(lookup)?;
        let has_usual = ["DATABASE_URL", "DATABASE_SECRET_ID"].map(|name| lookup(name).is_some());
        let usual = match &listed {
            Some(_) if has_usual == [false, false] => None,
            _ => Some(Database::from_settings(lookup, size)?),
        };
        let places = Places::new(lookup, usual.clone(), size);
        let first = match (&listed, usual) {
            (Some(entries), _) => places.of(&entries[0])?,
            (None, Some(usual)) => usual,
            (None, None) => Database::from_settings(lookup, size)?,
        };
        let template = Arc::new(self).serve(lookup, handlers, first)?;
        let mut queues = Queues {
            source,
            chosen: lookup(ONE),
            template,
            places,
            known: Mutex::new([].into()),
        };
        queues.know(listed)?;
        Ok(queues)
    }
}

impl Queues {
    /// Knows these queues from now on.
    fn know(&mut self, listed: Option<Vec<Entry>>) -> Result<()> {
        let known = match (&self.source, listed) {
            (Source::One, _) => {
                let (name, secret, schema) = (String::new(), None, None);
                let only = Entry {
                    name,
                    secret,
                    schema,
                };
                [(only, Arc::new(self.template.clone()))].into()
            }
            (_, listed) => self.served(listed.unwrap_or_default())?,
        };
        self.known = Mutex::new(known);
        Ok(())
    }

    /// Returns the services of these queues. A queue that is where it was keeps its service.
    fn served(&self, entries: Vec<Entry>) -> Result<Arc<[Named]>> {
        let known = self.known();
        let known: BTreeMap<&str, &Named> =
            known.iter().map(|named| (&*named.0.name, named)).collect();
        let services = entries.into_iter().map(|entry| {
            if let Some((of, service)) = known.get(&*entry.name)
                && *of == entry
            {
                return Ok((entry, service.clone()));
            }
            let mut service = self.template.clone();
            service.database = self.places.of(&entry)?;
            if let Some(metrics) = &mut service.metrics {
                metrics.queue_name = Some(entry.name.clone());
            }
            Ok((entry, Arc::new(service)))
        });
        services.collect()
    }

    fn known(&self) -> Arc<[Named]> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Returns the queues as they are now. If the query for them fails, as they were before, unless nothing
    /// is known.
    async fn all(&self) -> Result<Arc<[Named]>> {
        let Source::Query(query) = &self.source else {
            return Ok(self.known());
        };
        match self.asked(query).await {
            Ok(all) => {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                *known = all.clone();
                Ok(all)
            }
            Err(error) => {
                let known = self.known();
                if known.is_empty() {
                    return Err(error);
                }
                tracing::error!(%error, "the list of queues could not be read; it is taken as it was");
                Ok(known)
            }
        }
    }

    async fn asked(&self, query: &str) -> Result<Arc<[Named]>> {
        let reading = async {
            let client = self.template.database.connect().await?;
            let rows = client.query_typed(query, &[]).await;
            rows.map_err(Error::at(QUERY))
        };
        let rows = Error::within("read the list of queues", LIST_LIMIT, reading).await?;
        let entries = queue_list::of_rows(&rows)?;
        if entries.is_empty() {
            let text = format!("{QUERY}: must return a row for each queue, got none");
            return Err(Error::Config(text));
        }
        self.served(entries)
    }

    /// Whether there is a list, so that requests can name a queue.
    pub fn are_listed(&self) -> bool {
        !matches!(self.source, Source::One)
    }

    /// Returns the service of each queue that is known by now. Those of a query are not, before the first
    /// request.
    pub fn services(&self) -> Vec<Arc<Service>> {
        let known = self.known();
        known.iter().map(|(_, service)| service.clone()).collect()
    }

    /// The queue that `TIDEGATE_QUEUE` of the settings names.
    pub fn chosen(&self) -> Option<&str> {
        self.chosen.as_deref()
    }

    /// What all services have in common.
    pub fn common(&self) -> &Service {
        &self.template
    }

    /// Sends each line of metrics to this function.
    #[must_use]
    pub fn with_metrics_to(mut self, to: fn(&str)) -> Self {
        self.template.metrics_to = to;
        let known = self.known();
        let known = known.iter().map(|(entry, service)| {
            let service = Service {
                metrics_to: to,
                ..(**service).clone()
            };
            (entry.clone(), Arc::new(service))
        });
        self.known = Mutex::new(known.collect());
        self
    }

    /// Returns the service of the queue with this name. Without one, of the queue that `TIDEGATE_QUEUE` of
    /// the settings names, or else of the only one.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such queue, or when one must be named.
    pub async fn one(&self, name: Option<&str>) -> Result<Arc<Service>> {
        let all = self.all().await?;
        match (name.or(self.chosen.as_deref()), &*all) {
            (None, [(_, service)]) => Ok(service.clone()),
            (Some(name), _) if self.are_listed() => named(&all, name),
            (Some(name), _) => Err(Error::Invalid(format!(
                "queue: must not be given without {LIST} or {QUERY}, got {name:?}"
            ))),
            (None, _) => Err(refused(&all, "this needs one")),
        }
    }

    /// Whether a request may be for several queues.
    ///
    /// # Errors
    /// When the query for the list fails.
    pub async fn are_several(&self) -> Result<bool> {
        Ok(self.are_listed() && self.all().await?.len() > 1)
    }

    /// Looks at all queues, and returns the name of each with what it shows: first the oldest events, then
    /// queues without events, then those that do not answer.
    ///
    /// # Errors
    /// When the query for the list fails.
    pub async fn look(&self) -> Result<Vec<(String, Option<Look>)>> {
        let all = self.all().await?;
        let databases: Vec<_> = all.iter().map(|(_, service)| &service.database).collect();
        let looks = look_at_all(&databases).await;
        let order = by_urgency(&looks).into_iter();
        Ok(order
            .map(|at| (all[at].0.name.clone(), looks[at]))
            .collect())
    }

    /// Answers the payload of an invocation, as [`Service::answer`] does. `hooks` returns the hooks for the
    /// queue of a name.
    ///
    /// With several queues, the payload's `queue` names one of them. Without it, `drain`, `cleanup`, `stats`,
    /// `migrate` and `doctor` run on all of them, four at a time and the most urgent first. The answer's
    /// `queues` then holds a report for each. A drain passes over the queues that need none, and counts them
    /// as `idle`.
    ///
    /// # Errors
    /// See [`Failure`]. On several queues, only when the request fails on every one; otherwise the answer
    /// says which failed.
    pub async fn answer(
        &self,
        mut payload: Value,
        time: Option<Duration>,
        hooks: impl Fn(Option<&str>) -> Hooks,
    ) -> Result<Value, Failure> {
        let named_queue = match payload.as_object_mut() {
            Some(fields) if self.are_listed() => fields.remove("queue"),
            _ => None,
        };
        let request = self.template.actions.request(payload)?;
        let all = self.all().await?;
        match (named_queue, &*all) {
            (Some(Value::String(name)), _) => {
                let service = named(&all, &name)?;
                service.answer(&request, time, hooks(Some(&name))).await
            }
            (Some(_), _) => Err(refused(&all, "got no string").into()),
            (None, [(entry, service)]) => {
                let name = self.are_listed().then_some(&*entry.name);
                service.answer(&request, time, hooks(name)).await
            }
            (None, _) => {
                let hooks = &hooks;
                let (action, turns) = self
                    .each(&request, time, |name, service, part| {
                        let request = &request;
                        async move {
                            service
                                .answer(request, Some(part), hooks(Some(&name)))
                                .await
                        }
                    })
                    .await?;
                together(action, turns, |failure| match failure {
                    Failure::Drain(error) => error.report.still_running,
                    Failure::Other(_) => 0,
                })
            }
        }
    }

    /// Does `work` for each queue, four at a time and the most urgent first, with its share of the time.
    /// Returns the request's action, and what became of each queue. The queues to which a drain has nothing
    /// to do are not worked on.
    ///
    /// # Errors
    /// [`Error::Invalid`] when this request needs one queue; when the query for the list fails.
    pub async fn each<T, F>(
        &self,
        request: &Request,
        time: Option<Duration>,
        work: impl Fn(String, Arc<Service>, Duration) -> F,
    ) -> Result<(&'static str, Vec<(String, Turn<T>)>)>
    where
        F: Future<Output = T>,
    {
        let all = self.all().await?;
        let most = request.on_all(&self.template, time)?;
        let (action, budget) = most.ok_or_else(|| refused(&all, "this action needs one"))?;
        let turns = Turns {
            databases: all.iter().map(|(_, service)| &service.database).collect(),
            budget: time.map_or(budget, |time| time.min(budget)),
            only_needed: matches!(request, Request::Drain(_)),
        };
        let turns = turns.take(|at, part| {
            let (entry, service) = &all[at];
            work(entry.name.clone(), service.clone(), part)
        });
        let turns = turns.await;
        self.tell_idle(&turns);
        let name = |(at, turn): (usize, _)| (all[at].0.name.clone(), turn);
        Ok((action, turns.into_iter().map(name).collect()))
    }

    /// Reports the queues without work in one line, so that the alarms see that somebody looked.
    fn tell_idle<T>(&self, turns: &[(usize, Turn<T>)]) {
        let (mut count, mut report) = (0, DrainReport::default());
        for (_, turn) in turns {
            if let Turn::Idle {
                events,
                oldest_age_ms,
            } = turn
            {
                count += 1;
                report.backlog = report.backlog.max(*events);
                report.oldest_age_ms = report.oldest_age_ms.max(*oldest_age_ms);
            }
        }
        if let (1.., Some(metrics)) = (count, &self.template.metrics) {
            let lines = metrics.of_drain(&report, &Figures::default(), true, SystemTime::now());
            for line in lines {
                (self.template.metrics_to)(&line);
            }
        }
    }
}

fn named(all: &[Named], name: &str) -> Result<Arc<Service>> {
    let found = all.iter().find(|(entry, _)| entry.name == name);
    let (_, service) = found.ok_or_else(|| refused(all, &format!("got {name:?}")))?;
    Ok(service.clone())
}

/// The most names that an error tells.
const MOST_TOLD: usize = 20;

fn refused(all: &[Named], what: &str) -> Error {
    let mut names: Vec<&str> = all.iter().map(|(entry, _)| &*entry.name).collect();
    let more = names.len().saturating_sub(MOST_TOLD);
    names.truncate(MOST_TOLD);
    let names = names.join(", ");
    let names = match more {
        0 => names,
        more => format!("{names} and {more} more"),
    };
    Error::Invalid(format!("queue: must be one of {names}; {what}"))
}

/// Combines the answers of all queues into one document. `still_running` returns how many handlers a failed
/// drain has left.
///
/// # Errors
/// The first failure, if no queue has succeeded.
pub fn together<E: std::fmt::Display>(
    action: &str,
    turns: Vec<(String, Turn<Result<Value, E>>)>,
    still_running: impl Fn(&E) -> u64,
) -> Result<Value, E> {
    let (mut entries, mut first) = (Vec::new(), None);
    let (mut failed, mut skipped, mut idle, mut left) = (0, 0, 0, 0);
    for (queue, turn) in turns {
        entries.push(match turn {
            Turn::Done(Ok(report)) => {
                left += report["still_running"].as_u64().unwrap_or(0);
                json!({"queue": queue, "report": report})
            }
            Turn::Done(Err(failure)) => {
                tracing::error!(queue, error = %failure, "a queue failed");
                failed += 1;
                left += still_running(&failure);
                let entry = json!({"queue": queue, "error": failure.to_string()});
                first.get_or_insert(failure);
                entry
            }
            Turn::Skipped => {
                skipped += 1;
                json!({"queue": queue, "skipped": true})
            }
            Turn::Idle { .. } => {
                idle += 1;
                continue;
            }
        });
    }
    match first {
        Some(failure) if failed + skipped == entries.len() && idle == 0 => Err(failure),
        _ => Ok(json!({
            "action": action, "queues": entries, "failed": failed, "skipped": skipped, "idle": idle, "still_running": left,
        })),
    }
}
