//! A project to begin with. The only verb without a program's settings: it is asked before there are any.

use serde_json::json;
use tidegate::Error;

use crate::answer::Answer;
use crate::args::New;
use crate::starter;

pub fn new(asked: &New) -> Result<Answer, Error> {
    let files = starter::write(&asked.name, asked.tidegate.as_deref())?;
    let folder = asked.name.display().to_string();
    let text = format!(
        "{}\n\nwritten to {folder}; README.md leads on from\n  cd {folder}\n  make test",
        files.join("\n")
    );
    Ok(Answer::new(
        json!({"action": "new", "folder": folder, "files": files}),
        text,
    ))
}
