//! The medical jobs against a real Postgres and a stand-in for one-time passwords, text messages and
//! signatures. `authority` tries every kind as a stranger, `cases` walks all kinds through every end they
//! may come to, `again` runs them more than once, `crash` kills their worker; in `behaviour` is what the
//! queue and the transactions promise around them.

mod again;
mod authority;
mod behaviour;
pub mod cases;
mod crash;
pub mod world;
