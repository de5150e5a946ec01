//! What operators ask of the queue: the calls behind their requests, and behind what they look at.

mod lineage;
mod look;
mod operate;
pub(crate) mod prometheus;
mod schedule;
mod survey;

pub use self::lineage::{Lineage, MOST_RELATED, RelatedEvent, Relation};
pub(crate) use self::look::search_floor;
pub use self::look::{
    ListFilter, Overview, blocked_groups, leases, lineage, list, overview, show, stats,
};
pub(crate) use self::operate::{ChangedPage, Page, change, publish_by_hand};
pub use self::operate::{
    ForgottenEvents, change_service, find_subject, forget, offspring, pause, replay, requeue,
    resume, retire, set_policy, unblock,
};
pub use self::schedule::{change_schedule, forget_schedules, schedules};
pub(crate) use self::survey::{
    audit, blocked, content, course, dead, depths, drains, ended, event, group, kinds,
    log_partitions, rights, service_states, work,
};
