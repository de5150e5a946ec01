//! The verbs: each calls the library and turns its report into an answer.

mod change;
mod cleanup;
pub mod describe;
mod doctor;
mod drain;
mod look;
mod migrate;
pub mod new;
mod operate;
mod prometheus;
mod publish;
mod watch;

use tidegate::Error;
use tidegate::invocation::MigrateRequest;
use tidegate::program::Service;

use crate::answer::{Answer, Failed};
use crate::args::{StatusFormat, Verb};

/// Answers a verb that every program has.
pub async fn answer(service: &Service, verb: Verb, json: bool) -> Result<Answer, Failed> {
    match verb {
        Verb::Migrate { roles, share } => {
            migrate::migrate(service, MigrateRequest { roles, share }).await
        }
        Verb::Publish(args) => publish::publish(service, args).await,
        Verb::Drain(args) => drain::drain(service, &args, json).await,
        Verb::Cleanup(args) => cleanup::cleanup(service, args, json).await,
        Verb::Retention(args) => cleanup::retention(service, args).await,
        Verb::Status(args) if args.watch => watch::watch(service, args.interval, json).await,
        Verb::Status(args) if args.format == StatusFormat::Prometheus => {
            if json {
                let text = "--format prometheus: cannot be used with --json";
                return Err(Error::Invalid(text.to_owned()).into());
            }
            prometheus::status(service, args.output.as_deref()).await
        }
        Verb::Status(args) if args.output.is_some() => {
            let text = "--output: needs --format prometheus";
            Err(Error::Invalid(text.to_owned()).into())
        }
        Verb::Status(_) => look::status(service).await,
        Verb::Show { id } => look::show(service, id).await,
        Verb::List(args) => look::list(service, args).await,
        Verb::BlockedGroups { limit } => look::blocked_groups(service, limit).await,
        Verb::Leases { limit } => look::leases(service, limit).await,
        Verb::Doctor => doctor::doctor(service).await,
        Verb::Replay(args) => operate::replay(service, args).await,
        Verb::Requeue(args) => operate::requeue(service, args).await,
        Verb::Pause(args) => operate::pause(service, args).await,
        Verb::Resume(args) => operate::resume(service, args).await,
        Verb::Services => look::services(service).await,
        Verb::Service(args) => operate::service(service, args).await,
        Verb::Cancel(args) => change::cancel(service, *args).await,
        Verb::Reschedule(args) => change::reschedule(service, *args).await,
        Verb::Retire(args) => operate::retire(service, args).await,
        Verb::Policy(args) => operate::policy(service, args).await,
        Verb::Unblock(args) => operate::unblock(service, args).await,
        Verb::Forget(args) => operate::forget(service, args).await,
        Verb::Schedules { limit } => look::schedules(service, limit).await,
        Verb::Schedule(args) => operate::schedule(service, *args).await,
        Verb::Completions { .. } | Verb::Man { .. } | Verb::Schema { .. } => {
            // Answered earlier, before a service exists.
            Err(Error::Invalid("this verb does not use the program".to_owned()).into())
        }
    }
}
