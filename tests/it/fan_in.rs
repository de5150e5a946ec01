//! Events that wait for others: they begin when all of those have ended, however they did, and learn how.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::testing::Status;
use tidegate::{
    Done, DrainOptions, DrainReport, HandlerError, HandlerResult, Member, NewEvent, queue,
};
use tokio_postgres::Client;

use crate::cli::Cli;
use crate::probe::{
    ProbeApp, act, drain, live, logged, number, options, pair, probe_database, publish_acts,
};
use crate::support::TestDb;

/// What events called "joined" have learnt of those that they waited for.
type Joined = Arc<Mutex<Vec<(i64, Vec<Member>)>>>;

/// Handlers that end as the event's name says.
fn joining() -> (Arc<ProbeApp>, Joined) {
    let joined = Joined::default();
    let noted = joined.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let noted = noted.clone();
        Box::pin(async move {
            match call.name.as_str() {
                "joined" => {
                    let members = ctx.members().await?.to_vec();
                    noted.lock().unwrap().push((call.id, members));
                    Ok(Done::ok())
                }
                "rejects" => Err(HandlerError::reject("no", "it said so")),
                "fails" => Err(HandlerError::retry("down", "as ever")),
                _ => Ok(Done::ok()),
            }
        })
    });
    (app, joined)
}

async fn publish(client: &Client, event: NewEvent) -> i64 {
    queue::publish(client, &event).await.unwrap().id
}

async fn drained(db: &TestDb, app: &Arc<ProbeApp>) -> DrainReport {
    drain(db, app, &options()).await
}

fn told(joined: &Joined) -> Vec<(i64, Vec<Member>)> {
    joined.lock().unwrap().clone()
}

fn statuses(members: &[Member]) -> Vec<Option<Status>> {
    members.iter().map(|member| member.status).collect()
}

async fn waiting(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.waiting").await
}

async fn operate(client: &Client, call: &str) {
    client
        .batch_execute(&format!("SELECT tidegate.{call}"))
        .await
        .unwrap();
}

#[tokio::test]
async fn it_begins_when_all_have_ended_however_they_did_and_learns_how() {
    let db = probe_database().await;
    let client = db.client().await;
    let mut ids = Vec::new();
    for name in ["completes", "rejects", "fails"] {
        ids.push(publish(&client, act(name).max_attempts(2)).await);
    }
    let sql = "SELECT id FROM tidegate.publish('act', '{\"name\": \"joined\"}', after => $1)";
    let row = client.query_one(sql, &[&ids]).await.unwrap();
    let id: i64 = row.get(0);
    let told_before = Cli::on(&db).json(&["show", &id.to_string()]).await;
    assert_eq!(told_before["wait"]["members"], 3);
    assert_eq!(told_before["wait"]["waits_for"], ids[0]);
    let (app, joined) = joining();
    let report = drained(&db, &app).await;
    assert_eq!(live(&client).await, 0, "{report:?}");
    let [(joined_id, members)] = &told(&joined)[..] else {
        panic!("it did not begin once: {:?}", told(&joined));
    };
    assert_eq!(*joined_id, id);
    let member_ids: Vec<i64> = members.iter().map(|member| member.id).collect();
    assert_eq!(member_ids, ids);
    let expected = [
        Status::Completed,
        Status::CompletedWithErrors,
        Status::Failed,
    ];
    assert_eq!(statuses(members), expected.map(Some));
    assert_eq!(members[1].codes, ["no"]);
    assert_eq!(members[2].codes, ["attempts_exhausted", "down"]);
    assert_eq!(app.ids().last(), Some(&id));
    let after = Cli::on(&db).run(&["show", &id.to_string()]).await;
    assert!(
        after.stdout.contains("for 3 events, until "),
        "{}",
        after.stdout
    );
}

/// A parent whose handlers publish a set and one that waits for it.
fn splitting(
    split: impl for<'a> Fn(&'a tidegate::Context) -> HandlerResult + Clone + Send + Sync + 'static,
) -> (Arc<ProbeApp>, Joined) {
    let joined = Joined::default();
    let noted = joined.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let (noted, split) = (noted.clone(), split.clone());
        Box::pin(async move {
            match (call.name.as_str(), call.handler, call.attempt) {
                ("splits", "act" | "first", _) => split(ctx),
                ("splits", "second", 1) => Err(HandlerError::retry("later", "not at first")),
                ("joined", ..) => {
                    let members = ctx.members().await?.to_vec();
                    noted.lock().unwrap().push((call.id, members));
                    Ok(Done::ok())
                }
                _ => Ok(Done::ok()),
            }
        })
    });
    (app, joined)
}

#[tokio::test]
async fn a_handlers_follow_ups_are_waited_for_by_another_one_of_it() {
    let db = probe_database().await;
    let client = db.client().await;
    let (app, joined) = splitting(|ctx| {
        let pages: Vec<NewEvent> = (0..500).map(|n| act(&format!("page {n}"))).collect();
        ctx.emit_all_new(pages)?.then_new(act("joined"))?;
        let _ = ctx.emit_all_new([act("alone")])?;
        Ok(Done::ok())
    });
    publish(&client, act("splits")).await;
    // What is kept of a handler while another one of its event is tried again has its set, too.
    publish(&client, pair("splits")).await;
    let report = drained(&db, &app).await;
    assert_eq!(live(&client).await, 0, "{report:?}");
    let told = told(&joined);
    assert_eq!(told.len(), 2);
    for (id, members) in told {
        assert_eq!(members.len(), 500);
        assert!(members.iter().all(Member::is_completed), "{members:?}");
        assert!(members.iter().all(|member| member.id < id));
        let sql = "SELECT count(*) FROM tidegate.event_log AS l JOIN tidegate.event_log AS j ON j.id = $1
                    WHERE l.parent_id = j.parent_id AND l.payload->>'name' LIKE 'page %' AND l.finished_at > j.finished_at";
        let later: i64 = client.query_one(sql, &[&id]).await.unwrap().get(0);
        assert_eq!(later, 0);
    }
}

#[tokio::test]
async fn after_an_empty_set_it_begins_at_once() {
    let db = probe_database().await;
    let client = db.client().await;
    let (app, joined) = splitting(|ctx| {
        ctx.emit_all_new([])?.then_new(act("joined"))?;
        Ok(Done::ok())
    });
    publish(&client, act("splits")).await;
    publish(&client, act("joined").after([])).await;
    drained(&db, &app).await;
    let told = told(&joined);
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|(_, members)| members.is_empty()));
}

#[tokio::test]
async fn a_member_that_is_cancelled_has_ended_and_one_that_is_replayed_is_waited_for_again() {
    let db = probe_database().await;
    let client = db.client().await;
    let cancelled = publish(&client, act("a").delay(Duration::from_hours(1))).await;
    let replayed = publish(&client, act("rejects")).await;
    let last = publish(&client, act("b").delay(Duration::from_hours(1))).await;
    let id = publish(&client, act("joined").after([cancelled, replayed, last])).await;
    let (app, joined) = joining();
    drained(&db, &app).await;
    operate(
        &client,
        &format!("cancel(ARRAY[{cancelled}], reason => 'r')"),
    )
    .await;
    operate(
        &client,
        &format!("replay(ARRAY[{replayed}], reason => 'r')"),
    )
    .await;
    let sql = format!("SELECT id FROM tidegate.event_queue WHERE replay_of = {replayed}");
    let replay = number(&client, &sql).await;
    // The replay waits, and nothing else of the set is live.
    operate(&client, "pause('act', reason => 'r')").await;
    operate(&client, &format!("cancel(ARRAY[{last}], reason => 'r')")).await;
    drained(&db, &app).await;
    assert_eq!(told(&joined), []);
    assert_eq!(waiting(&client).await, 1);
    operate(&client, "resume('act')").await;
    drained(&db, &app).await;
    let [(joined_id, members)] = &told(&joined)[..] else {
        panic!("{:?}", told(&joined));
    };
    assert_eq!(*joined_id, id);
    let ids: Vec<i64> = members.iter().map(|member| member.id).collect();
    assert_eq!(ids, [cancelled, replay, last]);
    let failed = Some(Status::Failed);
    assert_eq!(
        statuses(members),
        [failed, Some(Status::CompletedWithErrors), failed]
    );
    assert_eq!(members[0].codes, ["cancelled"]);
    // A replay of the one that waited does not wait, and has the same verdicts.
    operate(&client, &format!("replay(ARRAY[{id}], reason => 'r')")).await;
    drained(&db, &app).await;
    let told = told(&joined);
    assert_eq!(told.len(), 2);
    assert_eq!(told[0].1, told[1].1);
}

#[tokio::test]
async fn a2_in_a_group_it_keeps_its_place_and_no_replay_behind_it_keeps_it_waiting_for_ever() {
    let db = probe_database().await;
    let client = db.client().await;
    let first = publish(&client, act("rejects").group("g")).await;
    let other = publish(&client, act("o").delay(Duration::from_hours(1))).await;
    let id = publish(&client, act("joined").group("g").after([first, other])).await;
    let behind = publish(&client, act("behind").group("g")).await;
    let (app, joined) = joining();
    drained(&db, &app).await;
    assert_eq!(app.ids(), [first], "what is behind it in its group waits");
    operate(&client, &format!("replay(ARRAY[{first}], reason => 'r')")).await;
    operate(&client, &format!("cancel(ARRAY[{other}], reason => 'r')")).await;
    drained(&db, &app).await;
    let sql = format!("SELECT id FROM tidegate.event_log WHERE replay_of = {first}");
    let replay = number(&client, &sql).await;
    assert_eq!(app.ids(), [first, id, behind, replay]);
    assert_eq!(told(&joined)[0].1[0].id, first);
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn what_waits_can_be_started_cancelled_and_replaced_and_ends_with_its_deadline() {
    let db = probe_database().await;
    let client = db.client().await;
    let never = publish(&client, act("never").delay(Duration::from_hours(9))).await;
    let after = |event: NewEvent| event.after([never]);
    let started = publish(&client, after(act("joined"))).await;
    let cancelled = publish(&client, after(act("joined"))).await;
    let expired = publish(&client, after(act("joined").start_within(Duration::ZERO))).await;
    let replaced = publish(&client, after(act("joined").dedup("k"))).await;
    operate(
        &client,
        &format!("reschedule(ARRAY[{started}], available_at => now(), reason => 'r')"),
    )
    .await;
    operate(
        &client,
        &format!("cancel(ARRAY[{cancelled}], reason => 'r')"),
    )
    .await;
    let again = queue::publish(&client, &act("joined").dedup("k").replace()).await;
    assert!(again.unwrap().replaced);
    client
        .batch_execute("SELECT tidegate.sweep_events(0)")
        .await
        .unwrap();
    let (app, joined) = joining();
    drained(&db, &app).await;
    assert_eq!(app.ids(), [started]);
    assert_eq!(statuses(&told(&joined)[0].1), [None], "it is live");
    assert_eq!(logged(&client, expired).await.unwrap().2, ["expired"]);
    assert_eq!(waiting(&client).await, 1);
    operate(&client, &format!("cancel(ARRAY[{never}], reason => 'r')")).await;
    drained(&db, &app).await;
    assert_eq!(app.ids(), [started, replaced]);
    let left = "SELECT count(*) FROM tidegate.fan_in WHERE released_at IS NULL";
    assert_eq!(number(&client, left).await, 0);
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn of_drains_that_see_the_last_one_end_it_begins_once() {
    let db = probe_database().await;
    let client = db.client().await;
    for _ in 0..50 {
        let ids = publish_acts(&client, 20).await;
        publish(&client, act("joined").after(ids)).await;
    }
    let (app, joined) = joining();
    let usual = DrainOptions::default();
    let each = || drain(&db, &app, &usual);
    tokio::join!(each(), each(), each(), each());
    drained(&db, &app).await;
    let mut ids: Vec<i64> = told(&joined).iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), told(&joined).len()), (50, 50));
    assert!(told(&joined).iter().all(|(_, members)| members.len() == 20));
    let at_once = "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1";
    assert_eq!(number(&client, at_once).await, 0);
}

#[tokio::test]
async fn thousands_that_wait_for_ever_and_a_transaction_that_holds_one_keep_nobody_else_waiting() {
    let db = probe_database().await;
    let mut client = db.client().await;
    let never = publish(&client, act("never").delay(Duration::from_hours(9))).await;
    let sql = "SELECT count(*) FROM generate_series(1, 5000) AS n,
               LATERAL tidegate.publish('act', '{\"name\": \"joined\"}', correlation_id => n::text, after => ARRAY[$1::bigint])";
    client.execute(sql, &[&never]).await.unwrap();
    let ended = publish_acts(&client, 3).await;
    let held = [
        publish(&client, act("joined").after(ended.clone())).await,
        publish(&client, act("joined").after(ended.clone())).await,
    ];
    let free = publish(&client, act("joined").after(ended)).await;
    publish_acts(&client, 2000).await;
    let holding = client.transaction().await.unwrap();
    for (table, column, id) in [
        ("event_queue", "id", held[0]),
        ("fan_in", "event_id", held[1]),
    ] {
        let sql = format!("SELECT FROM tidegate.{table} WHERE {column} = {id} FOR UPDATE");
        holding.execute(&sql, &[]).await.unwrap();
    }
    let (app, joined) = joining();
    let report = drained(&db, &app).await;
    assert_eq!(report.completed, 2004, "{report:?}");
    let ids: Vec<i64> = told(&joined).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [free]);
    holding.rollback().await.unwrap();
    drained(&db, &app).await;
    assert_eq!(told(&joined).len(), 3);
    assert_eq!(waiting(&client).await, 5000);
}

#[tokio::test]
async fn ten_thousand_members_are_enough_and_what_is_no_event_is_refused_by_name() {
    let db = probe_database().await;
    let client = db.client().await;
    let ids = publish_acts(&client, 10_000).await;
    let other = db.client().await;
    let uncommitted = {
        other.batch_execute("BEGIN").await.unwrap();
        publish(&other, act("a")).await
    };
    let too_many: Vec<i64> = ids.iter().copied().chain([1]).collect();
    for (after, refusal) in [
        (vec![ids[0], 999_999], "got 999999"),
        (vec![uncommitted], "after: must be ids of committed events"),
        (too_many, "after: must have at most 10000 ids, got 10001"),
    ] {
        let refused = queue::publish(&client, &act("joined").after(after)).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(refusal), "{refused}");
    }
    for (sql, refusal) in [
        ("after => ARRAY[NULL::bigint]", "after: must have no NULL"),
        (
            "dedup_key => 'k', on_duplicate => 'replace', after => '{1}'",
            "after: must not be given with on_duplicate replace",
        ),
    ] {
        let sql = format!("SELECT tidegate.publish('act', '{{}}', {sql})");
        let refused = client.batch_execute(&sql).await.unwrap_err();
        let refused = refused.as_db_error().unwrap().message().to_owned();
        assert!(refused.contains(refusal), "{refused}");
    }
    let refused = queue::publish_batch(&client, &[act("joined").after([ids[0]])]).await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .starts_with("after: must be empty")
    );
    let first_two = [ids[0], ids[1]].map(|id| id.to_string()).join(",");
    let arguments = [
        "publish",
        "act",
        "--payload",
        "{\"name\": \"joined\"}",
        "--after",
        &first_two,
    ];
    assert_eq!(Cli::on(&db).json(&arguments).await["created"], true);
    let id = publish(&client, act("joined").after(ids)).await;
    let (app, joined) = joining();
    drained(&db, &app).await;
    let told = told(&joined);
    assert_eq!(told.len(), 2);
    let last = told.iter().find(|(joined, _)| *joined == id).unwrap();
    assert_eq!(last.1.len(), 10_000);
    assert!(last.1.iter().all(Member::is_completed));
}

#[tokio::test]
async fn what_is_kept_of_a_set_goes_when_its_event_is_long_gone() {
    let db = probe_database().await;
    let client = db.client().await;
    let ids = publish_acts(&client, 2).await;
    publish(&client, act("joined").after(ids)).await;
    let (app, _) = joining();
    drained(&db, &app).await;
    let rows = "SELECT count(*) FROM tidegate.fan_in";
    assert_eq!(number(&client, rows).await, 1);
    let kept = "SELECT count(*) FROM tidegate.fan_in WHERE keep_until BETWEEN now() + interval '96 days' AND now() + interval '98 days'";
    assert_eq!(number(&client, kept).await, 1);
    let later = "UPDATE tidegate.fan_in SET keep_until = now() - interval '1 second'";
    client.batch_execute(later).await.unwrap();
    drained(&db, &app).await;
    assert_eq!(number(&client, rows).await, 0);
}
