//! Owns the starter project: its files, which are in `starter/`, its allowed names, and how it is written. It
//! never overwrites existing files. The project is created next to its place and moved there by one rename,
//! which can only replace an empty folder. So a failure leaves nothing behind.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tidegate::Error;

/// A file under its own path.
macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../starter/", $path)))
    };
}

/// The path and content of each file. Cargo packages no folder that contains a `Cargo.toml`, and git applies
/// every `.gitignore`. So these two files have other names here.
const FILES: [(&str, &str); 15] = [
    (".gitignore", include_str!("../starter/gitignore.in")),
    ("Cargo.toml", include_str!("../starter/Cargo.toml.in")),
    file!("Makefile"),
    file!("README.md"),
    file!("events/drain.json"),
    file!("events/migrate.json"),
    file!("events/stats.json"),
    file!("migrations/V0001__create_shop.sql"),
    file!("parameters.toml"),
    file!("samconfig.toml"),
    file!("src/function.rs"),
    file!("src/lib.rs"),
    file!("src/main.rs"),
    file!("template.yaml"),
    file!("tests/handlers.rs"),
];

/// The crates of Tidegate that a project depends on.
const CRATES: [&str; 5] = [
    "tidegate",
    "tidegate-admin",
    "tidegate-cli",
    "tidegate-console",
    "tidegate-lambda",
];

/// Rust's keywords, including the reserved ones.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Crates that come with Rust, folders where cargo builds, and crates of others that the project needs.
const TAKEN: [&str; 11] = [
    "alloc",
    "build",
    "core",
    "deps",
    "examples",
    "incremental",
    "proc_macro",
    "serde",
    "std",
    "test",
    "tokio",
];

/// The project's table of migrations has a longer name, and Postgres cuts names at 63 characters.
const LONGEST_NAME: usize = 50;

/// What the template has for a package that is there, and what SAM needs to build it.
const PACKAGED: &str = "CodeUri: target/package/bootstrap.zip  # `make deploy` builds it.";
const FUNCTION: &str = "    Type: AWS::Serverless::Function\n";
const BUILT: &str =
    "    Metadata: {BuildMethod: rust-cargolambda, BuildProperties: {Binary: {{name}}-function}}\n";

/// A name that cargo, Rust, Postgres and AWS all accept, each in its own spelling.
struct Name<'a>(&'a str);

impl<'a> Name<'a> {
    /// Takes the last part of the path to the project's folder.
    fn of(folder: &'a Path) -> Result<Self, Error> {
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        let name = name.to_str().unwrap_or_default();
        let refused = |why: &str| {
            let why = format!("NAME: {name:?} {why}, such as shop-queue");
            Err(Error::Invalid(why))
        };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if !name.starts_with(|c: char| c.is_ascii_lowercase())
            || !name.chars().all(plain)
            || name.len() > LONGEST_NAME
        {
            return refused(&format!(
                "must be a crate's name: a lower-case letter, then lower-case letters, digits, - and _, at most {LONGEST_NAME} in all"
            ));
        }
        let name = Self(name);
        if KEYWORDS.contains(&name.in_rust().as_str()) {
            return refused("is a word of the Rust language: it must be another crate's name");
        }
        let is_ours = |known: &&str| known.replace('-', "_") == name.in_rust();
        if TAKEN.contains(&name.in_rust().as_str()) || CRATES.iter().any(is_ours) {
            return refused(
                "is taken, by Rust or by what the project needs: it must be another crate's name",
            );
        }
        Ok(name)
    }

    fn in_rust(&self) -> String {
        self.0.replace('-', "_")
    }

    fn on_aws(&self) -> String {
        self.0.replace('_', "-")
    }
}

/// Writes a project into the folder, which must be new or empty, and returns its files. The project depends
/// on this version's crates, or on those of a checkout.
///
/// # Errors
/// [`Error::Invalid`] names the argument and what it must be.
pub fn write(folder: &Path, checkout: Option<&Path>) -> Result<Vec<&'static str>, Error> {
    let name = Name::of(folder)?;
    let crates = match checkout {
        Some(checkout) => of_checkout(checkout)?,
        None => CRATES.map(|_| format!("version = {:?}", env!("CARGO_PKG_VERSION"))),
    };
    refuse_what_is_there(folder)?;
    put(folder, &name, &crates).map_err(|error| {
        let must = "must lie in a folder that can be written to";
        Error::Invalid(format!("NAME: {} {must}: {error}", folder.display()))
    })?;
    Ok(FILES.iter().map(|(path, _)| *path).collect())
}

/// How the project finds each of [`CRATES`] in a checkout.
fn of_checkout(checkout: &Path) -> Result<[String; CRATES.len()], Error> {
    let refused = |why: &str| {
        let must = "must be a checkout of Tidegate";
        Error::Invalid(format!("--tidegate: {} {must}: {why}", checkout.display()))
    };
    let root = checkout.canonicalize();
    let root = root.map_err(|error| refused(&error.to_string()))?;
    let mut found = CRATES.map(String::from);
    for dependency in &mut found {
        let folder = root.join("crates").join(&*dependency);
        if !folder.join("Cargo.toml").is_file() {
            let why = format!("it has no crates/{dependency}/Cargo.toml");
            return Err(refused(&why));
        }
        let folder = folder.to_str();
        let folder = folder.ok_or_else(|| refused("its path is not UTF-8"))?;
        // A JSON string is also a TOML string.
        *dependency = format!("path = {}", serde_json::Value::from(folder));
    }
    Ok(found)
}

fn refuse_what_is_there(folder: &Path) -> Result<(), Error> {
    let refused = |why: &str| {
        let must = "must be a new folder or an empty one";
        let why = format!("NAME: {} {must}: {why}", folder.display());
        Err(Error::Invalid(why))
    };
    match folder.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return refused(&error.to_string()),
        Ok(found) if !found.is_dir() => return refused("something else has this name"),
        Ok(_) => {}
    }
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => refused("there is something in it"),
        Err(error) => refused(&error.to_string()),
    }
}

/// Creates the project next to its place, then moves it there.
fn put(folder: &Path, name: &Name<'_>, crates: &[String]) -> io::Result<()> {
    let part = folder.with_file_name(format!(".{}-{}", name.0, std::process::id()));
    fs::create_dir(&part)?;
    let written = fill(&part, name, crates).and_then(|()| fs::rename(&part, folder));
    if written.is_err() {
        let _ = fs::remove_dir_all(&part);
    }
    written
}

fn fill(part: &Path, name: &Name<'_>, crates: &[String]) -> io::Result<()> {
    for (path, text) in FILES {
        let file: PathBuf = part.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        File::create_new(file)?.write_all(filled_in(text, name, crates).as_bytes())?;
    }
    Ok(())
}

/// Fills in the crates last, because the path of a checkout may contain anything.
fn filled_in(text: &str, name: &Name<'_>, crates: &[String]) -> String {
    // The template is the one for a package that is built before. Here SAM builds it.
    let mut text = text
        .replace(PACKAGED, "CodeUri: .  # `sam build` builds it.")
        .replace(FUNCTION, &[FUNCTION, BUILT].concat())
        .replace("{{name}}", name.0)
        .replace("{{crate}}", &name.in_rust())
        .replace("{{stack}}", &name.on_aws());
    for (dependency, found) in CRATES.iter().zip(crates) {
        text = text.replace(&format!("{{{{{dependency}}}}}"), found);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> &'static str {
        let found = FILES.iter().find(|(file, _)| *file == path);
        found.map(|(_, text)| *text).unwrap()
    }

    fn count(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .map(|path| if path.is_dir() { count(&path) } else { 1 })
            .sum()
    }

    #[test]
    fn every_file_of_the_starter_is_written() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("starter");
        assert_eq!(count(&folder), FILES.len());
    }

    #[test]
    fn the_template_builds_its_functions() {
        let made = filled_in(text("template.yaml"), &Name("shop_queue"), &[]);
        assert!(made.contains("    CodeUri: .  #") && !made.contains("zip  #"));
        let built = "BuildMethod: rust-cargolambda, BuildProperties: {Binary: shop_queue-function}";
        assert_eq!(made.matches(built).count(), made.matches(FUNCTION).count());
        assert_eq!(made.matches(built).count(), 2);
    }

    #[test]
    fn no_project_is_called_like_a_crate_that_it_needs() {
        let manifest = text("Cargo.toml").replace("{{", "").replace("}}", "");
        let dependencies = manifest.split("dependencies]\n").skip(1);
        let lines =
            dependencies.flat_map(|section| section.lines().take_while(|line| !line.is_empty()));
        let names: Vec<&str> = lines
            .filter_map(|line| Some(line.split_once(" = ")?.0))
            .collect();
        assert!(names.len() >= CRATES.len(), "{names:?}");
        for name in names {
            assert!(Name::of(Path::new(name)).is_err(), "{name}");
        }
    }
}
