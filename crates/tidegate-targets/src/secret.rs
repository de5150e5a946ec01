//! Owns keys and tokens of targets: a secret of Secrets Manager, or a file. They are read again after five
//! minutes, so a changed one needs no restart. No message quotes them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Error, HandlerError};
use tidegate_core::connect::{SecretReader, secret_reader};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long what was read is used.
const KEPT: Duration = Duration::from_mins(5);

/// When a read that failed is tried again. Meanwhile other calls do not wait for it.
const AGAIN: Duration = Duration::from_secs(5);

/// The text of a secret.
pub(crate) struct Secret {
    read: SecretReader,
    /// What was read last, and until when it is used.
    kept: Mutex<Option<(Instant, Text)>>,
}

/// A text, or why it could not be read.
type Text = Result<Arc<str>, String>;

impl Secret {
    /// Names a secret: its ARN or name in Secrets Manager, or `file:PATH`.
    ///
    /// # Errors
    /// If this program cannot read secrets of Secrets Manager.
    pub(crate) fn new(field: &str, named: String) -> Result<Self, Error> {
        Ok(Self {
            read: secret_reader(field, named)?,
            kept: Mutex::default(),
        })
    }

    /// # Errors
    /// Unavailable, code `credentials`, if the secret cannot be read and no earlier text is kept.
    pub(crate) async fn text(&self) -> Result<Arc<str>, HandlerError> {
        let unavailable = |why| HandlerError::unavailable("credentials", why);
        let mut kept = self.kept.lock().await;
        if let Some((until, read)) = &*kept
            && Instant::now() < *until
        {
            return read.clone().map_err(unavailable);
        }
        let read = (self.read)().await;
        let used = if read.is_ok() { KEPT } else { AGAIN };
        let read = match (read, kept.take()) {
            (Ok(text), _) => Ok(text.trim().into()),
            // A key that was good is better than none.
            (Err(_), Some((_, Ok(text)))) => Ok(text),
            (Err(error), _) => Err(error.to_string()),
        };
        *kept = Some((Instant::now() + used, read.clone()));
        read.map_err(unavailable)
    }

    /// Makes the next use read the secret again, because the target did not accept it.
    pub(crate) async fn forget(&self) {
        *self.kept.lock().await = None;
    }
}
