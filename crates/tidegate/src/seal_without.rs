//! Replaces the seal on payloads in builds without it: detects a sealed payload, so that its event waits for a program
//! that has the keys.

use std::borrow::Cow;

use crate::config::Lookup;
use crate::error::Error;
use crate::event::NewEvent;
use crate::handler::{HandlerError, Unhandled};

#[expect(clippy::unused_async, reason = "as with the seal built in")]
pub(crate) async fn keys() -> Result<(), Error> {
    Ok(())
}

pub(crate) fn from_settings(lookup: Lookup<'_>) -> Result<(), Error> {
    for name in [
        "TIDEGATE_PAYLOAD_KEYS_FILE",
        "TIDEGATE_PAYLOAD_KEYS_SECRET_ID",
    ] {
        if lookup(name).is_some() {
            let why = "must not be set: this program was built without the feature seal";
            return Err(Error::Config(format!("{name}: {why}")));
        }
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "as with the seal built in")]
pub(crate) fn sealed(event: &NewEvent) -> Result<Cow<'_, NewEvent>, Error> {
    Ok(Cow::Borrowed(event))
}

pub(crate) fn opened<'a>(
    _: &str,
    payload: Option<&'a [u8]>,
) -> Result<Option<Cow<'a, [u8]>>, Unhandled> {
    match payload {
        Some(sealed) if sealed.starts_with(br#"{"tidegate_sealed":"#) => {
            let why = "the payload is sealed, and this program was built without the feature seal";
            Err(Unhandled::Later(
                HandlerError::retry("sealed", why).blameless(),
            ))
        }
        payload => Ok(payload.map(Cow::Borrowed)),
    }
}
