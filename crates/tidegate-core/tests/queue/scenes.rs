//! Scenes in which the order of a group, or the count of an attempt, hangs on one guard of the lease protocol
//! (`migrations/queue/V0003__lease.sql`). Each is played twice: as the protocol is, where all is well, and
//! with its guard taken out, where it goes wrong. So no guard is there for nothing, and the questions that
//! watch over the order, `unordered_leases()` and `unmarked_events()`, find what they are for.

use std::time::Duration;

use test_support::probe::{
    Probe, act, completion_of, disorder, expire_leases, lease_request, live, number, probe,
    requeue, retry_of,
};
use test_support::{TestDb, execute, wait_for_a_lock, wait_until};
use tidegate_core::connect::{Client, Queryable};
use tidegate_core::lease::Lease;
use tidegate_core::queue::{self, Completion, LeaseRequest, Walk};
use tidegate_core::{Event, NewEvent};
use uuid::Uuid;

const ONE: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

/// A function of the protocol, a piece of it, and what stands in the piece's place when its guard is taken
/// out.
type Guard = (&'static str, &'static str, &'static str);

struct Scene {
    db: TestDb,
    client: Client,
}

impl Scene {
    async fn new(without: Option<Guard>) -> Self {
        let (db, client) = probe().await;
        // So that a walk may have begun before the first event: an id that no event has.
        number(&client, "SELECT nextval('tidegate.event_queue_id_seq')").await;
        if let Some((function, guard, without)) = without {
            let source = format!("SELECT pg_get_functiondef('tidegate.{function}'::regproc)");
            let source: String = client.query_one(&source, &[]).await.unwrap().get(0);
            assert_eq!(source.matches(guard).count(), 1, "{function}: {guard}");
            let changed = source.replace(guard, without);
            client.batch_execute(&changed).await.unwrap();
        }
        Self { db, client }
    }

    /// Publishes an event of each of these groups; `""` is none.
    async fn publish<const N: usize>(&self, groups: [&str; N]) -> [i64; N] {
        let events = groups.map(|group| match group {
            "" => act("x"),
            group => act("x").group(group),
        });
        let published = queue::publish_batch(&self.client, &events).await.unwrap();
        let mut published = published.iter().map(|event| event.id);
        [(); N].map(|()| published.next().unwrap())
    }

    /// A walk that begins now; every transaction so far has ended.
    async fn walk(&self) -> Walk {
        Walk {
            after: 1,
            clear_to: Some(1),
            as_of: Some(self.now().await),
            low: None,
            connection: 0,
        }
    }

    /// As if the walk had met all that was written so far.
    async fn informed(&self, walk: Walk) -> Walk {
        let as_of = Some(self.now().await);
        Walk { as_of, ..walk }
    }

    async fn now(&self) -> i64 {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        number(&self.client, next).await
    }

    async fn lease(&self, request: LeaseRequest<'_>) -> Taken {
        lease(&self.client, request).await
    }

    /// What a worker that holds nothing leases, with a walk that begins now.
    async fn leased(&self, worker: Uuid) -> Taken {
        let walk = self.walk().await;
        self.lease(request(worker, &[], walk)).await
    }

    /// What the worker of this lease, which it holds, leases behind it.
    async fn leased_behind(&self, taken: &Taken) -> Taken {
        self.lease(request(ONE, &[taken.token], taken.walk)).await
    }
}

/// What a lease brought.
struct Taken {
    token: Uuid,
    ids: Vec<i64>,
    walk: Walk,
}

/// One of a lease's events.
fn of(lease: &Taken, id: i64) -> Lease {
    Lease {
        id,
        token: lease.token,
    }
}

async fn lease(client: &impl Queryable, request: LeaseRequest<'_>) -> Taken {
    let batch = queue::lease(client, &request).await.unwrap();
    Taken {
        token: request.token,
        ids: batch.events.iter().map(|event| event.lease.id).collect(),
        walk: batch.walk,
    }
}

/// For this worker, which holds these leases, from where its walk stands.
fn request(worker: Uuid, held: &[Uuid], walk: Walk) -> LeaseRequest<'_> {
    LeaseRequest {
        worker,
        held,
        over: &[],
        walk,
        ..lease_request()
    }
}

async fn requeue_now(client: &Client, id: i64) {
    requeue(client, id).await;
    client
        .query_one("SELECT tidegate.apply_cuts()", &[])
        .await
        .unwrap();
}

/// The scene ends well with the guard, and not without.
async fn hangs_on(guard: Guard, scene: impl AsyncFn(&Scene) -> bool) {
    let with = Scene::new(None).await;
    assert!(scene(&with).await, "as the protocol is");
    assert_eq!(disorder(&with.client).await, [""; 0]);
    let without = Scene::new(Some(guard)).await;
    assert!(!scene(&without).await, "without {guard:?}");
}

/// As [`hangs_on`]; without the guard the order of a group is broken, and it shows.
async fn order_hangs_on(guard: Guard, scene: impl AsyncFn(&Scene) -> bool) {
    let shown = async |stage: &Scene| {
        let holds = scene(stage).await;
        let disorder = disorder(&stage.client).await;
        assert_eq!(holds, disorder.is_empty(), "{disorder:?}");
        holds
    };
    hangs_on(guard, shown).await;
}

/// A guard each: its function, the text that is it, and what stands there without it.
macro_rules! guards {
    ($($name:ident: $function:literal $with:literal => $without:literal;)+) => {
        $(const $name: Guard = ($function, $with, $without);)+
    };
}

guards! {
    YOUNG: "choose" "array_agg(s.group_key) FILTER (WHERE s.young AND s.group_key IS NOT NULL)" => "NULL::text[]";
    PASSED: "in_order" "p.keys, p.first," => "NULL::text[], p.first,";
    CLEARED: "in_order" "WHEN start > clear_to THEN" => "WHEN false THEN";
    STRAYS: "in_order" "WHERE q.stray AND q.group_key IS NOT NULL" => "WHERE false";
    BUSY: "in_order" "unnest(l.groups) AS h WHERE l.token NOT IN" => "unnest(l.groups) AS h WHERE false AND l.token NOT IN";
    HELD: "in_order" "WHERE l.token = ANY (held) AND" => "WHERE";
    OWN_LOCK: "in_order" "l.worker = in_order.worker FOR KEY SHARE SKIP LOCKED" => "l.worker = in_order.worker";
    SECOND_LOOK: "in_order" "sets.live - sets.own," => "'{}'::int8multirange,";
    ALONE: "choose" "kept := array_position(ids, first_suspect) - 1;" => "NULL;";
    FOLLOWERS: "hand_back" "b.id >= first.id AND b.id <@ own" => "b.id = first.id AND b.id <@ own";
    UNDER_WAY: "hand_back" "ORDER BY l.token FOR UPDATE;" => ";";
    FENCE: "complete" "WHERE l.token = tokens[n] FOR KEY SHARE;" => "WHERE l.token = tokens[n];";
    UNDER: "hand_back" "IF under IS NOT NULL THEN" => "IF false THEN";
    STARTED_BEHIND: "hand_back" "IF taken_away THEN\n        ran" => "IF false THEN\n        ran";
    OVER: "complete" "AND q.id < upper(r) OFFSET 0)) THEN" => "AND q.id < upper(r) AND false)) THEN";
    ALL_OR_NONE: "sweep" "OR cardinality(tokens) < (SELECT count(*) FROM tidegate.lease AS o WHERE o.worker = dead)" => "";
    STARTED: "lapse" "e.id <= l.started_to AND" => "";
    TAKEN: "complete" "PERFORM tidegate.refuse_new_cuts(tokens, done);" => "";
    TAKEN_ALONE: "complete_held" "c.id = complete_held.id)" => "false)";
}

#[tokio::test]
async fn i4_b10_what_is_committed_behind_a_walk_bars_what_was_committed_with_it() {
    order_hangs_on(YOUNG, async |scene| {
        let mut late = scene.db.client().await;
        let late = late.transaction().await.unwrap();
        let of_the_group = act("x").group("g");
        queue::publish(&late, &of_the_group).await.unwrap();
        let passed = scene.publish(["", "h"]).await;
        let first = scene.lease(request(ONE, &[], Walk::default())).await;
        assert_eq!(first.ids, passed);
        let second = queue::publish(&late, &of_the_group).await.unwrap().id;
        late.commit().await.unwrap();
        let next = scene.leased_behind(&first).await;
        !next.ids.contains(&second)
    })
    .await;
}

/// An event of a kind that the leases below leave out.
async fn left_out(scene: &Scene, group: &str) {
    let event = NewEvent::raw("note", None).group(group);
    queue::publish(&scene.client, &event).await.unwrap();
}

/// The one kind that a program knows which leaves the other out.
fn one_kind() -> &'static [&'static str] {
    &Probe::KINDS[..1]
}

#[tokio::test]
async fn i4_what_a_lease_passes_bars_what_stands_behind_it() {
    order_hangs_on(PASSED, async |scene| {
        left_out(scene, "g").await;
        scene.publish(["g"]).await;
        let walk = scene.walk().await;
        let knowing = LeaseRequest {
            kinds: one_kind(),
            ..request(ONE, &[], walk)
        };
        scene.lease(knowing).await.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i4_what_an_earlier_lease_has_passed_bars_what_stands_behind_it() {
    order_hangs_on(CLEARED, async |scene| {
        left_out(scene, "g").await;
        let between = scene.publish([""; 5]).await;
        scene.publish(["g"]).await;
        let walk = scene.walk().await;
        let page = LeaseRequest {
            limit: 5,
            kinds: one_kind(),
            ..request(ONE, &[], walk)
        };
        let first = scene.lease(page).await;
        assert_eq!(first.ids, between);
        let held = [first.token];
        let next = LeaseRequest {
            kinds: one_kind(),
            ..request(ONE, &held, first.walk)
        };
        scene.lease(next).await.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i4_what_was_handed_back_behind_the_walk_bars_what_stands_behind_it() {
    order_hangs_on(STRAYS, async |scene| {
        let [first, _] = scene.publish(["g", ""]).await;
        let taken = scene.leased(ONE).await;
        let [second, free] = scene.publish(["g", ""]).await;
        queue::hand_back(&scene.client, ONE, &[of(&taken, first)])
            .await
            .unwrap();
        let walk = scene.informed(taken.walk).await;
        let next = scene.lease(request(ONE, &[taken.token], walk)).await;
        assert!(next.ids.contains(&free));
        !next.ids.contains(&second)
    })
    .await;
}

#[tokio::test]
async fn i4_b19_what_is_delayed_bars_what_stands_behind_it() {
    order_hangs_on(STRAYS, async |scene| {
        scene.publish([""]).await;
        let delayed = act("x").group("g").delay(Duration::from_mins(1));
        queue::publish(&scene.client, &delayed).await.unwrap();
        let taken = scene.leased(ONE).await;
        scene.publish(["g"]).await;
        let walk = scene.informed(taken.walk).await;
        let next = scene.lease(request(ONE, &[taken.token], walk)).await;
        next.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i4_what_another_worker_holds_bars_what_stands_behind_it() {
    order_hangs_on(BUSY, async |scene| {
        let [first] = scene.publish(["g"]).await;
        scene.leased(OTHER).await;
        scene.publish(["g"]).await;
        let walk = Walk {
            after: first,
            clear_to: Some(first),
            ..scene.walk().await
        };
        scene.lease(request(ONE, &[], walk)).await.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i4_a_lease_whose_answer_was_lost_is_not_ours() {
    hangs_on(HELD, async |scene| {
        scene.publish(["g"]).await;
        let lost = scene.leased(ONE).await;
        scene.publish(["g"]).await;
        let next = scene.lease(request(ONE, &[], lost.walk)).await;
        next.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn what_we_hold_ourselves_does_not_bar_what_stands_behind_it() {
    let no_own = ("in_order", HELD.1, "WHERE false AND");
    hangs_on(no_own, async |scene| {
        scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        let second = scene.publish(["g"]).await;
        let next = scene.leased_behind(&taken).await;
        next.ids == second
    })
    .await;
}

#[tokio::test]
async fn i4_what_is_handed_back_takes_what_stands_behind_it_along_out_of_all_leases() {
    order_hangs_on(FOLLOWERS, async |scene| {
        let [first] = scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        let [second] = scene.publish(["g"]).await;
        scene.leased_behind(&taken).await;
        let back = queue::hand_back(&scene.client, ONE, &[of(&taken, first)]).await;
        let mut back = back.unwrap().left;
        back.sort_unstable();
        back == [first, second] && leases(&scene.client).await == 0
    })
    .await;
}

async fn leases(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.lease").await
}

#[tokio::test]
async fn i4_what_is_handed_back_takes_along_what_a_lease_under_way_has_taken_behind_it() {
    order_hangs_on(UNDER_WAY, async |scene| {
        let [first] = scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        scene.publish(["g"]).await;
        let (mut leasing, writing) = (scene.db.client().await, scene.db.client().await);
        let under_way = leasing.transaction().await.unwrap();
        let next = request(ONE, std::slice::from_ref(&taken.token), taken.walk);
        assert_eq!(lease(&under_way, next).await.ids.len(), 1);
        let head = of(&taken, first);
        let back = tokio::spawn(async move { queue::hand_back(&writing, ONE, &[head]).await });
        // It stops where it is guarded, or where it takes the event from the lease that we have locked.
        wait_for_a_lock(&scene.client).await;
        under_way.commit().await.unwrap();
        back.await.unwrap().unwrap().left.len() == 2
    })
    .await;
}

#[tokio::test]
async fn i6_a_completion_behind_a_sweep_ends_nothing_of_a_broken_lease() {
    hangs_on(FENCE, async |scene| {
        let [id] = scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        expire_leases(&scene.client).await;
        let (mut sweeper, worker) = (scene.db.client().await, scene.db.client().await);
        let breaking = sweeper.transaction().await.unwrap();
        assert_eq!(queue::sweep(&breaking, OTHER, &[]).await.unwrap().broken, 1);
        let completion = completion_of(of(&taken, id));
        // Longer than a completion waits of itself.
        let sql = "ALTER FUNCTION tidegate.complete SET lock_timeout = 0";
        execute(&worker, sql).await;
        let waiting = tokio::spawn(async move { queue::complete(&worker, &[completion]).await });
        wait_for_a_lock(&scene.client).await;
        breaking.commit().await.unwrap();
        let ended = waiting.await.unwrap().unwrap()[0].ended;
        ended == 0 && live(&scene.client).await == 1
    })
    .await;
}

#[tokio::test]
async fn i7_of_a_requeue_and_a_completion_behind_it_one_wins() {
    hangs_on(TAKEN, async |scene| {
        let [id] = scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        let (mut operator, worker) = (scene.db.client().await, scene.db.client().await);
        let operation = operator.transaction().await.unwrap();
        requeue(&operation, id).await;
        let completion = completion_of(of(&taken, id));
        let sql = "ALTER FUNCTION tidegate.complete SET lock_timeout = 0";
        execute(&worker, sql).await;
        let waiting = tokio::spawn(async move { queue::complete(&worker, &[completion]).await });
        wait_for_a_lock(&scene.client).await;
        operation.commit().await.unwrap();
        // It is to be tried again, and then ends nothing.
        let refused = waiting.await.unwrap();
        refused.is_err_and(|error| error.is_lock_timeout()) && live(&scene.client).await == 1
    })
    .await;
}

#[tokio::test]
async fn i7_of_a_requeue_and_a_transaction_behind_it_one_wins() {
    hangs_on(TAKEN_ALONE, async |scene| {
        let [id] = scene.publish(["g"]).await;
        let walk = scene.walk().await;
        let taken = scene.lease(request(ONE, &[], walk)).await;
        let (mut operator, worker) = (scene.db.client().await, scene.db.client().await);
        let operation = operator.transaction().await.unwrap();
        requeue(&operation, id).await;
        let patient = "ALTER FUNCTION tidegate.complete_held SET lock_timeout = 0";
        worker.batch_execute(patient).await.unwrap();
        let complete = format!("SELECT tidegate.complete_held({id}, '{}')", taken.token);
        let waiting = tokio::spawn(async move { worker.batch_execute(&complete).await });
        wait_for_a_lock(&scene.client).await;
        operation.commit().await.unwrap();
        let lost = waiting.await.unwrap().err();
        let code = lost.and_then(|error| error.code().cloned());
        code.is_some_and(|code| code.code() == "TG001") && live(&scene.client).await == 1
    })
    .await;
}

#[tokio::test]
async fn i4_while_our_leases_are_broken_nothing_is_leased_behind_them() {
    order_hangs_on(OWN_LOCK, async |scene| {
        scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        scene.publish(["g"]).await;
        expire_leases(&scene.client).await;
        let mut sweeper = scene.db.client().await;
        let breaking = sweeper.transaction().await.unwrap();
        let swept = queue::sweep(&breaking, OTHER, &[]).await.unwrap();
        assert_eq!(swept.broken, 1);
        let next = scene.leased_behind(&taken).await;
        breaking.commit().await.unwrap();
        next.ids.is_empty()
    })
    .await;
}

#[tokio::test]
async fn i4_of_a_workers_leases_all_are_broken_or_none() {
    order_hangs_on(ALL_OR_NONE, async |scene| {
        scene.publish(["g"]).await;
        let taken = scene.leased(ONE).await;
        scene.publish(["g"]).await;
        let held = [taken.token];
        let next = scene.lease(request(ONE, &held, taken.walk)).await;
        expire_leases(&scene.client).await;
        let mut worker = scene.db.client().await;
        let writing = worker.transaction().await.unwrap();
        let lock = "SELECT FROM tidegate.lease WHERE token = $1 FOR KEY SHARE";
        writing.execute(lock, &[&next.token]).await.unwrap();
        let sweep = queue::sweep(&scene.client, OTHER, &[]);
        let swept = tokio::time::timeout(Duration::from_secs(10), sweep).await;
        writing.commit().await.unwrap();
        swept.unwrap().unwrap().broken == 0
    })
    .await;
}

#[tokio::test]
async fn i6_a_worker_lives_as_long_as_it_renews_one_of_its_leases() {
    let at_the_first = (
        "dead_workers",
        "max(l.expires_at) FILTER (WHERE NOT l.ended)",
        "min(l.expires_at)",
    );
    hangs_on(at_the_first, async |scene| {
        let [first, _] = scene.publish(["", ""]).await;
        let walk = scene.walk().await;
        let one = LeaseRequest {
            limit: 1,
            ..request(ONE, &[], walk)
        };
        let over = scene.lease(one).await;
        // It has ended, and is not renewed any more.
        let completion = Completion {
            over: true,
            ..completion_of(of(&over, first))
        };
        queue::complete(&scene.client, &[completion]).await.unwrap();
        let at_work = scene.lease(request(ONE, &[], over.walk)).await;
        expire_leases(&scene.client).await;
        let held = [at_work.token];
        let renewed = queue::renew(&scene.client, ONE, &held, Duration::from_mins(1)).await;
        assert_eq!(renewed.unwrap().len(), 1);
        queue::sweep(&scene.client, OTHER, &[]).await.unwrap();
        number(
            &scene.client,
            "SELECT sum(lapses) FROM tidegate.event_queue",
        )
        .await
            == 0
    })
    .await;
}

/// Attempts, lapses and whether it is a stray, of each event.
async fn marks(client: &Client) -> Vec<(i32, i32, bool)> {
    let sql = "SELECT attempts, lapses, stray FROM tidegate.event_queue ORDER BY id";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

#[tokio::test]
async fn a_lapse_charges_what_may_have_started_and_nothing_else() {
    hangs_on(STARTED, async |scene| {
        scene.publish(["", "g", "", "h"]).await;
        let walk = scene.walk().await;
        let window = LeaseRequest {
            first_window: 2,
            ..request(ONE, &[], walk)
        };
        scene.lease(window).await;
        expire_leases(&scene.client).await;
        queue::sweep(&scene.client, OTHER, &[]).await.unwrap();
        let charged = (1, 1, true);
        marks(&scene.client).await == [charged, charged, (0, 0, false), (0, 0, true)]
    })
    .await;
}

#[tokio::test]
async fn a_lease_whose_answer_was_lost_is_given_back_without_a_charge() {
    let scene = Scene::new(None).await;
    scene.publish(["", "g"]).await;
    let lost = scene.leased(ONE).await;
    assert_eq!(lost.ids.len(), 2);
    let swept = queue::sweep(&scene.client, ONE, &[lost.token])
        .await
        .unwrap();
    assert_eq!(swept.broken, 0, "it is named");
    let swept = queue::sweep(&scene.client, ONE, &[]).await.unwrap();
    assert_eq!((swept.broken, swept.lowest), (1, Some(lost.ids[0])));
    assert_eq!(marks(&scene.client).await, [(0, 0, false), (0, 0, true)]);
}

#[tokio::test]
async fn what_lapsed_is_leased_alone_and_not_started() {
    hangs_on(ALONE, async |scene| {
        let ids = scene.publish([""; 4]).await;
        let lapse = "UPDATE tidegate.event_queue SET lapses = 1 WHERE id = ANY ($1)";
        let lapsed = &ids[1..3];
        scene.client.execute(lapse, &[&lapsed]).await.unwrap();
        let mut walk = scene.walk().await;
        let mut taken: Vec<Vec<i64>> = Vec::new();
        let mut suspects = Vec::new();
        for _ in ids {
            let request = request(ONE, &[], walk);
            let batch = queue::lease(&scene.client, &request).await.unwrap();
            taken.push(batch.events.iter().map(|event| event.lease.id).collect());
            suspects.push((batch.suspect, batch.started_to));
            walk = batch.walk;
        }
        let expected = [(false, ids[0]), (true, 0), (true, 0), (false, ids[3])];
        taken == ids.map(|id| vec![id]) && suspects == expected
    })
    .await;
}

#[tokio::test]
async fn i6_what_was_leased_between_a_leases_two_looks_is_not_taken_again() {
    hangs_on(SECOND_LOOK, async |scene| {
        // The lease stops with its rows locked and what it knows of others' leases old.
        scene
            .client
            .batch_execute(
                "CREATE FUNCTION pass() RETURNS boolean LANGUAGE plpgsql AS
                     $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN true; END $$;
                 DO $$ BEGIN EXECUTE replace(pg_get_functiondef('tidegate.choose'::regproc),
                     'SELECT count(*), max(s.id)', 'PERFORM public.pass(); SELECT count(*), max(s.id)');
                 END $$;
                 ALTER TABLE tidegate.lease DROP CONSTRAINT an_event_is_in_one_lease;
                 SELECT pg_advisory_lock(1)",
            )
            .await
            .unwrap();
        let [first, _] = scene.publish(["g", "h"]).await;
        let walk = scene.walk().await;
        let stopped = scene.db.client().await;
        let stopped =
            tokio::spawn(async move { lease(&stopped, request(ONE, &[], walk)).await.ids });
        wait_for_a_lock(&scene.client).await;
        let by_other = "INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at,
                                                   clear_to, as_of)
                        SELECT gen_random_uuid(), gen_random_uuid(), int8multirange(int8range($1, $1, '[]')), 0, ARRAY[hashtext('g')],
                               t, t, t + interval '1 minute', 0, pg_current_xact_id() FROM clock_timestamp() AS t";
        scene.client.execute(by_other, &[&first]).await.unwrap();
        scene
            .client
            .batch_execute("SELECT pg_advisory_unlock(1)")
            .await
            .unwrap();
        !stopped.await.unwrap().contains(&first)
    })
    .await;
}

#[tokio::test]
async fn i4_a_lease_that_is_said_to_be_over_and_is_not_stays() {
    order_hangs_on(OVER, async |scene| {
        let [_, done] = scene.publish(["g", ""]).await;
        let taken = scene.leased(ONE).await;
        scene.publish([""]).await;
        scene.leased_behind(&taken).await;
        let completion = Completion {
            over: true,
            ..completion_of(of(&taken, done))
        };
        let completed = queue::complete(&scene.client, &[completion]).await;
        assert_eq!(completed.unwrap()[0].ended, 1);
        let over = queue::remove_ended(&scene.client, &[taken.token]).await;
        over.unwrap();
        leases(&scene.client).await == 2
    })
    .await;
}

#[tokio::test]
async fn i5_what_goes_back_from_a_lease_that_was_lost_leaves_a_newer_one_of_the_same_worker_alone()
{
    hangs_on(UNDER, async |scene| {
        let [event] = scene.publish([""]).await;
        let stale = scene.leased(ONE).await;
        requeue_now(&scene.client, event).await;
        let anew = scene.leased(ONE).await;
        assert_eq!(anew.ids, [event]);
        let back = queue::hand_back(&scene.client, ONE, &[of(&stale, event)]).await;
        back.unwrap().left.is_empty() && leases(&scene.client).await == 1
    })
    .await;
}

#[tokio::test]
async fn i3_a_requeue_charges_what_may_have_been_started_behind_it_and_gives_it_one_more() {
    hangs_on(STARTED_BEHIND, async |scene| {
        let [first, second] = scene.publish(["g", "g"]).await;
        scene.leased(ONE).await;
        requeue_now(&scene.client, first).await;
        let sql = "SELECT attempts, max_attempts FROM tidegate.event_queue WHERE id = $1";
        let row = scene.client.query_one(sql, &[&second]).await.unwrap();
        (row.get::<_, i32>(0), row.get::<_, i32>(1)) == (1, 6)
    })
    .await;
}

/// Whether this work waits for a lock, or has come to its end.
async fn waits_or_ends<T>(client: &Client, work: &tokio::task::JoinHandle<T>) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    wait_until("it waits for a lock, or has ended", async || {
        work.is_finished() || number(client, waiting).await == 1
    })
    .await;
}

/// A session that gives up where it would have to wait for a lock.
async fn impatient(scene: &Scene) -> Client {
    let client = scene.db.client().await;
    let sql = "SET lock_timeout = '1s'";
    client.batch_execute(sql).await.unwrap();
    client
}

guards! {
    LAST: "lease" "least(chosen.first_last - 1," => "least(NULL,";
    IN_TIME: "lapse" "AND (e.expires_at IS NULL OR e.expires_at > l.taken_at)" => "";
    CLEARED_OF_LAPSES: "retry_leased" "CASE WHEN o.charged THEN 0 ELSE q.lapses END" => "q.lapses";
    LOCKED_STAY: "locked_with_earlier" "FOR NO KEY UPDATE SKIP LOCKED" => "FOR NO KEY UPDATE";
    EARLIER_STAY: "locked_with_earlier" "busy || tidegate.earlier_of(event_ids, busy)" => "busy";
    PROMOTES_WHAT_IS_FREE: "promote" "ORDER BY q.available_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED" => "ORDER BY q.available_at LIMIT most FOR NO KEY UPDATE";
    ROW_FIRST: "update_event" "PERFORM FROM tidegate.event_queue AS q WHERE q.id = OLD.id FOR NO KEY UPDATE;" => "";
    OWN_PROBE: "report_service" "known.prober = report_service.worker AND " => "";
    GROUP_FIRST: "unblock" "PERFORM tidegate.lock_groups(ARRAY[group_key]);" => "";
    NO_REPLAY_BESIDE: "forget" "PERFORM tidegate.one_at_a_time();" => "NULL;";
}

#[tokio::test]
async fn i10_an_event_on_its_last_attempt_is_not_started_with_its_lease() {
    hangs_on(LAST, async |scene| {
        scene.publish([""]).await;
        let last = act("x").max_attempts(1);
        queue::publish(&scene.client, &last).await.unwrap();
        let walk = scene.walk().await;
        assert_eq!(scene.lease(request(ONE, &[], walk)).await.ids.len(), 2);
        expire_leases(&scene.client).await;
        queue::sweep(&scene.client, OTHER, &[]).await.unwrap();
        marks(&scene.client).await == [(1, 1, true), (0, 0, false)]
    })
    .await;
}

#[tokio::test]
async fn what_had_expired_before_its_lease_is_not_charged_when_the_worker_dies() {
    hangs_on(IN_TIME, async |scene| {
        let late = act("x").start_within(Duration::from_millis(1));
        queue::publish(&scene.client, &late).await.unwrap();
        wait_until("its deadline has passed", async || {
            let passed =
                "SELECT count(*) FROM tidegate.event_queue WHERE expires_at < clock_timestamp()";
            number(&scene.client, passed).await == 1
        })
        .await;
        scene.leased(ONE).await;
        expire_leases(&scene.client).await;
        let swept = queue::sweep(&scene.client, OTHER, &[]).await.unwrap();
        assert_eq!(swept.broken, 1);
        marks(&scene.client).await == [(0, 0, false)]
    })
    .await;
}

#[tokio::test]
async fn what_lapsed_and_then_ended_an_attempt_is_leased_with_others_again() {
    hangs_on(CLEARED_OF_LAPSES, async |scene| {
        let [id] = scene.publish([""]).await;
        let lapse = "UPDATE tidegate.event_queue SET lapses = 1";
        scene.client.execute(lapse, &[]).await.unwrap();
        let taken = scene.leased(ONE).await;
        let failed = retry_of(of(&taken, id));
        let back = queue::retry(&scene.client, ONE, &[failed], &[]).await;
        assert_eq!(back.unwrap().left, [id]);
        scene.publish([""]).await;
        scene
            .client
            .batch_execute("SELECT tidegate.promote(10)")
            .await
            .unwrap();
        scene.leased(ONE).await.ids.len() == 2
    })
    .await;
}

/// A dead worker's group of three and two others, of which somebody has locked the second.
async fn locked_in_a_broken_lease(scene: &Scene) -> bool {
    let [first, second, third, ..] = scene.publish(["g", "g", "g", "h", ""]).await;
    let walk = scene.walk().await;
    // Only those of the group may have started.
    let window = LeaseRequest {
        first_window: 3,
        ..request(ONE, &[], walk)
    };
    let taken = scene.lease(window).await;
    assert_eq!(taken.ids.len(), 5);
    expire_leases(&scene.client).await;
    let mut holder = scene.db.client().await;
    let holding = holder.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.event_queue WHERE id = $1 FOR UPDATE";
    holding.execute(lock, &[&second]).await.unwrap();
    queue::sweep(&scene.client, OTHER, &[]).await.unwrap();
    let mut walk = scene.walk().await;
    let (mut held, mut free) = (Vec::new(), Vec::new());
    // What may have started is leased alone.
    for _ in 0..5 {
        let next = scene.lease(request(OTHER, &held, walk)).await;
        walk = next.walk;
        held.push(next.token);
        free.extend(next.ids);
    }
    let in_order = disorder(&scene.client).await.is_empty();
    let others_are_free = free == taken.ids[3..];
    holding.rollback().await.unwrap();
    queue::sweep(&scene.client, OTHER, &held).await.unwrap();
    let attempts = "SELECT attempts::bigint FROM tidegate.event_queue WHERE id = $1";
    for id in [first, second, third] {
        let row = scene.client.query_one(attempts, &[&id]).await.unwrap();
        if row.get::<_, i64>(0) != 1 {
            return false;
        }
    }
    in_order && others_are_free
}

#[tokio::test]
async fn an_event_that_somebody_has_locked_keeps_nothing_but_its_group_in_a_broken_lease() {
    hangs_on(LOCKED_STAY, locked_in_a_broken_lease).await;
}

#[tokio::test]
async fn i4_what_stands_before_a_locked_event_stays_with_it_in_a_broken_lease() {
    hangs_on(EARLIER_STAY, locked_in_a_broken_lease).await;
}

#[tokio::test]
async fn a_due_event_that_somebody_has_locked_keeps_no_other_waiting() {
    hangs_on(PROMOTES_WHAT_IS_FREE, async |scene| {
        let delayed = [1, 2].map(|_| act("x").delay(Duration::from_mins(1)));
        let ids = queue::publish_batch(&scene.client, &delayed).await.unwrap();
        let soon = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '100 ms'";
        scene.client.execute(soon, &[]).await.unwrap();
        wait_until("both are due", async || {
            let due = "SELECT count(*) FROM tidegate.event_queue WHERE delayed AND available_at < clock_timestamp()";
            number(&scene.client, due).await == 2
        })
        .await;
        let mut holder = scene.db.client().await;
        let holding = holder.transaction().await.unwrap();
        let lock = "SELECT FROM tidegate.event_queue WHERE id = $1 FOR UPDATE";
        holding.execute(lock, &[&ids[0].id]).await.unwrap();
        let promote = "SELECT promoted FROM tidegate.promote(10)";
        let promoted = impatient(scene).await.query_one(promote, &[]).await;
        promoted.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    })
    .await;
}

#[tokio::test]
async fn the_view_changes_nothing_of_an_event_that_is_being_leased() {
    hangs_on(ROW_FIRST, async |scene| {
        let [id] = scene.publish([""]).await;
        let walk = scene.walk().await;
        let (mut leasing, operator) = (scene.db.client().await, scene.db.client().await);
        let under_way = leasing.transaction().await.unwrap();
        let found = lease(&under_way, request(ONE, &[], walk)).await.ids;
        assert_eq!(found, [id]);
        let later = "UPDATE tidegate.events SET expires_at = clock_timestamp() + interval '1 hour' WHERE id = $1";
        let change = tokio::spawn(async move { operator.execute(later, &[&id]).await });
        wait_for_a_lock(&scene.client).await;
        under_way.commit().await.unwrap();
        change.await.unwrap().is_err()
    })
    .await;
}

#[tokio::test]
async fn a_report_of_somebody_elses_try_says_nothing_about_the_one_under_way() {
    hangs_on(OWN_PROBE, async |scene| {
        let probing = "INSERT INTO tidegate.service (service, state, prober, retry_at, kinds)
                       VALUES ('carrier', 'probing', $1, clock_timestamp() + interval '1 minute', '{act}')";
        scene.client.execute(probing, &[&ONE]).await.unwrap();
        let report = "SELECT tidegate.report_service('carrier', $1, true, 0, NULL, NULL, '{}', true)";
        scene.client.execute(report, &[&OTHER]).await.unwrap();
        let probing = "SELECT count(*) FROM tidegate.service WHERE state = 'probing'";
        let goes_on = number(&scene.client, probing).await == 1;
        scene.client.execute(report, &[&ONE]).await.unwrap();
        assert_eq!(number(&scene.client, probing).await, 0);
        goes_on
    })
    .await;
}

#[tokio::test]
async fn who_unblocks_a_group_sees_what_is_being_published_to_it() {
    hangs_on(GROUP_FIRST, async |scene| {
        let (mut publisher, operator) = (scene.db.client().await, scene.db.client().await);
        let publishing = publisher.transaction().await.unwrap();
        let stored = queue::publish(&publishing, &act("x").group("g")).await;
        let stored = stored.unwrap().id;
        let unblock = "SELECT (tidegate.unblock('g', 'cancel', 'nobody needs it')->>'id')::bigint";
        let unblocked = tokio::spawn(async move { operator.query_one(unblock, &[]).await });
        waits_or_ends(&scene.client, &unblocked).await;
        publishing.commit().await.unwrap();
        let row = unblocked.await.unwrap().unwrap();
        row.get::<_, Option<i64>>(0) == Some(stored)
    })
    .await;
}

#[tokio::test]
async fn a_forget_reports_the_replay_that_is_made_meanwhile() {
    hangs_on(NO_REPLAY_BESIDE, async |scene| {
        let [id] = scene.publish([""]).await;
        let taken = scene.leased(ONE).await;
        let completion = completion_of(of(&taken, id));
        queue::complete(&scene.client, &[completion]).await.unwrap();
        let (mut one, other) = (scene.db.client().await, scene.db.client().await);
        let replaying = one.transaction().await.unwrap();
        let replay = "SELECT tidegate.replay(ids => ARRAY[$1::bigint], reason => 'again')";
        replaying.execute(replay, &[&id]).await.unwrap();
        let forget = "SELECT jsonb_array_length(tidegate.forget(ARRAY[$1::bigint], 'request 17')->'offspring')";
        let forgotten = tokio::spawn(async move { other.query_one(forget, &[&id]).await });
        waits_or_ends(&scene.client, &forgotten).await;
        replaying.commit().await.unwrap();
        forgotten.await.unwrap().unwrap().get::<_, i32>(0) == 1
    })
    .await;
}
