//! Draws the report of any verb: a line that says whether an action was done, then fields, lists as tables,
//! and a sentence for each flag. The JSON Schema of the report says what a field means, so nothing here knows
//! a verb by name: see [`Words`].
//!
//! A `title` replaces the name of a field or a value of an enum. A list with `maxItems` is a sample. A text
//! of the format `commands` stands below its row, to be copied.

use serde_json::Value;
use tidegate::Json;
use tidegate_admin::Reported;
use tidegate_admin::schema::{self, Words};

use super::{SHOWN, coarse, fold, in_seconds, shown};

/// The fields that are not drawn: the first line says what people need of them.
const SAID: [&str; 4] = ["action", "digest", "dry_run", "refused"];

/// What is drawn of a report.
#[derive(Default)]
struct Drawn {
    /// A name, a number or nothing, and the rest of the line.
    fields: Vec<[String; 3]>,
    /// A name, and a table with what to do about its rows.
    tables: Vec<(String, String)>,
    sentences: Vec<String>,
    /// Whether what is zero or empty is left out.
    is_sparse: bool,
    width: Option<usize>,
}

/// Describes what was done or found, with tables of at most this width.
pub fn text(reported: &Reported, width: Option<usize>) -> String {
    let schema = schema::of_action(reported.verb).unwrap_or_default();
    let members = reported.document.members();
    let mut drawn = Drawn {
        width,
        ..Drawn::default()
    };
    for (name, json) in members
        .iter()
        .filter(|(name, _)| !SAID.contains(&name.as_str()))
    {
        drawn.add(name, &schema["properties"][name], json);
        // What an action did is its first field, even if it did nothing.
        drawn.is_sparse = reported.acts;
    }
    let report = reported.document.read().unwrap_or_default();
    let is_alone = drawn.fields.is_empty() && drawn.tables.len() < 2;
    let head = (!is_alone).then(|| head(reported, &report)).flatten();
    let fields = drawn.lines();
    let tables = drawn.tables.iter().map(|(name, table)| {
        let head = if is_alone {
            String::new()
        } else {
            format!("{name}:\n")
        };
        head + table
    });
    let lines = head.into_iter().chain(fields).chain(tables);
    let lines: Vec<String> = lines.chain(drawn.sentences.iter().cloned()).collect();
    if lines.is_empty() {
        return format!("{}: none", words(reported.verb));
    }
    lines.join("\n")
}

/// Says what became of an action.
fn head(reported: &Reported, report: &Value) -> Option<String> {
    let became = match (report["dry_run"] == true, report["refused"].as_str()) {
        (true, None) => "dry run, nothing was changed; this is what it would do".to_owned(),
        (true, Some(why)) => {
            format!(
                "dry run, nothing was changed; it would be refused: {}",
                shown(why)
            )
        }
        (false, Some(why)) => format!("nothing was changed: {}", shown(why)),
        _ if report["changed"] == false => "nothing was changed".to_owned(),
        _ if !reported.acts => return None,
        _ if reported.code > 0 => "not done".to_owned(),
        _ => "done".to_owned(),
    };
    let action = report["action"].as_str().unwrap_or(reported.verb);
    Some(format!("{}: {became}", words(action)))
}

impl Drawn {
    fn add(&mut self, name: &str, schema: &Value, json: &Json) {
        let value: Value = json.read().unwrap_or_default();
        let is_none = match &value {
            Value::Number(number) => number.as_u64() == Some(0),
            Value::Array(list) => list.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        };
        match &value {
            Value::Null => {}
            Value::Bool(is_true) => self.sentences.extend(Words(schema).sentence(*is_true)),
            _ if is_none && self.is_sparse => {}
            Value::Array(_) if schema["items"]["properties"].is_object() => {
                self.table(
                    title(name, schema),
                    schema,
                    &json.read::<Vec<Json>>().unwrap_or_default(),
                );
            }
            Value::Object(_) if schema["properties"].is_object() => {
                let is_sparse = std::mem::replace(&mut self.is_sparse, true);
                for (part, json) in json.members() {
                    let name = format!("{name} {part}");
                    self.add(&name, &schema["properties"][&part], &json);
                }
                self.is_sparse = is_sparse;
            }
            Value::Object(of) if of.values().any(Value::is_object) => {
                let changes = of
                    .iter()
                    .map(|(key, of)| (shown(key), cell("", &Value::Null, of)));
                let changes = changes.map(|(key, of)| [key, String::new(), of]);
                self.fields.extend(changes);
            }
            _ => self.fields.push(field(name, schema, &value)),
        }
    }

    /// Adds a table of these rows, with the columns that have a value in any of them.
    fn table(&mut self, title: String, schema: &Value, rows: &[Json]) {
        let fields = &schema["items"]["properties"];
        let is_sample = !schema["maxItems"].is_null();
        let listed = if is_sample { SHOWN } else { rows.len() };
        let values = rows
            .iter()
            .take(listed)
            .map(|row| row.read().unwrap_or_default());
        let values: Vec<Value> = values.collect();
        let is_command = |name: &str| fields[name]["format"] == "commands";
        let mut names: Vec<String> = Vec::new();
        for (name, _) in rows.iter().flat_map(Json::members) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        // A field in milliseconds beside the same one in words is for programs.
        let is_twice = |name: &str| names.iter().any(|other| format!("{other}_ms") == name);
        let shown = names
            .iter()
            .filter(|name| !is_command(name) && !is_twice(name));
        let columns = shown.map(|name| {
            let cell = |row: &Value| cell(name, &fields[name], &row[name]);
            (name.as_str(), values.iter().map(cell).collect())
        });
        let mut columns: Vec<(&str, Vec<String>)> = columns.collect();
        columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
        columns.sort_by_key(|(name, _)| *name != "state");
        // The cells of a flag are its name, so its column needs no head.
        let is_flag = |name: &str| fields[name]["type"] == "boolean";
        let head = |name: &str| {
            if is_flag(name) {
                String::new()
            } else {
                self::title(name, &fields[name])
            }
        };
        let heads: Vec<String> = columns.iter().map(|(name, _)| head(name)).collect();
        let line = |at: usize| columns.iter().map(|(_, cells)| cells[at].clone()).collect();
        let lines: Vec<Vec<String>> = (0..values.len()).map(line).collect();
        let below = values.iter().map(|row| {
            let commands = row.as_object().into_iter().flatten();
            let commands = commands.filter(|(name, _)| is_command(name));
            let lines = commands.flat_map(|(name, text)| {
                let lines = text.as_str().unwrap_or_default().lines();
                lines.map(move |line| format!("{name}: {}\n", super::shown(line)))
            });
            lines.collect()
        });
        let below: Vec<String> = below.collect();
        let table = fold::grid(&heads, &lines, &below, self.width);
        let left = rows.len().saturating_sub(listed);
        let more = (left > 0).then(|| format!("and {left} more"));
        let lines = [table]
            .into_iter()
            .chain(more)
            .chain(Words(schema).advice());
        let table = lines.collect::<Vec<_>>().join("\n");
        if !rows.is_empty() {
            self.tables.push((title, table));
        }
    }

    /// Lays out the fields: names, numbers, and the rest.
    fn lines(&self) -> Vec<String> {
        let longest = |at: usize| {
            self.fields
                .iter()
                .map(|field| field[at].chars().count())
                .max()
                .unwrap_or(0)
        };
        let (names, numbers) = (longest(0), longest(1));
        let line = |[name, number, rest]: &[String; 3]| match number.as_str() {
            "" => format!("{name:names$}  {rest}"),
            number => format!("{name:names$}  {number:numbers$}  {rest}")
                .trim_end()
                .to_owned(),
        };
        self.fields.iter().map(line).collect()
    }
}

/// The name of a field for people.
fn title(name: &str, schema: &Value) -> String {
    let name = name
        .strip_suffix("_ms")
        .or(name.strip_suffix("_at"))
        .unwrap_or(name);
    schema["title"]
        .as_str()
        .map_or_else(|| words(name), ToOwned::to_owned)
}

fn words(name: &str) -> String {
    shown(&name.replace('_', " "))
}

/// Draws a field: its name, its number or nothing, and the rest.
fn field(name: &str, schema: &Value, value: &Value) -> [String; 3] {
    let (title, said) = (title(name, schema), cell(name, schema, value));
    let none = || {
        if said.is_empty() {
            "none".to_owned()
        } else {
            said.clone()
        }
    };
    match (value, &Words(schema).of(value)["description"]) {
        (Value::Number(_), _) if name.ends_with("_ms") => [title, said, String::new()],
        (Value::Number(_), _) => [title, said, Words(schema).about()],
        (_, Value::String(of)) => [title, String::new(), format!("{said}: {of}")],
        (Value::String(_), _) if schema["format"].is_null() => [title, String::new(), said],
        _ => [
            title,
            String::new(),
            format!("{}  {}", none(), Words(schema).about()),
        ],
    }
}

/// Formats a value in one line.
fn cell(name: &str, schema: &Value, value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(false) => String::new(),
        Value::Bool(true) => title(name, schema),
        Value::Number(number) => match number.as_u64() {
            Some(time) if name.ends_with("_ms") => coarse(time),
            _ => number.to_string(),
        },
        Value::String(time) if schema["format"] == "date-time" => shown(&in_seconds(time)),
        Value::String(text) => match Words(schema).of(value) {
            Value::Null => shown(text),
            of => of["title"]
                .as_str()
                .map_or_else(|| words(text), ToOwned::to_owned),
        },
        Value::Array(list) => several(list, |one| cell("", &schema["items"], one)),
        Value::Object(of) => several(of, |(key, one)| {
            format!("{} {}", shown(key), shown(&one.to_string()))
        }),
    }
}

/// The first [`SHOWN`] of several values, and how many more there are.
fn several<T>(
    values: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    text: impl Fn(T) -> String,
) -> String {
    let values = values.into_iter();
    let left = values.len().saturating_sub(SHOWN);
    let more = (left > 0).then(|| format!("and {left} more"));
    let first = values.take(SHOWN).map(text).chain(more);
    first.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod golden {
    use std::fmt::Write;

    use super::*;

    /// Reports and how they read: a line `$ VERB exit CODE DOCUMENT`, then its text. An action has a `!`.
    #[test]
    fn every_report_reads_as_the_file_has_it() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/texts.txt");
        let kept = std::fs::read_to_string(file).unwrap();
        let mut now = String::new();
        for line in kept.lines().filter(|line| line.starts_with("$ ")) {
            let parts: Vec<&str> = line.splitn(5, ' ').collect();
            let [_, verb, _, code, document] = parts[..] else {
                panic!("{line}");
            };
            let name = verb.trim_end_matches('!');
            let reported = Reported {
                verb: name.to_owned().leak(),
                acts: line.contains("! exit"),
                document: serde_json::from_str(document).unwrap(),
                code: code.parse().unwrap(),
            };
            writeln!(now, "{line}\n{}\n", text(&reported, None)).unwrap();
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(file, now).unwrap();
            return;
        }
        assert!(
            kept == now,
            "UPDATE_GOLDEN=1 writes {file}, and git diff shows what differs"
        );
    }
}
