//! The verb `doctor`: examines the database, the schema and the queue.

use super::prelude::*;
use crate::doctor::DoctorReport;

/// Check the database, the schema and the queue, and say how to fix each problem.
///
/// The exit code is 0 if all checks pass, and 3 if a check gives a warning, finds a problem or cannot be
/// made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Args)]
#[command(after_help = "Example:\n  tidegate doctor --json")]
pub struct DoctorRequest {}

statements! {}

impl Verb for DoctorRequest {
    const NAME: &'static str = "doctor";
    const LOGGED: Option<&'static [&'static str]> = Some(&["ok"]);

    type Report = DoctorReport;

    /// 3 if a check is not ok.
    fn code(&self, report: &DoctorReport) -> u8 {
        if report.ok { 0 } else { 3 }
    }

    async fn run(&self, runtime: &Runtime) -> Result<DoctorReport> {
        runtime.examine().await
    }
}
