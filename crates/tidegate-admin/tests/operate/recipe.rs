//! The recipe of `docs/guides/effects.md` for an event that comes after several others: a counter of the
//! application's own.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use test_support::probe::{live, number, options};
use test_support::{TestDb, opened_for};
use tidegate::connect::Client;
use tidegate::{Context, Dispatch, Done, HandlerError, HandlerResult, Handlers, NewEvent};
use tidegate_admin::{Audit, ReplayRequest, Verb};
use tidegate_core::queue;
use tokio_postgres::types::Type;

tidegate::events! {
    enum Paper {
        DocumentReceived(Document) = "document_received",
        PageScanned(Page) = "page_scanned",
        DocumentRead(i64) = "document_read",
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Document {
    id: i64,
    pages: i32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Page {
    document: i64,
    number: i32,
}

const TABLE: &str = "CREATE TABLE document (id bigint PRIMARY KEY, left_over integer NOT NULL, lost integer NOT NULL DEFAULT 0)";

/// In its first attempt, every third page fails before its transaction and every fifth one within it. Every
/// tenth page is lost. A page that the table `broken` names fails in every attempt.
struct Reading;

impl Dispatch for Reading {
    type Event = Paper;

    fn handlers<'a>(&'a self, event: &'a Paper, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Paper::DocumentReceived(document) => Handlers::one("split", split(*document, ctx)),
            Paper::PageScanned(page) => Handlers::one("read", read_and_count(*page, ctx)),
            Paper::DocumentRead(_) => Handlers::one("assemble", async { Ok(Done::ok()) }),
        }
    }
}

async fn split(document: Document, ctx: &Context) -> HandlerResult {
    let transaction = ctx.transaction().await?;
    let sql = "INSERT INTO document (id, left_over) VALUES ($1, $2)";
    transaction
        .execute(sql, &[&document.id, &document.pages])
        .await?;
    for number in 0..document.pages {
        let document = document.id;
        ctx.emit(&Paper::PageScanned(Page { document, number }))?;
    }
    transaction.complete(Done::ok()).await
}

async fn read_and_count(page: Page, ctx: &Context) -> HandlerResult {
    let lost = i32::from(read(page, ctx).await?.is_none());
    let transaction = ctx.transaction().await?;
    let sql = "UPDATE document SET left_over = left_over - 1, lost = lost + $2 WHERE id = $1 RETURNING left_over";
    let row = transaction.query_one(sql, &[&page.document, &lost]).await?;
    let left_over: i32 = row.get(0);
    if left_over == 0 {
        ctx.emit(&Paper::DocumentRead(page.document))?;
    }
    if ctx.attempt() == 1 && page.number % 5 == 0 {
        return Err(HandlerError::retry("late", "after the count"));
    }
    transaction.complete(Done::ok()).await
}

/// The work of a page; `None` if nobody can read it.
async fn read(page: Page, ctx: &Context) -> Result<Option<i32>, HandlerError> {
    tokio::time::sleep(Duration::from_millis(2)).await;
    let connection = ctx.connection().await?;
    let sql = "SELECT FROM broken WHERE number = $1";
    let broken = connection
        .query_typed(sql, &[(&page.number, Type::INT4)])
        .await?;
    if !broken.is_empty() || ctx.attempt() == 1 && page.number % 3 == 0 {
        return Err(HandlerError::retry("early", "before the count"));
    }
    Ok(Some(page.number).filter(|number| number % 10 != 9))
}

/// A database with the recipe's table and a document of this many pages, some of them broken.
async fn received(pages: i32, broken: &[i32]) -> (TestDb, Client) {
    let (db, client) = opened_for::<Paper>().await;
    let tables = format!("{TABLE}; CREATE TABLE broken (number integer)");
    client.batch_execute(&tables).await.unwrap();
    let sql = "INSERT INTO broken SELECT unnest($1::integer[])";
    client.execute(sql, &[&broken]).await.unwrap();
    let document = Paper::DocumentReceived(Document { id: 7, pages });
    let event = NewEvent::of(&document).unwrap();
    queue::publish(&client, &event).await.unwrap();
    (db, client)
}

/// Drains with two drains at once until nothing is left.
async fn drained(db: &TestDb, client: &Client) {
    let (database, options) = (db.database(), options());
    let drain = || tidegate::drain(&database, Arc::new(Reading), &options);
    while live(client).await > 0 {
        let (one, two) = tokio::join!(drain(), drain());
        assert!(one.unwrap().is_balanced() && two.unwrap().is_balanced());
    }
}

/// How many final events there have been, the last of which came after every page that has ended by now.
async fn finals(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.event_log AS f WHERE f.kind = 'document_read'
                  AND NOT EXISTS (SELECT FROM tidegate.event_log AS p WHERE p.kind = 'page_scanned' AND p.finished_at > f.created_at
                                     OR p.kind = 'page_scanned' AND p.id > f.id)";
    let last = number(client, sql).await;
    let all = "SELECT count(*) FROM tidegate.event_log WHERE kind = 'document_read'";
    assert_eq!(number(client, all).await, last, "one came too early");
    last
}

async fn counted(client: &Client) -> (i32, i32) {
    let sql = "SELECT left_over, lost FROM document WHERE id = 7";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_several_events_publishes_the_one_that_comes_after_them_exactly_once() {
    let (db, client) = received(100, &[]).await;
    drained(&db, &client).await;
    assert_eq!(counted(&client).await, (0, 10));
    assert_eq!(finals(&client).await, 1);
    let pages = "SELECT count(*) FROM tidegate.event_log WHERE kind = 'page_scanned' AND status = 'COMPLETED'";
    assert_eq!(number(&client, pages).await, 100);
    let retried =
        "SELECT count(*) FROM tidegate.event_log WHERE kind = 'page_scanned' AND attempts > 1";
    assert!(number(&client, retried).await > 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_is_not_counted_until_it_is_replayed_or_counted_manually() {
    let (db, client) = received(20, &[4, 8]).await;
    drained(&db, &client).await;
    assert_eq!((counted(&client).await, finals(&client).await), ((2, 2), 0));
    let sql = "DELETE FROM broken WHERE number = 4";
    client.batch_execute(sql).await.unwrap();
    let failed = "SELECT id FROM tidegate.event_log WHERE kind = 'page_scanned' AND status = 'FAILED' ORDER BY id LIMIT 1";
    let request = ReplayRequest {
        ids: Some(vec![number(&client, failed).await]),
        audit: Audit::of("it can be read now"),
        ..ReplayRequest::default()
    };
    request.on(&client).await.unwrap();
    drained(&db, &client).await;
    assert_eq!((counted(&client).await, finals(&client).await), ((1, 2), 0));
    let by_hand = "BEGIN;
                   UPDATE document SET left_over = left_over - 1, lost = lost + 1 WHERE id = 7 RETURNING left_over;
                   SELECT id FROM tidegate.publish('document_read', '7');
                   COMMIT";
    client.batch_execute(by_hand).await.unwrap();
    drained(&db, &client).await;
    assert_eq!((counted(&client).await, finals(&client).await), ((0, 3), 1));
}
