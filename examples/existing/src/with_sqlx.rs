use sqlx::{PgTransaction, query};
use tidegate::Event;

use crate::{Failure, OrderPlaced, ShopEvent};

pub async fn place(tx: &mut PgTransaction<'_>, order_id: i64) -> Result<(), Failure> {
    let order = query("INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING").bind(order_id);
    order.execute(&mut **tx).await?;

    let event = ShopEvent::OrderPlaced(OrderPlaced { order_id });
    query("SELECT tidegate.publish($1, $2::jsonb, dedup_key => $3)")
        .bind(event.kind())
        .bind(event.encode()?.get())
        .bind(format!("order-{order_id}"))
        .execute(&mut **tx)
        .await?;
    Ok(())
}
