//! Owns the file that declares targets and kinds. It is read as a tree of values with their places, so all
//! faults are found at once, each with its line. It opens no socket.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate::config::parse_duration;
use tidegate::export::is_kind;
use tidegate::queue::{DeclaredKind, DeclaredTarget, Targets};
use tidegate::{DrainOptions, Policy};
use tidegate_targets::Address;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a file, or strange.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where, from 1.
    pub line: usize,
    /// What, beginning with the path of the value.
    pub text: String,
    /// Whether the file can be used all the same.
    pub is_warning: bool,
}

impl Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let warning = if self.is_warning { "warning: " } else { "" };
        write!(f, "{}: {warning}{}", self.line, self.text)
    }
}

/// Returns the faults as one line, for an error.
pub fn listed(faults: &[Fault]) -> String {
    let lines = faults.iter().map(|fault| format!("line {fault}"));
    lines.collect::<Vec<String>>().join("; ")
}

/// The type of an option of an address.
enum Of {
    Text,
    Flag,
    Codes,
    Kinds,
}

/// A way to call a target.
struct Way {
    /// The option that names the target.
    name: &'static str,
    /// The other options.
    options: &'static [(&'static str, Of)],
    /// The most events in one call.
    most: i64,
}

static WAYS: [Way; 4] = [
    Way {
        name: "lambda",
        options: &[
            ("source_arn", Of::Text),
            ("stops_at_first_failure", Of::Flag),
            ("no_error_text", Of::Flag),
        ],
        most: 1000,
    },
    Way {
        name: "https",
        options: &[
            ("secret", Of::Text),
            ("bearer", Of::Text),
            ("cloudevents", Of::Flag),
            ("reject", Of::Codes),
            ("follow_ups", Of::Kinds),
            ("source", Of::Text),
        ],
        most: 1000,
    },
    Way {
        name: "sqs",
        options: &[],
        most: 10,
    },
    Way {
        name: "eventbridge",
        options: &[("source", Of::Text)],
        most: 10,
    },
];

/// The options of every target.
const OF_TARGETS: [&str; 5] = ["batch", "within", "timeout", "limit", "per_second"];

/// The options of a kind.
const OF_KINDS: [&str; 8] = [
    "target",
    "targets",
    "attempts",
    "timeout",
    "backoff",
    "backoff_max",
    "give_up_after",
    "concurrency",
];

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_hours(24);

/// Reads a file for drains with these options. Returns what it declares, and what is strange.
///
/// # Errors
/// All faults, in the order of their lines; in a file that is not TOML, only why it is not.
pub fn read(text: &str, options: &DrainOptions) -> Result<(Targets, Vec<Fault>), Vec<Fault>> {
    let mut reader = Reader {
        text,
        options,
        faults: Vec::new(),
    };
    let (tree, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = error.span().map_or(text.len(), |span| span.start);
        let what = error.message().trim().replace('\n', ", ");
        reader.fault(at, format!("must be TOML: {what}"));
    }
    let mut targets = Targets::default();
    if errors.is_empty() {
        targets = reader.file(&Part {
            path: String::new(),
            at: 0,
            table: tree.get_ref(),
        });
    }
    reader.faults.sort_unstable();
    if reader.faults.iter().all(|fault| fault.is_warning) {
        return Ok((targets, reader.faults));
    }
    Err(reader.faults)
}

/// A table of the file.
struct Part<'t> {
    path: String,
    at: usize,
    table: &'t DeTable<'t>,
}

impl<'t> Part<'t> {
    /// Returns a value with its path.
    fn get(&self, name: &str) -> Option<(String, &'t Spanned<DeValue<'t>>)> {
        Some((self.path_of(name), self.table.get(name)?))
    }

    fn at(&self, name: &str) -> usize {
        self.table
            .get_key_value(name)
            .map_or(self.at, |(key, _)| key.span().start)
    }

    fn path_of(&self, name: &str) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let name = match name {
            "" => "\"\"".to_owned(),
            name if name.chars().all(is_bare) => name.to_owned(),
            name => format!("{name:?}"),
        };
        if self.path.is_empty() {
            return name;
        }
        format!("{}.{name}", self.path)
    }
}

/// What a target says about the calls to it.
#[derive(Clone, Copy)]
struct Calls {
    batch: Option<u16>,
    within: Option<Duration>,
    timeout: Option<Duration>,
}

struct Reader<'r> {
    text: &'r str,
    options: &'r DrainOptions,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, text: String) {
        let line = 1 + self.text[..at.min(self.text.len())].matches('\n').count();
        self.faults.push(Fault {
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

    /// Reports a value that is not as it must be.
    fn refuse(&mut self, path: &str, value: &Spanned<DeValue<'_>>, must: &str) {
        let got = self.text.get(value.span()).unwrap_or_default();
        let shown: String = got
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(60)
            .collect();
        let more = if shown.len() < got.len() { "…" } else { "" };
        let text = format!("{path}: must be {must}, got {shown}{more}");
        self.fault(value.span().start, text);
    }

    fn file(&mut self, file: &Part<'_>) -> Targets {
        self.known(file, &["targets", "kinds"]);
        let (mut targets, mut calls) = (BTreeMap::new(), BTreeMap::new());
        let declared = self.parts(file, "targets", None);
        for (name, part) in &declared {
            let is_name = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_');
            if name.is_empty() || name.len() > 90 || !name.chars().all(is_name) {
                let must = "must have 1 to 90 of a-z, 0-9, - and _ as its name";
                self.fault(part.at, format!("{}: {must}", part.path));
            }
            let (target, of) = self.target(part);
            targets.insert(name.clone(), target);
            calls.insert(name.clone(), of);
        }
        let mut kinds = BTreeMap::new();
        for (name, part) in self.parts(file, "kinds", Some(&mut kinds)) {
            let kind = self.kind(&name, &part, &calls);
            kinds.insert(name, kind);
        }
        if kinds.is_empty() {
            self.fault(0, "kinds: must name at least one kind, got none".to_owned());
        }
        for (name, part) in &declared {
            if !kinds.values().any(|kind| kind.targets.contains(name)) {
                self.warn(part.at, format!("{}: no kind names it", part.path));
            }
        }
        Targets { targets, kinds }
    }

    /// Returns the tables in a table. Where kinds are collected, the word `pull` stands for one.
    fn parts<'t>(
        &mut self,
        of: &Part<'t>,
        name: &str,
        mut pulled: Option<&mut BTreeMap<String, DeclaredKind>>,
    ) -> Vec<(String, Part<'t>)> {
        let Some((path, value)) = of.get(name) else {
            return Vec::new();
        };
        let DeValue::Table(table) = value.get_ref() else {
            self.refuse(&path, value, "a table");
            return Vec::new();
        };
        let all = Part {
            path,
            at: value.span().start,
            table,
        };
        let mut parts = Vec::new();
        for (key, value) in table {
            let (name, path) = (key.get_ref().to_string(), all.path_of(key.get_ref()));
            if pulled.is_some() && !is_kind(&name) {
                let must = "must have 1 to 100 of a-z, 0-9, _, . and - as its name";
                self.fault(key.span().start, format!("{path}: {must}"));
            }
            match (value.get_ref(), &mut pulled) {
                (DeValue::Table(table), _) => {
                    let at = key.span().start;
                    parts.push((name, Part { path, at, table }));
                }
                (DeValue::String(word), Some(pulled)) if word == "pull" => {
                    let policy = Policy::default();
                    let targets = Vec::new();
                    pulled.insert(name, DeclaredKind { targets, policy });
                }
                (_, Some(_)) => self.refuse(
                    &path,
                    value,
                    "a table such as { target = \"ship\" }, or \"pull\"",
                ),
                (_, None) => self.refuse(&path, value, "a table"),
            }
        }
        parts
    }

    /// Reports the options of a table that do not exist.
    fn known(&mut self, part: &Part<'_>, known: &[&str]) {
        for key in part
            .table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
        {
            let nearest = nearest(key.get_ref(), known.iter().copied());
            let text = format!(
                "{}: there is no such option{nearest}",
                part.path_of(key.get_ref())
            );
            self.fault(key.span().start, text);
        }
    }

    /// Reads an option.
    fn option<T>(
        &mut self,
        part: &Part<'_>,
        name: &str,
        must: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let (path, value) = part.get(name)?;
        let read = read(value.get_ref());
        if read.is_none() {
            self.refuse(&path, value, must);
        }
        read
    }

    fn whole<T: TryFrom<i64>>(
        &mut self,
        part: &Part<'_>,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let must = format!("a whole number of {} to {}", range.start(), range.end());
        self.option(part, name, &must, |value| {
            let number = whole(value).filter(|number| range.contains(number))?;
            T::try_from(number).ok()
        })
    }

    fn duration(
        &mut self,
        part: &Part<'_>,
        name: &str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let shown = |time: &Duration| match time.as_secs() / DAY.as_secs() {
            0 | 1 => humantime::format_duration(*time).to_string(),
            days => format!("{days}days"),
        };
        let (low, high) = (shown(range.start()), shown(range.end()));
        let must = format!("a duration such as \"500ms\", \"30s\" or \"5m\", of {low} to {high}");
        self.option(part, name, &must, |value| {
            let time = parse_duration(value.as_str()?).ok()?;
            range.contains(&time).then_some(time)
        })
    }

    /// Reads how long a handler may run.
    fn timeout(&mut self, part: &Part<'_>) -> Option<Duration> {
        let lease = self.options.lease_timeout;
        let limit = lease.mul_f64(0.9);
        let time = self.duration(part, "timeout", MILLISECOND..=Duration::from_mins(15))?;
        if time <= limit {
            return Some(time);
        }
        if let Some((path, value)) = part.get("timeout") {
            let must = format!(
                "at most {limit:?}, nine tenths of a lease of {lease:?} (TIDEGATE_LEASE_TIMEOUT)"
            );
            self.refuse(&path, value, &must);
        }
        None
    }

    fn target(&mut self, part: &Part<'_>) -> (DeclaredTarget, Calls) {
        let is_named = |way: &&Way| part.table.contains_key(way.name);
        let ways: Vec<&Way> = WAYS.iter().filter(is_named).collect();
        let options = |way: &Way| {
            let others = way.options.iter().map(|(option, _)| *option);
            others.chain([way.name]).collect::<Vec<&str>>()
        };
        let of_ways: Vec<&str> = if ways.is_empty() {
            WAYS.iter().flat_map(options).collect()
        } else {
            ways.iter().copied().flat_map(options).collect()
        };
        self.known(part, &[&OF_TARGETS[..], &of_ways].concat());
        let address = match &ways[..] {
            [way] => self.address(part, way),
            several => {
                let names: Vec<&str> = several.iter().map(|way| way.name).collect();
                let text = match &names[..] {
                    [] => {
                        "must have one of lambda, https, sqs and eventbridge, got none".to_owned()
                    }
                    names => format!("has {}; name one", names.join(" and ")),
                };
                self.fault(part.at, format!("{}: {text}", part.path));
                Value::Null
            }
        };
        let proves = |name: &str| part.table.contains_key(name);
        if proves("https") && !proves("secret") && !proves("bearer") {
            let text = "has no secret and no bearer, so it cannot know who calls";
            self.warn(part.at, format!("{}: {text}", part.path));
        }
        let most = ways.iter().map(|way| way.most).min().unwrap_or(1000);
        let calls = Calls {
            batch: self.whole(part, "batch", 1..=most),
            within: self.duration(part, "within", Duration::ZERO..=Duration::from_mins(1)),
            timeout: self.timeout(part),
        };
        if part.table.contains_key("within") && !part.table.contains_key("batch") {
            let text = format!("{}: must be given with batch alone", part.path_of("within"));
            self.fault(part.at("within"), text);
        }
        let rate = |value: &DeValue<'_>| {
            let whole = whole(value).and_then(|number| i32::try_from(number).ok());
            let float = value
                .as_float()
                .and_then(|text| f64::from_str(text.as_str()).ok());
            let rate = whole.map(f64::from).or(float)?;
            (0.0001..=10_000.0).contains(&rate).then_some(rate)
        };
        let target = DeclaredTarget {
            address,
            limit: self.whole(part, "limit", 1..=10_000),
            per_second: self.option(part, "per_second", "a number of 0.0001 to 10000", rate),
        };
        (target, calls)
    }

    /// Reads and checks the address of a target.
    fn address(&mut self, part: &Part<'_>, way: &Way) -> Value {
        let before = self.faults.len();
        let mut fields = Map::new();
        for (option, of) in [(way.name, Of::Text)].iter().chain(way.options) {
            let must = match of {
                Of::Text => "a text",
                Of::Flag => "true or false",
                Of::Codes => "a list of status codes, such as [409]",
                Of::Kinds => "a list of kinds, such as [\"paid\"]",
            };
            let value = self.option(part, option, must, |value| match (of, value) {
                (Of::Text, DeValue::String(text)) => Some(json!(text)),
                (Of::Flag, DeValue::Boolean(flag)) => Some(json!(flag)),
                (Of::Codes, DeValue::Array(all)) => {
                    let codes = all
                        .iter()
                        .map(|code| u16::try_from(whole(code.get_ref())?).ok());
                    Some(json!(codes.collect::<Option<Vec<u16>>>()?))
                }
                (Of::Kinds, DeValue::Array(all)) => {
                    let kinds = all.iter().map(|kind| kind.get_ref().as_str());
                    Some(json!(kinds.collect::<Option<Vec<&str>>>()?))
                }
                _ => None,
            });
            fields.extend(value.map(|value| ((*option).to_owned(), value)));
        }
        if self.faults.len() > before {
            return Value::Null;
        }
        let address = serde_json::from_value::<Address>(Value::Object(fields));
        let address = address.map_err(|error| error.to_string());
        let checked = address.and_then(|address| address.check().map(|()| address));
        match checked {
            Ok(address) => json!(address),
            Err(faults) => {
                for fault in faults.lines() {
                    let field = fault.split(':').next().unwrap_or_default();
                    self.fault(part.at(field), format!("{}.{fault}", part.path));
                }
                Value::Null
            }
        }
    }

    fn kind(
        &mut self,
        name: &str,
        part: &Part<'_>,
        calls: &BTreeMap<String, Calls>,
    ) -> DeclaredKind {
        self.known(part, &OF_KINDS);
        let targets = self.targets_of(part, calls);
        let mut policy = Policy::default();
        if let Some(attempts) = self.whole(part, "attempts", 1..=1000) {
            policy = policy.attempts(attempts);
        }
        let usual = self.options.handler_timeout;
        let called: Vec<Calls> = targets
            .iter()
            .filter_map(|name| calls.get(name).copied())
            .collect();
        let of_targets = called.iter().any(|calls| calls.timeout.is_some()).then(|| {
            let times = called.iter().map(|calls| calls.timeout.unwrap_or(usual));
            times.max().unwrap_or(usual)
        });
        if let Some(limit) = self.timeout(part).or(of_targets) {
            policy = policy.handler_timeout(limit);
        }
        let base = self.duration(part, "backoff", MILLISECOND..=DAY);
        let max = self.duration(part, "backoff_max", MILLISECOND..=DAY);
        let usual = self.options.retry;
        if let (Some(base), Some(max)) = (base, max)
            && base > max
        {
            let text = format!("{}: must be at least backoff", part.path_of("backoff_max"));
            self.fault(part.at("backoff_max"), text);
        }
        if base.or(max).is_some() {
            let max = max.unwrap_or_else(|| usual.max.max(base.unwrap_or_default()));
            policy = policy.backoff(base.unwrap_or_else(|| usual.base.min(max)), max);
        }
        if let Some(limit) =
            self.duration(part, "give_up_after", Duration::from_secs(1)..=DAY * 3660)
        {
            policy = policy.give_up_after(limit);
        }
        if let Some(events) = self.whole(part, "concurrency", 1..=10_000) {
            if name.chars().count() > 95 {
                let text = "must not be given for a kind of more than 95 characters";
                self.fault(part.at, format!("{}: {text}", part.path_of("concurrency")));
            }
            policy = policy.concurrency(events);
        }
        // Where a target takes one event a call, its kinds have no batch.
        let batches: Option<Vec<u16>> = called.iter().map(|calls| calls.batch).collect();
        if let Some(batch) = batches.and_then(|batches| batches.into_iter().min()) {
            let within = called.iter().filter_map(|calls| calls.within).min();
            policy = policy.batch(batch, within.unwrap_or(Duration::from_millis(100)));
        }
        DeclaredKind { targets, policy }
    }

    /// Reads the names of the targets of a kind.
    fn targets_of(&mut self, part: &Part<'_>, calls: &BTreeMap<String, Calls>) -> Vec<String> {
        let one = part
            .table
            .get("target")
            .map(|one| ("target".to_owned(), vec![one]));
        let several = part.get("targets").map(|(path, all)| match all.get_ref() {
            DeValue::Array(names) if !names.is_empty() => (path, names.iter().collect()),
            _ => {
                self.refuse(&path, all, "a list of names of targets");
                (path, Vec::new())
            }
        });
        let (path, named) = match (one, several) {
            (Some((path, named)), None) => (part.path_of(&path), named),
            (None, Some(several)) => several,
            (one, _) => {
                let got = if one.is_some() { "both" } else { "none" };
                let text = format!("{}: must have target or targets, got {got}", part.path);
                self.fault(part.at, text);
                return Vec::new();
            }
        };
        let mut targets = Vec::new();
        for value in named {
            let Some(name) = value.get_ref().as_str() else {
                self.refuse(&path, value, "the name of a target");
                continue;
            };
            if !calls.contains_key(name) {
                let nearest = nearest(name, calls.keys().map(String::as_str));
                let text = format!("{path}: no target {name:?}{nearest}");
                self.fault(value.span().start, text);
            } else if targets.iter().any(|known| known == name) {
                self.fault(value.span().start, format!("{path}: names {name:?} twice"));
            }
            targets.push(name.to_owned());
        }
        targets
    }
}

fn whole(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Returns a question for the known name that is most like this one, if one is.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    let nearest = known.min_by_key(distance);
    let nearest = nearest.filter(|known| distance(known) <= 2.max(known.len() / 3));
    nearest.map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}
