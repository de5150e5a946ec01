//! The schema's way forward.

use tidegate::service::{Migrated, Service};

use crate::{Answer, Failed, document};

pub async fn migrate(service: &Service) -> Result<Answer, Failed> {
    let report = service.migrate().await?;
    let applied = if report.applied.is_empty() {
        "nothing to apply".to_owned()
    } else {
        report.applied.join("\n")
    };
    let text = format!(
        "{applied}\nschema version {}, {} kinds registered",
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
