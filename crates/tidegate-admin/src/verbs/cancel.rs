//! The verb `cancel`: ends live events.

use super::prelude::*;
use super::selection::{BulkChange, selected};
use super::{Changed, Selection};

/// End live events, including those that a worker holds.
///
/// The events end FAILED with code cancelled. Their follow-ups are not published, and their groups go on. A
/// handler that is running is notified when its drain next renews its leases. Events are cancelled in steps
/// of a thousand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
#[command(
    after_help = "Example:\n  tidegate cancel --kind order_placed --created-until 2h --reason 'sent twice' --dry-run\n  tidegate cancel --id 42 --reason 'the order was withdrawn'"
)]
pub struct CancelRequest {
    /// Which events.
    #[command(flatten)]
    #[serde(skip)]
    pub select: Selection,
    /// Why, and who.
    #[command(flatten)]
    #[serde(skip)]
    pub audit: Audit,
}

/// The report of a cancel. For a dry run, what it would cancel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CancelReport {
    /// How many events ended as FAILED with the code `cancelled`.
    pub cancelled: u64,
    /// How many of them may have a running handler. It is notified when its drain next
    /// renews its leases. What it does to other tables and services is not undone.
    pub begun: u64,
    /// Which events, and which were skipped.
    #[serde(flatten)]
    pub changed: Changed,
}

statements! {
    CANCEL: "cancel" [INT8_ARRAY, TEXT, TEXT, TEXT, TEXT, TEXT, TIMESTAMPTZ, FLOAT8, TIMESTAMPTZ, FLOAT8, TEXT, TEXT, INT4, INT8, BOOL] =
        concat!("SELECT @tidegate.cancel(", selected!(), ")::text");
}

impl Verb for CancelRequest {
    const NAME: &'static str = "cancel";

    type Report = CancelReport;

    parts! { select; audit }

    fn code(&self, report: &CancelReport) -> u8 {
        self.select.code(&report.changed, report.cancelled)
    }

    async fn run(&self, runtime: &Runtime) -> Result<CancelReport> {
        let change = BulkChange {
            statement: &CANCEL,
            select: &self.select,
            audit: &self.audit,
            values: Vec::new(),
        };
        let done = change.run(&runtime.database).await?;
        Ok(CancelReport {
            cancelled: done.changed,
            begun: done.begun,
            changed: done.report,
        })
    }
}
