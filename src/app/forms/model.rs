//! Owns the definition of a grant application: the form, the grant it may lead to, the notices about both,
//! and the allowed values. It knows neither the queue nor the services.
//!
//! Names, national ids, addresses and free text are [`Private`], a type that cannot be displayed.
//! Every type here may therefore derive `Debug`, and an error can only name a field but not quote it.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use crate::app::schema;

/// Text about a person. It serializes as plain text, because payloads and services need it. Its
/// `Debug` output hides the text, and it has no `Display`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Private(String);

impl Private {
    /// Marks a text as private.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(private)")
    }
}

/// A grant application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// Chosen by the creator of the form, 1 to 100 characters, but not `.` or `..`, which paths cannot have.
    /// Forms of other clients may have the same.
    #[schema(min_length = 1, max_length = 100, pattern = r"^(?!\.{1,2}$)[\s\S]*\S")]
    pub id: String,
    /// The applicant.
    pub company: Company,
    /// The employee who is to be helped.
    pub employee: Employee,
    /// The expert who is to help.
    pub expert: Expert,
    /// The help that is needed.
    pub need: Need,
    /// The progress of the form. It does not count when a form is submitted, so that what was read can be
    /// submitted again.
    #[serde(default)]
    pub status: FormStatus,
}

/// The applying company.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
    #[schema(minimum = 0, maximum = 2_147_483_647)]
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
    /// The case system declined it.
    Declined,
}

/// The name that the database stores.
impl fmt::Display for FormStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What has become of a submitted form.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// When it was submitted.
    #[schema(format = DateTime)]
    pub submitted_at: String,
    /// When its status or its case last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// Its case and measure in the case system. Missing until the case is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// The events of the form, oldest first; the first hundred that are still stored.
    pub steps: Vec<Step>,
}

/// One event of a form.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// Its kind, such as `form_archived`.
    pub kind: String,
    /// `pending`, `processed`, `failed`, or `failed_with_error` if it was given up.
    pub status: String,
    /// When it was published.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it ended. Missing while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
}

/// A grant, as announced by its letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// The case, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub case_number: String,
    /// The measure in that case, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub measure_id: String,
}

/// A grant letter from the case system.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Letter {
    /// The system that sent it, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub source: String,
    /// The sender's own id of the letter, 1 to 200 characters. A letter of the same client and source with a
    /// known id is a repetition.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub external_id: String,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// A notice from the case system about one of its measures.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasureNotice {
    /// The system that sent it, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub source: String,
    /// The sender's own id of the notice, 1 to 200 characters. A notice of the same client and source with a
    /// known id is a repetition.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub external_id: String,
    /// The cancelled or declined measure.
    pub measure: Measure,
}

/// A notice that a grant letter was viewed.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Viewed {
    /// The grant number of the letter, 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"\S")]
    pub grant_number: String,
}

/// Reads a whole number. In JSON Schema, `97.0` is also a whole number.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    let number = schema::whole(&Number::deserialize(deserializer)?);
    let fitting = number.and_then(|whole| T::try_from(whole).ok());
    fitting.ok_or_else(|| D::Error::custom("must be a whole number"))
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

    fn read(form: &Value) -> Result<Form, tidegate::Error> {
        let read = crate::app::submission::read(form);
        read.map_err(|faults| schema::refused("form", &faults))
    }

    #[test]
    fn a_form_is_stored_as_the_requirements_write_it() {
        let decoded = read(&form()).unwrap();
        assert_eq!(serde_json::to_value(&decoded).unwrap(), form());
    }

    #[test]
    fn a_bad_field_is_named_with_what_is_allowed_and_its_value_is_not_quoted() {
        let bad = [
            ("/id", json!("")),
            ("/id", json!("x".repeat(101))),
            ("/id", json!("..")),
            ("/company/number", json!("12345")),
            ("/company/name", json!("   ")),
            ("/company/contact/email", json!("secret at example")),
            ("/company/contact/phone", json!("secret")),
            ("/company/contact/phone", json!("+")),
            ("/employee/national_id", json!("0000000000x")),
            ("/employee/name", json!("a\0b")),
            ("/need/estimated_cost", json!(-1)),
            ("/need/estimated_cost", json!(1.5)),
            ("/need/hours", json!(-1)),
            ("/need/hours", json!(3e9)),
            ("/need/start_date", json!("2027-02-29")),
            ("/need/start_date", json!("+027-02-09")),
            ("/need/start_date", json!("2027-13-01")),
        ];
        for (path, value) in bad {
            let mut form = form();
            *form.pointer_mut(path).expect("a path of the form") = value;
            let error = read(&form).expect_err(path).to_string();
            let field = format!("form{}: must ", path.replace('/', "."));
            assert!(error.starts_with(&field), "{error}");
            assert!(!error.contains("secret"), "{error}");
            assert!(!error.contains("0000000000x"), "{error}");
        }
        let mut whole = form();
        whole["need"]["hours"] = json!(97.0);
        assert_eq!(read(&whole).unwrap().need.hours, 97);
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
