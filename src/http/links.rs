//! Owns the ids in links to jobs: `13-2nT5…` is the event's id and a signature. A client that counts up to 13
//! cannot guess the link. A client that learns another client's link cannot use it, because the signature
//! also covers the client's id.
//!
//! No link is stored, and verification reads only the few keys, so a wrong link costs the queue no read. The
//! event's id is readable in the link, because operators need it, and it is not a secret.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tidegate::{Error, Transaction};
use tidegate_core::queue::query;
use tidegate_core::statements;
use uuid::Uuid;

/// Bytes of a signature. Guessing one takes 2^127 requests on average.
const TAG: usize = 16;

/// The purpose of the signature. It prevents the use of another signature made with the same key.
const PURPOSE: &[u8] = b"tidegate job link\0";

statements! {
    KEYS: "link keys" [] = "SELECT secret FROM callers.link_key ORDER BY id DESC";
}

/// The keys for links, newest first.
pub(super) struct LinkKeys(Vec<Vec<u8>>);

impl LinkKeys {
    /// Reads the keys. They are not cached, so a removed key is invalid at once.
    ///
    /// # Errors
    /// Database errors.
    pub(super) async fn read(tx: &Transaction<'_>) -> Result<Self, Error> {
        let rows = query(tx, &KEYS, &[]).await?;
        Ok(Self(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// Returns the id for a link to an event, signed for this client. Without a known client, the link is
    /// valid for everyone who has it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no key.
    pub(super) fn sign(&self, id: i64, client: Option<Uuid>) -> Result<String, Error> {
        let newest = self.0.first().and_then(|key| signature(key, id, client));
        let newest = newest.ok_or_else(|| {
            let remedy = "must have a row; `tidegate link-key rotate` creates one";
            Error::Config(format!("callers.link_key: {remedy}"))
        })?;
        let tag = newest.finalize().into_bytes();
        let tag = URL_SAFE_NO_PAD.encode(&tag[..TAG]);
        Ok(format!("{id}-{tag}"))
    }

    /// The event of a link, if the link was signed for this client. Signatures are compared in constant time.
    pub(super) fn verify(&self, link: &Link, client: Option<Uuid>) -> Option<i64> {
        let is_signed = |key: &Vec<u8>| {
            let signed = signature(key, link.id, client);
            signed.is_some_and(|signed| signed.verify_truncated_left(&link.tag).is_ok())
        };
        self.0.iter().any(is_signed).then_some(link.id)
    }
}

/// The id of a link as it was sent: well formed, but not verified.
pub(super) struct Link {
    id: i64,
    tag: [u8; TAG],
}

impl Link {
    /// Accepts only the exact format that [`LinkKeys::sign`] writes, so a job has only one address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, tag) = text.split_once('-')?;
        let id: i64 = number.parse().ok()?;
        // This decoder is strict about unused bits in the last character.
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        let tag = tag.try_into().ok()?;
        (id > 0 && id.to_string() == number).then_some(Self { id, tag })
    }
}

fn signature(key: &[u8], id: i64, client: Option<Uuid>) -> Option<Hmac<Sha256>> {
    let mut signature = Hmac::<Sha256>::new_from_slice(key).ok()?;
    signature.update(PURPOSE);
    signature.update(&id.to_be_bytes());
    if let Some(client) = client {
        signature.update(client.as_bytes());
    }
    Some(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Option<Uuid> = Some(Uuid::from_u128(1));
    const THEIRS: Option<Uuid> = Some(Uuid::from_u128(2));

    fn keys(numbers: &[u8]) -> LinkKeys {
        LinkKeys(numbers.iter().map(|number| vec![*number; 32]).collect())
    }

    #[test]
    fn a_link_is_its_clients_and_nobody_elses() {
        let keys = keys(&[1]);
        for (signed_for, good_for) in [(OURS, OURS), (None, None), (THEIRS, THEIRS)] {
            let id = keys.sign(13, signed_for).unwrap();
            let link = Link::parse(&id).unwrap();
            for client in [OURS, THEIRS, None] {
                let found = keys.verify(&link, client);
                assert_eq!(found, (client == good_for).then_some(13), "{id}");
            }
        }
    }

    #[test]
    fn the_newest_key_signs_and_every_key_verifies() {
        let old = keys(&[1]).sign(13, OURS).unwrap();
        let new = keys(&[2, 1]).sign(13, OURS).unwrap();
        assert_ne!(old, new);
        for (link, held, found) in [
            (&old, &[2, 1][..], Some(13)),
            (&new, &[2, 1], Some(13)),
            (&new, &[2], Some(13)),
            (&old, &[2], None),
            (&old, &[], None),
        ] {
            let link = Link::parse(link).unwrap();
            assert_eq!(keys(held).verify(&link, OURS), found, "{held:?}");
        }
        assert!(keys(&[]).sign(13, OURS).is_err());
    }

    #[test]
    fn a_job_has_one_address_and_no_other_text_leads_there() {
        let keys = keys(&[1]);
        let id = keys.sign(13, OURS).unwrap();
        let tag = id.strip_prefix("13-").unwrap();
        assert_eq!(tag.len(), 22);
        let mut other = tag.to_owned();
        // The last character contains two bits of the signature. Any other character with the same two bits
        // is refused.
        let last = other.pop().unwrap();
        let alike = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        for twin in alike
            .iter()
            .map(|byte| char::from(*byte))
            .filter(|twin| *twin != last)
        {
            let twin = format!("13-{other}{twin}");
            let link = Link::parse(&twin);
            assert!(link.is_none_or(|link| keys.verify(&link, OURS).is_none()));
        }
        for odd in [
            "13".to_owned(),
            "13-".to_owned(),
            format!("14-{tag}"),
            format!("013-{tag}"),
            format!("+13-{tag}"),
            format!("-13-{tag}"),
            format!("0-{tag}"),
            format!("13-{tag}="),
            format!("13-{}", &tag[..20]),
            format!("13-{tag}{tag}"),
            format!("9223372036854775808-{tag}"),
            format!("13.{tag}"),
        ] {
            let link = Link::parse(&odd);
            assert!(
                link.is_none_or(|link| keys.verify(&link, OURS).is_none()),
                "{odd}"
            );
        }
    }
}
