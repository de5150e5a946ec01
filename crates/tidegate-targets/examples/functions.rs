//! A stand-in for AWS Lambda and SQS that measures nothing and loses nothing: each function answers after a
//! time, as if all events of the call were done, and each message is taken. Prints its URL, and runs until
//! standard input closes. For `make bench`.

use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let delay = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let routes = Router::new()
        .route("/2015-03-31/functions/{name}/invocations", post(invoke))
        .route("/", post(send))
        .layer(axum::extract::DefaultBodyLimit::max(8 << 20))
        .with_state(Duration::from_millis(delay));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("URL=http://{}", listener.local_addr()?);
    let closed = async {
        // Whether it closes or fails, nobody waits any more.
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    Ok(axum::serve(listener, routes)
        .with_graceful_shutdown(closed)
        .await?)
}

async fn invoke(State(delay): State<Duration>, _: String) -> Json<Value> {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    Json(json!({"batchItemFailures": []}))
}

/// Takes the messages of SQS.
async fn send(State(delay): State<Duration>, body: String) -> Json<Value> {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let request: Value = serde_json::from_str(&body).unwrap_or_default();
    let entries = request["Entries"].as_array().cloned().unwrap_or_default();
    let sent = entries
        .iter()
        .map(|entry| json!({"Id": entry["Id"], "MessageId": entry["Id"]}));
    Json(json!({"Successful": sent.collect::<Vec<_>>(), "Failed": []}))
}
