//! Turns a failed connection into a message with the cause and a remedy.

use rustls::{AlertDescription, CertificateError};
use std::{error::Error as StdError, io};

/// The root cause of a failed connection; TLS errors are explained.
pub fn diagnose(error: &(dyn StdError + 'static)) -> String {
    let mut current = error;
    loop {
        if let Some(tls) = current.downcast_ref::<rustls::Error>() {
            return tls_error(tls);
        }
        // `io::Error::source` skips the error it wraps.
        let inner = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let next = match inner {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => current.source(),
        };
        match next {
            Some(next) => current = next,
            None => return root_cause(current),
        }
    }
}

fn root_cause(error: &(dyn StdError + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<io::Error>()
        && error.kind() == io::ErrorKind::UnexpectedEof
    {
        return "the peer closed the connection: does only one side use TLS?".into();
    }
    let text = error.to_string();
    // In TLS 1.3 a client certificate is rejected after the handshake, and HTTP/2 keeps only the text of that error.
    let alerts = [
        AlertDescription::CertificateRequired,
        AlertDescription::UnknownCA,
        AlertDescription::CertificateExpired,
        AlertDescription::BadCertificate,
        AlertDescription::DecryptError,
    ];
    let received = alerts.into_iter().find(|alert| text == rustls::Error::AlertReceived(*alert).to_string());
    received.map_or(text, alert)
}

fn tls_error(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let message = match error {
        E::InvalidCertificate(reason) => return certificate(reason),
        E::AlertReceived(received) => return alert(*received),
        E::NoCertificatesPresented => {
            "the peer presented no certificate: clients need one signed by the server's client CA"
        }
        E::InvalidMessage(_) => "the peer does not use TLS: is this the plaintext port?",
        other => return format!("TLS handshake failed: {other}"),
    };
    message.to_owned()
}

fn alert(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let message = match alert {
        A::CertificateRequired => {
            "the peer requires a client certificate: set --tls-client-cert and --tls-client-key"
        }
        A::UnknownCA => "the peer does not trust the CA of our certificate",
        A::CertificateExpired => "the peer rejected our certificate: it has expired",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate | A::AccessDenied => {
            "the peer rejected our certificate"
        }
        A::DecryptError => "the peer rejected our certificate: its CA has the same name but a different key",
        other => return format!("the peer aborted the TLS handshake: {other:?}"),
    };
    message.to_owned()
}

fn certificate(reason: &CertificateError) -> String {
    use CertificateError as C;
    let message = match reason {
        C::Expired | C::ExpiredContext { .. } => "the peer's certificate has expired: renew it",
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet: check the clocks of both machines"
        }
        C::UnknownIssuer => "the peer's certificate is not signed by a trusted CA",
        C::BadSignature => "the peer's certificate is not signed by a trusted CA: same name, different key",
        C::NotValidForName => "the peer's certificate is for another name",
        C::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            return format!(
                "the peer's certificate is for {presented}, not for {}: connect by one of its names or set \
                 --tls-server-name",
                expected.to_str()
            );
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "the peer's certificate has the wrong extended key usage: it needs serverAuth or clientAuth"
        }
        C::Revoked => "the peer's certificate is revoked",
        other => return format!("the peer's certificate is invalid: {other}"),
    };
    message.to_owned()
}
