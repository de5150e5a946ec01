//! The medical jobs against a real Postgres and a stand-in for one-time passwords, text messages and
//! signatures. `cases` walks all kinds through every end they may come to; here is
//! what the queue and the transactions promise around them.

mod behaviour;
mod cases;
mod world;
