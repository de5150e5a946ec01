//! What operators ask of the queue: the calls behind their requests, and behind what they look at.

mod lineage;
mod look;
pub(crate) mod prometheus;
mod survey;

pub use self::lineage::{Lineage, MOST_RELATED, RelatedEvent, Relation};
pub(crate) use self::look::search_floor;
pub use self::look::{ListFilter, Overview, lineage, list, overview, show, stats};
pub(crate) use self::survey::{
    audit, blocked, content, course, dead, depths, drains, ended, event, group, kinds,
    log_partitions, rights, service_states, work,
};
