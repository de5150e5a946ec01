//! Owns how the program's own statements go out.

use tidegate::Error;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

/// Sent with its types, in one round trip, so that it keeps no state in the session.
pub(crate) async fn query(
    client: &(impl GenericClient + Sync),
    stage: &'static str,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, Error> {
    // Through our own error, because the driver's may show the detail, and that quotes the row.
    client
        .query_typed(sql, params)
        .await
        .map_err(|source| Error::Database { stage, source })
}
