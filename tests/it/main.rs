//! The integration tests: one binary, one Postgres for all, a database for each.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions; their helpers are no different"
)]

#[path = "../support/clock.rs"]
mod clock;
mod probe;
#[expect(dead_code, reason = "the fault suite does more with it")]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/served.rs"]
mod served;
#[path = "../support/services.rs"]
mod services;
#[path = "../support/skip.rs"]
mod skip;
mod support;

mod batch;
mod callers;
mod carrier;
mod change;
mod checks;
mod cleanup;
mod cli;
mod connect;
mod console;
mod console_crowd;
mod console_function;
mod contract;
mod databases;
mod describe;
mod doctor;
mod drain;
mod elastic;
mod figures;
mod forget;
mod forms;
mod function;
mod golden;
mod guards;
mod http;
mod intake;
mod interleave;
mod limits;
mod load;
mod look;
mod medical;
mod network;
mod operate;
mod otel;
mod payload;
mod periodic;
mod plans;
mod policy;
mod pooler;
mod process;
mod progress;
mod prometheus;
mod pull;
mod queue;
mod queue_list;
mod queues;
mod recipe;
mod records;
mod relay;
mod replace;
mod roles;
mod roundtrip;
mod sandbox;
mod scenes;
mod seal;
mod secret;
mod service;
mod shop;
mod slots;
mod snooze;
mod starter;
mod steady;
mod strict;
mod tick;
mod trace;
mod upgrade;
mod versions;
mod wake;
mod walk;
mod why;
mod width;
