//! What a crowd of readers of the console costs the queue: a few database sessions, and no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request, StatusCode};
use tidegate::connect::Client;
use tidegate::{DrainOptions, drain};
use tidegate_console::{Auth, Identity, Settings, router};
use tokio::task::JoinSet;
use tower::Service;

use crate::console::{Shop, Shopkeeper, shop};
use test_support::{self as support, TestDb, wait_until};

/// The console's database sessions in these tests.
const SESSIONS: usize = 3;

const READERS: usize = 2000;

/// What the console's sessions are called.
const NAME: &str = "crowded_console";

struct Place {
    db: TestDb,
    routes: Router,
}

impl Place {
    async fn new() -> Self {
        Self::with(SESSIONS).await
    }

    async fn with(sessions: usize) -> Self {
        let db = support::database_for::<Shop>().await;
        let mark = if db.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{mark}application_name={NAME}", db.url);
        let mut settings = Settings::new(Auth::given());
        settings.sessions = sessions;
        Self {
            routes: router(shop(&url), settings),
            db,
        }
    }

    /// Requests a page as a reader of this number, who has a rate limit of their own.
    async fn ask(&self, reader: usize, path: &str) -> (StatusCode, bool) {
        answered(self.routes.clone(), reader, path).await
    }

    /// Many readers at once. Returns how many got which status. Each that is told to come later is told when.
    async fn crowd(&self, readers: usize, path: &'static str) -> BTreeMap<u16, usize> {
        let mut all = JoinSet::new();
        for reader in 0..readers {
            all.spawn(answered(self.routes.clone(), reader, path));
        }
        let mut told = BTreeMap::new();
        while let Some(answer) = all.join_next().await {
            let (status, says_when) = answer.unwrap();
            assert!(says_when || status != StatusCode::SERVICE_UNAVAILABLE);
            *told.entry(status.as_u16()).or_default() += 1;
        }
        told
    }
}

async fn answered(mut routes: Router, reader: usize, path: &str) -> (StatusCode, bool) {
    let identity = Identity {
        name: format!("reader {reader}"),
        may_act: false,
    };
    let request = Request::get(path).header("host", "localhost");
    let request = request.extension(identity).body(Body::empty()).unwrap();
    let answer = routes.call(request).await.unwrap();
    (answer.status(), answer.headers().contains_key(RETRY_AFTER))
}

/// How many sessions the console has that are at work. One that was told to end is still listed for a moment,
/// but does nothing.
async fn sessions(client: &Client) -> usize {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND state = 'active'";
    let count: i64 = client.query_one(count, &[&NAME]).await.unwrap().get(0);
    usize::try_from(count).unwrap()
}

/// Looks at the sessions until it is told to stop. Returns the highest number of them.
async fn watched(client: Client, stop: Arc<AtomicBool>) -> usize {
    let mut most = 0;
    while !stop.load(Ordering::Relaxed) {
        most = most.max(sessions(&client).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    most
}

/// Nobody reads the audit while this lives. Drains do not need it.
async fn locked(db: &TestDb) -> Client {
    let client = db.client().await;
    let lock = "BEGIN; LOCK TABLE tidegate.audit IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_readers_hold_a_few_sessions_and_a_drain_goes_on_beside_them() {
    let place = Place::new().await;
    // The rights of the login are known from here on, so that every reader comes to the locked table.
    assert_eq!(place.ask(0, "/audit").await.0, StatusCode::OK);
    let lock = locked(&place.db).await;
    let stop = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watched(place.db.client().await, stop.clone()));
    let publish = "INSERT INTO tidegate.event_queue (kind, payload) SELECT 'order_placed', '{}' FROM generate_series(1, 500)";
    place
        .db
        .client()
        .await
        .batch_execute(publish)
        .await
        .unwrap();
    let drained = async {
        let watcher = place.db.client().await;
        wait_until("the crowd has all sessions", async || {
            sessions(&watcher).await == SESSIONS
        })
        .await;
        let database = place.db.database();
        let options = DrainOptions::default();
        drain(&database, Arc::new(Shopkeeper), &options)
            .await
            .unwrap()
    };
    let (told, report) = tokio::join!(place.crowd(READERS, "/audit"), drained);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(report.completed, 500);
    assert_eq!(told, BTreeMap::from([(503, READERS)]));
    let most = watching.await.unwrap();
    assert_eq!(most, SESSIONS);
    drop(lock);
    wait_until("the audit is shown again", async || {
        place.ask(0, "/audit").await.0 == StatusCode::OK
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_whose_pages_wait_leaves_others_their_places() {
    let asked = 24;
    let place = Place::with(asked).await;
    assert_eq!(place.ask(0, "/audit").await.0, StatusCode::OK);
    let _lock = locked(&place.db).await;
    let client = place.db.client().await;
    let count = Arc::new(AtomicUsize::new(0));
    let mut pages = JoinSet::new();
    for _ in 0..asked {
        let (routes, count) = (place.routes.clone(), count.clone());
        pages.spawn(async move {
            let answer = answered(routes, 1, "/audit").await;
            count.fetch_add(1, Ordering::Relaxed);
            answer
        });
    }
    support::wait_until("each waits for the lock or is answered", async || {
        sessions(&client).await + count.load(Ordering::Relaxed) == asked
    })
    .await;
    assert_eq!(place.ask(2, "/drains").await.0, StatusCode::OK);
    let refused = (StatusCode::TOO_MANY_REQUESTS, true);
    assert!(pages.join_all().await.contains(&refused));
}

#[tokio::test]
async fn readers_who_disconnect_leave_no_sessions_behind() {
    let place = Place::new().await;
    assert_eq!(place.ask(0, "/audit").await.0, StatusCode::OK);
    let _lock = locked(&place.db).await;
    let client = place.db.client().await;
    let mut most = 0;
    for wave in 0..20 {
        let mut all = JoinSet::new();
        for reader in 0..20 {
            all.spawn(answered(place.routes.clone(), wave * 20 + reader, "/audit"));
        }
        support::wait_until("a reader waits for the lock", async || {
            most = most.max(sessions(&client).await);
            most > 0
        })
        .await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        all.abort_all();
        while all.join_next().await.is_some() {}
        most = most.max(sessions(&client).await);
    }
    assert!((1..=SESSIONS).contains(&most), "{most}");
}
