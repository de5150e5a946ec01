//! Each recipe on a local Postgres, which DATABASE_URL names: `scripts/starter.py existing`.

use std::sync::{Arc, Mutex};

use diesel_async::{AsyncConnection, AsyncPgConnection};
use existing::{Failure, ShopEvent, with_diesel, with_sea_orm, with_sqlx};
use sea_orm::TransactionTrait;
use tidegate::{Context, Database, Dispatch, Done, DrainOptions, Event, Handlers, drain};
use tidegate::migrate::Migrate;

type Outcome = Result<(), Failure>;

fn url() -> String {
    std::env::var("DATABASE_URL").expect("`scripts/starter.py existing` sets DATABASE_URL")
}

/// Remembers the orders that it has handled.
#[derive(Default)]
struct Shop(Mutex<Vec<i64>>);

impl Dispatch for Shop {
    type Event = ShopEvent;

    fn handlers<'a>(&'a self, event: &'a ShopEvent, _: &'a Context) -> Handlers<'a> {
        let ShopEvent::OrderPlaced(order) = event;
        Handlers::one("remember", async {
            self.0.lock().unwrap().push(order.order_id);
            Ok(Done::ok())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_there_when_the_callers_transaction_commits_once_for_its_key() -> Outcome {
    let database = Database::new(&url(), 2)?;
    Migrate::new(ShopEvent::KINDS).run(&database).await?;
    let client = database.connect().await?;
    client
        .batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        .await?;
    of_sqlx().await?;
    of_diesel().await?;
    of_sea_orm().await?;
    let shop = Arc::new(Shop::default());
    let report = drain(&database, shop.clone(), &DrainOptions::default()).await?;
    assert_eq!((report.completed, report.failed), (3, 0));
    let mut handled = shop.0.lock().unwrap().clone();
    handled.sort_unstable();
    assert_eq!(handled, [10, 20, 30]);
    let orders = client
        .query_one("SELECT array_agg(id ORDER BY id) FROM orders", &[])
        .await?;
    assert_eq!(orders.get::<_, Vec<i64>>(0), handled);
    Ok(())
}

async fn of_sqlx() -> Outcome {
    let pool = sqlx::PgPool::connect(&url()).await?;
    for (order_id, commits) in [(10, true), (10, true), (11, false)] {
        let mut tx = pool.begin().await?;
        with_sqlx::place(&mut tx, order_id).await?;
        if commits {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
    }
    Ok(())
}

async fn of_diesel() -> Outcome {
    let mut connection = AsyncPgConnection::establish(&url()).await?;
    for (order_id, commits) in [(20, true), (20, true), (21, false)] {
        let done = connection.transaction::<(), Failure, _>(async |connection| {
            with_diesel::place(connection, order_id).await?;
            if commits {
                Ok(())
            } else {
                Err("changed its mind".into())
            }
        });
        assert_eq!(done.await.is_ok(), commits);
    }
    Ok(())
}

async fn of_sea_orm() -> Outcome {
    let database = sea_orm::Database::connect(url()).await?;
    for (order_id, commits) in [(30, true), (30, true), (31, false)] {
        let tx = database.begin().await?;
        with_sea_orm::place(&tx, order_id).await?;
        if commits {
            tx.commit().await?
        } else {
            tx.rollback().await?
        }
    }
    Ok(())
}
