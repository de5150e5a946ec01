//! The HTTP interface, until it is told to stop.

use serde_json::json;
use tidegate::Error;
use tidegate::program::{Service, stop_signal};

use crate::{Answer, Failed, print};

pub async fn serve(
    service: &Service,
    listen: std::net::SocketAddr,
    json: bool,
) -> Result<Answer, Failed> {
    let failed = |error| Error::Config(format!("--listen {listen}: {error}"));
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener.map_err(failed)?;
    let url = format!("http://{}", listener.local_addr().map_err(failed)?);
    let listening = format!("listening on {url}");
    if json {
        eprintln!("{listening}");
    } else {
        let _ = print(&listening);
    }
    let router = tidegate::http::router(service.database.clone());
    let served = tidegate::http::serve(listener, router, stop_signal()).await;
    served.map_err(failed)?;
    Ok(Answer::new(
        json!({"action": "serve", "url": url}),
        "stopped".to_owned(),
    ))
}
