//! Owns the checks from outside under load: it asks the database many times a second for states that must
//! never exist. Each check uses one snapshot.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::connect::Client;
use tokio_postgres::NoTls;

const PAUSE: Duration = Duration::from_millis(40);

/// What has been seen so far.
#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    /// The violated invariant, and the details.
    breaches: BTreeSet<(String, String)>,
}

/// Checks until it is dropped.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    looking: tokio::task::JoinHandle<()>,
}

impl Watch {
    pub fn begin(url: String) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let looking = tokio::spawn(look(url, seen.clone()));
        Self { seen, looking }
    }

    /// Returns how often it has checked, and the violations it saw.
    pub fn seen(&self) -> (u64, Vec<(String, String)>) {
        let seen = self.seen.lock().unwrap();
        (seen.looks, seen.breaches.iter().cloned().collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// A server that is down is asked again when it is back.
async fn look(url: String, seen: Arc<Mutex<Seen>>) {
    let mut client: Option<Client> = None;
    loop {
        if client.is_none()
            && let Ok((connected, connection)) = tokio_postgres::connect(&url, NoTls).await
        {
            tokio::spawn(connection);
            client = Some(connected.into());
        }
        if let Some(connected) = &client {
            match breaches(connected).await {
                Ok(found) => {
                    let mut seen = seen.lock().unwrap();
                    seen.looks += 1;
                    seen.breaches.extend(found);
                }
                Err(error) if error.is_closed() || error.as_db_error().is_none() => client = None,
                Err(error) => {
                    let text = ("I4".to_owned(), format!("nobody could look: {error:?}"));
                    let shutdown = error
                        .code()
                        .is_some_and(|code| code.code().starts_with("57"));
                    if !shutdown {
                        seen.lock().unwrap().breaches.insert(text);
                    }
                    client = None;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns states that must not exist.
pub async fn breaches(client: &Client) -> Result<Vec<(String, String)>, tokio_postgres::Error> {
    let sql = "SELECT invariant, text FROM torture.breaches";
    let rows = client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
