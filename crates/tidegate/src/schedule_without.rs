//! Replaces periodic events in builds without them: a drain leaves them to programs that have a calendar.

use crate::error::Error;
use crate::operate::{Periodic, ScheduleStatus};
use crate::queue::{DueSchedule, Firing};

/// Whether this build fires schedules.
pub(crate) const BUILT_IN: bool = false;

fn refused<T>() -> Result<T, Error> {
    let why = "this program was built without the feature schedules";
    Err(Error::Config(format!("schedule: {why}")))
}

pub(crate) fn check(_: &Periodic) -> Result<String, Error> {
    refused()
}

#[expect(clippy::unused_async, reason = "as with schedules built in")]
pub(crate) async fn sealed(_: &str, _: Option<String>) -> Result<Option<String>, Error> {
    refused()
}

pub(crate) fn complete(_: &mut ScheduleStatus) {}

pub(crate) fn plan(due: &DueSchedule, _: usize) -> Firing {
    Firing {
        id: due.id,
        revision: due.revision,
        from: due.next,
        slots: Vec::new(),
        next: due.next,
        problem: None,
    }
}

pub(crate) fn has_more(_: &Firing, _: i64) -> bool {
    false
}
