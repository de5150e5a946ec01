//! The handler of `examples/carrier.rs`, which the handbook shows, against a service that answers.

use crate::support::contains;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::json;
use tidegate::testing::{Attempt, Ran};
use tokio::net::TcpListener;

#[expect(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/carrier.rs"]
mod example;

async fn ran(url: &str) -> Ran {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let carrier = url.to_owned();
    let shop = example::Shop { http, carrier };
    let order = example::ShopEvent::OrderPlaced(example::OrderPlaced { order_id: 7 });
    Attempt::first().run(&shop, &order).await
}

async fn answered(status: u16, body: &'static str) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let status = StatusCode::from_u16(status).unwrap();
    let labels = Router::new().route("/labels", post(move || async move { (status, body) }));
    let server = tokio::spawn(axum::serve(listener, labels).into_future());
    let ran = ran(&url).await;
    server.abort();
    ran
}

#[tokio::test]
async fn the_handbooks_http_call_gives_each_answer_its_verdict() {
    let done = answered(201, r#"{"parcel": "p-7"}"#).await;
    let result = done.handlers[0].result.as_ref().unwrap();
    assert_eq!(result, &Some(json!({"parcel": "p-7"}).into()));
    for (status, verdict) in [
        (422, "reject: refused: the carrier answered 422"),
        (404, "reject: refused: the carrier answered 404"),
        (500, "retry: 500: the carrier answered 500"),
        (503, "retry: unavailable: the carrier answered 503"),
        (429, "retry: unavailable: the carrier answered 429"),
        (401, "retry: unavailable: the carrier answered 401"),
        (200, "retry: unavailable: error decoding response body"),
    ] {
        let failed = answered(status, "<html>").await;
        let error = failed.handlers[0].result.as_ref().unwrap_err();
        contains(&error.to_string(), verdict);
        assert_eq!(failed.status.is_some(), error.is_rejection(), "{status}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let nobody = ran(&url).await;
    let error = nobody.handlers[0].result.as_ref().unwrap_err();
    contains(
        &error.to_string(),
        "retry: unavailable: error sending request",
    );
}

#[test]
fn the_handbooks_program_names_a_setting_that_is_missing() {
    let error = example::Shop::of(&|_| None).err().unwrap();
    assert_eq!(error.to_string(), "configuration: CARRIER_URL: must be set");
}
