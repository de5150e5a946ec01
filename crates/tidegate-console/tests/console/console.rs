//! The web console: the real router with a real Postgres, over a real socket.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use axum::Router;
use reqwest::header::{CONTENT_TYPE, COOKIE, HOST, LOCATION, SET_COOKIE};
use reqwest::{Method, Response, StatusCode, redirect};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::as_user;
use test_support::probe::{ProbeApp, drain, options, publish_acts};
use test_support::{self as support, TestDb, contains, lacks, rows, words};
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Context, Dispatch, Done, Event, HandlerError, Handlers};
use tidegate_admin::Program;
use tidegate_admin::program::Runtime;
use tidegate_admin::prometheus::{Format, metrics};
use tidegate_cli::{Answer, answer};
use tidegate_console::{Acting, Auth, Base, Settings, router, serve};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

tidegate::events! {
    pub enum Shop {
        /// One of the kinds in the seed.
        OrderPlaced(serde_json::Value) = "order_placed",
    }
}

pub(crate) struct Shopkeeper;

impl Dispatch for Shopkeeper {
    type Event = Shop;

    fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
        match event {
            Shop::OrderPlaced(_) => Handlers::one("book", async { Ok(Done::ok()) }),
        }
    }
}

/// A queue with many problems. The browser tests use the same seed.
const SEED: &str = include_str!("seed.sql");

/// Code that a hostile publisher would want to run.
const HOSTILE: &str = "<script>window.hacked";

pub(crate) fn shop(url: &str) -> Runtime {
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| url.to_owned());
    Program::new(|_| Ok(Shopkeeper)).start(&lookup).unwrap()
}

/// A running console, and a client of it.
struct Site {
    url: String,
    http: reqwest::Client,
    cookie: Option<String>,
    client: Client,
    server: AbortHandle,
    db: TestDb,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Settings for a person who signs in by a link.
fn for_ada(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::new(Auth::token("ada"));
    change(&mut settings);
    settings
}

impl Site {
    /// Opens it by its link, for a person who may act.
    async fn acting() -> Self {
        Self::of(for_ada(|one| one.acting = Acting::Everybody), "", None).await
    }

    /// Starts it with these settings, mounted at `base`, with a database login that has this role, or with
    /// the owner's login.
    async fn of(settings: Settings, base: &str, role: Option<&str>) -> Self {
        let (db, client) = support::opened_for::<Shop>().await;
        client.batch_execute(SEED).await.unwrap();
        let mut url = db.url.clone();
        if let Some(role) = role {
            let owner = db.database();
            let migrate = Migrate::new(Shop::KINDS);
            migrate.with_roles().run(&owner).await.unwrap();
            let login = format!("console_of_{}", db.name());
            let sql =
                format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE {role}");
            client.batch_execute(&sql).await.unwrap();
            url = as_user(&db.url, &login);
        }
        let service = shop(&url);
        let link = settings.link();
        Self::serving(router(service, settings), link, base, (db, client)).await
    }

    /// Starts it with these routes.
    async fn serving(
        routes: Router,
        link: Option<String>,
        base: &str,
        (db, client): (TestDb, Client),
    ) -> Self {
        let routes = match base {
            "" => routes,
            base => Router::new().nest(base, routes),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{base}", listener.local_addr().unwrap());
        let server = tokio::spawn(serve(listener, routes, std::future::pending())).abort_handle();
        let http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap();
        let mut site = Self {
            url,
            http,
            cookie: None,
            client,
            server,
            db,
        };
        if let Some(link) = link {
            site.cookie = Some(site.opened(&link).await);
        }
        site
    }

    /// What the command line says to this request.
    async fn told(&self, request: Value) -> Answer {
        let service = shop(&self.db.url);
        let request = service.actions.request(request).unwrap();
        answer(&service, &request).await.unwrap()
    }

    /// Exchanges a link for its cookie.
    async fn opened(&self, link: &str) -> String {
        let answer = self.without_cookie(link).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
        contains(cookie, "HttpOnly");
        contains(cookie, "SameSite=Strict");
        contains(cookie, "Max-Age=43200");
        cookie.split(';').next().unwrap().to_owned()
    }

    async fn without_cookie(&self, path: &str) -> Response {
        let request = self.http.get(format!("{}{path}", self.url));
        request.send().await.unwrap()
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.cookie {
            Some(cookie) => request.header(COOKIE, cookie),
            None => request,
        }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.request(Method::GET, path).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    async fn page(&self, path: &str) -> String {
        let (status, text) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        text
    }

    /// Sends a form of a page of the console.
    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let request = self
            .request(Method::POST, path)
            .header("sec-fetch-site", "same-origin");
        filled(request, fields).send().await.unwrap()
    }

    /// Sends a form, which must redirect, and returns the target.
    async fn done(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let answer = self.post(path, fields).await;
        let (status, to) = (answer.status(), answer.headers().get(LOCATION).cloned());
        let text = answer.text().await.unwrap();
        assert_eq!(status, StatusCode::SEE_OTHER, "{path} {fields:?}: {text}");
        to.unwrap().to_str().unwrap().to_owned()
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Whether a condition holds. It may be about nothing.
    async fn truth(&self, sql: &str) -> bool {
        let row = self.client.query_opt(sql, &[]).await.unwrap();
        row.and_then(|row| row.get(0)).unwrap_or(false)
    }

    /// Returns the last audit entry: the actor, the action, the reason and the count.
    async fn audited(&self) -> (Option<String>, String, Option<String>, i64) {
        let last =
            "SELECT actor, action, reason, count FROM tidegate.audit ORDER BY id DESC LIMIT 1";
        let row = self.client.query_one(last, &[]).await.unwrap();
        (row.get(0), row.get(1), row.get(2), row.get(3))
    }
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers()[name].to_str().unwrap()
}

const AUDITED: &str = "SELECT count(*) FROM tidegate.audit";

/// The pages that the browser tests look at, too.
static PAGES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let pages: Value = serde_json::from_str(include_str!("pages.json")).unwrap();
    serde_json::from_value(pages["every"].clone()).unwrap()
});

#[tokio::test]
async fn every_page_is_there_and_lets_nothing_in_from_elsewhere() {
    let site = Site::acting().await;
    for path in &*PAGES {
        let answer = site.request(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let policy = header(&answer, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"));
        contains(policy, "frame-ancestors 'none'");
        assert_eq!(header(&answer, "cache-control"), "no-store");
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff");
        assert_eq!(header(&answer, "referrer-policy"), "no-referrer");
        let text = answer.text().await.unwrap();
        for odd in [
            " style=",
            " onclick",
            "href=\"javascript:",
            "<script>",
            "http://",
            "https://",
        ] {
            let text = text
                .replace("http://www.w3.org", "")
                .replace("https://www.w3.org", "");
            assert!(!text.contains(odd), "{path}: {odd}");
        }
        assert!(text.contains("On the command line"), "{path}");
    }
    assert_eq!(site.get("/nowhere").await.0, StatusCode::NOT_FOUND);
    assert_eq!(site.get("/events/999999").await.0, StatusCode::NOT_FOUND);
    assert_eq!(site.get("/events/abc").await.0, StatusCode::NOT_FOUND);
    let (status, text) = site.get("/events?since=soon").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    contains(&text, "since: must be");
}

#[tokio::test]
async fn metrics_are_for_those_who_may_see_the_pages() {
    let mut site = Site::acting().await;
    let metrics = site.page("/metrics").await;
    assert!(metrics.contains("tidegate_up 1"), "{metrics}");
    site.cookie = None;
    assert_eq!(site.get("/metrics").await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn files_are_kept_for_ever_and_a_part_is_less_than_a_page() {
    let site = Site::acting().await;
    let page = site.page("/").await;
    let start = page.find("/assets/console-").unwrap();
    let path = page[start..].split('"').next().unwrap();
    let answer = site.without_cookie(path).await;
    contains(header(&answer, "cache-control"), "immutable");
    let part = site.request(Method::GET, "/").header("hx-request", "true");
    let part = part.send().await.unwrap().text().await.unwrap();
    assert!(part.starts_with("<div id=\"live\"") && !part.contains("<nav"));
    contains(&part, "In the queue");
    let page = site.page("/events?limit=3").await;
    assert_eq!(page.matches("<tr class=\"go\"").count(), 3);
}

#[tokio::test]
async fn what_the_figures_and_lists_hold_is_on_the_pages() {
    let site = Site::acting().await;
    let page = site.page("/").await;
    for told in [
        "bank",
        "has not been called for",
        "groups",
        "wait for their first event",
        "stopped responding",
        "Last drains",
    ] {
        assert!(page.contains(told), "{told}");
    }
    let event = site.page("/events/502").await;
    for told in [
        "the printer is out of paper",
        "/events/501",
        "tidegate show 502",
    ] {
        assert!(event.contains(told), "{told}");
    }
    contains(&event, "with the code http_503.");
    let ids =
        "SELECT id FROM tidegate.event_queue WHERE group_key = 'customer-901' ORDER BY id LIMIT 2";
    let ids: Vec<i64> = support::column(&site.client, ids).await;
    let behind = format!(
        "It waits behind event <a class=\"id\" href=\"/events/{0}\">{0}</a> of its group, which waits for attempt 3 of 5",
        ids[0]
    );
    contains(&site.page("/groups/customer-901").await, &behind);
    contains(&site.page(&format!("/events/{}", ids[1])).await, &behind);
    contains(&site.page("/groups").await, "It waits for attempt 3 of 5");
    let exact = site.page("/events/601?whole=payload").await;
    assert!(exact.contains("123456789012345678901234567890.10"));
    assert!(site.page("/events/602").await.contains("sealed"));
    let list = site.page("/events?correlation_id=order-4017").await;
    contains(&list, "/events/17\"");
    lacks(&list, "/events/18\"");
}

/// An action: the verb and the fields that its form sends, and a condition that is true only afterwards. The
/// browser tests press the same buttons.
#[derive(Deserialize)]
struct Action {
    sends: String,
    holds: String,
}

fn actions() -> Vec<Action> {
    serde_json::from_str(include_str!("actions.json")).unwrap()
}

/// Splits `verb?name=value&name=value`.
fn form(text: &str) -> (String, Vec<(&str, &str)>) {
    let (verb, fields) = text.split_once('?').unwrap();
    let fields = fields
        .split('&')
        .map(|field| field.split_once('=').unwrap());
    (format!("/act/{verb}"), fields.collect())
}

#[tokio::test]
async fn every_action_does_what_the_command_line_does_and_the_audit_names_who_did_it() {
    let site = Site::acting().await;
    for Action { sends, holds } in actions() {
        assert!(!site.truth(&holds).await, "{sends} beforehand");
        let (path, mut fields) = form(&sends);
        let reason = format!("because of {path} '\"<b>");
        fields.extend([("reason", reason.as_str()), ("back", "/kinds?span=day")]);
        assert_eq!(site.done(&path, &fields).await, "/kinds?span=day");
        assert!(site.truth(&holds).await, "{sends}");
        let (actor, action, why, _) = site.audited().await;
        let who_and_why = (actor.as_deref(), why.as_deref());
        assert_eq!(who_and_why, (Some("ada"), Some(reason.as_str())), "{sends}");
        contains(&action, path.trim_start_matches("/act/"));
    }
    let audit = site.page("/audit").await;
    let reason = audit.replace("&#39;", "'");
    contains(&reason, "because of /act/schedule '&quot;&lt;b&gt;");
}

#[tokio::test]
async fn a_cleanup_is_tried_dry_and_then_removes_what_is_old() {
    let site = Site::acting().await;
    let old = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (702, 'invoice_sent', 'COMPLETED', 1, 5, '[]', now(), now(), now() - interval '1 hour')";
    site.client.batch_execute(old).await.unwrap();
    let rows = "SELECT count(*) FROM tidegate.event_log WHERE id = 702";
    let dry = [("dry_run", "on"), ("back", "/retention")];
    assert_eq!(site.done("/act/cleanup", &dry).await, "/retention");
    assert_eq!(site.number(rows).await, 1);
    let (status, text) = {
        let answer = site.post("/act/cleanup", &[("older_than", "soon")]).await;
        (answer.status(), answer.text().await.unwrap())
    };
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    assert!(text.contains("older_than: must be"), "{text}");
    site.done("/act/cleanup", &[("older_than", "1h")]).await;
    assert_eq!(site.number(rows).await, 0);
    let (actor, told, ..) = site.audited().await;
    assert_eq!((actor.as_deref(), &*told), (Some("ada"), "cleanup"));
}

/// Forms that are refused, with the status of the answer and a part of its text.
const REFUSED: &str = "
    requeue?id=502&reason=r => 409 use replay
    cancel?id=502&reason=r => 409 ended as FAILED
    replay?id=1001&reason=r => 409 use requeue
    unblock?group=no-such&do=retry&reason=r => 409 no live events
    unblock?group=customer-901&do=push&reason=r => 422 do: must be
    requeue?id=x&reason=r => 422 id: must be a number
    requeue?reason=r => 422 id: must be given
    requeue?id=1001 => 422 reason: must be given
    requeue?id=1001&reason=  => 422 reason
    retire?kind=order_placed&reason=r => 422 kind: must be one that this program does not handle
    reschedule?id=1020&reason=r => 422 now: must be
    service?name=bank&reason=r => 422 one of them must be true, or a limit given
    schedule?name=nightly-stock&reason=r => 422 pause, resume, run: one of them must be true
    schedule?name=hourly&do=run&reason=r => 422 name: must be the name of a schedule
    explode?reason=r => 404 does not exist
";

#[tokio::test]
async fn the_page_of_a_kind_has_the_policy_that_its_program_declares() {
    let site = Site::acting().await;
    let page = site.page("/kinds/invoice_sent").await;
    for (setting, value) in [("Concurrency", "4"), ("Backoff", "2.0 s")] {
        contains(&page, &format!("{setting}</th><td class=\"n\">{value}"));
    }
    contains(
        &site.page("/kinds/order_placed").await,
        "The defaults apply.",
    );
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_and_nothing_is_done() {
    let site = Site::acting().await;
    for (sent, refusal) in rows(REFUSED) {
        let (path, fields) = form(sent);
        let answer = site.post(&path, &fields).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        let (expected, says) = refusal.split_once(' ').unwrap();
        assert_eq!(status.as_str(), expected, "{sent}: {text}");
        contains(&text, says);
    }
}

#[tokio::test]
async fn who_may_only_look_is_offered_nothing_and_can_do_nothing() {
    let site = Site::of(Settings::new(Auth::token("bob")), "", None).await;
    for path in &*PAGES {
        // Who may read payloads may search in them.
        let page = site.page(path).await;
        let page = page.replace("method=\"post\" action=\"/events/search\"", "");
        lacks(&page, "method=\"post\"");
        lacks(&page, "type=\"checkbox\"");
    }
    let before = site.number(AUDITED).await;
    for Action { sends, .. } in actions() {
        let (path, mut fields) = form(&sends);
        fields.push(("reason", "r"));
        let answer = site.post(&path, &fields).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{sends}");
    }
    let whom = "group=customer-905&typed=customer-905";
    for path in words("/actions/replay /actions/cancel /publish /actions/forget") {
        let sent = format!("?kind=order_placed&since=1d&{whom}&digest=x&reason=r");
        let posted = site.post(path, &form(&sent).1).await;
        assert_eq!(posted.status(), StatusCode::FORBIDDEN, "{path}");
        let (shown, _) = site
            .get(&format!("{path}?kind=order_placed&since=1d"))
            .await;
        assert_eq!(shown, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(site.number(AUDITED).await, before);
}

#[tokio::test]
async fn those_who_may_act_may_be_listed() {
    let these = Acting::These(BTreeSet::from(["grace".to_owned()]));
    let site = Site::of(for_ada(|one| one.acting = these), "", None).await;
    let pause = [("kind", "order_placed"), ("reason", "r")];
    let refused = site.post("/act/pause", &pause).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_forged_request_does_nothing() {
    let site = Site::acting().await;
    let before = site.number(AUDITED).await;
    let fields = [("kind", "order_placed"), ("reason", "r")];
    let host = site.url.trim_start_matches("http://").to_owned();
    for headers in [
        &[("sec-fetch-site", "cross-site")][..],
        &[("sec-fetch-site", "same-site")],
        &[],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[
            ("sec-fetch-site", "cross-site"),
            ("origin", &format!("http://{host}")),
        ],
    ] {
        let mut request = site.request(Method::POST, "/act/pause");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = filled(request, &fields).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{headers:?}");
    }
    assert_eq!(site.number(AUDITED).await, before);
    // An older browser only sends the origin.
    let request = site.request(Method::POST, "/act/pause");
    let request = request.header("origin", format!("http://{host}"));
    let answer = filled(request, &fields).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    // A GET request never acts.
    let (status, _) = site.get("/act/pause?kind=order_placed&reason=r").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn another_name_is_another_server() {
    let settings = for_ada(|one| one.hosts.push("ops.example".to_owned()));
    let site = Site::of(settings, "", None).await;
    for (host, status) in [
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("localhost:9", 200),
        ("OPS.example", 200),
    ] {
        let request = site.request(Method::GET, "/kinds").header(HOST, host);
        assert_eq!(request.send().await.unwrap().status(), status, "{host}");
    }
}

#[tokio::test]
async fn without_the_right_to_read_payloads_none_is_in_the_pages_source() {
    let settings = for_ada(|one| one.acting = Acting::Everybody);
    let site = Site::of(settings, "", Some("tidegate_read")).await;
    let more = [
        "/events/601",
        "/events/601?whole=payload",
        "/events/17",
        "/events/1062",
    ];
    for path in PAGES.iter().map(String::as_str).chain(more) {
        let page = site.page(path).await;
        for secret in [
            "order_id",
            "gnp.exe",
            "&quot;EUR&quot;",
            "&lt;b onmouseover",
            "0af7651916cd43dd8448eb211c80319c",
        ] {
            assert!(!page.contains(secret), "{path}: {secret}");
        }
        assert!(
            !page.contains("method=\"post\""),
            "{path}: actions are offered that the database refuses"
        );
    }
    assert!(site.page("/events/17").await.contains("login may not read"));
    // The database refuses a person who sends the form anyway.
    let pause = [("kind", "order_placed"), ("reason", "r")];
    let refused = site.post("/act/pause", &pause).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_console_can_hide_payloads() {
    let settings = for_ada(|one| one.shows_content = false);
    let site = Site::of(settings, "", None).await;
    let page = site.page("/events/17").await;
    lacks(&page, "order_id");
    contains(&page, "does not show payloads");
}

#[tokio::test]
async fn an_operators_login_is_enough_to_see_and_to_act() {
    let settings = for_ada(|one| one.acting = Acting::Everybody);
    let site = Site::of(settings, "", Some("tidegate_operate")).await;
    for path in &*PAGES {
        site.page(path).await;
    }
    assert!(site.page("/events/17").await.contains("order_id"));
    site.done("/act/pause", &[("kind", "order_placed"), ("reason", "r")])
        .await;
    assert_eq!(site.audited().await.0.as_deref(), Some("ada"));
}

#[tokio::test]
async fn what_a_hostile_publisher_wrote_is_text_wherever_it_is_shown() {
    let site = Site::acting().await;
    let hostile = percent(&format!("hostile {HOSTILE}=1</script>"));
    let group = percent("\"><svg onload=window.hacked=1> / .. ?a=b&c#d");
    let pages = [
        "/events/601".to_owned(),
        "/events/601?whole=payload".to_owned(),
        "/events?since=1h".to_owned(),
        format!("/events?kind={hostile}"),
        format!("/events?group={group}"),
        "/dead".to_owned(),
        "/kinds".to_owned(),
        format!("/kinds/{hostile}"),
        format!("/groups/{group}"),
        "/audit".to_owned(),
        "/".to_owned(),
        "/retention".to_owned(),
        format!("/actions/replay?since=1h&kind={hostile}"),
    ];
    for path in &pages {
        let page = site.page(path).await;
        for live in [
            HOSTILE,
            "<svg onload",
            "<img src=x",
            "<b onmouseover",
            "href=\"javascript:",
        ] {
            assert!(!page.contains(live), "{path}: {live}");
        }
    }
    let shown = site.page("/events/601").await;
    assert!(
        shown.contains("&lt;script&gt;window.hacked=1&lt;/script&gt;"),
        "what it is about is shown as text"
    );
    assert!(shown.len() < 300_000, "a megabyte is shown only on demand");
    assert!(site.page("/events/601?whole=payload").await.len() > 1_000_000);
    // Typed text comes back as text as well.
    let reason = "</p><script>window.hacked=1</script>\u{202e}";
    let fields = [("id", "502"), ("reason", reason)];
    let cancelled = site.post("/act/cancel", &fields).await;
    assert!(!cancelled.text().await.unwrap().contains(HOSTILE));
    let since = percent("<script>window.hacked=1</script>");
    let (_, invalid) = site.get(&format!("/events?since={since}")).await;
    assert!(!invalid.contains(HOSTILE));
    contains(&invalid, "since: must be");
}

/// Sends a form as browsers do.
fn filled(request: reqwest::RequestBuilder, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
    let pairs = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", percent(value)));
    request
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(pairs.collect::<Vec<_>>().join("&"))
}

fn percent(text: &str) -> String {
    let digit = |part: u8| char::from(b"0123456789ABCDEF"[usize::from(part)]);
    let encoded = |byte: u8| ['%', digit(byte >> 4), digit(byte & 15)];
    text.bytes().flat_map(encoded).collect()
}

/// Returns the value of a field in the page's confirmation.
fn field(page: &str, name: &str) -> String {
    let start = page
        .split(&format!("name=\"{name}\" value=\""))
        .last()
        .unwrap();
    start.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_replay_of_many_does_what_its_dry_run_has_shown_or_nothing() {
    let site = Site::acting().await;
    let address = "/actions/replay?kind=invoice_sent&status=FAILED&code=timeout&since=1d";
    let dry = site.page(address).await;
    contains(&dry, "What it would do");
    let confirm = |page: &str| {
        let mut fields = vec![
            ("kind", "invoice_sent".to_owned()),
            ("status", "FAILED".to_owned()),
            ("code", "timeout".to_owned()),
        ];
        fields.extend([
            ("since", field(page, "since")),
            ("digest", field(page, "digest")),
            ("reason", "the printer has paper".to_owned()),
        ]);
        fields
    };
    let sent = async |fields: Vec<(&'static str, String)>| {
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        site.post("/actions/replay", &fields).await
    };
    let another = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (700, 'invoice_sent', 'FAILED', 5, 5, '[{\"code\": \"timeout\"}]', now(), now(), now() + interval '9 days')";
    site.client.batch_execute(another).await.unwrap();
    let stale = sent(confirm(&dry)).await;
    let (status, text) = (stale.status(), stale.text().await.unwrap());
    assert_eq!(status, StatusCode::CONFLICT, "{status} {text}");
    contains(&text, "digest");
    let replays = "SELECT count(*) FROM tidegate.event_queue WHERE replay_of IS NOT NULL";
    assert_eq!(site.number(replays).await, 0);
    let dry = site.page(address).await;
    let asked = confirm(&dry);
    assert_eq!(sent(asked.clone()).await.status(), StatusCode::SEE_OTHER);
    let replayed = site.number(replays).await;
    let (actor, action, reason, count) = site.audited().await;
    assert_eq!(
        (actor.as_deref(), action.as_str(), reason.as_deref(), count),
        (
            Some("ada"),
            "replay",
            Some("the printer has paper"),
            replayed
        )
    );
    let others = "SELECT count(*) FROM tidegate.event_queue AS q JOIN tidegate.event_log AS l ON l.id = q.replay_of
        WHERE l.kind <> 'invoice_sent' OR l.errors->-1->>'code' <> 'timeout'";
    assert!(replayed > 1 && site.number(others).await == 0);
    // The second of two requests does nothing.
    assert_eq!(sent(asked).await.status(), StatusCode::CONFLICT);
}

/// Confirms a dry run, with the fields of its form and these ones.
async fn confirmed(site: &Site, path: &str, page: &str, fields: &[(&str, &str)]) -> Response {
    let form = page.split("class=\"confirm\"").nth(1).unwrap();
    let hidden = form.split("type=\"hidden\" name=\"").skip(1);
    let hidden: Vec<(String, String)> = hidden
        .map(|part| {
            let (name, rest) = part.split_once("\" value=\"").unwrap();
            (name.to_owned(), rest.split('"').next().unwrap().to_owned())
        })
        .collect();
    let hidden = hidden
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<(&str, &str)> = hidden.chain(fields.iter().copied()).collect();
    site.post(path, &all).await
}

/// An action on all events of a filter: the address of its dry run, what its risks say, an event that makes
/// its digest another, what is true afterwards, and the action in the audit.
const OF_MANY: [(&str, &str, &str, &str); 3] = [
    (
        "/actions/reschedule?kind=refund_requested&status=PENDING&delay=31d",
        "would hold up their group",
        "SELECT bool_and(available_at > now() + interval '30 days') FROM tidegate.event_queue WHERE kind = 'refund_requested' AND group_key IS NULL",
        "reschedule",
    ),
    (
        "/actions/reschedule?now=on&kind=refund_requested&status=PENDING&created_since=10d",
        "",
        "SELECT bool_and(NOT delayed) FROM tidegate.event_queue WHERE kind = 'refund_requested'",
        "reschedule",
    ),
    (
        "/actions/cancel?kind=refund_requested",
        "",
        "SELECT NOT EXISTS (SELECT FROM tidegate.event_queue WHERE kind = 'refund_requested')",
        "cancel",
    ),
];

#[tokio::test]
async fn what_is_done_with_all_events_of_a_filter_is_what_the_dry_run_has_shown_or_nothing() {
    let site = Site::acting().await;
    let further = "INSERT INTO tidegate.event_queue (kind) VALUES ('refund_requested')";
    site.client.batch_execute(further).await.unwrap();
    for (address, risk, holds, action) in OF_MANY {
        let path = address.split('?').next().unwrap();
        let dry = site.page(address).await;
        contains(&dry, "What it would do");
        contains(&dry, risk);
        assert!(!site.truth(holds).await, "{address}");
        let audited = site.number(AUDITED).await;
        site.client.batch_execute(further).await.unwrap();
        let reason = [("reason", "the bank is closed")];
        let stale = confirmed(&site, path, &dry, &reason).await;
        let (status, text) = (stale.status(), stale.text().await.unwrap());
        assert_eq!(status, StatusCode::CONFLICT, "{status} {text}");
        contains(&text, "have changed since the dry run");
        assert_eq!(site.number(AUDITED).await, audited);
        let dry = site.page(address).await;
        let done = confirmed(&site, path, &dry, &reason).await;
        assert_eq!(done.status(), StatusCode::SEE_OTHER, "{address}");
        assert!(site.truth(holds).await, "{address}");
        let (actor, told, why, count) = site.audited().await;
        let found = (actor.as_deref(), told.as_str(), why.as_deref());
        assert_eq!(found, (Some("ada"), action, Some("the bank is closed")));
        assert!(count > 1, "{address}: {count}");
    }
    // Without a filter, nobody acts on everything.
    let page = site.page("/actions/cancel?limit=5").await;
    contains(&page, "class=\"problem\"");
    lacks(&page, "class=\"confirm\"");
    let all = [("digest", "x"), ("reason", "r")];
    let answer = site.post("/actions/cancel", &all).await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    for odd in ["/actions/explode", "/actions/drain", "/actions/migrate"] {
        assert_eq!(site.get(odd).await.0, StatusCode::NOT_FOUND, "{odd}");
    }
    let list = site.page("/events?kind=order_placed").await;
    assert!(list.contains("/actions/cancel?kind=order_placed"), "{list}");
}

#[tokio::test]
async fn what_no_event_of_a_list_allows_is_not_offered() {
    let site = Site::acting().await;
    let failed = site.page("/events?kind=order_placed&status=FAILED").await;
    contains(
        &failed,
        "/actions/replay?kind=order_placed&amp;status=FAILED",
    );
    contains(&failed, "formaction=\"/act/replay\"");
    lacks(&failed, "/actions/cancel");
    lacks(&failed, "/act/cancel");
    let live = site.page("/events?kind=newsletter&status=PENDING").await;
    contains(&live, "formaction=\"/act/cancel\"");
    lacks(&live, "/act/replay");
    lacks(&live, "/actions/replay");
    // All of the filter's events are listed, and none is live.
    let ended = site.page("/events?correlation_id=order-4017").await;
    contains(&ended, "/act/replay");
    lacks(&ended, "/actions/cancel");
}

#[tokio::test]
async fn what_decides_stands_first_on_the_services_and_an_event_has_one_line() {
    let site = Site::acting().await;
    let past = "UPDATE tidegate.service SET retry_at = now() - interval '67 s', last_error = 'http_503: ' || repeat('the bank is closed ', 20)
        WHERE service = 'bank'";
    site.client.batch_execute(past).await.unwrap();
    let page = site.page("/services").await;
    let heads = [
        "Service",
        "State",
        "Waiting",
        "Last error",
        "Next try",
        "Act",
    ];
    let heads = heads.map(|name| page.find(&format!(">{name}</th>")).unwrap());
    assert!(heads.is_sorted(), "{heads:?}");
    contains(&page, ">due, when a drain runs</time>");
    lacks(&page, "67 s ago");
    let whole = format!("title=\"http_503: {}\"", "the bank is closed ".repeat(20));
    contains(&page, &whole);
    contains(&page, "<td class=\"line\">");
}

#[tokio::test]
async fn one_field_leads_to_an_event_a_kind_or_a_correlation_id() {
    let site = Site::acting().await;
    contains(&site.page("/doctor").await, "action=\"/find\"");
    for (text, to) in [
        ("17", "/events/17"),
        (" 502 ", "/events/502"),
        ("invoice_sent", "/events?kind=invoice_sent"),
        ("order-4017", "/events?correlation_id=order-4017"),
        ("a&b=c", "/events?correlation_id=a%26b%3Dc"),
        ("", "/events"),
    ] {
        let request = site.request(Method::GET, &format!("/find?q={}", percent(text)));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{text:?}");
        assert_eq!(header(&answer, "location"), to, "{text:?}");
    }
}

#[tokio::test]
async fn where_a_kind_is_typed_the_registered_ones_are_suggested() {
    let site = Site::acting().await;
    for path in ["/events", "/dead", "/actions/replay", "/actions/pause"] {
        let page = site.page(path).await;
        contains(&page, "list=\"kinds\"");
        contains(&page, "<datalist id=\"kinds\">");
        contains(&page, "<option value=\"parcel_shipped\">");
    }
    let part = site
        .request(Method::GET, "/events")
        .header("hx-request", "true");
    lacks(
        &part.send().await.unwrap().text().await.unwrap(),
        "datalist",
    );
}

#[tokio::test]
async fn payloads_are_searched_as_far_as_is_said_by_those_who_may_read_them() {
    let site = Site::acting().await;
    contains(&site.page("/events").await, "Search in payloads");
    let text = ("text", "\"order_id\" : 4017,");
    let answer = site.post("/events/search", &[text]).await;
    let page = answer.text().await.unwrap();
    contains(&page, "<strong>1</strong> contain the text");
    contains(&page, "/events/17\"");
    lacks(&page, "/events/18\"");
    // A filter narrows the search, and a live event is found, too.
    let of_kind = [("kind", "order_placed"), text];
    let page = site
        .post("/events/search", &of_kind)
        .await
        .text()
        .await
        .unwrap();
    contains(&page, "<strong>0</strong> contain the text");
    let live = [("kind", "refund_requested"), ("text", "\"customer\" : 6")];
    let page = site
        .post("/events/search", &live)
        .await
        .text()
        .await
        .unwrap();
    contains(&page, "<strong>4</strong> contain the text");
    let newer = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT 10000 + n, 'order_placed', 'COMPLETED', 1, 5, '[]', now(), now(), now() + interval '10 days' FROM generate_series(1, 10000) AS n";
    site.client.batch_execute(newer).await.unwrap();
    let page = site
        .post("/events/search", &[text])
        .await
        .text()
        .await
        .unwrap();
    contains(&page, "Of the 10,000 events that were looked at");
    contains(&page, "<strong>0</strong> contain the text");
    let before = field(&page, "before");
    let further = [text, ("before", before.as_str())];
    let page = site
        .post("/events/search", &further)
        .await
        .text()
        .await
        .unwrap();
    contains(&page, "/events/17\"");
    lacks(&page, "Search further");
    let nothing = site.post("/events/search", &[]).await;
    assert_eq!(nothing.status(), StatusCode::UNPROCESSABLE_ENTITY);
    contains(&nothing.text().await.unwrap(), "text: must be given");
    let settings = for_ada(|one| one.shows_content = false);
    let hiding = Site::of(settings, "", None).await;
    let reading = Site::of(Settings::new(Auth::token("ada")), "", Some("tidegate_read")).await;
    for site in [hiding, reading] {
        lacks(&site.page("/events").await, "Search in payloads");
        let refused = site.post("/events/search", &[text]).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn every_verb_that_the_audit_names_a_person_for_has_a_page_and_no_other() {
    let site = Site::acting().await;
    let index = site.page("/actions").await;
    for verb in ["cancel", "note", "schedule"] {
        assert!(index.contains(&format!("/actions/{verb}\"")), "{verb}");
        site.page(&format!("/actions/{verb}")).await;
    }
    assert!(!index.contains("/actions/drain") && !index.contains("/actions/migrate"));
    // Without a place on a page, a verb has a form, too.
    let note = [
        ("id", "1001"),
        ("text", "they were called"),
        ("reason", "r"),
    ];
    site.done("/act/note", &note).await;
    assert_eq!(site.audited().await.1, "note");
    // What is tried before is not done directly but for events that are named, and nobody is forgotten so.
    for (verb, fields) in [
        ("cancel", &[("kind", "order_placed"), ("reason", "r")]),
        ("replay", &[("since", "1d"), ("reason", "r")]),
    ] {
        let answer = site.post(&format!("/act/{verb}"), fields).await;
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY, "{verb}");
    }
    for verb in ["forget", "drain", "migrate"] {
        let fields = [("group", "customer-905"), ("id", "1"), ("reason", "r")];
        let answer = site.post(&format!("/act/{verb}"), &fields).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{verb}");
    }
}

#[tokio::test]
async fn an_operator_publishes_an_event_and_the_audit_has_it() {
    let site = Site::acting().await;
    contains(&site.page("/publish?kind=order_placed").await, "selected");
    let event = [
        ("kind", "order_placed"),
        ("payload", "{\"total\": 1234567890123456789012345.10}"),
        ("group", "customer-7"),
        ("dedup_key", "once"),
        ("delay", "1h"),
        ("reason", "does the handler work?"),
    ];
    let to = site.done("/publish", &event).await;
    let id = to.strip_prefix("/events/").unwrap();
    let holds = format!(
        "SELECT payload::text = '{{\"total\": 1234567890123456789012345.10}}' AND group_key = 'customer-7' AND delayed
           FROM tidegate.event_queue WHERE id = {id}"
    );
    assert!(site.truth(&holds).await);
    let (actor, action, reason, count) = site.audited().await;
    assert_eq!(
        (actor.as_deref(), action.as_str(), reason.as_deref(), count),
        (Some("ada"), "publish", Some("does the handler work?"), 1)
    );
    let before = site.number(AUDITED).await;
    for (fields, status, told) in [
        (&event[..], 409, "with this deduplication key"),
        (&event[..5], 422, "reason: must be given"),
        (&[("kind", "nothing"), ("reason", "r")], 422, "nothing"),
        (
            &[
                ("kind", "order_placed"),
                ("payload", "{secret"),
                ("reason", "r"),
            ],
            422,
            "payload: must be JSON",
        ),
    ] {
        let answer = site.post("/publish", fields).await;
        let (got, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(got, status, "{fields:?}: {text}");
        contains(&text, told);
        assert!(!text.contains("secret"), "{text}");
    }
    assert_eq!(site.number(AUDITED).await, before);
    // Nobody puts their name to an event of a producer.
    let theirs =
        "SELECT tidegate.record_publish(id, 'mine', 'eve') FROM tidegate.event_queue LIMIT 1";
    assert!(site.client.batch_execute(theirs).await.is_err());
}

#[tokio::test]
async fn a_person_is_forgotten_by_who_types_their_key_after_a_dry_run() {
    let site = Site::acting().await;
    let whom = [("group", "customer-905")];
    let dry = site.post("/actions/forget", &whom).await;
    assert_eq!(dry.status(), StatusCode::OK);
    let dry = dry.text().await.unwrap();
    contains(&dry, "Forgotten");
    contains(&dry, "Type the key");
    let left = "SELECT count(*) FROM tidegate.event_queue WHERE group_key = 'customer-905'";
    assert_eq!(site.number(left).await, 4);
    let sent = async |page: &str, typed: &str| {
        let fields = [("typed", typed), ("reason", "they asked for it")];
        let answer = confirmed(&site, "/actions/forget", page, &fields).await;
        (answer.status(), answer.text().await.unwrap())
    };
    let (status, text) = sent(&dry, "customer-90").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
    contains(&text, "typed: must be");
    let another = "INSERT INTO tidegate.event_queue (kind, group_key) VALUES ('refund_requested', 'customer-905')";
    site.client.batch_execute(another).await.unwrap();
    let (status, text) = sent(&dry, "customer-905").await;
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    contains(&text, "digest");
    assert_eq!(site.number(left).await, 5);
    let dry = site.post("/actions/forget", &whom).await;
    let dry = dry.text().await.unwrap();
    assert_eq!(sent(&dry, "customer-905").await.0, StatusCode::SEE_OTHER);
    assert_eq!(site.number(left).await, 0);
    let forgotten = "SELECT count(*) FROM tidegate.event_log WHERE forgotten_at IS NOT NULL";
    assert_eq!(site.number(forgotten).await, 5);
    let (actor, action, reason, count) = site.audited().await;
    let found = (actor.as_deref(), action.as_str(), reason.as_deref());
    assert_eq!(found, (Some("ada"), "forget", Some("they asked for it")));
    assert!(count <= 5);
    // Never everybody.
    let nobody = site.post("/actions/forget", &[("reason", "r")]).await;
    assert_eq!(nobody.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn below_a_base_path_every_link_leads_below_it() {
    let settings = for_ada(|one| {
        one.acting = Acting::Everybody;
        one.base = Base::parse("/ops/queue").unwrap();
    });
    let site = Site::of(settings, "/ops/queue", None).await;
    for path in [
        "",
        "/events",
        "/events/502",
        "/dead",
        "/groups",
        "/kinds/invoice_sent",
    ] {
        let page = site.page(path).await;
        for mark in ["href=\"/", "action=\"/", "src=\"/", "hx-get=\"/"] {
            for link in page.split(mark).skip(1) {
                assert!(
                    link.starts_with("ops/queue"),
                    "{path}: {mark}{}",
                    &link[..link.len().min(40)]
                );
            }
        }
    }
    for (sent, leads) in rows(
        "pause?kind=order_placed&reason=r&back=/ops/queue/kinds => /ops/queue/kinds
         resume?kind=order_placed&reason=r&back=//evil.example/ => /ops/queue",
    ) {
        let (path, fields) = form(sent);
        assert_eq!(site.done(&path, &fields).await, leads);
    }
}

#[tokio::test]
async fn a_link_lets_one_browser_in_and_nobody_else() {
    let auth = Auth::token("ada");
    let link = auth.link().unwrap();
    let mut site = Site::of(Settings::new(auth), "", None).await;
    let cookie = site.opened(&link).await;
    let again = site.without_cookie(&link).await;
    assert_eq!(again.status(), StatusCode::UNAUTHORIZED);
    site.cookie = None;
    for path in &*PAGES {
        let (status, text) = site.get(path).await;
        assert!(
            status == StatusCode::UNAUTHORIZED && !text.contains("invoice_sent"),
            "{path}"
        );
    }
    site.cookie = Some(format!("{cookie}x"));
    assert_eq!(site.get("/").await.0, StatusCode::UNAUTHORIZED);
    site.cookie = Some(cookie);
    site.page("/").await;
    let healthy = site.without_cookie("/healthz").await;
    assert_eq!(healthy.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_proxy_names_the_person_and_proves_that_it_is_the_proxy() {
    let secret = "0123456789abcdef0123456789abcdef";
    let auth = Auth::proxy_header("X-Forwarded-User", secret).unwrap();
    let mut settings = Settings::new(auth);
    (settings.acting, settings.behind_tls) = (Acting::Everybody, true);
    let site = Site::of(settings, "", None).await;
    let asked = async |secret: &str, proto: &str| {
        let request = site
            .request(Method::POST, "/act/pause")
            .header("x-forwarded-user", "grace@example.com");
        let request = request
            .header("x-tidegate-proxy-secret", secret)
            .header("x-forwarded-proto", proto);
        let request = request.header("sec-fetch-site", "same-origin");
        let request = filled(request, &[("kind", "order_placed"), ("reason", "r")]);
        request.send().await.unwrap().status()
    };
    assert_eq!(asked("wrong", "https").await, StatusCode::UNAUTHORIZED);
    assert_eq!(asked(secret, "http").await, StatusCode::FORBIDDEN);
    assert_eq!(asked(secret, "https").await, StatusCode::SEE_OTHER);
    assert_eq!(site.audited().await.0.as_deref(), Some("grace@example.com"));
}

#[tokio::test]
async fn what_an_action_has_done_is_said_once_on_the_page_that_follows() {
    let site = Site::acting().await;
    let fields = [("id", "1001"), ("reason", "r"), ("back", "/events")];
    let answer = site.post("/act/requeue", &fields).await;
    let flash = header(&answer, "set-cookie").split(';').next().unwrap();
    let cookies = format!("{}; {flash}", site.cookie.as_deref().unwrap());
    let next = site.http.get(format!("{}/events", site.url));
    let next = next.header(COOKIE, cookies).send().await.unwrap();
    contains(header(&next, "set-cookie"), "Max-Age=0");
    let next = next.text().await.unwrap();
    contains(
        &next,
        "requeue: done\nrequeued · 1 · events now wait for the next drain",
    );
}

#[tokio::test]
async fn a_queue_of_more_than_can_be_counted_is_estimated_and_says_so() {
    let site = Site::acting().await;
    let many = "INSERT INTO tidegate.event_queue (kind) SELECT 'order_placed' FROM generate_series(1, 130000); ANALYZE tidegate.event_queue";
    site.client.batch_execute(many).await.unwrap();
    let page = site.page("/").await;
    contains(&page, "an estimate");
    contains(&page, "of the first 100,000");
    let kinds = site.page("/kinds").await;
    contains(&kinds, "counted among the first 100,000");
}

/// What a link of this relation leads to.
fn link(page: &str, relation: &str) -> String {
    let before = page.split(&format!("rel=\"{relation}\"")).next().unwrap();
    let start = page.len().min(before.len());
    let tag = &page[page[..start].rfind('<').unwrap()..];
    let address = tag.split("href=\"").nth(1).unwrap();
    address.split('"').next().unwrap().replace("&amp;", "&")
}

#[tokio::test]
async fn a_search_in_a_large_log_says_how_far_it_has_come_and_goes_on_from_there() {
    let site = Site::acting().await;
    let log = "INSERT INTO tidegate.event_log (id, kind, group_key, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT 10000 + n, 'order_placed', CASE WHEN n = 1 THEN 'needle' END, 'COMPLETED', 1, 5, '[]', now() - make_interval(secs => 200000 - n),
               now() - make_interval(secs => 200000 - n), now() + interval '10 days' FROM generate_series(1, 120000) AS n";
    site.client.batch_execute(log).await.unwrap();
    let mut address = "/events?group=needle".to_owned();
    for _ in 0..2 {
        let page = site.page(&address).await;
        contains(&page, "No event matches so far");
        contains(&page, "Older events have not been searched yet");
        address = link(&page, "next");
    }
    let page = site.page(&address).await;
    contains(&page, "/events/10001\"");
    lacks(&page, "Search further");
    // The newest page is full without a search.
    let page = site.page("/events").await;
    lacks(&page, "Search further");
    contains(&page, "Older →");
}

#[tokio::test]
async fn the_doctors_result_is_shown_with_its_age_and_a_link_to_another_run() {
    let site = Site::acting().await;
    let shown = async || {
        for _ in 0..2000 {
            let page = site.page("/doctor").await;
            if page.contains("server version") && page.contains("Run again") {
                return page;
            }
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        }
        panic!("the checks never end");
    };
    let first = shown().await;
    contains(&first, "Checked ");
    contains(&first, "writable");
    let no_longer = "ALTER TABLE tidegate.event_queue SET (autovacuum_enabled = false)";
    site.client.batch_execute(no_longer).await.unwrap();
    // Nobody has asked for another run.
    let earlier = site.page("/doctor").await;
    assert!(!earlier.contains("autovacuum_enabled is off"));
    let (status, _) = site.get("/doctor/run").await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(shown().await.contains("autovacuum_enabled is off"));
}

#[tokio::test]
async fn figures_of_the_console_are_those_of_the_tables() {
    let site = Site::acting().await;
    let sum = "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE minute >= date_trunc('minute', now() - interval '1 hour')";
    let (before, page, after) = (
        site.number(sum).await,
        site.page("/").await,
        site.number(sum).await,
    );
    // A minute may end in between.
    let told = |number: i64| {
        let digits: Vec<String> = number
            .to_string()
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect();
        digits.join(",")
    };
    assert!(
        page.contains(&told(before)) || page.contains(&told(after)),
        "{} {}",
        told(before),
        told(after)
    );
}

/// An incident: five hundred events fail, and then five times as many are rejected, for five causes.
async fn incident(site: &Site) {
    site.client
        .batch_execute("TRUNCATE tidegate.minute_stats, tidegate.event_log, tidegate.event_queue")
        .await
        .unwrap();
    let failing = ProbeApp::doing(|_| async { Err(HandlerError::retry("no_paper", "tray 2")) });
    publish_acts(&site.client, 500).await;
    let once = "UPDATE tidegate.event_queue SET max_attempts = 1";
    site.client.batch_execute(once).await.unwrap();
    drain(&site.db, &failing, &options()).await;
    let rejecting = ProbeApp::doing(|call| async move {
        let code = format!("field_{}", call.id % 5);
        Err(HandlerError::reject(code, "is missing"))
    });
    publish_acts(&site.client, 2500).await;
    drain(&site.db, &rejecting, &options()).await;
}

#[tokio::test]
async fn every_view_counts_the_same_dead_letters_however_many_were_rejected_after_some_failed() {
    let site = Site::acting().await;
    incident(&site).await;
    let report = site.told(json!({"action": "failures"})).await.document();
    assert_eq!(
        (&report["failed"], &report["rejected"]),
        (&500.into(), &2500.into())
    );
    let causes = report["failures"].as_array().unwrap();
    let named: Vec<(&str, u64)> = causes
        .iter()
        .map(|cause| {
            (
                cause["code"].as_str().unwrap(),
                cause["events"].as_u64().unwrap(),
            )
        })
        .collect();
    let mut expected: Vec<(String, u64)> = (0..5).map(|n| (format!("field_{n}"), 500)).collect();
    // By frequency, then by kind and status.
    expected.push(("attempts_exhausted".to_owned(), 500));
    assert_eq!(
        named,
        expected
            .iter()
            .map(|(code, events)| (code.as_str(), *events))
            .collect::<Vec<_>>()
    );
    let failed = causes.last().unwrap();
    assert_eq!(
        (&failed["status"], &failed["kind"]),
        (&"FAILED".into(), &"act".into())
    );
    let last = "SELECT max(id) FROM tidegate.event_log WHERE status = 'FAILED'";
    assert_eq!(failed["example"].as_i64().unwrap(), site.number(last).await);
    contains(failed["message"].as_str().unwrap(), "attempts_exhausted: ");

    figures_agree(&site, &report).await;
    rows_lead_to_their_events(&site, &report).await;
}

/// Checks that each view has as many dead letters as this report.
async fn figures_agree(site: &Site, report: &Value) {
    let stats = site.told(json!({"action": "stats"})).await.document();
    assert_eq!(
        (&stats["failed_last_day"], &stats["rejected_last_day"]),
        (&report["failed"], &report["rejected"])
    );
    contains(
        site.told(json!({"action": "failures"})).await.text(),
        "failed    500   events ended FAILED\nrejected  2500  ",
    );
    let metrics = metrics(&site.db.database(), Format::Text).await.unwrap();
    for (status, events) in [("failed", 500), ("completed_with_errors", 2500)] {
        let sample =
            format!("tidegate_finished_total{{kind=\"act\",status=\"{status}\"}} {events}\n");
        contains(&metrics, &sample);
    }
    let overview = site.page("/?span=day").await;
    contains(&overview, "500 failed, 2,500 rejected");
    for page in [overview, site.page("/kinds/act").await] {
        lacks(&page, "100,000,000");
    }
}

/// Checks that the page has all causes of this report, and that the list and the replay to which a row leads
/// have its events.
async fn rows_lead_to_their_events(site: &Site, report: &Value) {
    let page = site.page("/dead").await;
    contains(&page, "500 events failed, and 2,500 were rejected.");
    contains(&page, "tidegate failures --since 1d");
    let causes = report["failures"].as_array().unwrap();
    for cause in causes {
        let code = cause["code"].as_str().unwrap();
        contains(&page, &format!("code={code}&amp;since="));
    }
    let link = |page: &str, to: &str| {
        let (_, rest) = page
            .rsplit_once(&format!("href=\"{to}?kind=act&amp;status=FAILED"))
            .unwrap();
        let (query, _) = rest.split_once('"').unwrap();
        format!("{to}?kind=act&status=FAILED{}", query.replace("&amp;", "&"))
    };
    let list = site.page(&link(&page, "/events")).await;
    let failed = causes.last().unwrap();
    contains(&list, &format!("/events/{}\"", failed["example"]));
    lacks(&list, "field_");
    let dry = site.page(&link(&page, "/actions/replay")).await;
    contains(&dry, "500");
    let since = report["since"].as_str().unwrap();
    let list = json!({"action": "list", "status": "FAILED", "limit": 1000, "code": "attempts_exhausted", "since": since});
    let listed = site.told(list).await.document();
    assert_eq!(listed["events"].as_array().unwrap().len(), 500);
}

#[tokio::test]
async fn an_event_that_no_program_can_read_has_a_page() {
    let site = Site::acting().await;
    let deep = "[".repeat(6000) + &"]".repeat(6000);
    for (id, payload) in [(801_i64, r#"{"name":"\ud800"}"#), (802, &deep)] {
        let sql = "INSERT INTO tidegate.event_log (id, kind, payload, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
                   VALUES ($1, 'order_placed', $2::text::json, 'FAILED', 1, 5, '[]', now(), now(), now() + interval '1 day')";
        site.client.execute(sql, &[&id, &payload]).await.unwrap();
        let page = site.page(&format!("/events/{id}")).await;
        contains(&page, "order_placed");
        contains(&page, "Payload");
    }
}

#[tokio::test]
async fn of_thousands_of_kinds_the_overview_shows_some_hundreds_and_says_so() {
    let site = Site::acting().await;
    let many = "INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
                SELECT date_trunc('minute', now()), 'old-' || n, 'FAILED', 50, 1, 1, 1 FROM generate_series(1, 3000) AS n;
                INSERT INTO tidegate.event_queue (kind, kind_known) SELECT 'made-up-' || n, true FROM generate_series(1, 3000) AS n";
    site.client.batch_execute(many).await.unwrap();
    let page = site.page("/").await;
    assert!(page.contains("The first 300 of 3,0"), "{}", page.len());
    assert!(page.contains("(unregistered)") && !page.contains("made-up-"));
    assert!(page.len() < 600_000, "{} bytes", page.len());
}

#[tokio::test]
async fn targets_are_shown_with_their_kinds_and_state_where_there_are_any() {
    let site = Site::acting().await;
    lacks(&site.page("/services").await, "<h2>Targets</h2>");
    let file = serde_json::json!({
        "targets": {
            "ship": {"address": {"lambda": "arn:aws:lambda:eu-central-1:123456789012:function:ship"}, "limit": 5},
            "bill": {"address": {"https": "https://bill.example.com/?token=hush"}},
        },
        "kinds": {"order_placed": {"targets": ["ship"], "policy": {}}},
    });
    let file = file.to_string();
    let declare = "SELECT tidegate.declare_targets($1::text::jsonb, 'deploy')";
    site.client.query(declare, &[&file]).await.unwrap();
    let broken = "UPDATE tidegate.service
                     SET state = 'open', retry_at = clock_timestamp() + '1 hour', last_error = 'credentials'
                   WHERE service = 'ship'";
    site.client.execute(broken, &[]).await.unwrap();
    let page = site.page("/services").await;
    let bill = target(&page, "bill");
    for text in ["https", "available", "/act/service"] {
        contains(&bill, text);
    }
    contains(&bill, "name=\"name\" value=\"bill\"");
    contains(&bill, "name=\"do\" value=\"pause\"");
    let ship = target(&page, "ship");
    for text in [
        "lambda",
        "does not answer",
        "/kinds/order_placed",
        "credentials",
    ] {
        contains(&ship, text);
    }
    // Only who it is, not where: an address may hold a token.
    lacks(&page, "hush");
    let fields = [("name", "ship"), ("do", "pause"), ("reason", "a try")];
    site.done("/act/service", &fields).await;
    let paused = "SELECT state = 'paused' FROM tidegate.service WHERE service = 'ship'";
    assert!(site.truth(paused).await);
    contains(&target(&site.page("/services").await, "ship"), "paused");
}

/// Returns the row of a target.
fn target(page: &str, name: &str) -> String {
    let (_, targets) = page.split_once("<h2>Targets</h2>").unwrap();
    let mut rows = targets.split("<tr");
    let row = rows.find(|row| row.contains(&format!("<bdi>{name}</bdi>")));
    row.unwrap_or_else(|| panic!("{name} is not in {targets}"))
        .to_owned()
}
