//! Cuts an answer to the size that AWS accepts from a function, and states in the answer what was cut.

use std::io::Write;

use serde_json::{Map, Value, json};

/// The longest answer. AWS accepts 6 MB
/// (<https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html>), and replaces a longer answer
/// with an error that contains nothing of it. The limit is lower, to leave room for the list of what was cut.
pub const ANSWER_LIMIT: usize = 5_000_000;

/// How many bytes of a long value's text are kept.
const HEAD: usize = 100_000;

/// Returns the answer unchanged if it is short enough. Otherwise cuts its longest fields, one after the
/// other, until it is. A list loses its end, except `errors`, which loses its beginning, because the last
/// errors say more. Any other field becomes the beginning of its text. `cut` names the fields that were cut,
/// and `next` of a list says where the next page begins.
pub fn fit(answer: Value, limit: usize) -> Value {
    let mut length = bytes(&answer);
    let Value::Object(mut fields) = answer else {
        return answer;
    };
    let mut cut = Vec::new();
    while length > limit {
        let Some((before, name)) = longest(&fields, &cut) else {
            break;
        };
        // Leaves room for the name in `cut`, and for the comma of the last element.
        let over = length - limit + name.len() + 100;
        shorten(&mut fields, &name, before.saturating_sub(over));
        cut.push(name);
        fields.insert("cut".to_owned(), json!(cut));
        length = bytes(&fields);
    }
    Value::Object(fields)
}

/// Returns the longest field that can be cut and has not been cut yet, with its length.
fn longest(fields: &Map<String, Value>, cut: &[String]) -> Option<(usize, String)> {
    let whole = fields
        .iter()
        .filter(|(name, _)| *name != "cut" && !cut.contains(name));
    let lengths = whole.map(|(name, value)| (value, bytes(value), name));
    let long = lengths.filter(|(value, length, _)| value.is_array() || *length > HEAD);
    let longest = long.max_by_key(|(_, length, _)| *length);
    longest.map(|(_, length, name)| (length, name.clone()))
}

/// Cuts a list to at most `most` bytes, and any other field to the first [`HEAD`] bytes of its text.
fn shorten(fields: &mut Map<String, Value>, name: &str, most: usize) {
    match fields.get_mut(name) {
        Some(Value::Array(elements)) => {
            let keeps_end = name == "errors";
            if keeps_end {
                elements.reverse();
            }
            elements.truncate(fitting(elements, most));
            if keeps_end {
                elements.reverse();
            }
        }
        Some(value) => *value = head(value),
        None => {}
    }
    if name == "events" && fields.contains_key("next") {
        let last = fields["events"].as_array().and_then(|events| events.last());
        let next = last.map_or(Value::Null, |event| event["id"].clone());
        fields.insert("next".to_owned(), next);
    }
}

/// Returns how many of the first elements fit into `most` bytes, with their commas.
fn fitting(elements: &[Value], most: usize) -> usize {
    let mut length = 2;
    let fit = elements.iter().take_while(|element| {
        length += bytes(element) + 1;
        length <= most
    });
    fit.count()
}

/// Returns the beginning of a value's text.
fn head(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let end = text.floor_char_boundary(HEAD);
    Value::String(format!("{}…", &text[..end]))
}

/// Returns the length of a value as JSON.
fn bytes(value: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, written: &[u8]) -> std::io::Result<usize> {
            self.0 += written.len();
            Ok(written.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and neither can the serialization of a value that was parsed.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_stays_as_it_is() {
        let answer = json!({"action": "show", "payload": "x".repeat(500)});
        assert_eq!(fit(answer.clone(), 1000), answer);
    }

    #[test]
    fn a_list_loses_its_end_and_its_next_page_begins_there() {
        let events: Vec<Value> = (1..=100).rev().map(|id| json!({"id": id})).collect();
        let answer = fit(
            json!({"action": "list", "events": events, "next": null}),
            600,
        );
        assert!(answer.to_string().len() <= 600, "{answer}");
        let left = answer["events"].as_array().unwrap();
        assert!(left.len() > 10 && left[0]["id"] == 100, "{answer}");
        assert_eq!(answer["next"], left[left.len() - 1]["id"]);
        assert_eq!(answer["cut"], json!(["events"]));
    }

    #[test]
    fn of_errors_the_last_ones_stay_and_of_other_values_the_beginning() {
        let errors: Vec<Value> = (0..1000).map(|n| json!({"attempt": n})).collect();
        let payload = json!({"text": "ä".repeat(HEAD)});
        let answer = json!({"action": "show", "id": 7, "payload": payload, "errors": errors});
        let answer = fit(answer, HEAD + 5000);
        assert!(answer.to_string().len() <= HEAD + 5000);
        assert_eq!(answer["cut"], json!(["payload", "errors"]));
        let left = answer["errors"].as_array().unwrap();
        assert!(left.len() > 10 && left[left.len() - 1]["attempt"] == 999);
        let payload = answer["payload"].as_str().unwrap();
        assert!(payload.starts_with("{\"text\":\"ä") && payload.ends_with('…'));
    }

    #[test]
    fn what_cannot_be_cut_any_further_is_no_endless_task() {
        let answer = json!({"action": "stats", "backlog": 1, "kinds": [1, 2, 3]});
        let left = json!({"action": "stats", "backlog": 1, "kinds": [], "cut": ["kinds"]});
        assert_eq!(fit(answer, 10), left);
    }
}
