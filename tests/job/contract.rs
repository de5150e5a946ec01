//! What the services are sent and what they must answer, as the page of the application says it.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::services::{self, Mode, SERVICES};
use serde_json::{Value, json};
use tidegate::Event as _;
use tidegate_job::app::Event;

use crate::application::World;
use crate::forms::{case, form, samples};
use crate::medical::cases::cases;
use crate::medical::world::payload;

/// A kind that calls the service, for each path of a service.
const CALLERS: [(&str, &str, &str); 9] = [
    ("archive", "documents", "form_submitted"),
    ("cases", "cases", "form_archived"),
    ("notifications", "cases", "external_letter_archived"),
    ("notifications", "messages", "external_letter_archived"),
    ("notifications", "statuses", "external_letter_archived"),
    ("ai_check", "checks", "issuings-ai-checks"),
    ("otp", "verifications", "approval_create_job"),
    ("sms", "messages", "service_request_resend_job"),
    ("signature", "verifications", "service_request_create_job"),
];

/// Requests one event of the kind that can succeed, with all that it needs.
async fn request(world: &mut World, kind: &str) {
    let check = json!({"triggerId": "T1", "applicationId": "A1"});
    let mut all = samples();
    all.push(("issuings-ai-checks", check));
    if let Some((_, sample)) = all.into_iter().find(|(name, _)| *name == kind) {
        world.publish(kind, &sample).await;
        return;
    }
    let job = cases()
        .into_iter()
        .find(|case| case.kind == kind && case.code == 200);
    let job = job.expect("every kind of job has a success");
    world.execute("DELETE FROM medical.entity").await;
    world.seed(&job.seed).await;
    world.submit(kind, &payload(&job.own)).await;
}

/// The fields of the bodies that each path receives, when every kind of event is handled. A field that not
/// every body has is marked.
async fn sent() -> BTreeMap<(&'static str, String), String> {
    let mut world = World::new().await;
    world.submit_form(&form("f2")).await;
    world.drain().await;
    world.store_with_case(&form("f1"), &case()).await;
    for kind in Event::KINDS {
        request(&mut world, kind).await;
        world.drain().await;
    }
    let mut bodies: BTreeMap<_, Vec<BTreeSet<String>>> = BTreeMap::new();
    for (service, _) in SERVICES {
        for call in world.services.calls(service) {
            let fields = call.body.as_object().expect("an object").keys();
            let fields = fields.cloned().collect();
            bodies.entry((service, call.path)).or_default().push(fields);
        }
    }
    let described = |bodies: Vec<BTreeSet<String>>| {
        let all: BTreeSet<&String> = bodies.iter().flatten().collect();
        let mark = |field: &String| {
            let always = bodies.iter().all(|body| body.contains(field));
            format!("`{field}`{}", if always { "" } else { "?" })
        };
        all.into_iter().map(mark).collect::<Vec<_>>().join(", ")
    };
    let bodies = bodies.into_iter();
    bodies
        .map(|(call, bodies)| (call, described(bodies)))
        .collect()
}

/// Whether an event of the kind succeeds when the service answers like this.
async fn succeeds(kind: &str, service: &str, mode: Mode) -> bool {
    let mut world = World::new().await;
    world.submit_form(&form("f1")).await;
    world.execute("DELETE FROM tidegate.event_queue").await;
    world.services.set(service, mode);
    request(&mut world, kind).await;
    world.drain().await;
    let ended = format!("SELECT count(*) FROM tidegate.event_log WHERE kind = '{kind}'");
    world.value(&ended).await == 1
}

/// What must be in the answer: the fields without which the event does not succeed.
async fn needed(kind: &str, service: &str) -> String {
    let mut without_body = Vec::new();
    for status in [200, 202, 204] {
        without_body.push(succeeds(kind, service, Mode::Empty { status }).await);
    }
    if without_body == [true; 3] {
        return "none".to_owned();
    }
    assert_eq!(without_body, [false; 3], "{service}");
    let mut needed = Vec::new();
    for nth in 0..2 {
        if !succeeds(kind, service, Mode::Lacks { nth }).await {
            needed.push(nth);
        }
    }
    let answer = services::answer(service, "");
    let fields: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    if needed.is_empty() {
        return "any JSON".to_owned();
    }
    let needed = needed.into_iter().map(|nth| format!("`{}`", fields[nth]));
    needed.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn the_page_lists_what_each_service_receives_and_must_answer() {
    let sent = sent().await;
    let listed = CALLERS.map(|(service, path, _)| (service, path.to_owned()));
    let listed: BTreeSet<_> = listed.into_iter().collect();
    let found: BTreeSet<_> = sent.keys().cloned().collect();
    assert_eq!(found, listed, "every path has a caller above");
    let page = include_str!("../../docs/shipped/application.md");
    for (service, path, kind) in CALLERS {
        let variable = SERVICES.iter().find(|(name, _)| *name == service);
        let variable = variable.expect("it is one of them").1;
        let body = &sent[&(service, path.to_owned())];
        let answer = needed(kind, service).await;
        let row = format!("| `{variable}` | `{path}` | {body} | {answer} |\n");
        assert!(page.contains(&row), "application.md needs the row\n{row}");
    }
}

#[tokio::test]
async fn an_archive_that_knows_the_document_may_say_so_by_409_and_must_say_where_it_is() {
    for (kind, lacks, expected) in [
        ("form_submitted", false, true),
        ("form_submitted", true, false),
        // Nobody needs to know where a note is.
        ("case_opened", true, true),
    ] {
        let mut world = World::new().await;
        world.store_with_case(&form("f1"), &case()).await;
        let sample = samples().into_iter().find(|(name, _)| *name == kind);
        let (_, payload) = sample.expect("a kind of the forms");
        // Two events with the same reference and different keys.
        world.publish(kind, &payload).await;
        world.drain().await;
        if lacks {
            world.services.set("archive", Mode::Refuse { status: 409 });
        }
        world.publish(kind, &payload).await;
        world.drain().await;
        let ended = format!("SELECT count(*) FROM tidegate.event_log WHERE kind = '{kind}'");
        let is_done = world.value(&ended).await == 2;
        assert_eq!(is_done, expected, "{kind}, without the document: {lacks}");
        let attempts = "SELECT coalesce(sum(attempts), 1) FROM tidegate.event_queue";
        let attempts = world.value(attempts).await;
        assert_eq!(attempts, 1, "a refusal costs an attempt");
        let last = world
            .services
            .calls("archive")
            .last()
            .map(|call| call.status);
        assert_eq!(last, Some(409));
    }
}

#[tokio::test]
async fn a_password_that_went_out_is_not_sent_again_whatever_the_service_says_about_it() {
    for mode in [Mode::Empty { status: 204 }, Mode::Echo] {
        let mut world = World::new().await;
        world.services.set("otp", mode);
        request(&mut world, "approval_create_job").await;
        world.drain().await;
        let ended = "SELECT jsonb_build_array(status, attempts) FROM tidegate.event_log";
        assert_eq!(
            world.value(ended).await,
            json!(["COMPLETED", 1]),
            "{mode:?}"
        );
        assert_eq!(world.services.calls("otp").len(), 1, "{mode:?}");
        let left: Value = world
            .value("SELECT count(*) FROM tidegate.event_queue")
            .await;
        assert_eq!(left, 0, "{mode:?}");
    }
}
