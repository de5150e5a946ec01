//! The workloads by name. Each creates its own database, prepares it in the same way before every
//! measurement, and measures its variants in turn, so that other load on the machine affects all of them
//! equally.

mod cleanup;
mod cost;
mod drain;
mod handlers;
mod horizon;
mod publish;

use futures_util::future::{BoxFuture, FutureExt};

use crate::measure::{Findings, Outcome};
use crate::setup::Bench;

/// One workload.
pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    pub run: for<'a> fn(&'a Bench) -> BoxFuture<'a, Outcome<Findings>>,
}

pub static ALL: &[Workload] = &[
    Workload {
        name: "drain",
        about: "200,000 no-op events of about 200 bytes, default settings, against a bare move of the same rows by SQL",
        run: |bench| drain::plain(bench).boxed(),
    },
    Workload {
        name: "groups",
        about: "the same in 1,000 groups, in 100,000 groups, and 100,000 events in one group",
        run: |bench| drain::groups(bench).boxed(),
    },
    Workload {
        name: "payloads",
        about: "the same with payloads of about 20 bytes, 1 KiB, 64 KiB and 1 MiB, the most there may be",
        run: |bench| drain::payloads(bench).boxed(),
    },
    Workload {
        name: "deep",
        about: "2,000,000 events queued, the first 200,000 drained, against a queue of only those",
        run: |bench| drain::deep(bench).boxed(),
    },
    Workload {
        name: "horizon",
        about: "1,000,000 events while another session holds the vacuum horizon: last quarter against first",
        run: |bench| horizon::run(bench).boxed(),
    },
    Workload {
        name: "ahead",
        about: "100,000 delayed and 100,000 blocked events in front of 100,000 ready ones",
        run: |bench| drain::ahead(bench).boxed(),
    },
    Workload {
        name: "parallel",
        about: "200,000 events drained by 1, 2, 4 and 8 drains at once, all in this process",
        run: |bench| drain::parallel(bench).boxed(),
    },
    Workload {
        name: "distance",
        about: "the same drain through a proxy that adds 1 ms to every round trip",
        run: |bench| drain::distance(bench).boxed(),
    },
    Workload {
        name: "publish",
        about: "publishing one by one and by 1,000, against a bare INSERT of the same columns, each a transaction",
        run: |bench| publish::run(bench).boxed(),
    },
    Workload {
        name: "waiting",
        about: "5,000 events whose handlers wait 50 ms, 64 at once, against the ideal",
        run: |bench| handlers::waiting(bench).boxed(),
    },
    Workload {
        name: "transactions",
        about: "handlers that write one row in the transaction that completes their event",
        run: |bench| handlers::transactions(bench).boxed(),
    },
    Workload {
        name: "cleanup",
        about: "1,000,000 finished events whose retention has ended, against DELETE in batches",
        run: |bench| cleanup::run(bench).boxed(),
    },
    Workload {
        name: "footprint",
        about: "what a drained event costs the server: WAL, dead rows, growth of indexes",
        run: |bench| cost::footprint(bench).boxed(),
    },
    Workload {
        name: "memory",
        about: "resident memory of `tidegate drain` while it drains 2,000,000 events",
        run: |bench| cost::memory(bench).boxed(),
    },
    Workload {
        name: "latency",
        about: "100 events a second into a lingering drain: from before the publish to the handler's start",
        run: |bench| handlers::latency(bench).boxed(),
    },
    Workload {
        name: "empty",
        about: "what finding nothing costs",
        run: |bench| cost::empty(bench).boxed(),
    },
];
