//! What people see and machines read, in `tests/golden/`. A change of it shows as a difference there, and
//! `UPDATE_GOLDEN=1` writes the files anew.
//!
//! Not here: signatures of the SQL interface are in `crates/tidegate-core/sql/catalog.txt`, which
//! `make schema CHECK=1` compares. Settings are in `docs/reference/settings.md`: what is declared is written
//! there, and `make check` compares the rest with the sources. The types of the HTTP interface's refusals
//! are in the tests of each. The other two programs are Lambda functions, which have no help.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use tidegate::migrate::{Migrate, StoredSettings};
use tidegate::{DrainOptions, Event as _};
use tidegate_core::config::Setting;
use tidegate_job::app;

use crate::callers;
use crate::http::Api;
use crate::support::cli::{Cli, commands_in};
use crate::support::function::Function;
use crate::support::golden::{compare, golden, text};
use crate::support::{self, publish_views};

#[tokio::test]
async fn the_help_of_every_command() {
    let mut all = String::new();
    let mut left = vec![Vec::new()];
    while let Some(command) = left.pop() {
        let asked: Vec<&str> = command.iter().map(String::as_str).collect();
        let told = Cli::without_database()
            .run(&[&asked[..], &["--help"]].concat())
            .await;
        assert_eq!(told.code, Some(0), "{told:?}");
        let named = ["tidegate"].iter().chain(&asked).copied();
        let named = named.collect::<Vec<_>>().join(" ");
        writeln!(all, "$ {named} --help\n{}", told.stdout).unwrap();
        let below = commands_in(&told.stdout).into_iter().rev();
        left.extend(below.map(|below| [&command[..], &[below]].concat()));
    }
    golden("help.txt", &all);
}

/// Adds a line for each place in the documents of a schema, with what may stand there. `?`: it may be absent.
fn places(schema: &Value, place: &str, lines: &mut BTreeSet<String>) {
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        for one in schema[alternatives].as_array().into_iter().flatten() {
            places(one, place, lines);
        }
    }
    for what in ["const", "enum", "type"] {
        if !schema[what].is_null() {
            lines.insert(format!("{place}: {}", schema[what]));
            break;
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"].as_array();
        let is_required = required.is_some_and(|names| names.contains(&json!(name)));
        let mark = if is_required { "" } else { "?" };
        places(field, &format!("{place}.{name}{mark}"), lines);
    }
    for (within, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[within].is_object() {
            places(&schema[within], &format!("{place}{suffix}"), lines);
        }
    }
}

#[tokio::test]
async fn the_document_of_every_verb() {
    let all = Cli::without_database().json(&["schema"]).await;
    let mut lines = BTreeSet::new();
    for (verb, schema) in all["schemas"].as_object().unwrap() {
        places(schema, verb, &mut lines);
    }
    golden("documents.txt", &text(lines));
}

/// Returns each flag with its variable, its default and its description, as a help tells them.
fn flags_of(help: &str) -> Vec<(String, String, String, String)> {
    let within = |text: &str, begin: &str| {
        let told = text.split_once(begin)?.1;
        told.split_once(']')
            .map(|(told, _)| told.trim_end_matches('=').to_owned())
    };
    let flags = help.split("\n      --").skip(1);
    let flags = flags.filter_map(|text| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let flag = text.split(' ').next().unwrap().to_owned();
        let meaning = text
            .split_once(' ')
            .unwrap()
            .1
            .split(" [env")
            .next()
            .unwrap();
        let meaning = match meaning.split_once("> ") {
            Some((value, meaning)) if value.starts_with('<') => meaning,
            _ => meaning,
        };
        let default = within(&text, "[default: ").unwrap_or("none".to_owned());
        Some((flag, within(&text, "[env: ")?, default, meaning.to_owned()))
    });
    flags.collect()
}

fn declared(settings: Vec<Setting>, flags: &[(String, String, String, String)]) -> String {
    let mut table = "| variable | flag | default | meaning |\n|---|---|---|---|\n".to_owned();
    for setting in settings {
        let Setting {
            variable,
            default,
            meaning,
        } = setting;
        let flag = flags.iter().find(|(_, of, ..)| of == variable);
        if let Some((flag, _, told, _)) = flag {
            assert_eq!(*told, default, "--{flag}");
        }
        let flag = flag.map_or(String::new(), |(flag, ..)| format!("`--{flag}`"));
        let meaning: Vec<&str> = meaning.iter().map(|line| line.trim()).collect();
        let meaning = meaning.join(" ");
        writeln!(table, "| `{variable}` | {flag} | `{default}` | {meaning} |").unwrap();
    }
    table
}

/// The page's tables of those settings that the sources declare with their description.
#[tokio::test]
async fn the_declared_settings() {
    let help = async |verb| Cli::without_database().run(&[verb, "--help"]).await.stdout;
    let mut console = "| variable | flag | default | meaning |\n|---|---|---|---|\n".to_owned();
    for (flag, variable, default, meaning) in flags_of(&help("console").await) {
        let meaning = meaning.replace('|', "\\|");
        writeln!(
            console,
            "| `{variable}` | `--{flag}` | `{default}` | {meaning}. |"
        )
        .unwrap();
    }
    let page = "docs/reference/settings.md";
    let mut now =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    for (name, table) in [
        (
            "drain",
            declared(DrainOptions::settings(), &flags_of(&help("drain").await)),
        ),
        (
            "stored",
            declared(
                StoredSettings::settings(),
                &flags_of(&help("publish").await),
            ),
        ),
        ("console", console),
    ] {
        let begin = format!("<!-- declared: {name} -->\n");
        let (before, rest) = now.split_once(&begin).unwrap();
        let (_, after) = rest.split_once("<!-- end -->").unwrap();
        now = format!("{before}{begin}{table}<!-- end -->{after}");
    }
    compare(page, &now);
}

/// Rights of the roles. A right on single columns names them.
const RIGHTS: &str = "
    WITH granted AS (
        SELECT p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' AS object, NULL AS attname, p.proacl AS acl
          FROM pg_proc AS p WHERE p.pronamespace = 'tidegate'::regnamespace
        UNION ALL
        SELECT c.relname, NULL, c.relacl FROM pg_class AS c
         WHERE c.relnamespace = 'tidegate'::regnamespace AND NOT c.relispartition
        UNION ALL
        SELECT c.relname, a.attname, a.attacl FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'tidegate'::regnamespace AND NOT c.relispartition)
    SELECT format('%s %s %s', coalesce(r.rolname, 'PUBLIC'), a.privilege_type, object)
           || coalesce(' (' || string_agg(attname, ', ' ORDER BY attname) || ')', '')
      FROM granted CROSS JOIN LATERAL aclexplode(acl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee
     WHERE a.grantee = 0 OR r.rolname LIKE 'tidegate\\_%'
     GROUP BY r.rolname, a.privilege_type, object, attname IS NULL";

#[tokio::test]
async fn the_rights_of_every_role() {
    let db = support::empty_database().await;
    let owner = db.database();
    let migrate = Migrate::new(app::Event::KINDS).tables(&[app::TABLES]);
    migrate.with_roles().run(&owner).await.unwrap();
    let rows = db.client().await.query(RIGHTS, &[]).await.unwrap();
    let rights = rows.iter().map(|row| row.get(0)).collect();
    golden("rights.txt", &text(rights));
}

/// Adds the metrics of each line in CloudWatch's embedded format, with their dimensions.
fn embedded(log: &[Value], lines: &mut BTreeSet<String>) {
    for line in log {
        let directives = line["_aws"]["CloudWatchMetrics"].as_array();
        for directive in directives.into_iter().flatten() {
            for metric in directive["Metrics"].as_array().unwrap() {
                let (name, unit) = (&metric["Name"], &metric["Unit"]);
                lines.insert(format!("emf {name} {unit} by {}", directive["Dimensions"]));
            }
        }
    }
}

#[tokio::test]
async fn the_name_and_type_of_every_metric() {
    let db = support::database().await;
    publish_views(&db.client().await, 1).await;
    let mut lines = BTreeSet::new();
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    for url in [&db.url, nowhere] {
        let settings = [("DATABASE_URL", url), ("TIDEGATE_METRICS", "emf")];
        let function = Function::start(&settings).await;
        function.invoke(&json!({"action": "drain"})).await;
        function.invoke(&json!({"action": "cleanup"})).await;
        embedded(&function.log(), &mut lines);
    }
    let told = Cli::on(&db)
        .run(&["status", "--format", "prometheus"])
        .await;
    let types = told
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    lines.extend(types.map(|line| format!("prometheus {line}")));
    golden("metrics.txt", &text(lines));
}

#[tokio::test]
async fn every_route_with_its_statuses() {
    let access = callers::access(&[("TIDEGATE_HTTP_AUTH", "keys")]);
    let api = Api::asking(access).await;
    let (_, document) = api.get("/openapi.json").await;
    let mut lines = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            let statuses: Vec<&str> = responses.keys().map(String::as_str).collect();
            lines.insert(format!("{path} {method}: {}", statuses.join(" ")));
            for (status, response) in responses {
                let about = response["description"].as_str().unwrap_or_default();
                lines.insert(format!("{status}: {}", about.replace('\n', " ")));
            }
        }
    }
    golden("routes.txt", &text(lines));
}
