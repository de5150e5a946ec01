//! Why an event has not ended: the sentence that SQL, the command line and the console show.

use crate::support::cli::Cli;
use crate::support::{self, TestDb, contains, execute, has, lease_away};
use serde_json::json;
use tidegate::connect::Client;

/// Who holds what is leased here.
const WORKER: &str = "00000000-0000-0000-0000-000000000007";

/// A queue of three events: one alone, and two of a group. Times are written in UTC, wherever the session is.
async fn queue() -> (TestDb, Client, [i64; 3]) {
    let (db, client) = support::opened().await;
    let publish = "SELECT p.id FROM (VALUES ('form_archived', NULL), ('case_opened', 'g'), ('case_opened', 'g')) AS e(kind, key),
                          LATERAL tidegate.publish(e.kind, '{}', group_key => e.key) AS p";
    let ids: Vec<i64> = support::column(&client, publish).await;
    execute(&client, "SET timezone = 'Asia/Kolkata'").await;
    (db, client, ids.try_into().unwrap())
}

/// The sentences about an event, each after a change of the queue that is then taken back. `{}` in a change
/// is the event's id.
async fn assert_sentences(client: &Client, id: i64, cases: &[(&[&str], &str)]) {
    for (changes, sentence) in cases {
        let changes = changes.join("; ").replace("{}", &id.to_string());
        execute(client, &format!("BEGIN; {changes}")).await;
        assert_eq!(why(client, id).await, *sentence, "{changes}");
        execute(client, "ROLLBACK").await;
    }
}

async fn why(client: &Client, id: i64) -> String {
    let row = client.query_one("SELECT tidegate.why($1)", &[&id]).await;
    row.unwrap().get(0)
}

/// A lease of event `{}`, started or not, until this time.
fn leased(until: &str, started: bool) -> String {
    format!(
        "INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
         SELECT gen_random_uuid(), '{WORKER}', tidegate.ranges(ARRAY[{{}}]), {{}} - {}, now(), now(), '{until}', 0, pg_current_xact_id()",
        i32::from(!started)
    )
}

const DUE: &str = "UPDATE tidegate.event_queue SET available_at = '2020-01-01 00:00Z'";
const PLANNED: &str = "UPDATE tidegate.event_queue SET available_at = '2999-01-02 03:04:05Z'";
const RETRIED: &str = "UPDATE tidegate.event_queue SET attempts = 2, last_error = '503: a secret: it fell', available_at = '2999-01-02 03:04:05Z'";
const PAUSED: &str = "UPDATE tidegate.event_kind SET paused = true";
const PAUSED_BY: &str = "INSERT INTO tidegate.audit (at, actor, action, filter, count)
    VALUES ('2020-11-26 23:04:10Z', 'ada', 'pause', '{\"kind\": \"form_archived\"}', 1)";
const RESUMED_BY: &str = "INSERT INTO tidegate.audit (actor, action, filter, count)
    VALUES ('ada', 'resume', '{\"kind\": \"form_archived\"}', 1)";
const DOWN: &str = "INSERT INTO tidegate.service (service, state, since, retry_at, last_error, kinds)
    VALUES ('archive', 'open', '2020-11-26 23:04:10Z', '2998-11-26 23:11:00Z', '503', '{form_archived,case_opened}')";
const RUN: &str = "INSERT INTO tidegate.drain_run VALUES
    (gen_random_uuid(), '2020-11-26 23:00:00Z', '2020-11-26 23:04:10Z', 'queue_empty', '[]')";

#[tokio::test]
async fn each_thing_that_an_event_waits_for_is_named_with_its_time() {
    let (_db, client, [alone, ..]) = queue().await;
    let places = "INSERT INTO tidegate.service_place SELECT 'archive', gen_random_uuid(), 1, '2999-01-01' FROM generate_series(1, 3)";
    assert_sentences(&client, alone, &[
        (&[PLANNED], "It waits for its planned time, 2999-01-02 03:04:05Z."),
        (&[RETRIED], "It waits for attempt 3 of 5, which is due at 2999-01-02 03:04:05Z, because the last one ended with 503."),
        (&[PAUSED], "It waits because its kind form_archived is paused."),
        (&[PAUSED, PAUSED_BY], "It waits because its kind form_archived is paused since 2020-11-26 23:04:10Z by ada."),
        (&[PAUSED, PAUSED_BY, RESUMED_BY], "It waits because its kind form_archived is paused."),
        (&[DOWN], "It waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried again at 2998-11-26 23:11:00Z."),
        (&[DOWN, "UPDATE tidegate.service SET retry_at = '2020-11-26'"],
         "It waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried by the next drain."),
        (&[DOWN, "UPDATE tidegate.service SET state = 'probing'"],
         "It waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried now."),
        (&["INSERT INTO tidegate.service (service, state, kinds) VALUES ('archive', 'paused', '{form_archived}')"],
         "It waits because the service archive is paused."),
        (&["INSERT INTO tidegate.service (service, state, kinds) VALUES ('archive', 'paused', '{form_archived}')",
           "INSERT INTO tidegate.audit (at, actor, action, filter, count) VALUES ('2020-11-26 23:04:10Z', 'ada', 'pause_service', '{\"service\": \"archive\"}', 1)"],
         "It waits because the service archive is paused since 2020-11-26 23:04:10Z by ada."),
        (&["INSERT INTO tidegate.service (service, kinds, max_running) VALUES ('archive', '{form_archived}', 3)", places],
         "It waits because the service archive may run 3 at once, and as many run."),
        (&["INSERT INTO tidegate.service (service, kinds, max_running) VALUES ('kind:form_archived', '{form_archived}', 3)",
           &places.replace("'archive'", "'kind:form_archived'")],
         "It waits because its kind may run 3 at once, and as many run."),
        (&["INSERT INTO tidegate.service (service, kinds, per_second, next_start) VALUES ('archive', '{form_archived}', 0.5, '2999-01-02 03:04:05Z')"],
         "It waits because the service archive may start 0.5 per second, the next at 2999-01-02 03:04:05Z."),
        (&["DELETE FROM tidegate.event_kind"],
         "It is of the kind form_archived, which nobody has registered: the next drain ends it FAILED with the code no_handler."),
        (&["UPDATE tidegate.event_kind SET targets = ARRAY[]::text[]"],
         "It is ready: its kind form_archived is only pulled, and no program has polled for it."),
    ]).await;
}

#[tokio::test]
async fn what_is_ready_says_what_the_drains_do() {
    let (_db, client, [alone, ..]) = queue().await;
    assert_sentences(&client, alone, &[
        (&["SELECT"], "It is ready: the next drain takes it, and none has ended within the last week."),
        (&[RUN, "UPDATE tidegate.event_queue SET available_at = '2020-11-26 23:04:10Z'"],
         "It is ready: the next drain takes it, and none has run since 2020-11-26 23:04:10Z."),
        (&[RUN, DUE], "It is ready, but the drain that ended at 2020-11-26 23:04:10Z left it: perhaps no program that runs handles its kind form_archived."),
        (&[RUN, DUE, RESUMED_BY],
         "It is ready: the next drain takes it, and the last one ended at 2020-11-26 23:04:10Z with queue_empty."),
        (&[RUN, DUE, "INSERT INTO tidegate.service (service, kinds) VALUES ('archive', '{form_archived}')"],
         "It is ready: the next drain takes it, and the last one ended at 2020-11-26 23:04:10Z with queue_empty."),
        (&[RUN, DUE, "UPDATE tidegate.drain_run SET stop_reason = 'budget_spent'"],
         "It is ready: the next drain takes it, and the last one ended at 2020-11-26 23:04:10Z with budget_spent."),
        (&["UPDATE tidegate.drain_slot SET until = '2999-01-01' WHERE slot = 2"],
         "It is ready: a drain is at work and takes it in its turn."),
        (&["UPDATE tidegate.event_queue SET lapses = 1"],
         "It is ready and will run alone, because its last worker stopped responding: the next drain takes it, and none has ended within the last week."),
    ]).await;
}

#[tokio::test]
async fn what_is_leased_names_its_worker_and_what_may_end_it() {
    let (_db, client, [alone, ..]) = queue().await;
    let (far, past) = ("2999-01-02 03:04:05Z", "2020-11-26 23:04:10Z");
    let deadline = "UPDATE tidegate.event_queue SET expires_at = '2999-01-02 03:04:05Z'";
    assert_sentences(&client, alone, &[
        (&[&leased(far, false)], "It is leased by worker 00000000-0000-0000-0000-000000000007 until 2999-01-02 03:04:05Z and has not started."),
        (&[&leased(far, true), "UPDATE tidegate.event_queue SET attempts = 1", deadline],
         "It is being handled now, attempt 2 of 5, by worker 00000000-0000-0000-0000-000000000007, whose lease runs until 2999-01-02 03:04:05Z."),
        (&[&leased(far, true), "UPDATE tidegate.lease SET token = worker"],
         "It is being handled now, attempt 1 of 5, by a program that polled it, whose lease runs until 2999-01-02 03:04:05Z."),
        (&[&leased(past, true)],
         "It is leased by worker 00000000-0000-0000-0000-000000000007, which stopped responding: its lease ran out at 2020-11-26 23:04:10Z, and the next drain takes the event back."),
        (&[&leased(far, true), "INSERT INTO tidegate.lease_cut (token, id) SELECT token, {} FROM tidegate.lease"],
         "It is ready: the next drain takes it, and none has ended within the last week."),
        (&[&leased(far, true), "UPDATE tidegate.lease SET ended = true", deadline],
         "It is ready: the next drain takes it, and none has ended within the last week; it ends FAILED unless it starts by 2999-01-02 03:04:05Z."),
        (&["UPDATE tidegate.event_queue SET expires_at = '2020-11-26 23:04:10Z'"],
         "It has passed its deadline, 2020-11-26 23:04:10Z: the next drain ends it FAILED with the code expired."),
    ]).await;
}

/// What needs an operator is named before what ends by itself, and of that what ends last.
#[tokio::test]
async fn of_several_things_the_one_is_named_that_must_change_first() {
    let (_db, client, [alone, ..]) = queue().await;
    let down = "It waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried again at 2998-11-26 23:11:00Z.";
    let longer = "UPDATE tidegate.service SET retry_at = '2999-11-26 23:11:00Z'";
    let second = "INSERT INTO tidegate.service (service, state, retry_at, kinds) VALUES ('mail', 'open', '2997-01-01', '{form_archived}')";
    assert_sentences(&client, alone, &[
        (&[PAUSED, DOWN, RETRIED, PAUSED_BY], "It waits because its kind form_archived is paused since 2020-11-26 23:04:10Z by ada."),
        (&[DOWN, RETRIED], "It waits for attempt 3 of 5, which is due at 2999-01-02 03:04:05Z, because the last one ended with 503."),
        (&[DOWN, RETRIED, longer], &down.replace("2998", "2999")),
        (&[DOWN, second], down),
        (&[DOWN, second, RETRIED, "UPDATE tidegate.service SET state = 'paused' WHERE service = 'mail'"],
         "It waits because the service mail is paused."),
        (&[DOWN, "DELETE FROM tidegate.event_kind"], down),
    ]).await;
}

#[tokio::test]
async fn what_stands_behind_another_says_what_that_one_waits_for() {
    let (_db, client, [_, head, behind]) = queue().await;
    let of_head = |change: &str| change.replace("{}", &head.to_string());
    let (paused, retried) = (
        format!("{PAUSED} WHERE kind = 'form_archived'"),
        format!("{RETRIED} WHERE id = {head}"),
    );
    let says = |end: &str| format!("It waits behind event {head} of its group, which {end}");
    let of_lease = of_head(&leased("2999-01-02 03:04:05Z", true));
    let both = of_lease.replace(
        &format!("ARRAY[{head}]"),
        &format!("ARRAY[{head},{behind}]"),
    );
    let handled = says(
        "is being handled now, attempt 1 of 5, by worker 00000000-0000-0000-0000-000000000007, whose lease runs until 2999-01-02 03:04:05Z.",
    );
    let deadline =
        "UPDATE tidegate.event_queue SET expires_at = '2998-01-02 03:04:05Z' WHERE id = {}";
    assert_sentences(&client, behind, &[
        (&[&paused], &says("is ready: the next drain takes it, and none has ended within the last week.")),
        (&[&retried, &paused], &says("waits for attempt 3 of 5, which is due at 2999-01-02 03:04:05Z, because the last one ended with 503.")),
        (&[DOWN], &says("waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried again at 2998-11-26 23:11:00Z.")),
        (&[&of_lease], &handled),
        (&[&both], &handled),
        (&[&of_lease, deadline], &format!("{}; it ends FAILED unless it starts by 2998-01-02 03:04:05Z.", handled.trim_end_matches('.'))),
        (&[&format!("DELETE FROM tidegate.event_queue WHERE id = {head}")],
         "It is ready: the next drain takes it, and none has ended within the last week."),
    ]).await;
}

#[tokio::test]
async fn of_an_ended_event_it_says_how_it_ended_and_an_unknown_one_is_refused() {
    let (_db, client) = support::opened().await;
    let ended = |status: &str, attempts: i32| {
        format!("INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
                 VALUES ({{}}, 'form_archived', '{status}', {attempts}, 5, '[{{\"code\": \"503\", \"message\": \"a secret\"}}]', now(), '2020-11-26 23:04:10Z', '2999-01-01')")
    };
    assert_sentences(
        &client,
        9,
        &[
            (
                &[&ended("COMPLETED", 1)],
                "It ended COMPLETED at 2020-11-26 23:04:10Z after 1 attempt.",
            ),
            (
                &[&ended("FAILED", 5)],
                "It ended FAILED at 2020-11-26 23:04:10Z after 5 attempts with the code 503.",
            ),
        ],
    )
    .await;
    let unknown =
        "id: must be the id of an event, got 9, which is neither in the queue nor in the log";
    support::refused(&client, "SELECT tidegate.why(9)", unknown).await;
    support::refused(
        &client,
        "SELECT tidegate.why(NULL)",
        &unknown.replace('9', "NULL"),
    )
    .await;
}

#[tokio::test]
async fn the_command_line_shows_it_for_one_event_and_for_all_that_wait() {
    let (db, client, [alone, head, behind]) = queue().await;
    execute(&client, &format!("{RETRIED} WHERE id = {head}")).await;
    lease_away(&client, &[alone], 3600.0).await;
    let waits = format!(
        "It waits behind event {head} of its group, which waits for attempt 3 of 5, \
        which is due at 2999-01-02 03:04:05Z, because the last one ended with 503."
    );
    let cli = Cli::on(&db);
    assert_eq!(cli.json(&["show", &behind.to_string()]).await["why"], waits);
    let shown = cli.run(&["show", &behind.to_string()]).await.stdout;
    contains(&shown, &format!("\n{:22} {waits}\n", "why"));
    assert_eq!(shown.matches("It waits").count(), 1, "{shown}");
    let all = cli.json(&["list", "--waiting"]).await["events"].take();
    let listed: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["id"])
        .collect();
    assert_eq!(listed, [&json!(behind), &json!(head), &json!(alone)]);
    has(&all[0], &json!({"why": waits, "status": "PENDING"}));
    let table = cli
        .run(&["list", "--waiting", "--status", "pending"])
        .await
        .stdout;
    contains(&table, &waits);
    assert!(!table.contains("is being handled"), "{table}");
    let other = cli.json(&["list"]).await["events"].take();
    assert!(other[0].get("why").is_none(), "{other}");
    execute(&client, "DELETE FROM tidegate.lease; SELECT tidegate.cancel(ids => ARRAY(SELECT id FROM tidegate.event_queue), reason => 'r')").await;
    assert_eq!(cli.json(&["list", "--waiting"]).await["events"], json!([]));
}

#[tokio::test]
async fn a_group_behind_a_service_is_blocked_and_says_by_which() {
    let (db, client, [_, head, _]) = queue().await;
    let cli = Cli::on(&db);
    let none = "{\"action\":\"blocked_groups\",\"groups\":[]}";
    assert_eq!(cli.json(&["blocked-groups"]).await.to_string(), none);
    execute(&client, DOWN).await;
    let groups = cli.json(&["blocked-groups"]).await["groups"].take();
    let down = "It waits for the service archive, which has been down since 2020-11-26 23:04:10Z (503) and is tried again at 2998-11-26 23:11:00Z.";
    assert_eq!(groups.as_array().unwrap().len(), 1, "{groups}");
    has(
        &groups[0],
        &json!({"group_key": "g", "head_id": head, "waiting": 1, "why": down}),
    );
    contains(&cli.run(&["blocked-groups"]).await.stdout, down);
}
