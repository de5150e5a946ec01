//! Owns what clients may write into a field, whichever system it is for: a calendar day, `YYYY-MM-DD`, and
//! text that is not blank.

use jiff::civil::Date;
use tidegate::Error;

/// Reports whether a text is an existing day. The database does not support year 0.
pub(super) fn is_day(text: &str) -> bool {
    let is_shaped = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    let shaped = text.len() == 10 && text.bytes().enumerate().all(is_shaped);
    shaped && text.parse().is_ok_and(|day: Date| day.year() > 0)
}

/// Requires a condition. The error names the field and what is allowed, and quotes nothing.
pub(super) fn demand(holds: bool, field: &str, what: &str) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::Invalid(format!("{field}: must be {what}")))
    }
}

/// Reports whether the interface's schema treats the character as blank: white space as in ECMA-262.
fn is_blank(c: char) -> bool {
    c == '\u{feff}' || c.is_whitespace() && c != '\u{85}'
}

/// Requires 1 to `limit` characters that are not all blank, and no NUL, which Postgres cannot store.
pub(super) fn text(field: &str, value: &str, limit: usize) -> Result<(), Error> {
    let holds =
        !value.chars().all(is_blank) && value.chars().count() <= limit && !value.contains('\0');
    demand(
        holds,
        field,
        &format!("text of 1 to {limit} characters, not only blanks, without NUL"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_days_that_exist_are_dates() {
        for good in ["2024-02-29", "2000-02-29", "2027-12-31", "0001-01-01"] {
            assert!(is_day(good), "{good}");
        }
        for bad in [
            "2023-02-29",
            "1900-02-29",
            "2027-13-01",
            "2027-00-01",
            "2027-04-31",
            "2027-1-01",
            "+027-01-01",
            "20270101",
            "2027-01-01T00:00",
            "0000-01-01",
            "２027-01-01",
        ] {
            assert!(!is_day(bad), "{bad}");
        }
    }
}
