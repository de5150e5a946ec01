//! The web console as a Lambda function: the real binary between a stub of the Runtime API and a real
//! Postgres.

use std::process::Stdio;

use crate::support::as_user;
use crate::support::function::AMPLE;
use crate::support::{self, RuntimeApi, Secrets, TestDb, Version, contains, publish_letters};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tidegate::Event;
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate_job::app;
use tokio::process::Child;

/// The name under which AWS has published the function.
const NAME: &str = "abc123.lambda-url.eu-central-1.on.aws";

const GRACE: &str = "arn:aws:sts::123456789012:assumed-role/ops/grace";
const BOB: &str = "arn:aws:sts::123456789012:assumed-role/ops/bob";

/// A running function, with the login of an operator; it ends with the test.
struct Console {
    api: RuntimeApi,
    log: NamedTempFile,
    _process: Child,
}

/// An answer of the function URL.
struct Page {
    status: u64,
    headers: Value,
    text: String,
}

impl Console {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let api = RuntimeApi::start().await;
        let log = NamedTempFile::new().unwrap();
        let process = support::command("tidegate-console")
            .envs(api.variables())
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.reopen().unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            api,
            log,
            _process: process,
        }
    }

    /// Starts it as the template does, with these people who may act.
    async fn on(db: &TestDb, actors: &str) -> Self {
        let url = operator_of(db).await;
        let allow = if actors.is_empty() { "read" } else { "act" };
        Self::start(&[
            ("DATABASE_URL", &url),
            ("TIDEGATE_CONSOLE_AUTH", "iam"),
            ("TIDEGATE_CONSOLE_ALLOW", allow),
            ("TIDEGATE_CONSOLE_ACTORS", actors),
            ("TIDEGATE_CONSOLE_INSTANCE", "production"),
            ("TIDEGATE_CONSOLE_COLOUR", "red"),
            ("TIDEGATE_CONSOLE_WITHOUT_PAYLOADS", "false"),
        ])
        .await
    }

    async fn asked(&self, event: Value) -> Page {
        let answer = self.api.invoke(event.to_string(), AMPLE).await;
        assert!(!answer.is_error, "{:?}", answer.body);
        let body = &answer.body;
        assert_eq!(body["isBase64Encoded"], false, "{body}");
        Page {
            status: body["statusCode"].as_u64().unwrap(),
            headers: body["headers"].clone(),
            text: body["body"].as_str().unwrap_or_default().to_owned(),
        }
    }

    async fn page(&self, path: &str, caller: &str) -> Page {
        self.asked(event("GET", path, Some(caller), "")).await
    }

    /// Sends a form as a browser does, from a page of the console.
    async fn act(&self, path: &str, caller: &str, form: &str) -> Page {
        self.asked(event("POST", path, Some(caller), form)).await
    }
}

/// Creates a login for the console, with the rights of an operator, and returns its URL.
async fn operator_of(db: &TestDb) -> String {
    let owner = db.database();
    let migrate = Migrate::new(app::Event::KINDS).tables(&[app::TABLES]);
    migrate.with_roles().run(&owner).await.unwrap();
    let login = format!("console_function_of_{}", db.name());
    let sql =
        format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE tidegate_operate");
    db.client().await.batch_execute(&sql).await.unwrap();
    as_user(&db.url, &login)
}

/// A request as a function URL with `AWS_IAM` hands it to a function. `caller` is whom AWS has verified.
fn event(method: &str, path: &str, caller: Option<&str>, form: &str) -> Value {
    let iam = caller.map(|arn| {
        json!({"iam": {"accessKey": "ASIAEXAMPLE", "accountId": "123456789012", "callerId": "AROAEXAMPLE:name",
            "cognitoIdentity": null, "principalOrgId": null, "userArn": arn, "userId": "AROAEXAMPLE:name"}})
    });
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
        "headers": {"host": NAME, "content-type": "application/x-www-form-urlencoded",
            "sec-fetch-site": "same-origin", "x-forwarded-proto": "https"},
        "requestContext": {"accountId": "123456789012", "apiId": "abc123", "authentication": null,
            "authorizer": iam, "domainName": NAME, "domainPrefix": "abc123",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1",
                "userAgent": "browser"},
            "requestId": "gateway-1", "routeKey": "$default", "stage": "$default",
            "time": "01/Jan/2026:00:00:00 +0000", "timeEpoch": 1_767_225_600_000_i64},
        "body": form, "isBase64Encoded": false,
    })
}

/// Returns the entries of the audit that a person has made: the actor, the action and the reason.
async fn audit(client: &Client) -> Vec<(String, String, String)> {
    let sql =
        "SELECT actor, action, reason FROM tidegate.audit WHERE actor LIKE 'arn:%' ORDER BY id";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

/// What somebody who pauses a kind sends.
const PAUSE: &str = "kind=form_submitted&reason=the+archive+is+down";

#[tokio::test]
async fn an_identity_sees_the_pages_and_only_those_who_are_named_act() {
    let (db, client) = support::opened().await;
    publish_letters(&client, 3).await;
    let console = Console::on(&db, GRACE).await;

    let page = console.page("/", BOB).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("production"), "{}", page.text);
    let header = |name: &str| page.headers[name].as_str().unwrap_or_default().to_owned();
    assert!(header("content-type").starts_with("text/html"));
    assert!(header("content-security-policy").starts_with("default-src 'none'"));
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("x-frame-options"), "DENY");
    let kinds = console.page("/kinds", BOB).await;
    assert!(kinds.status == 200 && !kinds.text.contains("method=\"post\""));

    let refused = console.act("/act/pause", BOB, PAUSE).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(audit(&client).await.is_empty());

    let kinds = console.page("/kinds/form_submitted", GRACE).await;
    assert!(kinds.text.contains("method=\"post\""), "{}", kinds.text);
    let done = console.act("/act/pause", GRACE, PAUSE).await;
    assert_eq!(done.status, 303, "{}", done.text);
    let entry = (GRACE, "pause", "the archive is down");
    let entry = (entry.0.to_owned(), entry.1.to_owned(), entry.2.to_owned());
    assert_eq!(audit(&client).await, [entry]);
}

#[tokio::test]
async fn while_nobody_is_named_nobody_acts() {
    let db = support::database().await;
    let console = Console::on(&db, "").await;
    assert_eq!(console.page("/", GRACE).await.status, 200);
    assert_eq!(console.act("/act/pause", GRACE, PAUSE).await.status, 403);
    assert!(audit(&db.client().await).await.is_empty());
}

#[tokio::test]
async fn a_request_without_an_identity_or_for_another_name_is_refused() {
    let db = support::database().await;
    let console = Console::on(&db, GRACE).await;
    let mut unsigned = event("GET", "/", None, "");
    // A header names nobody.
    unsigned["headers"]["x-forwarded-user"] = GRACE.into();
    let refused = console.asked(unsigned).await;
    assert_eq!(refused.status, 401, "{}", refused.text);
    let mut other = event("GET", "/", Some(GRACE), "");
    other["headers"]["host"] = "evil.example".into();
    assert_eq!(console.asked(other).await.status, 421);
    // A form from a page of another site.
    let mut forged = event("POST", "/act/pause", Some(GRACE), PAUSE);
    forged["headers"]["sec-fetch-site"] = "cross-site".into();
    assert_eq!(console.asked(forged).await.status, 403);
    // One that reached a signing proxy under a name of its own: browsers send only its origin over plain
    // HTTP.
    let mut rebound = event("POST", "/act/pause", Some(GRACE), PAUSE);
    let headers = rebound["headers"].as_object_mut().unwrap();
    headers.remove("sec-fetch-site");
    headers.insert("origin".to_owned(), "http://evil.example:8080".into());
    assert_eq!(console.asked(rebound).await.status, 403);
    assert!(audit(&db.client().await).await.is_empty());
}

#[tokio::test]
async fn who_asked_is_in_the_log_and_from_where_somebody_was_refused() {
    let db = support::database().await;
    let console = Console::on(&db, GRACE).await;
    let asked = console.page("/events/7", BOB).await;
    assert_eq!(asked.status, 404, "{}", asked.text);
    for _ in 0..10 {
        let mut unsigned = event("GET", "/", None, "");
        unsigned["headers"]["x-forwarded-user"] = GRACE.into();
        assert_eq!(console.asked(unsigned).await.status, 401);
    }
    let log = std::fs::read_to_string(console.log.path()).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |message: &str| {
        lines
            .iter()
            .filter(|line| line["message"] == message)
            .collect::<Vec<_>>()
    };
    let answered = of("request answered");
    assert_eq!(answered.len(), 11, "{log}");
    let (person, route) = (
        &answered[0]["span"]["person"],
        &answered[0]["span"]["route"],
    );
    assert!(
        person == BOB && route == "/events/{id}" && answered[0]["status"] == 404,
        "{log}"
    );
    assert!(
        answered[1]["span"]["person"].is_null() && answered[1]["status"] == 401,
        "{log}"
    );
    let refused = of("a credential was refused");
    // One a minute.
    assert!((1..10).contains(&refused.len()), "{log}");
    assert!(
        refused[0]["address"] == "192.0.2.1" && refused[0]["level"] == "WARN",
        "{log}"
    );
    assert!(!log.contains(GRACE), "nobody has verified it: {log}");
}

#[tokio::test]
async fn its_login_is_in_a_secret_of_its_own() {
    let db = support::database().await;
    let login: tokio_postgres::Config = operator_of(&db).await.parse().unwrap();
    let secret = json!({"username": login.get_user(), "password": "none is asked for", "host": "127.0.0.1",
                        "port": login.get_ports()[0], "dbname": db.name(), "sslmode": "disable"});
    let secrets = Secrets::start(Version::Text(secret.to_string())).await;
    let settings = secrets.variables();
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let console = Console::start(&settings).await;
    let page = console.page("/", BOB).await;
    assert_eq!(page.status, 200, "{}", page.text);
}

#[tokio::test]
async fn with_settings_that_are_not_valid_it_answers_503_and_its_log_says_why() {
    let console = Console::start(&[
        ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing"),
        ("TIDEGATE_CONSOLE_COLOUR", "red"),
    ])
    .await;
    let answer = console.page("/", GRACE).await;
    assert_eq!(answer.status, 503);
    assert!(!answer.text.contains("colour"), "{}", answer.text);
    let log = std::fs::read_to_string(console.log.path()).unwrap();
    let line: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "ERROR", "{log}");
    contains(line["error"].as_str().unwrap(), "--instance");
}
