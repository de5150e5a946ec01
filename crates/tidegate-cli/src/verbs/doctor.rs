//! Checks the database, the schema and the queue.

use tidegate::program::Service;

use crate::answer::{Answer, Failed, document};
use crate::text;

/// The exit code if a check is not ok.
const FOUND_SOMETHING: u8 = 3;

pub async fn doctor(service: &Service) -> Result<Answer, Failed> {
    let report = service.doctor().await?;
    let text = text::doctor(&report);
    let mut answer = Answer::new(document(&report)?, text);
    answer.code = if report.ok { 0 } else { FOUND_SOMETHING };
    Ok(answer)
}
