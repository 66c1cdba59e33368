//! What a failed connection means, in words that say what to do.

use rustls::{AlertDescription, CertificateError};
use std::{error::Error as StdError, io};

/// Why a connection failed: the reason that lies deepest, and for TLS what it means.
pub fn explain(error: &(dyn StdError + 'static)) -> String {
    let mut current = error;
    loop {
        if let Some(tls) = current.downcast_ref::<rustls::Error>() {
            return in_words(tls);
        }
        // An io::Error hides what it carries: its source is the source of that.
        let inner = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let next = match inner {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => current.source(),
        };
        match next {
            Some(next) => current = next,
            None => return plain(current),
        }
    }
}

fn plain(error: &(dyn StdError + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<io::Error>()
        && error.kind() == io::ErrorKind::UnexpectedEof
    {
        return "the other side closed the connection: is one side speaking TLS and the other not?".into();
    }
    let text = error.to_string();
    // HTTP/2 keeps only the words of an error: a server that refuses our certificate says so after the handshake.
    let alerts = [
        AlertDescription::CertificateRequired,
        AlertDescription::UnknownCA,
        AlertDescription::CertificateExpired,
        AlertDescription::BadCertificate,
        AlertDescription::DecryptError,
    ];
    let meant = alerts.into_iter().find(|alert| text == rustls::Error::AlertReceived(*alert).to_string());
    meant.map_or(text, alert)
}

fn in_words(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let words = match error {
        E::InvalidCertificate(reason) => return certificate(reason),
        E::AlertReceived(received) => return alert(*received),
        E::NoCertificatesPresented => {
            "the other side showed no certificate: clients need one, signed by the CA that the server names"
        }
        E::InvalidMessage(_) => "the other side does not speak TLS: is this the plaintext port?",
        other => return format!("the TLS handshake failed: {other}"),
    };
    words.to_owned()
}

/// What the other side said before it broke off.
fn alert(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let words = match alert {
        A::CertificateRequired => {
            "the other side wants a client certificate: name one with --tls-client-cert and --tls-client-key"
        }
        A::UnknownCA => "the other side does not know the CA that signed our certificate",
        A::CertificateExpired => "the other side says that our certificate has expired",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate | A::AccessDenied => {
            "the other side does not accept our certificate"
        }
        A::DecryptError => {
            "the other side does not accept our certificate: its CA has the right name and another key"
        }
        other => return format!("the other side broke off the TLS handshake: {other:?}"),
    };
    words.to_owned()
}

fn certificate(reason: &CertificateError) -> String {
    use CertificateError as C;
    let words = match reason {
        C::Expired | C::ExpiredContext { .. } => "the other side's certificate has expired: renew it",
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "the other side's certificate is not valid yet: compare the clocks of the two machines"
        }
        C::UnknownIssuer => "the other side's certificate is not signed by the CA that we trust",
        C::BadSignature => {
            "the other side's certificate is not signed by the CA that we trust: the name is the same, the key is not"
        }
        C::NotValidForName => "the other side's certificate is for another name",
        C::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            return format!(
                "the other side's certificate is for {presented}, not for {}: connect by a name that it has, or set \
                 --tls-server-name",
                expected.to_str()
            );
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "the other side's certificate is not made for this use: its extended key usage must name serverAuth or clientAuth"
        }
        C::Revoked => "the other side's certificate is revoked",
        other => return format!("the other side's certificate cannot be used: {other}"),
    };
    words.to_owned()
}
