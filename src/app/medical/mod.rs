//! The medical jobs system: 21 kinds of changes to a patient's data. Clients request them over an interface
//! that answers at once. The jobs of each patient are then handled one after the other.
//!
//! # Layout
//!
//! - [`payload`] defines what clients may request, and checks a request.
//! - [`value`] and [`entity`] define the parts of payloads and of signed contents, and [`content`] the shapes
//!   of these contents, which `signed` opens.
//! - [`authority`] has the words for who may do a job.
//! - [`transition`] checks who does a job, and turns it into a change. `rules` contains the rules of each
//!   kind.
//! - [`verdict`] builds the stored result of a job.
//! - [`record`] reads data, and confirms approvals at once.
//! - [`services`] notifies the patient and verifies signatures.
//! - `store` contains the SQL.
//!
//! # How to add a kind
//!
//! Add a payload in [`payload`], with who may do it, the service that it calls and what it signs, and a
//! `Transition` in `rules`. If the rules are missing, the program does not compile.

pub mod authority;
pub mod content;
pub mod entity;
pub mod payload;
pub mod record;
mod rules;
pub mod services;
pub(crate) mod signed;
mod store;
pub mod transition;
pub mod value;
pub mod verdict;

use tidegate::{Context, Handlers};

pub use super::schema::FieldError;
pub use payload::{AUTHORITIES, Job, KINDS, Refusal, group, schema_name, schemas, validate};

macro_rules! dispatched {
    ($($(#[$attr:meta])* $name:ident = $kind:literal;)+) => {
        tidegate::events! {
            /// A job on a patient's data.
            #[derive(Debug)]
            pub enum MedicalJob {
                $($(#[$attr])* $name(payload::$name) = $kind),+
            }
        }

        impl MedicalJob {
            /// The only handler of a job.
            pub(super) fn handlers<'a>(
                &'a self,
                services: &'a services::Services,
                ctx: &'a Context,
            ) -> Handlers<'a> {
                match self {
                    $(Self::$name(job) => transition::handlers(services, job, ctx),)+
                }
            }
        }
    };
}

payload::each_job!(dispatched);
