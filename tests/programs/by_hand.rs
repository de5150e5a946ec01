//! What people ask of a queue on the command line: replay, requeue, notes, cleanup, retention,
//! schedules, services, reports.

use crate::cli::with_reason;
use crate::support::cli::Cli;
use crate::support::probe::{
    ProbeApp, drain, number, options, probe, probe_database, publish_acts,
};
use crate::support::{self, TestDb, begins, column, contains, execute, has, rows, words};
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate_admin::prometheus::{Format, metrics};

/// Publishes `act` events, drains them with success, and returns their ids.
async fn ended(db: &TestDb, client: &Client, count: usize) -> Vec<i64> {
    let ids = publish_acts(client, count).await;
    drain(db, &ProbeApp::succeeding(), &options()).await;
    ids
}

#[tokio::test]
async fn the_command_line_retires_a_kind_of_others_and_none_of_its_own() {
    let db = probe_database().await;
    let cli = Cli::on(&db);
    let (code, retired) = with_reason(&cli, &["retire", "act"]).await;
    assert_eq!((code, &retired["kind"]), (Some(0), &json!("act")));
    cli.run(&["retire", "case_opened", "--reason", "why"])
        .await
        .failed(
            2,
            &["<KIND>: must be one that this program does not handle, got \"case_opened\""],
        );
}

#[tokio::test]
async fn f5_the_command_line_replays_and_requeues() {
    let (db, client) = probe().await;
    let ids = ended(&db, &client, 2).await;
    let (one, two) = (ids[0].to_string(), ids[1].to_string());
    let cli = Cli::on(&db);
    let (code, dry) = with_reason(&cli, &["replay", "--since", "1h", "--dry-run"]).await;
    let found = (code, &dry["action"], &dry["eligible"]);
    assert_eq!(found, (Some(0), &json!("replay"), &json!(2)));
    let (code, done) = with_reason(&cli, &["replay", "--id", &one, &two]).await;
    assert_eq!((code, &done["replayed"]), (Some(0), &json!(2)));
    let (code, twice) = with_reason(&cli, &["replay", "--id", &one, "--id", &two]).await;
    assert_eq!((code, &twice["replayed"]), (Some(1), &json!(0)));
    let window = words("replay --kind act --status completed --since 2h --until 1h");
    let (code, nothing) = with_reason(&cli, &window).await;
    let seen = (code, &nothing["matched"]);
    assert_eq!(seen, (Some(0), &json!(0)), "a filter may match nothing");
    let told = cli.run(&["replay", "--id", &one, "--reason", "why"]).await;
    begins(&told.stdout, "replay: not done\nmatched          1  ");
    contains(&told.stdout, "its replay is live");
    let live_id = done["events"][0]["id"].to_string();
    let (code, requeued) = with_reason(&cli, &["requeue", "--id", &live_id, &one]).await;
    assert_eq!((code, &requeued["requeued"]), (Some(0), &json!(1)));
    let (code, none) = with_reason(&cli, &["requeue", "--id", &one]).await;
    assert_eq!((code, &none["requeued"]), (Some(1), &json!(0)));
    let told = cli.run(&["requeue", "--id", &one, "--reason", "why"]).await;
    contains(&told.stdout, "ended as COMPLETED; use replay");
}

#[tokio::test]
async fn f5_the_command_line_refuses_a_replay_past_the_deadline() {
    let (db, client) = probe().await;
    let id = ended(&db, &client, 1).await[0].to_string();
    let expire = "UPDATE tidegate.event_log SET deadline = clock_timestamp()";
    client.execute(expire, &[]).await.unwrap();
    let cli = Cli::on(&db);
    let told = cli
        .run(&["replay", "--since", "1h", "--reason", "why"])
        .await;
    assert_eq!(told.code, Some(1), "{told:?}");
    begins(
        &told.stdout,
        "replay: nothing was changed: expires_in: is needed",
    );
    let (code, _) = with_reason(&cli, &["replay", "--id", &id, "--expires-in", "1h"]).await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_remark_on_an_event_is_shown_with_it_and_the_audit_says_who_wrote_it() {
    let (db, client) = probe().await;
    let id = ended(&db, &client, 1).await[0];
    let cli = Cli::on(&db);
    let note = |id: i64| format!("note {id} --text called --reason asked --actor ada");
    let note = async |id: i64, further: &[&str]| {
        let line = note(id);
        let words: Vec<&str> = line.split(' ').chain(further.iter().copied()).collect();
        cli.run(&words).await
    };
    assert_eq!(note(id, &["--dry-run"]).await.code, Some(0));
    let audit = "SELECT format('%s %s', action, count) FROM tidegate.audit ORDER BY id";
    assert_eq!(column::<String>(&client, audit).await, [""; 0]);
    assert_eq!(note(id, &[]).await.code, Some(0));
    let refused = note(i64::MAX, &[]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let shown = cli.json(&["show", &id.to_string()]).await;
    let told = &shown["notes"][0];
    has(told, &json!({"text": "called", "actor": "ada"}));
    assert_eq!(shown["notes"].as_array().unwrap().len(), 1);
    assert_eq!(column::<String>(&client, audit).await, ["note 1", "note 0"]);
}

async fn tidegate(db: &TestDb, arguments: &[&str]) -> (Option<i32>, Value, String) {
    let cli = Cli::on(db).with("TIDEGATE_ACTOR", "an operator");
    let ran = cli.run(&[arguments, &["--json"]].concat()).await;
    (ran.code, ran.document(), ran.stderr)
}

#[tokio::test]
async fn cleanup_is_a_verb_with_the_options_of_the_invocation() {
    let (db, client) = test_support::opened().await;
    let expired = "SELECT tidegate.make_log_partition((now() AT TIME ZONE 'UTC')::date - 2);
        INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT n, 'act', 'COMPLETED', 1, 5, '[]', t, t, t
          FROM generate_series(1, 3) AS n, (SELECT now() - interval '2 days' AS t) AS ago";
    execute(&client, expired).await;
    let arguments = words("cleanup --dry-run --budget 20s --older-than 1h --batch 5");
    let (code, dry, _) = tidegate(&db, &arguments).await;
    let found = (code, &dry["action"], &dry["dry_run"]);
    assert_eq!(found, (Some(0), &json!("cleanup"), &json!(true)));
    has(&dry, &json!({"rows_dropped": 3, "budget_ms": 20_000}));
    let (_, done, _) = tidegate(&db, &["cleanup"]).await;
    has(&done, &json!({"rows_dropped": 3, "stop_reason": "done"}));
    let actors = "SELECT DISTINCT actor FROM tidegate.audit";
    assert_eq!(column::<String>(&client, actors).await, ["an operator"]);
    let (code, _, errors) = tidegate(&db, &["cleanup", "--batch", "0"]).await;
    assert!(code == Some(2) && errors.contains("--batch"), "{errors}");
}

#[tokio::test]
async fn b21_retention_is_shown_and_set_for_what_ends_from_then_on() {
    let (db, client) = test_support::opened().await;
    publish_acts(&client, 4).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    let (_, shown, _) = tidegate(&db, &["retention"]).await;
    let act = json!({"kind": "act", "retention_completed": "30 days", "retention_failed": "90 days",
               "retention_completed_ms": 2_592_000_000_i64, "retention_failed_ms": 7_776_000_000_i64});
    let found = (shown["kinds"].as_array().unwrap().len(), &shown["kinds"][0]);
    assert_eq!(found, (3, &act));
    let why = ["--reason", "the disk is full"];
    let set = [&["retention", "act", "--completed", "7d"], &why[..]].concat();
    let (code, set, errors) = tidegate(&db, &set).await;
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(set["kinds"][0]["retention_completed"], "7 days");
    let kept = "SELECT DISTINCT format('%s %s', expires_at - finished_at, tableoid::regclass <> 'tidegate.event_log_default'::regclass)
                  FROM tidegate.event_log ORDER BY 1";
    assert_eq!(
        column::<String>(&client, kept).await,
        ["30 days t"],
        "what has finished is left alone"
    );
    publish_acts(&client, 1).await;
    drain(&db, &ProbeApp::succeeding(), &options()).await;
    assert_eq!(
        column::<String>(&client, kept).await,
        ["30 days t", "7 days t"]
    );
    let audit = "SELECT format('%s %s %s %s %s', action, actor, filter->>'kind', count, reason) FROM tidegate.audit ORDER BY id";
    let expected = ["set_retention an operator act 1 the disk is full"];
    assert_eq!(column::<String>(&client, audit).await, expected);
}

#[tokio::test]
async fn a_retention_that_makes_no_sense_is_refused_by_name() {
    let (db, client) = test_support::opened().await;
    for (arguments, says) in [
        (&["unheard_of"][..], "unheard_of"),
        (
            &["unheard_of", "--completed", "1d", "--reason", "r"],
            "unheard_of",
        ),
        (&["act", "--completed", "1d"], "--reason"),
        (&["act", "--completed", "1d", "--reason", " "], "reason"),
        (&["act", "--failed", "soon", "--reason", "r"], "soon"),
        (&["--completed", "1d", "--reason", "r"], "KIND"),
    ] {
        let (code, _, errors) = tidegate(&db, &[&["retention"], arguments].concat()).await;
        assert!(
            code == Some(2) && errors.contains(says),
            "{arguments:?}: {code:?} {errors}"
        );
    }
    for sql in [
        "SELECT tidegate.set_retention('act', reason => 'r')",
        "SELECT tidegate.set_retention('act', completed => '-1 second', reason => 'r')",
        "SELECT tidegate.set_retention('act', failed => '11 years', reason => 'r')",
    ] {
        let refused = client.batch_execute(sql).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "22023", "{sql}");
    }
    let sql = "SELECT count(*) FROM tidegate.audit";
    assert_eq!(number(&client, sql).await, 0);
}

/// What a publisher and a drain's login may write at most and at least, as far as it is a number or a time.
const EXTREMES: &str = "
    INSERT INTO tidegate.event_queue (kind, group_key, stray, available_at, expires_at)
    SELECT 'grant_letter_viewed', g, true, a, e
      FROM unnest(ARRAY[NULL, 'g', 'h']) AS g, unnest(ARRAY['294276-12-31', '4713-01-01 BC', 'now']::timestamptz[]) AS a,
           unnest(ARRAY['294276-12-31', '4713-01-01 BC', NULL]::timestamptz[]) AS e;
    UPDATE tidegate.event_queue
       SET waits_since = (ARRAY['now', '4713-01-01 BC', '294276-12-31']::timestamptz[])[id % 3 + 1],
           attempts = 1000000 * (id % 2), lapses = 1000000 * (id / 2 % 2),
           reported = jsonb_build_object('handler', 'h', 'part', 'Infinity'::float8, 'at', clock_timestamp());
    INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, cuts, clear_to, as_of)
    SELECT gen_random_uuid(), gen_random_uuid(), l.ids, l.started_to, l.time, l.time, l.time, l.cuts, l.started_to, l.as_of
      FROM (VALUES (int8multirange '{[1,1]}', 9223372036854775806, timestamptz '294276-12-31', 2147483647, xid8 '18446744073709551615'),
                   ('{[2,2]}', 9223372036854775806, '4713-01-01 BC', -2147483648, '0'), ('{[3,3]}', 9223372036854775806, 'now', 0, '0'),
                   ('{[9000,)}', -9223372036854775808, '294276-12-31', 0, '0'), ('{(,0]}', -9223372036854775808, '4713-01-01 BC', 0, '0'))
           AS l(ids, started_to, time, cuts, as_of);
    INSERT INTO tidegate.service (service, state, since, failures, holds, retry_at, answers, answered_at, kinds, per_second, next_start)
    SELECT format('%s %s %s', s, t, n), s, t, n, n, t, n, t, '{grant_letter_viewed}', 0.0001, t
      FROM unnest(ARRAY['closed', 'open', 'probing', 'paused']) AS s, unnest(ARRAY['294276-12-31', '4713-01-01 BC']::timestamptz[]) AS t,
           unnest(ARRAY[2147483647, 0]) AS n;
    INSERT INTO tidegate.service_place SELECT s.service, gen_random_uuid(), 10000, 'infinity' FROM tidegate.service AS s, generate_series(1, 3);
    UPDATE tidegate.drain_slot
       SET worker = gen_random_uuid(), name = 'n', until = t, taken_at = t
      FROM unnest(ARRAY['infinity', '-infinity', '294276-12-31', '4713-01-01 BC']::timestamptz[]) WITH ORDINALITY AS n(t, slot)
     WHERE drain_slot.slot = n.slot;
    UPDATE tidegate.wake SET sent_at = 'infinity', asked_at = '-infinity';
    INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, processing_started_at, finished_at, expires_at, deadline)
    SELECT 1000 + row_number() OVER (), 'grant_letter_viewed', s, n, n, '[]', c, c, f, x, c
      FROM unnest(ARRAY['COMPLETED', 'FAILED']) AS s, unnest(ARRAY[2147483647, -2147483648]) AS n,
           unnest(ARRAY['infinity', '-infinity', '294276-12-31', '4713-01-01 BC', 'now']::timestamptz[]) AS c,
           unnest(ARRAY['infinity', '-infinity', '294276-12-31', '4713-01-01 BC', 'now']::timestamptz[]) AS f,
           unnest(ARRAY['infinity', '-infinity', '294276-12-31', '4713-01-01 BC', 'now']::timestamptz[]) AS x;
    SELECT tidegate.add_figures(array_agg('grant_letter_viewed'::text), array_agg(s), array_agg(8), array_agg(9223372036854775807), array_agg(9223372036854775807),
                                array_agg('Infinity'::float8), array_agg('c' || n), array_agg(9223372036854775807))
      FROM unnest(ARRAY['COMPLETED', 'FAILED', 'COMPLETED_WITH_ERRORS', 'PUT_OFF']) AS s, generate_series(1, 60) AS n;
    SELECT tidegate.note_run(gen_random_uuid(), '{\"elapsed_ms\": 9e13, \"stop_reason\": \"queue_empty\"}');
    -- More than add_figures() leaves of a row.
    INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms, code)
    SELECT date_trunc('minute', now()) - n * interval '30 minutes', 'grant_letter_viewed', s, b, 9223372036854775807, 9223372036854775807,
           9223372036854775807, 'c'
      FROM generate_series(0, 20) AS n, unnest(ARRAY['COMPLETED', 'FAILED', 'COMPLETED_WITH_ERRORS']) AS s, unnest(ARRAY[50, NULL]) AS b";

#[tokio::test]
async fn no_number_and_no_time_that_may_be_written_stops_a_reader() {
    let (db, client) = support::opened().await;
    execute(&client, EXTREMES).await;
    let views = "SELECT c.relname::text FROM pg_class AS c
                  WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v')";
    for view in column::<String>(&client, views).await {
        execute(
            &client,
            &format!("SELECT v::text FROM tidegate.{view} AS v"),
        )
        .await;
    }
    for ids in ["tidegate.event_queue", "tidegate.event_log"] {
        let one = format!(
            "SELECT tidegate.why(id), tidegate.due_at(id), tidegate.job(id) FROM {ids} WHERE id % 9 = 1"
        );
        execute(&client, &one).await;
    }
    let cli = Cli::on(&db);
    for verb in [
        "status",
        "list --limit 1000",
        "list --waiting",
        "failures",
        "blocked-groups",
        "leases",
        "services",
        "schedules",
        "retention",
        "show 1",
        "show 2",
        "show 3",
        "show 4",
        "show 1001",
        "show 1250",
        "cancel --kind grant_letter_viewed --reason why --dry-run",
        "replay --since 2h --expires-in 1h --reason why --dry-run",
        "cleanup --dry-run",
        "cleanup",
    ] {
        let words: Vec<&str> = verb.split(' ').collect();
        let ran = cli.run(&words).await;
        assert_eq!(ran.code, Some(0), "{verb}: {ran:?}");
    }
    let doctor = cli.run(&["doctor"]).await;
    assert_eq!(doctor.code, Some(3), "{doctor:?}");
    assert!(
        !doctor.stdout.contains("could not be checked"),
        "{}",
        doctor.stdout
    );
}

#[tokio::test]
async fn operators_list_pause_resume_and_run_schedules_on_the_command_line() {
    let (db, client) = support::opened().await;
    let nightly = "INSERT INTO tidegate.schedule (keeper, name, kind, payload, cron, time_zone)
                   VALUES ('office', 'nightly', 'grant_letter_viewed', '{\"grant_number\": \"G\"}', '30 2 * * *', 'Europe/Kyiv')";
    execute(&client, nightly).await;
    let cli = Cli::on(&db);
    let schedule = async |arguments: &str| {
        let line = format!("schedule nightly {arguments} --reason 'asked for'");
        cli.json(&words(&line)).await
    };
    let ran = schedule("--run").await["event_id"].as_i64().unwrap();
    let published = format!("SELECT count(*) FROM tidegate.event_queue WHERE id = {ran}");
    assert_eq!(number(&client, &published).await, 1);
    let listed = cli.json(&["schedules"]).await;
    let one = &listed["schedules"][0];
    has(one, &json!({"state": "waiting", "keeper": "office"}));
    assert!(one["next_at"].is_string(), "{one}");
    let paused = schedule("--pause").await;
    has(&paused, &json!({"paused": true, "changed": true}));
    let told = cli.run(&["schedules"]).await;
    contains(&told.stdout, "30 2 * * *  Europe/Kyiv");
    contains(&told.stdout, "office");
    schedule("--resume").await;
    let actions = "SELECT string_agg(action || ' ' || reason, ', ' ORDER BY id) FROM tidegate.audit WHERE action LIKE '%schedule'";
    let expected = "run_schedule asked for, pause_schedule asked for, resume_schedule asked for";
    assert_eq!(column::<String>(&client, actions).await, [expected]);
    let unknown = cli
        .run(&["schedule", "daily", "--pause", "--reason", "r"])
        .await;
    unknown.failed(2, &["<NAME>: must be the name of a schedule, got daily"]);
}

/// The views refuse to be read where plans are compiled, whatever they cost.
#[tokio::test]
async fn reports_metrics_and_the_doctor_compile_nothing() {
    let db = probe_database().await;
    let refusing = "CREATE FUNCTION public.compiles_nothing() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
        BEGIN
            IF current_setting('jit') <> 'off' THEN RAISE 'it is compiled'; END IF;
            RETURN true;
        END $$;
        DO $$
        DECLARE
            v record;
        BEGIN
            FOR v IN SELECT * FROM pg_views WHERE schemaname = 'tidegate' AND viewname <> 'stats' LOOP
                EXECUTE format('CREATE OR REPLACE VIEW tidegate.%I AS SELECT * FROM (%s) AS v WHERE public.compiles_nothing()',
                               v.viewname, rtrim(v.definition, ';'));
            END LOOP;
        END $$";
    let client = db.client().await;
    execute(&client, refusing).await;
    client.batch_execute("SET jit = on").await.unwrap();
    let refused = client.query("SELECT * FROM tidegate.services", &[]).await;
    assert!(refused.is_err(), "{refused:?}");
    // It has a function of its own, which reads one of the others.
    execute(&client, "SELECT FROM tidegate.stats").await;
    metrics(&db.database(), Format::Text).await.unwrap();
    let cli = Cli::on(&db);
    for report in words("status services leases blocked-groups list failures") {
        let ran = cli.run(&[report]).await;
        assert_eq!(ran.code, Some(0), "{report}: {ran:?}");
    }
    let ran = format!("{:?}", cli.run(&["doctor"]).await);
    contains(&ran, "services");
    assert!(!ran.contains("it is compiled"), "{ran}");
}

#[tokio::test]
async fn operators_limit_a_service_and_wrong_limits_are_refused_by_name() {
    let db = probe_database().await;
    let cli = Cli::on(&db);
    let service = async |limits: &str| {
        let line = format!("service carrier --reason 'the contract' {limits}");
        cli.run(&words(&line)).await
    };
    for (limits, says) in rows(
        "--limit 4 --per-second 20 => max running 4, per second 20.0
         --limit 0 => per second 20.0
         --limit 7 => max running 7, per second 20.0
         --limit 0 --per-second 0 => not limited",
    ) {
        let ran = service(limits).await;
        begins(&ran.stdout, "limit service: done\nservice ");
        let is_limit =
            |line: &&str| line.starts_with("max running ") || line.starts_with("per second ");
        let told = ran.stdout.lines().filter(is_limit).map(|line| {
            let words = line.split_whitespace().take(3);
            words.collect::<Vec<_>>().join(" ")
        });
        let told = told.collect::<Vec<_>>().join(", ");
        assert_eq!(told, says.replace("not limited", ""), "{limits}: {ran:?}");
        let is_new = limits == "--limit 4 --per-second 20";
        assert_eq!(
            ran.stdout.contains("Nothing was known"),
            is_new,
            "{limits}: {ran:?}"
        );
    }
    for (limits, says) in rows(
        "--limit 10001 => --limit
         --limit -1 => --limit
         --per-second -1 => --per-second: must be 0.0001 to 10000, or 0 for any number, got -1
         --per-second NaN => --per-second: must be 0.0001 to 10000, or 0 for any number, got NaN
         --pause --limit 4 => --limit
         --actor ada => --limit",
    ) {
        service(limits).await.failed(2, &[says]);
    }
    let sql = "SELECT count(*) FROM tidegate.audit WHERE action = 'limit_service' AND filter->>'service' = 'carrier'";
    assert_eq!(number(&db.client().await, sql).await, 4);
}

#[tokio::test]
async fn a_program_with_handlers_of_its_own_takes_no_file() {
    let db = support::database().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[targets]").unwrap();
    let path = file.path().to_str().unwrap();
    let ran = Cli::on(&db).run(&["migrate", "--targets", path]).await;
    ran.failed(
        2,
        &["targets: must not be given, because this program has handlers of its own"],
    );
    let help = Cli::on(&db).run(&["help", "migrate"]).await;
    assert!(!help.stdout.contains("--targets") && !help.stdout.contains("--dry-run"));
}
