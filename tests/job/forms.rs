//! The forms system against a real Postgres and a stand-in for its services.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::intake::{Message, is_refusal};
use tidegate::testing::handlers_of;
use tidegate::{DrainOptions, DrainReport, Event as _, NewEvent};
use tidegate_admin::{Audit, ForgetReport, ForgetRequest, Whom, parse_subject};

use crate::application::{World, retrying_in_an_hour};
use crate::support::services::{self, Mode, Services};
use crate::support::{self, wait_for_a_lock, words};
use serde_json::{Value, json};
use tidegate_job::app::forms::events::{FormEvent, FormSubmitted};
use tidegate_job::app::forms::{
    self, Form, Grant, Letter, Measure, MeasureNotice, SubmitReport, Viewed,
};
use tidegate_job::app::submission::Subject;
use tidegate_job::app::{App, Event};

/// What a person would not want to find in a log.
const PRIVATE: [&str; 8] = [
    "98765432109",
    "canary@example.org",
    "+47 99 88 77 66",
    "Canary Contact",
    "Canary Employee",
    "Canary Expert",
    "Canary Reason",
    "Canary Requirement",
];

fn letter(external_id: &str, grant: &Grant) -> Letter {
    Letter {
        source: "case-system".to_owned(),
        external_id: external_id.to_owned(),
        grant: grant.clone(),
    }
}

fn notice(external_id: &str, measure: Measure) -> MeasureNotice {
    MeasureNotice {
        source: "case-system".to_owned(),
        external_id: external_id.to_owned(),
        measure,
    }
}

/// What opens the case of a form.
fn archived() -> Value {
    json!({"form_id": "f1", "document_id": "D1", "journal_id": "J1"})
}

/// What a message that was received before is answered with.
const NOTHING_NEW: SubmitReport = SubmitReport {
    id: None,
    form_id: None,
    repeated: true,
};

/// Whether a message has an event, and is about a case of another system.
fn is_external(received: &SubmitReport) -> bool {
    received.id.is_some() && received.form_id.is_none()
}

impl World {
    async fn drain_with(&self, handler_timeout: Duration) -> DrainReport {
        let options = DrainOptions {
            handler_timeout,
            ..retrying_in_an_hour()
        };
        crate::application::drain(&self.database, &self.app, &options).await
    }

    /// `state` of the archive's circuit, and the code that it last met.
    async fn archive(&self) -> Value {
        let sql = "SELECT ARRAY[state, last_error] FROM tidegate.service WHERE service = 'archive'";
        self.value(sql).await
    }

    pub async fn submit_form(&mut self, form: &Form) -> SubmitReport {
        let tx = self
            .client
            .transaction()
            .await
            .expect("a transaction starts");
        let published = forms::submit(&tx, None, form)
            .await
            .expect("the form is good");
        tx.commit().await.expect("it commits");
        published
    }

    /// Stores a form with an open case, of which no event is left.
    pub async fn store_with_case(&mut self, form: &Form, case: &Measure) {
        self.submit_form(form).await;
        let open = "WITH gone AS (DELETE FROM tidegate.event_queue WHERE correlation_id = $1)
                    UPDATE forms.form SET case_number = $2, measure_id = $3 WHERE id = $1";
        self.client
            .execute(open, &[&form.id, &case.case_number, &case.measure_id])
            .await
            .expect("form and case are good");
    }

    /// Submits a form, and drains. The case system has opened its case, but the answer is lost.
    async fn submit_and_lose_the_case(&mut self, form: &Form) -> Measure {
        self.submit_form(form).await;
        self.drain().await;
        let lost = "UPDATE forms.form SET case_number = NULL, measure_id = NULL FROM (SELECT * FROM forms.form) AS old
                    RETURNING old.case_number, old.measure_id";
        let lost = self.client.query_one(lost, &[]).await;
        let lost = lost.expect("there is a form");
        Measure {
            case_number: lost.get(0),
            measure_id: lost.get(1),
        }
    }

    /// The case that the case system has opened for a form, whose answer is still on its way.
    async fn case_to_be(&self, http: &reqwest::Client, form_id: &str) -> Measure {
        let reference = format!("form/{form_id}");
        let opened = http
            .post(format!(
                "{}/cases",
                self.services.setting("CASES_URL").expect("it is set")
            ))
            .header("Idempotency-Key", &reference)
            .json(&json!({"reference": reference}));
        let answer = opened.send().await.expect("it answers");
        answer.json().await.expect("it is a case")
    }

    async fn receive_letter(&mut self, external_id: &str, grant: &Grant) -> SubmitReport {
        let tx = self
            .client
            .transaction()
            .await
            .expect("a transaction starts");
        let received = forms::receive_letter(&tx, None, &letter(external_id, grant))
            .await
            .expect("the letter is good");
        tx.commit().await.expect("it commits");
        received
    }

    pub async fn publish(&self, kind: &str, payload: &Value) -> i64 {
        let payload = serde_json::value::to_raw_value(payload).expect("JSON is JSON");
        tidegate::publish(&self.client, &NewEvent::raw(kind, Some(payload)))
            .await
            .expect("it is published")
            .id
    }

    /// Kind and status of all that ended, oldest first.
    async fn log(&self) -> Vec<(String, String)> {
        let rows = self
            .client
            .query(
                "SELECT kind, status FROM tidegate.event_log ORDER BY id",
                &[],
            )
            .await;
        rows.expect("the log is there")
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }

    async fn forget(&self, subject: &str, dry_run: bool) -> ForgetReport {
        let url = self.db.url.clone();
        let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
        let service = tidegate_job::app::program().start(&lookup);
        let request = ForgetRequest {
            whom: Whom {
                subject: Some(parse_subject(subject).expect("it is one")),
                ..Whom::default()
            },
            audit: Audit::of("request 17"),
            dry_run,
        };
        let done = service.expect("the settings are right").run(&request).await;
        done.expect("the database answers")
    }

    /// All effects of the handlers: what the services keep, what our tables say.
    async fn forms_effects(&self) -> Value {
        let forms = self
            .value("SELECT jsonb_agg(to_jsonb(f) - 'updated_at' ORDER BY id) FROM forms.form f")
            .await;
        let grants = self
            .value("SELECT jsonb_agg(to_jsonb(g) ORDER BY grant_number) FROM forms.awarded_grant g")
            .await;
        json!({
            "archive": self.services.kept("archive"),
            "cases": self.services.kept("cases"),
            "notifications": self.services.kept("notifications"),
            "forms": forms,
            "grants": grants,
        })
    }
}

pub fn form(id: &str) -> Form {
    serde_json::from_value(json!({
        "id": id,
        "company": {"number": "000000001", "name": "Company 1",
            "contact": {"name": PRIVATE[3], "email": PRIVATE[1], "phone": PRIVATE[2]}},
        "employee": {"national_id": PRIVATE[0], "name": PRIVATE[4]},
        "expert": {"name": PRIVATE[5], "company": "Company 2", "competence": "Ergonomics"},
        "need": {"reason": PRIVATE[6], "requirement": PRIVATE[7], "estimated_cost": 25000,
            "hours": 12, "start_date": "2027-01-11"},
        "status": "draft",
    }))
    .expect("it is a form")
}

pub fn case() -> Measure {
    Measure {
        case_number: "C1".to_owned(),
        measure_id: "M1".to_owned(),
    }
}

fn grant() -> Grant {
    Grant {
        grant_number: "G1".to_owned(),
        measure: case(),
        company_number: "000000001".to_owned(),
        amount: 20_000,
        valid_from: "2027-01-11".to_owned(),
        valid_to: "2027-06-30".to_owned(),
    }
}

fn completed(kinds: &[&str]) -> Vec<(String, String)> {
    kinds
        .iter()
        .map(|kind| ((*kind).to_owned(), "COMPLETED".to_owned()))
        .collect()
}

/// One event of each kind, about form `f1`.
pub fn samples() -> Vec<(&'static str, Value)> {
    let (grant, archived) = (
        json!(grant()),
        json!({"document_id": "D1", "journal_id": "J1"}),
    );
    let with = |mut payload: Value, more: &Value| {
        for (key, value) in more.as_object().expect("an object") {
            payload[key] = value.clone();
        }
        payload
    };
    vec![
        ("form_submitted", json!({"form": form("f1")})),
        ("form_archived", with(json!({"form_id": "f1"}), &archived)),
        (
            "case_opened",
            json!({"form_id": "f1", "case_number": "C1", "measure_id": "M1"}),
        ),
        (
            "grant_letter_received",
            json!({"form_id": "f1", "letter_id": "L1", "grant": grant}),
        ),
        (
            "grant_letter_archived",
            with(json!({"form_id": "f1", "grant": grant}), &archived),
        ),
        ("grant_saved", json!({"form_id": "f1", "grant": grant})),
        (
            "external_letter_received",
            json!({"letter_id": "L1", "grant": grant}),
        ),
        (
            "external_letter_archived",
            with(json!({"grant": grant}), &archived),
        ),
        (
            "form_cancelled",
            json!({"form_id": "f1", "measure": case()}),
        ),
        (
            "form_declined",
            json!({"form_id": "f1", "letter_id": "L1", "measure": case()}),
        ),
        (
            "grant_letter_viewed",
            json!({"grant_number": "G1", "form_id": "f1"}),
        ),
    ]
}

#[tokio::test]
async fn b1_a_form_and_its_event_are_stored_together_or_not_at_all() {
    let mut world = World::new().await;
    let tx = world.client.transaction().await.unwrap();
    forms::submit(&tx, None, &form("f1")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.value("SELECT count(*) FROM forms.form").await, 0);
    assert_eq!(world.drain().await.leased, 0);

    assert!(world.submit_form(&form("f1")).await.id.is_some());
    let sql = "SELECT status FROM forms.form";
    assert_eq!(world.value(sql).await, "submitted");
    let tx = world.client.transaction().await.unwrap();
    assert!(
        forms::submit(&tx, None, &form("f1"))
            .await
            .unwrap()
            .repeated
    );
    let mut other = form("f1");
    other.need.hours += 1;
    let again = forms::submit(&tx, None, &other).await;
    let again = again.expect_err("it was handed in").to_string();
    assert!(again.starts_with("form.id: "), "{again}");
}

#[tokio::test]
async fn a17_a_submitted_form_is_archived_gets_a_case_and_both_are_notified() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    assert!(
        world.services.calls("archive").is_empty(),
        "A1: publishing runs no handler"
    );

    let report = world.drain().await;

    assert_eq!((report.completed, report.published), (3, 2), "{report:?}");
    let expected = completed(&["form_submitted", "form_archived", "case_opened"]);
    assert_eq!(world.log().await, expected);
    let found = world.services.kept("archive");
    assert_eq!(found, ["documents form/f1", "documents note/f1"]);
    assert_eq!(world.services.kept("cases"), ["cases form/f1"]);
    let seen = world.services.kept("notifications");
    assert_eq!(seen, ["cases form/f1/received/case"]);
    let case = world
        .value("SELECT ARRAY[case_number, measure_id] FROM forms.form")
        .await;
    let opened = "SELECT ARRAY[payload->>'case_number', payload->>'measure_id'] FROM tidegate.event_log WHERE kind = 'case_opened'";
    assert_eq!(case, world.value(opened).await);
}

#[tokio::test]
async fn a2_one_handler_at_a_time_calls_the_services_in_the_order_of_the_forms() {
    let mut world = World::new().await;
    for n in 10..30 {
        world.submit_form(&form(&format!("f{n}"))).await;
    }
    let options = DrainOptions {
        concurrency: 1,
        ..retrying_in_an_hour()
    };
    let report = crate::application::drain(&world.database, &world.app, &options).await;
    assert_eq!(report.completed, 60, "{report:?}");
    for service in ["archive", "cases", "notifications"] {
        let calls = world.services.calls(service);
        let references: Vec<&str> = calls.iter().map(|call| call.reference.as_str()).collect();
        assert!(references.is_sorted(), "{service}: {references:?}");
    }
}

#[tokio::test]
async fn a6_every_event_of_a_form_carries_its_id_and_its_group() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    world.drain().await;
    let tied = "SELECT count(*) FROM tidegate.event_log WHERE correlation_id = 'f1' AND group_key = 'form:f1'";
    assert_eq!(world.value(tied).await, 3);
}

#[tokio::test]
async fn a_grant_letter_for_our_case_is_archived_saved_and_notified() {
    let mut world = World::new().await;
    world.store_with_case(&form("f1"), &case()).await;
    let received = world.receive_letter("1", &grant()).await;
    assert_eq!(received.form_id.as_deref(), Some("f1"));
    assert!(received.id.is_some() && !received.repeated, "{received:?}");

    world.drain().await;

    assert_eq!(
        world.log().await,
        completed(&[
            "grant_letter_received",
            "grant_letter_archived",
            "grant_saved"
        ])
    );
    let sql = "SELECT status FROM forms.form";
    assert_eq!(world.value(sql).await, "approved");
    let sql = "SELECT form_id FROM forms.awarded_grant WHERE grant_number = 'G1'";
    assert_eq!(world.value(sql).await, "f1");
    let expected = [
        "messages form/f1/grant/G1/message",
        "statuses form/f1/grant/G1/status",
    ];
    assert_eq!(world.services.kept("notifications"), expected);
}

#[tokio::test]
async fn a_grant_letter_for_another_case_is_archived_saved_and_notified_too() {
    let mut world = World::new().await;
    let received = world.receive_letter("1", &grant()).await;
    assert!(is_external(&received), "{received:?}");

    world.drain().await;

    let expected = completed(&["external_letter_received", "external_letter_archived"]);
    assert_eq!(world.log().await, expected);
    let sql = "SELECT form_id FROM forms.awarded_grant WHERE grant_number = 'G1'";
    assert_eq!(world.value(sql).await, Value::Null);
    let told = [
        "cases grant/G1/case",
        "messages grant/G1/message",
        "statuses grant/G1/status",
    ];
    assert_eq!(world.services.kept("notifications"), told);
}

#[tokio::test]
async fn a_cancelled_measure_cancels_its_form_and_no_grant_brings_it_back() {
    let mut world = World::new().await;
    world.store_with_case(&form("f1"), &case()).await;
    let tx = world.client.transaction().await.unwrap();
    let ours = forms::cancel(&tx, None, &notice("1", case())).await;
    let ours = ours.unwrap();
    let other = Measure {
        case_number: "C2".to_owned(),
        ..case()
    };
    let unrelated = forms::cancel(&tx, None, &notice("2", other)).await;
    let unrelated = unrelated.unwrap();
    tx.commit().await.unwrap();
    assert!(ours.id.is_some() && ours.form_id.is_some(), "{ours:?}");
    assert_eq!((unrelated.id, unrelated.repeated), (None, false));

    world.drain().await;
    assert_eq!(world.log().await, completed(&["form_cancelled"]));
    let sql = "SELECT status FROM forms.form";
    assert_eq!(world.value(sql).await, "cancelled");
    let found = world.services.kept("notifications");
    assert_eq!(found, ["statuses form/f1/cancelled/status"]);

    world.receive_letter("3", &grant()).await;
    world.drain().await;
    let sql = "SELECT status FROM forms.form";
    assert_eq!(world.value(sql).await, "cancelled");
    let codes = "SELECT errors->0->>'code' FROM tidegate.event_log WHERE kind = 'grant_saved'";
    assert_eq!(world.value(codes).await, "form_status");
    assert_eq!(
        world.services.kept("notifications"),
        ["statuses form/f1/cancelled/status"],
        "nobody is told of an approval"
    );
}

#[tokio::test]
async fn a_declined_application_is_archived_and_told_and_no_letter_brings_it_back() {
    let mut world = World::new().await;
    world.store_with_case(&form("f1"), &case()).await;
    for repeated in [false, true] {
        let tx = world.client.transaction().await.unwrap();
        let declined = forms::decline(&tx, None, &notice("1", case())).await;
        tx.commit().await.unwrap();
        assert_eq!(declined.unwrap().repeated, repeated);
    }
    world.drain().await;
    assert_eq!(world.log().await, completed(&["form_declined"]));
    let status = "SELECT status FROM forms.form";
    assert_eq!(world.value(status).await, "declined");
    let letter = "SELECT 'documents letter/' || id FROM forms.message";
    let found = json!(world.services.kept("archive"));
    assert_eq!(found, json!([world.value(letter).await]));
    let told = [
        "messages form/f1/declined/message",
        "statuses form/f1/declined/status",
    ];
    assert_eq!(world.services.kept("notifications"), told);

    world.receive_letter("2", &grant()).await;
    let tx = world.client.transaction().await.unwrap();
    forms::cancel(&tx, None, &notice("3", case()))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    world.drain().await;
    assert_eq!(world.value(status).await, "declined");
    assert_eq!(world.services.kept("notifications"), told);
    let ended = "SELECT array_agg(kind || ' ' || (errors->0->>'code') ORDER BY id) FROM tidegate.event_log WHERE status <> 'COMPLETED'";
    assert_eq!(
        world.value(&format!("SELECT to_jsonb(({ended}))")).await,
        json!([
            "form_cancelled form_status",
            "grant_letter_archived form_status"
        ])
    );
}

#[tokio::test]
async fn a_notice_before_the_number_of_its_case_ends_the_form_as_soon_as_it_has_one() {
    for (declines, status) in [(true, "declined"), (false, "cancelled")] {
        let mut world = World::new().await;
        let case = world.submit_and_lose_the_case(&form("f1")).await;
        let notice = notice("1", case.clone());
        let tx = world.client.transaction().await.unwrap();
        let early = if declines {
            forms::decline(&tx, None, &notice).await.unwrap()
        } else {
            forms::cancel(&tx, None, &notice).await.unwrap()
        };
        tx.commit().await.unwrap();
        assert_eq!((early.id, early.form_id), (None, None));

        world.publish("form_archived", &archived()).await;
        world.drain().await;
        let ended = format!("form_{status}");
        let kinds = ["form_archived", "case_opened", &ended];
        assert_eq!(world.log().await[3..], completed(&kinds));
        let sql = "SELECT status FROM forms.form";
        assert_eq!(world.value(sql).await, status);
        let sql = "SELECT form_id FROM forms.message";
        assert_eq!(world.value(sql).await, "f1");

        let grant = Grant {
            measure: case,
            ..grant()
        };
        world.receive_letter("2", &grant).await;
        world.drain().await;
        let sent = world.services.kept("notifications");
        assert!(sent.contains(&format!("statuses form/f1/{status}/status")));
        let approvals = sent.iter().filter(|sent| sent.contains("/grant/"));
        assert_eq!(approvals.count(), 0, "{sent:?}");
    }
}

/// Neither transaction sees what the other has not committed.
#[tokio::test]
async fn a_notice_that_meets_the_opening_of_its_case_ends_the_form() {
    let mut world = World::new().await;
    let case = world.submit_and_lose_the_case(&form("f1")).await;
    world.publish("form_archived", &archived()).await;
    let mut receiver = world.database.connect().await.unwrap();
    let tx = receiver.transaction().await.unwrap();
    forms::cancel(&tx, None, &notice("1", case)).await.unwrap();
    let commits = async {
        wait_for_a_lock(&world.client).await;
        tx.commit().await.unwrap();
    };
    tokio::join!(world.drain(), commits);
    assert_eq!(
        world.value("SELECT status FROM forms.form").await,
        "cancelled"
    );
}

/// The company has two forms, and the letter may be about either.
#[tokio::test]
async fn a_letter_before_the_number_of_its_case_waits_for_it_and_changes_the_forms_own_entry() {
    for ours in [true, false] {
        let mut world = World::new().await;
        let measure = if ours {
            world.case_to_be(&reqwest::Client::new(), "f2").await
        } else {
            case()
        };
        world.services.set("cases", Mode::Down);
        world.submit_form(&form("f1")).await;
        world.submit_form(&form("f2")).await;
        world.drain().await;
        let grant = Grant { measure, ..grant() };
        assert!(is_external(&world.receive_letter("1", &grant).await));
        world.drain().await;
        assert!(world.services.calls("notifications").is_empty());

        world.services.set("cases", Mode::Up);
        world.time_passes().await;
        world.requeue().await;
        world.drain().await;
        let failed = "SELECT count(*) FROM tidegate.event_log WHERE status <> 'COMPLETED'";
        assert_eq!(world.value(failed).await, 0, "{:?}", world.log().await);
        let approved = "SELECT array_agg(id) FROM forms.form WHERE status = 'approved'";
        let of = "SELECT form_id FROM forms.awarded_grant";
        let told = world.services.kept("notifications");
        let told = told.iter().filter(|one| one.contains("grant/"));
        let told: Vec<&str> = told.map(String::as_str).collect();
        if ours {
            assert_eq!(world.value(approved).await, json!(["f2"]));
            assert_eq!(world.value(of).await, "f2");
            let own = [
                "messages form/f2/grant/G1/message",
                "statuses form/f2/grant/G1/status",
            ];
            assert_eq!(told, own);
        } else {
            assert_eq!(world.value(approved).await, Value::Null);
            assert_eq!(world.value(of).await, Value::Null);
            assert_eq!(told.len(), 3, "{told:?}");
        }
    }
}

/// A form whose case is never opened, given up or forgotten, keeps no letter to its company for ever.
#[tokio::test]
async fn a_letter_to_a_company_whose_form_gets_no_case_is_one_of_another_system() {
    for forgotten in [false, true] {
        let mut world = World::new().await;
        world.services.set("cases", Mode::Down);
        world.submit_form(&form("f1")).await;
        world.drain().await;
        world.receive_letter("1", &grant()).await;
        if forgotten {
            world.forget("form=f1", false).await;
        } else {
            let given_up = "DELETE FROM tidegate.events WHERE kind = 'form_archived'";
            world.execute(given_up).await;
        }
        world.drain().await;
        let told = world.services.kept("notifications");
        assert_eq!(told.len(), 3, "{told:?}");
    }
}

/// What arrives about a form, the form's end, what its company is told of it, what if the form is drained
/// before it is cancelled, and whether the letter stores a grant of the form.
const ORDERS: [(&str, &str, &str, &str, bool); 15] = [
    ("letter", "approved", "approved", "approved", true),
    ("decline", "declined", "declined", "declined", false),
    ("cancellation", "cancelled", "cancelled", "cancelled", false),
    ("letter decline", "approved", "approved", "approved", true),
    ("decline letter", "declined", "declined", "declined", false),
    ("letter cancellation", "cancelled", "cancelled", BOTH, true),
    (
        "cancellation letter",
        "cancelled",
        "cancelled",
        "cancelled",
        true,
    ),
    (
        "decline cancellation",
        "declined",
        "declined",
        "declined",
        false,
    ),
    (
        "cancellation decline",
        "cancelled",
        "cancelled",
        "cancelled",
        false,
    ),
    (
        "letter decline cancellation",
        "cancelled",
        "cancelled",
        BOTH,
        true,
    ),
    (
        "letter cancellation decline",
        "cancelled",
        "cancelled",
        BOTH,
        true,
    ),
    (
        "decline letter cancellation",
        "declined",
        "declined",
        "declined",
        false,
    ),
    (
        "decline cancellation letter",
        "declined",
        "declined",
        "declined",
        false,
    ),
    (
        "cancellation letter decline",
        "cancelled",
        "cancelled",
        "cancelled",
        true,
    ),
    (
        "cancellation decline letter",
        "cancelled",
        "cancelled",
        "cancelled",
        true,
    ),
];
const BOTH: &str = "approved cancelled";

/// After how many of the arrivals the queue is drained, besides at the end.
const DRAINS: [usize; 3] = [0, 1, 4];

/// One order of arrivals, of a form of its own.
struct Arrivals {
    form: Form,
    grant: Grant,
    order: Vec<&'static str>,
    row: usize,
}

impl Arrivals {
    /// Every row with the form at every place. The case system has opened the cases already.
    async fn all(world: &World) -> Vec<Self> {
        let (http, mut all) = (reqwest::Client::new(), Vec::new());
        for (row, (messages, ..)) in ORDERS.iter().enumerate() {
            let messages: Vec<&str> = messages.split(' ').collect();
            for place in 0..=messages.len() {
                let mut order = messages.clone();
                order.insert(place, "form");
                let id = format!("{row}-{place}");
                let mut form = form(&id);
                form.company.number = format!("{:09}", all.len() + 1);
                let grant = Grant {
                    grant_number: format!("G-{id}"),
                    measure: world.case_to_be(&http, &id).await,
                    company_number: form.company.number.clone(),
                    ..grant()
                };
                all.push(Self {
                    form,
                    grant,
                    order,
                    row,
                });
            }
        }
        all
    }

    async fn arrive(&self, world: &mut World, what: &str) {
        let id = &self.form.id;
        let measure = &self.grant.measure;
        let (subject, json) = match what {
            "form" => (Subject::Form, json!(self.form)),
            "letter" => (
                Subject::Letter,
                json!({"source": "l", "external_id": id, "grant": self.grant}),
            ),
            "decline" => (
                Subject::Decline,
                json!({"source": "d", "external_id": id, "measure": measure}),
            ),
            _ => (
                Subject::Cancellation,
                json!({"source": "c", "external_id": id, "measure": measure}),
            ),
        };
        let tx = world.client.transaction().await.unwrap();
        subject.take_in(&tx, None, &json).await.unwrap();
        tx.commit().await.unwrap();
    }

    fn place(&self, what: &str) -> usize {
        let place = self.order.iter().position(|one| *one == what);
        place.unwrap_or(usize::MAX)
    }

    /// The end, what the company was told, whether the grant is the form's, and whether the company was told
    /// of a grant of another system.
    fn found(&self, forms: &Value, sent: &[String]) -> Value {
        let (form, grant) = (&self.form.id, &self.grant.grant_number);
        let told = |about: &&&str| sent.contains(&format!("statuses form/{form}/{about}/status"));
        let approved = sent.contains(&format!("statuses form/{form}/grant/{grant}/status"));
        let otherwise = ["declined", "cancelled"];
        let told: Vec<&str> = (approved.then_some("approved").into_iter())
            .chain(otherwise.iter().filter(told).copied())
            .collect();
        let elsewhere = sent.contains(&format!("cases grant/{grant}/case"));
        let is = &forms[form];
        json!([is["status"], told, is["granted"], elsewhere])
    }

    fn expected(&self, drains: usize) -> Value {
        let (_, end, told, told_before, stored) = ORDERS[self.row];
        let (form, letter) = (self.place("form"), self.place("letter"));
        let known = form.max(letter);
        let is_before = known < drains && known < self.place("cancellation");
        let told = if is_before { told_before } else { told };
        // Nobody knew yet that there would be a form.
        let elsewhere = letter < drains && letter < form;
        json!([end, words(told), stored, elsewhere])
    }
}

#[tokio::test]
async fn the_first_end_to_arrive_stands_in_all_orders_however_they_are_drained() {
    for drains in DRAINS {
        let mut world = World::new().await;
        let all = Arrivals::all(&world).await;
        for step in 0..4 {
            for one in &all {
                if let Some(what) = one.order.get(step) {
                    one.arrive(&mut world, what).await;
                }
            }
            if step < drains {
                world.drain().await;
            }
        }
        world.drain().await;
        let left = "SELECT count(*) FROM tidegate.event_queue";
        assert_eq!(world.value(left).await, 0, "{drains} drains");
        let forms = "SELECT jsonb_object_agg(id, jsonb_build_object('status', status, 'granted',
                            EXISTS (SELECT FROM forms.awarded_grant WHERE form_id = f.id))) FROM forms.form AS f";
        let forms = world.value(forms).await;
        let sent = world.services.kept("notifications");
        let mut wrong = Vec::new();
        for one in &all {
            let (found, expected) = (one.found(&forms, &sent), one.expected(drains));
            if found != expected {
                wrong.push(format!("{:?}: {found}, not {expected}", one.order));
            }
        }
        assert!(
            wrong.is_empty(),
            "{drains} drains: {} of {}: {wrong:#?}",
            wrong.len(),
            all.len()
        );
        let odd = "SELECT count(*) FROM tidegate.event_log, jsonb_array_elements(errors) AS error
                    WHERE status <> 'COMPLETED' AND error->>'code' <> 'form_status'";
        assert_eq!(world.value(odd).await, 0, "{drains} drains");
    }
}

#[tokio::test]
async fn companies_read_the_texts_of_the_table() {
    let mut world = World::new().await;
    let ours = "UPDATE forms.notice SET text = 'Vi har mottatt søknaden' WHERE about = 'received'";
    world.client.batch_execute(ours).await.unwrap();
    world.submit_form(&form("f1")).await;
    world.drain().await;
    let read = &world.services.calls("notifications")[0].body["text"];
    assert_eq!(read, "Vi har mottatt søknaden");

    let none = "DELETE FROM forms.notice WHERE about = 'received'";
    world.client.batch_execute(none).await.unwrap();
    world.submit_form(&form("f2")).await;
    let report = world.drain().await;
    assert_eq!(report.retried, 1, "{report:?}");
    let error = "SELECT last_error FROM tidegate.event_queue";
    let expected = "notice_missing: forms.notice has no text for received, case";
    assert_eq!(world.value(error).await, expected);
}

#[tokio::test]
async fn the_steps_of_a_form_are_found_among_thousands_of_others() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    world.drain().await;
    let others = "INSERT INTO tidegate.event_log (id, kind, group_key, correlation_id, status, attempts, max_attempts,
                                                  errors, created_at, finished_at, expires_at)
        SELECT 1000 + n, 'form_archived', 'form:o' || n, 'o' || n, 'COMPLETED', 1, 5, '[]', now(), now(), now() + interval '9 days'
          FROM generate_series(1, 20000) AS n";
    world.client.batch_execute(others).await.unwrap();
    for statistics in ["", "ANALYZE tidegate.event_queue, tidegate.event_log"] {
        world.client.batch_execute(statistics).await.unwrap();
        let tx = world.client.transaction().await.unwrap();
        let read = "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables
                     WHERE schemaname = 'tidegate'";
        let steps = "SELECT jsonb_array_length(forms.steps('f1'))";
        let steps: i32 = tx.query_one(steps, &[]).await.unwrap().get(0);
        let read: i64 = tx.query_one(read, &[]).await.unwrap().get(0);
        assert_eq!(steps, 3);
        assert!((1..100).contains(&read), "{read} rows");
    }
}

#[tokio::test]
async fn b23_views_of_a_letter_are_counted_by_the_statistics() {
    let mut world = World::new().await;
    for _ in 0..3 {
        let tx = world.client.transaction().await.unwrap();
        let viewed = Viewed {
            grant_number: "G1".to_owned(),
        };
        forms::letter_viewed(&tx, None, &viewed).await.unwrap();
        tx.commit().await.unwrap();
    }
    world.drain().await;
    let sql = "SELECT completed FROM tidegate.stats WHERE kind = 'grant_letter_viewed'";
    assert_eq!(world.value(sql).await, 3);
}

#[tokio::test]
async fn a19_while_the_case_system_is_down_the_archive_is_not_called_again() {
    let mut world = World::new().await;
    world.services.set("cases", Mode::Down);
    world.submit_form(&form("f1")).await;
    for attempt in 1..=3 {
        world.requeue().await;
        assert_eq!(world.drain().await.deferred, 1);
        assert_eq!(world.services.calls("cases").len(), attempt);
        assert_eq!(world.services.calls("archive").len(), 1);
    }
    assert_eq!(
        world
            .value("SELECT last_error FROM tidegate.event_queue")
            .await,
        "cases_unavailable: cases answered 503",
        "A10: the fault is told while the event waits"
    );

    world.services.set("cases", Mode::Up);
    world.requeue().await;
    world.drain().await;
    let expected = completed(&["form_submitted", "form_archived", "case_opened"]);
    assert_eq!(world.log().await, expected);
    let documents: Vec<String> = world
        .services
        .calls("archive")
        .into_iter()
        .map(|call| call.reference)
        .collect();
    assert_eq!(documents, ["form/f1", "note/f1"]);
}

#[tokio::test]
async fn a19_while_notifications_are_down_the_note_is_not_archived_again() {
    let mut world = World::new().await;
    world.store_with_case(&form("f1"), &case()).await;
    world.services.set("notifications", Mode::Down);
    world
        .publish(
            "case_opened",
            &json!({"form_id": "f1", "case_number": "C1", "measure_id": "M1"}),
        )
        .await;
    assert_eq!(world.drain().await.deferred, 1);

    world.services.set("notifications", Mode::Up);
    world.requeue().await;
    assert_eq!(world.drain().await.completed, 1);
    assert_eq!(world.services.calls("archive").len(), 1);
    assert_eq!(world.services.calls("notifications").len(), 2);
}

#[tokio::test]
async fn a19_a_sub_step_that_is_done_is_not_repeated_for_another_that_is_not() {
    let cases = [
        (
            "grant_saved",
            json!({"form_id": "f1", "grant": grant()}),
            vec!["messages"],
        ),
        (
            "external_letter_archived",
            json!({"document_id": "D1", "journal_id": "J1", "grant": grant()}),
            vec!["cases", "messages"],
        ),
    ];
    for (kind, payload, before) in cases {
        let mut world = World::new().await;
        world.store_with_case(&form("f1"), &case()).await;
        world
            .services
            .set_path("notifications", "statuses", Mode::Down);
        world.publish(kind, &payload).await;
        assert_eq!(world.drain().await.deferred, 1, "{kind}");
        world.services.set("notifications", Mode::Up);
        world.requeue().await;
        assert_eq!(world.drain().await.completed, 1, "{kind}");
        let calls: Vec<String> = world
            .services
            .calls("notifications")
            .into_iter()
            .map(|call| call.path)
            .collect();
        let expected: Vec<&str> = before.into_iter().chain(["statuses", "statuses"]).collect();
        assert_eq!(calls, expected, "{kind}");
    }
}

#[tokio::test]
async fn what_is_archived_already_counts_as_success_and_its_ids_go_on() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    let archive = world.services.setting("ARCHIVE_URL").unwrap();
    let earlier = reqwest::Client::new()
        .post(format!("{archive}/documents"))
        .header("Idempotency-Key", "of somebody else")
        .json(&json!({"reference": "form/f1"}));
    let earlier: Value = earlier.send().await.unwrap().json().await.unwrap();

    world.drain().await;

    assert_eq!(world.services.calls("archive")[1].status, 409);
    let archived = "SELECT payload FROM tidegate.event_log WHERE kind = 'form_archived'";
    assert_eq!(
        world.value(archived).await["document_id"],
        earlier["document_id"]
    );
    assert_eq!(
        world.value(archived).await["journal_id"],
        earlier["journal_id"]
    );
}

#[tokio::test]
async fn a_missing_row_is_final_at_the_first_attempt() {
    let world = World::new().await;
    let needs_a_form = [
        "form_archived",
        "case_opened",
        "grant_letter_archived",
        "grant_saved",
        "form_cancelled",
        "form_declined",
    ];
    for (kind, payload) in samples()
        .into_iter()
        .filter(|(kind, _)| needs_a_form.contains(kind))
    {
        let id = world.publish(kind, &payload).await;
        assert_eq!(world.drain().await.completed_with_errors, 1, "{kind}");
        let row = format!("SELECT to_jsonb(l) FROM tidegate.event_log l WHERE id = {id}");
        let row = world.value(&row).await;
        let codes: Vec<&str> = row["errors"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|error| error["code"].as_str())
            .collect();
        assert!(
            !codes.is_empty() && codes.iter().all(|code| *code == "form_not_found"),
            "{kind}: {codes:?}"
        );
        assert_eq!(row["attempts"], 1, "{kind}");
    }
}

#[tokio::test]
async fn a15_what_a_service_refuses_costs_an_attempt_and_all_else_waits_and_costs_none() {
    let refused = ("PENDING", "archive_refused", 1);
    let waits = ("PENDING", "archive_unavailable", 0);
    for (status, (end, code, attempts)) in [
        (400, refused),
        (410, refused),
        (422, refused),
        (401, ("PENDING", "credentials", 0)),
        // No thing is missing: the base URL leads nowhere.
        (404, waits),
        (413, waits),
        (429, waits),
        (500, waits),
    ] {
        let mut world = World::new().await;
        world.services.set("archive", Mode::Refuse { status });
        let id = world.submit_form(&form("f1")).await.id.unwrap();
        world.drain().await;
        let found = format!(
            "SELECT jsonb_build_array(status, split_part(last_error, ':', 1), attempts) FROM tidegate.events WHERE id = {id}"
        );
        let expected = json!([end, code, attempts]);
        assert_eq!(world.value(&found).await, expected, "{status}");
    }
}

#[tokio::test]
async fn what_a_service_goes_on_refusing_fails_with_its_attempts_and_can_be_replayed() {
    for (service, kind) in [
        ("archive", "form_submitted"),
        ("cases", "form_archived"),
        ("notifications", "case_opened"),
    ] {
        let mut world = World::new().await;
        world.services.set(service, Mode::Refuse { status: 422 });
        world.submit_form(&form("f1")).await;
        for _ in 0..5 {
            world.drain().await;
            // Not through the view, which would grant a further attempt.
            world.time_passes().await;
        }
        let end = "SELECT jsonb_build_array(kind, attempts, errors->0->>'code') FROM tidegate.event_log WHERE status = 'FAILED'";
        let refused = json!([kind, 5, format!("{service}_refused")]);
        assert_eq!(world.value(end).await, refused);

        world.services.set(service, Mode::Up);
        let replay = "SELECT tidegate.replay(since => now() - interval '1 hour', status => 'FAILED', reason => 'mended')";
        world.execute(replay).await;
        world.drain().await;
        let left = "SELECT count(*) FROM tidegate.event_queue";
        let told = world.services.kept("notifications");
        assert_eq!(
            (world.value(left).await, told.len()),
            (json!(0), 1),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn an_archive_that_refuses_our_credentials_is_not_called_again_at_once() {
    let mut world = World::new().await;
    world.services.set("archive", Mode::Refuse { status: 401 });
    world.submit_form(&form("f1")).await;
    assert_eq!(world.drain().await.deferred, 1);
    assert_eq!(world.archive().await, json!(["open", "credentials"]));
    let hold = "UPDATE tidegate.service SET retry_at = clock_timestamp() + interval '1 h'";
    world.client.batch_execute(hold).await.unwrap();
    world.submit_form(&form("f2")).await;
    world.requeue().await;
    world.drain().await;
    assert_eq!(world.services.calls("archive").len(), 1);

    world.services.set("archive", Mode::Up);
    world.time_passes().await;
    assert_eq!(world.drain().await.completed, 6);
}

#[tokio::test]
async fn a_token_that_was_changed_is_read_again_and_costs_no_event_a_failure() {
    let kept = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kept.path(), "canary-one").unwrap();
    let services = Services::start().await;
    let app = App::from_settings(&|name| match name {
        "ARCHIVE_AUTH_FILE" => kept.path().to_str().map(ToOwned::to_owned),
        name => services.setting(name),
    });
    services.want("archive", "Bearer canary-one");
    let mut world = World::with(services, app.unwrap()).await;
    world.submit_form(&form("f1")).await;
    assert_eq!(world.drain().await.completed, 3);

    world.services.want("archive", "Bearer canary-two");
    std::fs::write(kept.path(), "canary-two").unwrap();
    world.submit_form(&form("f2")).await;
    let report = world.drain().await;
    assert_eq!((report.completed, report.deferred), (3, 0), "{report:?}");
    let others = ["cases", "notifications"].map(|name| world.services.calls(name));
    let shown = others
        .iter()
        .flatten()
        .any(|call| call.credentials.is_some());
    assert!(!shown, "the token is the archive's alone");

    world.services.want("archive", "Bearer canary-three");
    world.submit_form(&form("f3")).await;
    assert_eq!(world.drain().await.deferred, 1);
    assert_eq!(world.archive().await, json!(["open", "credentials"]));
    let told = world
        .value("SELECT to_jsonb(q) FROM tidegate.event_queue q")
        .await;
    assert!(!told.to_string().contains("canary-"), "{told}");
}

#[tokio::test]
async fn an_archive_that_is_busy_says_when_its_event_comes_again() {
    let mut world = World::new().await;
    world.services.set("archive", Mode::Busy { seconds: 1800 });
    world.submit_form(&form("f1")).await;
    assert_eq!(world.drain().await.deferred, 1);
    let wait = "SELECT available_at - clock_timestamp() BETWEEN '29 min' AND '30 min' FROM tidegate.event_queue";
    assert_eq!(world.value(wait).await, true);
}

#[tokio::test]
async fn a_conflict_is_a_success_for_the_archive_only() {
    let mut world = World::new().await;
    world.services.set("cases", Mode::Refuse { status: 409 });
    world.submit_form(&form("f1")).await;
    assert_eq!(world.drain().await.retried, 1);
}

#[tokio::test]
async fn an_unset_url_stops_its_own_handlers_only_and_names_the_variable() {
    let services = Services::start().await;
    let app = App::from_settings(&|_| None).unwrap();
    let mut world = World::with(services, app).await;
    world.submit_form(&form("f1")).await;
    world
        .publish("grant_letter_viewed", &json!({"grant_number": "G1"}))
        .await;
    let report = world.drain().await;
    assert_eq!((report.completed, report.deferred), (1, 1), "{report:?}");
    let error = world
        .value("SELECT last_error FROM tidegate.event_queue")
        .await;
    assert!(
        error
            .as_str()
            .is_some_and(|error| error.contains("set ARCHIVE_URL")),
        "{error}"
    );
}

/// B32 for all messages: only those of the bus that are about something else are left alone.
#[tokio::test]
async fn b32_a_message_that_is_not_understood_is_refused_and_not_dropped() {
    let world = World::new().await;
    let url = world.db.url.clone();
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    let service = tidegate_job::app::program().start(&lookup).unwrap();
    let mut intake = service.receiver().unwrap();
    let with = |more: Value| {
        let mut message = json!(form("f1"));
        let fields = message.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        message
    };
    let check = |more: Value| {
        let mut message = json!({"kind": "issuing", "triggerId": "T1", "applicationId": "A1"});
        let fields = message.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        message
    };
    let messages = [
        (with(json!({})), Err("type: ")),
        (with(json!({"Type": "form"})), Err("type: ")),
        (with(json!({"type": "Form"})), Err("type: ")),
        (
            with(json!({"type": "payment", "kind": "payment"})),
            Err("type: "),
        ),
        (
            with(json!({"type": null, "kind": "payment"})),
            Err("type: "),
        ),
        (with(json!({"kind": 7})), Err("kind: ")),
        (json!({}), Err("type: ")),
        (json!([]), Err("type: ")),
        (check(json!({"Stage": "ai-check"})), Err("stage: ")),
        (check(json!({"stage": ["ai-check"]})), Err("stage: ")),
        (check(json!({"stage": "signing"})), Ok(0)),
        (json!({"kind": "payment"}), Ok(0)),
        (with(json!({"type": "form", "kind": "payment"})), Ok(1)),
        (check(json!({"stage": "ai-check"})), Ok(2)),
    ];
    for (number, (says, expected)) in messages.into_iter().enumerate() {
        let message = Message {
            source: "here".to_owned(),
            id: number.to_string(),
            body: says.to_string().into_bytes(),
        };
        let received = intake.receive(&message, None).await;
        let stored = world
            .value("SELECT count(*) FROM tidegate.event_queue")
            .await;
        match (expected, received) {
            (Ok(events), Ok(_)) => assert_eq!(stored, events, "{says}"),
            (Err(field), Err(error)) => {
                assert!(is_refusal(&error), "{says}: {error}");
                assert!(error.to_string().starts_with(field), "{says}: {error}");
            }
            (_, other) => panic!("{says}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn the_same_letter_again_stores_and_publishes_nothing() {
    let mut world = World::new().await;
    assert!(is_external(&world.receive_letter("1", &grant()).await));
    assert_eq!(world.receive_letter("1", &grant()).await, NOTHING_NEW);
    world.drain().await;
    let found = world.receive_letter("1", &grant()).await;
    assert_eq!(found, NOTHING_NEW, "nor after its event has ended");
    assert!(is_external(&world.receive_letter("2", &grant()).await));
    assert_eq!(world.value("SELECT count(*) FROM forms.message").await, 2);
    let sql = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(world.value(sql).await, 1);
}

/// Two transactions receive the same letter; the second one waits for the first, which then ends.
async fn two_receive_at_once(first_commits: bool) -> (World, SubmitReport) {
    let mut world = World::new().await;
    let mut other = world.db.client().await;
    let pid = other
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("it answers")
        .get::<_, i32>(0);
    let first = world
        .client
        .transaction()
        .await
        .expect("a transaction starts");
    forms::receive_letter(&first, None, &letter("1", &grant()))
        .await
        .expect("the letter is good");
    let second = tokio::spawn(async move {
        let tx = other.transaction().await.expect("a transaction starts");
        let received = forms::receive_letter(&tx, None, &letter("1", &grant()))
            .await
            .expect("the letter is good");
        tx.commit().await.expect("it commits");
        received
    });
    support::wait_until("the second waits for the first", async || {
        let waits = "SELECT cardinality(pg_blocking_pids($1)) > 0";
        first
            .query_one(waits, &[&pid])
            .await
            .expect("it answers")
            .get(0)
    })
    .await;
    if first_commits {
        first.commit().await.expect("it commits");
    } else {
        first.rollback().await.expect("it rolls back");
    }
    let received = second.await.expect("the task ends");
    (world, received)
}

#[tokio::test]
async fn of_two_transactions_with_the_same_letter_one_publishes() {
    for first_commits in [true, false] {
        let (world, second) = two_receive_at_once(first_commits).await;
        assert_eq!(second == NOTHING_NEW, first_commits, "{second:?}");
        assert_eq!(world.value("SELECT count(*) FROM forms.message").await, 1);
        let sql = "SELECT count(*) FROM tidegate.event_queue";
        assert_eq!(world.value(sql).await, 1);
    }
}

#[tokio::test]
async fn a18_each_handler_calls_the_service_that_it_names_and_no_other() {
    let (mut named, mut called) = (BTreeSet::new(), BTreeSet::new());
    for (kind, payload) in samples() {
        let mut world = World::new().await;
        world.store_with_case(&form("f1"), &case()).await;
        // That one has a case; this one is to get its own.
        world.submit_form(&form("f2")).await;
        world.publish(kind, &payload).await;
        world.drain().await;
        called.extend(world.services.callers());
        let event = Event::decode(kind, Some(payload.to_string().as_bytes())).unwrap();
        for (handler, service) in handlers_of(&*world.app, &event) {
            named.extend(service.map(|service| (handler.to_owned(), service)));
        }
    }
    assert_eq!(called, named);
}

#[tokio::test]
async fn d8_every_kind_handled_twice_has_the_effects_of_once() {
    assert!(
        samples()
            .iter()
            .map(|(kind, _)| *kind)
            .eq(Event::KINDS.iter().copied().take(samples().len())),
        "all kinds of this system, which stand first"
    );
    for (kind, payload) in samples() {
        let mut world = World::new().await;
        world.store_with_case(&form("f1"), &case()).await;
        world.publish(kind, &payload).await;
        world.drain().await;
        let once = world.forms_effects().await;
        world.publish(kind, &payload).await;
        world.drain().await;
        assert_eq!(world.forms_effects().await, once, "{kind}");
        let log = world.log().await;
        assert!(
            log.iter().all(|(_, status)| status == "COMPLETED"),
            "{log:?}"
        );
    }
}

#[tokio::test]
async fn d8_an_effect_whose_answer_was_lost_is_not_repeated() {
    for (kind, payload) in samples() {
        let mut quiet = World::new().await;
        quiet.store_with_case(&form("f1"), &case()).await;
        quiet.publish(kind, &payload).await;
        quiet.drain().await;

        let mut world = World::new().await;
        world.store_with_case(&form("f1"), &case()).await;
        world.publish(kind, &payload).await;
        // Each drain loses one answer more: an event has up to three calls, and its follow-ups theirs.
        for _ in 0..4 {
            for (service, _) in services::SERVICES {
                world.services.set(service, Mode::Mute);
            }
            world.drain().await;
            for (service, _) in services::SERVICES {
                world.services.set(service, Mode::Up);
            }
            world.requeue().await;
        }
        world.drain().await;
        let without_times = |mut effects: Value| {
            for table in ["forms", "grants"] {
                for row in effects[table].as_array_mut().into_iter().flatten() {
                    row["created_at"].take();
                    row["saved_at"].take();
                }
            }
            effects
        };
        let found = without_times(world.forms_effects().await);
        assert_eq!(found, without_times(quiet.forms_effects().await), "{kind}");
        let log = world.log().await;
        assert!(
            log.iter().all(|(_, status)| status == "COMPLETED"),
            "{log:?}"
        );
    }
}

#[tokio::test]
async fn a_handler_that_is_cut_finds_its_work_done_at_the_next_attempt() {
    let mut world = World::new().await;
    world
        .services
        .set("archive", Mode::Slow { delay_ms: 600_000 });
    world.submit_form(&form("f1")).await;
    assert_eq!(world.drain_with(Duration::from_secs(5)).await.retried, 1);

    world.services.set("archive", Mode::Up);
    world.requeue().await;
    world.drain().await;
    let calls = world.services.calls("archive");
    assert_eq!(calls[0].key, calls[1].key);
    let found = world.services.kept("archive");
    assert_eq!(found, ["documents form/f1", "documents note/f1"]);
}

#[tokio::test]
async fn every_call_has_a_key_of_its_own() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    world.submit_form(&form("f2")).await;
    world.receive_letter("1", &grant()).await;
    world.drain().await;
    let calls = services::SERVICES
        .iter()
        .flat_map(|(service, _)| world.services.calls(service));
    let mut keys: Vec<String> = calls.map(|call| call.key).collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), count), (12, 12), "{keys:?}");
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("no writer panics")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn assert_nothing_private(place: &str, text: &str) {
    for private in PRIVATE {
        assert!(!text.contains(private), "{private} is in {place}: {text}");
    }
}

#[tokio::test]
async fn i9_nothing_about_a_person_reaches_a_log_line_an_error_or_debug_output() {
    let logged = Logged::default();
    let writer = logged.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);

    let world = World::new().await;
    let modes = [
        Mode::Echo,
        Mode::Down,
        Mode::Mute,
        Mode::Refuse { status: 422 },
        Mode::Up,
    ];
    for (round, mode) in modes.into_iter().enumerate() {
        for (service, _) in services::SERVICES {
            world.services.set(service, mode);
        }
        let form = form(&format!("f{round}"));
        assert_nothing_private("Debug of a form", &format!("{form:?}"));
        let submitted = FormSubmitted { form: form.clone() };
        let event = Event::Form(FormEvent::FormSubmitted(submitted));
        assert_nothing_private("Debug of an event", &format!("{event:?}"));
        world
            .publish("form_submitted", &json!({"form": form}))
            .await;
        // Neither decodes, and neither must say with what.
        world
            .publish("form_submitted", &json!({"form": {"id": PRIVATE}}))
            .await;
        world.publish("form_cancelled", &json!(PRIVATE)).await;
        world.requeue().await;
        world.time_passes().await;
        world.drain().await;
    }
    drop(guard);

    let errors = "SELECT string_agg(errors::text, ' ') FROM tidegate.event_log";
    assert_nothing_private("event_log.errors", &world.value(errors).await.to_string());
    let errors = "SELECT string_agg(errors::text || coalesce(last_error, ''), ' ') FROM tidegate.event_queue";
    assert_nothing_private("event_queue.errors", &world.value(errors).await.to_string());
    let logged = String::from_utf8_lossy(&logged.0.lock().unwrap()).into_owned();
    assert!(!logged.is_empty(), "the drain logs something");
    assert_nothing_private("the log", &logged);
}

#[tokio::test]
async fn i9_a_refused_form_or_row_is_not_quoted() {
    let mut world = World::new().await;
    let mut bad = json!(form("f1"));
    bad["employee"]["national_id"] = json!("98765432109 and more");
    let tx = world.client.transaction().await.unwrap();
    let error = Subject::Form
        .take_in(&tx, None, &bad)
        .await
        .expect_err("the id is too long");
    assert_nothing_private("the refusal", &format!("{error} {error:?}"));
    // The database's own refusal quotes the row in its detail.
    let narrow = "ALTER TABLE forms.form ADD CONSTRAINT narrow CHECK (id <> 'f1')";
    tx.batch_execute(narrow).await.unwrap();
    let error = forms::submit(&tx, None, &form("f1"))
        .await
        .expect_err("the row is refused");
    assert_nothing_private("the database's refusal", &error.to_string());
}

#[tokio::test]
async fn of_a_person_who_is_forgotten_no_table_says_a_word_and_what_happened_stays() {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    world.drain().await;
    // Another one about the same person waits, and somebody else's is nobody's business.
    world.submit_form(&form("f2")).await;
    let mut other = serde_json::to_value(form("f3")).unwrap();
    other["employee"]["national_id"] = json!("11111111111");
    let other: Form = serde_json::from_value(other).unwrap();
    world.submit_form(&other).await;

    let person = format!("person={}", PRIVATE[0]);
    let preview = world.forget(&person, true).await;
    let report = world.forget(&person, false).await;
    assert_eq!(preview.tables, report.tables);
    assert_eq!(report.tables["forms.form"], 2, "{report:?}");
    assert_eq!((report.forgotten, report.cancelled), (4, 1), "{report:?}");

    let everything = "SELECT jsonb_build_array(
        (SELECT jsonb_agg(to_jsonb(l)) FROM tidegate.event_log AS l), (SELECT jsonb_agg(to_jsonb(a)) FROM tidegate.audit AS a),
        (SELECT jsonb_agg(to_jsonb(q)) FROM tidegate.event_queue AS q WHERE group_key <> 'form:f3'),
        (SELECT jsonb_agg(to_jsonb(f)) FROM forms.form AS f WHERE id <> 'f3'), (SELECT jsonb_agg(to_jsonb(m)) FROM forms.message AS m))";
    assert_nothing_private("the database", &world.value(everything).await.to_string());
    let kept = world.value("SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED' AND forgotten_at IS NOT NULL").await;
    assert_eq!(kept, json!(3), "form_submitted, form_archived, case_opened");
    let others =
        world.value("SELECT count(*) FROM forms.form JOIN tidegate.event_queue ON group_key = 'form:' || forms.form.id AND payload::text LIKE '%11111111111%'").await;
    assert_eq!(others, json!(1));
}
