//! What a PEM certificate states, and whether a key belongs to it.

use crate::{Error, PeerCertificate, pem};
use rustls::{crypto::ring, sign::CertifiedKey};
use std::path::Path;
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

/// Facts of a certificate. Times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The distinguished name, such as `CN=client`.
    pub subject: String,
    /// The distinguished name of the CA that signed it.
    pub issuer: String,
    /// DNS names of the subject alternative name, in their order.
    pub hosts: Vec<String>,
    /// URIs of the subject alternative name, in their order.
    pub uris: Vec<String>,
    /// Start of its validity.
    pub not_before: i64,
    /// End of its validity.
    pub not_after: i64,
}

impl CertificateInfo {
    /// The certificates of a PEM text. `origin` names it in errors.
    pub fn read_all(origin: &str, text: &[u8]) -> Result<Vec<Self>, Error> {
        let path = Path::new(origin);
        let all = pem::certificates(path, text)?;
        let unreadable = |reason| Error::Certificate { path: path.to_owned(), reason };
        all.iter().map(|der| Self::of_der(der).map_err(unreadable)).collect()
    }

    fn of_der(der: &[u8]) -> Result<Self, String> {
        let PeerCertificate { uris, .. } = PeerCertificate::parse(der)?;
        let (_, certificate) = parse_x509_certificate(der).map_err(|e| e.to_string())?;
        let names = certificate.subject_alternative_name().map_err(|e| e.to_string())?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let host = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(host) => Some((*host).to_owned()),
            _ => None,
        };
        Ok(Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            hosts: names.filter_map(host).collect(),
            uris,
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
}

/// Whether the key is that of the certificate; both are PEM.
pub fn is_key_of(certificate: &[u8], key: &[u8]) -> bool {
    let path = Path::new("");
    let (Ok(chain), Ok(key)) = (pem::certificates(path, certificate), pem::key(path, key)) else {
        return false;
    };
    CertifiedKey::from_der(chain, key, &ring::default_provider()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn signed(name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names.push(SanType::URI("spiffe://a/gantry/role/agent".try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn facts_are_those_of_the_certificate() {
        let (one, _) = signed("one");
        let (two, _) = signed("two");
        let all = CertificateInfo::read_all("ca.crt", format!("{one}{two}").as_bytes()).unwrap();
        assert_eq!(all.len(), 2);
        assert!(all[0].subject.contains("CN=one") && all[1].issuer.contains("CN=two"), "{all:?}");
        assert_eq!(all[0].hosts, ["a.example"]);
        assert_eq!(all[0].uris, ["spiffe://a/gantry/role/agent"]);
        assert!(all[0].not_before < all[0].not_after);
    }

    #[test]
    fn damaged_text_is_an_error() {
        let (certificate, _) = signed("one");
        let cut = &certificate[..certificate.len() / 2];
        assert!(CertificateInfo::read_all("ca.crt", cut.as_bytes()).is_err());
        assert!(CertificateInfo::read_all("ca.crt", b"").is_err());
    }

    #[test]
    fn key_belongs_to_its_own_certificate_only() {
        let ((one, one_key), (_, two_key)) = (signed("one"), signed("two"));
        assert!(is_key_of(one.as_bytes(), one_key.as_bytes()));
        assert!(!is_key_of(one.as_bytes(), two_key.as_bytes()));
        assert!(!is_key_of(one.as_bytes(), b"no key"));
        assert!(!is_key_of(b"no certificate", one_key.as_bytes()));
    }
}
