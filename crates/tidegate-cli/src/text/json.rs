//! Formats JSON for people. It works on the text, so that a number with forty digits stays exact.

/// Formats a document with one member per line.
pub fn pretty(text: &str) -> String {
    let mut laid_out = String::with_capacity(text.len() + text.len() / 4);
    let mut depth = 0_usize;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                laid_out.push('"');
                copy_string(&mut letters, &mut laid_out);
            }
            '{' | '[' => {
                laid_out.push(letter);
                skip_space(&mut letters);
                if letters.peek().is_some_and(|next| matches!(next, '}' | ']')) {
                    laid_out.extend(letters.next());
                } else {
                    depth += 1;
                    new_line(&mut laid_out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut laid_out, depth);
                laid_out.push(letter);
            }
            ',' => {
                laid_out.push(',');
                new_line(&mut laid_out, depth);
            }
            ':' => laid_out.push_str(": "),
            space if space.is_ascii_whitespace() => {}
            other => laid_out.push(other),
        }
    }
    laid_out
}

fn copy_string(letters: &mut std::iter::Peekable<std::str::Chars<'_>>, into: &mut String) {
    while let Some(letter) = letters.next() {
        into.push(letter);
        match letter {
            '\\' => into.extend(letters.next()),
            '"' => return,
            _ => {}
        }
    }
}

fn skip_space(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while letters.next_if(char::is_ascii_whitespace).is_some() {}
}

/// Limits the indentation, because a thousand nested brackets would otherwise produce a million spaces.
fn new_line(into: &mut String, depth: usize) {
    into.push('\n');
    into.extend(std::iter::repeat_n("  ", depth.min(20)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_laid_out_and_nothing_of_it_is_changed() {
        let text =
            r#"{"n":123456789012345678901234567890.10,"s":"a,\"{:}","e":[],"o":{ },"l":[1,[2]]}"#;
        let laid_out = pretty(text);
        let expected = "{\n  \"n\": 123456789012345678901234567890.10,\n  \"s\": \"a,\\\"{:}\",\n  \"e\": [],\n  \"o\": {},\n  \"l\": [\n    1,\n    [\n      2\n    ]\n  ]\n}";
        assert_eq!(laid_out, expected);
        for odd in ["", "\"open", "}]]", "plain", "\"\\"] {
            let _ = pretty(odd);
        }
    }

    #[test]
    fn a_deep_document_does_not_grow_beyond_measure() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(pretty(&deep).len() < 50 * deep.len());
    }
}
