//! Describes the command line itself: completion scripts, manual pages, and the schemas of its documents.
//! None of these verbs needs settings or a database.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use serde_json::{Map, Value};
use tidegate::Error;

use crate::answer::{Answer, own_document};
use crate::report::{Completions, Man, Schemas};

/// Answers with the script that completes this command line in a shell.
pub fn completions(mut command: Command, name: &str, shell: Shell) -> Result<Answer, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    let report = Completions {
        shell: shell.to_string(),
        script: String::from_utf8_lossy(&script).into_owned(),
    };
    let document = own_document("completions", &report)?;
    Ok(Answer::new(document, report.script))
}

/// Answers with the manual page of the command line. With a folder, writes this page and one for each verb.
pub fn man(command: Command, name: &str, folder: Option<&Path>) -> Result<Answer, Error> {
    let mut command = command.display_name(name).bin_name(name);
    let Some(folder) = folder else {
        let page = page(&command)?;
        let report = Man {
            page: Some(page.clone()),
            files: None,
        };
        return Ok(Answer::new(own_document("man", &report)?, page));
    };
    let failed = |path: &Path, error: &std::io::Error| {
        Error::Config(format!("--dir: {}: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    // Gives each verb its full name, such as `tidegate drain`.
    command.build();
    let mut files = Vec::new();
    for (name, command) in pages(&command, name) {
        let path: PathBuf = folder.join(format!("{name}.1"));
        let text = page(&command.display_name(name))?;
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        files.push(path.display().to_string());
    }
    let text = files.join("\n");
    let report = Man {
        page: None,
        files: Some(files),
    };
    Ok(Answer::new(own_document("man", &report)?, text))
}

/// The command line and its verbs, each with the name of its page. `help` is left out, because its page would
/// say nothing.
fn pages(command: &Command, name: &str) -> Vec<(String, Command)> {
    let mut pages = vec![(name.to_owned(), command.clone())];
    let verbs = command
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help");
    for verb in verbs.filter(|verb| !verb.is_hide_set()) {
        pages.extend(self::pages(verb, &format!("{name}-{}", verb.get_name())));
    }
    pages
}

fn page(command: &Command) -> Result<String, Error> {
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command.clone());
    let written = page.render(&mut text);
    written.map_err(|error| Error::Config(format!("man: {error}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Answers with the schema of one verb's document, or with all of them. The text for people is the bare
/// schema, so that a validator can read it.
pub fn schema(schemas: Map<String, Value>, verb: Option<&str>) -> Result<Answer, Error> {
    let (text, schemas) = match verb {
        None => (pretty(&Value::Object(schemas.clone()))?, schemas),
        Some(verb) => {
            let Some(schema) = schemas.get(verb) else {
                let known: Vec<&str> = schemas.keys().map(String::as_str).collect();
                return Err(Error::Invalid(format!(
                    "VERB: must be one of {}, got {verb:?}",
                    known.join(", ")
                )));
            };
            let one = Map::from_iter([(verb.to_owned(), schema.clone())]);
            (pretty(schema)?, one)
        }
    };
    let document = own_document("schema", &Schemas { schemas })?;
    Ok(Answer::new(document, text))
}

fn pretty(schema: &Value) -> Result<String, Error> {
    serde_json::to_string_pretty(schema).map_err(|error| Error::Invalid(format!("schema: {error}")))
}
