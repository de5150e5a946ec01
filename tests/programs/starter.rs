//! `tidegate new`: what it writes and what it refuses. That the project works, `scripts/starter.py` shows.

use std::fs;
use std::path::Path;

use crate::support::cli::{Cli, Ran};
use crate::support::project_file;
use serde_json::{Value, json};
use tempfile::TempDir;

fn room() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn new(folder: &Path, more: &[&str]) -> Ran {
    let arguments = [&["new", folder.to_str().unwrap()], more].concat();
    Cli::without_database().run(&arguments).await
}

/// Every file below a folder, by its path from there.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files(&path).iter().map(|file| format!("{name}/{file}")));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_project_is_written_under_its_name_without_any_database() {
    let room = room();
    let folder = room.path().join("shop_queue");
    let made = new(&folder, &["--json"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let document = made.document();
    assert_eq!(document["folder"], folder.to_str().unwrap());
    assert_eq!(document["files"], json!(files(&folder)));
    for file in files(&folder) {
        let text = fs::read_to_string(folder.join(&file)).unwrap();
        assert!(!text.contains("{{"), "{file}: {text}");
    }
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    let released = concat!(
        "tidegate-cli = { version = \"",
        env!("CARGO_PKG_VERSION"),
        "\" }"
    );
    assert!(read("Cargo.toml").contains(released));
    assert!(read("Cargo.toml").contains("name = \"shop_queue\""));
    assert!(read("src/main.rs").contains("shop_queue::program()"));
    // A stack's name has no underscores.
    assert!(read("samconfig.toml").contains("stack_name = \"shop-queue\""));
}

#[tokio::test]
async fn with_a_checkout_it_depends_on_the_crates_there() {
    let room = room();
    let folder = room.path().join("shop-queue");
    let checkout = project_file("").canonicalize().unwrap();
    let made = new(&folder, &["--tidegate", checkout.to_str().unwrap()]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for name in [
        "tidegate",
        "tidegate-cli",
        "tidegate-console",
        "tidegate-lambda",
    ] {
        let path = Value::from(checkout.join("crates").join(name).to_str().unwrap());
        let dependency = format!("\n{name} = {{ path = {path}");
        assert!(manifest.contains(&dependency), "{dependency}: {manifest}");
    }
}

#[tokio::test]
async fn an_empty_folder_is_filled_and_nothing_else_is_touched() {
    let room = room();
    let folder = room.path().join("shop-queue");
    fs::create_dir(&folder).unwrap();
    assert_eq!(new(&folder, &[]).await.code, Some(0));
    let before = files(room.path());
    let again = new(&folder, &[]).await;
    again.failed(2, &["NAME: ", "must be a new folder or an empty one"]);
    let file = room.path().join("notes");
    fs::write(&file, "mine").unwrap();
    let taken = new(&file, &[]).await;
    taken.failed(2, &["must be a new folder", "something else has this name"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    fs::remove_file(&file).unwrap();
    assert_eq!(files(room.path()), before);
}

#[tokio::test]
async fn a_name_that_no_crate_may_have_is_refused() {
    let room = room();
    let long = "a".repeat(51);
    for name in [
        "9lives",
        "Shop",
        "shop queue",
        "shop.queue",
        "-shop",
        "läden",
        "..",
        &long,
    ] {
        let refused = new(&room.path().join(name), &["--json"]).await;
        refused.failed(
            2,
            &["NAME: ", "must be a crate's name", "such as shop-queue"],
        );
    }
    for (name, says) in [
        ("fn", "a word of the Rust language"),
        ("async", "a word of the Rust language"),
        ("test", "is taken"),
        ("proc-macro", "is taken"),
        ("tidegate-cli", "is taken"),
    ] {
        let refused = new(&room.path().join(name), &[]).await;
        refused.failed(2, &["NAME: ", name, says, "such as shop-queue"]);
    }
    assert_eq!(files(room.path()), [""; 0]);
}

#[tokio::test]
async fn what_cannot_be_written_to_or_is_no_checkout_is_named() {
    let room = room();
    let file = room.path().join("file");
    fs::write(&file, "").unwrap();
    for parent in [&file, &room.path().join("missing")] {
        let refused = new(&parent.join("shop-queue"), &[]).await;
        refused.failed(2, &["NAME: ", "file"]);
    }
    let folder = room.path().join("shop-queue");
    for checkout in [room.path(), &room.path().join("missing"), &file] {
        let refused = new(&folder, &["--tidegate", checkout.to_str().unwrap()]).await;
        refused.failed(2, &["--tidegate: ", "must be a checkout of Tidegate"]);
    }
    assert_eq!(files(room.path()), ["file"]);
}
