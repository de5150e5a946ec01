//! What a script is made of.

use proptest::prelude::*;

/// One step. Hours are the unit of time: nothing in a script takes long enough to blur them. What a `pick`
/// means is said by the model: one of all leases ever, one of all ids ever.
#[derive(Debug, Clone)]
pub enum Step {
    Publish {
        group: Option<u8>,
        dedup: Option<u8>,
        delay: i64,
        expires_in: Option<i64>,
        max_attempts: u16,
    },
    Lease {
        worker: usize,
        limit: u32,
        /// How many more rows than the limit are looked at.
        extra: u32,
        /// Whether the worker says what it holds.
        says_held: bool,
        /// How many of the first events it says to know, and whether for all that may stand behind or for none.
        knows: Option<(usize, bool)>,
    },
    Promote,
    Finalize {
        pick: usize,
        end: End,
        follow_up: bool,
    },
    Retry {
        pick: usize,
        delay: i64,
    },
    Release {
        pick: usize,
    },
    Renew {
        pick: usize,
    },
    Requeue {
        pick: usize,
    },
    Cancel {
        group: u8,
    },
    Skip {
        group: u8,
    },
    Replay {
        pick: usize,
        /// Gives passed deadlines anew.
        renews: bool,
    },
    Sweep,
    Cleanup,
    /// Time passes.
    Pass {
        hours: i64,
    },
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
        5 => finalize(),
        4 => (pick(), few_hours()).prop_map(|(pick, delay)| Step::Retry { pick, delay }),
        3 => pick().prop_map(|pick| Step::Release { pick }),
        2 => pick().prop_map(|pick| Step::Renew { pick }),
        3 => pick().prop_map(|pick| Step::Requeue { pick }),
        2 => (0..2u8).prop_map(|group| Step::Cancel { group }),
        2 => (0..2u8).prop_map(|group| Step::Skip { group }),
        3 => (pick(), any::<bool>()).prop_map(|(pick, renews)| Step::Replay { pick, renews }),
        2 => Just(Step::Sweep),
        1 => Just(Step::Cleanup),
        4 => prop_oneof![6 => 1..4i64, 1 => Just(31 * 24), 1 => Just(91 * 24)]
            .prop_map(|hours| Step::Pass { hours }),
    ]
}

fn publish() -> impl Strategy<Value = Step> {
    (
        proptest::option::of(0..2u8),
        proptest::option::weighted(0.3, 0..2u8),
        prop_oneof![3 => Just(0), 1 => 1..4i64],
        proptest::option::weighted(0.3, 1..5i64),
        1..4u16,
    )
        .prop_map(
            |(group, dedup, delay, expires_in, max_attempts)| Step::Publish {
                group,
                dedup,
                delay,
                expires_in,
                max_attempts,
            },
        )
}

fn lease() -> impl Strategy<Value = Step> {
    let knows = proptest::option::of((0..5usize, proptest::bool::weighted(0.8)));
    (0..2usize, 1..4u32, 0..3u32, any::<bool>(), knows).prop_map(
        |(worker, limit, extra, says_held, knows)| Step::Lease {
            worker,
            limit,
            extra,
            says_held,
            knows,
        },
    )
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
