//! Owns the events of the shipped application, its policies and tables, and the one `match` from each event
//! to its handlers. It does not know how events are queued, leased or retried.

pub mod checks;
pub mod client;
mod credentials;
pub mod forms;
pub mod medical;
pub(crate) mod schema;
pub mod submission;
pub mod verb;

use std::time::Duration;

use checks::handler::{AI_CHECK, Checks, PLACES};
use checks::{CheckEvent, Filter};
use client::HttpClient;
use forms::events::FormEvent;
use forms::handlers;
use forms::services::Services;
use medical::MedicalJob;
use tidegate::config::environment;
use tidegate::migrate::Migrations;
use tidegate::{Context, Dispatch, Error, Handlers, Lookup, Policy};
use tidegate_admin::Program;

tidegate::events! {
    /// Every event this program publishes and handles, system by system.
    #[derive(Debug)]
    pub enum Event {
        /// A step of the forms system.
        Form(FormEvent),
        /// A check.
        Check(CheckEvent),
        /// A job on a patient's data.
        Medical(MedicalJob),
    }
}

/// The shipped program: the handlers of its events and the services that they call.
#[derive(Debug, Clone)]
pub struct App {
    forms: Services,
    checks: Checks,
    medical: medical::services::Services,
}

/// The program's own tables.
pub const TABLES: Migrations = tidegate::migrations!("app":
    "migrations/V0001__create_forms.sql",
    "migrations/V0002__create_checks.sql",
    "migrations/V0003__create_medical.sql",
    "migrations/V0004__create_callers.sql",
    "migrations/V0005__privacy.sql",
    "migrations/V0006__least_privilege.sql",
)
.grants(include_str!("../../migrations/roles.sql"));

/// How long a medical job waits for a service that does not answer. Its client polls, and later jobs of its
/// patient wait behind it.
const JOB_WAITS: Duration = Duration::from_hours(24);

/// How long a check may take, and how long it waits for an AI service that does not answer.
const CHECK_TAKES: Duration = Duration::from_mins(2);
const CHECK_WAITS: Duration = Duration::from_hours(1);

/// Builds the program for the command line and the functions. `ISSUING_KIND` and `ISSUING_STAGE` define which
/// messages request an AI check.
pub fn program() -> Program {
    let filter = Filter::from_settings(&environment);
    let received = filter.clone();
    let checks = Policy::default()
        .concurrency(PLACES.into())
        .handler_timeout(CHECK_TAKES)
        .give_up_after(CHECK_WAITS);
    let program = Program::new(App::from_settings);
    let program = medical::KINDS.iter().fold(program, |program, kind| {
        program.policy(kind, Policy::default().give_up_after(JOB_WAITS))
    });
    program
        .policy("issuings-ai-checks", checks)
        .tables(TABLES)
        .retention("FORMS_RETENTION", "forms.expire")
        .retention("CHECKS_RETENTION", "checks.expire")
        .retention("MEDICAL_RETENTION", "medical.expire")
        .action("receive_issuing", move |database, fields| {
            checks::answer(filter.clone(), database, fields)
        })
        .receive(move |transaction, message| {
            let filter = received.clone();
            Box::pin(async move { submission::receive(transaction, &filter, message).await })
        })
}

impl App {
    /// Reads the base URLs of the services: `ARCHIVE_URL`, `CASES_URL`, `NOTIFICATIONS_URL`; `AI_CHECK_URL`;
    /// `OTP_URL`, `SMS_URL`, `SIGNATURE_URL`. If a URL is not set, the events that need this service wait,
    /// and everything else works. `SIGNATURES=unverified` does without the signature service.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is malformed. It names the setting and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let http = HttpClient::default();
        Ok(Self {
            forms: Services::from_settings(lookup, &http)?,
            checks: Checks::from_settings(lookup, &http)?,
            medical: medical::services::Services::from_settings(lookup, &http)?,
        })
    }
}

impl Dispatch for App {
    type Event = Event;

    fn handlers<'a>(&'a self, event: &'a Event, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Event::Form(event) => handlers::handlers(&self.forms, event, ctx),
            Event::Check(CheckEvent::IssuingsAiChecks(event)) => {
                Handlers::one("check_issuing", self.checks.check_issuing(event, ctx))
                    .calls(AI_CHECK)
            }
            Event::Medical(job) => job.handlers(&self.medical, ctx),
        }
    }

    fn warnings(&self) -> Vec<&'static str> {
        self.medical.warnings()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidegate::testing::handlers_of;
    use tidegate::{DecodeError, Event as _};

    use super::*;

    /// The documented handlers of each kind, in order, each with its one service.
    const HANDLERS: &[(&str, &[(&str, &str)])] = &[
        ("form_submitted", &[("archive_form", "archive")]),
        ("form_archived", &[("open_case", "cases")]),
        (
            "case_opened",
            &[
                ("archive_note", "archive"),
                ("notify_received", "notifications"),
            ],
        ),
        ("grant_letter_received", &[("archive_letter", "archive")]),
        ("grant_letter_archived", &[("save_grant", "database")]),
        ("grant_saved", &[("notify_approved", "notifications")]),
        ("external_letter_received", &[("archive_letter", "archive")]),
        (
            "external_letter_archived",
            &[
                ("save_external_grant", "database"),
                ("notify_external", "notifications"),
            ],
        ),
        ("form_cancelled", &[("notify_cancelled", "notifications")]),
        (
            "form_declined",
            &[
                ("archive_decision", "archive"),
                ("notify_declined", "notifications"),
            ],
        ),
        ("grant_letter_viewed", &[("count_view", "database")]),
        ("issuings-ai-checks", &[("check_issuing", "ai_check")]),
    ];

    // The service of each medical job. Its only handler has the name of its kind. A signed job of another
    // service than signature calls that one besides: service_request_recall_job and _cancel_job.
    const JOBS: &[(&str, &str)] = &[
        ("approval_create_job", "otp"),
        ("approval_resend_job", "otp"),
        ("diagnostic_report_package_cancel_job", "signature"),
        ("diagnostic_report_package_create_job", "signature"),
        ("episode_cancel_job", "database"),
        ("episode_close_job", "database"),
        ("episode_create_job", "database"),
        ("episode_update_job", "database"),
        ("package_cancel_job", "signature"),
        ("package_create_job", "signature"),
        ("procedure_cancel_job", "signature"),
        ("procedure_create_job", "signature"),
        ("service_request_cancel_job", "sms"),
        ("service_request_close_job", "database"),
        ("service_request_complete_job", "database"),
        ("service_request_create_job", "signature"),
        ("service_request_process_job", "database"),
        ("service_request_recall_job", "sms"),
        ("service_request_release_job", "database"),
        ("service_request_resend_job", "sms"),
        ("service_request_use_job", "database"),
    ];

    /// A payload with the required fields of the kind.
    fn payload(kind: &str) -> Value {
        if medical::KINDS.contains(&kind) {
            return medical::payload::tests::sample(kind);
        }
        let measure = json!({"case_number": "C1", "measure_id": "M1"});
        json!({
            "form": {
                "id": "f1",
                "company": {"number": "000000001", "name": "Company 1",
                    "contact": {"name": "Contact 1", "email": "contact@example.org", "phone": "0000"}},
                "employee": {"national_id": "00000000001", "name": "Employee 1"},
                "expert": {"name": "Expert 1", "company": "Company 2", "competence": "Ergonomics"},
                "need": {"reason": "Reason", "requirement": "Requirement", "estimated_cost": 1,
                    "hours": 1, "start_date": "2027-01-11"},
                "status": "submitted",
            },
            "form_id": "f1", "document_id": "D1", "journal_id": "J1", "letter_id": "L1",
            "case_number": "C1", "measure_id": "M1", "grant_number": "G1", "measure": measure,
            "grant": {"grant_number": "G1", "measure": measure, "company_number": "000000001",
                "amount": 1, "valid_from": "2027-01-11", "valid_to": "2027-06-30"},
            "triggerId": "T1", "applicationId": "A1",
        })
    }

    #[test]
    fn a12_f3_every_kind_has_handlers_and_a18_each_names_its_one_service() {
        let app = App::from_settings(&|_| None).unwrap();
        let jobs = JOBS.iter().map(|job| (job.0, vec![*job]));
        let all = HANDLERS
            .iter()
            .map(|(kind, handlers)| (*kind, handlers.to_vec()));
        let all: Vec<(&str, Vec<(&str, &str)>)> = all.chain(jobs).collect();
        let kinds = all.iter().map(|(kind, _)| kind);
        assert!(Event::KINDS.iter().eq(kinds), "all kinds are listed");
        for (kind, promised) in &all {
            let payload = serde_json::to_vec(&payload(kind)).unwrap();
            let event = Event::decode(kind, Some(&payload)).unwrap();
            assert_eq!(event.kind(), *kind, "A7");
            let listed: Vec<(&str, &str)> = handlers_of(&app, &event)
                .into_iter()
                .map(|(name, service)| (name, service.unwrap_or("database")))
                .collect();
            assert_eq!(listed, *promised, "{kind}");
            let mut names: Vec<&str> = listed.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(
                names.len(),
                listed.len(),
                "{kind}: results are stored by name"
            );
        }
    }

    #[test]
    fn a16_an_event_reaches_the_handlers_of_its_own_type_only() {
        for kind in Event::KINDS {
            let event =
                Event::decode(kind, Some(&serde_json::to_vec(&payload(kind)).unwrap())).unwrap();
            let stored = event.encode().unwrap();
            // The stored payload of a kind decodes as that kind again, without loss.
            let again = Event::decode(kind, Some(stored.get().as_bytes())).unwrap();
            assert_eq!(again.encode().unwrap().get(), stored.get(), "{kind}");
            // A payload without the fields of the kind reaches no handler.
            let foreign = Event::decode(kind, Some(b"{}")).expect_err(kind);
            assert!(matches!(foreign, DecodeError::Payload { .. }), "{foreign}");
        }
    }
}
