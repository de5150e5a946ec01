//! What a script is made of.

use proptest::prelude::*;

/// One step. Hours are the unit of time: nothing in a script takes long enough to blur them. What a `pick`
/// means is said by the model: one of all leases ever, one of all ids ever.
#[derive(Debug, Clone)]
pub enum Step {
    Publish {
        kind: usize,
        group: Option<u8>,
        dedup: Option<u8>,
        delay: i64,
        expires_in: Option<i64>,
        max_attempts: u16,
        /// Takes the place of what is live with its key.
        replaces: bool,
    },
    Lease {
        worker: usize,
        limit: u32,
        /// How many of them may start at once.
        window: u32,
        from: From,
        /// Whether the worker says what it holds.
        says_held: bool,
        /// How many of the kinds the program knows.
        kinds: usize,
    },
    Promote,
    Finalize {
        pick: usize,
        end: End,
        follow_up: bool,
    },
    Complete {
        pick: usize,
        /// All of the lease, or this event alone.
        all: bool,
        /// Handlers of the lease up to this one are to start.
        starts: Option<usize>,
        over: bool,
    },
    Retry {
        pick: usize,
        delay: i64,
        charged: bool,
    },
    HandBack {
        pick: usize,
    },
    Renew {
        pick: usize,
    },
    /// What goes before a walk.
    Sweep {
        worker: usize,
        says_held: bool,
    },
    Requeue {
        pick: usize,
    },
    Cancel {
        group: u8,
    },
    CancelOne {
        pick: usize,
    },
    Reschedule {
        pick: usize,
        delay: i64,
        expires_in: Option<i64>,
    },
    Skip {
        group: u8,
    },
    Replay {
        pick: usize,
        /// Gives passed deadlines anew.
        renews: bool,
    },
    /// What the cleanup does to events that nobody will run any more.
    End,
    Cleanup,
    /// Time passes.
    Pass {
        hours: i64,
    },
}

/// Where a lease begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A new walk.
    Start,
    /// Where the worker's last lease ended.
    On,
    /// There, called back to before one of all ids ever.
    Back(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Completed,
    CompletedWithErrors,
    Failed,
}

/// Any step; those that make something happen more often than those that end it all.
pub fn step() -> impl Strategy<Value = Step> {
    let pick = || 0..64usize;
    let few_hours = || prop_oneof![3 => Just(0), 2 => 1..4i64];
    prop_oneof![
        6 => publish(),
        8 => lease(),
        2 => Just(Step::Promote),
        4 => finalize(),
        3 => complete(),
        4 => (pick(), few_hours(), proptest::bool::weighted(0.7))
            .prop_map(|(pick, delay, charged)| Step::Retry { pick, delay, charged }),
        3 => pick().prop_map(|pick| Step::HandBack { pick }),
        3 => (0..2usize, proptest::bool::weighted(0.8))
            .prop_map(|(worker, says_held)| Step::Sweep { worker, says_held }),
        2 => pick().prop_map(|pick| Step::Renew { pick }),
        3 => pick().prop_map(|pick| Step::Requeue { pick }),
        2 => (0..2u8).prop_map(|group| Step::Cancel { group }),
        2 => (0..2u8).prop_map(|group| Step::Skip { group }),
        2 => pick().prop_map(|pick| Step::CancelOne { pick }),
        3 => (pick(), few_hours(), proptest::option::weighted(0.2, 1..5i64))
            .prop_map(|(pick, delay, expires_in)| Step::Reschedule { pick, delay, expires_in }),
        3 => (pick(), any::<bool>()).prop_map(|(pick, renews)| Step::Replay { pick, renews }),
        2 => Just(Step::End),
        1 => Just(Step::Cleanup),
        4 => prop_oneof![6 => 1..4i64, 1 => Just(31 * 24), 1 => Just(91 * 24)]
            .prop_map(|hours| Step::Pass { hours }),
    ]
}

fn publish() -> impl Strategy<Value = Step> {
    (
        prop_oneof![4 => Just(0), 1 => Just(1usize)],
        proptest::option::weighted(0.7, 0..2u8),
        proptest::option::weighted(0.3, 0..2u8),
        prop_oneof![3 => Just(0), 1 => 1..4i64],
        proptest::option::weighted(0.3, 1..5i64),
        1..4u16,
        any::<bool>(),
    )
        .prop_map(
            |(kind, group, dedup, delay, expires_in, max_attempts, replaces)| {
                Step::Publish {
                    kind,
                    group,
                    dedup,
                    delay,
                    expires_in,
                    max_attempts,
                    // Without a key there is nothing to replace, and it is refused.
                    replaces: replaces && dedup.is_some(),
                }
            },
        )
}

fn lease() -> impl Strategy<Value = Step> {
    let from = prop_oneof![
        3 => Just(From::Start),
        4 => Just(From::On),
        1 => (0..64usize).prop_map(From::Back)
    ];
    let likely = || proptest::bool::weighted(0.7);
    let kinds = prop_oneof![4 => Just(2usize), 1 => Just(1)];
    (0..2usize, 1..4u32, 0..4u32, from, likely(), kinds).prop_map(
        |(worker, limit, window, from, says_held, kinds)| Step::Lease {
            worker,
            limit,
            window,
            from,
            says_held,
            kinds,
        },
    )
}

fn complete() -> impl Strategy<Value = Step> {
    let starts = proptest::option::of(0..64usize);
    (0..64usize, any::<bool>(), starts, any::<bool>()).prop_map(|(pick, all, starts, over)| {
        Step::Complete {
            pick,
            all,
            starts,
            over,
        }
    })
}

fn finalize() -> impl Strategy<Value = Step> {
    let end = prop_oneof![
        Just(End::Completed),
        Just(End::CompletedWithErrors),
        Just(End::Failed)
    ];
    (0..64usize, end, proptest::bool::weighted(0.2)).prop_map(|(pick, end, follow_up)| {
        Step::Finalize {
            pick,
            end,
            follow_up,
        }
    })
}
