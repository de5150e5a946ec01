//! Who may ask the HTTP interface for what: the real gate in front of the real routes, with keys that the real verbs make.

use std::process::Stdio;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tidegate_job::http::Access;
use uuid::Uuid;

use crate::http::{Api, form, function, invoke, letter, link_of, parts, use_job};
use crate::support;

const KIND: &str = "/jobs/service_request_use_job";

/// What these settings make of callers.
fn access(settings: &[(&str, &str)]) -> Access {
    Access::from_settings(&|name| {
        let found = settings.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

/// The interface for holders of API keys, who may ask as often as they like.
async fn with_keys() -> Api {
    let settings = [
        ("TIDEGATE_HTTP_AUTH", "keys"),
        ("TIDEGATE_HTTP_PER_SECOND", "0"),
    ];
    Api::asking(access(&settings)).await
}

/// Runs a verb as a program would; its document, and whether it succeeded.
async fn verb(api: &Api, arguments: &[&str]) -> (bool, Value) {
    let ran = support::command("tidegate")
        .args(arguments)
        .arg("--json")
        .env("DATABASE_URL", api.db.direct())
        .env("TIDEGATE_ACTOR", "somebody")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let document = serde_json::from_slice(&ran.stdout);
    (
        ran.status.success(),
        document.unwrap_or_else(|_| panic!("{ran:?}")),
    )
}

/// A new key, and its id.
async fn key(api: &Api, client: Uuid, scopes: &[&str]) -> (String, i64) {
    let client = client.to_string();
    let mut arguments = vec!["api-key", "create", "--label", "ward 3", "--client"];
    arguments.extend([&client, "--reason", "a test"]);
    for scope in scopes {
        arguments.extend(["--scope", scope]);
    }
    let (done, made) = verb(api, &arguments).await;
    assert!(done, "{made}");
    let key = made["key"].as_str().unwrap().to_owned();
    (key, made["id"].as_i64().unwrap())
}

fn request(api: &Api, method: Method, path: &str, body: &Value) -> RequestBuilder {
    let request = api.http.request(method, format!("{}{path}", api.url));
    request
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string())
}

async fn send(api: &Api, method: Method, path: &str, token: &str, body: &Value) -> Response {
    let request = request(api, method, path, body).bearer_auth(token);
    request.send().await.unwrap()
}

async fn post(api: &Api, path: &str, token: &str, body: &Value) -> (u16, Value) {
    parts(send(api, Method::POST, path, token, body).await).await
}

async fn get(api: &Api, path: &str, token: &str) -> (u16, Value) {
    parts(send(api, Method::GET, path, token, &Value::Null).await).await
}

/// What RFC 6750 has an answer say of its credential.
fn challenge(response: &Response) -> &str {
    let header = response.headers().get(WWW_AUTHENTICATE);
    header.map_or("", |text| text.to_str().unwrap())
}

/// A job that leaves it to its credential to say for which client.
fn job_of_nobody() -> Value {
    let mut job = use_job();
    job.as_object_mut().unwrap().remove("client_id");
    job
}

#[tokio::test]
async fn every_route_but_those_of_operation_asks_for_a_credential_and_says_so() {
    let api = with_keys().await;
    let (status, document) = parts(
        request(&api, Method::GET, "/openapi.json", &Value::Null)
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 200);
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_open = operation["tags"] == json!(["operation"]);
            let method = method.to_uppercase().parse().unwrap();
            let real = path
                .replace("{id}", "1-AAAAAAAAAAAAAAAAAAAAAA")
                .replace("{entities}", "episodes");
            let real = real.replace("{patient_id}", &Uuid::nil().to_string());
            let response = request(&api, method, &real, &json!({})).send();
            let response = response.await.unwrap();
            if is_open {
                assert_eq!(response.status(), 200, "{path}");
                assert!(operation["security"].is_null(), "{path}");
                continue;
            }
            asked += 1;
            assert_eq!(response.status(), 401, "{path}");
            assert_eq!(challenge(&response), "Bearer realm=\"tidegate\"");
            let needed = operation["security"][0]["bearer"].as_array().unwrap();
            assert_eq!(needed.len(), 1, "{path}");
            for status in ["401", "403", "429"] {
                assert!(
                    operation["responses"][status].is_object(),
                    "{path} {status}"
                );
            }
        }
    }
    assert_eq!(asked, 21 + 2 + 2 + 4, "no route is forgotten");
    let scheme = &document["components"]["securitySchemes"]["bearer"];
    assert_eq!(
        (&scheme["type"], &scheme["scheme"]),
        (&json!("http"), &json!("bearer"))
    );
    let payload = &document["components"]["schemas"]["ServiceRequestUseJob"]["required"];
    let required = payload.as_array().unwrap();
    assert!(required.contains(&json!("user_id")) && !required.contains(&json!("client_id")));
}

#[tokio::test]
async fn a_key_is_good_until_it_expires_or_is_revoked() {
    let api = with_keys().await;
    let client = Uuid::new_v4();
    let (key, id) = key(&api, client, &["jobs"]).await;
    let (status, answer) = post(&api, KIND, &key, &job_of_nobody()).await;
    assert_eq!(status, 202, "{answer}");
    let expire = "UPDATE callers.api_key SET expires_at = clock_timestamp()";
    api.client.batch_execute(expire).await.unwrap();
    let response = send(&api, Method::POST, KIND, &key, &job_of_nobody()).await;
    assert_eq!(response.status(), 401);
    let told = "Bearer realm=\"tidegate\", error=\"invalid_token\"";
    assert_eq!(challenge(&response), told);
    let prolong = "UPDATE callers.api_key SET expires_at = NULL";
    api.client.batch_execute(prolong).await.unwrap();
    assert_eq!(post(&api, KIND, &key, &job_of_nobody()).await.0, 202);

    let id = id.to_string();
    for changed in [true, false] {
        let (done, revoked) =
            verb(&api, &["api-key", "revoke", &id, "--reason", "it leaked"]).await;
        assert!(done && revoked["changed"] == changed, "{revoked}");
        assert_eq!(post(&api, KIND, &key, &job_of_nobody()).await.0, 401);
    }
    let audit = "SELECT jsonb_agg(jsonb_build_array(action, actor, count, reason, filter->>'client_id') ORDER BY id)
                   FROM tidegate.audit";
    let audit: Value = api.client.query_one(audit, &[]).await.unwrap().get(0);
    let revoked = |count| json!(["revoke_api_key", "somebody", count, "it leaked", null]);
    let created = json!(["create_api_key", "somebody", 1, "a test", client]);
    assert_eq!(audit, json!([created, revoked(1), revoked(0)]));
}

#[tokio::test]
async fn a_key_is_shown_once_and_kept_nowhere() {
    let api = with_keys().await;
    let (key, _) = key(&api, Uuid::new_v4(), &["jobs", "forms"]).await;
    let (_, list) = verb(&api, &["api-key", "list"]).await;
    assert_eq!(list["keys"][0]["scopes"], json!(["jobs", "forms"]));
    assert!(list["keys"][0]["valid"] == true && list["keys"][0]["expires_at"].is_string());
    let random = key.strip_prefix("tidegate_").unwrap();
    assert!(!list.to_string().contains(random));
    let kept = "SELECT (SELECT jsonb_agg(to_jsonb(k)) FROM callers.api_key k)::text
                    || (SELECT jsonb_agg(to_jsonb(a)) FROM tidegate.audit a)::text";
    let kept: String = api.client.query_one(kept, &[]).await.unwrap().get(0);
    assert!(kept.contains("ward 3") && !kept.contains(random));
}

#[tokio::test]
async fn what_is_no_good_key_is_401_and_not_quoted() {
    let api = with_keys().await;
    let (good, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let mut forged = good.clone();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'B' } else { 'A' });
    for token in [
        &forged,
        &good[1..],
        &format!("{good}A"),
        "canary",
        "a.b.c",
        "",
    ] {
        let response = send(&api, Method::POST, KIND, token, &job_of_nobody()).await;
        assert!(challenge(&response).contains("invalid_token"), "{token}");
        let (status, answer) = parts(response).await;
        assert_eq!(
            (status, &answer["error"]["type"]),
            (401, &json!("unauthorized")),
            "{token}"
        );
        assert!(!answer.to_string().contains("canary"));
    }
    let plain = || request(&api, Method::POST, KIND, &job_of_nobody());
    let basic = plain().basic_auth("user", Some(&good));
    let twice = plain()
        .bearer_auth(&good)
        .header(AUTHORIZATION, format!("Bearer {good}"));
    let bare = plain().header(AUTHORIZATION, &good);
    for request in [basic, twice, bare] {
        assert_eq!(request.send().await.unwrap().status(), 401);
    }
    let lower = plain().header(AUTHORIZATION, format!("bearer {good}"));
    assert_eq!(lower.send().await.unwrap().status(), 202);
}

#[tokio::test]
async fn a_credential_is_good_for_its_scopes_and_for_nothing_else() {
    let api = with_keys().await;
    let cancelled = json!({"source": "cases", "external_id": "2",
        "measure": {"case_number": "C1", "measure_id": "M1"}});
    let approval = format!("/patients/{0}/approvals/{0}/confirmation", Uuid::nil());
    let patient = format!("/patients/{0}/episodes/{0}", Uuid::nil());
    for scope in ["jobs", "forms", "letters"] {
        let (key, _) = key(&api, Uuid::new_v4(), &[scope]).await;
        for (needed, method, path, body, wanted) in [
            ("jobs", Method::POST, KIND, job_of_nobody(), 202),
            ("jobs", Method::POST, "/jobs/none", json!({}), 404),
            ("jobs", Method::GET, "/jobs/1", Value::Null, 404),
            ("jobs", Method::GET, &patient, Value::Null, 404),
            ("jobs", Method::POST, &approval, json!({}), 422),
            ("forms", Method::POST, "/forms", form("f1"), 202),
            (
                "forms",
                Method::POST,
                "/forms/f1/viewed",
                json!({"grant_number": "G"}),
                404,
            ),
            ("letters", Method::POST, "/letters", letter("1"), 202),
            (
                "letters",
                Method::POST,
                "/cancellations",
                cancelled.clone(),
                202,
            ),
        ] {
            let response = send(&api, method, path, &key, &body).await;
            if needed == scope {
                assert_eq!(response.status(), wanted, "{path}");
                continue;
            }
            let told = format!("error=\"insufficient_scope\", scope=\"{needed}\"");
            assert!(challenge(&response).ends_with(&told), "{path}");
            let (status, answer) = parts(response).await;
            assert_eq!(
                (status, &answer["error"]["type"]),
                (403, &json!("forbidden")),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn a_job_is_read_by_its_own_client_alone() {
    let api = with_keys().await;
    let (ours, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let (theirs, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let (status, answer) = post(&api, KIND, &ours, &job_of_nobody()).await;
    assert_eq!(status, 202);
    let href = link_of(&answer).href;
    assert_eq!(get(&api, &href, &ours).await, (200, answer));
    let (status, unknown) = get(&api, "/jobs/1-AAAAAAAAAAAAAAAAAAAAAA", &theirs).await;
    assert_eq!(status, 404);
    assert_eq!(
        get(&api, &href, &theirs).await,
        (404, unknown),
        "as if it were not there"
    );

    let rotate = |forget: &'static [&str]| {
        let arguments = [&["link-key", "rotate", "--reason", "a test"], forget].concat();
        let api = &api;
        async move { verb(api, &arguments).await }
    };
    assert!(rotate(&[]).await.0);
    assert_eq!(
        get(&api, &href, &ours).await.0,
        200,
        "an earlier key is good"
    );
    let (done, rotated) = rotate(&["--forget"]).await;
    assert!(done && rotated["forgotten"] == 2, "{rotated}");
    assert_eq!(get(&api, &href, &ours).await.0, 404);
    let (_, again) = post(&api, KIND, &ours, &job_of_nobody()).await;
    assert_eq!(get(&api, &link_of(&again).href, &ours).await.0, 200);
}

#[tokio::test]
async fn a_request_is_made_for_the_credentials_client_and_says_nothing_else() {
    let api = with_keys().await;
    let (client, user) = (Uuid::new_v4(), Uuid::new_v4());
    let [client_text, user_text] = [client, user].map(|id| id.to_string());
    let arguments = [
        "api-key",
        "create",
        "--label",
        "l",
        "--client",
        &client_text,
        "--user",
        &user_text,
    ];
    let more = ["--scope", "jobs", "--reason", "a test"];
    let (_, made) = verb(&api, &[&arguments[..], &more].concat()).await;
    let key = made["key"].as_str().unwrap();
    let mut asked = use_job();
    for name in ["client_id", "user_id"] {
        asked.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(post(&api, KIND, key, &asked).await.0, 202);
    let stored = "SELECT payload FROM tidegate.event_queue";
    let stored: Value = api.client.query_one(stored, &[]).await.unwrap().get(0);
    assert_eq!(
        (&stored["client_id"], &stored["user_id"]),
        (&json!(client), &json!(user))
    );

    for name in ["client_id", "user_id"] {
        let mut asked = asked.clone();
        asked[name] = json!(Uuid::new_v4());
        let (status, answer) = post(&api, KIND, key, &asked).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 403 && message.starts_with(name), "{answer}");
        let approval = format!("/patients/{0}/approvals/{0}/confirmation", Uuid::nil());
        let confirmation = json!({"request_id": "r1", name: asked[name]});
        assert_eq!(post(&api, &approval, key, &confirmation).await.0, 403);
    }
    let approval = format!("/patients/{0}/approvals/{0}/confirmation", Uuid::nil());
    let (status, _) = post(&api, &approval, key, &json!({"request_id": "r1"})).await;
    assert_eq!(status, 404, "it is complete, and there is no such approval");
    let (status, answer) = post(&api, KIND, key, &json!({"client_id": 7})).await;
    assert_eq!(status, 422, "{answer}");
}

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_again_and_others_are_served() {
    let settings = [
        ("TIDEGATE_HTTP_AUTH", "keys"),
        ("TIDEGATE_HTTP_PER_SECOND", "1"),
    ];
    let api = Api::asking(access(&settings)).await;
    let (ours, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let (theirs, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let mut refused = None;
    let mut served = 0;
    // However slow the machine is, one of so many comes within a second of another.
    for _ in 0..300 {
        let response = send(&api, Method::GET, "/jobs/1", &ours, &Value::Null).await;
        if response.status() == 429 {
            refused = Some(response);
            break;
        }
        assert_eq!(response.status(), 404);
        served += 1;
    }
    assert!(served > 0);
    let response = refused.expect("one comes too soon");
    let again: u64 = response.headers()[RETRY_AFTER]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=2).contains(&again), "{again}");
    assert_eq!(
        parts(response).await.1["error"]["type"],
        "too_many_requests"
    );
    assert_eq!(
        get(&api, "/jobs/1", &theirs).await.0,
        404,
        "another client's"
    );
    let open = request(&api, Method::GET, "/healthz", &Value::Null).send();
    assert_eq!(open.await.unwrap().status(), 200);
}

#[tokio::test]
async fn serve_is_for_this_machine_alone_until_it_is_said_who_may_call() {
    let api = with_keys().await;
    let refused = support::command("tidegate")
        .args(["serve", "--listen", "0.0.0.0:0"])
        .env("DATABASE_URL", api.db.direct())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("--listen 0.0.0.0:0: must be a loopback address"),
        "{said}"
    );
    assert!(said.contains("TIDEGATE_HTTP_AUTH"), "{said}");
    let odd = support::command("tidegate")
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("DATABASE_URL", api.db.direct())
        .env("TIDEGATE_HTTP_AUTH", "yes")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(odd.stderr).unwrap();
    assert!(said.contains("TIDEGATE_HTTP_AUTH: must be"), "{said}");
}

#[tokio::test]
async fn a_function_asks_for_keys_and_does_nothing_until_it_is_said_who_may_call() {
    let database = support::database().await;
    let (undecided, _process) = function(&[("DATABASE_URL", &database.url)]).await;
    let (status, answer) = invoke(&undecided, "GET", "/healthz", &Value::Null).await;
    assert_eq!(status, 503);
    assert!(!answer.to_string().contains("TIDEGATE"));
    let settings = [
        ("DATABASE_URL", &*database.url),
        ("TIDEGATE_HTTP_AUTH", "keys"),
    ];
    let (asking, _process) = function(&settings).await;
    assert_eq!(
        invoke(&asking, "GET", "/healthz", &Value::Null).await.0,
        200
    );
    assert_eq!(invoke(&asking, "POST", KIND, &use_job()).await.0, 401);
}
