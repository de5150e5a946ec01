//! Prints the schema of the database at `DATABASE_URL`, as the lines that `tidegate doctor`
//! compares. `make schema` stores the lines of a freshly migrated database in
//! `crates/tidegate-core/sql/catalog.txt`.

use tidegate::{Database, Error};
use tidegate_admin::doctor;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|error| Error::Config(format!("DATABASE_URL: {error}")))?;
    let mut client = Database::new(&url, 1)?.connect().await?;
    for line in doctor::catalog(&mut client).await? {
        println!("{line}");
    }
    Ok(())
}
