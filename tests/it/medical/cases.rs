//! Every kind of job, and every end it may come to.

#![expect(clippy::too_many_lines, reason = "tables: a line of them is a case")]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate_job::app::medical::KINDS;

use super::world::{
    CANARY, OTHER_CLIENT, OTHER_PATIENT, PATIENT, USER, World, id, payload, signed, with,
};
use crate::services::Mode;

/// One job and how it has to end.
pub struct Case {
    pub kind: &'static str,
    /// For the failure message.
    pub name: &'static str,
    /// The payload's own fields.
    pub own: Value,
    /// What is there before.
    pub seed: Vec<Value>,
    /// The service that refuses.
    down: Option<(&'static str, Mode)>,
    /// Status code: 200, 403, 404, 409, 422 or 500.
    pub code: u16,
    /// All entities afterwards, `kind status`, when the job is processed; a failure changes nothing.
    after: &'static [&'static str],
    /// The job's result, when it is processed.
    result: Value,
    /// Entries of a 422, or a part of the message of any other failure.
    told: &'static str,
}

fn case(kind: &'static str, name: &'static str, own: Value, seed: Vec<Value>) -> Case {
    Case {
        kind,
        name,
        own,
        seed,
        down: None,
        code: 200,
        after: &[],
        result: Value::Null,
        told: "",
    }
}

impl Case {
    fn done(mut self, after: &'static [&'static str], result: Value) -> Self {
        self.after = after;
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
        let name = format!("{}: {} ({})", case.kind, case.name, case.code);
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
    assert!(
        LISTED.iter().map(|(kind, _)| kind).eq(KINDS),
        "LISTED has all kinds"
    );
}

/// The failures that the table lists, and those that its reading adds (404 for what is named).
const LISTED: &[(&str, &[u16])] = &[
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
    ("procedure_create_job", &[422]),
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
        assert_eq!(after, case.after, "{name}");
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
    json!({"id": id(2), "requester_employee": USER, "text": CANARY})
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
    let create = |name, own: &Value, seed| case("approval_create_job", name, own.clone(), seed);
    let resend = |name, seed| case("approval_resend_job", name, json!({"id": id(3)}), seed);
    vec![
        create("for resources", &resources, vec![episode("active")])
            .done(&["approval new", "episode active"], answer(&resources)),
        create(
            "for a service request",
            &request_id,
            vec![request("active")],
        )
        .done(
            &["approval new", "service_request active"],
            answer(&request_id),
        ),
        create("the resource is missing", &resources, vec![]).fails(422, "$.resources[0]"),
        create(
            "the resource is another patient's",
            &resources,
            vec![with(
                &episode("active"),
                &json!({"patient_id": OTHER_PATIENT}),
            )],
        )
        .fails(422, "$.resources[0]"),
        create("the service request is missing", &request_id, vec![])
            .fails(422, "$.service_request"),
        create(
            "the service request is over",
            &request_id,
            vec![request("completed")],
        )
        .fails(409, "is completed, needed is active"),
        create(
            "the service request has expired",
            &request_id,
            vec![with(&request("active"), &json!({"expired": true}))],
        )
        .fails(409, "has expired"),
        create(
            "the id is taken",
            &request_id,
            vec![request("active"), approval("new")],
        )
        .fails(422, "$.id"),
        create(
            "no password can be sent",
            &resources,
            vec![episode("active")],
        )
        .refused_by("otp"),
        resend("again", vec![approval("new")])
            .done(&["approval new"], json!({"response_data": ""})),
        resend("it is missing", vec![]).fails(404, "approval not found"),
        resend(
            "another legal entity has asked for it",
            vec![with(
                &approval("new"),
                &json!({"organization_id": OTHER_CLIENT}),
            )],
        )
        .fails(403, "another legal entity has asked for the approval"),
        resend("it was confirmed", vec![approval("active")]).fails(409, "is active, needed is new"),
        resend("no password can be sent", vec![approval("new")]).refused_by("otp"),
    ]
}

pub fn report_content() -> Value {
    json!({"diagnostic_report": {"id": id(4), "recorded_by": USER, "conclusion": CANARY},
        "observations": [{"id": id(5), "value": 36.6}, {"id": id(6), "value": 120}]})
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
    let job = |kind, name, content: &Value, seed| {
        case(kind, name, json!({"signed_data": signed(content)}), seed)
    };
    let create = |name, content: &Value, seed| {
        job("diagnostic_report_package_create_job", name, content, seed)
    };
    let cancel = |name, content: &Value, seed| {
        job("diagnostic_report_package_cancel_job", name, content, seed)
    };
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
        create("a report with observations", &content, vec![]).done(
            &[
                "diagnostic_report final",
                "observation valid",
                "observation valid",
            ],
            links(&[
                ("diagnostic_report", 4),
                ("observation", 5),
                ("observation", 6),
            ]),
        ),
        case(
            "diagnostic_report_package_create_job",
            "no base64",
            json!({"signed_data": "***"}),
            vec![],
        )
        .fails(422, "$.signed_data"),
        create(
            "no recorder, an id that is none",
            &json!({"diagnostic_report": {"id": "x"}}),
            vec![],
        )
        .fails(
            422,
            "$.diagnostic_report.recorded_by $.diagnostic_report.id",
        ),
        create("signed by somebody else", &foreign, vec![])
            .fails(409, "the signer is not the recorded_by"),
        create("ids are taken", &content, stored_report()).fails(
            422,
            "$.diagnostic_report.id $.observations[0].id $.observations[1].id",
        ),
        create("not in its first state", &in_error, vec![]).fails(422, "$.observations[1].status"),
        cancel("one observation", &in_error, stored_report()).done(
            &[
                "diagnostic_report final",
                "observation entered_in_error",
                "observation valid",
            ],
            links(&[]),
        ),
        cancel("nothing in error", &content, stored_report()).fails(409, "nothing is newly"),
        cancel("nothing newly in error", &in_error, all.clone()).fails(409, "nothing is newly"),
        cancel(
            "back from an error",
            &changed(&content, "/observations/1/status", json!("valid")),
            all,
        )
        .fails(409, "is entered_in_error, needed is valid"),
        cancel(
            "another value",
            &changed(&in_error, "/observations/0/value", json!(37)),
            stored_report(),
        )
        .fails(409, "is not the stored one"),
        cancel("an observation less", &fewer, stored_report())
            .fails(409, "are not the stored ones"),
        cancel("the report is missing", &in_error, vec![])
            .fails(404, "diagnostic_report not found"),
        case(
            "diagnostic_report_package_cancel_job",
            "no JSON",
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
    let foreign = with(
        &episode("active"),
        &json!({"organization_id": OTHER_CLIENT}),
    );
    let referred = changed(
        &episode("active"),
        "/content/referral_requests",
        json!([id(2)]),
    );
    let encounter = |status: &str| json!({"kind": "encounter", "id": id(7), "status": status, "parent_id": id(1)});
    let cancelling = |name, own: &Value, seed| case("episode_cancel_job", name, own.clone(), seed);
    let closing = |name, own: &Value, seed| case("episode_close_job", name, own.clone(), seed);
    let creating = |name, own: &Value, seed| case("episode_create_job", name, own.clone(), seed);
    let updating = |name, own: &Value, seed| case("episode_update_job", name, own.clone(), seed);
    vec![
        creating("a new one", &new, vec![]).done(&["episode active"], link.clone()),
        creating("the id is taken", &new, vec![episode("closed")]).fails(422, "$.id"),
        creating(
            "the id is another patient's",
            &new,
            vec![with(
                &episode("active"),
                &json!({"patient_id": OTHER_PATIENT}),
            )],
        )
        .fails(422, "$.id"),
        creating("with a referral", &referring, vec![request("active")])
            .done(&["episode active", "service_request active"], link.clone()),
        creating(
            "a referral is missing, one is another patient's and one is no service request",
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
        updating("an active one", &update, vec![episode("active")])
            .done(&["episode active"], link.clone()),
        updating("it is closed", &update, vec![episode("closed")]).fails(409, "is closed"),
        updating("it is missing", &update, vec![]).fails(404, "episode not found"),
        closing(
            "on its first day",
            &close("2027-03-01"),
            vec![episode("active")],
        )
        .done(&["episode closed"], link.clone()),
        closing(
            "with its referral",
            &close("2027-03-01"),
            vec![referred, request("active")],
        )
        .done(
            &["episode closed", "service_request completed"],
            link.clone(),
        ),
        closing(
            "it is closed",
            &close("2027-03-01"),
            vec![episode("closed")],
        )
        .fails(409, "is closed"),
        closing(
            "it is another organization's",
            &close("2027-03-01"),
            vec![foreign.clone()],
        )
        .fails(409, "another legal entity"),
        closing(
            "before it began",
            &close("2027-02-28"),
            vec![episode("active")],
        )
        .fails(422, "$.request_params.period.end"),
        closing("it is missing", &close("2027-03-01"), vec![]).fails(404, "episode not found"),
        cancelling(
            "a closed one, its encounter cancelled",
            &cancel,
            vec![episode("closed"), encounter("entered_in_error")],
        )
        .done(
            &["encounter entered_in_error", "episode entered_in_error"],
            link.clone(),
        ),
        cancelling(
            "an active one without encounters",
            &cancel,
            vec![episode("active")],
        )
        .done(&["episode entered_in_error"], link),
        cancelling(
            "its encounter stands",
            &cancel,
            vec![episode("active"), encounter("finished")],
        )
        .fails(409, "not cancelled"),
        cancelling(
            "it is cancelled",
            &cancel,
            vec![episode("entered_in_error")],
        )
        .fails(409, "is entered_in_error"),
        cancelling("it is another organization's", &cancel, vec![foreign])
            .fails(409, "another legal entity"),
        cancelling("it is missing", &cancel, vec![]).fails(404, "episode not found"),
    ]
}

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
    let mut content = json!({"encounter": {"id": id(10), "episode": id(1), "text": CANARY}});
    for (number, (field, _, _)) in (11..).zip(LISTS) {
        content[field] = json!([{"id": id(number), "text": CANARY}]);
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
    let create = |name, content: &Value, seed| {
        let own = json!({"visit": visit, "signed_data": signed(content)});
        case("package_create_job", name, own, seed)
    };
    let cancel = |name, content: &Value, seed| {
        case(
            "package_cancel_job",
            name,
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
    twice["devices"] = json!([{"id": id(16)}, {"id": id(16)}]);
    let many: Vec<Value> = (100..160).map(|number| json!({"id": id(number)})).collect();
    let too_many = changed(&content, "/devices", json!(many));
    let stored = stored_package();
    let without = |index: usize| {
        let mut stored = stored_package();
        stored.remove(index);
        stored
    };
    vec![
        create("one of each", &content, vec![episode("active")]).done(
            &[
                "allergy_intolerance active",
                "condition active",
                "device active",
                "diagnostic_report final",
                "encounter finished",
                "episode active",
                "immunization completed",
                "medication_statement active",
                "observation valid",
                "risk_assessment final",
            ],
            links(&everything),
        ),
        create(
            "an id is taken",
            &content,
            vec![episode("active"), stored[7].clone()],
        )
        .fails(422, "$.devices[0].id"),
        create("an id twice", &twice, vec![episode("active")]).fails(422, "$.devices[1].id"),
        create("too many entities", &too_many, vec![episode("active")]).fails(422, "$"),
        create("no such episode", &content, vec![]).fails(422, "$.encounter.episode"),
        create("the episode is closed", &content, vec![episode("closed")])
            .fails(422, "$.encounter.episode"),
        create(
            "an unknown list",
            &with(&content, &json!({"poems": []})),
            vec![episode("active")],
        )
        .fails(422, "$"),
        cancel("one device", &in_error, stored_package()).done(
            &[
                "allergy_intolerance active",
                "condition active",
                "device entered_in_error",
                "diagnostic_report final",
                "encounter finished",
                "episode active",
                "immunization completed",
                "medication_statement active",
                "observation valid",
                "risk_assessment final",
            ],
            links(&[]),
        ),
        cancel("nothing in error", &content, stored_package()).fails(409, "nothing is newly"),
        cancel(
            "another text",
            &changed(&in_error, "/encounter/text", json!("other")),
            stored_package(),
        )
        .fails(409, "is not the stored one"),
        cancel("a device that was not there", &in_error, without(7))
            .fails(409, "are not the stored ones"),
        cancel("no such patient", &in_error, vec![]).fails(404, "patient not found"),
        cancel("no such encounter", &in_error, without(1)).fails(404, "encounter not found"),
        cancel("no such episode", &in_error, without(0)).fails(404, "episode not found"),
        cancel("no encounter", &json!({"devices": []}), stored_package()).fails(422, "$.encounter"),
    ]
}

fn procedures() -> Vec<Case> {
    let content = json!({"id": id(20), "text": CANARY});
    let create = |name, content: &Value, seed| {
        case(
            "procedure_create_job",
            name,
            json!({"signed_data": signed(content)}),
            seed,
        )
    };
    let cancel = |name, content: &Value, seed| {
        case(
            "procedure_cancel_job",
            name,
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
        create("a new one", &content, vec![]).done(&["procedure completed"], link.clone()),
        create("the id is taken", &content, vec![stored.clone()]).fails(422, "$.id"),
        cancel("its own", &in_error, vec![stored.clone()])
            .done(&["procedure entered_in_error"], link),
        cancel(
            "another text",
            &with(&in_error, &json!({"text": "other"})),
            vec![stored.clone()],
        )
        .fails(409, "is not the stored one"),
        cancel(
            "it is another organization's",
            &in_error,
            vec![with(&stored, &json!({"organization_id": OTHER_CLIENT}))],
        )
        .fails(409, "another legal entity"),
        cancel(
            "it is cancelled",
            &in_error,
            vec![with(&stored, &json!({"status": "entered_in_error"}))],
        )
        .fails(409, "is entered_in_error"),
        cancel(
            "the content is of another",
            &with(&in_error, &json!({"id": id(21)})),
            vec![stored],
        )
        .fails(422, "$.id"),
        cancel("it is missing", &in_error, vec![]).fails(404, "procedure not found"),
    ]
}

fn requests_made() -> Vec<Case> {
    let create = |name, content: &Value, seed| {
        case(
            "service_request_create_job",
            name,
            json!({"signed_data": signed(content)}),
            seed,
        )
    };
    let content = request_content();
    let foreign = with(&content, &json!({"requester_employee": id(99)}));
    vec![
        create("a new one", &content, vec![]).done(
            &["service_request active"],
            links(&[("service_request", 2)]),
        ),
        create("the id is taken", &content, vec![request("recalled")]).fails(422, "$.id"),
        create("no requester", &json!({"id": id(2)}), vec![]).fails(422, "$.requester_employee"),
        create("signed by somebody else", &foreign, vec![])
            .fails(409, "the signer is not the requester_employee"),
        create("the signature is not valid", &content, vec![]).with_refused_signature(),
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
    let (ours, theirs) = (
        |status| used_by(&request(status), super::world::CLIENT),
        |status| used_by(&request(status), OTHER_CLIENT),
    );
    let expired = with(&request("active"), &json!({"expired": true}));
    let procedure = json!({"kind": "procedure", "id": id(20), "status": "completed"});
    let link = links(&[("service_request", 2)]);
    let job = |kind, name, seed| {
        let own = match kind {
            "service_request_use_job" => &using,
            "service_request_complete_job" => &completing,
            _ => &own,
        };
        case(kind, name, own.clone(), seed)
    };
    let missing = |kind| job(kind, "it is missing", vec![]).fails(404, "service_request not found");
    let (take, free, begin, complete) = (
        "service_request_use_job",
        "service_request_release_job",
        "service_request_process_job",
        "service_request_complete_job",
    );
    vec![
        job(take, "a free one", vec![request("active")])
            .done(&["service_request active"], link.clone()),
        job(take, "it is over", vec![request("completed")]).fails(409, "is completed"),
        job(take, "it has expired", vec![expired.clone()]).fails(409, "has expired"),
        job(take, "it is used", vec![theirs("active")]).fails(409, "is used already"),
        missing(take),
        job(free, "a used one", vec![ours("active")])
            .done(&["service_request active"], link.clone()),
        job(free, "it is over", vec![ours("in_progress")]).fails(409, "is in_progress"),
        job(free, "it has expired", vec![expired]).fails(409, "has expired"),
        missing(free),
        job(begin, "our own", vec![ours("active")])
            .done(&["service_request in_progress"], link.clone()),
        job(begin, "it is over", vec![ours("recalled")]).fails(409, "is recalled"),
        job(begin, "somebody else uses it", vec![theirs("active")])
            .fails(409, "not used by this legal entity"),
        job(begin, "nobody uses it", vec![request("active")])
            .fails(409, "not used by this legal entity"),
        missing(begin),
        job(
            complete,
            "our own",
            vec![ours("in_progress"), procedure.clone()],
        )
        .done(&["procedure completed", "service_request completed"], link),
        job(
            complete,
            "what came of it is missing",
            vec![ours("in_progress")],
        )
        .fails(422, "$.completed_with"),
        job(
            complete,
            "what came of it is another patient's",
            vec![
                ours("in_progress"),
                with(&procedure, &json!({"patient_id": OTHER_PATIENT})),
            ],
        )
        .fails(422, "$.completed_with"),
        job(complete, "it has not begun", vec![ours("active")])
            .fails(409, "is active, needed is in_progress"),
        job(
            complete,
            "somebody else uses it",
            vec![theirs("in_progress")],
        )
        .fails(409, "not used by this legal entity"),
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
    let job = |kind, name, seed| case(kind, name, signing(&content), seed);
    let closing = |name, seed| case(close, name, json!({"id": id(2)}), seed);
    let resending = |name, seed| case(resend, name, json!({"service_request_id": id(2)}), seed);
    let active = || vec![request("active")];
    vec![
        job(recall, "an active one", active()).done(&["service_request recalled"], link.clone()),
        job(recall, "it is over", vec![request("completed")]).fails(409, "is completed"),
        case(recall, "another text", signing(&other), active()).fails(409, "is not the stored one"),
        case(
            recall,
            "the content is of another",
            signing(&of_another),
            active(),
        )
        .fails(422, "$.id"),
        job(recall, "it is missing", vec![]).fails(404, "service_request not found"),
        job(recall, "no message can be sent", active()).refused_by("sms"),
        job(cancel, "an active one", active())
            .done(&["service_request entered_in_error"], link.clone()),
        job(cancel, "a completed one", vec![request("completed")])
            .done(&["service_request entered_in_error"], link.clone()),
        job(cancel, "it was recalled", vec![request("recalled")]).fails(409, "is recalled"),
        case(cancel, "another text", signing(&other), active()).fails(409, "is not the stored one"),
        case(
            cancel,
            "no base64",
            json!({"service_request_id": id(2), "signed_data": "***"}),
            active(),
        )
        .fails(422, "$.signed_data"),
        job(cancel, "it is missing", vec![]).fails(404, "service_request not found"),
        job(cancel, "no message can be sent", active()).refused_by("sms"),
        closing("an active one", active()).done(&["service_request completed"], link.clone()),
        closing("it is over", vec![request("recalled")]).fails(409, "is recalled"),
        closing("it is missing", vec![]).fails(404, "service_request not found"),
        resending("an active one", active()).done(&["service_request active"], link),
        resending("it is over", vec![request("in_progress")]).fails(409, "is in_progress"),
        resending("it is missing", vec![]).fails(404, "service_request not found"),
        resending("no message can be sent", active()).refused_by("sms"),
    ]
}
