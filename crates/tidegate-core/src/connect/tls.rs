//! Owns TLS: which certificates are trusted, and the connector that is built from them. The certificate chain
//! and the host name are always checked; there is no weaker mode.
//!
//! Building a connector parses the system's whole certificate bundle, even when other certificates are given.
//! That takes 13 to 110 ms, at least twice as long as opening a connection. It happens at the first need,
//! away from the threads that answer requests. It takes only 1 ms if `SSL_CERT_FILE` names a small bundle
//! before the process starts.

use std::fmt::Display;
use std::sync::{Arc, LazyLock};

use native_tls::{Certificate, TlsConnector};
use tokio::sync::OnceCell;

use crate::config::read_file;
use crate::error::{Error, Result};

/// The trusted certificates. Clones share one connector.
#[derive(Clone)]
pub struct Trust(Arc<Inner>);

struct Inner {
    /// Empty for the system's certificates.
    roots: Vec<Certificate>,
    connector: OnceCell<TlsConnector>,
}

impl Trust {
    /// Trusts the system's certificates, or those that `SSL_CERT_FILE` names. All callers share one
    /// connector.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Trust> = LazyLock::new(|| Trust::in_roots(Vec::new()));
        SYSTEM.clone()
    }

    /// Trusts the certificates in the file that a setting names, and no others.
    ///
    /// # Errors
    /// [`Error::Config`], naming the setting, when the file contains no certificate.
    pub fn file(setting: &str, path: &str) -> Result<Self> {
        Self::only(&read_file(setting, path)?, &setting)
    }

    /// Trusts these certificates and no others. A program that names the database's certificate authority
    /// does not want any other one to be accepted.
    ///
    /// # Errors
    /// [`Error::Config`], naming `setting`, when `pem` contains no certificate. The text is not shown.
    pub fn only(pem: &[u8], setting: &dyn Display) -> Result<Self> {
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

    /// Returns the connector, which the first call builds.
    ///
    /// # Errors
    /// [`Error::Config`] when the TLS library fails.
    pub async fn connector(&self) -> Result<TlsConnector> {
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
