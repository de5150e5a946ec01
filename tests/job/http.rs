//! The HTTP interface of the medical jobs: the real router on a real Postgres, over a real socket.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::support::as_user;
use crate::support::services::Services;
use crate::support::use_job;
use crate::support::{self, Deadline, RuntimeApi, TestDb, begins, lacks, words};
use reqwest::header::{ALLOW, CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Method, Response, redirect};
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, DrainOptions, Event, Fault, NewEvent};
use tidegate_admin::views;
use tidegate_core::progress::Status;
use tidegate_core::queue::{self, ErrorEntry, Finalization, LeaseRequest, Walk};
use tidegate_job::app::{self, App, Event as AppEvent, medical};
use tidegate_job::http::{self, Access};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::task::AbortHandle;
use uuid::Uuid;

/// The interface, served; and what a test wants beside it.
pub struct Api {
    pub url: String,
    pub http: reqwest::Client,
    pub client: Client,
    server: AbortHandle,
    pub db: TestDb,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Api {
    /// With a login that may take in and tell, and nothing else.
    async fn new() -> Self {
        Self::asking(Access::open()).await
    }

    /// The same, for those whom this lets in.
    pub async fn asking(access: Access) -> Self {
        let db = support::database().await;
        let owner = db.database();
        let migrate = Migrate::new(AppEvent::KINDS).tables(&[app::TABLES]);
        migrate.with_roles().run(&owner).await.unwrap();
        let login = format!("http_of_{}", db.name());
        let sql = format!(
            "DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE tidegate_intake"
        );
        db.client().await.batch_execute(&sql).await.unwrap();
        let database = Database::new(&as_user(&db.url, &login), 8).unwrap();
        Self::for_callers(db, database, access).await
    }

    async fn over(db: TestDb, database: Database) -> Self {
        Self::for_callers(db, database, Access::open()).await
    }

    async fn for_callers(db: TestDb, database: Database, access: Access) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = http::serve(
            listener,
            http::router(database, access),
            std::future::pending(),
        );
        Self {
            url,
            http: client(),
            client: db.client().await,
            server: tokio::spawn(serving).abort_handle(),
            db,
        }
    }

    async fn send(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Response {
        self.http
            .request(method, format!("{}{path}", self.url))
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .send()
            .await
            .unwrap()
    }

    async fn post(&self, kind: &str, body: &Value) -> (u16, Value) {
        let path = format!("/jobs/{kind}");
        parts(self.send(Method::POST, &path, body.to_string()).await).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        parts(self.send(Method::GET, path, "").await).await
    }

    /// Asks for a job that is accepted.
    async fn accepted(&self, kind: &str, body: &Value) -> Link {
        let (status, answer) = self.post(kind, body).await;
        assert_eq!(status, 202, "{answer}");
        link_of(&answer)
    }

    /// Ends a job as its handler would.
    async fn end(&self, id: i64, status: Status, faults: &[Fault], result: Option<Value>) {
        let token = Uuid::new_v4();
        let request = LeaseRequest {
            token,
            worker: Uuid::new_v4(),
            held: &[],
            over: &[],
            timeout: Duration::from_mins(1),
            kinds: AppEvent::KINDS,
            limit: 100,
            bytes: u64::MAX,
            first_window: 100,
            passed_by: &[],
            probe: None,
            walk: Walk {
                after: id - 1,
                ..Walk::default()
            },
        };
        let leased = queue::lease(&self.client, &request).await.unwrap();
        let event = leased.events.iter().find(|event| event.lease.id == id);
        let errors = faults
            .iter()
            .map(|fault| ErrorEntry::new(Some("job"), fault, 1));
        let lease = event.expect("the job is ready").lease;
        let end = Finalization {
            errors: errors.collect(),
            result: result.map(|result| [("job".to_owned(), result.into())].into()),
            ..Finalization::new(lease, status)
        };
        let flushed = support::finalize(&self.client, &[end]).await.unwrap();
        assert_eq!(flushed.ended.len(), 1);
    }

    /// Reads a new job that ended so.
    async fn read_ended(
        &self,
        status: Status,
        faults: &[Fault],
        result: Option<Value>,
    ) -> (u16, Value) {
        let job = self.accepted("service_request_use_job", &use_job()).await;
        self.end(job.id, status, faults, result).await;
        self.get(&job.href).await
    }

    async fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT count(*) FROM tidegate.{table}");
        self.client.query_one(&count, &[]).await.unwrap().get(0)
    }
}

fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(support::PATIENCE)
        .no_proxy()
        .build()
        .unwrap()
}

pub async fn parts(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    (status, response.json().await.unwrap())
}

/// Checks that an answer is a refusal of this status and type, and returns it.
#[track_caller]
pub fn refused((status, answer): (u16, Value), expected: u16, kind: &str) -> Value {
    let found = (status, &answer["error"]["type"]);
    assert_eq!(found, (expected, &json!(kind)), "{answer}");
    answer
}

/// A link that is well formed.
const SOME_JOB: &str = "/jobs/1-AAAAAAAAAAAAAAAAAAAAAA";

/// Where a job is read, and which event it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub href: String,
    pub id: i64,
}

pub fn link_of(answer: &Value) -> Link {
    let href = answer["data"]["links"][0]["href"].as_str().unwrap();
    let (id, _) = href
        .strip_prefix("/jobs/")
        .unwrap()
        .split_once('-')
        .unwrap();
    Link {
        href: href.to_owned(),
        id: id.parse().unwrap(),
    }
}

fn uuid() -> String {
    Uuid::new_v4().to_string()
}

/// The data of an ended job without its `eta`, which must lie between the test's start and now.
fn data(mut answer: Value) -> Value {
    let mut data = answer["data"].take();
    assert_eq!(answer, json!({"data": null}), "nothing but data");
    let eta = data.as_object_mut().unwrap().remove("eta").unwrap();
    let eta = seconds(eta.as_str().unwrap());
    assert!((-60.0..1.0).contains(&(eta - now())), "{eta}");
    data
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

/// An RFC 3339 time in UTC as seconds of the epoch.
fn seconds(text: &str) -> f64 {
    let time = humantime::parse_rfc3339(text).unwrap();
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

#[tokio::test]
async fn an_accepted_job_and_a_pending_one_are_answered_alike() {
    let api = Api::new().await;
    let body = use_job();
    let path = "/jobs/service_request_use_job";
    let response = api.send(Method::POST, path, body.to_string()).await;
    let headers = response.headers().clone();
    let wait = |headers: &HeaderMap| -> u32 {
        let wait = headers[RETRY_AFTER].to_str();
        wait.unwrap().parse().unwrap()
    };
    let (status, answer) = parts(response).await;
    let Link { href, id } = link_of(&answer);
    assert_eq!(status, 202);
    assert_eq!(headers[LOCATION], href);
    assert!((55..=61).contains(&wait(&headers)), "{headers:?}");
    let eta = answer["data"]["eta"].as_str().unwrap();
    assert!(
        (55.0..61.0).contains(&(seconds(eta) - now())),
        "at the next tick: {eta}"
    );
    let links = json!([{"entity": "job", "href": href}]);
    let pending = json!({"data": {"status": "pending", "eta": eta, "links": links}});
    assert_eq!(answer, pending);
    let response = api.send(Method::GET, &href, "").await;
    assert!((50..=61).contains(&wait(response.headers())));
    assert_eq!(parts(response).await, (200, pending));

    let stored = views::show(&api.client, id).await.unwrap().unwrap();
    assert_eq!(stored["kind"].get(), r#""service_request_use_job""#);
    assert_eq!(stored["payload"].read::<Value>().unwrap(), body);
    let patient = body["patient_id"].as_str().unwrap();
    let group: String = stored["group_key"].read().unwrap();
    assert_eq!(group, format!("patient:{patient}"), "E5");
}

#[tokio::test]
async fn the_eta_of_a_pending_job_never_lies_in_the_past() {
    let api = Api::new().await;
    let job = api.accepted("service_request_use_job", &use_job()).await;
    let age = "UPDATE tidegate.event_queue SET created_at = clock_timestamp() - interval '150 s'";
    api.client.batch_execute(age).await.unwrap();
    let (_, answer) = api.get(&job.href).await;
    let left = seconds(answer["data"]["eta"].as_str().unwrap()) - now();
    assert!((25.0..31.0).contains(&left), "{left}");
}

#[tokio::test]
async fn a_processed_job_with_links_is_303_without_a_location() {
    let api = Api::new().await;
    for links in [
        json!([{"entity": "episode", "href": "/episodes/1"}]),
        json!([]),
    ] {
        let job = api.accepted("service_request_use_job", &use_job()).await;
        let result = Some(json!({"links": links}));
        api.end(job.id, Status::Completed, &[], result).await;
        let response = api.send(Method::GET, &job.href, "").await;
        assert!(!response.headers().contains_key(LOCATION));
        assert_eq!(response.headers()["cache-control"], "no-store");
        let (status, answer) = parts(response).await;
        let expected = json!({"status": "processed", "status_code": 200, "links": links});
        assert_eq!((status, data(answer)), (303, expected));
    }
}

#[tokio::test]
async fn a_processed_job_with_response_data_is_200() {
    let api = Api::new().await;
    for response in [json!({"id": "a1", "status": "new"}), json!("")] {
        let result = Some(json!({"response_data": response}));
        let (status, answer) = api.read_ended(Status::Completed, &[], result).await;
        let expected =
            json!({"status": "processed", "status_code": 200, "response_data": response});
        assert_eq!((status, data(answer)), (200, expected));
    }
}

#[tokio::test]
async fn e15_a_failed_job_is_200_with_what_its_handler_said() {
    let api = Api::new().await;
    let invalid = json!([{"entry": "$.id", "rule": "unique", "description": "exists already"}]);
    let conflict = Fault::new("409", "the episode is closed");
    let unfit = Fault::new("422", "not allowed").with_details(json!({"invalid": invalid}));
    for (fault, code, error) in [
        (
            conflict,
            409,
            json!({"type": "request_conflict", "message": "the episode is closed"}),
        ),
        (
            unfit,
            422,
            json!({"type": "validation_failed", "message": "not allowed", "invalid": invalid}),
        ),
        (Fault::new("403", "not yours"), 403, json!("not yours")),
        (
            Fault::new("404", "no such episode"),
            404,
            json!("no such episode"),
        ),
    ] {
        let ended = Status::CompletedWithErrors;
        let (status, answer) = api.read_ended(ended, &[fault], None).await;
        let expected = json!({"status": "failed", "status_code": code, "error": error});
        assert_eq!((status, data(answer)), (200, expected));
    }
}

#[tokio::test]
async fn e15_a_job_that_was_given_up_is_200_with_an_internal_error() {
    let api = Api::new().await;
    let secret = Fault::new("database", "canary of the inside");
    let (status, answer) = api.read_ended(Status::Failed, &[secret], None).await;
    assert!(!answer.to_string().contains("canary"), "{answer}");
    let message = answer["data"]["error"]["message"].clone();
    let error = json!({"type": "internal_error", "message": message});
    let expected = json!({"status": "failed_with_error", "status_code": 500, "error": error});
    assert_eq!((status, data(answer)), (200, expected));
}

/// Asks for jobs that make an entity of each kind, and drains with all services at work.
async fn one_of_each_kind(api: &Api, common: &Value) -> Vec<Link> {
    let job = |own: Value| merged(common, &own);
    let signed = |content: &Value| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(content.to_string())
    };
    let user = &common["user_id"];
    let (episode, request) = (uuid(), uuid());
    let known = json!({"subject": common["patient_id"], "code": "A00", "date": "2026-01-15"});
    let part = |own: Value| merged(&known, &own);
    let encounter = part(json!({"id": uuid(), "episode": episode}));
    let mut package = json!({ "encounter": encounter });
    for list in [
        "conditions",
        "observations",
        "immunizations",
        "allergy_intolerances",
        "risk_assessments",
        "devices",
        "medication_statements",
        "diagnostic_reports",
    ] {
        package[list] = json!([part(json!({"id": uuid(), "text": "Text"}))]);
    }
    let procedure = part(json!({"id": uuid(), "recorded_by": user}));
    let referral = part(json!({"id": request, "requester_employee": user}));
    let client = common["client_id"].as_str().unwrap();
    let visit = json!({"id": uuid(), "period": {"start": "2026-01-01"}});
    let jobs = [
        ("episode_create_job", new_episode(&episode, client)),
        (
            "package_create_job",
            json!({"visit": visit, "signed_data": signed(&package)}),
        ),
        (
            "procedure_create_job",
            json!({"signed_data": signed(&procedure)}),
        ),
        (
            "service_request_create_job",
            json!({"signed_data": signed(&referral)}),
        ),
    ];
    let mut ids = Vec::new();
    for (kind, own) in jobs {
        ids.push(api.accepted(kind, &job(own)).await);
    }
    drain_with_all_services(api).await;
    ids
}

pub async fn drain_with_all_services(api: &Api) {
    let services = Services::start().await;
    let app = App::from_settings(&|name| services.setting(name)).unwrap();
    let options = DrainOptions::default();
    let report = tidegate::drain(&api.db.database(), Arc::new(app), &options).await;
    assert!(report.unwrap().is_balanced());
}

fn merged(common: &Value, own: &Value) -> Value {
    let mut job = common.clone();
    job.as_object_mut()
        .unwrap()
        .extend(own.as_object().unwrap().clone());
    job
}

fn new_episode(id: &str, organization: &str) -> Value {
    json!({"id": id, "name": "Care", "type": "primary", "status": "active", "managing_organization": organization,
        "period": {"start": "2026-01-01"}, "care_manager": uuid(), "referral_requests": []})
}

fn somebody() -> Value {
    json!({"request_id": "r1", "patient_id": uuid(), "user_id": uuid(), "client_id": uuid()})
}

#[tokio::test]
async fn every_link_of_a_jobs_answer_leads_to_what_the_job_made() {
    let api = Api::new().await;
    let common = somebody();
    let mut kinds = BTreeSet::new();
    for job in one_of_each_kind(&api, &common).await {
        let (status, answer) = api.get(&job.href).await;
        assert_eq!(status, 303, "{answer}");
        for link in answer["data"]["links"].as_array().unwrap() {
            let href = link["href"].as_str().unwrap();
            let (status, answer) = api.get(href).await;
            assert_eq!(status, 200, "{href}: {answer}");
            let data = &answer["data"];
            assert_eq!(data["entity"], link["entity"]);
            assert_eq!(data["patient_id"], common["patient_id"]);
            assert_eq!(data["organization_id"], common["client_id"]);
            assert_eq!(href.rsplit('/').next(), data["id"].as_str());
            assert_eq!(
                data["content"]["id"], data["id"],
                "as it was signed or asked for"
            );
            assert!(
                data["created_at"].is_string() && data["facts"].is_object(),
                "{data}"
            );
            let expires = data["entity"] == "service_request";
            assert_eq!(data["expires_at"].is_string(), expires, "{data}");
            kinds.insert(link["entity"].as_str().unwrap().to_owned());
        }
    }
    // The thirteenth is an approval, which is no link but the answer's data.
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}

#[tokio::test]
async fn what_a_patient_does_not_have_is_404() {
    let api = Api::new().await;
    let common = somebody();
    let job = one_of_each_kind(&api, &common).await.swap_remove(0);
    let (_, answer) = api.get(&job.href).await;
    let href = answer["data"]["links"][0]["href"].as_str().unwrap();
    let id = href.rsplit('/').next().unwrap();
    let patient = common["patient_id"].as_str().unwrap();
    assert_eq!(api.get(href).await.0, 200);
    let upper = format!("/patients/{patient}/episodes/{}", id.to_uppercase());
    assert_eq!(api.get(&upper).await.0, 200, "as in bodies");
    for path in [
        format!("/patients/{}/episodes/{id}", uuid()),
        format!("/patients/{patient}/procedures/{id}"),
        format!("/patients/{patient}/episode/{id}"),
        format!("/patients/{patient}/poems/{id}"),
        format!("/patients/{patient}/episodes/{}", uuid()),
        format!("/patients/{patient}/episodes/{}", id.replace('-', "")),
        format!("/patients/{patient}/episodes/1"),
        format!("/patients/{patient}/episodes/%ff"),
        format!("/patients/x/episodes/{id}"),
    ] {
        refused(api.get(&path).await, 404, "not_found");
    }
}

/// A new approval of a new episode: its path, and who has asked for it.
async fn new_approval(api: &Api) -> (String, Value) {
    let (common, episode, approval) = (somebody(), uuid(), uuid());
    let new_episode = new_episode(&episode, common["client_id"].as_str().unwrap());
    let resources = json!([{"entity": "episode", "id": episode}]);
    let own = json!({"id": approval, "resources": resources, "granted_to": uuid(), "access_level": "read"});
    api.accepted("episode_create_job", &merged(&common, &new_episode))
        .await;
    api.accepted("approval_create_job", &merged(&common, &own))
        .await;
    drain_with_all_services(api).await;
    let patient = common["patient_id"].as_str().unwrap();
    (format!("/patients/{patient}/approvals/{approval}"), common)
}

#[tokio::test]
async fn an_approval_is_confirmed_once_and_never_by_the_legal_entity_that_requested_it() {
    let api = Api::new().await;
    let (approval, common) = new_approval(&api).await;
    let confirmation = format!("{approval}/confirmation");
    let mut asked = common.clone();
    asked.as_object_mut().unwrap().remove("patient_id");
    asked["request_id"] = json!("r2");
    asked["client_id"] = json!(uuid());
    let confirm = async |path: &str, body: &Value| {
        parts(api.send(Method::POST, path, body.to_string()).await).await
    };
    assert_eq!(api.get(&approval).await.1["data"]["status"], "new");

    let by_itself = merged(&asked, &json!({"client_id": common["client_id"]}));
    let answer = refused(confirm(&confirmation, &by_itself).await, 403, "forbidden");
    begins(answer["error"]["message"].as_str().unwrap(), "client_id: ");
    let (status, answer) = confirm(&confirmation, &json!({"user_id": "canary"})).await;
    assert_eq!(status, 422);
    assert!(
        answer["error"]["invalid"].as_array().unwrap().len() > 1
            && !answer.to_string().contains("canary")
    );
    let unknown = format!("/patients/{}/approvals/{}/confirmation", uuid(), uuid());
    assert_eq!(confirm(&unknown, &asked).await.0, 404);
    assert_eq!(api.get(&approval).await.1["data"]["status"], "new");

    for _ in 0..2 {
        let (status, answer) = confirm(&confirmation, &asked).await;
        let found = (status, &answer["data"]["status"]);
        assert_eq!(found, (200, &json!("active")), "{answer}");
    }
    let audit = "SELECT to_jsonb(a) - 'id' - 'at' - 'entity_id' FROM medical.audit a WHERE event_kind = 'approval_confirmation'";
    let rows = api.client.query(audit, &[]).await.unwrap();
    assert_eq!(rows.len(), 1, "the second one changed nothing");
    let expected = merged(
        &asked,
        &json!({"event_id": null, "event_kind": "approval_confirmation",
        "patient_id": common["patient_id"], "entity_kind": "approval", "status_before": "new", "status_after": "active"}),
    );
    assert_eq!(rows[0].get::<_, Value>(0), expected);
}

#[tokio::test]
async fn e15_a_password_is_not_sent_again_for_another_legal_entity_nor_once_it_was_given() {
    let api = Api::new().await;
    let (approval, common) = new_approval(&api).await;
    let resend = merged(&common, &json!({"id": approval.rsplit('/').next()}));
    let foreign = merged(&resend, &json!({"client_id": uuid()}));
    let mut ends = Vec::new();
    for body in [&foreign, &resend] {
        let job = api.accepted("approval_resend_job", body).await;
        drain_with_all_services(&api).await;
        ends.push(data(api.get(&job.href).await.1));
    }
    let found = (&ends[0]["status_code"], &ends[1]["status_code"]);
    assert_eq!(found, (&json!(403), &json!(200)));
    let expected = "the approval belongs to another legal entity";
    assert_eq!(ends[0]["error"], expected);
    let mut asked = common;
    asked.as_object_mut().unwrap().remove("patient_id");
    asked["client_id"] = json!(uuid());
    let path = format!("{approval}/confirmation");
    let confirmed = api.send(Method::POST, &path, asked.to_string()).await;
    assert_eq!(confirmed.status(), 200);
    let job = api.accepted("approval_resend_job", &resend).await;
    drain_with_all_services(&api).await;
    let end = data(api.get(&job.href).await.1);
    assert_eq!(end["status_code"], 409, "{end}");
}

#[tokio::test]
async fn an_unknown_or_malformed_id_is_404() {
    let api = Api::new().await;
    let form = NewEvent::raw(
        "grant_letter_viewed",
        Some(raw(&json!({"grant_number": "G1"}))),
    );
    let form = queue::publish(&api.client, &form).await.unwrap().id;
    let job = api.accepted("service_request_use_job", &use_job()).await;
    let unknown = words("0 -1 999999 abc 9223372036854775808 %ff %20");
    let ours = job.href.strip_prefix("/jobs/").unwrap();
    let (number, signature) = ours.split_once('-').unwrap();
    // Who has a link has no other one, and who counts has none.
    let aliases = [
        number.to_owned(),
        form.to_string(),
        format!("{form}-{signature}"),
        format!("{}-{signature}", job.id + 1),
        format!("0{ours}"),
        format!("+{ours}"),
        format!("{ours}="),
        format!("{number}-{}", "A".repeat(signature.len())),
    ];
    assert_eq!(api.get(&job.href).await.0, 200);
    for id in unknown.into_iter().map(ToOwned::to_owned).chain(aliases) {
        refused(api.get(&format!("/jobs/{id}")).await, 404, "not_found");
    }
}

fn raw(value: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

#[tokio::test]
async fn e2_e3_a_duplicate_of_a_pending_job_is_that_job_and_after_its_end_a_new_one() {
    let api = Api::new().await;
    let kind = "service_request_use_job";
    let body = use_job();
    let first = api.accepted(kind, &body).await;
    let mut again = body.clone();
    again["request_id"] = json!("r2");
    let found = api.accepted(kind, &again).await;
    assert_eq!(found, first, "the request's own id does not count");
    let mut other = body.clone();
    other["user_id"] = json!(uuid());
    let seen = api.accepted(kind, &other).await;
    assert_ne!(seen, first, "another user is another job");
    assert_eq!(api.count("event_queue").await, 2);

    api.end(first.id, Status::Completed, &[], Some(json!({"links": []})))
        .await;
    let second = api.accepted(kind, &body).await;
    assert_ne!(second, first);
    assert_eq!(api.get(&first.href).await.0, 303);
    assert_eq!(api.get(&second.href).await.0, 200);
}

#[tokio::test]
async fn e3_concurrent_twins_are_one_job() {
    let api = Api::new().await;
    let body = use_job();
    let twins = (0..16).map(|_| api.accepted("service_request_use_job", &body));
    let ids: BTreeSet<Link> = futures_util::future::join_all(twins)
        .await
        .into_iter()
        .collect();
    assert_eq!((ids.len(), api.count("event_queue").await), (1, 1));
}

#[tokio::test]
async fn e1_all_that_is_wrong_is_listed_and_nothing_is_stored() {
    let api = Api::new().await;
    let mut body = use_job();
    body["patient_id"] = json!("canary");
    body["used_by_employee"] = json!(7);
    body["canary"] = json!("canary");
    body.as_object_mut().unwrap().remove("service_request_id");
    let answer = refused(
        api.post("service_request_use_job", &body).await,
        422,
        "validation_failed",
    );
    let entries: BTreeSet<&str> = answer["error"]["invalid"]
        .as_array()
        .unwrap()
        .iter()
        .map(|invalid| invalid["entry"].as_str().unwrap())
        .collect();
    let wrong = words("$ $.patient_id $.service_request_id $.used_by_employee");
    assert_eq!(entries, wrong.into_iter().collect());
    assert!(!answer.to_string().contains("canary"), "{answer}");

    for body in ["[]", "null", "7", "\"\"", "{}"] {
        let path = "/jobs/service_request_use_job";
        refused(
            parts(api.send(Method::POST, path, body).await).await,
            422,
            "validation_failed",
        );
    }
    assert_eq!(api.count("event_queue").await, 0);
}

#[tokio::test]
async fn a_body_of_nothing_but_mistakes_is_answered_briefly() {
    let api = Api::new().await;
    let fields: Vec<String> = (0..20_000).map(|n| format!("\"x{n}\":0")).collect();
    let body = format!("{{{}}}", fields.join(","));
    let path = "/jobs/service_request_use_job";
    let (status, answer) = parts(api.send(Method::POST, path, body).await).await;
    assert_eq!(status, 422);
    assert_eq!(answer["error"]["invalid"].as_array().unwrap().len(), 1000);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("20007 mistakes"), "{message}");
}

#[tokio::test]
async fn a_body_that_is_no_json_is_400_and_one_of_another_type_415() {
    let api = Api::new().await;
    let path = "/jobs/service_request_use_job";
    for body in ["", "{", "canary", "{\"a\": 1e999}", "\u{feff}{}"] {
        let answer = refused(
            parts(api.send(Method::POST, path, body).await).await,
            400,
            "malformed_json",
        );
        assert!(!answer.to_string().contains("canary"), "{answer}");
    }
    let typed = |content_type: &'static str| {
        let request = api.http.post(format!("{}{path}", api.url));
        request
            .header(CONTENT_TYPE, content_type)
            .body(use_job().to_string())
            .send()
    };
    assert_eq!(typed("text/plain").await.unwrap().status(), 415);
    let found = typed("Application/JSON; charset=utf-8")
        .await
        .unwrap()
        .status();
    assert_eq!(found, 202);
}

#[tokio::test]
async fn e4_only_the_medical_kinds_are_jobs() {
    let api = Api::new().await;
    for kind in medical::KINDS {
        let (status, _) = api.post(kind, &json!({})).await;
        assert_eq!(status, 422, "{kind}");
    }
    for kind in ["form_submitted", "grant_letter_viewed", "no_such_job", "1"] {
        refused(api.post(kind, &use_job()).await, 404, "unknown_kind");
    }
    assert_eq!(api.count("event_queue").await, 0);
}

#[tokio::test]
async fn every_refusal_has_one_shape_the_routers_own_included() {
    let api = Api::new().await;
    let kind = "/jobs/service_request_use_job";
    for (method, path, status, kind) in [
        (Method::GET, "/", 404, "not_found"),
        (Method::GET, "/jobs", 404, "not_found"),
        (Method::POST, "/jobs/", 404, "not_found"),
        (Method::GET, kind, 405, "method_not_allowed"),
        (Method::DELETE, "/jobs/1", 405, "method_not_allowed"),
        (Method::POST, "/healthz", 405, "method_not_allowed"),
    ] {
        let response = api.send(method, path, "").await;
        let allows = response.headers().contains_key(ALLOW);
        assert_eq!(allows, status == 405, "{path}");
        assert!(response.headers().contains_key("x-request-id"));
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        let answer = refused(parts(response).await, status, kind);
        assert!(answer["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn connections_that_say_half_a_word_are_gone_soon_and_others_are_served() {
    let api = Api::new().await;
    let address = api.url.strip_prefix("http://").unwrap();
    // More than may be open at once.
    let mut half_open = Vec::new();
    for _ in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: a")
            .await
            .unwrap();
        half_open.push(stream);
    }
    // With nobody's help but the server's. Who comes from elsewhere is served at once, whoever shares their
    // address has to try again.
    let elsewhere = reqwest::Client::builder().local_address(Some([127, 0, 0, 2].into()));
    let asked = elsewhere
        .build()
        .unwrap()
        .get(format!("{}/healthz", api.url));
    assert_eq!(asked.send().await.unwrap().status(), 200);
    support::wait_until("who shares their address is served", async || {
        let asked = api.http.get(format!("{}/healthz", api.url));
        asked
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    for mut stream in half_open {
        let mut heard = Vec::new();
        // The end of it, in an orderly way or not.
        let _ = stream.read_to_end(&mut heard).await;
    }
}

/// Says something on a connection again and again, for as long as the server keeps it.
async fn chatter(mut stream: tokio::net::TcpStream) {
    let asked = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut heard = [0; 4096];
    // Longer than any test waits.
    for _ in 0..600 {
        if stream.write_all(asked).await.is_err()
            || !matches!(stream.read(&mut heard).await, Ok(1..))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_kept_and_used_shut_nobody_out() {
    let api = Api::new().await;
    let address = api.url.strip_prefix("http://").unwrap();
    let mut kept = tokio::task::JoinSet::new();
    for _ in 0..257 {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        kept.spawn(chatter(stream));
    }
    // A new connection each, from the same address and from another one.
    for from in ["127.0.0.1", "127.0.0.2"] {
        let other = reqwest::Client::builder().local_address(Some(from.parse().unwrap()));
        let asked = other.build().unwrap().get(format!("{}/healthz", api.url));
        let answer = asked.timeout(Duration::from_mins(1)).send().await;
        assert_eq!(answer.unwrap().status(), 200, "{from}");
    }
}

#[tokio::test]
async fn bodies_and_headers_are_limited() {
    let api = Api::new().await;
    let path = "/jobs/service_request_use_job";
    let longest = format!("{{{}}}", " ".repeat(http::BODY_LIMIT - 2));
    let longer = format!("{longest} ");
    let (status, _) = parts(api.send(Method::POST, path, longest).await).await;
    assert_eq!(status, 422, "it is read");
    refused(
        parts(api.send(Method::POST, path, longer).await).await,
        413,
        "payload_too_large",
    );

    let get = || api.http.get(format!("{}/healthz", api.url));
    let many =
        (0..http::HEADER_COUNT).fold(get(), |request, n| request.header(format!("x-{n}"), "1"));
    let large = get().header("x-large", "x".repeat(http::HEADER_BYTES));
    for request in [many, large] {
        refused(
            parts(request.send().await.unwrap()).await,
            431,
            "headers_too_large",
        );
    }
    let fits = get().header("x-fits", "x".repeat(8000)).send().await;
    assert_eq!(fits.unwrap().status(), 200);
}

#[tokio::test]
async fn a_request_id_is_echoed_if_it_is_a_plain_word_and_made_if_it_is_not() {
    let api = Api::new().await;
    let echoed = async |id: &str| {
        let request = api.http.get(format!("{}/healthz", api.url));
        let response = request.header("x-request-id", id).send().await.unwrap();
        response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    let found = echoed("Root=1-67891233:abc.def").await.len();
    assert_eq!(found, 36, "an equals sign is odd");
    for sane in ["abc-123_X.y:z", &"x".repeat(128)] {
        assert_eq!(echoed(sane).await, sane);
    }
    for odd in ["", "two words", "<script>", "ünï", &"x".repeat(129)] {
        let made = echoed(odd).await;
        assert!(Uuid::try_parse(&made).is_ok(), "{odd:?} became {made:?}");
    }
}

#[tokio::test]
async fn readyz_asks_for_exactly_the_schema_that_this_program_knows() {
    let api = Api::new().await;
    let ok = (200, json!({"status": "ok"}));
    assert_eq!(api.get("/readyz").await, ok);
    // A newer program has migrated, and this one still serves.
    let newer = "INSERT INTO tidegate.queue_migrations VALUES (99, 'newer', '', '')";
    api.client.batch_execute(newer).await.unwrap();
    assert_eq!(api.get("/readyz").await, ok);
    for (change, undo) in [
        (
            "CREATE TABLE kept AS SELECT * FROM tidegate.app_migrations; DELETE FROM tidegate.app_migrations",
            "INSERT INTO tidegate.app_migrations SELECT * FROM kept",
        ),
        (
            "DELETE FROM tidegate.event_kind WHERE kind = 'episode_create_job'",
            "INSERT INTO tidegate.event_kind (kind) VALUES ('episode_create_job')",
        ),
    ] {
        api.client.batch_execute(change).await.unwrap();
        refused(api.get("/readyz").await, 503, "schema_mismatch");
        api.client.batch_execute(undo).await.unwrap();
        assert_eq!(api.get("/readyz").await, ok, "{undo}");
    }
}

#[tokio::test]
async fn without_a_schema_it_lives_but_is_not_ready_and_takes_no_job() {
    let db = support::empty_database().await;
    let database = db.database();
    let api = Api::over(db, database).await;
    assert_eq!(api.get("/healthz").await.0, 200);
    assert_eq!(api.get("/readyz").await.0, 503);
    assert_eq!(api.post("service_request_use_job", &use_job()).await.0, 503);
    assert_eq!(api.get(SOME_JOB).await.0, 503);
}

#[tokio::test]
async fn without_a_database_it_lives_but_is_not_ready_and_says_nothing_of_where_it_is() {
    let nobody = Database::new("postgres://canary@127.0.0.1:1/canary", 1).unwrap();
    let api = Api::over(support::empty_database().await, nobody).await;
    assert_eq!(api.get("/healthz").await.0, 200);
    for path in ["/readyz", SOME_JOB] {
        let answer = refused(api.get(path).await, 503, "unavailable");
        assert!(!answer.to_string().contains("canary") && !answer.to_string().contains("127.0"));
    }
}

#[tokio::test]
async fn a_kind_that_is_not_registered_yet_is_no_fault_of_the_client() {
    let api = Api::new().await;
    let forget = "DELETE FROM tidegate.event_kind WHERE kind = 'service_request_use_job'";
    api.client.batch_execute(forget).await.unwrap();
    assert_eq!(api.post("service_request_use_job", &use_job()).await.0, 503);
}

#[tokio::test]
async fn with_every_connection_in_use_the_client_gets_retry_after() {
    let db = support::database().await;
    let database = Database::new(&db.url, 1).unwrap();
    let held = database.pooled().await.unwrap();
    let api = Api::over(db, database).await;
    let path = "/jobs/service_request_use_job";
    let response = api.send(Method::POST, path, use_job().to_string()).await;
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    refused(parts(response).await, 503, "unavailable");
    drop(held);
    api.accepted("service_request_use_job", &use_job()).await;
}

/// The interface over one connection, and a job whose group is locked until `ROLLBACK`.
async fn one_connection_and_a_locked_group() -> (Api, Value) {
    let db = support::database().await;
    let database = Database::new(&db.url, 1).unwrap();
    let api = Api::over(db, database).await;
    let body = use_job();
    let group = format!("patient:{}", body["patient_id"].as_str().unwrap());
    api.client.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT tidegate.lock_groups(ARRAY[$1::text])";
    api.client.execute(lock, &[&group]).await.unwrap();
    (api, body)
}

#[tokio::test]
async fn a_publish_that_waits_for_a_lock_is_given_up_and_leaves_nothing_behind() {
    let (api, body) = one_connection_and_a_locked_group().await;
    assert_eq!(api.post("service_request_use_job", &body).await.0, 503);
    api.client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(api.count("event_queue").await, 0);
    api.accepted("service_request_use_job", &body).await;
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_a_usable_connection() {
    let (api, body) = one_connection_and_a_locked_group().await;
    let request = api
        .http
        .post(format!("{}/jobs/service_request_use_job", api.url));
    let request = request
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string());
    let impatient = request.timeout(Duration::from_millis(300)).send().await;
    assert!(impatient.is_err_and(|error| error.is_timeout()));
    api.client.batch_execute("ROLLBACK").await.unwrap();
    api.accepted("service_request_use_job", &use_job()).await;
    let found = api.count("event_queue").await;
    assert_eq!(found, 1, "what was not answered was rolled back");
}

#[tokio::test]
async fn the_openapi_document_covers_every_route_and_every_kind() {
    let api = Api::new().await;
    let (status, document) = api.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    for (method, path) in [
        ("get", "/jobs/{id}"),
        ("post", "/forms"),
        ("post", "/letters"),
        ("post", "/cancellations"),
        ("post", "/declines"),
        ("get", "/forms/{id}"),
        ("post", "/forms/{id}/viewed"),
        ("get", "/patients/{patient_id}/{entities}/{id}"),
        ("post", "/patients/{patient_id}/approvals/{id}/confirmation"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/openapi.json"),
    ] {
        assert!(
            document["paths"][path][method].is_object(),
            "{method} {path}"
        );
    }
    let schemas = &document["components"]["schemas"];
    let mut summaries = BTreeSet::new();
    for kind in medical::KINDS {
        let operation = &document["paths"][format!("/jobs/{kind}")]["post"];
        assert_eq!(operation["operationId"], **kind);
        let name = medical::schema_name(kind).unwrap();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(body["$ref"], format!("#/components/schemas/{name}"));
        assert!(schemas[name].is_object(), "{kind}");
        summaries.insert(operation["summary"].as_str().unwrap());
    }
    assert_eq!(summaries.len(), medical::KINDS.len(), "{summaries:?}");
    let paths = document["paths"].as_object().unwrap().len();
    assert_eq!(
        paths,
        medical::KINDS.len() + 12,
        "nothing else is documented"
    );
    let mut references = Vec::new();
    find_references(&document, &mut references);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(
            document.pointer(pointer).is_some(),
            "{reference} leads nowhere"
        );
    }
}

fn find_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(
                fields
                    .get("$ref")
                    .and_then(Value::as_str)
                    .map(ToOwned::to_owned),
            );
            fields
                .values()
                .for_each(|value| find_references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| find_references(item, found)),
        _ => {}
    }
}

pub fn form(id: &str) -> Value {
    json!({
        "id": id,
        "company": {"number": "100000001", "name": "Company 1",
            "contact": {"name": "Contact 1", "email": "contact@example.org", "phone": "+47 00 00 00 01"}},
        "employee": {"national_id": "00000000001", "name": "Employee 1"},
        "expert": {"name": "Expert 1", "company": "Company 2", "competence": "Ergonomics"},
        "need": {"reason": "Reason 1", "requirement": "Requirement 1", "estimated_cost": 25000,
            "hours": 12, "start_date": "2027-01-11"},
    })
}

pub fn letter(id: &str) -> Value {
    json!({"source": "cases", "external_id": id, "grant": {"grant_number": "G1",
        "measure": {"case_number": "C1", "measure_id": "M1"}, "company_number": "100000001",
        "amount": 20000, "valid_from": "2027-01-11", "valid_to": "2027-06-30"}})
}

#[tokio::test]
async fn forms_and_word_about_them_are_taken_in_with_their_events() {
    let api = Api::new().await;
    let send = async |path: &str, body: &Value| {
        parts(api.send(Method::POST, path, body.to_string()).await).await
    };
    let (status, answer) = send("/forms", &form("f1")).await;
    let found = (status, &answer["data"]["form_id"]);
    assert_eq!(found, (202, &json!("f1")), "{answer}");
    assert_eq!(api.count("event_queue").await, 1);
    let cancelled = json!({"source": "cases", "external_id": "2",
        "measure": {"case_number": "C1", "measure_id": "M1"}});
    let mut declined = cancelled.clone();
    declined["external_id"] = json!("3");
    for (path, body, events) in [
        ("/letters", letter("1"), 1),
        ("/cancellations", cancelled, 0),
        ("/declines", declined, 0),
    ] {
        let before = api.count("event_queue").await;
        for repeated in [false, true] {
            let (status, answer) = send(path, &body).await;
            let told = (status, &answer["data"]["repeated"]);
            assert_eq!(told, (202, &json!(repeated)), "{path}: {answer}");
        }
        assert_eq!(api.count("event_queue").await - before, events, "{path}");
    }
    let grant = "INSERT INTO forms.awarded_grant VALUES
        ('G1', 'f1', 'C1', 'M1', '100000001', 1, '2027-01-11', '2027-01-12', 'D', 'J')";
    api.client.batch_execute(grant).await.unwrap();
    let viewed = json!({"grant_number": "G1"});
    let (status, answer) = send("/forms/f1/viewed", &viewed).await;
    let seen = (status, &answer["data"]["form_id"]);
    assert_eq!(seen, (202, &json!("f1")), "{answer}");
    let (status, answer) = send("/forms/f2/viewed", &viewed).await;
    assert_eq!(status, 404, "{answer}");
}

#[tokio::test]
async fn a_form_is_shown_with_its_case_and_its_steps() {
    let api = Api::new().await;
    api.send(Method::POST, "/forms", form("f1").to_string())
        .await;
    let case = "UPDATE forms.form SET case_number = 'C1', measure_id = 'M1';
        SELECT tidegate.cancel(kind => 'form_submitted', reason => 'one step was given up');
        SELECT * FROM tidegate.publish('form_archived', '{}', 'form:f1', correlation_id => 'f1');
        SELECT * FROM tidegate.publish('form_archived', '{}', 'form:f2', correlation_id => 'f1')";
    api.client.batch_execute(case).await.unwrap();
    let (status, answer) = api.get("/forms/f1").await;
    let data = &answer["data"];
    let mut submitted = form("f1");
    submitted["status"] = json!("submitted");
    assert_eq!((status, &data["form"]), (200, &submitted), "{answer}");
    let expected = json!({"case_number": "C1", "measure_id": "M1"});
    assert_eq!(data["measure"], expected);
    assert!(data["submitted_at"].is_string() && data["updated_at"].is_string());
    let steps = data["steps"].as_array().unwrap();
    let steps = steps.iter().map(|step| {
        let ended = step["finished_at"].is_string();
        json!([step["kind"], step["status"], ended])
    });
    assert_eq!(
        steps.collect::<Vec<_>>(),
        [
            json!(["form_submitted", "failed_with_error", true]),
            json!(["form_archived", "pending", false])
        ],
        "views are no steps, and neither are other groups' events"
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_form_is_named_and_not_quoted_and_nothing_is_stored() {
    let api = Api::new().await;
    let mut bad_id = form("f1");
    bad_id["employee"]["national_id"] = json!("canary");
    let mut no_company = form("f1");
    no_company.as_object_mut().unwrap().remove("company");
    let mut backwards = letter("1");
    backwards["grant"]["valid_to"] = json!("2027-01-10");
    let mut many = form("..");
    many["status"] = json!("canary");
    many["canary"] = json!(1);
    many["company"]["contact"]["canary"] = json!(1);
    let mut ended = form("f1");
    ended["status"] = json!("ended");
    for (path, body, wrong) in [
        ("/forms", bad_id, "$.employee.national_id"),
        ("/forms", no_company, "$.company"),
        ("/forms", many, "$.id $.status $ $.company.contact"),
        ("/forms", ended, "$.status"),
        ("/letters", backwards, "$.grant.valid_to"),
        ("/letters", json!({}), "$.source $.external_id $.grant"),
        ("/cancellations", json!([]), "$"),
        (
            "/declines",
            json!({"type": "decline"}),
            "$ $.source $.external_id $.measure",
        ),
        ("/forms/f1/viewed", json!({}), "$.grant_number"),
    ] {
        let response = api.send(Method::POST, path, body.to_string()).await;
        let answer = refused(parts(response).await, 422, "validation_failed");
        let invalid = answer["error"]["invalid"].as_array().unwrap();
        let entries = invalid.iter().map(|one| one["entry"].as_str().unwrap());
        assert_eq!(
            entries.collect::<BTreeSet<_>>(),
            words(wrong).into_iter().collect(),
            "{path}"
        );
        let mistakes = format!("{} mistake", invalid.len());
        let plural = if invalid.len() == 1 { "" } else { "s" };
        let message = format!("{mistakes}{plural} in the request");
        assert_eq!(answer["error"]["message"], message);
        lacks(&answer.to_string(), "canary");
    }
    for (body, wanted) in [
        ("canary".to_owned(), 400),
        (" ".repeat(http::BODY_LIMIT + 1), 413),
    ] {
        let (status, answer) = parts(api.send(Method::POST, "/forms", body).await).await;
        assert_eq!(status, wanted, "{answer}");
        lacks(&answer.to_string(), "canary");
    }
    assert_eq!(api.count("event_queue").await, 0);
}

/// A client that has lost the answer sends the same again.
#[tokio::test]
async fn what_is_submitted_again_is_repeated_and_something_else_with_its_id_is_409() {
    let api = Api::new().await;
    let notice = json!({"source": "cases", "external_id": "2",
        "measure": {"case_number": "C1", "measure_id": "M1"}});
    let mut other_form = form("f ü/1");
    other_form["need"]["hours"] = json!(13);
    let mut other_letter = letter("1");
    other_letter["grant"]["amount"] = json!(1);
    let mut other_notice = notice.clone();
    other_notice["measure"]["measure_id"] = json!("M2");
    let cancelled = ("/cancellations", notice.clone());
    for (path, body, other) in [
        ("/forms", form("f ü/1"), ("/forms", other_form)),
        ("/letters", letter("1"), ("/letters", other_letter)),
        ("/declines", notice.clone(), ("/declines", other_notice)),
        ("/declines", notice, cancelled),
    ] {
        for _ in 0..2 {
            let response = api.send(Method::POST, path, body.to_string()).await;
            if path == "/forms" {
                assert_eq!(response.headers()[LOCATION], "/forms/f%20%C3%BC%2F1");
            }
            let (status, answer) = parts(response).await;
            let told = (status, &answer["data"]["form_id"]);
            assert_eq!(told, (202, &json!("f ü/1")), "{path}: {answer}");
            let again = answer["data"]["id"].is_null();
            assert_eq!(answer["data"]["repeated"], again, "{path}: {answer}");
        }
        let (path, body) = other;
        let answer = parts(api.send(Method::POST, path, body.to_string()).await).await;
        refused(answer, 409, "request_conflict");
        let case = "UPDATE forms.form SET case_number = 'C1', measure_id = 'M1'";
        api.client.batch_execute(case).await.unwrap();
    }
    assert_eq!(api.count("event_queue").await, 3);
    let end = "SELECT status FROM forms.form";
    let end: String = api.client.query_one(end, &[]).await.unwrap().get(0);
    assert_eq!(end, "approved", "the letter came first");
}

#[tokio::test]
async fn a_form_that_has_ended_is_submitted_again_by_its_own_client_alone() {
    let api = Api::new().await;
    let submit = async || {
        let response = api.send(Method::POST, "/forms", form("f ü/1").to_string());
        parts(response.await).await
    };
    assert_eq!(submit().await.1["data"]["repeated"], false);
    let ended = "UPDATE forms.form SET status = 'approved'";
    api.client.batch_execute(ended).await.unwrap();
    let (status, answer) = submit().await;
    assert_eq!((status, &answer["data"]["repeated"]), (202, &json!(true)));
    let (status, answer) = api.get("/forms/f%20%C3%BC%2F1").await;
    assert_eq!(
        (status, &answer["data"]["form"]["id"]),
        (200, &json!("f ü/1"))
    );
    // Whoever is not identified is one client more, with ids that are no other's.
    let of_another = "UPDATE forms.form SET client_id = $1, id = $1::uuid::text || '/' || id";
    let client = Uuid::new_v4();
    let of_another = api.client.execute(of_another, &[&client]).await;
    assert_eq!(of_another.unwrap(), 1);
    let stored = format!("{client}/f ü/1");
    let path = format!("/forms/{client}%2Ff%20%C3%BC%2F1");
    refused(api.get(&path).await, 404, "not_found");
    let forged = api.send(Method::POST, "/forms", form(&stored).to_string());
    refused(parts(forged.await).await, 422, "validation_failed");
    assert_eq!(submit().await.1["data"]["repeated"], false);
}

/// The real server over this database, which logs at `info`; and its URL.
pub async fn server(db: &TestDb, settings: &[(&str, &str)]) -> (Child, String) {
    let mut server = support::command("tidegate")
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("DATABASE_URL", &db.url)
        .env("TIDEGATE_LOG", "info")
        .envs(settings.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(server.stdout.take().unwrap()).lines();
    let line = output.next_line().await.unwrap().unwrap();
    let url = line.strip_prefix("listening on ").unwrap();
    (server, url.to_owned())
}

/// What the server has logged when it is stopped.
pub async fn stopped(server: Child) -> String {
    support::terminate(&server);
    let ended = support::ended("the server", server.wait_with_output()).await;
    let ended = ended.unwrap();
    let log = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{log}");
    log
}

#[tokio::test]
async fn serve_prints_its_address_logs_no_payload_and_stops_on_a_signal() {
    let db = support::database().await;
    let (server, url) = server(&db, &[]).await;
    let path = format!("{url}/jobs/service_request_resend_job");
    let body = json!({"request_id": "canary-1", "patient_id": uuid(), "user_id": uuid(),
        "client_id": uuid(), "service_request_id": "canary-2"});
    let request = client()
        .post(path)
        .header("x-request-id", "trace-me")
        .json(&body);
    assert_eq!(request.send().await.unwrap().status(), 422);
    let log = stopped(server).await;
    assert!(log.contains("trace-me") && log.contains("422"), "{log}");
    let patient = body["patient_id"].as_str().unwrap();
    assert!(!log.contains("canary") && !log.contains(patient), "{log}");
}

/// A request as a function URL or an HTTP API hands it to a function.
pub fn gateway(method: &str, path: &str, body: &Value) -> String {
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
        "headers": {"content-type": "application/json", "x-request-id": "trace-me"},
        "requestContext": {"accountId": "123456789012", "apiId": "api", "domainName": "api.example.org",
            "domainPrefix": "api", "requestId": "gateway-1", "routeKey": "$default", "stage": "$default",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1",
                "userAgent": "test"},
            "time": "01/Jan/2026:00:00:00 +0000", "timeEpoch": 1_767_225_600_000_i64},
        "body": body.to_string(), "isBase64Encoded": false,
    })
    .to_string()
}

/// Asks the real function; its status and body.
pub async fn invoke(api: &RuntimeApi, method: &str, path: &str, body: &Value) -> (Value, Value) {
    let deadline = Deadline::In(support::PATIENCE);
    let answer = api.invoke(gateway(method, path, body), deadline).await;
    assert!(!answer.is_error, "{:?}", answer.body);
    assert_eq!(answer.body["headers"]["x-request-id"], "trace-me");
    let text = answer.body["body"].as_str().unwrap();
    let document = serde_json::from_str(text).unwrap();
    (answer.body["statusCode"].clone(), document)
}

pub async fn function(settings: &[(&str, &str)]) -> (RuntimeApi, Child) {
    let api = RuntimeApi::start().await;
    let process = support::command("tidegate-http")
        .envs(api.variables())
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (api, process)
}

#[tokio::test]
async fn the_function_answers_as_the_server_does() {
    let db = support::database().await;
    let (api, _process) =
        function(&[("DATABASE_URL", &db.url), ("TIDEGATE_HTTP_AUTH", "none")]).await;
    let kind = "/jobs/service_request_use_job";
    let (status, answer) = invoke(&api, "POST", kind, &use_job()).await;
    let found = (status, &answer["data"]["status"]);
    assert_eq!(found, (json!(202), &json!("pending")));
    let job = link_of(&answer).href;
    let read = invoke(&api, "GET", &job, &Value::Null).await;
    assert_eq!(read, (json!(200), answer));
    assert_eq!(invoke(&api, "POST", kind, &json!({})).await.0, 422);
    assert_eq!(invoke(&api, "GET", "/readyz", &Value::Null).await.0, 200);

    // A function is frozen between requests, for longer than its connection may live.
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
    db.client().await.execute(cut, &[]).await.unwrap();
    assert_eq!(invoke(&api, "GET", &job, &Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_function_without_settings_answers_503_and_does_not_say_which() {
    let (api, _process) = function(&[]).await;
    for path in ["/healthz", "/jobs/1"] {
        let (status, answer) = invoke(&api, "GET", path, &Value::Null).await;
        let found = (status, &answer["error"]["type"]);
        assert_eq!(found, (json!(503), &json!("unavailable")));
        assert!(!answer.to_string().contains("DATABASE"));
    }
}
