//! Owns the definition of a measurement: the values of one variant over the rounds, its baseline, and its
//! target. It measures nothing itself, except for CPU time.
//!
//! Variants are compared round by round. All variants are measured one after the other in each round, because
//! the speed of a shared machine changes from one minute to the next. Absolute figures tell more about the
//! machine than about the program.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// An error from any part of the bench.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One variant of a workload, measured once per round.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub unit: &'static str,
    pub values: Vec<f64>,
    /// The variant that this one is compared with.
    pub against: Option<String>,
    pub target: Option<Target>,
}

/// The target of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At least this ratio to its baseline.
    Ratio(f64),
    /// At most this median.
    AtMost(f64),
}

/// Whether a target was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Reached,
    Missed,
}

/// All results of a workload.
#[derive(Debug, Default)]
pub struct Findings {
    pub series: Vec<Series>,
    pub notes: Vec<String>,
}

impl Findings {
    /// Adds the value of a round to a variant. Variants appear in the order of their first values.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        let name = name.into();
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.values.push(value),
            None => self.series.push(Series {
                name,
                unit,
                values: vec![value],
                against: None,
                target: None,
            }),
        }
    }

    /// Compares a variant with another one, for information only.
    pub fn compare(&mut self, name: &str, against: &str) {
        self.with(name, |series| series.against = Some(against.to_owned()));
    }

    /// Requires at least `ratio` times another variant.
    pub fn at_least(&mut self, name: &str, ratio: f64, against: &str) {
        self.with(name, |series| {
            series.against = Some(against.to_owned());
            series.target = Some(Target::Ratio(ratio));
        });
    }

    /// Requires at most `limit`, in the unit of the series.
    pub fn at_most(&mut self, name: &str, limit: f64) {
        self.with(name, |series| series.target = Some(Target::AtMost(limit)));
    }

    /// Adds a note for the reader. Repeated notes appear once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn with(&mut self, name: &str, change: impl FnOnce(&mut Series)) {
        let found = self.series.iter_mut().find(|series| series.name == name);
        if let Some(series) = found {
            change(series);
        }
    }

    /// Returns the median of the ratios of a series to its baseline, each from one round. `None` without a
    /// baseline.
    pub fn ratio(&self, series: &Series) -> Option<f64> {
        let against = series.against.as_ref()?;
        let other = self.series.iter().find(|other| other.name == *against)?;
        let rounds = series.values.iter().zip(&other.values);
        let ratios = rounds.filter(|(_, other)| **other > 0.0);
        let ratios: Vec<f64> = ratios.map(|(value, other)| value / other).collect();
        (!ratios.is_empty()).then(|| percentile(&ratios, 50))
    }

    /// Returns whether a series reaches its target, or `None` without a target.
    pub fn verdict(&self, series: &Series) -> Option<Verdict> {
        let reached = match series.target? {
            // A ratio is judged as it is printed.
            Target::Ratio(least) => (self.ratio(series)? * 100.0).round() >= least * 100.0,
            Target::AtMost(limit) => series.median() <= limit,
        };
        Some(if reached {
            Verdict::Reached
        } else {
            Verdict::Missed
        })
    }

    /// Returns each value as a line of CSV.
    pub fn lines(&self, workload: &str) -> String {
        let mut lines = String::new();
        for series in &self.series {
            let (name, unit) = (series.name.replace('"', "\"\""), series.unit);
            for (round, value) in (1..).zip(&series.values) {
                // Writing to a string cannot fail.
                let _ = writeln!(lines, "{workload},\"{name}\",{unit},{round},{value}");
            }
        }
        lines
    }

    /// Returns the results as JSON, for programs.
    pub fn document(&self) -> Value {
        let series: Vec<Value> = self
            .series
            .iter()
            .map(|series| {
                let (least, most) = series.range();
                let (ratio, at_most) = match series.target {
                    Some(Target::Ratio(ratio)) => (Some(ratio), None),
                    Some(Target::AtMost(limit)) => (None, Some(limit)),
                    None => (None, None),
                };
                json!({"name": series.name, "unit": series.unit, "median": series.median(), "min": least,
                       "max": most, "values": series.values, "compared_with": series.against,
                       "ratio": self.ratio(series), "target_ratio": ratio, "target_at_most": at_most,
                       "verdict": self.verdict(series)})
            })
            .collect();
        json!({"series": series, "notes": self.notes})
    }
}

impl Series {
    pub fn median(&self) -> f64 {
        percentile(&self.values, 50)
    }

    /// Returns the minimum and the maximum.
    pub fn range(&self) -> (f64, f64) {
        (percentile(&self.values, 0), percentile(&self.values, 100))
    }
}

/// Returns the value that this share of the values does not exceed. A median between two values is their
/// mean.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    if percent == 50 && sorted.len().is_multiple_of(2) {
        return f64::midpoint(sorted[last / 2], sorted[last / 2 + 1]);
    }
    sorted[(last * percent).div_ceil(100)]
}

/// Returns the rate per second.
pub fn rate(count: u32, time: Duration) -> f64 {
    f64::from(count) / time.as_secs_f64()
}

/// Returns the CPU time that this process has used so far, in user and in system mode, with a resolution of
/// 10 ms.
pub fn cpu_time() -> Outcome<Duration> {
    Ok(Account::read("self")?.own)
}

/// Returns the same of all processes of a Postgres on this machine, one of which has this id.
pub fn cpu_time_of_server(process: i32) -> Outcome<Duration> {
    let postmaster = Account::read(&process.to_string())?.parent;
    let mut all = Account::read(&postmaster)?;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        // One that has ended since is the postmaster's account.
        if let Ok(account) = Account::read(&name.to_string_lossy())
            && account.parent == postmaster
        {
            all.own += account.own;
        }
    }
    Ok(all.own + all.ended)
}

/// What the kernel says of a process.
struct Account {
    parent: String,
    own: Duration,
    /// Of its children that have ended.
    ended: Duration,
}

impl Account {
    fn read(process: &str) -> Outcome<Self> {
        let path = format!("/proc/{process}/stat");
        // The second field is the program's name in parentheses, which may contain any characters.
        let stat = std::fs::read_to_string(&path)?;
        let fields = stat.rsplit_once(')').ok_or(path + ": no name")?.1;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |from: usize| {
            let two = fields.iter().skip(from).take(2);
            let ticks: u64 = two.map(|field| field.parse().unwrap_or(0)).sum();
            // Linux shows ticks of 10 ms to programs on every architecture.
            Duration::from_millis(ticks * 10)
        };
        Ok(Self {
            parent: fields.get(1).copied().unwrap_or_default().to_owned(),
            own: ticks(11),
            ended: ticks(13),
        })
    }
}
