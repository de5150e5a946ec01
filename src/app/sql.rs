//! Owns how the program sends its own statements.

use tidegate::Error;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

/// Sends a statement with its types in one round trip. It leaves no state in the session.
pub(crate) async fn query(
    client: &(impl GenericClient + Sync),
    stage: &'static str,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, Error> {
    // The error is converted to our own type, because the driver's error may show the detail, which
    // quotes the row.
    client
        .query_typed(sql, params)
        .await
        .map_err(|source| Error::Database { stage, source })
}
