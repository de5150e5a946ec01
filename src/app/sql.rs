//! Owns how the program sends its own statements.

use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tidegate::Error;
use tokio_postgres::types::{FromSqlOwned, ToSql, Type};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

/// A value of a Rust type that has one type in the database.
pub(crate) trait Typed {
    const TYPE: Type;
}

macro_rules! typed {
    ($($rust:ty = $type:ident),+) => { $(impl Typed for $rust { const TYPE: Type = Type::$type; })+ };
}

typed!(
    bool = BOOL,
    i32 = INT4,
    i64 = INT8,
    f64 = FLOAT8,
    str = TEXT,
    String = TEXT,
    Uuid = UUID
);
typed!(Value = JSONB, SystemTime = TIMESTAMPTZ, Vec<u8> = BYTEA, Vec<String> = TEXT_ARRAY);

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: Typed + ?Sized> Typed for &T {
    const TYPE: Type = T::TYPE;
}

/// A parameter of a statement.
pub(crate) trait Param: Sync {
    fn typed(&self) -> (&(dyn ToSql + Sync), Type);
}

impl<T: Typed + ToSql + Sync> Param for T {
    fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
        (self, T::TYPE)
    }
}

/// Sends a statement with its types in one round trip. It leaves no state in the session.
pub(crate) async fn query(
    client: &Client,
    stage: &'static str,
    sql: &str,
    params: &[&dyn Param],
) -> Result<Vec<Row>, Error> {
    let params: Vec<_> = params.iter().map(|param| param.typed()).collect();
    // The error is converted to our own type, because the driver's error may show the detail, which
    // quotes the row.
    let answer = client.query_typed(sql, &params).await;
    answer.map_err(|source| Error::Database { stage, source })
}

/// As [`query`], for the first column of the first row, if there is one.
pub(crate) async fn first<T: FromSqlOwned>(
    client: &Client,
    stage: &'static str,
    sql: &str,
    params: &[&dyn Param],
) -> Result<Option<T>, Error> {
    let rows = query(client, stage, sql, params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// As [`documents`], for the only row, if there is one.
pub(crate) async fn document<T: DeserializeOwned>(
    client: &Client,
    stage: &'static str,
    sql: &str,
    params: &[&dyn Param],
) -> Result<Option<T>, Error> {
    Ok(documents(client, stage, sql, params).await?.pop())
}

/// As [`query`], for the first column of all rows, which is JSON.
pub(crate) async fn documents<T: DeserializeOwned>(
    client: &Client,
    stage: &'static str,
    sql: &str,
    params: &[&dyn Param],
) -> Result<Vec<T>, Error> {
    let rows = query(client, stage, sql, params).await?;
    // The decoder's own message may quote the row.
    let unreadable = |_| Error::Unreadable(format!("{stage}: a row does not decode"));
    let decode = |row: &Row| serde_json::from_value(row.get(0)).map_err(unreadable);
    rows.iter().map(decode).collect()
}
