//! Writes a starter project. It is the only verb without a program's settings, because it runs before there
//! are any.

use tidegate::Error;

use crate::answer::{Answer, document};
use crate::args::New;
use crate::report::Written;
use crate::starter;

pub fn new(asked: &New) -> Result<Answer, Error> {
    let files = starter::write(&asked.name, asked.tidegate.as_deref())?;
    let folder = asked.name.display().to_string();
    let text = format!(
        "{}\n\nwritten to {folder}; run the tests, then read README.md:\n  cd {folder}\n  make test",
        files.join("\n")
    );
    let report = Written {
        action: "new",
        folder,
        files,
    };
    Ok(Answer::new(document(&report)?, text))
}
