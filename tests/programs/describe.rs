//! The command line's descriptions of itself: completions, manual pages, and a schema for every document that
//! `--json` prints.

use std::collections::BTreeSet;
use std::process::Stdio;

use crate::support::cli::{Cli, verbs};
use crate::support::seal;
use crate::support::{self, TestDb, contains, execute, words};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

#[tokio::test]
async fn a_shell_is_given_a_script_that_completes_every_verb() {
    let cli = Cli::without_database();
    let verbs = verbs().await;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = cli.run(&["completions", shell]).await;
        assert_eq!(script.code, Some(0), "{script:?}");
        for verb in &verbs {
            assert!(script.stdout.contains(verb), "{shell} has no {verb}");
        }
    }
    let unknown = cli.run(&["completions", "cmd"]).await;
    unknown.failed(2, &["bash", "powershell"]);
}

#[tokio::test]
async fn bash_completes_by_the_script_that_it_is_given() {
    let script = Cli::without_database().run(&["completions", "bash"]).await;
    let asked = format!(
        "{}\nCOMP_WORDS=(tidegate blocked)\nCOMP_CWORD=1\n_tidegate tidegate blocked tidegate\necho \"${{COMPREPLY[@]}}\"",
        script.stdout
    );
    let told = tokio::process::Command::new("bash")
        .args(["-c", &asked])
        .output();
    let told = told.await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&told.stdout).trim(),
        "blocked-groups",
        "{told:?}"
    );
}

#[tokio::test]
async fn every_verb_has_a_manual_page() {
    let cli = Cli::without_database();
    let page = cli.run(&["man"]).await;
    assert!(page.stdout.contains(".TH tidegate 1"), "{page:?}");
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().join("man/man1");
    let written = cli.json(&["man", "--dir", folder.to_str().unwrap()]).await;
    let files = written["files"].as_array().unwrap().len();
    for verb in verbs().await {
        let page = std::fs::read_to_string(folder.join(format!("tidegate-{verb}.1"))).unwrap();
        contains(&page, ".SH NAME");
        contains(&page, "Example:");
    }
    // A verb that the program adds has verbs itself.
    let page = std::fs::read_to_string(folder.join("tidegate-api-key-create.1")).unwrap();
    assert!(page.contains("client"), "{page}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), files);
    let file = folder.join("tidegate.1");
    let refused = cli.run(&["man", "--dir", file.to_str().unwrap()]).await;
    refused.failed(2, &["--dir", "tidegate.1"]);
}

/// Returns a database with an entry in each list.
async fn furnished() -> TestDb {
    let (db, client) = support::opened().await;
    execute(&client, "INSERT INTO tidegate.event_kind (kind) VALUES ('foreign'), ('left');
             INSERT INTO tidegate.schedule (keeper, name, kind, every) VALUES ('p', 'nightly', 'foreign', '1 day');
             SELECT tidegate.publish('foreign', '{}', group_key => 'g', available_at => clock_timestamp() + interval '1 hour',
                                     expires_at => clock_timestamp() + interval '1 minute');
             SELECT tidegate.publish('foreign', '{}', group_key => 'g');
             UPDATE tidegate.event_queue SET delayed = true, last_error = '500: no' WHERE available_at > clock_timestamp()").await;
    support::lease_away(&client, &[2], 3600.0).await;
    db
}

/// Commands of every verb, in an order in which each finds what an earlier one left. The first ones need no
/// queue, or create one.
const COMMANDS: &str = r#"
    new FOLDER/shop-queue
    completions bash
    man
    man --dir FOLDER/man
    schema list
    migrate
    doctor
    publish grant_letter_viewed --payload '{"grant_number": "G-1"}' --group h
    list
    show 1
    show 3
    status
    failures
    blocked-groups
    leases
    reschedule --id 3 --delay 1s --reason why
    drain --max-events 1
    submit viewed '{"grant_number": "G-2"}'
    receive-issuing --message '{"kind": "other"}'
    requeue --id 2 --reason why
    unblock g --retry --reason why
    note 1 --text called --reason why
    cancel --kind foreign --dry-run --reason why
    cancel --id 1 2 3 --reason why
    show 1
    replay --id 1 --again --expires-in 1h --reason why
    replay --kind foreign --since 1h --dry-run --reason why
    list
    pause grant_letter_viewed
    resume grant_letter_viewed
    service carrier --pause --reason why
    service carrier --limit 3 --per-second 2 --reason why
    services
    retire left --reason why
    schedule nightly --run --reason why
    schedules
    retention
    retention grant_letter_viewed --completed 7d --reason why
    forget --group h --reason why
    cleanup
    api-key create --label w --client 00000000-0000-4000-8000-0000000000c1 --scope jobs --reason why
    api-key list
    api-key revoke 1 --reason why
    link-key rotate --reason why
    status
"#;

/// A schema with two checks: a validator's, and a stricter one. Schemas are open, so a validator accepts
/// additional fields. The stricter check treats a field that is not in the schema as an omission.
struct Checked {
    schema: Value,
    validator: jsonschema::Validator,
}

impl Checked {
    async fn of(verb: &str) -> Self {
        let told = Cli::without_database().run(&["schema", verb]).await;
        assert_eq!(told.code, Some(0), "{verb} has no schema: {told:?}");
        let schema: Value = serde_json::from_str(&told.stdout).unwrap();
        let options = jsonschema::draft202012::options().should_validate_formats(true);
        let validator = options.build(&schema).unwrap();
        Self { schema, validator }
    }

    fn check(&self, asked: &str, document: &Value) {
        let wrong: Vec<String> = self
            .validator
            .iter_errors(document)
            .map(|error| error.to_string())
            .collect();
        assert!(wrong.is_empty(), "{asked}: {wrong:?}\n{document}");
        let unknown = unknown(&self.schema, document);
        assert!(
            unknown.is_empty(),
            "{asked}: its schema does not know {unknown:?}\n{document}"
        );
        let odd: Vec<String> = names(document)
            .into_iter()
            .filter(|name| is_odd(name))
            .collect();
        assert!(
            odd.is_empty(),
            "{asked}: fields are snake_case, durations in _ms: {odd:?}"
        );
    }
}

fn unknown(schema: &Value, value: &Value) -> BTreeSet<String> {
    let alternatives = ["anyOf", "oneOf"]
        .into_iter()
        .find_map(|name| schema[name].as_array());
    if let Some(alternatives) = alternatives {
        // The fields of each alternative, and the fields beside the alternatives.
        let all = alternatives
            .iter()
            .map(|one| unknown(&with_common(one, schema), value));
        return all.reduce(|one, other| &one & &other).unwrap_or_default();
    }
    match value {
        Value::Array(items) => items
            .iter()
            .flat_map(|item| unknown(&schema["items"], item))
            .collect(),
        Value::Object(fields) if schema["properties"].is_object() => fields
            .iter()
            .flat_map(|(name, value)| match &schema["properties"][name] {
                Value::Null => BTreeSet::from([name.clone()]),
                known => unknown(known, value),
            })
            .collect(),
        _ => BTreeSet::new(),
    }
}

fn with_common(alternative: &Value, schema: &Value) -> Value {
    let mut all = alternative.clone();
    for (name, common) in schema["properties"].as_object().into_iter().flatten() {
        all["properties"][name] = common.clone();
    }
    all
}

/// Returns the names of all fields, except those that are data: kinds, tables, and the content from handlers,
/// clients and schemas.
fn names(value: &Value) -> Vec<String> {
    const DATA: [&str; 10] = [
        "skipped_reasons",
        "kinds",
        "payload",
        "progress",
        "result",
        "errors",
        "tables",
        "records",
        "schemas",
        "reported",
    ];
    match value {
        Value::Array(items) => items.iter().flat_map(names).collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| {
                let is_data = DATA.contains(&name.as_str()) && value.is_object();
                let within = if is_data { Vec::new() } else { names(value) };
                std::iter::once(name.clone()).chain(within)
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn is_odd(name: &str) -> bool {
    let is_snake = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    // A rate, and the unit that Lambda charges for, are not durations.
    let is_seconds = name.ends_with("_s") || name.ends_with("_seconds");
    !is_snake || is_seconds && name != "gb_seconds"
}

#[tokio::test]
async fn every_document_fits_its_schema() {
    let db = furnished().await;
    let keys = seal::keys(&[("2031", seal::OLD)]);
    let cli = Cli::on(&db).with("TIDEGATE_PAYLOAD_KEYS_FILE", keys.path().to_str().unwrap());
    let room = tempfile::tempdir().unwrap();
    let commands = COMMANDS.replace("FOLDER", room.path().to_str().unwrap());
    let mut asked = BTreeSet::new();
    for line in commands
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let arguments = [&words(line)[..], &["--json"]].concat();
        let ran = cli.run(&arguments).await;
        let verb = arguments[0];
        let is_doctor = verb == "doctor" && ran.code == Some(3);
        assert!(ran.code == Some(0) || is_doctor, "{line}: {ran:?}");
        let document = ran.document();
        assert!(document["action"].is_string(), "{line}: {document}");
        Checked::of(verb).await.check(line, &document);
        asked.insert(verb.to_owned());
    }
    let left: Vec<String> = verbs()
        .await
        .into_iter()
        .filter(|verb| !asked.contains(verb))
        .collect();
    assert_eq!(
        left,
        ["serve", "console"],
        "a verb that is not asked for its document"
    );
}

#[tokio::test]
async fn the_document_of_what_was_served_fits_its_schema() {
    let db = support::database().await;
    for verb in ["serve", "console"] {
        served(&db, verb).await;
    }
}

async fn served(db: &TestDb, verb: &str) {
    let mut command = support::command("tidegate");
    command
        .args([verb, "--listen", "127.0.0.1:0", "--json"])
        .env("TIDEGATE_ACTOR", "somebody")
        .env("DATABASE_URL", &db.url);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    support::ended("it listens", async {
        while !said
            .next_line()
            .await
            .unwrap()
            .unwrap()
            .starts_with("listening on http://")
        {}
    })
    .await;
    // Whoever reads that line may stop the server at once.
    support::terminate(&child);
    let mut told = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .await
        .unwrap();
    let document = serde_json::from_str(&told).unwrap();
    Checked::of(verb).await.check(verb, &document);
}

#[tokio::test]
async fn a_failure_fits_its_schema_and_a_verb_without_one_is_refused() {
    let failed = Cli::without_database().run(&["status", "--json"]).await;
    Checked::of("error")
        .await
        .check("status", &failed.document());
    let unknown = Cli::without_database().run(&["schema", "nothing"]).await;
    unknown.failed(
        2,
        &["VERB: must be one of", "api-key", "status", "\"nothing\""],
    );
    let all = Cli::without_database().json(&["schema"]).await;
    for verb in verbs().await {
        assert!(all["schemas"][&verb].is_object(), "{verb}");
    }
}

/// The page of metrics has a row for each field of a drain's report, made of its description's first
/// sentence.
#[tokio::test]
async fn the_page_of_metrics_has_what_a_report_has() {
    const PAGE: &str = "docs/reference/metrics.md";
    const HEAD: &str = "| field | meaning |\n|---|---|\n";
    let Checked { schema, .. } = Checked::of("drain").await;
    let rows = rows("", &schema);
    let page = std::fs::read_to_string(support::project_file(PAGE)).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    support::golden::compare(PAGE, &format!("{before}{HEAD}{rows}\n{after}"));
}

/// Returns the rows of a document's fields, and below each those of its parts.
fn rows(above: &str, schema: &Value) -> String {
    let Some(fields) = schema["properties"].as_object() else {
        return String::new();
    };
    let rows = fields.iter().map(|(name, field)| {
        let required = schema["required"].as_array().into_iter().flatten();
        let star = if required.into_iter().any(|one| one == name) {
            ""
        } else {
            " *"
        };
        let meaning = field["description"].as_str().unwrap_or("Always `drain`.");
        let meaning = meaning.replace('\n', " ");
        let meaning = meaning
            .split_once(". ")
            .map_or(meaning.trim_end_matches('.'), |(first, _)| first);
        let parts = rows(&format!("{above}{name}."), field);
        format!("| `{above}{name}`{star} | {meaning} |\n{parts}")
    });
    rows.collect()
}
