//! Who may ask the HTTP interface for what: the real gate in front of the real routes, with keys that the
//! real verbs make.

use std::time::Duration;

use crate::http::{
    Api, drain_with_all_services, form, function, gateway, invoke, letter, link_of, parts, refused,
    server, stopped,
};
use crate::support::cli::Cli;
use crate::support::{self, Deadline, RuntimeApi, begins, contains, has, use_job};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tidegate_job::http::{self, Access};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use uuid::Uuid;

const KIND: &str = "/jobs/service_request_use_job";

/// What these settings make of callers.
pub fn access(settings: &[(&str, &str)]) -> Access {
    Access::from_settings(&|name| {
        let found = settings.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

/// The interface for holders of API keys.
pub async fn with_keys() -> Api {
    Api::asking(access(&[("TIDEGATE_HTTP_AUTH", "keys")])).await
}

/// Runs a verb as a program would; its document, and whether it succeeded.
async fn verb(api: &Api, arguments: &[&str]) -> (bool, Value) {
    let cli = Cli::at(api.db.direct()).with("TIDEGATE_ACTOR", "somebody");
    let ran = cli.run(&[arguments, &["--json"]].concat()).await;
    (ran.code == Some(0), ran.document())
}

/// A new key, and its id.
pub async fn key(api: &Api, client: Uuid, scopes: &[&str]) -> (String, i64) {
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

pub async fn post(api: &Api, path: &str, token: &str, body: &Value) -> (u16, Value) {
    parts(send(api, Method::POST, path, token, body).await).await
}

pub async fn get(api: &Api, path: &str, token: &str) -> (u16, Value) {
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
    let (status, document) = api.get("/openapi.json").await;
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
    let unknown_kind = 1;
    assert_eq!(
        asked,
        21 + 3 + 3 + 3 + unknown_kind,
        "no route is forgotten"
    );
    let no_kind = request(&api, Method::POST, "/jobs/poem", &json!({})).send();
    assert_eq!(
        no_kind.await.unwrap().status(),
        401,
        "nor one that is not documented"
    );
    let scheme = &document["components"]["securitySchemes"]["bearer"];
    has(scheme, &json!({"type": "http", "scheme": "bearer"}));
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
        let answer = refused(parts(response).await, 401, "unauthorized");
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
    for scope in ["jobs", "approvals", "forms", "letters"] {
        let (key, _) = key(&api, Uuid::new_v4(), &[scope]).await;
        for (needed, method, path, body, wanted) in [
            ("jobs", Method::POST, KIND, job_of_nobody(), 202),
            ("jobs", Method::POST, "/jobs/none", json!({}), 404),
            ("jobs", Method::GET, "/jobs/1", Value::Null, 404),
            ("jobs", Method::GET, &patient, Value::Null, 404),
            ("approvals", Method::POST, &approval, json!({}), 422),
            ("forms", Method::POST, "/forms", form("f1"), 202),
            ("forms", Method::GET, "/forms/f1", Value::Null, 200),
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
            refused(parts(response).await, 403, "forbidden");
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
    let found = get(&api, &href, &theirs).await;
    assert_eq!(found, (404, unknown), "as if it were not there");

    let rotate = |forget: &'static [&str]| {
        let arguments = [&["link-key", "rotate", "--reason", "a test"], forget].concat();
        let api = &api;
        async move { verb(api, &arguments).await }
    };
    assert!(rotate(&[]).await.0);
    let seen = get(&api, &href, &ours).await.0;
    assert_eq!(seen, 200, "an earlier key is good");
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
    let more = [
        "--scope",
        "jobs",
        "--scope",
        "approvals",
        "--reason",
        "a test",
    ];
    let (_, made) = verb(&api, &[&arguments[..], &more].concat()).await;
    let key = made["key"].as_str().unwrap();
    let mut asked = use_job();
    for name in ["client_id", "user_id"] {
        asked.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(post(&api, KIND, key, &asked).await.0, 202);
    let stored = "SELECT payload FROM tidegate.event_queue";
    let stored: Value = api.client.query_one(stored, &[]).await.unwrap().get(0);
    has(&stored, &json!({"client_id": client, "user_id": user}));

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

/// What a server answers first on this connection; nothing if it closes it.
async fn status_line(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    let read = BufReader::new(stream);
    let mut read = read.take(1000);
    let heard = tokio::time::timeout(support::PATIENCE, read.read_line(&mut line));
    // The end of it, in an orderly way or not.
    let _ = heard.await.expect("the server answers or goes away");
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_bodies_do_not_come_keeps_no_other_client_out() {
    let api = with_keys().await;
    let (slow, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let (other, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let address = api.url.strip_prefix("http://").unwrap();
    let mut slow_ones = Vec::new();
    for _ in 0..http::IN_FLIGHT {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST {KIND} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {slow}\r\n\
             content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow_ones.push(stream);
        assert_eq!(get(&api, "/jobs/1", &other).await.0, 404);
    }
    let answers = slow_ones.iter_mut().map(status_line);
    let answers = futures_util::future::join_all(answers).await;
    let count = |status: &str| answers.iter().filter(|line| line.contains(status)).count();
    let (gave_up, refused) = (count(" 408 "), count(" 429 "));
    assert!(
        (1..=http::IN_FLIGHT_OF_ONE).contains(&gave_up),
        "{answers:?}"
    );
    assert_eq!(gave_up + refused, http::IN_FLIGHT, "{answers:?}");
    let found = get(&api, "/jobs/1", &slow).await.0;
    assert_eq!(found, 404, "it is let in again");
}

/// Look-ups of unknown keys wait for a lock, which the session of this holds.
const HELD: &str = "DO $$ BEGIN
    EXECUTE replace(pg_get_functiondef('callers.api_key_of'::regproc), 'api_key_of', 'known_key');
    EXECUTE format('CREATE OR REPLACE FUNCTION callers.api_key_of(digest bytea) RETURNS %s
                        LANGUAGE plpgsql STABLE SECURITY DEFINER AS %L',
        pg_get_function_result('callers.api_key_of'::regproc),
        'BEGIN
             RETURN QUERY SELECT * FROM callers.known_key(digest);
             IF NOT FOUND THEN
                 PERFORM pg_advisory_xact_lock_shared(4);
             END IF;
         END');
END $$; SELECT pg_advisory_lock(4)";

/// How many look-ups wait for the lock.
async fn held_look_ups(api: &Api) -> i64 {
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    api.client.query_one(count, &[]).await.unwrap().get(0)
}

/// The interface's clients at an address of this machine.
fn at(address: [u8; 4]) -> reqwest::Client {
    let client = reqwest::Client::builder().local_address(Some(address.into()));
    let client = client.timeout(support::PATIENCE).no_proxy();
    client.build().unwrap()
}

/// Guesses a key again and again.
async fn guess(address: String) {
    let guessed = format!("tidegate_{}", URL_SAFE_NO_PAD.encode([0; 32]));
    let request = format!(
        "GET /jobs/1 HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {guessed}\r\n\r\n"
    );
    loop {
        if let Ok(mut stream) = TcpStream::connect(&address).await {
            let _ = stream.write_all(request.as_bytes()).await;
            let _ = stream.read(&mut [0; 4096]).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_made_up_keys_stays_with_its_address_and_holds_up_no_known_key() {
    let api = with_keys().await;
    let client = Uuid::new_v4();
    let [(used, used_id), (new, _), (late, _)] = [
        key(&api, client, &["jobs"]).await,
        key(&api, client, &["jobs"]).await,
        key(&api, client, &["jobs"]).await,
    ];
    let [here, elsewhere] = [at([127, 0, 0, 1]), at([127, 0, 0, 2])];
    let ask = async |from: &reqwest::Client, path: &str, key: &str| {
        let asked = from.get(format!("{}{path}", api.url)).bearer_auth(key);
        asked.send().await.unwrap().status().as_u16()
    };
    assert_eq!(ask(&here, "/jobs/1", &used).await, 404);
    let holder = api.db.client().await;
    holder.batch_execute(HELD).await.unwrap();

    // More at once than there are places, again and again.
    let address = api.url.strip_prefix("http://").unwrap().to_owned();
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..2 * http::IN_FLIGHT {
        flood.spawn(guess(address.clone()));
    }
    support::wait_until("look-ups wait", async || held_look_ups(&api).await > 0).await;
    let most = i64::try_from(http::LOOK_UPS_OF_ONE).unwrap();
    for _ in 0..20 {
        assert!(held_look_ups(&api).await <= most);
        for (path, wanted) in [
            ("/healthz", 200),
            ("/readyz", 200),
            ("/openapi.json", 200),
            ("/jobs/1", 404),
        ] {
            assert_eq!(ask(&elsewhere, path, &new).await, wanted, "{path}");
            // As behind a proxy, where a stranger has everybody's address.
            assert_eq!(ask(&here, path, &used).await, wanted, "{path}");
        }
    }
    let new_here = ask(&here, "/jobs/1", &new).await;
    assert_eq!(new_here, 404, "from wherever it was good");
    let id = used_id.to_string();
    let (done, revoked) = verb(&api, &["api-key", "revoke", &id, "--reason", "it leaked"]).await;
    assert!(done, "{revoked}");
    let unlock = "SELECT pg_advisory_unlock(4)";
    holder.batch_execute(unlock).await.unwrap();
    let status = ask(&elsewhere, "/jobs/1", &used).await;
    assert_eq!(status, 401, "what was good is looked up, too");
    flood.shutdown().await;
    support::wait_until("a new key has its turn", async || {
        ask(&here, "/jobs/1", &late).await == 404
    })
    .await;
}

#[tokio::test]
async fn who_called_is_in_the_log_and_from_where_a_credential_was_refused() {
    let api = with_keys().await;
    let [client, user] = [(); 2].map(|()| Uuid::new_v4().to_string());
    let arguments = ["api-key", "create", "--label", "l", "--client", &client];
    let more = ["--user", &user, "--scope", "jobs", "--reason", "a test"];
    let (_, made) = verb(&api, &[&arguments[..], &more].concat()).await;
    let (key, id) = (made["key"].as_str().unwrap(), &made["id"]);
    let keys = [("TIDEGATE_HTTP_AUTH", "keys")];
    let (server, url) = server(&api.db, &keys).await;
    let ask = async |from: u8, path: &str, key: &str| {
        let asked = at([127, 0, 0, from]).get(format!("{url}{path}"));
        asked
            .bearer_auth(key)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(ask(1, "/jobs/1", key).await, 404);
    assert_eq!(ask(1, "/forms/1", key).await, 403);
    for _ in 0..10 {
        assert_eq!(ask(2, "/jobs/1", "canary").await, 401);
    }
    let guessed = format!("tidegate_{}", "A".repeat(43));
    assert_eq!(ask(3, "/jobs/1", &guessed).await, 401);
    let log = stopped(server).await;
    let lines = |words: &[&str]| {
        let all = log.lines();
        all.filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    };
    let who = format!("client_id={client} user_id={user} key_id={id}");
    for (route, status) in [
        ("route=\"/jobs/{id}\"", "status=404"),
        ("route=\"/forms/{id}\"", "status=403"),
    ] {
        assert_eq!(
            lines(&["request answered", route, &who, status]),
            1,
            "{log}"
        );
    }
    let refused = "a credential was refused";
    // One a minute.
    assert!((1..10).contains(&lines(&[refused, "127.0.0.2"])), "{log}");
    assert!(
        lines(&[refused, "127.0.0.3"]) == 1 && lines(&[refused, "127.0.0.1\""]) == 0,
        "{log}"
    );
    for secret in [key, "canary", &guessed] {
        assert_eq!(lines(&[secret]), 0, "{log}");
    }
}

#[tokio::test]
async fn until_it_is_said_who_may_call_no_other_host_name_is_answered() {
    let api = Api::asking(access(&[])).await;
    for (host, reached) in [
        ("localhost", true),
        ("LOCALHOST:8080", true),
        ("127.0.0.1:1", true),
        ("[::1]:8080", true),
        ("evil.example", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.evil.example:8080", false),
    ] {
        for (method, path, wanted) in [
            (Method::GET, "/healthz", 200),
            (Method::GET, "/jobs/1", 404),
            (Method::POST, KIND, 422),
            (Method::GET, "/nowhere", 404),
        ] {
            let asked = request(&api, method, path, &json!({})).header(HOST, host);
            let (status, answer) = parts(asked.send().await.unwrap()).await;
            if reached {
                assert_eq!(status, wanted, "{host} {path}: {answer}");
            } else {
                assert_eq!(status, 421, "{host} {path}: {answer}");
                assert_eq!(answer["error"]["type"], "misdirected_request");
            }
        }
    }
    // Something in front knows the names.
    let decided = Api::asking(access(&[("TIDEGATE_HTTP_AUTH", "none")])).await;
    let asked = request(&decided, Method::GET, "/jobs/1", &Value::Null).header(HOST, "app.example");
    assert_eq!(asked.send().await.unwrap().status(), 404);
}

/// A form of a client with the id that all of them use, for so many hours.
fn f1(hours: u8) -> Value {
    let mut form = form("f1");
    form["need"]["hours"] = json!(hours);
    form
}

/// The case of a stored form.
async fn case_of(api: &Api, hours: i32) -> (String, Value) {
    let stored = "SELECT id, jsonb_build_object('case_number', case_number, 'measure_id', measure_id) FROM forms.form WHERE need_hours = $1";
    let row = api.client.query_one(stored, &[&hours]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Both submit a form with the same id, and again, and one of them another one.
async fn submitted_as_f1(api: &Api, ours: &str, theirs: &str) {
    for (key, hours, wanted) in [
        (theirs, 2, (202, json!(false))),
        (ours, 1, (202, json!(false))),
        (ours, 1, (202, json!(true))),
        (theirs, 2, (202, json!(true))),
        (ours, 2, (409, Value::Null)),
    ] {
        let (status, answer) = post(api, "/forms", key, &f1(hours)).await;
        let repeated = answer["data"]["repeated"].clone();
        assert_eq!((status, repeated), wanted, "{answer}");
        let told = &answer["data"]["form_id"];
        assert!(status == 409 || told == "f1", "{answer}");
    }
}

#[tokio::test]
async fn a_form_is_of_its_own_client_alone_whatever_its_id_is() {
    let api = with_keys().await;
    let clients = [(); 2].map(|()| Uuid::new_v4());
    let (ours, _) = key(&api, clients[0], &["forms"]).await;
    let (theirs, _) = key(&api, clients[1], &["forms"]).await;
    let (letters, _) = key(&api, Uuid::new_v4(), &["letters"]).await;
    let cli = Cli::at(api.db.direct());
    cli.json(&["submit", "form", &f1(3).to_string()]).await;
    submitted_as_f1(&api, &ours, &theirs).await;
    // What a client's form is stored as is nobody else's id.
    let stored = json!(format!("{}/f1", clients[0]));
    let mut forged = f1(3);
    forged["id"] = stored.clone();
    let refused = cli.run(&["submit", "form", &forged.to_string()]).await;
    refused.failed(2, &["form.id: must not begin with a UUID"]);

    drain_with_all_services(&api).await;
    let (our_id, case) = case_of(&api, 1).await;
    assert_eq!(json!(our_id), stored);
    let steps = "SELECT array_agg(DISTINCT group_key ORDER BY group_key) FROM tidegate.event_log WHERE correlation_id LIKE '%f1'";
    let groups: Vec<String> = api.client.query_one(steps, &[]).await.unwrap().get(0);
    let mut expected = clients.map(|client| format!("form:{client}/f1")).to_vec();
    expected.push("form:f1".to_owned());
    expected.sort();
    assert_eq!(groups, expected, "each in a group of its own");
    let mut cases = Vec::new();
    for hours in 1..=3 {
        cases.push(case_of(&api, hours).await.1.to_string());
    }
    cases.sort();
    cases.dedup();
    assert_eq!(cases.len(), 3, "each has a case of its own");

    // A message names the case, and so one form.
    let notice = json!({"source": "cases", "external_id": "1", "measure": case});
    assert_eq!(post(&api, "/declines", &letters, &notice).await.0, 202);
    drain_with_all_services(&api).await;
    for (key, hours, status) in [(&ours, 1, "declined"), (&theirs, 2, "submitted")] {
        let (code, answer) = get(&api, "/forms/f1", key).await;
        let form = &answer["data"]["form"];
        let shown = (code, &form["id"], &form["need"]["hours"], &form["status"]);
        let wanted = (200, &json!("f1"), &json!(hours), &json!(status));
        assert_eq!(shown, wanted, "{answer}");
        let kinds = answer["data"]["steps"].as_array().unwrap().iter();
        let kinds: Vec<_> = kinds.map(|step| step["kind"].as_str().unwrap()).collect();
        let declined = kinds.contains(&"form_declined");
        assert_eq!(declined, status == "declined", "{kinds:?}");
    }
    let grant = "INSERT INTO forms.awarded_grant VALUES ('G1', $1, 'C', 'M', '100000001', 1, '2027-01-11', '2027-01-12', 'D', 'J')";
    api.client.execute(grant, &[&our_id]).await.unwrap();
    let viewed = json!({"grant_number": "G1"});
    for (key, wanted) in [(&ours, 202), (&theirs, 404)] {
        let (status, answer) = post(&api, "/forms/f1/viewed", key, &viewed).await;
        assert_eq!(status, wanted, "{answer}");
        assert!(status == 404 || answer["data"]["form_id"] == "f1");
    }
    let of_ours = format!("/forms/{}%2Ff1", clients[0]);
    for path in [&of_ours, "/forms/none", "/forms/f1%00"] {
        assert_eq!(get(&api, path, &theirs).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn a_letter_with_another_clients_id_is_a_letter_of_its_own() {
    let api = with_keys().await;
    let (theirs, _) = key(&api, Uuid::new_v4(), &["letters"]).await;
    let (ours, _) = key(&api, Uuid::new_v4(), &["letters"]).await;
    let cancelled = json!({"source": "cases", "external_id": "2",
        "measure": {"case_number": "C1", "measure_id": "M1"}});
    for (path, body) in [("/letters", letter("1")), ("/cancellations", cancelled)] {
        for (key, repeated) in [
            (&theirs, false),
            (&ours, false),
            (&ours, true),
            (&theirs, true),
        ] {
            let (status, answer) = post(&api, path, key, &body).await;
            let told = (status, &answer["data"]["repeated"]);
            assert_eq!(told, (202, &json!(repeated)), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn serve_is_for_this_machine_alone_until_it_is_said_who_may_call() {
    let api = with_keys().await;
    let cli = Cli::at(api.db.direct());
    let refused = cli.run(&["serve", "--listen", "0.0.0.0:0"]).await;
    let elsewhere = "--listen 0.0.0.0:0: must be a loopback address";
    refused.failed(2, &[elsewhere, "TIDEGATE_HTTP_AUTH"]);
    for odd in ["yes", "jwt", "keys,jwt", "iam"] {
        let cli = Cli::at(api.db.direct()).with("TIDEGATE_HTTP_AUTH", odd);
        let refused = cli.run(&["serve", "--listen", "127.0.0.1:0"]).await;
        refused.failed(2, &["TIDEGATE_HTTP_AUTH: must be"]);
    }
}

#[tokio::test]
async fn a_function_asks_for_keys_and_does_nothing_until_it_is_said_who_may_call() {
    let api = with_keys().await;
    let database = &api.db;
    let (undecided, _process) = function(&[("DATABASE_URL", &database.url)]).await;
    let (status, answer) = invoke(&undecided, "GET", "/healthz", &Value::Null).await;
    assert_eq!(status, 503);
    assert!(!answer.to_string().contains("TIDEGATE"));
    let settings = [
        ("DATABASE_URL", &*database.url),
        ("TIDEGATE_HTTP_AUTH", "keys"),
    ];
    let (asking, _process) = function(&settings).await;
    let found = invoke(&asking, "GET", "/healthz", &Value::Null).await.0;
    assert_eq!(found, 200);
    assert_eq!(invoke(&asking, "POST", KIND, &use_job()).await.0, 401);
    // Of the one connection that a function has.
    let (key, _) = key(&api, Uuid::new_v4(), &["jobs"]).await;
    let mut request: Value =
        serde_json::from_str(&gateway("POST", KIND, &job_of_nobody())).unwrap();
    request["headers"]["authorization"] = json!(format!("Bearer {key}"));
    let deadline = Deadline::In(support::PATIENCE);
    let answer = asking.invoke(request.to_string(), deadline).await;
    assert_eq!(answer.body["statusCode"], 202, "{:?}", answer.body);
}

// Behind a gateway that verifies tokens

/// The function behind a gateway.
struct Behind {
    api: Api,
    function: RuntimeApi,
    _process: Child,
}

impl Behind {
    async fn new(auth: &str) -> Self {
        let api = with_keys().await;
        let settings = [("DATABASE_URL", &*api.db.url), ("TIDEGATE_HTTP_AUTH", auth)];
        let (function, process) = function(&settings).await;
        Self {
            api,
            function,
            _process: process,
        }
    }

    /// Sends the event of a request, with these parts in the place of its own.
    async fn send(&self, (method, path, body): (&str, &str, &Value), own: &Value) -> (u16, Value) {
        let mut event: Value = serde_json::from_str(&gateway(method, path, body)).unwrap();
        for part in ["headers", "requestContext"] {
            for (name, value) in own[part].as_object().into_iter().flatten() {
                event[part][name] = value.clone();
            }
        }
        let deadline = Deadline::In(support::PATIENCE);
        let answer = self.function.invoke(event.to_string(), deadline).await;
        assert!(!answer.is_error, "{:?}", answer.body);
        let status = answer.body["statusCode"].as_u64().unwrap();
        let body = serde_json::from_str(answer.body["body"].as_str().unwrap());
        (u16::try_from(status).unwrap(), body.unwrap())
    }

    async fn post(&self, claims: &Value, path: &str, body: &Value) -> (u16, Value) {
        self.send(("POST", path, body), &verified(claims)).await
    }

    async fn get(&self, claims: &Value, path: &str) -> u16 {
        let request = ("GET", path, &Value::Null);
        self.send(request, &verified(claims)).await.0
    }
}

/// What the gateway adds to a request whose token has these claims.
fn verified(claims: &Value) -> Value {
    json!({"requestContext": {"authorizer": {"jwt": {"claims": claims, "scopes": null}}}})
}

/// The claims of a token, with these in the place of its own.
fn claims(own: &Value) -> Value {
    let mut claims = json!({"iss": "https://issuer.example.org", "aud": "tidegate", "exp": "1767225660",
        "client_id": Uuid::from_u128(1), "scope": "jobs"});
    for (name, value) in own.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

#[tokio::test]
async fn a_token_that_the_gateway_has_verified_is_good_for_what_it_says() {
    let behind = Behind::new("keys,jwt").await;
    let user = Uuid::new_v4();
    let ours = claims(&json!({"user_id": user}));
    let mut asked = job_of_nobody();
    asked.as_object_mut().unwrap().remove("user_id");
    let (status, answer) = behind.post(&ours, KIND, &asked).await;
    assert_eq!(status, 202, "{answer}");
    let href = link_of(&answer).href;
    assert_eq!(behind.get(&ours, &href).await, 200);
    let theirs = claims(&json!({"client_id": Uuid::from_u128(2)}));
    assert_eq!(behind.get(&theirs, &href).await, 404);
    asked["user_id"] = json!(Uuid::new_v4());
    assert_eq!(behind.post(&ours, KIND, &asked).await.0, 403);
    let none = format!("/patients/{0}/approvals/{0}/confirmation", Uuid::nil());
    let confirmation = json!({"request_id": "r1"});
    for (path, body) in [("/letters", &letter("1")), (&none, &confirmation)] {
        assert_eq!(behind.post(&ours, path, body).await.0, 403, "{path}");
    }
    let confirming = claims(&json!({"user_id": user, "scope": "approvals"}));
    let confirmed = behind.post(&confirming, &none, &confirmation).await.0;
    assert_eq!(confirmed, 404, "there is no such approval");
    for scope in ["openid letters", "[openid letters]"] {
        let letters = claims(&json!({"scope": scope}));
        assert_eq!(behind.post(&letters, "/letters", &letter("1")).await.0, 202);
    }
    // A Lambda authorizer says the same in its own way.
    let request = ("POST", KIND, &job_of_nobody());
    let lambda = json!({"requestContext": {"authorizer": {"lambda": claims(&json!({}))}}});
    assert_eq!(behind.send(request, &lambda).await.0, 202);
    let (key, _) = key(&behind.api, Uuid::new_v4(), &["jobs"]).await;
    let with_key = json!({"headers": {"authorization": format!("Bearer {key}")}});
    assert_eq!(behind.send(request, &with_key).await.0, 202);
}

#[tokio::test]
async fn claims_are_believed_from_the_request_context_alone() {
    let behind = Behind::new("jwt").await;
    let good = claims(&json!({}));
    assert_eq!(behind.post(&good, KIND, &job_of_nobody()).await.0, 202);
    let parts = [json!({"alg": "none"}), good.clone()];
    let [head, said] = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let token = format!("{head}.{said}.");
    let authorizer = verified(&good)["requestContext"]["authorizer"].to_string();
    let (key, _) = key(&behind.api, Uuid::new_v4(), &["jobs"]).await;
    let headers = [
        json!({"authorization": format!("Bearer {token}")}),
        json!({"authorization": format!("Bearer {key}")}),
        json!({"x-amzn-oidc-data": token, "x-amzn-oidc-identity": Uuid::from_u128(1)}),
        json!({"x-amzn-request-context": authorizer, "authorizer": authorizer}),
        json!({}),
    ];
    let request = ("POST", KIND, &job_of_nobody());
    for headers in &headers {
        let (status, answer) = behind.send(request, &json!({"headers": headers})).await;
        assert_eq!(status, 401, "{headers}: {answer}");
    }
    for context in [
        json!({"jwt": {"claims": {}}}),
        json!({"jwt": {"claims": null}}),
        json!({"iam": {"userId": Uuid::from_u128(1), "accountId": "123456789012"}}),
        json!({"lambda": null}),
        json!(null),
    ] {
        let own = json!({"requestContext": {"authorizer": context}});
        let (status, answer) = behind.send(request, &own).await;
        assert_eq!(status, 401, "{context}: {answer}");
    }
    for odd in [
        json!({"patient_id": "canary"}),
        json!({"client_id": "canary"}),
    ] {
        let (status, answer) = behind.post(&claims(&odd), KIND, &job_of_nobody()).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 401 && message.contains("claims"), "{answer}");
        assert!(!message.contains("canary"), "{message}");
    }
    // A server of its own has no gateway that it could believe.
    let api = Api::asking(access(&[("TIDEGATE_HTTP_AUTH", "jwt")])).await;
    for headers in &headers {
        let mut asked = request_of_nobody(&api);
        for (name, value) in headers.as_object().unwrap() {
            asked = asked.header(name, value.as_str().unwrap());
        }
        assert_eq!(asked.send().await.unwrap().status(), 401, "{headers}");
    }
}

fn request_of_nobody(api: &Api) -> RequestBuilder {
    request(api, Method::POST, KIND, &job_of_nobody())
}

#[tokio::test]
async fn a_token_for_a_patient_reaches_that_patient_alone() {
    let behind = Behind::new("jwt").await;
    let everybodys = claims(&json!({}));
    let patient = Uuid::new_v4();
    let own = claims(&json!({"patient_id": patient}));
    let mut asked = job_of_nobody();
    let (status, _) = behind.post(&own, KIND, &asked).await;
    assert_eq!(status, 403, "of another one");
    asked["patient_id"] = json!(patient);
    let (status, answer) = behind.post(&own, KIND, &asked).await;
    assert_eq!(status, 202);
    let theirs = behind.post(&everybodys, KIND, &job_of_nobody()).await.1;
    assert_eq!(behind.get(&own, &link_of(&answer).href).await, 200);
    assert_eq!(behind.get(&own, &link_of(&theirs).href).await, 404);
    assert_eq!(behind.get(&everybodys, &link_of(&theirs).href).await, 200);
    asked.as_object_mut().unwrap().remove("patient_id");
    asked["request_id"] = json!("r2");
    let (_, again) = behind.post(&own, KIND, &asked).await;
    let what = "it is the patient's, unsaid";
    assert_eq!(link_of(&again), link_of(&answer), "{what}");

    let entity = |patient: Uuid| format!("/patients/{patient}/episodes/{}", Uuid::nil());
    let other = entity(Uuid::new_v4());
    assert_eq!(behind.get(&own, &entity(patient)).await, 404);
    assert_eq!(behind.get(&own, &other).await, 403);
    assert_eq!(behind.get(&everybodys, &other).await, 404);
    let approval = format!("/patients/{}/approvals/{}", Uuid::new_v4(), Uuid::nil());
    let confirm = format!("{approval}/confirmation");
    let body = json!({"request_id": "r1", "user_id": Uuid::nil()});
    for (token, wanted) in [(json!({ "patient_id": patient }), 403), (json!({}), 404)] {
        let mut token = claims(&token);
        token["scope"] = json!("approvals");
        assert_eq!(behind.post(&token, &confirm, &body).await.0, wanted);
    }
}

// Behind AWS that knows the identity

/// What AWS adds to a request that this identity has signed.
fn signed_by(arn: &str) -> Value {
    let iam = json!({"accessKey": "EXAMPLE", "accountId": "123456789012", "callerId": "EXAMPLE:session",
        "cognitoIdentity": null, "principalOrgId": "o-example", "userArn": arn, "userId": "EXAMPLE:session"});
    json!({"requestContext": {"authentication": null, "authorizer": {"iam": iam}}})
}

/// Permits a role or a user to ask for jobs.
async fn permit(api: &Api, arn: &str, client: Uuid) -> (bool, Value) {
    let client = client.to_string();
    let arguments = ["api-key", "create", "--iam", arn, "--client", &client];
    let more = ["--scope", "jobs", "--reason", "a test"];
    verb(api, &[&arguments[..], &more].concat()).await
}

#[tokio::test]
async fn an_aws_identity_is_the_client_of_its_row_whatever_the_body_says() {
    let behind = Behind::new("iam").await;
    let client = Uuid::new_v4();
    let role = "arn:aws:iam::123456789012:role/ward-3";
    let (done, made) = permit(
        &behind.api,
        "arn:aws:iam::123456789012:role/path/ward-3",
        client,
    )
    .await;
    assert!(
        done && made["label"] == role && made["key"].is_null(),
        "{made}"
    );
    let session = "arn:aws:sts::123456789012:assumed-role/ward-3/anybody";
    let ask =
        async |arn: &str, body: &Value| behind.send(("POST", KIND, body), &signed_by(arn)).await;
    assert_eq!(ask(session, &job_of_nobody()).await.0, 202);
    let stored = "SELECT payload->>'client_id' FROM tidegate.event_queue";
    let stored: String = behind
        .api
        .client
        .query_one(stored, &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(stored, client.to_string());
    let (status, answer) = ask(session, &use_job()).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 403, "{answer}");
    begins(message, "client_id");
    let (status, answer) = behind
        .send(("POST", "/letters", &letter("1")), &signed_by(session))
        .await;
    assert_eq!(status, 403, "another scope: {answer}");

    for stranger in [
        "arn:aws:sts::123456789012:assumed-role/ward-4/ward-3",
        "arn:aws:sts::210987654321:assumed-role/ward-3/anybody",
        "arn:aws:iam::123456789012:user/ward-3",
        "arn:aws:iam::123456789012:root",
    ] {
        let (status, answer) = ask(stranger, &job_of_nobody()).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(status, 403, "{stranger}: {answer}");
        contains(message, "no caller");
    }
}

#[tokio::test]
async fn an_aws_identity_is_believed_from_the_request_context_alone() {
    let behind = Behind::new("iam").await;
    let role = "arn:aws:iam::123456789012:role/ward-3";
    assert!(permit(&behind.api, role, Uuid::new_v4()).await.0);
    let (key, _) = key(&behind.api, Uuid::new_v4(), &["jobs"]).await;
    for own in [
        json!({}),
        json!({"headers": {"authorization": format!("Bearer {key}")}}),
        json!({"headers": {"authorization": format!("Bearer {role}")}}),
        verified(&claims(&json!({}))),
        json!({"requestContext": {"authorizer": {"iam": null}}}),
        json!({"requestContext": {"authorizer": {"iam": {"userId": role}}}}),
    ] {
        let (status, answer) = behind.send(("POST", KIND, &job_of_nobody()), &own).await;
        assert_eq!(status, 401, "{own}: {answer}");
    }
}

#[tokio::test]
async fn an_aws_identity_is_permitted_once_revoked_and_permitted_again() {
    let behind = Behind::new("keys,iam").await;
    let api = &behind.api;
    let user = "arn:aws:iam::123456789012:user/ward";
    let client = Uuid::new_v4();
    let (done, made) = permit(api, user, client).await;
    assert!(done, "{made}");
    let (done, refused) = permit(api, user, client).await;
    assert!(
        !done && refused.to_string().contains("iam: must be no caller yet"),
        "{refused}"
    );
    let asked = job_of_nobody();
    let ask = async || {
        behind
            .send(("POST", KIND, &asked), &signed_by(user))
            .await
            .0
    };
    assert_eq!(ask().await, 202);
    let id = made["id"].to_string();
    verb(api, &["api-key", "revoke", &id, "--reason", "a test"]).await;
    assert_eq!(ask().await, 403);
    assert!(permit(api, user, client).await.0);
    assert_eq!(ask().await, 202);
    let (key, _) = key(api, Uuid::new_v4(), &["jobs"]).await;
    let with_key = json!({"headers": {"authorization": format!("Bearer {key}")}});
    assert_eq!(behind.send(("POST", KIND, &asked), &with_key).await.0, 202);
    let cli = Cli::at(api.db.direct());
    let (client, wrong) = (client.to_string(), "arn:aws:s3:::bucket");
    let arguments = ["api-key", "create", "--iam", wrong, "--client", &client];
    let more = ["--scope", "jobs", "--reason", "a test"];
    let ran = cli.run(&[&arguments[..], &more].concat()).await;
    ran.failed(2, &["must be the ARN of a role or a user of IAM"]);
}

// Whose records a caller reads

/// The records of one patient of one client: their kinds and states, and the record that each is a part of,
/// by its place.
const RECORDS: [(&str, &str, Option<usize>); 6] = [
    ("episode", "active", None),
    ("encounter", "finished", Some(0)),
    ("observation", "valid", Some(1)),
    ("service_request", "completed", None),
    ("procedure", "completed", None),
    ("episode", "active", None),
];

/// Stores rows of a patient.
async fn store(api: &Api, patient: Uuid, rows: &Value) {
    let insert = "
INSERT INTO medical.entity (kind, id, patient_id, parent_id, organization_id, status, content, facts, expires_at)
SELECT kind, id, $2, parent_id, organization_id, status, coalesce(content, '{}'), coalesce(facts, '{}'),
       CASE WHEN kind = 'service_request' THEN now() END
  FROM jsonb_to_recordset($1) AS s(kind text, id uuid, parent_id uuid, organization_id uuid, status text, content jsonb, facts jsonb)";
    let stored = api.client.execute(insert, &[rows, &patient]).await;
    stored.unwrap();
}

/// Stores the records, whose procedure completed the service request. Their ids and paths.
async fn records(api: &Api, patient: Uuid, client: Uuid) -> Vec<(Uuid, String)> {
    let ids = RECORDS.map(|_| Uuid::new_v4());
    let rows = RECORDS.iter().zip(ids).map(|((kind, status, parent), id)| {
        let facts = json!({"completed_with": {"entity": "procedure", "id": ids[4]}});
        json!({"kind": kind, "id": id, "status": status, "organization_id": client,
            "parent_id": parent.map(|at| ids[at]), "facts": facts})
    });
    store(api, patient, &rows.collect()).await;
    let path = |((kind, _, _), id): (&(&str, &str, Option<usize>), Uuid)| {
        (id, format!("/patients/{patient}/{kind}s/{id}"))
    };
    RECORDS.iter().zip(ids).map(path).collect()
}

/// The status that a read has for a user.
async fn read(api: &Api, path: &str, user: Option<Uuid>, key: &str) -> u16 {
    let asked = user.map_or_else(String::new, |user| format!("?user_id={user}"));
    get(api, &format!("{path}{asked}"), key).await.0
}

#[tokio::test]
async fn a_record_is_read_by_whom_it_belongs_to_or_by_approval() {
    let api = with_keys().await;
    let [ours, theirs, patient, employee] = [(); 4].map(|()| Uuid::new_v4());
    let (our_key, _) = key(&api, ours, &["jobs"]).await;
    let (their_key, _) = key(&api, theirs, &["jobs"]).await;
    let records = records(&api, patient, ours).await;
    for (_, path) in &records {
        assert_eq!(read(&api, path, None, &our_key).await, 200, "{path}");
        let asked = format!("{path}?user_id={employee}");
        refused(get(&api, &asked, &their_key).await, 403, "forbidden");
    }
    // The patient agrees that their employee reads an episode, and then a service request.
    let approve = async |status: &str, mut content: Value| {
        content["granted_to"] = json!(employee);
        content["access_level"] = json!("read");
        let approval = json!([{"kind": "approval", "id": Uuid::new_v4(), "status": status,
            "organization_id": theirs, "content": content}]);
        store(&api, patient, &approval).await;
    };
    let [(episode, path), .., (request, used), _, _] = &records[..] else {
        panic!("{records:?}")
    };
    let resources = json!({"resources": [{"entity": "episode", "id": episode}]});
    approve("new", resources.clone()).await;
    assert_eq!(read(&api, path, Some(employee), &their_key).await, 403);
    approve("active", resources).await;
    approve("active", json!({ "service_request": request })).await;
    for (at, (_, path)) in records.iter().enumerate() {
        // Nothing names the last one.
        let wanted = if at < 5 { 200 } else { 403 };
        let status = read(&api, path, Some(employee), &their_key).await;
        assert_eq!(status, wanted, "{path}");
        for other in [None, Some(Uuid::new_v4())] {
            assert_eq!(read(&api, path, other, &their_key).await, 403, "{path}");
        }
    }
    let odd = format!("{path}?user_id=me");
    refused(get(&api, &odd, &their_key).await, 400, "bad_request");
    // Who uses a service request reads it.
    let use_it = "UPDATE medical.entity SET facts = jsonb_build_object('used_by_legal_entity', $1::uuid) WHERE kind = 'service_request'";
    api.client.execute(use_it, &[&theirs]).await.unwrap();
    assert_eq!(read(&api, used, None, &their_key).await, 200);
}
