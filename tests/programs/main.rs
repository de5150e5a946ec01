//! Tests of the programs as people run them: the command line, the doctor, reports, services, a steady load.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

mod by_hand;
mod carrier;
mod cli;
mod describe;
mod doctor;
mod load;
mod look;
mod records;
mod service;
mod shop;
mod starter;
mod steady;
mod trace;
mod why;
mod width;

#[path = "../job/support.rs"]
mod support;
