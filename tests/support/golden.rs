//! Owns the comparison with what is kept in `tests/golden/`. `UPDATE_GOLDEN=1` writes the files anew.

use std::collections::BTreeSet;

use crate::project_file;

pub fn golden(name: &str, now: &str) {
    compare(&format!("tests/golden/{name}"), now);
}

pub fn compare(name: &str, now: &str) {
    let file = project_file(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, now).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = |(kept, now): (&str, &str)| kept != now;
    let same = kept.lines().zip(now.lines());
    let at = same.clone().position(differs).unwrap_or(same.count());
    let from = |text: &str| text.lines().skip(at).take(5).collect::<Vec<_>>().join("\n");
    assert!(
        kept == now,
        "{name}, line {}:\n{}\nis now\n{}\nIf that is meant, UPDATE_GOLDEN=1 writes it.",
        at + 1,
        from(&kept),
        from(now)
    );
}

/// Returns the lines, sorted, each once.
pub fn text(lines: BTreeSet<String>) -> String {
    lines.into_iter().map(|line| line + "\n").collect()
}
