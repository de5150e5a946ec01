//! Passes sample bus messages to the filter of the AI checks, each in its own transaction, and
//! prints the results: an irrelevant message, two that request a check, one of them repeated, and
//! one whose task is overdue. You can run it repeatedly, because every run uses new ids.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::Database;
use tidegate::connect::Client;
use tidegate_job::app::checks::{self, Filter, ReceiveIssuingReport};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    match send_all().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn send_all() -> Outcome<()> {
    let url =
        std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL: a postgres:// URL is needed")?;
    let mut client = Database::new(&url, 1)?.connect().await?;
    let now = SystemTime::now();
    let run = now.duration_since(UNIX_EPOCH)?.as_millis();
    let hour = Duration::from_hours(1);
    let in_time = asking(run, 1, now + hour);
    let payment = json!({"kind": "payment", "paymentId": format!("sample-{run}")});
    receive(&mut client, "about a payment", &payment).await?;
    receive(&mut client, "1", &in_time).await?;
    receive(&mut client, "1 again", &in_time).await?;
    receive(&mut client, "2", &asking(run, 2, now + hour)).await?;
    receive(&mut client, "3, overdue", &asking(run, 3, now - hour)).await?;
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
