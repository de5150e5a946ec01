//! Owns TLS: which certificates are trusted, and the connector made of them. There is no weaker mode
//! than a checked chain and host name.
//!
//! The surprise: making a connector parses the system's whole certificate bundle, twice as slow as a
//! connection with everything in it (13 to 110 ms), even when other certificates are given. It
//! happens at the first need, away from the threads that answer, and `SSL_CERT_FILE`, set to a small
//! bundle before the process starts, shortens it to 1 ms.

use std::fmt::Display;
use std::sync::{Arc, LazyLock};

use native_tls::{Certificate, TlsConnector};
use tokio::sync::OnceCell;

use crate::error::Error;

/// What is trusted. Clones share one connector.
#[derive(Clone)]
pub struct Trust(Arc<Inner>);

struct Inner {
    /// Empty for the system's.
    roots: Vec<Certificate>,
    connector: OnceCell<TlsConnector>,
}

impl Trust {
    /// The system's certificates, or those that `SSL_CERT_FILE` names. The same for all who ask.
    #[must_use]
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Trust> = LazyLock::new(|| Trust::in_roots(Vec::new()));
        SYSTEM.clone()
    }

    /// These certificates and no others: whoever names the database's authority wants no other one to
    /// be able to vouch for it.
    ///
    /// # Errors
    /// [`Error::Config`] naming `setting` when there is no certificate in `pem`. The text is not shown.
    pub(crate) fn only(pem: &[u8], setting: &dyn Display) -> Result<Self, Error> {
        match Certificate::stack_from_pem(pem) {
            Ok(roots) if !roots.is_empty() => Ok(Self::in_roots(roots)),
            _ => Err(Error::Config(format!(
                "{setting}: must be one or more certificates in PEM (-----BEGIN CERTIFICATE-----); none can be read"
            ))),
        }
    }

    fn in_roots(roots: Vec<Certificate>) -> Self {
        Self(Arc::new(Inner {
            roots,
            connector: OnceCell::new(),
        }))
    }

    /// The connector, made by the first who asks.
    ///
    /// # Errors
    /// [`Error::Config`] when the TLS library fails.
    pub async fn connector(&self) -> Result<TlsConnector, Error> {
        let make = async || {
            let roots = self.0.roots.clone();
            let made = tokio::task::spawn_blocking(move || connector(&roots)).await;
            let failed = |error: &dyn Display| Error::Config(format!("TLS: {error}"));
            made.map_err(|error| failed(&error))?
                .map_err(|error| failed(&error))
        };
        self.0.connector.get_or_try_init(make).await.cloned()
    }
}

fn connector(roots: &[Certificate]) -> native_tls::Result<TlsConnector> {
    let mut builder = TlsConnector::builder();
    builder.disable_built_in_roots(!roots.is_empty());
    for root in roots {
        builder.add_root_certificate(root.clone());
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_without_a_certificate_is_refused_by_name_and_not_quoted() {
        let broken = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n";
        for pem in ["", "canary", broken] {
            let error = Trust::only(pem.as_bytes(), &"DATABASE_CA_PEM")
                .err()
                .unwrap()
                .to_string();
            assert!(
                error.contains("DATABASE_CA_PEM") && error.contains("PEM"),
                "{error}"
            );
            assert!(
                !error.contains("canary") && !error.contains("Y2Fu"),
                "{error}"
            );
        }
    }
}
