//! The verified identity of a connection's peer.

use crate::Connection;
use std::{fmt::Write as _, net::SocketAddr, sync::Arc};
use tonic::transport::server::Connected;
use x509_parser::{extensions::GeneralName, parse_x509_certificate, prelude::AttributeTypeAndValue};

/// A longer subject is shortened; it is shown, never compared.
const MAX_SUBJECT: usize = 256;
/// A certificate with more URIs, or with a longer one, is unreadable.
const MAX_URIS: usize = 64;
const MAX_URI_LENGTH: usize = 2048;

/// What a connection reveals about its peer; tonic adds it to the extensions of each request.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// The peer's certificate.
    pub peer: Peer,
}

/// The peer of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A peer without a verified certificate: plaintext, or TLS that requires none.
    Anonymous,
    /// A peer whose certificate was verified in the handshake.
    Verified(Arc<PeerCertificate>),
    /// A peer whose verified certificate has names that cannot be read, with the reason.
    Unreadable(Arc<str>),
}

/// Names in a verified certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The subject, such as `CN=client`, without control characters.
    pub subject: String,
    /// The common name of the subject, if it has exactly one that is text.
    pub common_name: Option<String>,
    /// URIs of the subject alternative name, in their order.
    pub uris: Vec<String>,
}

impl PeerCertificate {
    /// Reads the names of a DER certificate; the error is the reason why they cannot be read.
    pub fn parse(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = parse_x509_certificate(der).map_err(|e| e.to_string())?;
        let mut subject = String::new();
        // `Display` of a subject with an unknown encoding fails.
        let _ = write!(subject, "{}", certificate.subject());
        let subject =
            subject.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX_SUBJECT).collect();
        let mut common_names = certificate.subject().iter_common_name().map(AttributeTypeAndValue::as_str);
        let common_name = match (common_names.next(), common_names.next()) {
            (Some(Ok(name)), None) => Some(name.to_owned()),
            _ => None,
        };
        let names = certificate.subject_alternative_name().map_err(|e| e.to_string())?;
        let mut uris = Vec::new();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) if uri.len() <= MAX_URI_LENGTH && uris.len() < MAX_URIS => {
                    uris.push((*uri).to_owned());
                }
                GeneralName::URI(_) => {
                    return Err(format!(
                        "more than {MAX_URIS} URIs in the subject alternative name, or one over {MAX_URI_LENGTH} bytes"
                    ));
                }
                GeneralName::Invalid(..) => {
                    return Err("the subject alternative name has an invalid entry".into());
                }
                _ => {}
            }
        }
        Ok(Self { subject, common_name, uris })
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        ConnectInfo { remote: self.peer(), peer: peer(self) }
    }
}

fn peer(connection: &Connection) -> Peer {
    let Connection::Tls(stream) = connection else { return Peer::Anonymous };
    let Some(certificate) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) else {
        return Peer::Anonymous;
    };
    match PeerCertificate::parse(certificate) {
        Ok(certificate) => Peer::Verified(Arc::new(certificate)),
        Err(reason) => Peer::Unreadable(reason.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn der(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    #[test]
    fn subject_and_uris_are_read() {
        let der = der(|params| {
            params.distinguished_name.push(DnType::CommonName, "agent 7\n\u{1b}[31m");
            params.subject_alt_names = vec![
                SanType::DnsName("agent.example".try_into().unwrap()),
                uri("spiffe://example/gantry/role/agent"),
                uri("https://example"),
            ];
        });
        let certificate = PeerCertificate::parse(&der).unwrap();
        assert!(certificate.subject.contains("CN=agent 7??[31m"), "{}", certificate.subject);
        assert_eq!(certificate.common_name.as_deref(), Some("agent 7\n\u{1b}[31m"));
        assert_eq!(certificate.uris, ["spiffe://example/gantry/role/agent", "https://example"]);
    }

    #[test]
    fn several_common_names_are_none() {
        let der = der(|params| {
            params.distinguished_name.push(DnType::CommonName, "front-proxy");
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "another");
        });
        assert_eq!(PeerCertificate::parse(&der).unwrap().common_name, None);
    }

    #[test]
    fn certificate_without_names_has_no_uris() {
        assert_eq!(PeerCertificate::parse(&der(|_| {})).unwrap().uris, Vec::<String>::new());
    }

    #[test]
    fn too_many_or_too_long_uris_are_an_error() {
        let many = |params: &mut CertificateParams| {
            params.subject_alt_names = (0..=MAX_URIS).map(|i| uri(&format!("u:{i}"))).collect();
        };
        let long = |params: &mut CertificateParams| {
            params.subject_alt_names = vec![uri(&format!("u:{}", "x".repeat(MAX_URI_LENGTH)))];
        };
        for der in [der(many), der(long)] {
            assert!(PeerCertificate::parse(&der).unwrap_err().contains("subject alternative name"));
        }
    }

    #[test]
    fn truncated_certificates_are_an_error_and_never_a_panic() {
        let der = der(|params| params.subject_alt_names = vec![uri("spiffe://example/gantry/role/agent")]);
        for length in 0..der.len() {
            assert!(PeerCertificate::parse(&der[..length]).is_err(), "{length}");
        }
        for i in 0..der.len() {
            let mut changed = der.clone();
            changed[i] ^= 0xff;
            let _ = PeerCertificate::parse(&changed);
        }
    }
}
