//! Every kind of job, and every end it may come to.

#![expect(clippy::too_many_lines, reason = "tables: a line of them is a case")]

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};
use tidegate_job::app::medical::KINDS;

use super::world::{
    CANARY, OTHER_CLIENT, OTHER_PATIENT, PATIENT, USER, World, id, part, payload, signed, with,
};
use crate::support::services::Mode;

/// One job and how it has to end.
pub struct Case {
    pub kind: &'static str,
    /// The payload's own fields.
    pub own: Value,
    /// What is there before.
    pub seed: Vec<Value>,
    /// The service that refuses.
    down: Option<(&'static str, Mode)>,
    /// Status code: 200, 403, 404, 409, 422 or 500.
    pub code: u16,
    /// All entities afterwards, `kind status`, when the job is processed; a failure changes nothing.
    after: String,
    /// The job's result, when it is processed.
    result: Value,
    /// Entries of a 422, or a part of the message of any other failure.
    told: &'static str,
}

fn case(kind: &'static str, own: Value, seed: Vec<Value>) -> Case {
    Case {
        kind,
        own,
        seed,
        down: None,
        code: 200,
        after: String::new(),
        result: Value::Null,
        told: "",
    }
}

/// For the failure message.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind, code, told, ..
        } = self;
        write!(f, "{kind} {code} {told} {} after {:?}", self.own, self.seed)
    }
}

impl Case {
    fn done(mut self, after: impl Into<String>, result: Value) -> Self {
        self.after = after.into();
        self.result = result;
        self
    }

    fn fails(mut self, code: u16, told: &'static str) -> Self {
        self.code = code;
        self.told = told;
        self
    }

    /// The service takes no message: one that only does not answer is waited for.
    fn refused_by(mut self, service: &'static str) -> Self {
        self.down = Some((service, Mode::Refuse { status: 422 }));
        self.fails(500, service)
    }
}

fn links(entities: &[(&str, u128)]) -> Value {
    let link = |(entity, number): &(&str, u128)| json!({"entity": entity, "href": format!("/patients/{PATIENT}/{entity}s/{}", id(*number))});
    json!({ "links": entities.iter().map(link).collect::<Vec<_>>() })
}

#[tokio::test]
async fn every_kind_of_job_ends_in_every_way_its_row_lists() {
    let mut world = World::new().await;
    let mut walked = BTreeSet::new();
    for case in cases() {
        let name = case.to_string();
        walk(&mut world, &case, &name).await;
        walked.insert((case.kind, case.code));
    }
    for kind in KINDS {
        assert!(
            walked.contains(&(kind, 200)),
            "{kind}: no success is walked"
        );
    }
    for (kind, codes) in LISTED {
        for code in *codes {
            assert!(
                walked.contains(&(kind, *code)),
                "{kind}: {code} is not walked"
            );
        }
    }
}

/// The failures that the table lists, and those that its reading adds (404 for what is named). Strangers are
/// in `authority`.
pub const LISTED: &[(&str, &[u16])] = &[
    ("approval_create_job", &[409, 422, 500]),
    ("approval_resend_job", &[403, 404, 409, 500]),
    ("diagnostic_report_package_cancel_job", &[404, 409, 422]),
    ("diagnostic_report_package_create_job", &[409, 422]),
    ("episode_cancel_job", &[404, 409]),
    ("episode_close_job", &[404, 409, 422]),
    ("episode_create_job", &[422]),
    ("episode_update_job", &[404, 409]),
    ("package_cancel_job", &[404, 409, 422]),
    ("package_create_job", &[422]),
    ("procedure_cancel_job", &[404, 409, 422]),
    ("procedure_create_job", &[403, 422]),
    ("service_request_cancel_job", &[404, 409, 422, 500]),
    ("service_request_close_job", &[404, 409]),
    ("service_request_complete_job", &[404, 409, 422]),
    ("service_request_create_job", &[409, 422]),
    ("service_request_process_job", &[404, 409]),
    ("service_request_recall_job", &[404, 409, 422, 500]),
    ("service_request_release_job", &[404, 409]),
    ("service_request_resend_job", &[404, 409, 500]),
    ("service_request_use_job", &[404, 409]),
];

async fn walk(world: &mut World, case: &Case, name: &str) {
    world.execute("DELETE FROM medical.entity").await;
    world.seed(&case.seed).await;
    let before = world.entities().await;
    if let Some((service, mode)) = case.down {
        world.services.set(service, mode);
    }
    let published = world.submit(case.kind, &payload(&case.own)).await;
    assert!(published.created, "{name}");
    if case.code == 500 {
        world.last_attempt().await;
    }
    world.drain().await;
    if let Some((service, _)) = case.down {
        world.services.set(service, Mode::Up);
    }
    let job = world.job(published.id).await;
    assert_eq!(job["status_code"], case.code, "{name}: {job}");
    let audited = format!(
        "SELECT count(*) FROM medical.audit WHERE event_id = {}",
        published.id
    );
    let after = world.entities().await;
    if case.code == 200 {
        assert_eq!(after.join(", "), case.after, "{name}");
        assert_eq!(job["result"][case.kind], case.result, "{name}");
        let changes = world.value(&audited).await;
        let silent = case.kind.contains("_resend_");
        assert_eq!(
            changes == 0,
            silent,
            "{name}: every change is audited, got {changes}"
        );
    } else {
        assert_eq!(after, before, "{name}: a failure changes nothing");
        assert_eq!(world.value(&audited).await, 0, "{name}");
        assert_failure(&job, case, name);
    }
}

fn assert_failure(job: &Value, case: &Case, name: &str) {
    let (status, code) = match case.code {
        500 => ("failed_with_error", "attempts_exhausted".to_owned()),
        code => ("failed", code.to_string()),
    };
    assert_eq!(job["status"], status, "{name}: E15");
    let errors = job["errors"].as_array().expect("a list");
    let last = errors.last().expect("an error");
    assert_eq!(last["code"], code, "{name}: {job}");
    let told = if case.code == 422 {
        let invalid = last["details"]["invalid"].as_array().expect(name);
        let entries: Vec<&str> = invalid
            .iter()
            .filter_map(|one| one["entry"].as_str())
            .collect();
        entries.join(" ")
    } else {
        errors[0]["message"].as_str().expect("a text").to_owned()
    };
    assert!(told.contains(case.told), "{name}: {told}");
    let stored = job.to_string();
    assert!(
        !stored.contains(CANARY),
        "{name}: nothing of a patient stands in an error: {stored}"
    );
}

pub fn cases() -> Vec<Case> {
    [
        approvals(),
        reports(),
        episodes(),
        packages(),
        procedures(),
        requests_made(),
        requests_used(),
        requests_ended(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

// --- What is there before ---

pub fn episode(status: &str) -> Value {
    json!({"kind": "episode", "id": id(1), "status": status, "content": {"id": id(1), "name": CANARY,
        "period": {"start": "2027-03-01"}, "care_manager": USER, "referral_requests": []}})
}

pub fn request_content() -> Value {
    part(&json!({"id": id(2), "requester_employee": USER, "text": CANARY}))
}

pub fn request(status: &str) -> Value {
    json!({"kind": "service_request", "id": id(2), "status": status, "content": request_content()})
}

fn used_by(request: &Value, client: uuid::Uuid) -> Value {
    with(
        request,
        &json!({"facts": {"used_by_employee": USER, "used_by_legal_entity": client}}),
    )
}

/// The same entity of another patient.
fn elsewhere(entity: &Value) -> Value {
    with(entity, &json!({"patient_id": OTHER_PATIENT}))
}

/// The same entity of another legal entity.
fn foreign(entity: &Value) -> Value {
    with(entity, &json!({"organization_id": OTHER_CLIENT}))
}

fn approval(status: &str) -> Value {
    json!({"kind": "approval", "id": id(3), "status": status})
}

// --- Jobs ---

fn approvals() -> Vec<Case> {
    let base = json!({"id": id(3), "granted_to": id(9), "access_level": "read"});
    let resources = with(
        &base,
        &json!({"resources": [{"entity": "episode", "id": id(1)}]}),
    );
    let request_id = with(&base, &json!({"service_request": id(2)}));
    let answer = |own: &Value| json!({"response_data": with(own, &json!({"status": "new"}))});
    let create = |own: &Value, seed| case("approval_create_job", own.clone(), seed);
    let resend = |seed| case("approval_resend_job", json!({"id": id(3)}), seed);
    vec![
        create(&resources, vec![episode("active")])
            .done("approval new, episode active", answer(&resources)),
        create(&request_id, vec![request("active")])
            .done("approval new, service_request active", answer(&request_id)),
        create(&resources, vec![]).fails(422, "$.resources[0]"),
        create(&resources, vec![elsewhere(&episode("active"))]).fails(422, "$.resources[0]"),
        create(&request_id, vec![]).fails(422, "$.service_request"),
        create(&request_id, vec![request("completed")])
            .fails(409, "is completed, needed is active"),
        create(
            &request_id,
            vec![with(&request("active"), &json!({"expired": true}))],
        )
        .fails(409, "has expired"),
        create(&request_id, vec![request("active"), approval("new")]).fails(422, "$.id"),
        create(&resources, vec![episode("active")]).refused_by("otp"),
        resend(vec![approval("new")]).done("approval new", json!({"response_data": ""})),
        resend(vec![]).fails(404, "approval not found"),
        resend(vec![foreign(&approval("new"))])
            .fails(403, "the approval belongs to another legal entity"),
        resend(vec![approval("active")]).fails(409, "is active, needed is new"),
        resend(vec![approval("new")]).refused_by("otp"),
    ]
}

pub fn report_content() -> Value {
    let report = json!({"id": id(4), "recorded_by": USER, "conclusion": CANARY});
    let observations = [
        json!({"id": id(5), "value": 36.6}),
        json!({"id": id(6), "value": 120}),
    ];
    json!({"diagnostic_report": part(&report), "observations": observations.map(|one| part(&one))})
}

fn stored_report() -> Vec<Value> {
    let content = report_content();
    let observation = |index: usize| {
        let content = content["observations"][index].clone();
        json!({"kind": "observation", "id": content["id"], "status": "valid", "content": content, "parent_id": id(4)})
    };
    let report = content["diagnostic_report"].clone();
    vec![
        json!({"kind": "diagnostic_report", "id": id(4), "status": "final", "content": report}),
        observation(0),
        observation(1),
    ]
}

pub fn changed(content: &Value, pointer: &str, value: Value) -> Value {
    let mut content = content.clone();
    let (object, field) = pointer.rsplit_once('/').expect("a pointer");
    content.pointer_mut(object).expect("it is there")[field] = value;
    content
}

fn reports() -> Vec<Case> {
    let job =
        |kind, content: &Value, seed| case(kind, json!({"signed_data": signed(content)}), seed);
    let create = |content: &Value, seed| job("diagnostic_report_package_create_job", content, seed);
    let cancel = |content: &Value, seed| job("diagnostic_report_package_cancel_job", content, seed);
    let content = report_content();
    let in_error = changed(
        &content,
        "/observations/1/status",
        json!("entered_in_error"),
    );
    let mut foreign = content.clone();
    foreign["diagnostic_report"]["recorded_by"] = json!(id(99));
    let mut fewer = in_error.clone();
    fewer["observations"]
        .as_array_mut()
        .expect("a list")
        .remove(0);
    let mut all = stored_report();
    all[2]["status"] = json!("entered_in_error");
    vec![
        create(&content, vec![]).done(
            "diagnostic_report final, observation valid, observation valid",
            links(&[
                ("diagnostic_report", 4),
                ("observation", 5),
                ("observation", 6),
            ]),
        ),
        case(
            "diagnostic_report_package_create_job",
            json!({"signed_data": "***"}),
            vec![],
        )
        .fails(422, "$.signed_data"),
        create(&json!({"diagnostic_report": {"id": "x"}}), vec![]).fails(
            422,
            "$.diagnostic_report.recorded_by $.diagnostic_report.id",
        ),
        create(&foreign, vec![]).fails(409, "the signer is not the recorded_by"),
        create(&content, stored_report()).fails(
            422,
            "$.diagnostic_report.id $.observations[0].id $.observations[1].id",
        ),
        create(&in_error, vec![]).fails(422, "$.observations[1].status"),
        cancel(&in_error, stored_report()).done(
            "diagnostic_report final, observation entered_in_error, observation valid",
            links(&[]),
        ),
        cancel(&content, stored_report()).fails(409, "nothing is newly"),
        cancel(&in_error, all.clone()).fails(409, "nothing is newly"),
        cancel(
            &changed(&content, "/observations/1/status", json!("valid")),
            all,
        )
        .fails(409, "is entered_in_error, needed is valid"),
        cancel(
            &changed(&in_error, "/observations/0/value", json!(37)),
            stored_report(),
        )
        .fails(409, "is not the stored one"),
        cancel(&fewer, stored_report()).fails(409, "are not the stored ones"),
        cancel(&in_error, vec![]).fails(404, "diagnostic_report not found"),
        case(
            "diagnostic_report_package_cancel_job",
            json!({"signed_data": "c2VjcmV0"}),
            stored_report(),
        )
        .fails(422, "$.signed_data"),
    ]
}

fn episodes() -> Vec<Case> {
    let new = json!({"id": id(1), "name": CANARY, "type": "primary_care", "status": "active",
        "managing_organization": super::world::CLIENT, "period": {"start": "2027-03-01"},
        "care_manager": USER, "referral_requests": []});
    let referring = with(&new, &json!({"referral_requests": [id(2)]}));
    let of = |params: Value| json!({"id": id(1), "request_params": params});
    let update = of(json!({"name": CANARY, "care_manager": id(8)}));
    let close = |end: &str| {
        of(json!({"period": {"end": end}, "closing_summary": CANARY, "status_reason": "cured"}))
    };
    let cancel = of(json!({"explanatory_letter": CANARY, "status_reason": "mistake"}));
    let link = links(&[("episode", 1)]);
    let of_another = foreign(&episode("active"));
    let referred = changed(
        &episode("active"),
        "/content/referral_requests",
        json!([id(2)]),
    );
    let encounter = |status: &str| json!({"kind": "encounter", "id": id(7), "status": status, "parent_id": id(1)});
    let cancelling = |own: &Value, seed| case("episode_cancel_job", own.clone(), seed);
    let closing = |own: &Value, seed| case("episode_close_job", own.clone(), seed);
    let creating = |own: &Value, seed| case("episode_create_job", own.clone(), seed);
    let updating = |own: &Value, seed| case("episode_update_job", own.clone(), seed);
    vec![
        creating(&new, vec![]).done("episode active", link.clone()),
        creating(&new, vec![episode("closed")]).fails(422, "$.id"),
        creating(&new, vec![elsewhere(&episode("active"))]).fails(422, "$.id"),
        creating(&new, vec![with(&approval("new"), &json!({"id": id(1)}))]).fails(422, "$.id"),
        creating(&referring, vec![request("active")])
            .done("episode active, service_request active", link.clone()),
        creating(
            &referring,
            vec![used_by(&foreign(&request("active")), super::world::CLIENT)],
        )
        .done("episode active, service_request active", link.clone()),
        creating(&referring, vec![foreign(&request("active"))])
            .fails(422, "$.referral_requests[0]"),
        creating(
            &with(
                &new,
                &json!({"referral_requests": [id(2), id(98), id(3), id(97)]}),
            ),
            vec![
                request("active"),
                with(
                    &request("active"),
                    &json!({"id": id(98), "patient_id": OTHER_PATIENT}),
                ),
                approval("new"),
            ],
        )
        .fails(
            422,
            "$.referral_requests[1] $.referral_requests[2] $.referral_requests[3]",
        ),
        updating(&update, vec![episode("active")]).done("episode active", link.clone()),
        updating(&update, vec![episode("closed")]).fails(409, "is closed"),
        updating(&update, vec![]).fails(404, "episode not found"),
        closing(&close("2027-03-01"), vec![episode("active")]).done("episode closed", link.clone()),
        closing(&close("2027-03-01"), vec![referred, request("active")])
            .done("episode closed, service_request completed", link.clone()),
        closing(&close("2027-03-01"), vec![episode("closed")]).fails(409, "is closed"),
        closing(&close("2027-03-01"), vec![of_another.clone()]).fails(409, "another legal entity"),
        closing(&close("2027-02-28"), vec![episode("active")])
            .fails(422, "$.request_params.period.end"),
        closing(&close("2027-03-01"), vec![]).fails(404, "episode not found"),
        cancelling(
            &cancel,
            vec![episode("closed"), encounter("entered_in_error")],
        )
        .done(
            "encounter entered_in_error, episode entered_in_error",
            link.clone(),
        ),
        cancelling(&cancel, vec![episode("active")]).done("episode entered_in_error", link),
        cancelling(&cancel, vec![episode("active"), encounter("finished")])
            .fails(409, "not cancelled"),
        cancelling(&cancel, vec![episode("entered_in_error")]).fails(409, "is entered_in_error"),
        cancelling(&cancel, vec![of_another]).fails(409, "another legal entity"),
        cancelling(&cancel, vec![]).fails(404, "episode not found"),
    ]
}

/// All entities of a package.
const PACKAGE: &str = "allergy_intolerance active, condition active, device active, diagnostic_report final, \
    encounter finished, episode active, immunization completed, medication_statement active, observation valid, \
    risk_assessment final";

const LISTS: [(&str, &str, &str); 8] = [
    ("conditions", "condition", "active"),
    ("observations", "observation", "valid"),
    ("immunizations", "immunization", "completed"),
    ("allergy_intolerances", "allergy_intolerance", "active"),
    ("risk_assessments", "risk_assessment", "final"),
    ("devices", "device", "active"),
    ("medication_statements", "medication_statement", "active"),
    ("diagnostic_reports", "diagnostic_report", "final"),
];

pub fn package_content() -> Value {
    let encounter = part(&json!({"id": id(10), "episode": id(1), "text": CANARY}));
    let mut content = json!({ "encounter": encounter });
    for (number, (field, _, _)) in (11..).zip(LISTS) {
        content[field] = json!([part(&json!({"id": id(number), "text": CANARY}))]);
    }
    content
}

fn stored_package() -> Vec<Value> {
    let content = package_content();
    let encounter = content["encounter"].clone();
    let mut stored = vec![
        episode("active"),
        json!({"kind": "encounter", "id": id(10), "status": "finished", "content": encounter, "parent_id": id(1)}),
    ];
    stored.extend(LISTS.map(|(field, kind, status)| {
        let content = content[field][0].clone();
        json!({"kind": kind, "id": content["id"], "status": status, "content": content, "parent_id": id(10)})
    }));
    stored
}

fn packages() -> Vec<Case> {
    let visit = json!({"id": id(90), "period": {"start": "2027-03-01", "end": "2027-03-01"}});
    let create = |content: &Value, seed| {
        let own = json!({"visit": visit, "signed_data": signed(content)});
        case("package_create_job", own, seed)
    };
    let cancel = |content: &Value, seed| {
        case(
            "package_cancel_job",
            json!({"signed_data": signed(content)}),
            seed,
        )
    };
    let content = package_content();
    let in_error = changed(&content, "/devices/0/status", json!("entered_in_error"));
    let everything: Vec<(&str, u128)> = std::iter::once(("encounter", 10))
        .chain(LISTS.iter().map(|(_, kind, _)| *kind).zip(11..))
        .collect();
    let mut twice = content.clone();
    twice["devices"] = json!([part(&json!({"id": id(16)})), part(&json!({"id": id(16)}))]);
    let many: Vec<Value> = (100..160).map(|number| json!({"id": id(number)})).collect();
    let too_many = changed(&content, "/devices", json!(many));
    let stored = stored_package();
    let without = |index: usize| {
        let mut stored = stored_package();
        stored.remove(index);
        stored
    };
    vec![
        create(&content, vec![episode("active")]).done(PACKAGE, links(&everything)),
        create(&content, vec![episode("active"), stored[7].clone()]).fails(422, "$.devices[0].id"),
        create(&twice, vec![episode("active")]).fails(422, "$.devices[1].id"),
        create(&too_many, vec![episode("active")]).fails(422, "$"),
        create(&content, vec![]).fails(422, "$.encounter.episode"),
        create(&content, vec![episode("closed")]).fails(422, "$.encounter.episode"),
        create(
            &with(&content, &json!({"poems": []})),
            vec![episode("active")],
        )
        .fails(422, "$"),
        cancel(&in_error, stored_package()).done(
            PACKAGE.replace("device active", "device entered_in_error"),
            links(&[]),
        ),
        cancel(&content, stored_package()).fails(409, "nothing is newly"),
        cancel(
            &changed(&in_error, "/encounter/text", json!("other")),
            stored_package(),
        )
        .fails(409, "is not the stored one"),
        cancel(&in_error, without(7)).fails(409, "are not the stored ones"),
        cancel(&in_error, vec![]).fails(404, "patient not found"),
        cancel(&in_error, without(1)).fails(404, "encounter not found"),
        cancel(&in_error, without(0)).fails(404, "episode not found"),
        cancel(&json!({"devices": []}), stored_package()).fails(422, "$.encounter"),
    ]
}

fn procedures() -> Vec<Case> {
    let content = part(&json!({"id": id(20), "recorded_by": USER, "text": CANARY}));
    let create = |content: &Value, seed| {
        case(
            "procedure_create_job",
            json!({"signed_data": signed(content)}),
            seed,
        )
    };
    let cancel = |content: &Value, seed| {
        case(
            "procedure_cancel_job",
            json!({"id": id(20), "signed_data": signed(content)}),
            seed,
        )
    };
    let in_error = with(
        &content,
        &json!({"status": "entered_in_error", "status_reason": "mistake", "explanatory_letter": CANARY}),
    );
    let stored =
        json!({"kind": "procedure", "id": id(20), "status": "completed", "content": content});
    let link = links(&[("procedure", 20)]);
    vec![
        create(&content, vec![]).done("procedure completed", link.clone()),
        create(&with(&content, &json!({"recorded_by": id(99)})), vec![])
            .fails(403, "the signer is not the recorded_by"),
        create(&with(&content, &json!({"recorded_by": null})), vec![]).fails(422, "$.recorded_by"),
        create(&with(&content, &json!({"subject": OTHER_PATIENT})), vec![]).fails(422, "$.subject"),
        create(&with(&content, &json!({"date": "9999-12-31"})), vec![]).fails(422, "$.date"),
        create(&with(&content, &json!({"date": "2026-02-30"})), vec![]).fails(422, "$.date"),
        create(&with(&content, &json!({"code": ""})), vec![]).fails(422, "$.code"),
        create(&json!({"id": id(20), "recorded_by": USER}), vec![])
            .fails(422, "$.subject $.code $.date"),
        create(&content, vec![stored.clone()]).fails(422, "$.id"),
        cancel(&in_error, vec![stored.clone()]).done("procedure entered_in_error", link),
        cancel(
            &with(&in_error, &json!({"text": "other"})),
            vec![stored.clone()],
        )
        .fails(409, "is not the stored one"),
        cancel(&in_error, vec![foreign(&stored)]).fails(409, "another legal entity"),
        cancel(
            &in_error,
            vec![with(&stored, &json!({"status": "entered_in_error"}))],
        )
        .fails(409, "is entered_in_error"),
        cancel(&with(&in_error, &json!({"id": id(21)})), vec![stored]).fails(422, "$.id"),
        cancel(&in_error, vec![]).fails(404, "procedure not found"),
    ]
}

fn requests_made() -> Vec<Case> {
    let create = |content: &Value, seed| {
        case(
            "service_request_create_job",
            json!({"signed_data": signed(content)}),
            seed,
        )
    };
    let content = request_content();
    let foreign = with(&content, &json!({"requester_employee": id(99)}));
    vec![
        create(&content, vec![]).done("service_request active", links(&[("service_request", 2)])),
        create(&content, vec![request("recalled")]).fails(422, "$.id"),
        create(&json!({"id": id(2)}), vec![]).fails(422, "$.requester_employee"),
        create(&foreign, vec![]).fails(409, "the signer is not the requester_employee"),
        create(&content, vec![]).with_refused_signature(),
    ]
}

impl Case {
    fn with_refused_signature(mut self) -> Self {
        self.down = Some(("signature", Mode::Refuse { status: 400 }));
        self.fails(422, "$.signed_data")
    }
}

fn requests_used() -> Vec<Case> {
    let own = json!({"service_request_id": id(2)});
    let using = with(
        &own,
        &json!({"used_by_employee": USER, "used_by_legal_entity": super::world::CLIENT}),
    );
    let completing = with(
        &own,
        &json!({"completed_with": {"entity": "procedure", "id": id(20)}, "status_reason": "done"}),
    );
    let itself = json!({"completed_with": {"entity": "service_request", "id": id(2)}});
    let completed_by_itself = with(&completing, &itself);
    let (ours, theirs) = (
        |status| used_by(&request(status), super::world::CLIENT),
        |status| used_by(&request(status), OTHER_CLIENT),
    );
    let expired = with(&request("active"), &json!({"expired": true}));
    let procedure = json!({"kind": "procedure", "id": id(20), "status": "completed"});
    let link = links(&[("service_request", 2)]);
    let job = |kind, seed| {
        let own = match kind {
            "service_request_use_job" => &using,
            "service_request_complete_job" => &completing,
            _ => &own,
        };
        case(kind, own.clone(), seed)
    };
    let missing = |kind| job(kind, vec![]).fails(404, "service_request not found");
    let (take, free, begin, complete) = (
        "service_request_use_job",
        "service_request_release_job",
        "service_request_process_job",
        "service_request_complete_job",
    );
    vec![
        job(take, vec![request("active")]).done("service_request active", link.clone()),
        job(take, vec![request("completed")]).fails(409, "is completed"),
        job(take, vec![expired.clone()]).fails(409, "has expired"),
        job(take, vec![theirs("active")]).fails(409, "is used already"),
        missing(take),
        job(free, vec![ours("active")]).done("service_request active", link.clone()),
        job(free, vec![ours("in_progress")]).fails(409, "is in_progress"),
        job(free, vec![expired]).fails(409, "has expired"),
        missing(free),
        job(begin, vec![ours("active")]).done("service_request in_progress", link.clone()),
        job(begin, vec![ours("recalled")]).fails(409, "is recalled"),
        job(begin, vec![theirs("active")]).fails(409, "not used by this legal entity"),
        job(begin, vec![request("active")]).fails(409, "not used by this legal entity"),
        missing(begin),
        job(complete, vec![ours("in_progress"), procedure.clone()])
            .done("procedure completed, service_request completed", link),
        job(complete, vec![ours("in_progress")]).fails(422, "$.completed_with"),
        case(complete, completed_by_itself, vec![ours("in_progress")])
            .fails(422, "$.completed_with.entity"),
        job(complete, vec![ours("in_progress"), elsewhere(&procedure)])
            .fails(422, "$.completed_with"),
        job(complete, vec![ours("active")]).fails(409, "is active, needed is in_progress"),
        job(complete, vec![theirs("in_progress")]).fails(409, "not used by this legal entity"),
        missing(complete),
    ]
}

fn requests_ended() -> Vec<Case> {
    let signing =
        |content: &Value| json!({"service_request_id": id(2), "signed_data": signed(content)});
    let content = request_content();
    let other = with(&content, &json!({"text": "other"}));
    let of_another = with(&content, &json!({"id": id(99)}));
    let link = links(&[("service_request", 2)]);
    let (recall, cancel, close, resend) = (
        "service_request_recall_job",
        "service_request_cancel_job",
        "service_request_close_job",
        "service_request_resend_job",
    );
    let job = |kind, seed| case(kind, signing(&content), seed);
    let closing = |seed| case(close, json!({"id": id(2)}), seed);
    let resending = |seed| case(resend, json!({"service_request_id": id(2)}), seed);
    let active = || vec![request("active")];
    vec![
        job(recall, active()).done("service_request recalled", link.clone()),
        job(recall, vec![request("completed")]).fails(409, "is completed"),
        case(recall, signing(&other), active()).fails(409, "is not the stored one"),
        case(recall, signing(&of_another), active()).fails(422, "$.id"),
        job(recall, vec![]).fails(404, "service_request not found"),
        job(recall, active()).refused_by("sms"),
        job(cancel, active()).done("service_request entered_in_error", link.clone()),
        job(cancel, vec![request("completed")])
            .done("service_request entered_in_error", link.clone()),
        job(cancel, vec![request("recalled")]).fails(409, "is recalled"),
        case(cancel, signing(&other), active()).fails(409, "is not the stored one"),
        case(
            cancel,
            json!({"service_request_id": id(2), "signed_data": "***"}),
            active(),
        )
        .fails(422, "$.signed_data"),
        job(cancel, vec![]).fails(404, "service_request not found"),
        job(cancel, active()).refused_by("sms"),
        closing(active()).done("service_request completed", link.clone()),
        closing(vec![request("recalled")]).fails(409, "is recalled"),
        closing(vec![]).fails(404, "service_request not found"),
        resending(active()).done("service_request active", link),
        resending(vec![request("in_progress")]).fails(409, "is in_progress"),
        resending(vec![]).fails(404, "service_request not found"),
        resending(active()).refused_by("sms"),
    ]
}
