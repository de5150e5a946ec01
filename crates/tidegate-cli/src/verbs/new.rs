//! Writes a starter project. It needs neither settings nor a database.

use tidegate::Error;

use crate::answer::{Answer, own_document};
use crate::args::New;
use crate::report::StarterReport;
use crate::starter;

pub fn new(request: &New) -> Result<Answer, Error> {
    let files = starter::write(&request.name, request.tidegate.as_deref())?;
    let folder = request.name.display().to_string();
    let text = format!(
        "{}\n\nwritten to {folder}; run the tests, then read README.md:\n  cd {folder}\n  make test",
        files.join("\n")
    );
    let document = own_document("new", &StarterReport { folder, files })?;
    Ok(Answer::new(document, text))
}
