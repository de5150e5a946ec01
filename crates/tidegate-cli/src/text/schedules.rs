//! What people read of the periodic events.

use std::time::Duration;

use tidegate::admin::{ScheduleStatus, SchedulesRequest};

use super::{Text, shown, table, time_of};

/// Those that have stopped come first, then the others by their next slot.
impl Text for SchedulesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.schedules.is_empty() {
            return "there are no schedules".to_owned();
        }
        table(
            &report.schedules,
            &[
                ("schedule", |one| shown(&one.name)),
                ("kind", |one| shown(&one.kind)),
                ("when", when),
                ("state", state),
                ("next", |one| time_of(one.next_at.as_ref())),
                ("last", |one| time_of(one.last_at.as_ref())),
                ("last event", |one| {
                    one.last_event_id
                        .map(|id| id.to_string())
                        .unwrap_or_default()
                }),
                ("catch up", |one| one.catch_up.as_str().to_owned()),
                ("declared by", |one| shown(&one.keeper)),
            ],
        )
    }
}

fn state(schedule: &ScheduleStatus) -> String {
    let state = schedule.problem.as_deref().unwrap_or(&schedule.state);
    shown(&state.replace('_', " "))
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
