//! Owns the file that declares targets and kinds. Each table is read as a type, and checked with what other
//! tables say, so a fault of each is found at once, with its line. It opens no socket.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::{Value, json};
use tidegate::config::parse_duration;
use tidegate::{DrainOptions, Policy};
use tidegate_core::event::is_kind;
use tidegate_core::queue::{DeclaredKind, DeclaredTarget, Targets};
use tidegate_targets::Address;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// What is wrong with a file, or strange.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileFault {
    /// Where, from 1.
    pub line: usize,
    /// What, beginning with the path of the value.
    pub text: String,
    /// Whether the file can be used all the same.
    pub is_warning: bool,
}

impl Display for FileFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let warning = if self.is_warning { "warning: " } else { "" };
        write!(f, "{}: {warning}{}", self.line, self.text)
    }
}

/// Returns the faults as one line, for an error.
pub fn listed(faults: &[FileFault]) -> String {
    let lines = faults.iter().map(|fault| format!("line {fault}"));
    lines.collect::<Vec<String>>().join("; ")
}

/// The ways to call a target, each with the option that names it and the most events in one call.
const WAYS: [(&str, u16); 4] = [
    ("lambda", 1000),
    ("https", 1000),
    ("sqs", 10),
    ("eventbridge", 10),
];

/// The options of every target; the others are of its address.
const OF_CALLS: [&str; 5] = ["batch", "within", "timeout", "limit", "per_second"];

/// What a target says about the calls to it.
#[derive(Deserialize, Clone, Copy, Default)]
#[serde(deny_unknown_fields)]
struct CallOptions {
    batch: Option<WholeNumber<1, 1000>>,
    within: Option<Time<0, MINUTE>>,
    timeout: Option<Time<1, { 15 * MINUTE }>>,
    limit: Option<WholeNumber<1, 10_000>>,
    per_second: Option<Rate>,
}

/// What a kind says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KindOptions {
    target: Option<String>,
    targets: Option<Vec<String>>,
    attempts: Option<WholeNumber<1, 1000>>,
    timeout: Option<Time<1, { 15 * MINUTE }>>,
    backoff: Option<Time<1, DAY>>,
    backoff_max: Option<Time<1, DAY>>,
    give_up_after: Option<Time<1000, { 3660 * DAY }>>,
    concurrency: Option<WholeNumber<1, 10_000>>,
}

/// In milliseconds.
const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// A whole number.
#[derive(Clone, Copy)]
struct WholeNumber<const LOW: u16, const HIGH: u16>(u16);

impl<'de, const LOW: u16, const HIGH: u16> Deserialize<'de> for WholeNumber<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        one_of(
            from,
            &format!("a whole number of {LOW} to {HIGH}"),
            |value| {
                let number = value.as_u64()?.try_into().ok()?;
                (LOW..=HIGH).contains(&number).then_some(Self(number))
            },
        )
    }
}

/// A duration of so many milliseconds.
#[derive(Clone, Copy)]
struct Time<const LOW: u64, const HIGH: u64>(Duration);

impl<'de, const LOW: u64, const HIGH: u64> Deserialize<'de> for Time<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let shown = |time: u64| match time / DAY {
            0 | 1 => humantime::format_duration(Duration::from_millis(time)).to_string(),
            days => format!("{days}days"),
        };
        let (low, high) = (shown(LOW), shown(HIGH));
        let must = format!("a duration such as \"500ms\", \"30s\" or \"5m\", of {low} to {high}");
        one_of(from, &must, |value| {
            let time = parse_duration(value.as_str()?).ok()?;
            let range = Duration::from_millis(LOW)..=Duration::from_millis(HIGH);
            range.contains(&time).then_some(Self(time))
        })
    }
}

/// How many a second.
#[derive(Clone, Copy)]
struct Rate(f64);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        one_of(from, "a number of 0.0001 to 10000", |value| {
            let rate = value.as_f64()?;
            (0.0001..=10_000.0).contains(&rate).then_some(Self(rate))
        })
    }
}

fn one_of<'de, D: Deserializer<'de>, T>(
    from: D,
    must: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    read(&value).ok_or_else(|| D::Error::custom(format!("must be {must}, got {value}")))
}

/// Reads a file for drains with these options. Returns what it declares, and what is strange.
///
/// # Errors
/// A fault of each table, in the order of their lines; in a file that is not TOML, only why it is not.
pub fn read(
    text: &str,
    options: &DrainOptions,
) -> Result<(Targets, Vec<FileFault>), Vec<FileFault>> {
    let mut reader = Reader {
        text,
        options,
        faults: Vec::new(),
    };
    let targets = match DeTable::parse(text) {
        Ok(tree) => reader.file(tree.get_ref()),
        Err(error) => {
            let at = error.span().map_or(text.len(), |span| span.start);
            let what = error.message().trim().replace('\n', ", ");
            reader.fault(at, format!("must be TOML: {what}"));
            Targets::default()
        }
    };
    reader.faults.sort_unstable();
    if reader.faults.iter().all(|fault| fault.is_warning) {
        return Ok((targets, reader.faults));
    }
    Err(reader.faults)
}

/// A table of a target or a kind.
struct Part<'t> {
    name: &'t str,
    path: String,
    at: usize,
    table: &'t DeTable<'t>,
}

impl Part<'_> {
    fn has(&self, option: &str) -> bool {
        self.table.contains_key(option)
    }
}

fn path_of(within: &str, name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !name.is_empty() && name.chars().all(is_bare) {
        return format!("{within}.{name}");
    }
    format!("{within}.{name:?}")
}

struct Reader<'r> {
    text: &'r str,
    options: &'r DrainOptions,
    faults: Vec<FileFault>,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, text: String) {
        let line = 1 + self.text[..at.min(self.text.len())].matches('\n').count();
        self.faults.push(FileFault {
            line,
            text,
            is_warning: false,
        });
    }

    fn warn(&mut self, at: usize, text: String) {
        self.fault(at, text);
        if let Some(fault) = self.faults.last_mut() {
            fault.is_warning = true;
        }
    }

    /// Reports what is wrong with an option of a table, or with the table itself.
    fn refuse(&mut self, part: &Part<'_>, option: &str, why: &str) {
        let (at, path) = match part.table.get_key_value(option) {
            Some((key, _)) => (key.span().start, path_of(&part.path, option)),
            None => (part.at, part.path.clone()),
        };
        self.fault(at, format!("{path}: {why}"));
    }

    fn file(&mut self, file: &DeTable<'_>) -> Targets {
        let is_known = |name: &str| ["targets", "kinds"].contains(&name);
        for key in file.keys().filter(|key| !is_known(key.get_ref())) {
            let text = format!("{}: must be targets or kinds", key.get_ref());
            self.fault(key.span().start, text);
        }
        let (mut targets, mut calls) = (BTreeMap::new(), BTreeMap::new());
        let (declared, _) = self.parts(file, "targets");
        for part in &declared {
            let is_name = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_');
            if !(1..=90).contains(&part.name.len()) || !part.name.chars().all(is_name) {
                self.refuse(
                    part,
                    "",
                    "must have 1 to 90 of a-z, 0-9, - and _ as its name",
                );
            }
            let (target, of) = self.target(part);
            targets.insert(part.name.to_owned(), target);
            calls.insert(part.name, of);
        }
        let (of_targets, pulled) = self.parts(file, "kinds");
        let mut kinds: BTreeMap<String, DeclaredKind> = BTreeMap::new();
        for part in of_targets {
            let kind = self.kind(&part, &calls);
            kinds.insert(part.name.to_owned(), kind);
        }
        for name in pulled {
            let (targets, policy) = (Vec::new(), Policy::default());
            kinds.insert(name, DeclaredKind { targets, policy });
        }
        if kinds.is_empty() {
            self.fault(0, "kinds: must name at least one kind, got none".to_owned());
        }
        for part in &declared {
            let is_named = |kind: &DeclaredKind| kind.targets.iter().any(|name| name == part.name);
            if !kinds.values().any(is_named) {
                self.warn(part.at, format!("{}: no kind names it", part.path));
            }
        }
        Targets { targets, kinds }
    }

    /// Returns the tables in a table, and the names of the kinds that are only pulled.
    fn parts<'t>(
        &mut self,
        file: &'t DeTable<'t>,
        of: &'static str,
    ) -> (Vec<Part<'t>>, Vec<String>) {
        let (mut parts, mut pulled) = (Vec::new(), Vec::new());
        let Some(value) = file.get(of) else {
            return (parts, pulled);
        };
        let DeValue::Table(table) = value.get_ref() else {
            self.fault(value.span().start, format!("{of}: must be a table"));
            return (parts, pulled);
        };
        let is_kinds = of == "kinds";
        for (key, value) in table {
            let (name, at) = (&**key.get_ref(), key.span().start);
            let path = path_of(of, name);
            if is_kinds && !is_kind(name) {
                let must = "must have 1 to 100 of a-z, 0-9, _, . and - as its name";
                self.fault(at, format!("{path}: {must}"));
            }
            match value.get_ref() {
                DeValue::Table(table) => parts.push(Part {
                    name,
                    path,
                    at,
                    table,
                }),
                DeValue::String(word) if is_kinds && word == "pull" => {
                    pulled.push(name.to_owned());
                }
                _ if is_kinds => {
                    let must = "must be a table such as { target = \"ship\" }, or \"pull\"";
                    self.fault(at, format!("{path}: {must}"));
                }
                _ => self.fault(at, format!("{path}: must be a table")),
            }
        }
        (parts, pulled)
    }

    /// Reads options of a table as a type. `elsewhere` are those that the table may have besides.
    fn options<T: DeserializeOwned>(&mut self, part: &Part<'_>, elsewhere: &[&str]) -> Option<T> {
        let is_here = |option: &str| !elsewhere.contains(&option);
        let all = part.table.iter().filter(|(key, _)| is_here(key.get_ref()));
        let all = all.map(|(key, value)| (key.clone(), value.clone()));
        let table = DeValue::Table(all.collect());
        let read = T::deserialize(ValueDeserializer::from(Spanned::new(0..0, table)));
        read.map_err(|error| {
            let at = error.span().unwrap_or_default();
            let holds = |span: std::ops::Range<usize>| span.start <= at.start && at.end <= span.end;
            let mut options = part.table.iter();
            let option = options.find(|(key, value)| holds(key.span()) || holds(value.span()));
            let is_unknown = option.is_some_and(|(key, _)| holds(key.span()));
            let others = elsewhere.iter().filter(|_| is_unknown);
            let others: Vec<String> = others.map(|other| format!(", `{other}`")).collect();
            let option = option.map_or("", |(key, _)| key.get_ref());
            self.refuse(
                part,
                option,
                &format!("{}{}", error.message(), others.concat()),
            );
        })
        .ok()
    }

    /// Reports a time limit that is too long for a lease.
    fn within_lease(&mut self, part: &Part<'_>, timeout: Option<Duration>) -> Option<Duration> {
        let lease = self.options.lease_timeout;
        let limit = lease.mul_f64(0.9);
        if timeout.is_some_and(|time| time > limit) {
            let why = format!(
                "must be at most {limit:?}, nine tenths of a lease of {lease:?} (TIDEGATE_LEASE_TIMEOUT)"
            );
            self.refuse(part, "timeout", &why);
        }
        timeout
    }

    fn target(&mut self, part: &Part<'_>) -> (DeclaredTarget, CallOptions) {
        let names = part.table.keys().map(|key| &**key.get_ref());
        let of_address: Vec<&str> = names.filter(|name| !OF_CALLS.contains(name)).collect();
        let calls: CallOptions = self.options(part, &of_address).unwrap_or_default();
        self.within_lease(part, calls.timeout.map(|time| time.0));
        if part.has("within") && !part.has("batch") {
            self.refuse(part, "within", "must be given with batch alone");
        }
        let mut address = Value::Null;
        let ways: Vec<(&str, u16)> = WAYS.into_iter().filter(|way| part.has(way.0)).collect();
        if let [(way, most)] = ways[..] {
            if let Some(WholeNumber(batch)) = calls.batch.filter(|batch| batch.0 > most) {
                let why = format!("must be a whole number of 1 to {most}, got {batch}");
                self.refuse(part, "batch", &why);
            }
            address = self
                .address(part, way)
                .map_or(address, |address| json!(address));
        } else {
            let names: Vec<&str> = ways.iter().map(|way| way.0).collect();
            let got = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(" and ")
            };
            let why = format!("must have one of lambda, https, sqs and eventbridge, got {got}");
            self.refuse(part, "", &why);
        }
        if part.has("https") && !part.has("secret") && !part.has("bearer") {
            let text = "has no secret and no bearer, so it cannot know who calls";
            self.warn(part.at, format!("{}: {text}", part.path));
        }
        let target = DeclaredTarget {
            address,
            limit: calls.limit.map(|limit| limit.0.into()),
            per_second: calls.per_second.map(|rate| rate.0),
        };
        (target, calls)
    }

    /// Reads and checks the address of a target.
    fn address(&mut self, part: &Part<'_>, way: &str) -> Option<Address> {
        let address = match way {
            "lambda" => Address::Lambda(self.options(part, &OF_CALLS)?),
            "https" => Address::Https(self.options(part, &OF_CALLS)?),
            "sqs" => Address::Sqs(self.options(part, &OF_CALLS)?),
            _ => Address::EventBridge(self.options(part, &OF_CALLS)?),
        };
        let faults = address.check().err().unwrap_or_default();
        for fault in faults.lines() {
            let (option, why) = fault.split_once(": ").unwrap_or(("", fault));
            self.refuse(part, option, why);
        }
        Some(address)
    }

    fn kind(&mut self, part: &Part<'_>, calls: &BTreeMap<&str, CallOptions>) -> DeclaredKind {
        let Some(kind) = self.options::<KindOptions>(part, &[]) else {
            let (targets, policy) = (Vec::new(), Policy::default());
            return DeclaredKind { targets, policy };
        };
        let mut policy = Policy::default();
        if let Some(WholeNumber(attempts)) = kind.attempts {
            policy = policy.attempts(attempts);
        }
        let time = kind.timeout.map(|time| time.0);
        let time = self.within_lease(part, time);
        let targets = self.targets_of(part, kind.target, kind.targets, calls);
        let called = targets.iter().filter_map(|name| calls.get(&**name));
        let called: Vec<&CallOptions> = called.collect();
        let usual = self.options.handler_timeout;
        let times = || called.iter().map(|calls| calls.timeout.map(|time| time.0));
        let longest = times().map(|time| time.unwrap_or(usual)).max();
        if let Some(limit) = time.or(longest.filter(|_| times().any(|time| time.is_some()))) {
            policy = policy.handler_timeout(limit);
        }
        let (base, max) = (
            kind.backoff.map(|time| time.0),
            kind.backoff_max.map(|time| time.0),
        );
        let usual = self.options.retry;
        if base.zip(max).is_some_and(|(base, max)| base > max) {
            self.refuse(part, "backoff_max", "must be at least backoff");
        }
        if base.or(max).is_some() {
            let max = max.unwrap_or_else(|| usual.max.max(base.unwrap_or_default()));
            policy = policy.backoff(base.unwrap_or_else(|| usual.base.min(max)), max);
        }
        if let Some(Time(limit)) = kind.give_up_after {
            policy = policy.give_up_after(limit);
        }
        if let Some(WholeNumber(events)) = kind.concurrency {
            if part.name.chars().count() > 95 {
                let why = "must not be given for a kind of more than 95 characters";
                self.refuse(part, "concurrency", why);
            }
            policy = policy.concurrency(events.into());
        }
        // Where a target takes one event a call, its kinds have no batch.
        let batches = called.iter().map(|calls| calls.batch.map(|batch| batch.0));
        if let Some(batch) = batches.min().flatten() {
            let within = called
                .iter()
                .filter_map(|calls| calls.within)
                .map(|time| time.0)
                .min();
            policy = policy.batch(batch, within.unwrap_or(Duration::from_millis(100)));
        }
        DeclaredKind { targets, policy }
    }

    /// Checks the names of the targets of a kind.
    fn targets_of(
        &mut self,
        part: &Part<'_>,
        one: Option<String>,
        several: Option<Vec<String>>,
        calls: &BTreeMap<&str, CallOptions>,
    ) -> Vec<String> {
        let (option, names) = match (one, several) {
            (Some(name), None) => ("target", vec![name]),
            (None, Some(names)) if !names.is_empty() => ("targets", names),
            (one, _) => {
                let got = if one.is_some() { "both" } else { "none" };
                self.refuse(part, "", &format!("must have target or targets, got {got}"));
                return Vec::new();
            }
        };
        for (at, name) in names.iter().enumerate() {
            if !calls.contains_key(&**name) {
                self.refuse(
                    part,
                    option,
                    &format!("must be a target of the file, got {name:?}"),
                );
            } else if names[..at].contains(name) {
                self.refuse(
                    part,
                    option,
                    &format!("must name a target once, got {name:?} twice"),
                );
            }
        }
        names
    }
}
