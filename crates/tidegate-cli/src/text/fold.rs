//! Fits texts into the width of a terminal: tables fold, and lines wrap.

use comfy_table::{Table, presets};
use console::measure_text_width;

/// A column of a table of rows: its head and its cells.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// The indentation of what continues a line.
const INDENT: usize = 6;

/// Returns the width of lines: `COLUMNS`, or that of the terminal to which the answer goes. `None` if there
/// is neither: programs such as grep want each row whole.
pub fn width() -> Option<usize> {
    let given = std::env::var("COLUMNS").ok();
    let given = given.and_then(|columns| columns.parse::<usize>().ok());
    let terminal = || console::Term::stdout().size_checked();
    let width = given.or_else(|| terminal().map(|(_, columns)| columns.into()));
    width.map(|width| width.max(20))
}

/// Formats a table of at most this width, as [`grid`] does.
pub fn table<T>(rows: &[T], columns: &[Column<T>], width: Option<usize>) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|(_, cell)| cell(row)).collect())
        .collect();
    let heads: Vec<String> = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    grid(&heads, &cells, &[], width)
}

/// Formats a table of at most this width. If a row does not fit, the last cells of every row continue below
/// it, each with its head. No cell is cut. `below` has further lines for below each row.
pub fn grid(
    heads: &[String],
    cells: &[Vec<String>],
    below: &[String],
    width: Option<usize>,
) -> String {
    let room = width.unwrap_or(usize::MAX);
    let mut kept = heads.len();
    let mut lines = lines(heads, cells, kept);
    while kept > 1 && lines.iter().any(|line| measure_text_width(line) > room) {
        kept -= 1;
        lines = self::lines(heads, cells, kept);
    }
    let mut text = lines.first().cloned().unwrap_or_default();
    for (at, (line, row)) in lines.iter().skip(1).zip(cells).enumerate() {
        let mut add = |line: &str| {
            text.push('\n');
            text.push_str(line);
        };
        add(&wrap(line, INDENT, room));
        let rest = heads.iter().zip(row).skip(kept);
        let rest = rest.filter(|(_, cell)| !cell.is_empty());
        let rest: Vec<String> = rest
            .map(|(head, cell)| format!("{head} {cell}").trim_start().to_owned())
            .collect();
        if !rest.is_empty() {
            let rest = format!("{:INDENT$}{}", "", rest.join(", "));
            add(&wrap(&rest, INDENT, room));
        }
        for line in below.get(at).iter().flat_map(|below| below.lines()) {
            add(&format!("{:INDENT$}{line}", ""));
        }
    }
    text
}

/// Lays out the first `kept` columns: a line of heads, and one for each row.
fn lines(heads: &[String], rows: &[Vec<String>], kept: usize) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(&heads[..kept]);
    for row in rows {
        table.add_row(&row[..kept]);
    }
    let lines = table.lines();
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Breaks a line at its spaces, or within a word that is longer than a line. What continues it is indented.
fn wrap(line: &str, indent: usize, width: usize) -> String {
    let (mut lines, mut rest) = (String::new(), line.to_owned());
    while measure_text_width(&rest) > width {
        let end = rest
            .char_indices()
            .nth(width)
            .map_or(rest.len(), |(at, _)| at);
        let start = rest.len() - rest.trim_start().len();
        let space = rest[..end].rfind(' ').filter(|at| *at > start);
        let (line, next) = rest.split_at(space.unwrap_or(end));
        lines.push_str(line.trim_end());
        lines.push('\n');
        rest = format!("{:indent$}{}", "", next.trim_start());
    }
    lines + &rest
}

/// Wraps the lines of an answer or a help. What continues a description stands below it. A line with a
/// command is left as it is, to be copied whole.
pub fn wrapped(text: &str, width: usize) -> String {
    let line = |line: &str| {
        if line.trim_start().starts_with("tidegate ")
            || line.contains(": tidegate ")
            || line.contains(": `tidegate ")
        {
            return line.to_owned();
        }
        let described = line
            .rfind("  ")
            .map(|at| measure_text_width(&line[..at]) + 2);
        let indent = described.filter(|indent| *indent < width / 2);
        wrap(line, indent.unwrap_or(INDENT), width)
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column<(i64, String)>] = &[
        ("id", |row| row.0.to_string()),
        ("kind", |row| row.1.clone()),
        ("status", |_| "COMPLETED_WITH_ERRORS".to_owned()),
        ("last error", |_| "no_paper: tray 2 is empty ".repeat(4)),
    ];

    #[test]
    fn a_table_of_any_width_has_every_id_and_no_longer_line() {
        let rows = [
            (9_007_199_254_740_993, "order_placed".to_owned()),
            (42, "k".repeat(100)),
        ];
        let whole = table(&rows, COLUMNS, None);
        assert_eq!(whole.lines().count(), 3, "{whole}");
        for width in [20, 40, 80, 120] {
            let text = table(&rows, COLUMNS, Some(width));
            assert!(
                text.lines().all(|line| measure_text_width(line) <= width),
                "{text}"
            );
            assert!(text.contains("9007199254740993"), "{text}");
            let letters = |text: &str| text.matches('k').count();
            assert_eq!(
                letters(&text.replace("kind", "")),
                letters(&whole.replace("kind", ""))
            );
            assert!(text.matches("tray").count() == 8, "{text}");
        }
        let folded = table(&rows[..1], COLUMNS, Some(80));
        let (_, below) = folded.split_once("COMPLETED_WITH_ERRORS\n").unwrap();
        assert!(
            below.starts_with("      last error no_paper: tray"),
            "{folded}"
        );
    }

    #[test]
    fn a_help_wraps_below_its_descriptions() {
        let text = "Usage: x\n  --flag <F>  Only events that ended at this time or later";
        assert_eq!(
            wrapped(text, 40),
            "Usage: x\n  --flag <F>  Only events that ended at\n              this time or later"
        );
    }
}
