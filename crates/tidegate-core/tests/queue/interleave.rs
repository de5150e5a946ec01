//! Statements that meet: two or three sessions, one of them stopped in the middle of its transaction or
//! of its statement. They are as atomic as the model of the lease protocol takes them to be
//! (`model/protocol.rs` of `tidegate`): a second writer waits for the row and looks again, a lease does not
//! wait.
//!
//! Some meetings are shown elsewhere: those on which a guard of the lease hangs (`scenes.rs`); two publishes
//! to a group and a lease beside them, two finalizers of one lease (`queue.rs`); two replays, a replay and a
//! publish, a replay and the cleanup, a cancel behind a finalize (`operate.rs`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::probe::{
    act, completion_of, disorder, end_of, expire_leases, lease_request, live, number, probe,
    probe_sessions, publish, publish_acts, requeue, retry_of, start_leases, sweep,
};
use test_support::{self as support, execute, wait_for_a_lock};
use tidegate_core::connect::{Client, Queryable};
use tidegate_core::lease::Lease;
use tidegate_core::progress::{Progress, Status};
use tidegate_core::queue::{self, Completion, Finalization, LeaseRequest};
use tidegate_core::{Error, NewEvent};
use tokio::sync::Barrier;
use uuid::Uuid;

const MINUTE: Duration = Duration::from_mins(1);

/// Leases up to `limit` ready events for a worker of their own.
async fn lease(client: &impl Queryable, limit: u32) -> Vec<Lease> {
    lease_of(client, Uuid::new_v4(), limit).await
}

async fn lease_of(client: &impl Queryable, worker: Uuid, limit: u32) -> Vec<Lease> {
    let request = LeaseRequest {
        limit,
        worker,
        ..lease_request()
    };
    let batch = queue::lease(client, &request).await.unwrap();
    batch.events.iter().map(|event| event.lease).collect()
}

fn ids(leases: &[Lease]) -> Vec<i64> {
    leases.iter().map(|lease| lease.id).collect()
}

fn completed(lease: Lease) -> Finalization {
    Finalization::new(lease, Status::Completed)
}

async fn finalize(client: &impl Queryable, lease: Lease) -> bool {
    let flushed = support::finalize(client, &[completed(lease)])
        .await
        .unwrap();
    !flushed.ended.is_empty()
}

/// Ids of the events that the cleanup's sweep ended.
async fn sweep_events(client: &impl Queryable) -> Vec<i64> {
    let sql = "SELECT expired || abandoned FROM tidegate.sweep_events(0)";
    client.conn().query_one(sql, &[]).await.unwrap().get(0)
}

/// Without a wait for a lock, which a lease and a sweep never have.
async fn at_once<T>(work: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(support::PATIENCE, work).await;
    answer.expect("no lock is waited for")
}

fn grouped(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| act(&n.to_string()).group("g")).collect()
}

async fn publish_group(client: &Client, count: usize) -> Vec<i64> {
    publish(client, grouped(count)).await
}

// lease and lease

#[tokio::test]
async fn i6_what_an_uncommitted_lease_has_taken_another_one_passes_over_at_once() {
    let (_db, [mut one, two]) = probe_sessions().await;
    let published = publish_acts(&two, 5).await;
    let transaction = one.transaction().await.unwrap();
    let first = lease(&transaction, 3).await;
    assert_eq!(ids(&first), published[..3]);
    let second = at_once(lease(&two, 10)).await;
    assert_eq!(ids(&second), published[3..]);
    transaction.commit().await.unwrap();
    assert!(lease(&two, 10).await.is_empty());
    assert!(finalize(&two, first[0]).await);
}

#[tokio::test]
async fn i4_behind_what_an_uncommitted_lease_has_taken_nothing_of_the_group_is_leased() {
    let (_db, [mut one, two]) = probe_sessions().await;
    let published = publish_group(&two, 3).await;
    let transaction = one.transaction().await.unwrap();
    assert_eq!(lease(&transaction, 1).await.len(), 1);
    assert!(at_once(lease(&two, 10)).await.is_empty());
    transaction.rollback().await.unwrap();
    let all = lease(&two, 10).await;
    assert_eq!(ids(&all), published);
}

#[tokio::test]
async fn i6_of_eight_sessions_that_lease_at_once_each_event_goes_to_one() {
    let (db, client) = probe().await;
    let published = publish_acts(&client, 400).await;
    let start = Arc::new(Barrier::new(8));
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let (client, start) = (db.client().await, start.clone());
        sessions.push(tokio::spawn(async move {
            start.wait().await;
            let mut leased = Vec::new();
            // An empty answer is not the end: the rest may have been in others' hands at that moment.
            while live_and_free(&client).await > 0 {
                leased.extend(ids(&lease(&client, 7).await));
            }
            leased
        }));
    }
    let mut leased = Vec::new();
    for session in sessions {
        leased.extend(session.await.unwrap());
    }
    leased.sort_unstable();
    assert_eq!(leased, published);
    let once = "SELECT count(*) FROM tidegate.events WHERE attempts = 1";
    assert_eq!(number(&client, once).await, 400);
}

async fn live_and_free(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.events WHERE lease_token IS NULL";
    number(client, sql).await
}

/// Changes of a group's first event that are committed after a lease has begun its scan and before it reaches
/// the row, and which of the group's three it may then lease.
const CHANGES: [(&str, &str, &[usize]); 4] = [
    (
        "leased by another worker",
        "INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at, clear_to, as_of)
         SELECT gen_random_uuid(), gen_random_uuid(), int8multirange(int8range($1, $1, '[]')), $1, ARRAY[hashtext('g')],
                t, t, t + interval '1 day', 0, pg_current_xact_id() FROM clock_timestamp() AS t",
        &[],
    ),
    (
        "to be retried tomorrow",
        "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 day' WHERE id = $1",
        &[],
    ),
    (
        "gone",
        "DELETE FROM tidegate.event_queue WHERE id = $1",
        &[1, 2],
    ),
    (
        "corrected, so that it lies elsewhere",
        "UPDATE tidegate.event_queue SET max_attempts = max_attempts + 1 WHERE id = $1",
        &[0, 1, 2],
    ),
];

/// A lease stops when its scan has its snapshot and has not locked its first row, as long as the lock 1 is
/// held.
const STOP: &str = "
    CREATE FUNCTION pass() RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN true; END $$;
    DO $$
    DECLARE
        source constant text := pg_get_functiondef('tidegate.choose'::regproc);
        stopped constant text := replace(source, 'WHERE NOT q.delayed AND q.id > start AND q.id <= upto
               AND CASE', 'WHERE NOT q.delayed AND q.id > start AND q.id <= upto AND public.pass()
               AND CASE');
    BEGIN
        ASSERT source <> stopped;
        EXECUTE stopped;
    END $$;
    SELECT pg_advisory_lock(1)";

#[tokio::test]
async fn a_lease_tells_of_the_failure_for_which_an_event_went_back_while_it_began() {
    let (_db, [mut gatekeeper, leaser, other]) = probe_sessions().await;
    let published = publish_acts(&other, 1).await;
    let gate = gatekeeper.transaction().await.unwrap();
    execute(&gate, "LOCK TABLE tidegate.event_kind").await;
    let stopped = tokio::spawn(async move { queue::lease(&leaser, &lease_request()).await });
    wait_for_a_lock(&other).await;
    let failed = "SELECT tidegate.report_service('ship', gen_random_uuid(), false, 1, '503', NULL, '{}', false)";
    execute(&gate, failed).await;
    gate.commit().await.unwrap();
    let batch = stopped.await.unwrap().unwrap();
    assert_eq!(batch.events[0].lease.id, published[0]);
    assert!(batch.watched.iter().any(|service| service.troubled));
}

#[tokio::test]
async fn i4_i6_a_lease_looks_again_at_a_row_that_changed_after_it_began_and_passes_none_that_stays()
{
    for (name, change, leasable) in CHANGES {
        let (_db, [gatekeeper, leaser, other]) = probe_sessions().await;
        let published = publish_group(&other, 3).await;
        let free = publish_acts(&other, 1).await;
        gatekeeper.batch_execute(STOP).await.unwrap();
        let stopped = tokio::spawn(async move { lease(&leaser, 10).await });
        wait_for_a_lock(&gatekeeper).await;
        other.execute(change, &[&published[0]]).await.unwrap();
        execute(&gatekeeper, "SELECT pg_advisory_unlock(1)").await;
        let taken = stopped.await.unwrap();
        let leasable = leasable.iter().map(|at| published[*at]);
        let expected: Vec<i64> = leasable.chain(free).collect();
        assert_eq!(ids(&taken), expected, "{name}");
        assert_eq!(disorder(&other).await, [""; 0], "{name}");
    }
}

// lease and finalize

#[tokio::test]
async fn i4_a_lease_passes_over_what_is_being_finalized_and_what_stands_behind_it() {
    let (_db, [mut worker, other]) = probe_sessions().await;
    let published = publish_group(&other, 2).await;
    let held = lease(&worker, 1).await[0];
    let transaction = worker.transaction().await.unwrap();
    assert!(finalize(&transaction, held).await);
    // The lease has expired: only the write under way keeps it from being broken.
    expire_leases(&other).await;
    assert_eq!(at_once(sweep(&other)).await, 0);
    assert!(at_once(lease(&other, 10)).await.is_empty());
    transaction.commit().await.unwrap();
    let behind = lease(&other, 10).await;
    assert_eq!(ids(&behind), published[1..]);
}

/// What a worker may write under its lease.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Write {
    Complete,
    Finalize,
    Retry,
    HandBack,
    Renew,
    Progress,
}

impl Write {
    const ALL: [Self; 6] = [
        Self::Complete,
        Self::Finalize,
        Self::Retry,
        Self::HandBack,
        Self::Renew,
        Self::Progress,
    ];

    /// Whether it found what it is about.
    async fn send(self, client: &Client, worker: Uuid, lease: Lease) -> Result<bool, Error> {
        Ok(match self {
            Self::Complete => {
                let completed = queue::complete(client, &[completion_of(lease)]).await?;
                completed[0].ended == 1
            }
            Self::Finalize => finalize(client, lease).await,
            Self::Retry => {
                let retried = retry_of(lease);
                !queue::retry(client, worker, &[retried], &[])
                    .await?
                    .left
                    .is_empty()
            }
            Self::HandBack => !queue::hand_back(client, worker, &[lease])
                .await?
                .left
                .is_empty(),
            Self::Renew => {
                let renewed = queue::renew(client, worker, &[lease.token], MINUTE).await;
                !renewed?.is_empty()
            }
            Self::Progress => {
                let saved = queue::save_progress(client, lease, &Progress::default()).await;
                match saved {
                    Err(Error::LeaseLost(_)) => false,
                    other => other.map(|()| true)?,
                }
            }
        })
    }
}

/// A worker's write that waits for a transaction which takes its event away, and sees how that ends: whether
/// the write found its event, and who then holds it, with how many attempts.
async fn behind_a_thief(write: Write, thief_commits: bool) -> (bool, String) {
    let (_db, [client, mut thief, witness]) = probe_sessions().await;
    publish_acts(&witness, 1).await;
    let worker = Uuid::new_v4();
    let stale = lease_of(&client, worker, 1).await[0];
    let transaction = thief.transaction().await.unwrap();
    expire_leases(&transaction).await;
    assert_eq!(sweep(&transaction).await, 1);
    let stolen = lease(&transaction, 1).await[0];
    let waiting = tokio::spawn(async move { write.send(&client, worker, stale).await.unwrap() });
    wait_for_a_lock(&witness).await;
    if thief_commits {
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    let found = waiting.await.unwrap();
    let holder =
        "SELECT coalesce(max(lease_token::text || ' ' || attempts), '') FROM tidegate.events";
    let holder: String = witness.query_one(holder, &[]).await.unwrap().get(0);
    let name = |lease: Lease| lease.token.to_string();
    let holder = holder
        .replace(&name(stolen), "thief")
        .replace(&name(stale), "worker");
    (found, holder)
}

#[tokio::test]
async fn i5_a_write_that_waited_behind_a_new_lease_of_its_event_changes_nothing() {
    for write in Write::ALL {
        let seen = behind_a_thief(write, true).await;
        // The lapse was charged; the thief has not started what lapsed.
        assert_eq!(seen, (false, "thief 1".to_owned()), "{write:?}");
    }
}

#[tokio::test]
async fn i5_a_write_that_waited_for_a_lease_that_was_rolled_back_is_still_the_holders() {
    for write in Write::ALL {
        let (found, holder) = behind_a_thief(write, false).await;
        let kept = matches!(write, Write::Renew | Write::Progress);
        assert!(found, "{write:?}");
        assert_eq!(holder == "worker 1", kept, "{write:?}: {holder:?}");
    }
}

/// The ends of an event that a handler's transaction may send, and its progress.
const OF_A_HANDLER: [&str; 3] = [
    "SELECT tidegate.complete_held($1::bigint, $2::uuid)",
    "SELECT tidegate.finalize_leased($2::uuid, ARRAY[$1::bigint], ARRAY['COMPLETED'], ARRAY[true], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], true)",
    "SELECT tidegate.save_progress($1::bigint, $2::uuid, '{\"handlers\": {\"act\": {}}}')",
];

#[tokio::test]
async fn i5_what_a_handler_writes_behind_a_give_back_of_its_event_changes_nothing() {
    for sql in OF_A_HANDLER {
        let (_db, [mut flushing, handling, witness]) = probe_sessions().await;
        publish_acts(&witness, 2).await;
        let worker = Uuid::new_v4();
        let held = lease_of(&witness, worker, 2).await;
        let [lease, other] = held[..] else {
            panic!("two were published: {held:?}")
        };
        let transaction = flushing.transaction().await.unwrap();
        let given_back = queue::retry(&transaction, worker, &[retry_of(lease)], &[]).await;
        assert_eq!(given_back.unwrap().left, [lease.id]);
        let handler = async {
            let handling = handling.conn();
            let sent = handling.query_one(sql, &[&lease.id, &lease.token]).await;
            sent.is_ok_and(|row| row.try_get(0).unwrap_or(true))
        };
        let commit = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            transaction.commit().await.unwrap();
        };
        let (wrote, ()) = tokio::join!(handler, commit);
        assert!(!wrote, "{sql}");
        let free = "SELECT count(*) FROM tidegate.events WHERE status = 'PENDING' AND attempts = 1 AND progress IS NULL";
        assert_eq!(number(&witness, free).await, 1, "{sql}");
        // What is still held can be written like this.
        let witness = witness.conn();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&other.id, &other.token];
        witness.query_one(sql, &values).await.unwrap();
    }
}

#[tokio::test]
async fn i5_an_event_that_a_handlers_transaction_is_ending_is_not_given_back() {
    let (_db, [mut handling, flushing, witness]) = probe_sessions().await;
    publish_acts(&witness, 3).await;
    let worker = Uuid::new_v4();
    let held = lease_of(&witness, worker, 3).await;
    let transaction = handling.transaction().await.unwrap();
    let ends = transaction.conn();
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&held[0].id, &held[0].token];
    ends.query_one(OF_A_HANDLER[0], &values).await.unwrap();
    let both = [retry_of(held[0]), retry_of(held[1])];
    let given_back = at_once(queue::retry(&flushing, worker, &both, &[])).await;
    let given_back = given_back.unwrap();
    assert_eq!(
        given_back.left,
        [held[1].id],
        "its lease is in use, and it goes back"
    );
    assert_eq!(given_back.busy, [held[0].id]);
    let released = at_once(queue::hand_back(&flushing, worker, &[held[2]])).await;
    assert_eq!(released.unwrap().left, [held[2].id]);
    transaction.commit().await.unwrap();
    assert_eq!(live(&witness).await, 2);
}

#[tokio::test]
async fn the_two_sessions_of_a_worker_do_not_wait_for_each_other() {
    let (_db, [mut writing, leasing]) = probe_sessions().await;
    let published = publish_group(&leasing, 3).await;
    let worker = Uuid::new_v4();
    let held = lease_of(&leasing, worker, 2).await;
    let token = held[0].token;
    let transaction = writing.transaction().await.unwrap();
    let completion = Completion {
        start_to: Some(held[1].id),
        ..completion_of(held[0])
    };
    let completed = queue::complete(&transaction, &[completion]).await.unwrap();
    assert_eq!((completed[0].ended, completed[0].cuts), (1, Some(0)));
    let request = LeaseRequest {
        worker,
        held: &[token],
        over: &[],
        ..lease_request()
    };
    let batch = at_once(queue::lease(&leasing, &request)).await.unwrap();
    assert_eq!(batch.events[0].lease.id, published[2]);
    transaction.commit().await.unwrap();
}

// renew

#[tokio::test]
async fn a_sweep_passes_over_a_lease_that_is_being_renewed_and_finds_it_alive_afterwards() {
    let (_db, [mut worker, sweeper]) = probe_sessions().await;
    publish_acts(&sweeper, 1).await;
    let name = Uuid::new_v4();
    let held = lease_of(&sweeper, name, 1).await;
    expire_leases(&sweeper).await;
    let transaction = worker.transaction().await.unwrap();
    let tokens = [held[0].token];
    let renewed = queue::renew(&transaction, name, &tokens, MINUTE).await;
    assert_eq!(renewed.unwrap(), [(tokens[0], 0)]);
    assert_eq!(at_once(sweep(&sweeper)).await, 0);
    transaction.commit().await.unwrap();
    assert_eq!(sweep(&sweeper).await, 0);
    assert!(finalize(&sweeper, held[0]).await);
}

#[tokio::test]
async fn a_renewal_that_waited_for_a_sweep_says_that_the_lease_is_lost() {
    let (_db, [worker, mut sweeper, witness]) = probe_sessions().await;
    publish_acts(&witness, 1).await;
    let name = Uuid::new_v4();
    let held = lease_of(&worker, name, 1).await;
    expire_leases(&witness).await;
    let transaction = sweeper.transaction().await.unwrap();
    assert_eq!(sweep(&transaction).await, 1);
    let tokens = [held[0].token];
    let waiting = tokio::spawn(async move { queue::renew(&worker, name, &tokens, MINUTE).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().is_empty());
}

// requeue

#[tokio::test]
async fn i6_a_lease_passes_over_what_is_being_requeued_and_takes_it_afterwards() {
    let (_db, [mut operator, worker]) = probe_sessions().await;
    let id = publish_acts(&worker, 1).await[0];
    let old = lease(&worker, 1).await[0];
    let transaction = operator.transaction().await.unwrap();
    assert_eq!(requeue(&transaction, id).await["requeued"], 1);
    assert!(at_once(lease(&worker, 1)).await.is_empty());
    transaction.commit().await.unwrap();
    let new = lease(&worker, 1).await;
    assert_eq!(ids(&new), [id]);
    assert!(!finalize(&worker, old).await);
    assert!(finalize(&worker, new[0]).await);
}

#[tokio::test]
async fn d14_a_requeue_that_waited_for_a_lease_under_way_takes_the_event_from_it() {
    let (_db, [operator, mut worker, witness]) = probe_sessions().await;
    let id = publish_group(&witness, 1).await[0];
    let transaction = worker.transaction().await.unwrap();
    let taken = lease(&transaction, 1).await[0];
    let waiting = tokio::spawn(async move { requeue(&operator, id).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap()["requeued"], 1);
    assert!(!finalize(&worker, taken).await);
    let anew = lease(&witness, 10).await;
    assert_eq!(ids(&anew), [id]);
    assert!(finalize(&witness, anew[0]).await);
    assert_eq!(live(&witness).await, 0);
}

#[tokio::test]
async fn d14_i5_a_requeue_takes_the_events_behind_along_and_the_worker_learns_of_it() {
    let (_db, [operator, worker]) = probe_sessions().await;
    let published = publish_group(&worker, 2).await;
    let free = publish_acts(&worker, 1).await[0];
    let name = Uuid::new_v4();
    let held = lease_of(&worker, name, 10).await;
    assert_eq!(requeue(&operator, published[0]).await["requeued"], 1);
    let tokens = [held[0].token];
    let left = queue::in_hand(&worker, &tokens).await.unwrap();
    assert_eq!(left.iter().map(|held| held.id).collect::<Vec<_>>(), [free]);
    sweep(&operator).await;
    let renewed = queue::renew(&worker, name, &tokens, MINUTE).await;
    assert_eq!(renewed.unwrap(), [(tokens[0], 1)]);
    let left: Vec<i64> = queue::in_hand(&worker, &tokens)
        .await
        .unwrap()
        .iter()
        .map(|held| held.id)
        .collect();
    assert_eq!(left, [free]);
    // Its attempt counts, and that of the one behind, which may have begun. (That one may have one more.)
    let attempts = "SELECT string_agg(attempts::text, ',' ORDER BY id) FROM tidegate.event_queue";
    let attempts: String = worker.query_one(attempts, &[]).await.unwrap().get(0);
    assert_eq!(attempts, "1,1,0");
    assert_eq!(ids(&lease(&worker, 10).await), published);
}

#[tokio::test]
async fn i7_a_requeue_that_waited_for_a_finalize_leaves_the_event_in_the_log() {
    let (_db, [operator, mut worker, witness]) = probe_sessions().await;
    let id = publish_acts(&witness, 1).await[0];
    let held = lease(&worker, 1).await[0];
    let transaction = worker.transaction().await.unwrap();
    assert!(finalize(&transaction, held).await);
    let waiting = tokio::spawn(async move { requeue(&operator, id).await });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let report = waiting.await.unwrap();
    assert_eq!(report["requeued"], 0);
    assert_eq!(
        report["skipped"][0]["reason"],
        "ended as COMPLETED; use replay"
    );
    assert_eq!(live(&witness).await, 0);
}

// cancel

#[tokio::test]
async fn i5_a_finalize_beside_a_cancel_waits_for_nothing_and_claims_nothing() {
    let (_db, [mut operator, worker, witness]) = probe_sessions().await;
    let id = publish_group(&witness, 1).await[0];
    let held = lease(&worker, 1).await[0];
    let transaction = operator.transaction().await.unwrap();
    let cancel = "SELECT (tidegate.unblock('g', 'cancel', 'nobody needs it')->>'id')::bigint";
    let cancelled = transaction.query_one(cancel, &[]).await.unwrap();
    assert_eq!(cancelled.get::<_, i64>(0), id);
    assert!(
        !at_once(finalize(&worker, held)).await,
        "it waits for nobody"
    );
    transaction.commit().await.unwrap();
    assert!(!finalize(&worker, held).await);
    let claimed = queue::finished_under(&worker, &[held]).await.unwrap();
    assert!(claimed.is_empty());
    assert_eq!(end_of(&witness, id).await, "FAILED 1 cancelled");
}

// publish

#[tokio::test]
async fn a_publish_with_the_key_of_an_event_that_is_being_finalized_waits_and_is_a_new_event() {
    let (_db, [mut worker, publisher, witness]) = probe_sessions().await;
    let first = queue::publish(&witness, &act("x").dedup("d"))
        .await
        .unwrap();
    let held = lease(&worker, 1).await[0];
    let transaction = worker.transaction().await.unwrap();
    assert!(finalize(&transaction, held).await);
    let waiting = tokio::spawn(async move {
        queue::publish(&publisher, &act("x").dedup("d"))
            .await
            .unwrap()
    });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(second.created && second.id > first.id, "{second:?}");
}

#[tokio::test]
async fn b10_a_publisher_that_gives_up_leaves_no_gap_that_its_group_waits_for() {
    let (_db, [mut one, two, witness]) = probe_sessions().await;
    let transaction = one.transaction().await.unwrap();
    queue::publish(&transaction, &act("given up").group("g"))
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { publish_group(&two, 1).await });
    wait_for_a_lock(&witness).await;
    transaction.rollback().await.unwrap();
    let published = waiting.await.unwrap();
    assert_eq!(ids(&lease(&witness, 10).await), published);
}

// cleanup

/// An event on its last attempt, leased; its lease has lapsed.
async fn abandoned(client: &Client) -> Lease {
    let last = act("last").group("g").max_attempts(1);
    queue::publish(client, &last).await.unwrap();
    let held = lease(client, 1).await[0];
    start_leases(client).await;
    expire_leases(client).await;
    held
}

#[tokio::test]
async fn i7_the_sweep_passes_over_what_is_being_finalized_or_requeued() {
    let (_db, [mut other, cleaner]) = probe_sessions().await;
    let held = abandoned(&cleaner).await;
    let transaction = other.transaction().await.unwrap();
    assert!(finalize(&transaction, held).await);
    assert!(at_once(sweep_events(&cleaner)).await.is_empty());
    transaction.rollback().await.unwrap();
    let transaction = other.transaction().await.unwrap();
    requeue(&transaction, held.id).await;
    assert!(at_once(sweep_events(&cleaner)).await.is_empty());
    transaction.commit().await.unwrap();
    assert!(
        sweep_events(&cleaner).await.is_empty(),
        "it has an attempt again"
    );
    let again = lease(&cleaner, 1).await;
    assert_eq!(ids(&again), [held.id]);
}

#[tokio::test]
async fn i7_of_a_sweep_and_a_finalize_or_a_requeue_behind_it_one_ends_the_event() {
    let (db, [mut cleaner, witness]) = probe_sessions().await;
    for requeues in [false, true] {
        let held = abandoned(&witness).await;
        let other = db.client().await;
        let transaction = cleaner.transaction().await.unwrap();
        assert_eq!(sweep_events(&transaction).await, [held.id]);
        let waiting = tokio::spawn(async move {
            if requeues {
                requeue(&other, held.id).await["requeued"] != 0
            } else {
                finalize(&other, held).await
            }
        });
        wait_for_a_lock(&witness).await;
        transaction.commit().await.unwrap();
        assert!(!waiting.await.unwrap(), "requeues: {requeues}");
        let end = "FAILED 1 lapsed abandoned";
        assert_eq!(end_of(&witness, held.id).await, end);
    }
    let ends = number(&witness, "SELECT count(*) FROM tidegate.event_log").await;
    assert_eq!((ends, live(&witness).await), (2, 0));
}

// many at once

#[tokio::test]
async fn b10_i4_thirty_two_workers_on_one_group_take_it_in_order_and_each_event_once() {
    let (db, client) = probe().await;
    let published = publish_group(&client, 60).await;
    let start = Arc::new(Barrier::new(32));
    let taken = Arc::new(Mutex::new(Vec::new()));
    let mut workers = Vec::new();
    for _ in 0..32 {
        let (client, start, taken) = (db.client().await, start.clone(), taken.clone());
        workers.push(tokio::spawn(async move {
            start.wait().await;
            while live(&client).await > 0 {
                let run = lease(&client, 3).await;
                // The run is noted before it ends; nobody can have leased the next one until then.
                taken.lock().unwrap().extend(ids(&run));
                for held in run.into_iter().map(completed) {
                    // Somebody's lease may just look at the event, for long on a slow machine.
                    let ended = async || support::finalize(&client, &[&held]).await.unwrap();
                    while !ended().await.busy.is_empty() {}
                }
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(*taken.lock().unwrap(), published);
    assert_eq!(disorder(&client).await, [""; 0]);
}

/// A batch with a duplicate stops between its insert and its look for the first event, as long as the lock 1
/// is held.
const STOP_BATCH: &str = "
    DO $$
    DECLARE
        source constant text := pg_get_functiondef('tidegate.publish_children'::regproc);
        stopped constant text := replace(source, 'INTO inserted_ids FROM inserted;',
                                         'INTO inserted_ids FROM inserted; PERFORM pg_advisory_xact_lock_shared(1);');
    BEGIN
        ASSERT source <> stopped;
        EXECUTE stopped;
    END $$;
    SELECT pg_advisory_lock(1)";

#[tokio::test]
async fn b10_a_batch_keeps_its_order_and_its_parent_when_the_first_event_with_a_key_ends_beside_it()
{
    let (_db, [gatekeeper, publisher, worker]) = probe_sessions().await;
    let first = queue::publish(&worker, &act("first").dedup("d")).await;
    let held = lease(&worker, 1).await[0];
    assert_eq!(held.id, first.unwrap().id);
    gatekeeper.batch_execute(STOP_BATCH).await.unwrap();
    let stopped = tokio::spawn(async move {
        let publish = "SELECT abs(id), id > 0 FROM tidegate.publish_children(
                           array_fill('act'::text, ARRAY[4]), '{}', array_fill('g'::text, ARRAY[4]), ARRAY[NULL, 'd', NULL, 'e'],
                           '{}', '{}', '{}', '{}', array_fill($1::bigint, ARRAY[4]), '{}'), unnest(ids) AS id";
        let rows = publisher.query(publish, &[&77_i64]).await.unwrap();
        let told = rows.iter().map(|row| (row.get(0), row.get(1)));
        told.collect::<Vec<(i64, bool)>>()
    });
    wait_for_a_lock(&gatekeeper).await;
    assert!(finalize(&worker, held).await);
    execute(&gatekeeper, "SELECT pg_advisory_unlock(1)").await;
    let stored = stopped.await.unwrap();
    assert!(
        stored.iter().all(|(_, created)| *created) && stored.is_sorted_by_key(|(id, _)| *id),
        "{stored:?}"
    );
    let stored = "SELECT id, dedup_key FROM tidegate.event_queue WHERE group_key = 'g' AND parent_id = 77 ORDER BY id";
    let stored = worker.query(stored, &[]).await.unwrap();
    let stored: Vec<(i64, Option<&str>)> =
        stored.iter().map(|row| (row.get(0), row.get(1))).collect();
    let keys = [None, Some("d"), None, Some("e")];
    let ids = stored.iter().map(|(id, _)| *id);
    assert_eq!(stored, ids.zip(keys).collect::<Vec<_>>());
}
