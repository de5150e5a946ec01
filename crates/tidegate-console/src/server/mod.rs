//! What every server over HTTP here has in common, whatever it serves: the console, and the interface of a
//! program beside it.
//!
//! A request passes, from the outside in: the limits of connections ([`serve_within`]), its id and its line
//! in the log ([`logged`]), a time limit ([`limited`]); then it is identified, and only then takes a place
//! ([`FairQuota`]). So a stranger holds no place, whatever they send.

mod fair_quota;
mod host;
mod line;
mod peer;
mod refusals;
mod serve;

pub use fair_quota::{FairQuota, Share};
pub use host::is_for_this_machine;
pub(crate) use host::{host, is_this_machine, without_port};
pub use line::{limited, logged};
pub use peer::Peer;
pub use refusals::Refusals;
pub use serve::{Bounds, serve_within};
