use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement};
use tidegate::Event;

use crate::{Failure, OrderPlaced, ShopEvent};

pub async fn place(tx: &DatabaseTransaction, order_id: i64) -> Result<(), Failure> {
    let order = "INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING";
    tx.execute_raw(Statement::from_sql_and_values(
        DbBackend::Postgres,
        order,
        [order_id.into()],
    ))
    .await?;

    let event = ShopEvent::OrderPlaced(OrderPlaced { order_id });
    let publish = "SELECT tidegate.publish($1, $2::jsonb, dedup_key => $3)";
    let values = [
        event.kind().into(),
        event.encode()?.get().into(),
        format!("order-{order_id}").into(),
    ];
    tx.execute_raw(Statement::from_sql_and_values(
        DbBackend::Postgres,
        publish,
        values,
    ))
    .await?;
    Ok(())
}
