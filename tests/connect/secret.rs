//! The password from Secrets Manager or from IAM: read, kept, read again when the database refuses
//! it, and shown nowhere.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::cli::Cli;
use crate::support::function::{AMPLE, Function};
use crate::support::probe::number;
use crate::support::services::Services;
use crate::support::skip::skipped;
use crate::support::{
    self, Authority, Certified, Cluster, Deadline, Pooler, Proxy, RuntimeApi, Secrets, Version,
    aws_variables, contains, has, publish_views, words,
};
use serde_json::{Value, json};
use tidegate::Database;
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tokio::sync::OnceCell;

/// A Postgres that wants passwords, through TLS.
struct Guarded {
    cluster: Cluster,
    authority: Authority,
}

/// None where the server at hand has no TLS: what a secret leads to cannot be tried then.
async fn guarded() -> Option<&'static Guarded> {
    static GUARDED: OnceCell<Option<Guarded>> = OnceCell::const_new();
    GUARDED
        .get_or_init(async || {
            let authority = Authority::new("ours");
            let cluster = authority.certify("localhost", 2200).postgres()?;
            Some(Guarded { cluster, authority })
        })
        .await
        .as_ref()
}

/// A user with a password and a migrated database.
struct User {
    name: String,
    admin: Client,
    proxy: Proxy,
    /// Who says that the server is who it is.
    authority: String,
}

impl User {
    async fn new(name: &str, password: &str) -> Option<Self> {
        let Some(guarded) = guarded().await else {
            skipped("tls", "the Postgres at hand was built without TLS");
            return None;
        };
        let cluster = &guarded.cluster;
        let create = format!("CREATE DATABASE {name}");
        let server = support::connect(&cluster.url("postgres")).await;
        server.batch_execute(&create).await.unwrap();
        let database = Database::new(&cluster.url(name), 1).unwrap();
        let kinds = <tidegate_job::app::Event as tidegate::Event>::KINDS;
        let migrate = Migrate::new(kinds).tables(&[tidegate_job::app::TABLES]);
        migrate.run(&database).await.unwrap();
        let admin = support::connect(&cluster.url(name)).await;
        let create = format!("CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{password}'");
        admin.batch_execute(&create).await.unwrap();
        Some(Self {
            name: name.to_owned(),
            admin,
            proxy: Proxy::before(&cluster.url(name)).await,
            authority: guarded.authority.pem(),
        })
    }

    /// What a rotation does in the database.
    async fn change_password(&self, password: &str) {
        let change = format!("ALTER ROLE {} PASSWORD '{password}'", self.name);
        self.admin.batch_execute(&change).await.unwrap();
    }

    /// The whole secret, as RDS writes it.
    fn secret(&self, password: &str) -> Version {
        Version::Text(self.fields(password).to_string())
    }

    fn fields(&self, password: &str) -> Value {
        json!({"username": self.name, "password": password, "engine": "postgres", "host": "localhost",
               "port": self.proxy.port(), "dbname": self.name, "sslmode": "verify-full",
               "ca_pem": self.authority})
    }
}

async fn function(secrets: &Secrets, further: &[(&str, &str)]) -> Function {
    let variables = secrets.variables();
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    Function::start(&[&variables, further].concat()).await
}

/// What `tidegate` prints, both streams, and its exit code.
async fn tidegate(
    variables: &[(&'static str, String)],
    arguments: &[&str],
) -> (Option<i32>, String) {
    let cli = Cli::without_database().with_all(variables.iter().cloned());
    let ran = cli.run(arguments).await;
    (ran.code, ran.stdout + &ran.stderr)
}

async fn invoke(function: &Function, action: &str) -> Result<Value, String> {
    let answer = function.invoke(&json!({"action": action})).await;
    if answer.is_error {
        return Err(answer.body.to_string());
    }
    Ok(answer.body)
}

#[tokio::test]
async fn f7_every_program_finds_its_database_by_a_secret_and_asks_for_the_valid_version() {
    let Some(user) = User::new("by_secret", "canary-1").await else {
        return;
    };
    let secrets = Secrets::start(user.secret("canary-1")).await;
    let (code, text) = tidegate(&secrets.variables(), &["status", "--json"]).await;
    assert_eq!(code, Some(0), "{text}");
    let function = function(&secrets, &[]).await;
    invoke(&function, "stats").await.unwrap();
    let api = RuntimeApi::start().await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let _http = support::command("tidegate-http")
        .envs(api.variables())
        .envs(secrets.variables())
        .env("TIDEGATE_HTTP_AUTH", "none")
        .env("TIDEGATE_LOG", "trace")
        .stdout(log.reopen().unwrap())
        .spawn()
        .unwrap();
    let request = json!({"version": "2.0", "routeKey": "$default", "rawPath": "/readyz", "rawQueryString": "",
        "headers": {"host": "x"}, "isBase64Encoded": false,
        "requestContext": {"http": {"method": "GET", "path": "/readyz", "protocol": "HTTP/1.1", "sourceIp": "::1"}}});
    let answer = api.invoke(request.to_string(), AMPLE).await;
    assert_eq!(answer.body["statusCode"], 200, "{answer:?}");
    assert_eq!(secrets.asked(), ["AWSCURRENT"; 3], "one for each program");
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("/readyz") && !log.contains("canary"), "{log}");
}

#[tokio::test]
async fn f7_the_environment_gives_what_rds_own_secret_lacks() {
    let Some(user) = User::new("managed", "canary-1").await else {
        return;
    };
    let text = json!({"username": "managed", "password": "canary-1"}).to_string();
    let secrets = Secrets::start(Version::Text(text)).await;
    let mut variables = secrets.variables();
    let (_, text) = tidegate(&variables, &["status"]).await;
    contains(&text, "night/database: host: is missing; DATABASE_HOST");
    variables.extend([
        ("DATABASE_HOST", "localhost".to_owned()),
        ("DATABASE_PORT", user.proxy.port().to_string()),
        ("DATABASE_NAME", "managed".to_owned()),
    ]);
    let (code, text) = tidegate(&variables, &["status"]).await;
    assert_eq!(code, Some(0), "{text}");
    let clash = [
        &variables[..],
        &[("DATABASE_URL", "postgres://u@h/d".to_owned())],
    ]
    .concat();
    let (code, text) = tidegate(&clash, &["status"]).await;
    assert_eq!(code, Some(2), "{text}");
    contains(&text, "DATABASE_URL and DATABASE_SECRET_ID");
}

#[tokio::test]
async fn a_rotated_password_is_read_again_and_one_that_holds_is_not() {
    let Some(user) = User::new("rotated", "canary-1").await else {
        return;
    };
    let secrets = Secrets::start(user.secret("canary-1")).await;
    let function = function(&secrets, &[]).await;
    publish_views(&user.admin, 2).await;
    for _ in 0..3 {
        invoke(&function, "drain").await.unwrap();
    }
    assert_eq!(secrets.asked().len(), 1, "kept while it is good");
    user.change_password("canary-2").await;
    secrets.set("AWSCURRENT", user.secret("canary-2"));
    publish_views(&user.admin, 2).await;
    let report = invoke(&function, "drain").await.unwrap();
    has(&report, &json!({"completed": 2, "retried": 0}));
    assert_eq!(secrets.asked(), ["AWSCURRENT"; 2]);
    invoke(&function, "stats").await.unwrap();
    assert_eq!(secrets.asked().len(), 2, "the new one is kept");
}

#[tokio::test]
async fn a_rotated_password_is_read_again_behind_a_pooler_that_hides_why_it_refuses() {
    let db = support::database().await;
    let asking = ["auth_type=scram-sha-256"];
    let Some(pooler) = Pooler::before(db.direct(), &asking) else {
        return;
    };
    let (admin, name) = (db.client().await, format!("rotated_{}", db.name()));
    let create = format!("CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'canary-1'");
    admin.batch_execute(&create).await.unwrap();
    let place: tokio_postgres::Config = pooler.url(db.name()).parse().unwrap();
    let secret = |password: &str| {
        let fields = json!({"username": name, "password": password, "host": "127.0.0.1",
            "port": place.get_ports()[0], "dbname": db.name()});
        Version::Text(fields.to_string())
    };
    let secrets = Secrets::start(secret("canary-1")).await;
    let function = function(&secrets, &[]).await;
    invoke(&function, "drain").await.unwrap();
    let change = format!("ALTER ROLE {name} PASSWORD 'canary-2'");
    admin.batch_execute(&change).await.unwrap();

    let refused = invoke(&function, "drain").await.unwrap_err();
    assert!(refused.contains("08P01"), "{refused}");
    assert!(!refused.contains("canary"), "{refused}");
    secrets.set("AWSCURRENT", secret("canary-2"));
    publish_views(&admin, 2).await;
    let report = invoke(&function, "drain").await.unwrap();
    assert_eq!(report["completed"], 2, "{report}");
}

#[tokio::test]
async fn a_rotation_under_way_is_met_with_the_pending_version() {
    let Some(user) = User::new("pending", "canary-2").await else {
        return;
    };
    let secrets = Secrets::start(user.secret("canary-1")).await;
    secrets.set("AWSPENDING", user.secret("canary-2"));
    let function = function(&secrets, &[]).await;
    invoke(&function, "stats").await.unwrap();
    assert_eq!(secrets.asked(), ["AWSCURRENT", "AWSCURRENT", "AWSPENDING"]);
    invoke(&function, "stats").await.unwrap();
    assert_eq!(secrets.asked().len(), 3, "the one that works is kept");
}

#[tokio::test]
async fn a_password_that_no_version_holds_is_given_up_after_three_tries_and_touches_no_event() {
    let Some(user) = User::new("wrong", "canary-9").await else {
        return;
    };
    let secrets = Secrets::start(user.secret("canary-1")).await;
    secrets.set("AWSPENDING", user.secret("canary-2"));
    let function = function(&secrets, &[]).await;
    publish_views(&user.admin, 2).await;
    let error = invoke(&function, "drain").await.unwrap_err();
    for says in words("DatabaseLoginRefused 28P01 night/database AWSPENDING") {
        assert!(error.contains(says), "{says}: {error}");
    }
    assert!(
        user.proxy.accepted() <= 3 && secrets.asked().len() <= 3,
        "{:?}",
        secrets.asked()
    );
    let touched = "SELECT count(*) FROM tidegate.events WHERE attempts > 0 OR status <> 'PENDING'";
    assert_eq!(number(&user.admin, touched).await, 0);
    // The next invocation begins anew, without a restart.
    secrets.set("AWSCURRENT", user.secret("canary-9"));
    assert_eq!(invoke(&function, "drain").await.unwrap()["completed"], 2);
}

#[tokio::test]
async fn a_secret_service_that_hangs_is_given_up_within_seconds_and_within_the_invocations_time() {
    let Some(user) = User::new("hanging", "canary-1").await else {
        return;
    };
    let secrets = Secrets::start(Version::Hanging).await;
    let function = function(&secrets, &[]).await;
    // The invocation's time is over first, or the service's own.
    for (action, deadline, says) in [
        ("stats", 3, "invocation: no answer"),
        ("drain", 3, "slot: no answer"),
        ("stats", 180, "secret: night/database: no answer"),
    ] {
        let payload = json!({"action": action}).to_string();
        let deadline = Deadline::In(Duration::from_secs(deadline));
        let answer = function.api.invoke(payload, deadline).await;
        assert!(answer.is_error, "{answer:?}");
        assert!(answer.body.to_string().contains(says), "{answer:?}");
    }
    secrets.set("AWSCURRENT", user.secret("canary-1"));
    invoke(&function, "stats").await.unwrap();
}

#[tokio::test]
async fn f7_i9_what_is_wrong_with_a_secret_is_said_and_the_secret_is_not() {
    let Some(user) = User::new("malformed", "canary-1").await else {
        return;
    };
    let mut without = user.fields("canary-1");
    without["password"] = Value::Null;
    for (version, says) in [
        (
            Version::Denied,
            "AccessDeniedException: night may not read it",
        ),
        (Version::Binary, "binary"),
        (Version::Nonsense, "makes no sense"),
        (
            Version::Text("{\"password\": \"canary".to_owned()),
            "a JSON object",
        ),
        (Version::Text(without.to_string()), "password: is missing"),
    ] {
        let secrets = Secrets::start(version).await;
        let mut variables = secrets.variables();
        variables.push(("TIDEGATE_LOG", "trace".to_owned()));
        let (code, text) = tidegate(&variables, &["status"]).await;
        assert_eq!(code, Some(1), "{text}");
        contains(&text, "night/database");
        contains(&text, says);
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn what_aws_itself_lacks_is_named() {
    let secrets = Secrets::start(Version::Hanging).await;
    for (missing, says) in [
        ("AWS_REGION", "region"),
        ("AWS_ACCESS_KEY_ID", "credentials"),
    ] {
        let variables: Vec<_> = secrets
            .variables()
            .into_iter()
            .filter(|(name, _)| *name != missing)
            .collect();
        let (code, text) = tidegate(&variables, &["status"]).await;
        assert_eq!(code, Some(1), "{text}");
        contains(&text, "night/database");
        contains(&text, says);
    }
    assert!(secrets.asked().is_empty());
}

#[tokio::test]
async fn i9_no_secret_and_no_payload_is_logged_even_when_everything_is() {
    let Some(user) = User::new("logged", "canary-1").await else {
        return;
    };
    let secrets = Secrets::start(user.secret("canary-1")).await;
    let function = function(
        &secrets,
        &[(
            "TIDEGATE_LOG",
            "trace,aws_smithy_runtime=trace,[invocation]=trace",
        )],
    )
    .await;
    let publish = "SELECT id FROM tidegate.publish('external_letter_received', '{\"letter_id\": \"canary\"}')";
    user.admin.query_one(publish, &[]).await.unwrap();
    let message = json!({"kind": "issuing", "stage": "ai-check", "triggerId": "canary", "applicationId": "canary"});
    for payload in [
        json!({"action": "drain"}),
        json!({"action": "receive_issuing", "message": message}),
        json!({"action": "drain", "max_events": "canary"}),
    ] {
        function.invoke(&payload).await;
    }
    user.change_password("canary-2").await;
    invoke(&function, "stats").await.unwrap_err();
    secrets.set("AWSCURRENT", user.secret("canary-2"));
    invoke(&function, "stats").await.unwrap();
    let log = function.output() + &function.errors();
    assert!(log.lines().count() >= 6, "{log}");
    // What a caller got wrong is quoted to the caller.
    let quoted = log
        .lines()
        .filter(|line| !line.contains("InvalidInvocation"));
    for line in quoted {
        let secret = user.fields("canary")["ca_pem"].as_str().unwrap()[30..60].to_owned();
        for canary in ["canary", &secret, "X-Amz-Signature", "AWS4-HMAC"] {
            assert!(!line.contains(canary), "{canary}: {line}");
        }
    }
    for verb in [&["drain"][..], &["status"], &["list"], &["show", "1"]] {
        let mut variables = secrets.variables();
        variables.push(("TIDEGATE_LOG", "trace".to_owned()));
        let (_, text) = tidegate(&variables, verb).await;
        // An event is shown to who asks for it.
        let shows = ["list", "show"].contains(&verb[0]);
        assert!(shows || !text.contains("canary"), "{verb:?}: {text}");
        assert!(!text.contains("canary-"), "{verb:?}: {text}");
    }
}

/// Accepts TLS, asks for a password in the clear, as RDS does for IAM, and refuses it.
fn hear_passwords(certified: &Certified) -> (u16, mpsc::Receiver<String>) {
    let identity = native_tls::Identity::from_pkcs8(
        certified.certificate.as_bytes(),
        certified.key.as_bytes(),
    );
    let acceptor = native_tls::TlsAcceptor::new(identity.unwrap()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, hearing) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
            client.write_all(b"S").unwrap();
            let mut client = acceptor.accept(client).unwrap();
            let mut length = [0; 4];
            client.read_exact(&mut length).unwrap();
            let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
            client.read_exact(&mut startup).unwrap();
            // AuthenticationCleartextPassword.
            client.write_all(b"R\0\0\0\x08\0\0\0\x03").unwrap();
            let mut header = [0; 5];
            client.read_exact(&mut header).unwrap();
            let length = u32::from_be_bytes(header[1..].try_into().unwrap()) as usize - 4;
            let mut password = vec![0; length];
            client.read_exact(&mut password).unwrap();
            let refusal = b"SFATAL\0VFATAL\0C28P01\0MPAM authentication failed\0\0";
            client.write_all(b"E").unwrap();
            client
                .write_all(&u32::try_from(refusal.len() + 4).unwrap().to_be_bytes())
                .unwrap();
            client.write_all(refusal).unwrap();
            let _ = heard.send(String::from_utf8_lossy(&password[..length - 1]).into_owned());
        }
    });
    (port, hearing)
}

#[tokio::test]
async fn with_iam_the_password_is_a_token_and_a_refused_one_is_made_anew_once() {
    let authority = Authority::new("ours");
    let (port, heard) = hear_passwords(&authority.certify("localhost", 2200));
    let by_url = [
        ("DATABASE_AUTH", "iam".to_owned()),
        (
            "DATABASE_URL",
            format!("postgres://night@localhost:{port}/d?sslmode=verify-full"),
        ),
    ];
    let user = "arn:aws:rds-db:eu-central-1:123456789012:dbuser:db-ABC/night";
    let by_user = [
        ("DATABASE_SECRET_ID", user.to_owned()),
        ("DATABASE_HOST", "localhost".to_owned()),
        ("DATABASE_PORT", port.to_string()),
        ("DATABASE_NAME", "d".to_owned()),
    ];
    for database in [&by_url[..], &by_user] {
        with_iam(database, port, &authority, &heard).await;
    }
}

async fn with_iam(
    database: &[(&'static str, String)],
    port: u16,
    authority: &Authority,
    heard: &mpsc::Receiver<String>,
) {
    let mut variables = aws_variables();
    variables.extend_from_slice(database);
    variables.extend([
        (
            "DATABASE_CA_FILE",
            authority.file().to_str().unwrap().to_owned(),
        ),
        ("AWS_SESSION_TOKEN", "a+b/c=".to_owned()),
        ("TIDEGATE_LOG", "trace".to_owned()),
    ]);
    let (code, text) = tidegate(&variables, &["status"]).await;
    assert_eq!(code, Some(1), "{text}");
    contains(&text, "28P01");
    contains(&text, "new token");
    let tokens: Vec<String> = heard.try_iter().collect();
    assert!((1..=2).contains(&tokens.len()), "{tokens:?}");
    for token in tokens {
        let begins = format!("localhost:{port}/?Action=connect&DBUser=night&");
        assert!(token.starts_with(&begins), "{token}");
        contains(&token, "%2Feu-central-1%2Frds-db%2Faws4_request&");
        contains(&token, "X-Amz-Security-Token=a%2Bb%2Fc%3D");
        let (_, signature) = token.split_once("X-Amz-Signature=").unwrap();
        assert!(!text.contains(&signature[..64]), "{text}");
    }
    assert!(!text.contains("canary"), "{text}");
}

#[tokio::test]
async fn a_service_is_shown_the_token_of_its_secret_and_the_log_is_not() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    let secrets = Secrets::start(Version::Text(json!({"token": "canary-one"}).to_string())).await;
    services.want("archive", "canary-one");
    let mut variables = secrets.variables();
    for (name, _) in &mut variables {
        if *name == "DATABASE_SECRET_ID" {
            *name = "ARCHIVE_AUTH_SECRET_ID";
        }
    }
    variables.extend([
        ("ARCHIVE_AUTH_HEADER", "X-Api-Key".to_owned()),
        ("TIDEGATE_LOG", "debug".to_owned()),
    ]);
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let function = Function::with_services(&db, &services, &variables).await;
    support::publish_letters(&client, 3).await;
    // Each letter is archived and has a follow-up.
    assert_eq!(function.drain(AMPLE).await.completed, 6);
    assert_eq!(secrets.asked().len(), 1, "read once");

    // It is rotated, and then so that nobody has told us.
    services.want("archive", "canary-two");
    secrets.set("AWSCURRENT", Version::Text("canary-two".to_owned()));
    support::publish_letters(&client, 3).await;
    assert_eq!(function.drain(AMPLE).await.completed, 6);
    services.want("archive", "canary-three");
    support::publish_letters(&client, 1).await;
    let report = function.drain(AMPLE).await;
    assert_eq!((report.completed, report.deferred), (0, 1), "{report:?}");
    let errors = "SELECT count(*) FROM tidegate.event_queue WHERE to_jsonb(event_queue)::text LIKE '%canary-t%'";
    assert_eq!(number(&client, errors).await, 0);
    assert!(!function.output().contains("canary-"));
    assert_eq!(function.errors(), "");
}
