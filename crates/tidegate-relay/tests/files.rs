//! Files with faults, and what is said of each.

use std::fmt::Write as _;

use tidegate::DrainOptions;
use tidegate_relay::{FileFault, read};

const GOOD: &str = "lambda = \"arn:aws:lambda:eu-central-1:123456789012:function:ship:live\"";

/// Writes a file from a line: `|` ends a line, words in capitals are short for what is long.
fn file(chapter: &str, line: &str) -> String {
    let words = [
        ("NOTHING", ""),
        ("LAMBDA", GOOD),
        ("GOOD", GOOD),
        ("HTTPS", "https = \"https://billing.example.com/events\""),
        (
            "SQS",
            "sqs = \"https://sqs.eu-central-1.amazonaws.com/123456789012/a\"",
        ),
        (
            "BUS",
            "eventbridge = \"arn:aws:events:eu-central-1:123456789012:event-bus/shop\"",
        ),
    ];
    let mut text = line.split(" | ").collect::<Vec<&str>>().join("\n");
    for (word, means) in words {
        text = text.replace(word, means);
    }
    for count in [257, 101, 96, 91, 81] {
        text = text.replace(&format!("A{count}"), &"a".repeat(count));
    }
    match chapter {
        "in a target" => format!("[targets.ship]\n{text}\n[kinds]\na = {{ target = \"ship\" }}"),
        "in the kinds" => {
            format!("[targets.ship]\n{GOOD}\n[kinds]\n{text}\nz = {{ target = \"ship\" }}")
        }
        _ => text,
    }
}

fn faults(text: &str) -> Vec<FileFault> {
    match read(text, &DrainOptions::default()) {
        Ok((_, warnings)) => warnings,
        Err(faults) => faults,
    }
}

/// `broken.txt` has a file in each line that begins a paragraph, and below it what is said of it. With
/// `UPDATE_GOLDEN=1`, this test writes the latter.
#[test]
fn every_fault_of_a_file_is_named_with_its_line() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken.txt");
    let expected = std::fs::read_to_string(path).unwrap();
    let (mut found, mut chapter, mut count) = (String::new(), "", 0);
    for line in expected.lines().filter(|line| !line.starts_with("  ")) {
        writeln!(found, "{line}").unwrap();
        if let Some(name) = line.strip_prefix("# ") {
            chapter = name;
            continue;
        }
        let said = faults(&file(chapter, line));
        assert!(!said.is_empty(), "nothing is said of {line}");
        let is_usable = said.iter().all(|fault| fault.is_warning);
        assert_eq!(is_usable, chapter == "warnings", "{line}: {said:?}");
        for fault in said {
            writeln!(found, "  {fault}").unwrap();
        }
        count += 1;
    }
    assert!(count > 100, "{count}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(path).unwrap());
}
