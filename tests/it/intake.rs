//! Messages from outside: each taken in once, whoever brings it and how often, and none lost.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::intake::{Message, Receipt, is_refusal};
use tidegate::program::Service;
use tidegate::{Context, Dispatch, Done, Error, Handlers, NewEvent, Program, publish};
use tokio_postgres::{Client, Transaction};

use crate::probe::{live, number};
use crate::support::{self, TestDb, database_for};

tidegate::events! {
    enum Shop {
        Placed(Order) = "placed_by_message",
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

struct Handling;

impl Dispatch for Handling {
    type Event = Shop;

    fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
        match event {
            Shop::Placed(_) => Handlers::one("greet", async { Ok(Done::ok()) }),
        }
    }
}

/// What a message of these tests says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Says {
    Orders(Vec<i64>),
    Refuse,
    ComeAgain,
    Panic,
    /// Publishes, and overlooks that another statement fails.
    Overlook,
}

async fn take_in(transaction: &Transaction<'_>, message: &Message) -> Result<(), Error> {
    let orders = match message.json()? {
        Says::Orders(orders) => orders,
        Says::Refuse => return Err(Error::Invalid("order: must be one of ours".to_owned())),
        Says::ComeAgain => return Err(Error::UnknownEvent(7)),
        Says::Panic => panic!("over a message"),
        Says::Overlook => vec![0],
    };
    for id in &orders {
        let event = NewEvent::of(&Shop::Placed(Order { id: *id })).unwrap();
        publish(transaction, &event).await?;
    }
    if orders == [0] {
        let _ = transaction.batch_execute("SELECT 1 / 0").await;
    }
    Ok(())
}

fn service(db: &TestDb) -> Service {
    let program = Program::new(|_| Ok(Handling))
        .receive(|transaction, message| Box::pin(take_in(transaction, message)));
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| db.url.clone());
    program.start(&lookup).unwrap()
}

fn message(id: &str, says: &Value) -> Message {
    Message {
        source: "here".to_owned(),
        id: id.to_owned(),
        body: says.to_string().into_bytes(),
    }
}

async fn remembered(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.received").await
}

#[tokio::test]
async fn a_message_is_taken_in_once_whether_it_asks_for_no_event_or_for_several() {
    let db = database_for::<Shop>().await;
    let client = db.client().await;
    let service = service(&db);
    let mut receiver = service.receiver().unwrap();
    for (id, orders, events) in [("1", json!([]), 0), ("2", json!([1, 2, 3]), 3)] {
        let message = message(id, &json!({ "orders": orders }));
        for receipt in [Receipt::Taken, Receipt::Repeated, Receipt::Repeated] {
            assert_eq!(receiver.receive(&message, None).await.unwrap(), receipt);
            assert_eq!(live(&client).await, events);
        }
    }
    // The same id by another way is another message.
    let elsewhere = Message {
        source: "there".to_owned(),
        ..message("2", &json!({"orders": [4]}))
    };
    let receipt = receiver.receive(&elsewhere, None).await.unwrap();
    assert_eq!((receipt, live(&client).await), (Receipt::Taken, 4));
    assert_eq!(remembered(&client).await, 3);
}

#[tokio::test]
async fn a_message_that_several_bring_at_once_is_taken_in_once() {
    let db = database_for::<Shop>().await;
    let service = service(&db);
    let message = message("1", &json!({"orders": [1, 2]}));
    let bring = async || {
        let mut receiver = service.receiver().unwrap();
        receiver.receive(&message, None).await.unwrap()
    };
    let receipts = tokio::join!(bring(), bring(), bring(), bring());
    let receipts: [Receipt; 4] = receipts.into();
    let taken = receipts.iter().filter(|one| **one == Receipt::Taken);
    assert_eq!(taken.count(), 1, "{receipts:?}");
    assert_eq!(live(&db.client().await).await, 2);
}

#[tokio::test]
async fn what_cannot_be_taken_in_leaves_nothing_and_takes_no_other_along() {
    let db = database_for::<Shop>().await;
    let client = db.client().await;
    let service = service(&db);
    let mut receiver = service.receiver().unwrap();
    for (says, refused) in [
        (json!("refuse"), true),
        (json!("come_again"), false),
        (json!("panic"), true),
        (json!("overlook"), false),
        (json!({"orders": ["canary"]}), true),
        (json!("canary"), true),
        (json!("x".repeat(2_000_000)), true),
    ] {
        let error = receiver.receive(&message("1", &says), None).await;
        let error = error.unwrap_err();
        assert_eq!(is_refusal(&error), refused, "{error}");
        assert!(!error.to_string().contains("canary"), "{error}");
        assert_eq!((live(&client).await, remembered(&client).await), (0, 0));
    }
    let nameless = message("", &json!({"orders": [1]}));
    let error = receiver.receive(&nameless, None).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("message_id: must have 1 to 500 bytes")
    );
    let good = message("1", &json!({"orders": [1]}));
    let receipt = receiver.receive(&good, None).await.unwrap();
    assert_eq!((receipt, live(&client).await), (Receipt::Taken, 1));
}

#[tokio::test]
async fn a_program_without_an_intake_says_so() {
    let db = support::database().await;
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| db.url.clone());
    let service = Program::new(|_| Ok(Handling)).start(&lookup).unwrap();
    let error = service.receiver().err().unwrap().to_string();
    assert!(error.contains("receive"), "{error}");
    let lookup = |name: &str| (name == "TIDEGATE_ACTIONS").then(|| "receive".to_owned());
    let error = Program::new(|_| Ok(Handling)).start(&lookup).err().unwrap();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test]
async fn messages_are_remembered_for_fifteen_days_and_forgotten_by_the_cleanup() {
    use tidegate::retention::{CleanupHooks, CleanupOptions, cleanup};

    let db = support::database().await;
    let client = db.client().await;
    let note = "INSERT INTO tidegate.received (source, message_id, received_at)
                SELECT 'here', n::text, clock_timestamp() - make_interval(days => n) FROM generate_series(1, 20) AS n";
    client.batch_execute(note).await.unwrap();
    for (dry_run, left) in [(true, 20), (false, 14), (false, 14)] {
        let options = CleanupOptions {
            dry_run,
            batch: 4,
            ..CleanupOptions::default()
        };
        let before = remembered(&client).await;
        let report = cleanup(&db.database(), &options, CleanupHooks::default()).await;
        let forgotten = i64::try_from(report.unwrap().messages_forgotten).unwrap();
        assert_eq!(remembered(&client).await, left);
        let due = if dry_run { 6 } else { before - left };
        assert_eq!(forgotten, due);
    }
}
