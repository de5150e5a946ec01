//! Operators' changes of many live events: cancel, reschedule.

use tidegate::operate::{CancelRequest, RescheduleRequest};
use tidegate::program::Service;

use crate::answer::{Answer, Failed, document};
use crate::args::{CancelArgs, RescheduleArgs};
use crate::text;

fn named(ids: Vec<i64>) -> Option<Vec<i64>> {
    (!ids.is_empty()).then_some(ids)
}

/// Fails if the digest of a dry run does not match, or if the request names ids and none of these events
/// could be cancelled.
pub async fn cancel(service: &Service, args: CancelArgs) -> Result<Answer, Failed> {
    let select = args.select;
    let by_id = !select.ids.is_empty();
    let report = service
        .cancel(&CancelRequest {
            ids: named(select.ids),
            kind: select.kind,
            dedup_key: select.dedup_key,
            correlation_id: select.correlation_id,
            group: select.group,
            status: select.status,
            since: select.since,
            until: select.until,
            limit: select.limit,
            reason: args.audit.reason,
            actor: args.audit.actor,
            dry_run: select.dry_run,
            digest: select.digest,
        })
        .await?;
    Ok(Answer {
        code: u8::from(report.refused.is_some() || (by_id && report.cancelled == 0)),
        ..Answer::new(document(&report)?, text::change::cancelled(&report))
    })
}

/// Fails if the digest of a dry run does not match, or if the request names ids and none of these events
/// could be rescheduled.
pub async fn reschedule(service: &Service, args: RescheduleArgs) -> Result<Answer, Failed> {
    let (select, start) = (args.select, args.start);
    let by_id = !select.ids.is_empty();
    let report = service
        .reschedule(&RescheduleRequest {
            ids: named(select.ids),
            kind: select.kind,
            dedup_key: select.dedup_key,
            correlation_id: select.correlation_id,
            group: select.group,
            status: select.status,
            since: select.since,
            until: select.until,
            limit: select.limit,
            now: start.now,
            delay: start.delay,
            available_at: start.at,
            expires_in: start.expires_in,
            expires_at: start.expires_at,
            no_deadline: start.no_deadline,
            reason: args.audit.reason,
            actor: args.audit.actor,
            dry_run: select.dry_run,
            digest: select.digest,
        })
        .await?;
    Ok(Answer {
        code: u8::from(report.refused.is_some() || (by_id && report.rescheduled == 0)),
        ..Answer::new(document(&report)?, text::change::rescheduled(&report))
    })
}
