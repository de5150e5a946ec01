//! Explains one of the queue's statements with known parameter values, as when the parameters travel
//! with the statement.

use serde_json::Value;
use tidegate_core::queue::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Returns the plan of a statement whose parameters are given as SQL expressions. `options` are
/// further options of EXPLAIN, such as `ANALYZE, BUFFERS`.
pub async fn explain(
    client: &Client,
    statement: &Statement,
    options: &str,
    values: &[&str],
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let types: Vec<&str> = statement.params.iter().map(Type::name).collect();
    let separator = if options.is_empty() { "" } else { ", " };
    let text = statement.text.replace("@tidegate", "tidegate");
    // Deallocated each time, because after several uses the server may switch to a plan that ignores
    // the parameter values.
    let script = format!(
        "PREPARE explained ({}) AS {text};
         EXPLAIN (FORMAT JSON{separator}{options}) EXECUTE explained ({});
         DEALLOCATE explained",
        types.join(", "),
        values.join(", ")
    );
    let messages = client.simple_query(&script).await?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plans: Value = serde_json::from_str(row.ok_or("EXPLAIN gave no row")?)?;
    Ok(plans[0].clone())
}
