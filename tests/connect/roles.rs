//! Least privilege: what each database role may do, and that it may do nothing else. Migrated by a
//! plain owner, as managed Postgres has them, not by a superuser.

use std::collections::{BTreeSet, HashMap};
use std::io::Cursor;

use crate::support::as_user;
use crate::support::cli::Cli;
use crate::support::function::Function;
use crate::support::golden::{self, golden};
use crate::support::probe::number;
use crate::support::seal;
use crate::support::{self, TestDb, execute, rows, words};
use futures_util::SinkExt;
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::migrate::{Migrate, MigrateReport, Migrations};
use tidegate::{Database, Event, Transaction};
use tidegate_core::queue::{self, Statement};
use tidegate_job::app;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// Who may: each letter a role.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    Publish,
    Drain,
    Pull,
    Operate,
    Read,
    Jobs,
    /// Of the program's own.
    Intake,
    /// As well.
    Callers,
    /// A login that was given nothing.
    Nobody,
}

use Role::{Callers, Drain, Intake, Jobs, Nobody, Operate, Publish, Pull, Read};

const ROLES: [Role; 9] = [
    Publish, Intake, Callers, Drain, Pull, Operate, Read, Jobs, Nobody,
];

/// A database migrated by an owner without superuser's rights, and a connection for each role.
struct World {
    db: TestDb,
    owner: Client,
    logins: HashMap<Role, Client>,
}

impl World {
    async fn new() -> Self {
        let db = support::empty_database().await;
        let admin = db.client().await;
        let name: String = admin
            .query_one("SELECT current_database()::text", &[])
            .await
            .unwrap()
            .get(0);
        // Roles are the whole cluster's: others of this name belong to tests that are over.
        let owner = format!("owner_of_{name}");
        let sql = format!(
            "DROP ROLE IF EXISTS {owner};
             CREATE ROLE {owner} LOGIN NOSUPERUSER CREATEROLE;
             ALTER DATABASE {name} OWNER TO {owner}"
        );
        admin.batch_execute(&sql).await.unwrap();
        let url = as_user(&db.url, &owner);
        migrated(&url, with_roles).await;
        let owner = support::connect(&as_user(db.direct(), &owner)).await;
        let mut logins = HashMap::new();
        for role in ROLES {
            let login = login(role, &name);
            let member = match role {
                Nobody => String::new(),
                role => format!("IN ROLE tidegate_{}", format!("{role:?}").to_lowercase()),
            };
            let sql = format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN {member}");
            admin.batch_execute(&sql).await.unwrap();
            logins.insert(role, support::connect(&as_user(db.direct(), &login)).await);
        }
        Self { db, owner, logins }
    }

    async fn migrate(&self, how: for<'a> fn(Migrate<'a>) -> Migrate<'a>) -> MigrateReport {
        let owner = format!("owner_of_{}", self.db.name());
        migrated(&as_user(&self.db.url, &owner), how).await
    }

    fn login(&self, role: Role) -> String {
        login(role, self.db.name())
    }

    /// Which roles may run what `attempt` runs, in a transaction that is rolled back. Whoever may
    /// not is told so with SQLSTATE 42501, and nothing else.
    async fn allowed(
        &mut self,
        attempt: impl AsyncFn(&Transaction<'_>) -> Result<(), tokio_postgres::Error>,
    ) -> Vec<Role> {
        let mut allowed = Vec::new();
        for role in ROLES {
            let client = self.logins.get_mut(&role).unwrap();
            let transaction = client.transaction().await.unwrap();
            match attempt(&transaction).await {
                Ok(()) => allowed.push(role),
                Err(error) => {
                    let refused = Some(&SqlState::INSUFFICIENT_PRIVILEGE);
                    assert_eq!(error.code(), refused, "{role:?}: {error:?}");
                }
            }
            transaction.rollback().await.unwrap();
        }
        allowed
    }
}

fn login(role: Role, database: &str) -> String {
    format!("{role:?}_of_{database}").to_lowercase()
}

fn with_roles(migrate: Migrate<'_>) -> Migrate<'_> {
    migrate.with_roles()
}

async fn migrated(url: &str, how: for<'a> fn(Migrate<'a>) -> Migrate<'a>) -> MigrateReport {
    let database = Database::new(url, 2).unwrap();
    let migrate = Migrate::new(app::Event::KINDS).tables(&[app::TABLES]);
    how(migrate).run(&database).await.unwrap()
}

/// Runs a statement of the program's with empty arrays and nulls: rights are checked all the same.
async fn run(
    transaction: &Transaction<'_>,
    statement: &Statement,
) -> Result<(), tokio_postgres::Error> {
    let types: Vec<&str> = statement.params.iter().map(Type::name).collect();
    let nothing = types.iter().map(|name| {
        if name.starts_with('_') {
            "'{}'"
        } else {
            "NULL"
        }
    });
    let (types, nothing) = match types.len() {
        0 => (String::new(), String::new()),
        _ => (
            format!("({})", types.join(", ")),
            format!("({})", nothing.collect::<Vec<_>>().join(", ")),
        ),
    };
    let (name, text) = (statement.name, support::usual(statement.text));
    let sql = format!("DEALLOCATE ALL; PREPARE {name}{types} AS {text}; EXECUTE {name}{nothing}");
    match transaction.batch_execute(&sql).await {
        // It has looked at its arguments: whether it may run is decided before.
        Err(error)
            if error
                .code()
                .is_some_and(|state| state.code().starts_with("22")) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// What people type, and what an intruder would. Who may is in `tests/golden/statements.txt`.
const BY_HAND: &[&str] = &[
    "SELECT tidegate.publish('case_opened', NULL)",
    "SELECT tidegate.publish_many('[]')",
    "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('case_opened', NULL)",
    "INSERT INTO tidegate.event_queue (kind, available_at) VALUES ('case_opened', clock_timestamp() + '1 hour')",
    "INSERT INTO tidegate.event_queue (kind) VALUES ('case_opened') RETURNING id",
    "SELECT id FROM tidegate.event_queue",
    // Neither who else is publishing, nor where a row lies, nor a lock that others wait for.
    "SELECT xmin FROM tidegate.event_queue",
    "SELECT ctid FROM tidegate.event_queue",
    "SELECT id FROM tidegate.event_queue FOR UPDATE",
    "SELECT tidegate.publish('case_opened', NULL, delay => '1 hour')",
    "INSERT INTO tidegate.event_queue (kind, kind_known) VALUES ('anything', true)",
    "SELECT tidegate.available_after('1 hour', NULL, NULL)",
    "SELECT kind FROM tidegate.event_queue",
    // A group without its lock, a forged lease, a payload changed on the way, an event that vanishes.
    "INSERT INTO tidegate.event_queue (kind, group_key) VALUES ('case_opened', 'g')",
    "INSERT INTO tidegate.event_queue (kind, attempts) VALUES ('case_opened', 4)",
    "UPDATE tidegate.event_queue SET payload = NULL",
    "UPDATE tidegate.event_queue SET attempts = 0",
    // Who holds what: everybody who looks on may know, and nobody but a drain may change it.
    "SELECT * FROM tidegate.lease",
    "SELECT * FROM tidegate.leases",
    "SELECT * FROM tidegate.held",
    "INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
         VALUES (gen_random_uuid(), gen_random_uuid(), '{[1,2)}', 0, 'now', 'now', 'now', 0, '0')",
    "UPDATE tidegate.lease SET expires_at = 'infinity'",
    // What a schedule publishes: nobody who fires it can change that, or move its slot by hand.
    "SELECT name, next_at FROM tidegate.schedule",
    "SELECT payload FROM tidegate.schedule",
    "UPDATE tidegate.schedule SET next_at = 'infinity'",
    "DELETE FROM tidegate.schedule",
    "SELECT tidegate.fire_schedules('[]')",
    "SELECT tidegate.put_schedule('p', 's', 'case_opened', NULL, '@daily', NULL, 'UTC', NULL, NULL, 'last')",
    "DELETE FROM tidegate.lease",
    "TRUNCATE tidegate.lease",
    "SELECT tidegate.sweep(NULL, '{}')",
    "SELECT tidegate.hand_back(gen_random_uuid(), '{1}')",
    "SELECT tidegate.end_unreadable(gen_random_uuid(), 1, 'forged')",
    "SELECT tidegate.busy_groups('{g}')",
    "SELECT * FROM tidegate.unordered_leases()",
    "SELECT * FROM tidegate.unmarked_events()",
    "SELECT id, lapses, stray, payload_bytes, last_error FROM tidegate.event_queue",
    "SELECT progress FROM tidegate.event_queue",
    "SELECT id, status, lease_token, last_error FROM tidegate.events",
    "SELECT payload FROM tidegate.events",
    "SELECT progress FROM tidegate.events",
    "DELETE FROM tidegate.event_queue",
    "SELECT payload FROM tidegate.event_queue",
    "SELECT payload FROM tidegate.event_log",
    "SELECT progress FROM tidegate.event_log",
    "SELECT id, kind, status FROM tidegate.event_log",
    "SELECT errors FROM tidegate.event_log",
    "SELECT errors FROM tidegate.events",
    "SELECT result FROM tidegate.jobs",
    "SELECT errors FROM tidegate.jobs",
    "SELECT id, status, status_code FROM tidegate.jobs",
    "SELECT last_error FROM tidegate.ends",
    "SELECT result, errors FROM tidegate.job(1)",
    "SELECT * FROM tidegate.logged(1)",
    "DO $$ BEGIN PERFORM tidegate.why(1); EXCEPTION WHEN invalid_parameter_value THEN NULL; END $$",
    // Who calls: the keys themselves are nobody's, and who serves HTTP asks for one it was shown.
    "SELECT * FROM callers.api_key_of('\\x00')",
    "SELECT secret FROM callers.link_key",
    "SELECT digest FROM callers.api_key",
    "SELECT id, label, scopes FROM callers.api_key",
    "UPDATE callers.api_key SET revoked_at = NULL",
    "DELETE FROM callers.link_key",
    "SELECT callers.create_api_key(sha256(''), 'l', gen_random_uuid(), NULL, '{jobs}', '1 day', 'why')",
    "DO $$ BEGIN PERFORM callers.revoke_api_key(1, 'why'); EXCEPTION WHEN invalid_parameter_value THEN NULL; END $$",
    "SELECT callers.rotate_link_key(true, 'why')",
    "SELECT tidegate.publish_children('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    "SELECT * FROM tidegate.daily_stats",
    "SELECT tidegate.cleanup_step('{\"stages\": [\"delete\"]}')",
    "DELETE FROM tidegate.minute_stats",
    "SELECT * FROM tidegate.blocked_groups",
    "SELECT * FROM tidegate.stuck_events",
    "SELECT * FROM tidegate.events",
    "UPDATE tidegate.events SET status = 'PENDING' WHERE id = 1",
    "UPDATE tidegate.event_log SET attempts = 0",
    "DELETE FROM tidegate.event_log",
    "TRUNCATE tidegate.event_log",
    "DROP TABLE tidegate.event_log_default",
    "INSERT INTO tidegate.audit (action) VALUES ('forged')",
    "DELETE FROM tidegate.audit",
    "SELECT * FROM tidegate.audit",
    "UPDATE tidegate.event_kind SET paused = true",
    "INSERT INTO tidegate.event_kind (kind) VALUES ('mine')",
    "CREATE TABLE tidegate.mine (id int)",
    "SELECT tidegate.lock_groups(ARRAY['g'])",
    "SELECT tidegate.replay(ids => ARRAY[1], reason => 'r')",
    "SELECT tidegate.requeue(ARRAY[1], 'r')",
    "SELECT tidegate.cancel(ARRAY[1], reason => 'r')",
    "SELECT tidegate.reschedule(ARRAY[1], available_at => now(), reason => 'r')",
    "SELECT tidegate.end_live(ARRAY[1], 'cancelled', 'forged')",
    "DELETE FROM tidegate.events",
    "SELECT tidegate.pause('case_opened')",
    "SELECT tidegate.retire('case_opened', 'r')",
    "SELECT tidegate.unblock('g', 'retry', 'r')",
    "SELECT tidegate.pause_service('carrier', 'r')",
    "SELECT tidegate.set_service('a', 'carrier', 'paused', 'r', 'me')",
    "SELECT tidegate.limit_service('carrier', 4, NULL, 'r')",
    "SELECT tidegate.claim_service('carrier', gen_random_uuid(), 0, 1, 0, 60)",
    "DELETE FROM tidegate.service",
    "SELECT tidegate.end_leases(ARRAY[1])",
    "SELECT tidegate.record_action('replay', 'me', '{}', ARRAY[1], 'r')",
    "SELECT tidegate.insert_replays(ARRAY[1], false, NULL)",
    "SELECT nextval('tidegate.event_queue_id_seq')",
    "SELECT * FROM forms.form",
    "SELECT * FROM medical.entity",
    "UPDATE medical.entity SET patient_id = id",
    "SELECT * FROM medical.audit",
    "SELECT checks.take_place('t', 'a', 2, 1)",
    "UPDATE checks.issuing_check SET answer = '{}'",
];

#[tokio::test]
async fn every_statement_works_for_its_roles_and_is_refused_to_others() {
    let mut world = World::new().await;
    let mut lines = BTreeSet::new();
    for statement in queue::statements().chain(tidegate_admin::statements()) {
        let may = world.allowed(async |transaction| run(transaction, statement).await);
        lines.insert(format!("{}: {:?}", statement.name, may.await));
    }
    for sql in BY_HAND {
        let may = world.allowed(async |transaction| transaction.batch_execute(sql).await);
        let sql: Vec<&str> = sql.split_whitespace().collect();
        lines.insert(format!("{}: {:?}", sql.join(" "), may.await));
    }
    golden("statements.txt", &golden::text(lines));
}

#[tokio::test]
async fn the_doctor_sees_what_its_caller_may_see() {
    let world = World::new().await;
    let unchecked =
        "SELECT name FROM tidegate.doctor() WHERE finding LIKE 'could not be checked: permission%'";
    for (role, expected) in [
        (Operate, &[][..]),
        (Read, &[]),
        (Drain, &["ids", "log default", "order of groups", "groups"]),
    ] {
        let rows = world.logins[&role].query(unchecked, &[]).await.unwrap();
        let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(found, expected, "{role:?}");
    }
}

#[tokio::test]
async fn no_function_may_be_executed_by_public_and_none_follows_the_callers_search_path() {
    let world = World::new().await;
    // A body that was parsed when it was made has looked its names up.
    let open = "SELECT p.oid::regprocedure::text FROM pg_proc AS p
                 WHERE p.pronamespace IN ('tidegate'::regnamespace, 'forms'::regnamespace, 'checks'::regnamespace, 'medical'::regnamespace)
                   AND (has_function_privilege('public', p.oid, 'EXECUTE')
                        OR p.prosqlbody IS NULL
                           AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false))";
    let found = world.owner.query(open, &[]).await.unwrap();
    let found: Vec<String> = found.iter().map(|row| row.get(0)).collect();
    assert!(found.is_empty(), "{found:?}");
    let careless = "CREATE FUNCTION tidegate.careless() RETURNS integer LANGUAGE sql AS 'SELECT 1';
                    REVOKE ALL ON FUNCTION tidegate.careless() FROM PUBLIC";
    world.owner.batch_execute(careless).await.unwrap();
    assert_eq!(world.owner.query(open, &[]).await.unwrap().len(), 1);
}

/// Publishes rows by COPY, all or none.
async fn copied(client: &Client, rows: &str) -> Result<u64, tokio_postgres::Error> {
    let sink = client
        .copy_in("COPY tidegate.event_queue (kind, payload) FROM STDIN")
        .await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(Cursor::new(rows.as_bytes().to_vec())).await?;
    sink.finish().await
}

#[tokio::test]
async fn a_publishers_plain_insert_or_copy_is_refused_for_the_same_reason_as_its_publish() {
    let world = World::new().await;
    let (owner, publisher) = (&world.owner, &world.logins[&Publish]);
    let retired = "INSERT INTO tidegate.event_kind (kind) VALUES ('retired'), ('kept')";
    owner.batch_execute(retired).await.unwrap();
    let insert = |kind: &str| format!("INSERT INTO tidegate.event_queue (kind) VALUES ('{kind}')");
    execute(
        publisher,
        &format!("BEGIN; {}; ROLLBACK", insert("retired")),
    )
    .await;
    world.logins[&Operate]
        .batch_execute("SELECT tidegate.retire('retired', 'nobody handles it')")
        .await
        .unwrap();
    for kind in ["retired", "never registered"] {
        let publish = format!("SELECT tidegate.publish('{kind}', NULL)");
        let told = publisher.batch_execute(&publish).await.unwrap_err();
        let told = told.as_db_error().unwrap().message().to_owned();
        assert!(
            told.starts_with(&format!(
                "kind: '{kind}' is not registered; registered are: "
            )),
            "{told}"
        );
        let refused = [
            publisher.batch_execute(&insert(kind)).await.unwrap_err(),
            publisher
                .batch_execute(&format!(
                    "INSERT INTO tidegate.event_queue (kind) SELECT k FROM unnest(ARRAY['kept', 'case_opened', '{kind}']) AS k"
                ))
                .await
                .unwrap_err(),
            // Behind one that is registered, in the same transaction.
            publisher
                .batch_execute(&format!("{}; {}", insert("kept"), insert(kind)))
                .await
                .unwrap_err(),
            copied(publisher, &format!("kept\t{{}}\n{kind}\t{{}}\n"))
                .await
                .unwrap_err(),
            owner.batch_execute(&insert(kind)).await.unwrap_err(),
        ];
        for error in refused {
            let error = error.as_db_error().unwrap();
            assert_eq!(error.message(), told);
            assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE);
        }
    }
    let sql = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(number(owner, sql).await, 0);
    let rows = "kept\t{}\ncase_opened\t\\N\nkept\t{\"a\": 1}\n";
    assert_eq!(copied(publisher, rows).await.unwrap(), 3);
    let sql = "SELECT count(id) FROM tidegate.event_queue";
    assert_eq!(number(publisher, sql).await, 3);
}

#[tokio::test]
async fn a_publishers_insert_tells_its_id_and_reads_nothing_of_others() {
    let world = World::new().await;
    let publisher = &world.logins[&Publish];
    let insert = "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('case_opened', '{}') RETURNING id";
    let id: i64 = publisher.query_one(insert, &[]).await.unwrap().get(0);
    let stored = format!(
        "SELECT count(*) FROM tidegate.event_queue WHERE id = {id} AND kind = 'case_opened'"
    );
    assert_eq!(number(&world.owner, &stored).await, 1);
    for sql in [
        insert.replace("RETURNING id", "RETURNING kind"),
        insert.replace("RETURNING id", "RETURNING *"),
        stored,
        "SELECT event_queue FROM tidegate.event_queue".to_owned(),
    ] {
        let error = publisher.batch_execute(&sql).await.unwrap_err();
        let found = error.code();
        assert_eq!(found, Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }
}

/// Names that come before the real ones for whoever looks in `pg_temp` first.
const SHADOWS: &str = "
    CREATE TEMP TABLE event_queue (id bigint, kind text, payload jsonb);
    CREATE TEMP TABLE event_kind (kind text);
    CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
    CREATE FUNCTION pg_temp.char_length(text) RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$;
    CREATE FUNCTION pg_temp.default_max_attempts() RETURNS integer LANGUAGE sql AS $$ SELECT 999 $$;
    CREATE FUNCTION pg_temp.always(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
    CREATE OPERATOR pg_temp.= (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_temp.always);
    SET search_path = pg_temp, tidegate, pg_catalog";

#[tokio::test]
async fn who_only_publishes_makes_the_intake_pass_over_no_message() {
    let world = World::new().await;
    let receive =
        "SELECT tidegate.receive('arn:aws:kafka:eu-central-1:1:cluster/c/issuings', '0-7')";
    for role in [Publish, Pull, Operate, Read, Jobs, Nobody] {
        let error = world.logins[&role].query_one(receive, &[]).await;
        let code = error.as_ref().err().and_then(tokio_postgres::Error::code);
        let refused = Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        assert_eq!(code, refused, "{role:?}");
    }
    // The real one is new, and is known again whichever login the intake has by then.
    for (role, new) in [(Intake, true), (Intake, false), (Drain, false)] {
        let row = world.logins[&role].query_one(receive, &[]).await.unwrap();
        assert_eq!(row.get::<_, bool>(0), new, "{role:?}");
    }
    let granted = format!(
        "GRANT EXECUTE ON FUNCTION tidegate.receive TO {}",
        world.login(Publish)
    );
    world.owner.batch_execute(&granted).await.unwrap();
    world.migrate(with_roles).await;
    let row = world.logins[&Publish].query_one(receive, &[]).await;
    assert!(!row.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn objects_that_shadow_the_real_ones_change_nothing() {
    let world = World::new().await;
    let publisher = &world.logins[&Publish];
    world
        .owner
        .batch_execute(&format!(
            "GRANT TEMPORARY ON DATABASE {} TO PUBLIC",
            world.db.name()
        ))
        .await
        .unwrap();
    publisher.batch_execute(SHADOWS).await.unwrap();
    let publish =
        "SELECT id FROM tidegate.publish('case_opened', '{}', group_key => 'g', dedup_key => 'd')";
    let id: i64 = publisher.query_one(publish, &[]).await.unwrap().get(0);
    let refused = publisher
        .query_one("SELECT tidegate.publish('no_such_kind', NULL)", &[])
        .await
        .unwrap_err();
    assert_eq!(
        refused.code(),
        Some(&SqlState::INVALID_PARAMETER_VALUE),
        "{refused:?}"
    );
    let too_long = publisher
        .query_one("SELECT tidegate.publish(repeat('x', 101), NULL)", &[])
        .await
        .unwrap_err();
    assert_eq!(
        too_long.code(),
        Some(&SqlState::INVALID_PARAMETER_VALUE),
        "{too_long:?}"
    );
    let stored = "SELECT kind, max_attempts, created_at > '2020-01-01' FROM tidegate.event_queue WHERE id = $1";
    let row = world.owner.query_one(stored, &[&id]).await.unwrap();
    let found = (
        row.get::<_, &str>(0),
        row.get::<_, i32>(1),
        row.get::<_, bool>(2),
    );
    assert_eq!(found, ("case_opened", 5, true));
    let shadow: i64 = publisher
        .query_one("SELECT count(*) FROM pg_temp.event_queue", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(shadow, 0);
}

#[tokio::test]
async fn objects_that_shadow_the_real_ones_do_not_deceive_an_operators_verb() {
    let world = World::new().await;
    let ended = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
                 SELECT 7000 + n, 'case_opened', 'FAILED', 1, 5, '[]', clock_timestamp(), clock_timestamp(),
                        clock_timestamp() + (n || ' days')::interval FROM unnest(ARRAY[-1, 1]) AS n";
    world.owner.batch_execute(ended).await.unwrap();
    let operator = &world.logins[&Operate];
    operator.batch_execute(SHADOWS).await.unwrap();
    let replay = "SELECT (tidegate.replay(ids => ARRAY[7001], reason => 'r')->>'replayed')::bigint";
    assert_eq!(number(operator, replay).await, 1);
    let deleted = "SELECT (tidegate.cleanup_step('{\"stages\": [\"delete\"], \"at\": \"event_log_de\"}')->'did'->>'rows_deleted')::bigint";
    let found = number(operator, deleted).await;
    assert_eq!(found, 1, "what has expired, and nothing else");
    let left = "SELECT count(*) FROM tidegate.event_queue WHERE replay_of = 7001
                 AND EXISTS (SELECT FROM tidegate.event_log WHERE id = 7001)";
    assert_eq!(number(&world.owner, left).await, 1);
}

/// Verbs of the command line that a drain's life needs, with who may.
const VERBS: &str = r#"
    publish grant_letter_viewed --payload '{"grant_number": "G-1"}' --group g => Publish Intake Drain
    receive-issuing --message '{"kind": "issuing", "stage": "ai-check", "triggerId": "T1", "applicationId": "A1"}' => Intake Drain
    submit viewed '{"grant_number": "G-1"}' => Intake Drain
    submit cancellation '{"source": "s", "external_id": "1", "measure": {"case_number": "c", "measure_id": "m"}}' => Intake Drain
    submit decline '{"source": "s", "external_id": "2", "measure": {"case_number": "c", "measure_id": "m"}}' => Intake Drain
    drain --max-events 1 => Drain
    status => Operate Read
    list => Drain Operate Read
    leases => Drain Operate Read
    replay --id 1 --reason r => Operate
    pause case_opened => Operate
    resume case_opened => Operate
    cleanup => Operate
    cleanup --dry-run => Operate
    retention case_opened --failed 1d --reason r => Operate
    api-key create --label l --client 00000000-0000-4000-8000-0000000000c1 --scope jobs --reason r => Callers
    api-key list => Callers
    api-key revoke 1 --reason r => Callers
    link-key rotate --reason r => Callers
    migrate => none of them
"#;

#[tokio::test]
async fn each_verb_works_for_its_roles_and_tells_others_that_they_may_not() {
    let world = World::new().await;
    let view = "SELECT tidegate.publish('grant_letter_viewed', '{\"grant_number\": \"G-0\"}') FROM generate_series(1, 9)";
    world.owner.batch_execute(view).await.unwrap();
    for (line, may) in rows(VERBS) {
        for role in ROLES {
            let cli = Cli::at(&as_user(&world.db.url, &world.login(role)));
            if may.contains(&format!("{role:?}")) {
                cli.json(&words(line)).await;
            } else {
                cli.run(&words(line)).await.failed(1, &["(42501)"]);
            }
        }
    }
}

#[tokio::test]
async fn the_operators_login_is_enough_for_every_action_of_the_operators_function() {
    let world = World::new().await;
    let told = "SELECT tidegate.publish('grant_letter_viewed', '{\"grant_number\": \"G-0\"}');
                INSERT INTO tidegate.event_kind (kind) VALUES ('order_placed'), ('order_shipped');
                INSERT INTO tidegate.schedule (keeper, name, kind, cron) VALUES ('shop', 'standing-order', 'order_placed', '0 6 1 * *')";
    world.owner.batch_execute(told).await.unwrap();
    let url = as_user(&world.db.url, &world.login(Operate));
    let keys = seal::keys(&[("2031", seal::OLD)]);
    let settings = [
        ("DATABASE_URL", &*url),
        // The owner migrates, and the intake has a login of its own.
        ("TIDEGATE_ACTIONS", "!drain,migrate,receive,receive_issuing"),
        ("TIDEGATE_PAYLOAD_KEYS_FILE", keys.path().to_str().unwrap()),
    ];
    let function = Function::start(&settings).await;
    let refused = function.invoke(&json!({})).await.body["errorMessage"].to_string();
    let list = refused.split("one of ").nth(1).unwrap().split(", which");
    let mut actions: Vec<&str> = list.take(1).flat_map(|list| list.split(", ")).collect();
    let mut answered: Vec<String> = Vec::new();
    for file in support::project_file("events").read_dir().unwrap() {
        let asked = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let asked: Value = serde_json::from_str(&asked).unwrap();
        let action = asked["action"].as_str().unwrap_or_default().to_owned();
        if !actions.contains(&&*action) {
            continue;
        }
        let answer = function.invoke(&asked).await;
        assert!(!answer.is_error, "{asked}: {answer:?}");
        let may_not = answer.body.to_string().contains("permission denied");
        assert!(!may_not, "{asked}: {answer:?}");
        answered.push(action);
    }
    answered.sort_unstable();
    answered.dedup();
    actions.sort_unstable();
    assert_eq!(answered, actions);
}

#[tokio::test]
async fn a_migration_gives_the_roles_what_is_new_once_they_are_in_use() {
    let world = World::new().await;
    let lost = "REVOKE EXECUTE ON FUNCTION tidegate.publish FROM tidegate_publish";
    world.owner.batch_execute(lost).await.unwrap();
    assert!(world.migrate(|as_it_is| as_it_is).await.roles);
    let publish = "SELECT tidegate.publish('case_opened', NULL)";
    world.logins[&Publish].batch_execute(publish).await.unwrap();
}

#[tokio::test]
async fn a_database_gets_no_roles_that_nobody_requested() {
    let db = support::empty_database().await;
    let report = migrated(&db.url, |as_it_is| as_it_is).await;
    assert!(!report.roles);
    let granted =
        "SELECT nspacl::text LIKE '%tidegate_%' FROM pg_namespace WHERE nspname = 'tidegate'";
    let granted: Option<bool> = db
        .client()
        .await
        .query_one(granted, &[])
        .await
        .unwrap()
        .get(0);
    assert_ne!(granted, Some(true));
}

#[tokio::test]
async fn the_roles_script_may_run_in_two_databases_at_once() {
    let (one, other) = tokio::join!(World::new(), World::new());
    let (one, other) = tokio::join!(one.migrate(with_roles), other.migrate(with_roles));
    assert!(one.roles && other.roles);
}

#[tokio::test]
async fn a_program_of_another_with_tables_of_the_same_name_gets_its_own_grants_and_no_others() {
    const TABLES: Migrations = Migrations::of_files(
        "@tidegate.app_migrations",
        &[("V1__orders.sql", "CREATE TABLE orders (id bigint)")],
    )
    .grants("GRANT INSERT ON orders TO @tidegate_drain");
    let db = support::empty_database().await;
    let database = db.database();
    let migrate = Migrate::new(&["order_placed"]).tables(&[TABLES]);
    assert!(migrate.with_roles().run(&database).await.unwrap().roles);
    let granted = "SELECT has_table_privilege('tidegate_drain', 'orders', 'INSERT')
                          AND has_table_privilege('tidegate_read', 'tidegate.app_migrations', 'SELECT')
                          AND to_regnamespace('forms') IS NULL";
    let client = db.client().await;
    assert!(
        client
            .query_one(granted, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

#[tokio::test]
async fn a_login_without_rights_can_hold_up_no_publish_no_follow_up_and_no_step() {
    let world = World::new().await;
    let login = &world.logins[&Nobody];
    // Every lock that a publish to the group could be thought to take, and those of other steps.
    let taken = "SELECT pg_advisory_lock(1414087749, hashtext('g')), pg_advisory_lock(1414087750, 0), pg_advisory_lock(1414087749, 0),
                        pg_advisory_lock(hashtext('g')), pg_advisory_lock(hashtextextended('g', 0)), pg_advisory_lock(1128811347, 0)";
    login.batch_execute(taken).await.unwrap();
    for role in [Nobody, Publish, Read, Jobs, Drain, Operate] {
        let mutex = "SELECT FROM tidegate.mutex FOR UPDATE";
        let error = world.logins[&role].batch_execute(mutex).await.unwrap_err();
        let refused = Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        assert_eq!(error.code(), refused, "{role:?}");
    }
    // Only a hang is longer.
    let bounded = "SET statement_timeout = '60s'";
    for (role, does) in [
        (
            Publish,
            "SELECT tidegate.publish('grant_letter_viewed', '{\"grant_number\": \"1\"}', group_key => 'g')",
        ),
        (Drain, "SELECT tidegate.busy_groups('{g}')"),
        (
            Operate,
            "SELECT tidegate.cleanup_step('{\"stages\": [\"sweep\"]}'); SELECT tidegate.replay(ids => '{1}', reason => 'test', actor => 'test')",
        ),
        (Drain, "SELECT checks.take_place('t', 'a', 2, 60)"),
    ] {
        let client = &world.logins[&role];
        client.batch_execute(bounded).await.unwrap();
        client.batch_execute(does).await.unwrap();
    }
    let busy = "SELECT cardinality(tidegate.busy_groups('{g}'))";
    let busy: i32 = world.owner.query_one(busy, &[]).await.unwrap().get(0);
    assert_eq!(busy, 0);
}

#[tokio::test]
async fn an_operators_clock_makes_no_partition_of_a_past_day() {
    let world = World::new().await;
    let step = |ago: &str| {
        format!(
            "SELECT tidegate.cleanup_step(jsonb_build_object('stages', '[\"make\"]'::jsonb, 'now', clock_timestamp() - interval '{ago}'))"
        )
    };
    let partitions = "SELECT count(*) FROM tidegate.log_partitions()";
    let before = number(&world.owner, partitions).await;
    for ago in ["25 hours", "61 days", "300 years"] {
        let refused = world.logins[&Operate].batch_execute(&step(ago)).await;
        let code = refused.as_ref().err().and_then(tokio_postgres::Error::code);
        assert_eq!(code, Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{ago}");
    }
    assert_eq!(number(&world.owner, partitions).await, before);
    // A run goes on with the time at which it began.
    let begun = step("23 hours");
    world.logins[&Operate].batch_execute(&begun).await.unwrap();
    world.owner.batch_execute(&step("61 days")).await.unwrap();
    assert!(number(&world.owner, partitions).await > before);
}

#[tokio::test]
async fn whoever_may_make_no_schema_migrates_the_one_that_an_administrator_made() {
    let db = support::empty_database().await;
    let admin = db.client().await;
    let name = db.name();
    let tenant = format!("tenant_of_{name}");
    let sql =
        format!("DROP ROLE IF EXISTS {tenant}; CREATE ROLE {tenant} LOGIN NOSUPERUSER CREATEROLE");
    admin.batch_execute(&sql).await.unwrap();
    let url = as_user(&db.url, &tenant);
    let database = Database::new(&url, 1).unwrap();
    let refused = async || {
        Migrate::new(&[])
            .run(&database)
            .await
            .unwrap_err()
            .to_string()
    };
    support::contains(
        &refused().await,
        &format!("let an administrator run CREATE SCHEMA tidegate AUTHORIZATION {tenant}"),
    );
    // The right to create in it is enough.
    let lent =
        format!("CREATE SCHEMA tidegate; GRANT USAGE, CREATE ON SCHEMA tidegate TO {tenant}");
    admin.batch_execute(&lent).await.unwrap();
    for _ in 0..2 {
        Migrate::new(&["case_opened"]).run(&database).await.unwrap();
    }
    // The roles need its owner once.
    let roles = Migrate::new(&[]).with_roles().run(&database).await;
    let why = roles.unwrap_err().to_string();
    let (_, grant) = why.split_once("let the roles use it: ").expect(&why);
    admin.batch_execute(grant).await.unwrap();
    for _ in 0..2 {
        let report = Migrate::new(&[]).with_roles().run(&database).await.unwrap();
        assert!(report.roles);
    }
    let event = tidegate::NewEvent::raw("case_opened", None);
    tidegate::publish(&database.connect().await.unwrap(), &event)
        .await
        .unwrap();
    let drop =
        format!("DROP SCHEMA tidegate CASCADE; CREATE SCHEMA tidegate AUTHORIZATION {tenant}");
    admin.batch_execute(&drop).await.unwrap();
    assert!(
        Migrate::new(&[])
            .with_roles()
            .run(&database)
            .await
            .unwrap()
            .roles
    );
}

#[tokio::test]
async fn a_queue_whose_rows_are_hidden_is_not_empty() {
    let world = World::new().await;
    let admin = world.db.client().await;
    let hide = "ALTER TABLE tidegate.event_queue ENABLE ROW LEVEL SECURITY";
    admin.batch_execute(hide).await.unwrap();
    let drain = Cli::at(&as_user(&world.db.url, &world.login(Drain)));
    let cure = "ALTER TABLE tidegate.event_queue DISABLE ROW LEVEL SECURITY;";
    drain.run(&["drain"]).await.failed(1, &[cure]);
    let found = Cli::at(&world.db.url).run(&["doctor"]).await.stdout;
    support::contains(&found, "row security on event_queue");
    support::contains(&found, cure);
    admin.batch_execute(cure).await.unwrap();
    assert_eq!(drain.run(&["drain"]).await.code, Some(0));
}
