//! Owns keys and tokens of targets: a secret of Secrets Manager, or a file. They are read again after five
//! minutes, so a changed one needs no restart. No message quotes them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::HandlerError;
use tidegate::config::read_secret_file;
use tidegate::connect::SecretText;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long what was read is used.
const KEPT: Duration = Duration::from_mins(5);

/// When a read that failed is tried again. Meanwhile other calls do not wait for it.
const AGAIN: Duration = Duration::from_secs(5);

/// The text of a secret.
pub(crate) struct Secret {
    keeper: Keeper,
    /// What was read last, and until when it is used.
    kept: Mutex<Option<(Instant, Text)>>,
}

/// A text, or why it could not be read.
type Text = Result<Arc<str>, String>;

enum Keeper {
    Aws(Box<SecretText>),
    File(String),
}

impl Secret {
    /// Names a secret: its ARN or name in Secrets Manager, or `file:PATH`.
    pub(crate) fn new(named: &str) -> Self {
        let keeper = match named.strip_prefix("file:") {
            Some(path) => Keeper::File(path.to_owned()),
            None => Keeper::Aws(Box::new(SecretText::new(named.to_owned()))),
        };
        Self {
            keeper,
            kept: Mutex::default(),
        }
    }

    /// Returns the text.
    ///
    /// # Errors
    /// Unavailable, code `credentials`, if it cannot be read.
    pub(crate) async fn text(&self) -> Result<Arc<str>, HandlerError> {
        let unavailable = |why| HandlerError::unavailable("credentials", why);
        let mut kept = self.kept.lock().await;
        if let Some((until, read)) = &*kept
            && Instant::now() < *until
        {
            return read.clone().map_err(unavailable);
        }
        let read = match &self.keeper {
            Keeper::Aws(secret) => secret.read().await.map_err(|error| error.to_string()),
            Keeper::File(path) => read_secret_file(path),
        };
        let used = if read.is_ok() { KEPT } else { AGAIN };
        let read = match (read, kept.take()) {
            (Ok(text), _) => Ok(text.trim().into()),
            // A key that was good is better than none.
            (Err(_), Some((_, Ok(text)))) => Ok(text),
            (Err(why), _) => Err(why),
        };
        *kept = Some((Instant::now() + used, read.clone()));
        read.map_err(unavailable)
    }

    /// Reads it again at the next use, because the target did not accept it.
    pub(crate) async fn forget(&self) {
        *self.kept.lock().await = None;
    }
}
