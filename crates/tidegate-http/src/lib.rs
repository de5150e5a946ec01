//! What every server over HTTP of a program has in common, whatever it serves. It knows nothing of queues:
//! the console serves its pages on it, and a program its own interface.
//!
//! A request passes, from the outside in: the limits of connections ([`serve_within`]), its id and its line
//! in the log ([`logged`]), a time limit ([`limited`]); then it is identified, and only then takes a place
//! ([`FairQuota`]). So a stranger holds no place, whatever they send.
//!
//! With the feature `lambda`, `function` serves the same router as a Lambda function. [`is_for_this_machine`]
//! guards a server on loopback against pages of other sites.

mod fair_quota;
#[cfg(feature = "lambda")]
pub mod function;
mod host;
mod line;
mod peer;
mod refusals;
mod serve;

pub use fair_quota::{FairQuota, Share};
pub use host::{host, is_for_this_machine, is_this_machine, without_port};
pub use line::{limited, logged};
pub use peer::Peer;
pub use refusals::Refusals;
pub use serve::{Bounds, listen_address, serve_within};
