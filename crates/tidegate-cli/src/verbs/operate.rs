//! Operators' actions: replay, requeue, pause, resume, retire, unblock.

use tidegate::operate::{
    KindRequest, LimitRequest, ReplayRequest, RequeueRequest, ServiceRequest, UnblockAction,
    UnblockRequest,
};
use tidegate::program::Service;
use tidegate::queue;

use crate::answer::{Answer, Failed, document};
use crate::args::{PauseArgs, ReplayArgs, RequeueArgs, RetireArgs, ServiceArgs, UnblockArgs};
use crate::text;

/// Fails when it was refused, or when ids were asked for and not one of them can be replayed.
pub async fn replay(service: &Service, args: ReplayArgs) -> Result<Answer, Failed> {
    let ids = (!args.ids.is_empty()).then_some(args.ids);
    let by_id = ids.is_some();
    let report = service
        .replay(&ReplayRequest {
            ids,
            kind: args.kind,
            status: args.status.map(|status| status.to_uppercase()),
            since: args.since,
            until: args.until,
            reason: args.audit.reason,
            actor: args.audit.actor,
            limit: args.limit,
            dry_run: args.dry_run,
            again: args.again,
            failed_handlers_only: args.failed_handlers_only,
            expires_in: args.expires_in,
        })
        .await?;
    let done = if report.dry_run {
        report.eligible
    } else {
        report.replayed
    };
    let failed = report.refused.is_some() || (by_id && done == 0);
    Ok(Answer {
        code: u8::from(failed),
        ..Answer::new(document(&report)?, text::operate::replayed(&report))
    })
}

/// Fails when not one of the ids could be requeued.
pub async fn requeue(service: &Service, args: RequeueArgs) -> Result<Answer, Failed> {
    let report = service
        .requeue(&RequeueRequest {
            ids: args.ids,
            reason: args.audit.reason,
            actor: args.audit.actor,
        })
        .await?;
    Ok(Answer {
        code: u8::from(report.requeued == 0),
        ..Answer::new(document(&report)?, text::operate::requeued(&report))
    })
}

pub async fn pause(service: &Service, args: PauseArgs) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let report = queue::pause(&client, &asked(service, args)).await?;
    Ok(Answer::new(
        document(&report)?,
        text::operate::paused(&report),
    ))
}

pub async fn resume(service: &Service, args: PauseArgs) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let report = queue::resume(&client, &asked(service, args)).await?;
    Ok(Answer::new(
        document(&report)?,
        text::operate::paused(&report),
    ))
}

fn asked(service: &Service, args: PauseArgs) -> KindRequest {
    KindRequest {
        kind: args.kind,
        reason: args.reason,
        actor: args.actor.or_else(|| service.actor.clone()),
    }
}

pub async fn service(service: &Service, args: ServiceArgs) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let change = args.change;
    let (name, reason) = (args.service, args.audit.reason);
    let actor = args.audit.actor.or_else(|| service.actor.clone());
    let change = if change.pause || change.resume {
        let asked = ServiceRequest {
            service: name,
            reason,
            actor,
        };
        if change.pause {
            queue::pause_service(&client, &asked).await?
        } else {
            queue::resume_service(&client, &asked).await?
        }
    } else {
        let asked = LimitRequest {
            service: name,
            max_running: change.limit,
            per_second: change.per_second,
            reason,
            actor,
        };
        queue::limit_service(&client, &asked).await?
    };
    Ok(Answer::new(
        document(&change)?,
        text::operate::service(&change),
    ))
}

pub async fn retire(service: &Service, args: RetireArgs) -> Result<Answer, Failed> {
    let asked = KindRequest {
        kind: args.kind,
        reason: Some(args.audit.reason),
        actor: args.audit.actor.or_else(|| service.actor.clone()),
    };
    let report = service.retire(&asked).await?;
    let text = format!(
        "{} is retired: it cannot be published any more",
        report.kind
    );
    Ok(Answer::new(document(&report)?, text))
}

/// Fails when nothing was done.
pub async fn unblock(service: &Service, args: UnblockArgs) -> Result<Answer, Failed> {
    let how = if args.how.retry {
        UnblockAction::Retry
    } else if args.how.skip {
        UnblockAction::Skip
    } else {
        UnblockAction::Cancel
    };
    let request = UnblockRequest {
        group_key: args.group,
        how,
        reason: args.audit.reason,
        actor: args.audit.actor.or_else(|| service.actor.clone()),
    };
    let client = service.database.connect().await?;
    let report = queue::unblock(&client, &request).await?;
    Ok(Answer {
        code: u8::from(report.id.is_none()),
        ..Answer::new(document(&report)?, text::operate::unblocked(&report))
    })
}
