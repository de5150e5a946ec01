//! The experiments. Each one creates a world, breaks something in it, repairs it, lets all events end, and
//! asks the checker.

mod async_commit;
mod blocked_threads;
mod busy_end;
mod cleanup_races;
mod clocks;
mod commit_order;
mod crash_points;
mod cut_handlers;
mod duplicate_ticks;
mod frozen_transaction;
mod frozen_worker;
mod held_group;
mod killed_server;
mod killed_workers;
mod large_payloads;
mod lost_lease;
mod outage;
mod poison;
mod refused_writes;
mod slower_pace;
mod two_queues;

use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture};

use crate::checker::{History, Violation};
use crate::figures::Figures;
use crate::fleet::{Fleet, worker};
use crate::world::World;

/// The size of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Together with all other tests.
    Quick,
    /// One round of `make torture`.
    Long,
}

impl Size {
    /// Returns one of two durations, in seconds.
    pub fn seconds(self, quick: u64, long: u64) -> Duration {
        Duration::from_secs(self.pick(quick, long))
    }

    pub fn pick<T>(self, quick: T, long: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Long => long,
        }
    }
}

type Run = fn(u64, Size) -> LocalBoxFuture<'static, Result<Figures, String>>;

/// An experiment and its name.
pub struct Experiment {
    pub name: &'static str,
    pub run: Run,
}

macro_rules! experiments {
    ($($module:ident::$function:ident),+ $(,)?) => {
        &[$(Experiment {
            name: stringify!($function),
            run: |seed, size| $module::$function(seed, size).boxed_local(),
        }),+]
    };
}

/// All experiments, the longest first.
pub static ALL: &[Experiment] = experiments![
    killed_workers::events_of_killed_workers_are_handled_once_more_and_in_order,
    two_queues::a_queue_beside_one_whose_workers_are_killed_notices_nothing,
    killed_server::a_server_that_crashes_under_load_keeps_what_it_acknowledged,
    cleanup_races::cleanup_replay_and_requeue_beside_finalizes_touch_only_what_they_may,
    clocks::a_servers_clock_that_jumps_costs_duplicates_and_nothing_else,
    clocks::a_workers_clock_that_is_a_day_off_changes_nothing,
    commit_order::a_groups_order_is_that_of_its_commits_however_two_publishers_race,
    frozen_worker::a_worker_frozen_beyond_its_lease_changes_nothing_when_it_goes_on,
    crash_points::a_worker_that_dies_at_a_set_point_costs_an_attempt_and_no_more,
    lost_lease::a_group_waits_for_its_event_that_a_lost_lease_has_taken,
    poison::one_in_a_hundred_that_kills_its_worker_takes_none_of_the_others_with_it,
    poison::an_event_that_kills_its_worker_takes_none_of_thousands_with_it,
    large_payloads::payloads_of_a_megabyte_are_drained_in_little_memory,
    refused_writes::a_disk_that_is_full_for_a_while_costs_no_event_more_than_two_attempts,
    refused_writes::a_server_without_memory_for_a_while_costs_no_event_more_than_two_attempts,
    outage::a_service_that_is_down_while_workers_are_killed_spends_no_attempt_of_those_that_wait,
    refused_writes::a_trigger_that_refuses_an_event_costs_no_other_event_an_attempt,
    held_group::a_producer_that_holds_a_group_keeps_only_that_groups_parents_waiting,
    blocked_threads::handlers_that_block_every_thread_stop_neither_renewals_nor_the_runs_end,
    frozen_transaction::a_frozen_workers_transaction_keeps_only_its_own_event_waiting,
    slower_pace::a_worker_that_dies_when_its_events_have_turned_slow_charges_few_of_them,
    slower_pace::negative_control_starts_that_are_not_taken_back_charge_many,
    cut_handlers::handlers_that_are_cut_off_in_a_statement_spoil_no_connection,
    busy_end::an_event_does_not_end_before_the_earlier_one_of_its_group_whose_end_waits,
    duplicate_ticks::ten_ticks_at_once_start_each_event_once,
    async_commit::negative_control_async_commit_loses_acknowledged_events,
];
