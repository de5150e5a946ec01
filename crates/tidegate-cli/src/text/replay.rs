//! What people read of a replay.

use tidegate::admin::ReplayRequest;

use super::{SHOWN, Text, events, more, shown, skipped};

/// Fails if the replay was refused, or if the request names ids and none of these events can be replayed.
impl Text for ReplayRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut lines = vec![match (report.dry_run, &report.refused) {
            (true, _) => format!(
                "dry run: {} of {} would be replayed",
                report.eligible,
                events(report.matched)
            ),
            (false, Some(refused)) => format!("nothing was replayed: {refused}"),
            (false, None) => format!("replayed {} of {}", report.replayed, events(report.matched)),
        }];
        if let (true, Some(refused)) = (report.dry_run, &report.refused) {
            lines.push(format!("the replay would be refused: {refused}"));
        }
        lines.extend(
            report
                .kinds
                .iter()
                .map(|(kind, count)| format!("  {}: {count}", shown(kind))),
        );
        let pairs = report.events.iter().take(SHOWN);
        lines
            .extend(pairs.map(|event| {
                format!("  event {} replayed as event {}", event.replay_of, event.id)
            }));
        more(&mut lines, report.replayed);
        if report.limit_reached {
            lines.push("more events are left: run the same command again".to_owned());
        }
        if report.skipped_count > 0 {
            lines.push(format!("skipped {}:", events(report.skipped_count)));
            let reasons = report.skipped_reasons.iter();
            lines.extend(reasons.map(|(reason, count)| format!("  {reason}: {count}")));
            skipped(&mut lines, &report.skipped, report.skipped_count);
        }
        lines.join("\n")
    }

    fn code(&self, report: &Self::Report) -> u8 {
        let done = if report.dry_run {
            report.eligible
        } else {
            report.replayed
        };
        u8::from(report.refused.is_some() || (self.ids.is_some() && done == 0))
    }
}
