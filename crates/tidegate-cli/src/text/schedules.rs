//! What people read of the periodic events.

use std::time::Duration;

use tidegate::admin::{ScheduleStatus, SchedulesRequest};

use super::{Text, plain_table, shown, without_fraction};

/// Those that have stopped come first, then the others by their next slot.
impl Text for SchedulesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.schedules.is_empty() {
            return "there are no schedules".to_owned();
        }
        let mut table = plain_table(&[
            "schedule",
            "kind",
            "when",
            "state",
            "next",
            "last",
            "last event",
            "catch up",
            "kept by",
        ]);
        let time =
            |time: &Option<String>| time.as_deref().map(without_fraction).unwrap_or_default();
        for one in &report.schedules {
            let state = one.problem.as_deref().unwrap_or(&one.state);
            table.add_row(vec![
                shown(&one.name),
                shown(&one.kind),
                when(one),
                shown(&state.replace('_', " ")),
                time(&one.next_at),
                time(&one.last_at),
                one.last_event_id
                    .map_or_else(String::new, |id| id.to_string()),
                one.catch_up.as_str().to_owned(),
                shown(one.keeper.as_deref().unwrap_or("operators")),
            ]);
        }
        format!("{table}\ntimes are in UTC")
    }
}

fn when(schedule: &ScheduleStatus) -> String {
    match (&schedule.cron, schedule.every_ms) {
        (Some(cron), _) if schedule.time_zone == "UTC" => cron.clone(),
        (Some(cron), _) => format!("{cron} {}", schedule.time_zone),
        (None, every) => {
            let every = Duration::from_millis(every.unwrap_or_default().unsigned_abs());
            format!("every {}", humantime::format_duration(every))
        }
    }
}
