//! Certificates for one test, and Postgres servers that use them for TLS.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;

use crate::Cluster;

/// A certificate authority for one test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Returns a file with [`Authority::pem`].
    pub fn file(&self) -> PathBuf {
        let path = self.folder.path().join("ca.pem");
        std::fs::write(&path, self.pem()).unwrap();
        path
    }

    /// Issues a certificate for a server with this name, valid from 2020 to the given year.
    pub fn certify(&self, host: &str, until: i32) -> Certified {
        let key = KeyPair::generate().unwrap();
        let certificate = params(host, until).signed_by(&key, &self.issuer).unwrap();
        Certified {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Certified {
    /// Creates a self-signed certificate.
    pub fn by_itself(host: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params(host, 2200).self_signed(&key).unwrap();
        Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Starts a Postgres with this certificate, if the installed one supports TLS. Everyone except its
    /// owner needs a password.
    pub fn postgres(&self) -> Option<Cluster> {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("crt"), folder.path().join("key"));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        Cluster::start_with_tls(&["--tls".as_ref(), certificate.as_os_str(), key.as_os_str()])
    }
}

fn params(host: &str, until: i32) -> CertificateParams {
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params
}
