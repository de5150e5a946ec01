//! Owns the definition of a grant application: the form, the grant it may lead to, and the allowed
//! values. It knows neither the queue nor the services.
//!
//! Names, national ids, addresses and free text are [`Private`], a type that cannot be displayed.
//! Every type here may therefore derive `Debug`, and an error can only name a field but not quote it.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use crate::app::field::{demand, is_day, text};
use tidegate::Error;

/// Text about a person. It serializes as plain text, because payloads and services need it. Its
/// `Debug` output hides the text, and it has no `Display`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Private(String);

impl Private {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text, to store or send it. Never log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(private)")
    }
}

/// A grant application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Form {
    /// Chosen by the creator of the form, 1 to 100 characters. All events of the form carry it.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub id: String,
    /// The applicant.
    pub company: Company,
    /// The employee who is to be helped.
    pub employee: Employee,
    /// The expert who is to help.
    pub expert: Expert,
    /// The help that is needed.
    pub need: Need,
    /// The progress of the form. Optional when a form is submitted.
    #[serde(default)]
    pub status: FormStatus,
}

/// The applying company.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Company {
    /// Its number in the register of companies, 9 digits.
    #[schema(min_length = 9, max_length = 9, pattern = "^[0-9]{9}$")]
    pub number: String,
    /// Its name.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub name: String,
    /// The contact person of the company.
    pub contact: Contact,
}

/// The company's contact person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Contact {
    /// Name.
    #[schema(value_type = String, min_length = 1, max_length = 200, pattern = r"\S")]
    pub name: Private,
    /// E-mail address.
    #[schema(value_type = String, max_length = 254, pattern = r"^[^\s\x00-\x1f\x7f-\x9f@]+@[^\s\x00-\x1f\x7f-\x9f]+$")]
    pub email: Private,
    /// Phone number.
    #[schema(value_type = String, pattern = r"^\+? *([0-9] *){4,15}$")]
    pub phone: Private,
}

/// The employee the application is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Employee {
    /// National id, 11 digits.
    #[schema(value_type = String, min_length = 11, max_length = 11, pattern = "^[0-9]{11}$")]
    pub national_id: Private,
    /// Name.
    #[schema(value_type = String, min_length = 1, max_length = 200, pattern = r"\S")]
    pub name: Private,
}

/// The expert who is to help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Expert {
    /// Name.
    #[schema(value_type = String, min_length = 1, max_length = 200, pattern = r"\S")]
    pub name: Private,
    /// The expert's own company.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub company: String,
    /// The expert's qualification.
    #[schema(min_length = 1, max_length = 1000, pattern = r"\S")]
    pub competence: String,
}

/// The requested help. The two texts may contain health information.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Need {
    /// The reason for the request.
    #[schema(value_type = String, min_length = 1, max_length = 10_000, pattern = r"\S")]
    pub reason: Private,
    /// The requested help.
    #[schema(value_type = String, min_length = 1, max_length = 10_000, pattern = r"\S")]
    pub requirement: Private,
    /// Estimated cost in whole kroner.
    #[schema(minimum = 0)]
    #[serde(deserialize_with = "whole")]
    pub estimated_cost: i64,
    /// Hours of help.
    #[schema(minimum = 0)]
    #[serde(deserialize_with = "whole")]
    pub hours: i32,
    /// First day, `YYYY-MM-DD`.
    #[schema(format = Date)]
    pub start_date: String,
}

/// The progress of a form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FormStatus {
    /// The form is being filled in.
    #[default]
    Draft,
    /// The form was submitted.
    Submitted,
    /// A grant was given.
    Approved,
    /// The case system cancelled it.
    Cancelled,
}

/// The name that the database stores.
impl fmt::Display for FormStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A grant, as announced by its letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The grant's number in the case system, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub grant_number: String,
    /// The case and measure of the grant.
    pub measure: Measure,
    /// The number of the company that receives the grant, 9 digits.
    #[schema(min_length = 9, max_length = 9, pattern = "^[0-9]{9}$")]
    pub company_number: String,
    /// Amount in whole kroner.
    #[schema(minimum = 0)]
    #[serde(deserialize_with = "whole")]
    pub amount: i64,
    /// First day, `YYYY-MM-DD`.
    #[schema(format = Date)]
    pub valid_from: String,
    /// Last day, `YYYY-MM-DD`.
    #[schema(format = Date)]
    pub valid_to: String,
}

/// The place of an application in the case system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Measure {
    /// The case, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub case_number: String,
    /// The measure in that case, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub measure_id: String,
}

impl Form {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first invalid field and what is allowed. It never quotes the
    /// value.
    pub fn check(&self) -> Result<(), Error> {
        let Self {
            company,
            employee,
            expert,
            need,
            ..
        } = self;
        let contact = &company.contact;
        text("form.id", &self.id, 100)?;
        digits("form.company.number", &company.number, 9)?;
        text("form.company.name", &company.name, 200)?;
        text("form.company.contact.name", contact.name.expose(), 200)?;
        email("form.company.contact.email", contact.email.expose())?;
        phone("form.company.contact.phone", contact.phone.expose())?;
        digits(
            "form.employee.national_id",
            employee.national_id.expose(),
            11,
        )?;
        text("form.employee.name", employee.name.expose(), 200)?;
        text("form.expert.name", expert.name.expose(), 200)?;
        text("form.expert.company", &expert.company, 200)?;
        text("form.expert.competence", &expert.competence, 1000)?;
        text("form.need.reason", need.reason.expose(), 10_000)?;
        text("form.need.requirement", need.requirement.expose(), 10_000)?;
        not_negative("form.need.estimated_cost", need.estimated_cost)?;
        not_negative("form.need.hours", need.hours.into())?;
        date("form.need.start_date", &need.start_date)
    }
}

impl Grant {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first invalid field and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        text("grant.grant_number", &self.grant_number, 100)?;
        self.measure.check()?;
        digits("grant.company_number", &self.company_number, 9)?;
        not_negative("grant.amount", self.amount)?;
        date("grant.valid_from", &self.valid_from)?;
        date("grant.valid_to", &self.valid_to)?;
        // Dates in one fixed format sort correctly as text.
        demand(
            self.valid_to >= self.valid_from,
            "grant.valid_to",
            "a day not before grant.valid_from",
        )
    }
}

impl Measure {
    /// Checks both ids.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first invalid field and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        text("measure.case_number", &self.case_number, 100)?;
        text("measure.measure_id", &self.measure_id, 100)
    }
}

/// Reads a whole number. In JSON Schema, `97.0` is also a whole number.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    let number = Number::deserialize(deserializer)?;
    let whole = number.as_i64().or_else(|| {
        let plain = format!("{:.0}", number.as_f64()?);
        let read: i64 = plain.parse().ok()?;
        (number.as_f64() == plain.parse().ok()).then_some(read)
    });
    let fitting = whole.and_then(|whole| T::try_from(whole).ok());
    fitting.ok_or_else(|| D::Error::custom("must be a whole number"))
}

fn digits(field: &str, value: &str, count: usize) -> Result<(), Error> {
    let holds = value.len() == count && value.bytes().all(|byte| byte.is_ascii_digit());
    demand(holds, field, &format!("a number of exactly {count} digits"))
}

/// Checks only what every address must have. The notification service finds out whether the address
/// exists.
fn email(field: &str, value: &str) -> Result<(), Error> {
    let parts = value
        .split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
    let plain = !value.chars().any(|c| c.is_whitespace() || c.is_control());
    demand(
        parts && plain && value.chars().count() <= 254,
        field,
        "an address like name@example.org, at most 254 characters",
    )
}

fn phone(field: &str, value: &str) -> Result<(), Error> {
    let number = value.strip_prefix('+').unwrap_or(value);
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == ' ');
    let count = number.chars().filter(char::is_ascii_digit).count();
    demand(
        plain && (4..=15).contains(&count),
        field,
        "4 to 15 digits, with blanks between and a + in front or not",
    )
}

fn not_negative(field: &str, value: i64) -> Result<(), Error> {
    demand(value >= 0, field, "a whole number, 0 or more")
}

/// Requires an existing day as `YYYY-MM-DD`, so that the database's own check never fails and quotes
/// the value.
fn date(field: &str, value: &str) -> Result<(), Error> {
    demand(is_day(value), field, "a day of the calendar as YYYY-MM-DD")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn form() -> Value {
        json!({
            "id": "form-1",
            "company": {"number": "100000001", "name": "Company 1",
                "contact": {"name": "Contact 1", "email": "contact@example.org", "phone": "+47 00 00 00 01"}},
            "employee": {"national_id": "00000000001", "name": "Employee 1"},
            "expert": {"name": "Expert 1", "company": "Company 2", "competence": "Ergonomics"},
            "need": {"reason": "Reason 1", "requirement": "Requirement 1", "estimated_cost": 25000,
                "hours": 12, "start_date": "2028-02-29"},
            "status": "draft",
        })
    }

    /// Returns the form with the value at `path` replaced.
    fn form_with(path: &str, value: Value) -> Form {
        let mut form = form();
        *form
            .pointer_mut(path)
            .expect("the path is one of the form's") = value;
        serde_json::from_value(form).expect("the form still decodes")
    }

    #[test]
    fn a_form_is_stored_as_the_requirements_write_it() {
        let decoded: Form = serde_json::from_value(form()).unwrap();
        decoded.check().unwrap();
        assert_eq!(serde_json::to_value(&decoded).unwrap(), form());
    }

    #[test]
    fn a_bad_field_is_named_with_what_is_allowed_and_its_value_is_not_quoted() {
        let bad = [
            ("/id", json!("")),
            ("/company/number", json!("12345")),
            ("/company/name", json!("   ")),
            ("/company/contact/email", json!("secret at example")),
            ("/company/contact/phone", json!("secret")),
            ("/employee/national_id", json!("0000000000x")),
            ("/employee/name", json!("a\0b")),
            ("/need/estimated_cost", json!(-1)),
            ("/need/hours", json!(-1)),
            ("/need/start_date", json!("2027-02-29")),
            ("/need/start_date", json!("+027-02-09")),
            ("/need/start_date", json!("2027-13-01")),
        ];
        for (path, value) in bad {
            let error = form_with(path, value.clone())
                .check()
                .expect_err(path)
                .to_string();
            assert!(
                error.starts_with(&format!("form{}: ", path.replace('/', "."))),
                "{error}"
            );
            assert!(error.contains(": must be "), "{error}");
            assert!(
                !error.contains("secret") && !error.contains("0000000000x"),
                "{error}"
            );
        }
    }

    #[test]
    fn i9_the_debug_output_of_a_form_shows_nothing_of_a_person() {
        let decoded: Form = serde_json::from_value(form()).unwrap();
        let shown = format!("{decoded:?}");
        for private in [
            "00000000001",
            "contact@example.org",
            "00 00 00",
            "Contact 1",
            "Employee 1",
            "Expert 1",
            "Reason 1",
        ] {
            assert!(!shown.contains(private), "{private} is in {shown}");
        }
    }
}
