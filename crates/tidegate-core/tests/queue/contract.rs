//! The schema's comments, and delays as producers in any language set them.

use test_support as support;
use test_support::probe::{live, number, probe};
use test_support::{column, refused, rows};
use tidegate_core::connect::Client;

/// Objects of the schema without a comment. Partitions inherit the log's. Apart from the queue's own history,
/// the migrations' histories belong to their programs.
const SILENT: &str = "
    SELECT 'schema tidegate' AS what WHERE obj_description('tidegate'::regnamespace, 'pg_namespace') IS NULL
    UNION ALL
    SELECT 'function ' || p.oid::regprocedure FROM pg_proc AS p
     WHERE p.pronamespace = 'tidegate'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
    UNION ALL
    SELECT c.relkind::text || ' ' || c.relname FROM pg_class AS c
     WHERE c.relnamespace = 'tidegate'::regnamespace AND (c.relkind IN ('r', 'p', 'v', 'm', 'f') OR c.relkind = 'S' AND has_sequence_privilege('tidegate_read', c.oid, 'SELECT'))
       AND (NOT c.relispartition OR c.relname = 'event_log_default') AND obj_description(c.oid, 'pg_class') IS NULL
       AND (c.relname !~ '_migrations$' OR c.relname = 'queue_migrations')
    UNION ALL
    SELECT 'column ' || c.relname || '.' || a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
     WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
       AND a.attnum > 0 AND NOT a.attisdropped AND col_description(c.oid, a.attnum) IS NULL
       -- The columns of tables that no role of people may read are no interface.
       AND EXISTS (SELECT FROM unnest(ARRAY['tidegate_publish', 'tidegate_pull', 'tidegate_read', 'tidegate_operate', 'tidegate_jobs']) AS r
                    WHERE has_any_column_privilege(r, c.oid, 'SELECT'))
       AND (c.relname !~ '_migrations$' OR c.relname = 'queue_migrations')
    UNION ALL
    -- Whatever a role of people and producers may call is described with its arguments, each by its name.
    -- What drains call, and what nobody but the owner may call, is no interface: there one line is enough.
    SELECT 'argument ' || name || ' of ' || p.oid::regprocedure
      FROM pg_proc AS p CROSS JOIN LATERAL unnest(p.proargnames[:p.pronargs]) AS name
     WHERE p.pronamespace = 'tidegate'::regnamespace
       AND EXISTS (SELECT FROM unnest(ARRAY['tidegate_publish', 'tidegate_pull', 'tidegate_read', 'tidegate_operate', 'tidegate_jobs']) AS r
                    WHERE has_function_privilege(r, p.oid, 'EXECUTE'))
       AND obj_description(p.oid, 'pg_proc') !~ ('\\m' || name || '\\M')
     ORDER BY 1";

/// Columns of events that can hold words, and neither are forgotten nor are known to be about nobody.
const NOT_FORGOTTEN: &str = "
    SELECT DISTINCT a.attname::text FROM pg_attribute AS a
     WHERE a.attrelid IN ('tidegate.event_queue'::regclass, 'tidegate.event_log'::regclass) AND a.attnum > 0 AND NOT a.attisdropped
       AND a.atttypid::regtype::text ~ '^(text|jsonb?|bytea|character)'
       AND a.attname NOT IN ('kind', 'status', 'traceparent')
       AND (coalesce(a.attstattarget, -1) <> 0
            -- Live events leave the queue first.
            OR a.attrelid = 'tidegate.event_log'::regclass AND NOT EXISTS (SELECT FROM pg_proc AS p WHERE p.pronamespace = 'tidegate'::regnamespace AND p.proname = 'forget'
                              AND p.prosrc ~ ('\\m' || a.attname || ' = ')))
     ORDER BY 1";

#[tokio::test]
async fn i9_a_column_of_an_event_that_can_hold_words_is_forgotten_and_in_no_statistics() {
    let (_db, client) = probe().await;
    assert_eq!(column::<String>(&client, NOT_FORGOTTEN).await, [""; 0]);
    let added = "ALTER TABLE tidegate.event_log ADD tags text[], ADD remark text; SELECT tidegate.keep_out_of_statistics('tidegate.event_log')";
    client.batch_execute(added).await.unwrap();
    let found: Vec<String> = column(&client, NOT_FORGOTTEN).await;
    assert_eq!(found, ["remark", "tags"]);
}

async fn silent(client: &Client) -> Vec<String> {
    column(client, SILENT).await
}

#[tokio::test]
async fn every_object_of_the_schema_has_a_comment_that_names_what_a_caller_gives() {
    let db = support::empty_database().await;
    let database = db.database();
    let migrate = tidegate_core::migrate::Migrate::new(&["act"]);
    migrate.with_roles().run(&database).await.unwrap();
    let client = db.client().await;
    assert_eq!(silent(&client).await, [""; 0]);
    // Sessions would go on with the value that a setting had when they first used it.
    let fixed = "SELECT proname::text FROM pg_proc WHERE obj_description(oid, 'pg_proc') LIKE '%Set by `tidegate migrate` from%'
                    AND provolatile <> 's'";
    assert_eq!(column::<String>(&client, fixed).await, [""; 0]);
    let careless = "
        CREATE TABLE tidegate.new_table (new_column integer);
        GRANT SELECT ON tidegate.new_table TO tidegate_read;
        CREATE FUNCTION tidegate.new_function() RETURNS integer LANGUAGE sql RETURN 1;
        CREATE FUNCTION tidegate.told(told_argument integer, new_argument integer) RETURNS integer LANGUAGE sql RETURN 1;
        COMMENT ON FUNCTION tidegate.told IS 'told_argument: a number.';
        GRANT EXECUTE ON FUNCTION tidegate.told TO tidegate_publish";
    client.batch_execute(careless).await.unwrap();
    assert_eq!(
        silent(&client).await,
        [
            "argument new_argument of tidegate.told(integer,integer)",
            "column new_table.new_column",
            "function tidegate.new_function()",
            "r new_table",
        ]
    );
}

/// Seconds from the publish to the earliest start, for the event that was published last.
const WAIT: &str = "SELECT round(extract(epoch FROM available_at - created_at))::bigint FROM tidegate.event_queue ORDER BY id DESC LIMIT 1";

#[tokio::test]
async fn a_delay_is_counted_from_the_publish() {
    let (_db, client) = probe().await;
    for (arguments, seconds) in [
        ("delay => '90 seconds'", 90),
        ("delay => '1 day', group_key => 'g'", 86400),
        ("delay => '0'", 0),
        ("available_at => clock_timestamp() + '1 hour'", 3600),
        ("delay => '1 hour', dedup_key => 'd'", 3600),
        (
            "delay => '2 h', dedup_key => 'd', on_duplicate => 'replace'",
            7200,
        ),
    ] {
        let sql = format!("SELECT tidegate.publish('act', '{{}}', {arguments})");
        client.batch_execute(&sql).await.unwrap();
        let waits = number(&client, WAIT).await;
        // A replaced event was published before its new delay was set.
        assert!(
            (seconds..seconds + 60).contains(&waits),
            "{arguments}: {waits}"
        );
        let delayed = "SELECT count(*) FROM (SELECT delayed FROM tidegate.event_queue ORDER BY id DESC LIMIT 1) AS q WHERE delayed";
        let found = number(&client, delayed).await;
        assert_eq!(found, i64::from(seconds > 0), "{arguments}");
    }
    for (delay, seconds) in [
        ("90", 90),
        ("0.2", 0),
        ("\"90 seconds\"", 90),
        ("\"PT2M\"", 120),
        ("\"45\"", 45),
        ("null", 0),
    ] {
        let sql = format!(
            "SELECT tidegate.publish_many('[{{\"kind\": \"note\"}}, {{\"kind\": \"act\", \"delay\": {delay}}}]')"
        );
        client.batch_execute(&sql).await.unwrap();
        assert_eq!(number(&client, WAIT).await, seconds, "{delay}");
    }
}

#[tokio::test]
async fn a_delay_that_cannot_be_is_refused_by_its_name() {
    let (_db, client) = probe().await;
    let one = "
        delay := '-1 second' => delay: must be 0 to 36500 days, got -00:00:01
        delay := '200 years' => delay: must be 0 to 36500 days, got 200 years
        delay := '1 hour', available_at := now() => delay: must not be given together with available_at
        delay := '31 days', group_key := 'g' => delay: must be at most 30 days for an event of a group, because it blocks its group until then, got 31 days";
    for (arguments, begins) in rows(one) {
        let sql = format!("SELECT tidegate.publish('act', NULL, {arguments})");
        refused(&client, &sql, begins).await;
    }
    let many = r#"
        -1 => must be 0 to 3153600000 seconds (36500 days), got -1
        1e300 => must be 0 to 3153600000 seconds (36500 days), got 1000
        "-1 second" => must be 0 to 36500 days, got -00:00:01
        "soon" => must be a number of seconds or an interval such as "90 seconds", got "soon"
        "999999999999 years" => must be a number of seconds or an interval such as "90 seconds", got "999999999999 years"
        true => must be a number of seconds or an interval such as "90 seconds", got true
        [1] => must be a number of seconds or an interval such as "90 seconds", got [1]
        1, "available_at": "2030-01-01" => must not be given together with available_at
        "31 days", "group_key": "g" => must be at most 30 days for an event of a group"#;
    for (delay, begins) in rows(many) {
        let events = format!(r#"[{{"kind": "act"}}, {{"kind": "act", "delay": {delay}}}]"#);
        let sql = format!("SELECT tidegate.publish_many('{events}')");
        refused(&client, &sql, &format!("event 2: delay: {begins}")).await;
    }
    assert_eq!(live(&client).await, 0);
}
