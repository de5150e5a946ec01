//! An existing program: its orders are stored through sqlx, diesel-async or SeaORM, and the event of an order
//! in the same transaction.

use serde::{Deserialize, Serialize};

pub mod with_diesel;
pub mod with_sea_orm;
pub mod with_sqlx;

#[derive(Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub order_id: i64,
}

tidegate::events! {
    #[derive(Debug)]
    pub enum ShopEvent {
        OrderPlaced(OrderPlaced) = "order_placed",
    }
}

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
