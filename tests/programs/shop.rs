//! Somebody else's program, as in `examples/shop.rs`: it runs whole by itself, and this project's program
//! does nothing to its queue.

use crate::support::cli::Cli;
use crate::support::probe::number;
use crate::support::{TestDb, contains, empty_database, has, lacks};
use serde_json::json;
use tidegate::testing::{Attempt, Status};
use tidegate::{Context, Dispatch, Done, Handlers, Hooks, NewEvent, publish};
use tidegate_admin::program::Runtime;
use tidegate_admin::{DoctorRequest, MigrateRequest, Request};

#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/shop.rs"]
mod example;

fn shop(db: &TestDb) -> Runtime {
    let url = db.url.clone();
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    example::program().start(&lookup).unwrap()
}

async fn drained(runtime: &Runtime) -> serde_json::Value {
    let drain: Request = runtime.actions.request(json!({"action": "drain"})).unwrap();
    let answer = runtime.answer(&drain, None, Hooks::default()).await;
    answer.unwrap().read().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_ones_own_migrates_drains_and_is_well() {
    let db = empty_database().await;
    let service = shop(&db);
    let migrated = service.migrate(MigrateRequest::default()).await.unwrap();
    assert_eq!((migrated.kinds, migrated.roles), (2, false));
    let client = db.client().await;
    let payload = serde_json::value::to_raw_value(&json!({"order_id": 7})).unwrap();
    let event = NewEvent::raw("order_placed", Some(payload));
    publish(&client, &event).await.unwrap();
    let report = drained(&service).await;
    has(&report, &json!({"completed": 2, "backlog": 0}));
    let sql =
        "SELECT count(*) FROM tidegate.event_log WHERE result->'book'->>'parcel' = 'parcel-7'";
    assert_eq!(number(&client, sql).await, 1);
    let doctor = service.run(&DoctorRequest {}).await.unwrap();
    let told = serde_json::to_value(&doctor).unwrap();
    for check in ["schema version", "schema drift", "kinds"] {
        let checks = told["checks"].as_array().unwrap();
        let found = checks.iter().find(|found| found["name"] == check).unwrap();
        assert_eq!(found["state"], "ok", "{found}");
    }
    // Neither schemas nor kinds of anybody else.
    let foreign =
        "SELECT count(*) FROM pg_namespace WHERE nspname IN ('forms', 'checks', 'medical')";
    assert_eq!(number(&client, foreign).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_programs_command_line_says_whose_queue_it_is_and_changes_nothing() {
    let db = empty_database().await;
    let service = shop(&db);
    service.migrate(MigrateRequest::default()).await.unwrap();
    let client = db.client().await;
    for number in 0..3 {
        let payload = serde_json::value::to_raw_value(&json!({"order_id": number})).unwrap();
        publish(&client, &NewEvent::raw("order_placed", Some(payload)))
            .await
            .unwrap();
    }
    let cli = Cli::on(&db);
    let migrated = cli.run(&["--json", "migrate"]).await;
    assert_eq!(migrated.code, Some(1));
    let told = migrated.document()["error"].to_string();
    contains(&told, "order_placed, order_shipped");
    contains(&told, "--share");
    let examined = cli.run(&["--json", "doctor"]).await;
    let told = examined.document().to_string();
    contains(&told, "belongs to another program");
    lacks(&told, "\"tidegate migrate\"");
    let drained = cli.run(&["drain"]).await;
    assert_eq!(drained.code, Some(0));
    contains(&drained.stdout, "of other programs: 3 order_placed");
    assert!(
        !drained.stdout.contains("the queue is empty"),
        "{}",
        drained.stdout
    );
    let sql = "SELECT count(*) FROM tidegate.event_kind";
    assert_eq!(number(&client, sql).await, 2);
    let sql = "SELECT count(*) FROM tidegate.event_queue WHERE attempts = 0";
    assert_eq!(number(&client, sql).await, 3);
    // On purpose, both use it.
    let shared = cli.run(&["migrate", "--share"]).await;
    assert_eq!(shared.code, Some(0), "{}", shared.stdout);
    assert!(number(&client, "SELECT count(*) FROM tidegate.event_kind").await > 2);
    assert_eq!(drained_by(&service).await, json!(3 * 2));
}

async fn drained_by(runtime: &Runtime) -> serde_json::Value {
    drained(runtime).await["completed"].clone()
}

#[tokio::test]
async fn a_handler_is_tried_without_any_database() {
    let lookup = |_: &str| None;
    let shop = example::Shop::of(&lookup);
    let placed = example::ShopEvent::OrderPlaced(example::OrderPlaced { order_id: 3 });
    let ran = Attempt::first().run(&shop, &placed).await;
    assert_eq!(ran.status, Some(Status::Completed));
    assert_eq!(ran.steps["ship/parcel"], json!("parcel-3"));
    let follow_ups = ran.follow_ups::<example::ShopEvent>().unwrap();
    let [example::ShopEvent::OrderShipped(shipped)] = &follow_ups[..] else {
        panic!("{follow_ups:?}");
    };
    assert_eq!((shipped.order_id, &*shipped.parcel), (3, "parcel-3"));
}

tidegate::events! {
    #[derive(Debug)]
    enum Sale {
        Sold(u32) = "sold",
    }
}

/// A program with a mistake: two handlers of one name.
struct Twins;

impl Dispatch for Twins {
    type Event = Sale;

    fn handlers<'a>(&'a self, _: &'a Sale, ctx: &'a Context) -> Handlers<'a> {
        let book = |number| async move {
            ctx.emit(&Sale::Sold(number))?;
            Ok(Done::ok())
        };
        Handlers::one("book", book(2)).and("book", book(3))
    }
}

#[tokio::test]
async fn b4_of_two_handlers_with_one_name_none_runs() {
    let ran = Attempt::first().run(&Twins, &Sale::Sold(1)).await;
    assert!(
        ran.retries_after.is_some() && ran.published().is_empty(),
        "{ran:?}"
    );
    let [refused] = &ran.handlers[..] else {
        panic!("{ran:?}")
    };
    let why = refused.result.as_ref().unwrap_err().to_string();
    contains(&why, "two handlers of the event are called book");
}
