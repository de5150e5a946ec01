//! Operators' actions: replay, requeue, pause, resume, retire, unblock, forget.

use tidegate::Error;
use tidegate::operate::{
    ForgetRequest, KindRequest, Periodic, PolicyRequest, ReplayRequest, RequeueRequest,
    ScheduleAction, ScheduleRequest, ServiceAction, ServiceRequest, UnblockAction, UnblockRequest,
};
use tidegate::program::Service;

use crate::answer::{Answer, Failed, document, json_argument};
use crate::args::{
    ForgetArgs, PauseArgs, PolicyArgs, ReplayArgs, RequeueArgs, RetireArgs, ScheduleArgs,
    ServiceArgs, UnblockArgs,
};
use crate::text;

/// Fails if the replay was refused, or if the request names ids and none of these events can be replayed.
pub async fn replay(service: &Service, args: ReplayArgs) -> Result<Answer, Failed> {
    let ids = (!args.ids.is_empty()).then_some(args.ids);
    let by_id = ids.is_some();
    let report = service
        .replay(&ReplayRequest {
            ids,
            kind: args.kind,
            status: args.status.map(|status| status.to_uppercase()),
            code: args.code,
            since: args.since,
            until: args.until,
            reason: args.audit.reason,
            actor: args.audit.actor,
            limit: args.limit,
            dry_run: args.dry_run,
            again: args.again,
            failed_handlers_only: args.failed_handlers_only,
            expires_in: args.expires_in,
            digest: args.digest,
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

/// Fails if none of the ids could be requeued.
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
    let report = service.pause(&asked(args)).await?;
    Ok(Answer::new(
        document(&report)?,
        text::operate::paused(&report),
    ))
}

pub async fn resume(service: &Service, args: PauseArgs) -> Result<Answer, Failed> {
    let report = service.resume(&asked(args)).await?;
    Ok(Answer::new(
        document(&report)?,
        text::operate::paused(&report),
    ))
}

fn asked(args: PauseArgs) -> KindRequest {
    KindRequest {
        kind: args.kind,
        reason: args.reason,
        actor: args.actor,
    }
}

pub async fn service(service: &Service, args: ServiceArgs) -> Result<Answer, Failed> {
    let change = args.change;
    let action = match (change.pause, change.resume) {
        (true, _) => ServiceAction::Pause,
        (_, true) => ServiceAction::Resume,
        _ => ServiceAction::Limit {
            max_running: change.limit,
            per_second: change.per_second,
        },
    };
    let change = service
        .change_service(&ServiceRequest {
            service: args.service,
            action,
            reason: args.audit.reason,
            actor: args.audit.actor,
        })
        .await?;
    Ok(Answer::new(
        document(&change)?,
        text::operate::service(&change),
    ))
}

pub async fn retire(service: &Service, args: RetireArgs) -> Result<Answer, Failed> {
    let report = service
        .retire(&KindRequest {
            kind: args.kind,
            reason: Some(args.audit.reason),
            actor: args.audit.actor,
        })
        .await?;
    let text = format!(
        "{} is retired: it cannot be published any more",
        report.kind
    );
    Ok(Answer::new(document(&report)?, text))
}

pub async fn policy(service: &Service, args: PolicyArgs) -> Result<Answer, Failed> {
    let report = service
        .policy(&PolicyRequest {
            kind: args.kind,
            attempts: args.attempts,
            handler_timeout: args.handler_timeout,
            backoff: args.backoff,
            backoff_max: args.backoff_max,
            concurrency: args.concurrency,
            batch: args.batch,
            batch_within: args.batch_within,
            reset: args
                .reset
                .iter()
                .map(|name| name.replace('-', "_"))
                .collect(),
            reason: args.reason,
            actor: args.actor,
        })
        .await?;
    Ok(Answer::new(
        document(&report)?,
        text::operate::policy(&report),
    ))
}

/// Fails if nothing was done.
pub async fn unblock(service: &Service, args: UnblockArgs) -> Result<Answer, Failed> {
    let how = if args.how.retry {
        UnblockAction::Retry
    } else if args.how.skip {
        UnblockAction::Skip
    } else {
        UnblockAction::Cancel
    };
    let report = service
        .unblock(&UnblockRequest {
            group_key: args.group,
            how,
            reason: args.audit.reason,
            actor: args.audit.actor,
        })
        .await?;
    Ok(Answer {
        code: u8::from(report.id.is_none()),
        ..Answer::new(document(&report)?, text::operate::unblocked(&report))
    })
}

/// Fails if there was nothing to forget.
pub async fn forget(service: &Service, args: ForgetArgs) -> Result<Answer, Failed> {
    let whom = args.whom;
    let report = service
        .forget(&ForgetRequest {
            group: whom.group,
            correlation_id: whom.correlation_id,
            ids: (!whom.ids.is_empty()).then_some(whom.ids),
            subject: whom.subject,
            reason: args.audit.reason,
            actor: args.audit.actor,
            dry_run: args.dry_run,
        })
        .await?;
    let rows: u64 = report.tables.values().sum();
    Ok(Answer {
        code: u8::from(
            report.forgotten + report.before + report.schedules + rows == 0 || report.incomplete,
        ),
        ..Answer::new(document(&report)?, text::operate::forgotten(&report))
    })
}

pub async fn schedule(service: &Service, args: ScheduleArgs) -> Result<Answer, Failed> {
    let change = args.change;
    let action = match (change.kind, change.pause, change.resume, change.remove) {
        (Some(kind), ..) => {
            let payload = args.payload.as_deref();
            let payload = payload
                .map(|text| json_argument("--payload", text))
                .transpose()?;
            let payload = payload.map(|payload| serde_json::from_str(payload.get()));
            let payload = payload
                .transpose()
                .map_err(|error| Error::Invalid(format!("--payload: must be JSON: {error}")))?;
            ScheduleAction::Set(Periodic {
                kind,
                payload,
                cron: args.cron,
                every: args.every,
                time_zone: args.time_zone,
                group: args.group,
                start_within: args.start_within,
                catch_up: args.catch_up.unwrap_or_default(),
            })
        }
        (None, true, ..) => ScheduleAction::Pause,
        (None, _, true, _) => ScheduleAction::Resume,
        (None, _, _, true) => ScheduleAction::Remove,
        (None, ..) => ScheduleAction::Run,
    };
    let change = service
        .change_schedule(&ScheduleRequest {
            name: args.name,
            action,
            reason: args.audit.reason,
            actor: args.audit.actor,
        })
        .await?;
    Ok(Answer::new(
        document(&change)?,
        text::operate::schedule(&change),
    ))
}
