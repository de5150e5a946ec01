//! Owns the ids by which jobs are linked to: `13-2nT5…`, the event's id and a signature of it. Who has counted to 13 has no
//! link; who has learnt somebody else's has none either, for the signature is over the caller's client too.
//!
//! Nothing is stored for a link, and nothing looked up but the few keys: a link that is wrong costs the queue no read. The
//! event's id stands in it as it is, for it is what operators ask for, and no secret.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::app::sql::query;
use tidegate::Error;

/// Bytes of a signature: whoever guesses needs 2^127 requests.
const TAG: usize = 16;

/// What this signature says, so that it can never be taken for another one of the same key.
const PURPOSE: &[u8] = b"tidegate job link\0";

const KEYS: &str = "SELECT secret FROM callers.link_key ORDER BY id DESC";

/// The keys of links, the newest first.
pub(super) struct LinkKeys(Vec<Vec<u8>>);

impl LinkKeys {
    /// Reads them. They are not kept: one that was forgotten is so at once.
    ///
    /// # Errors
    /// The database's.
    pub(super) async fn read(tx: &Transaction<'_>) -> Result<Self, Error> {
        let rows = query(tx, "link keys", KEYS, &[]).await?;
        Ok(Self(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// The id of an event for callers of this client, or for everybody who has it, where no caller is known.
    ///
    /// # Errors
    /// [`Error::Config`] when there is no key.
    pub(super) fn sign(&self, id: i64, client: Option<Uuid>) -> Result<String, Error> {
        let newest = self.0.first().and_then(|key| signature(key, id, client));
        let newest = newest.ok_or_else(|| {
            let remedy = "must have a row: `tidegate link-key rotate` makes one";
            Error::Config(format!("callers.link_key: {remedy}"))
        })?;
        let tag = newest.finalize().into_bytes();
        let tag = URL_SAFE_NO_PAD.encode(&tag[..TAG]);
        Ok(format!("{id}-{tag}"))
    }

    /// The event that a link's id stands for, if it was signed for this client. In constant time.
    pub(super) fn verify(&self, link: &Link, client: Option<Uuid>) -> Option<i64> {
        let is_signed = |key: &Vec<u8>| {
            let signed = signature(key, link.id, client);
            signed.is_some_and(|signed| signed.verify_truncated_left(&link.tag).is_ok())
        };
        self.0.iter().any(is_signed).then_some(link.id)
    }
}

/// A link's id as it was sent: well formed, and no more.
pub(super) struct Link {
    id: i64,
    tag: [u8; TAG],
}

impl Link {
    /// Only as we write it ourselves: a job has one address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, tag) = text.split_once('-')?;
        let id: i64 = number.parse().ok()?;
        // A decoder that is strict about what is left over in the last character.
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
        // The last character has two bits of the signature: any other that has the same two is refused.
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
