//! Owns the verdict: a pure function from the records of processes and the final contents of the database to
//! the list of broken promises. It queries nothing and knows no experiment.
//!
//! The keys in their payloads identify the events of a run. So if the answer to a publish was lost, the
//! checker can still tell whether the event exists once or not at all.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::journal::{Left, Record, Told, Verdict};
use crate::leases;

/// Everything that is known about a finished run.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub journals: Vec<Left>,
    /// Rows of the queue and the log, including rows that the cleanup has removed.
    pub rows: Vec<Row>,
    /// All changes of leases and of their events, in order.
    pub takings: Vec<Taking>,
    pub departures: Vec<Departure>,
    pub charges: Vec<Charge>,
    pub endings: Vec<Ending>,
    /// How often the database was checked under load, and violations seen, each with the invariant.
    pub looks: u64,
    pub seen: Vec<(String, String)>,
    /// Rows that handlers wrote in their own transactions.
    pub effects: Vec<Effect>,
    /// The number of events that operations reported as replayed.
    pub replays: u64,
    /// Events that an operator took away from their worker.
    pub requeued: BTreeSet<i64>,
    /// Whether the run had enough time to end all events.
    pub drained: bool,
    /// Lines of program logs with contents that no log may contain.
    pub leaks: Vec<String>,
}

impl History {
    /// Attempts of an event whose handlers ended but whose end could not be written. Their results are kept,
    /// so the next worker starts no handler.
    pub fn kept_attempts(&self, id: i64) -> impl Iterator<Item = u32> {
        let of_event = self.charges.iter().filter(move |charge| charge.id == id);
        let kept = of_event.filter(|charge| {
            let code = charge.error_code.as_deref();
            matches!(code, Some("unwritable" | "group_busy"))
        });
        kept.filter_map(|charge| charge.error_attempt)
    }
}

/// Where a row was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    Queue,
    Log,
    /// It was in the log, and the cleanup removed it.
    Removed,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub id: i64,
    pub place: Place,
    pub kind: String,
    pub key: Option<String>,
    pub group_key: Option<String>,
    pub status: String,
    pub attempts: u32,
    pub max_attempts: u32,
    /// The code of the last error.
    pub code: Option<String>,
    /// The attempts that the end of a run interrupted, so that they start again.
    pub cuts: Vec<u32>,
    /// The attempt whose handler returned the result.
    pub result_attempt: Option<u32>,
    /// It was ended without a lease, by the cleanup or an operator.
    pub without_lease: bool,
    pub replay_of: Option<i64>,
    /// It was removed before its retention was over.
    pub removed_early: bool,
}

/// An event entered a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Taking {
    /// The process that sent the statement.
    pub by: String,
    pub token: String,
    /// The run that owns the lease.
    pub worker: String,
    pub id: i64,
    /// The attempt that could start. `None` for an event that is given up.
    pub attempt: Option<u32>,
    /// The nearest earlier live event of its group, and the attempt of that event that could start.
    pub ahead: Option<i64>,
    pub ahead_attempt: Option<u32>,
    /// Whether that event was in the same worker's hands, or there was none.
    pub together: bool,
}

/// An event left a lease without having ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Departure {
    /// The process that sent the statement. Empty for an operator.
    pub by: String,
    pub transaction: u64,
    pub token: String,
    /// The run that owned the lease.
    pub worker: String,
    pub id: i64,
    /// Whether its handler may have started under that lease.
    pub started: bool,
    /// Whether a lease of that worker had expired.
    pub expired: bool,
}

/// An attempt, a lapse or an error was written to a live event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Charge {
    pub by: String,
    pub transaction: u64,
    pub id: i64,
    pub attempts_were: u32,
    pub attempts: u32,
    pub lapses_were: u32,
    pub lapses: u32,
    /// The attempt and the code in an error that was written with it.
    pub error_attempt: Option<u32>,
    pub error_code: Option<String>,
}

impl Charge {
    /// Whether it is for a worker that died.
    pub fn is_lapse(&self) -> bool {
        self.lapses > self.lapses_were
    }
}

/// The state in which an event left the queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ending {
    pub id: i64,
    /// Whether a lease held it, expired or not.
    pub leased: bool,
    pub attempts: u32,
    pub max_attempts: u32,
    /// Whether its deadline had passed.
    pub late: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Effect {
    pub id: i64,
    pub attempt: u32,
}

/// The kind whose handler works in `Context::transaction`.
pub const KEPT: &str = "kept";

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub text: String,
}

impl Violation {
    pub fn new(invariant: &'static str, text: String) -> Self {
        Self { invariant, text }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "violation of {}: {}", self.invariant, self.text)
    }
}

/// The start of a handler, as its process recorded it.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    pub at: u64,
    pub process: &'a str,
    pub attempt: u32,
    pub key: &'a str,
    /// When and how it first recorded its end.
    pub end: Option<(u64, Verdict)>,
}

impl Start<'_> {
    /// Whether the event may have kept the attempt, so that the attempt starts again.
    fn keeps_attempt(&self) -> bool {
        matches!(self.end, Some((_, Verdict::Unavailable)))
    }
}

/// The records about one publish.
pub struct Publish<'a> {
    pub events: &'a [Told],
    pub tried: u64,
    pub outcome: Outcome<'a>,
}

pub enum Outcome<'a> {
    Acknowledged { at: u64, ids: &'a [i64] },
    Refused,
    Unknown,
}

/// Returns every promise that the run broke.
pub fn check(history: &History) -> Vec<Violation> {
    let starts = starts(&history.journals);
    let publishes = publishes(&history.journals);
    let mut found = Findings(Vec::new());
    found.publishes(history, &publishes);
    found.starts(history, &publishes, &starts);
    found.attempts(history, &starts);
    found.order(history, &publishes, &starts);
    found.stale_tokens(history);
    found.holders(history, &starts);
    found.0.extend(leases::violations(history, &starts));
    found.seen(history);
    found.operators(history);
    found.end(history);
    found.effects(history);
    found.reports(history);
    for line in &history.leaks {
        found.add("I9", format!("a log tells what it must not: {line}"));
    }
    found.0
}

/// Returns the starts of each event, ordered by time.
pub fn starts(journals: &[Left]) -> BTreeMap<i64, Vec<Start<'_>>> {
    let mut starts: BTreeMap<i64, Vec<Start<'_>>> = BTreeMap::new();
    for journal in journals {
        for line in &journal.lines {
            match &line.record {
                Record::Started { id, attempt, key } => {
                    starts.entry(*id).or_default().push(Start {
                        at: line.at,
                        process: &journal.name,
                        attempt: *attempt,
                        key,
                        end: None,
                    });
                }
                Record::Ended {
                    id,
                    attempt,
                    verdict,
                } => {
                    let of_event = starts.get_mut(id).into_iter().flatten();
                    let open = of_event
                        .rev()
                        .find(|start| start.process == journal.name && start.attempt == *attempt);
                    if let Some(start) = open {
                        // A failed commit turns a finished attempt into a retry. The time stays.
                        let at = start.end.map_or(line.at, |(at, _)| at);
                        start.end = Some((at, *verdict));
                    }
                }
                _ => {}
            }
        }
    }
    for of_event in starts.values_mut() {
        of_event.sort_by_key(|start| start.at);
    }
    starts
}

/// Returns every publish that was tried.
pub fn publishes(journals: &[Left]) -> BTreeMap<&str, Publish<'_>> {
    let mut publishes = BTreeMap::new();
    for line in journals.iter().flat_map(|journal| &journal.lines) {
        match &line.record {
            Record::Trying { publish, events } => {
                let new = Publish {
                    events,
                    tried: line.at,
                    outcome: Outcome::Unknown,
                };
                publishes.insert(publish.as_str(), new);
            }
            Record::Acknowledged { publish, ids } => {
                if let Some(known) = publishes.get_mut(publish.as_str()) {
                    known.outcome = Outcome::Acknowledged { at: line.at, ids };
                }
            }
            Record::Refused { publish, .. } => {
                if let Some(known) = publishes.get_mut(publish.as_str()) {
                    known.outcome = Outcome::Refused;
                }
            }
            _ => {}
        }
    }
    publishes
}

struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, invariant: &'static str, text: String) {
        self.0.push(Violation::new(invariant, text));
    }

    /// I1: an acknowledged event is in one place, a refused one in none, and an unknown one in one or none. A
    /// batch is there completely or not at all.
    fn publishes(&mut self, history: &History, publishes: &BTreeMap<&str, Publish<'_>>) {
        let mut places: HashMap<&str, Vec<&Row>> = HashMap::new();
        for row in history.rows.iter().filter(|row| row.replay_of.is_none()) {
            if let Some(key) = &row.key {
                places.entry(key).or_default().push(row);
            }
        }
        for (name, publish) in publishes {
            let mut there = 0;
            for (position, told) in publish.events.iter().enumerate() {
                let rows = places.remove(told.key.as_str()).unwrap_or_default();
                there += usize::from(!rows.is_empty());
                self.places(&rows, told, &publish.outcome, position);
            }
            if there != 0 && there != publish.events.len() {
                let all = publish.events.len();
                let text = format!("publish {name}: {there} of {all} events are there");
                self.add("I1", text);
            }
        }
        for key in places.keys() {
            let text = format!("nobody published {key}, which is in the database");
            self.add("I2", text);
        }
        let mut seen = HashSet::new();
        for row in &history.rows {
            if !seen.insert(row.id) {
                self.add("I1", format!("event {} is in two places", row.id));
            }
        }
    }

    fn places(&mut self, rows: &[&Row], told: &Told, outcome: &Outcome<'_>, position: usize) {
        let key = &told.key;
        let count = rows.len();
        match outcome {
            Outcome::Acknowledged { ids, .. } => {
                let id = ids.get(position);
                if count == 0 {
                    let text = format!("event {id:?} ({key}) was acknowledged and is lost");
                    self.add("I1", text);
                } else if count > 1 {
                    self.add("I1", format!("event {id:?} ({key}) is in {count} places"));
                } else if Some(&rows[0].id) != id {
                    let found = rows[0].id;
                    let text = format!("{key} was acknowledged as {id:?} and is {found}");
                    self.add("I1", text);
                }
            }
            Outcome::Refused if count > 0 => {
                self.add("I1", format!("{key} was refused and is in {count} places"));
            }
            Outcome::Unknown if count > 1 => {
                let text = format!("{key}, of unknown outcome, is in {count} places");
                self.add("I1", text);
            }
            Outcome::Refused | Outcome::Unknown => {}
        }
    }

    /// I2: no handler starts for an event that was never published.
    fn starts(
        &mut self,
        history: &History,
        publishes: &BTreeMap<&str, Publish<'_>>,
        starts: &BTreeMap<i64, Vec<Start<'_>>>,
    ) {
        let mut ids_of: HashMap<&str, Option<i64>> = HashMap::new();
        for publish in publishes.values() {
            for (position, told) in publish.events.iter().enumerate() {
                let id = match publish.outcome {
                    Outcome::Acknowledged { ids, .. } => ids.get(position).copied(),
                    Outcome::Unknown => None,
                    Outcome::Refused => continue,
                };
                ids_of.insert(&told.key, id);
            }
        }
        let rows: HashMap<i64, &Row> = history.rows.iter().map(|row| (row.id, row)).collect();
        for (id, of_event) in starts {
            let key = of_event[0].key;
            let is_replay = rows.get(id).is_some_and(|row| row.replay_of.is_some());
            match ids_of.get(key) {
                None => self.add(
                    "I2",
                    format!("event {id} ({key}) started and was never published"),
                ),
                Some(Some(known)) if known != id && !is_replay => {
                    let text = format!("{key} was published as {known} and started as {id}");
                    self.add("I2", text);
                }
                Some(_) if !rows.contains_key(id) => {
                    self.add("I1", format!("event {id} ({key}) started and is nowhere"));
                }
                Some(_) => {}
            }
        }
    }

    /// I3: an event has no more attempts than allowed, and no start without an attempt.
    fn attempts(&mut self, history: &History, starts: &BTreeMap<i64, Vec<Start<'_>>>) {
        for row in &history.rows {
            let (id, attempts, max) = (row.id, row.attempts, row.max_attempts);
            if attempts > max {
                self.add("I3", format!("event {id} had {attempts} attempts of {max}"));
            }
            let of_event = starts.get(&id).into_iter().flatten();
            let started = of_event.filter(|start| !start.keeps_attempt()).count();
            if started > attempts as usize + row.cuts.len() {
                let text =
                    format!("event {id} counts {attempts} attempts and started {started} times");
                self.add("I3", text);
            }
        }
    }

    /// I4: the ids of a group follow its commits. An event is leased and started only if the earlier ones are
    /// over, or belong to the same process and have ended there.
    fn order(
        &mut self,
        history: &History,
        publishes: &BTreeMap<&str, Publish<'_>>,
        starts: &BTreeMap<i64, Vec<Start<'_>>>,
    ) {
        self.commit_order(publishes);
        let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &history.rows {
            if let Some(group) = &row.group_key {
                groups.entry(group).or_default().push(row);
            }
        }
        let thawed = thawed(&history.journals);
        for (group, mut rows) in groups {
            rows.sort_by_key(|row| row.id);
            let mut ahead: Vec<Work<'_>> = Vec::new();
            for row in rows {
                let of_event = starts.get(&row.id).map_or(&[][..], Vec::as_slice);
                let Some(first) = of_event.iter().find(|start| !start.is_stale(&thawed)) else {
                    continue;
                };
                for earlier in ahead.iter().filter(|earlier| earlier.forbids(first)) {
                    let (id, other) = (row.id, earlier.id);
                    let text = format!("group {group}: event {id} started before {other} was over");
                    self.add("I4", text);
                }
                ahead.push(Work::of(row, of_event, history.requeued.contains(&row.id)));
            }
        }
    }

    /// If a publish was acknowledged before another one was tried, it has the lower id.
    fn commit_order(&mut self, publishes: &BTreeMap<&str, Publish<'_>>) {
        let mut groups: BTreeMap<&str, Vec<(i64, u64, u64)>> = BTreeMap::new();
        for publish in publishes.values() {
            if let Outcome::Acknowledged { at, ids } = publish.outcome {
                for (told, id) in publish.events.iter().zip(ids) {
                    if let Some(group) = &told.group {
                        groups
                            .entry(group)
                            .or_default()
                            .push((*id, publish.tried, at));
                    }
                }
            }
        }
        for (group, mut published) in groups {
            published.sort_unstable();
            let mut tried_last = (0, 0);
            for (id, tried, acknowledged) in published {
                if acknowledged < tried_last.0 {
                    let earlier = tried_last.1;
                    let text =
                        format!("group {group}: {id} was committed before {earlier} was tried");
                    self.add("I4", text);
                }
                tried_last = tried_last.max((tried, id));
            }
        }
    }

    /// I5: every stored end has the token of the lease that held the event at that time.
    fn stale_tokens(&mut self, history: &History) {
        for row in history.rows.iter().filter(|row| row.place != Place::Queue) {
            if let Some(told) = row.result_attempt
                && told != row.attempts
                && !history.kept_attempts(row.id).any(|kept| kept == told)
            {
                let (id, attempts) = (row.id, row.attempts);
                let text = format!(
                    "event {id} ended in attempt {attempts} with the result of attempt {told}"
                );
                self.add("I5", text);
            }
        }
    }

    /// I6: an attempt belongs to one process, except for an attempt that ended because a service did not
    /// answer, or because its run ended.
    fn holders(&mut self, history: &History, starts: &BTreeMap<i64, Vec<Start<'_>>>) {
        let cuts = history.rows.iter().map(|row| (row.id, &*row.cuts));
        let cuts: HashMap<i64, &[u32]> = cuts.collect();
        for (id, of_event) in starts {
            let mut holders = HashMap::new();
            let cuts = cuts.get(id).copied().unwrap_or_default();
            // A handler that blocks its thread ends after its run.
            let keeps = |start: &Start<'_>| start.keeps_attempt() || cuts.contains(&start.attempt);
            for start in of_event.iter().filter(|start| !keeps(start)) {
                if let Some(other) = holders.insert(start.attempt, start.process) {
                    let (attempt, process) = (start.attempt, start.process);
                    self.add("I6", format!("attempt {attempt} of event {id} was started by {other} and by {process}"));
                }
            }
        }
    }

    /// I7: the cleanup ends only events that are over and removes only rows that have expired, and a replay
    /// is of a finished event.
    fn operators(&mut self, history: &History) {
        let ended_unheard: BTreeSet<i64> = history
            .rows
            .iter()
            .filter(|row| row.without_lease && row.place != Place::Queue)
            .filter(|row| matches!(row.code.as_deref(), Some("abandoned" | "expired")))
            .map(|row| row.id)
            .collect();
        for ending in &history.endings {
            let id = ending.id;
            if !ended_unheard.contains(&id) {
                continue;
            }
            if ending.leased {
                let text = format!("the cleanup ended event {id}, which was in a lease");
                self.add("I7", text);
            }
            if ending.attempts < ending.max_attempts && !ending.late {
                let text = format!("the cleanup ended event {id}, which had attempts left");
                self.add("I7", text);
            }
        }
        for row in history.rows.iter().filter(|row| row.removed_early) {
            let text = format!("event {} was removed before its time", row.id);
            self.add("I7", text);
        }
        let rows: HashMap<i64, &Row> = history.rows.iter().map(|row| (row.id, row)).collect();
        let replays: Vec<&Row> = history
            .rows
            .iter()
            .filter(|row| row.replay_of.is_some())
            .collect();
        for replay in &replays {
            let original = replay.replay_of.and_then(|id| rows.get(&id));
            if original.is_none_or(|row| row.place == Place::Queue || row.id >= replay.id) {
                let text = format!(
                    "event {} replays {:?}, which has not ended",
                    replay.id, replay.replay_of
                );
                self.add("I7", text);
            }
        }
        if replays.len() as u64 != history.replays {
            let text = format!(
                "{} replays are there, {} were recorded",
                replays.len(),
                history.replays
            );
            self.add("I7", text);
        }
    }

    /// I4, I6, J: a check of the database must never see this.
    fn seen(&mut self, history: &History) {
        for (invariant, text) in &history.seen {
            let name = ["I4", "I6"].into_iter().find(|name| name == invariant);
            self.add(name.unwrap_or("J"), format!("seen under load: {text}"));
        }
    }

    /// I8: all events have ended.
    fn end(&mut self, history: &History) {
        for row in history.rows.iter().filter(|row| row.place == Place::Queue) {
            if history.drained {
                let (id, status, attempts) = (row.id, &row.status, row.attempts);
                let text = format!("event {id} has not ended: {status}, attempt {attempts}");
                self.add("I8", text);
            }
        }
    }

    /// Rows that a handler wrote in its own transaction exist once, if and only if its event succeeded.
    fn effects(&mut self, history: &History) {
        let mut effects: HashMap<i64, Vec<u32>> = HashMap::new();
        for effect in &history.effects {
            effects.entry(effect.id).or_default().push(effect.attempt);
        }
        for row in history.rows.iter().filter(|row| row.kind == KEPT) {
            let there = effects.remove(&row.id).unwrap_or_default();
            let expected = if row.status == "COMPLETED" {
                vec![row.attempts]
            } else {
                Vec::new()
            };
            if there != expected {
                let (id, status) = (row.id, &row.status);
                let text = format!(
                    "event {id}, {status}, has effects of attempts {there:?}, not {expected:?}"
                );
                self.add("effects", text);
            }
        }
        for id in effects.keys() {
            let text = format!("an effect is there of event {id}, which is not");
            self.add("effects", text);
        }
    }

    /// Every drain accounts for the events it leased, and every process ends when it is asked to.
    fn reports(&mut self, history: &History) {
        for journal in &history.journals {
            for line in &journal.lines {
                match &line.record {
                    Record::Reported { report } if !report.is_balanced() => {
                        let name = &journal.name;
                        self.add("report", format!("{name} does not add up: {report:?}"));
                    }
                    Record::Straggled { process } => {
                        self.add("I8", format!("{process} did not end when it was asked to"));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// When an event was being handled, as far as its workers could know.
struct Work<'a> {
    id: i64,
    /// The processes that ended it finally, and when.
    ended: Vec<(&'a str, u64)>,
    first: u64,
    /// From each start to its final end, or to the next start if there was no end.
    busy: Vec<(u64, u64)>,
}

impl<'a> Work<'a> {
    fn of(row: &Row, of_event: &[Start<'a>], requeued: bool) -> Self {
        let id = row.id;
        if requeued {
            // If an operator takes an event away, its worker learns this at the end of the handler, and may
            // have started the next event by then.
            return Self {
                id,
                ended: Vec::new(),
                first: 0,
                busy: Vec::new(),
            };
        }
        let busy = |start: &Start<'_>| {
            let next = of_event
                .iter()
                .filter(|other| other.attempt > start.attempt);
            let until = match (start.end, next.map(|other| other.at).min()) {
                // The end came after the event was given up, so the lease was lost too.
                (Some(_), None) if matches!(row.code.as_deref(), Some("abandoned" | "expired")) => {
                    start.at
                }
                // The end came after another worker had begun, so the lease was lost.
                (Some((at, Verdict::Done | Verdict::Reject)), next) => at.min(next.unwrap_or(at)),
                (_, Some(next)) => next,
                // No start was needed: the attempts were used up, perhaps by deaths before the start.
                (_, None) if row.place != Place::Queue => start.at,
                (_, None) => u64::MAX,
            };
            (start.at, until)
        };
        let ended = of_event.iter().filter_map(|start| match start.end {
            Some((at, Verdict::Done | Verdict::Reject)) => Some((start.process, at)),
            _ => None,
        });
        Self {
            id,
            ended: ended.collect(),
            first: of_event[0].at,
            busy: of_event.iter().map(busy).collect(),
        }
    }

    /// Whether no later event of the group may start like this for the first time. A worker that has ended
    /// this event may continue. If another worker has the event in the meantime, after a lapse, the first
    /// worker learns this only when it writes the end.
    fn forbids(&self, start: &Start<'_>) -> bool {
        let ended_itself =
            |(process, at): &(&str, u64)| *process == start.process && *at <= start.at;
        let busy = |(from, until): &(u64, u64)| (*from..*until).contains(&start.at);
        start.at < self.first || self.busy.iter().any(busy) && !self.ended.iter().any(ended_itself)
    }
}

impl Start<'_> {
    /// Whether its process was just thawed, and decided to start before it was frozen.
    fn is_stale(&self, thawed: &HashMap<&str, Vec<u64>>) -> bool {
        let times = thawed.get(self.process).map_or(&[][..], Vec::as_slice);
        times
            .iter()
            .any(|time| (*time..*time + STALE_NS).contains(&self.at))
    }
}

/// A thawed process finishes what it had decided within this time.
const STALE_NS: u64 = 500_000_000;

/// Returns when each process was thawed.
fn thawed(journals: &[Left]) -> HashMap<&str, Vec<u64>> {
    let mut thawed: HashMap<&str, Vec<u64>> = HashMap::new();
    for line in journals.iter().flat_map(|journal| &journal.lines) {
        if let Record::Thawed { process } = &line.record {
            thawed.entry(process).or_default().push(line.at);
        }
    }
    thawed
}
