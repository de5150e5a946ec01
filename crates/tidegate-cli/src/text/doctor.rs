//! What people read of the doctor.

use std::fmt::Write;

use tidegate::admin::DoctorRequest;

use super::{Text, shown};

/// The exit code if a check is not ok.
const FOUND_SOMETHING: u8 = 3;

/// Lists the findings, one line for each check and one for each remedy.
impl Text for DoctorRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut text = String::new();
        for check in &report.checks {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:8} {:20} {}",
                check.state.word(),
                check.name,
                shown(&check.finding)
            );
            for line in check.remedy.iter().flat_map(|remedy| remedy.lines()) {
                let _ = writeln!(text, "{:8} {:20} remedy: {line}", "", "");
            }
        }
        text
    }

    fn code(&self, report: &Self::Report) -> u8 {
        if report.ok { 0 } else { FOUND_SOMETHING }
    }
}
