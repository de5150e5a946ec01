//! Brings the schema up to date.

use tidegate::invocation::MigrateRequest;
use tidegate::program::{Migrated, Service};

use crate::answer::{Answer, Failed, document};

pub async fn migrate(service: &Service, asked: MigrateRequest) -> Result<Answer, Failed> {
    let report = service.migrate(asked).await?;
    let applied = if report.applied.is_empty() {
        "nothing to apply".to_owned()
    } else {
        report.applied.join("\n")
    };
    let roles = if report.roles { ", roles granted" } else { "" };
    let text = format!(
        "{applied}\nschema version {}, {} kinds registered{roles}",
        report.version, report.kinds
    );
    Ok(Answer::new(
        document(&Migrated {
            action: "migrate",
            report,
        })?,
        text,
    ))
}
