use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use tidegate::Event;

use crate::{Failure, OrderPlaced, ShopEvent};

/// In `connection.transaction(async |connection| …)`.
pub async fn place(connection: &mut AsyncPgConnection, order_id: i64) -> Result<(), Failure> {
    let order = sql_query("INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING");
    order
        .bind::<BigInt, _>(order_id)
        .execute(connection)
        .await?;

    let event = ShopEvent::OrderPlaced(OrderPlaced { order_id });
    sql_query("SELECT tidegate.publish($1, $2::jsonb, dedup_key => $3)")
        .bind::<Text, _>(event.kind())
        .bind::<Text, _>(event.encode()?.get())
        .bind::<Text, _>(format!("order-{order_id}"))
        .execute(connection)
        .await?;
    Ok(())
}
