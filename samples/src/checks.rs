//! Passes sample bus messages to the filter of the AI checks, each in its own transaction, and
//! prints the results: an irrelevant message, two that request a check, one of them repeated, and
//! one whose task is overdue. Every run uses new ids.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate_job::app::checks::{self, Filter, ReceiveIssuingReport};

use crate::Outcome;

pub(crate) async fn publish(client: &mut Client) -> Outcome<()> {
    let now = SystemTime::now();
    let run = now.duration_since(UNIX_EPOCH)?.as_millis();
    let hour = Duration::from_hours(1);
    let in_time = asking(run, 1, now + hour);
    let payment = json!({"kind": "payment", "paymentId": format!("sample-{run}")});
    receive(client, "about a payment", &payment).await?;
    receive(client, "1", &in_time).await?;
    receive(client, "1 again", &in_time).await?;
    receive(client, "2", &asking(run, 2, now + hour)).await?;
    receive(client, "3, overdue", &asking(run, 3, now - hour)).await?;
    Ok(())
}

fn asking(run: u128, number: u32, due_at: SystemTime) -> Value {
    json!({
        "kind": "issuing",
        "stage": "ai-check",
        "triggerId": format!("sample-{run}-T{number}"),
        "applicationId": format!("sample-{run}-A{number}"),
        "dueAt": humantime::format_rfc3339_seconds(due_at).to_string(),
    })
}

async fn receive(client: &mut Client, name: &str, message: &Value) -> Outcome<()> {
    let tx = client.transaction().await?;
    let received = checks::receive(&tx, &Filter::default(), message).await?;
    tx.commit().await?;
    println!("message {name}: {}", told(received));
    Ok(())
}

fn told(received: ReceiveIssuingReport) -> String {
    match received.id {
        None => "asks for no check, nothing stored".to_owned(),
        Some(id) if received.created => format!("asks for a check: event {id}"),
        Some(id) => format!("event {id} makes this check already"),
    }
}
