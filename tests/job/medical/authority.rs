//! Who may do what: every kind of job, asked for by the one who may, and by a stranger.

use serde_json::{Value, json};
use tidegate_job::app::medical::AUTHORITIES;
use tidegate_job::app::medical::authority::{Authority, Who};

use super::cases::{Case, cases, episode, request};
use super::world::{OTHER_CLIENT, OTHER_PATIENT, USER, World, id, payload, with};

/// A good job of a kind.
fn good(kind: &str) -> Case {
    let mut cases = cases().into_iter();
    let found = cases.find(|case| case.kind == kind && case.code == 200);
    found.unwrap_or_else(|| panic!("{kind}: no success is listed"))
}

/// Runs a job over what its case has before, as the user and client of `by`. Returns its code.
async fn code(world: &mut World, case: &Case, by: &Value) -> Value {
    world.execute("DELETE FROM medical.entity").await;
    world.seed(&case.seed).await;
    let job = world.run(case.kind, &with(&payload(&case.own), by)).await;
    job["status_code"].clone()
}

#[tokio::test]
async fn e15_a_stranger_is_refused_each_kind_of_job_as_its_authority_says() {
    let mut world = World::new().await;
    let (client, user) = (
        json!({"client_id": OTHER_CLIENT}),
        json!({"user_id": id(99)}),
    );
    for (kind, Authority { who, code: refused }) in AUTHORITIES {
        let case = good(kind);
        let refused: u64 = refused.parse().unwrap();
        let (by_client, by_user) = match who {
            Who::Anyone => (200, 200),
            Who::Signer => (200, refused),
            _ => (refused, 200),
        };
        for (by, wanted) in [(&json!({}), 200), (&client, by_client), (&user, by_user)] {
            assert_eq!(code(&mut world, &case, by).await, wanted, "{kind} by {by}");
        }
    }
}

/// An active approval of another legal entity for one of its employees.
fn approval(own: &Value) -> Value {
    let content = json!({"granted_to": id(99), "access_level": "write",
        "resources": [{"entity": "episode", "id": id(1)}]});
    json!({"kind": "approval", "id": id(3), "status": "active", "organization_id": OTHER_CLIENT,
        "content": with(&content, own)})
}

#[tokio::test]
async fn an_approval_to_write_lets_its_employee_write_and_nobody_else() {
    let mut world = World::new().await;
    let by = json!({"client_id": OTHER_CLIENT, "user_id": id(99)});
    let write = approval(&json!({}));
    let not_for = |what: &Value| with(&write, what);
    for kind in ["episode_update_job", "package_create_job"] {
        for (approval, by, wanted) in [
            (write.clone(), &by, 200),
            (write.clone(), &json!({"client_id": OTHER_CLIENT}), 403),
            (approval(&json!({"access_level": "read"})), &by, 403),
            (approval(&json!({"granted_to": id(98)})), &by, 403),
            (
                approval(&json!({"resources": [{"entity": "episode", "id": id(2)}]})),
                &by,
                403,
            ),
            (not_for(&json!({"status": "new"})), &by, 403),
            (not_for(&json!({"organization_id": id(98)})), &by, 403),
            (not_for(&json!({"patient_id": OTHER_PATIENT})), &by, 403),
        ] {
            let mut case = good(kind);
            case.seed.push(approval.clone());
            let ended = code(&mut world, &case, by).await;
            assert_eq!(ended, wanted, "{kind} by {by} with {approval}");
        }
    }
    // It does not make the episode its employee's own.
    let mut closing = good("episode_close_job");
    closing.seed.push(write);
    assert_eq!(code(&mut world, &closing, &by).await, 409);
}

#[tokio::test]
async fn a_service_request_is_released_and_closed_by_its_user_and_not_by_whom_it_led_to() {
    let mut world = World::new().await;
    let by = json!({"client_id": OTHER_CLIENT});
    let used = json!({"facts": {"used_by_employee": USER, "used_by_legal_entity": OTHER_CLIENT}});
    for kind in ["service_request_release_job", "service_request_close_job"] {
        let mut case = good(kind);
        case.seed = vec![with(&request("active"), &used)];
        assert_eq!(code(&mut world, &case, &by).await, 200, "{kind}");
        // It was used once, and led to an episode.
        let content = json!({"referral_requests": [id(2)]});
        let led_to = json!({"organization_id": OTHER_CLIENT, "content": content});
        case.seed = vec![request("active"), with(&episode("active"), &led_to)];
        assert_eq!(code(&mut world, &case, &by).await, 403, "{kind}");
    }
}

/// The table of the page says what the program does.
#[test]
fn the_page_lists_who_may_do_what() {
    let page = include_str!("../../../docs/shipped/application.md");
    let row = |(kind, Authority { who, code }): &(&str, Authority)| {
        let about = match *kind {
            kind if kind.starts_with("approval") => "approval",
            kind if kind.starts_with("diagnostic_report") => "report",
            kind if kind.starts_with("episode") => "episode",
            kind if kind.starts_with("package_create") => "episode",
            kind if kind.starts_with("package") => "encounter",
            kind if kind.starts_with("procedure") => "procedure",
            _ => "service request",
        };
        let owner = format!("the {about}'s legal entity");
        let who = match who {
            Who::Anyone => "every legal entity; the patient agrees by the password".to_owned(),
            Who::Signer => "the employee whom the content names".to_owned(),
            Who::Itself => "the legal entity that the request names".to_owned(),
            Who::Owner => owner,
            Who::OwnerOrApproved => {
                format!("{owner}, and an employee with an approval to write it")
            }
            Who::OwnerOrUser => format!("{owner}, and its user"),
            Who::User => format!("the {about}'s user"),
        };
        let code = if who.starts_with("every") { "" } else { code };
        format!("| `{kind}` | {who} | {code} |\n")
    };
    let rows: String = AUTHORITIES.iter().map(row).collect();
    assert!(
        page.contains(&rows),
        "docs/shipped/application.md needs:\n{rows}"
    );
}
