//! Reports whether this process is alive, and whether it can work.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use tidegate::{Error, Event, migrate};
use utoipa::ToSchema;

use super::problem::{Common, Problem};
use super::{Shared, begin, connection};
use crate::app::{Event as AppEvent, TABLES};

/// The answer if everything is fine.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    #[schema(example = "ok")]
    status: &'static str,
}

const OK: Json<Health> = Json(Health { status: "ok" });

/// Reports whether the process answers. It checks nothing else.
#[utoipa::path(
    get, path = "/healthz", tag = "operation",
    responses((status = 200, description = "The process answers", body = Health), Common)
)]
pub(super) async fn healthz() -> Json<Health> {
    OK
}

/// Reports whether the database can be reached and has the schema that this program needs, or a newer one.
#[utoipa::path(
    get, path = "/readyz", tag = "operation",
    responses((status = 200, description = "The database can be reached and has the required schema", body = Health), Common)
)]
pub(super) async fn readyz(State(shared): State<Shared>) -> Result<Json<Health>, Problem> {
    let mut client = connection(&shared.database).await?;
    let transaction = begin(&mut client).await?;
    match migrate::check(&transaction, AppEvent::KINDS, &[TABLES]).await {
        Ok(()) => Ok(OK),
        Err(error @ Error::Migrate(_)) => {
            tracing::warn!(%error, "not ready");
            let message = "the database does not have the schema that this program needs";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(Problem::new(status, "schema_mismatch", message))
        }
        Err(error) => Err(error.into()),
    }
}
