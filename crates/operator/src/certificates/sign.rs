//! Creates authorities and certificates.

use super::{
    authorities::{Authorities, Authority},
    policy::{CLOCK_SKEW, Identity, plus},
};
use gantry_tls::CertificateInfo;
use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use std::{fmt, time::Duration};

/// A certificate and its key as PEM.
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").finish_non_exhaustive()
    }
}

/// A new authority of a namespace.
pub fn authority(namespace: &str, now: Timestamp, lifetime: Duration) -> Result<Authority, String> {
    let (from, until) = (whole_seconds(now), whole_seconds(plus(now, lifetime)));
    let create = || -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        // Unique: certificates name their authority by its subject, also two that were created at the same time.
        let mut id: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in key.public_key_raw() {
            id = (id ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut params = CertificateParams::new(Vec::new())?;
        set_subject(&mut params, &format!("{namespace} {id:016x}"), from, until);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key_text = key.serialize_pem();
        Ok((CertifiedIssuer::self_signed(params, key)?.pem(), key_text))
    };
    let (certificate, key) =
        create().map_err(|e| format!("failed to create a certificate authority: {e}"))?;
    let name = subject(&certificate)?;
    Ok(Authority { name, certificate, key, from, until })
}

/// A certificate of the signing authority. It ends with the authority at the latest.
pub fn certificate(
    authorities: &Authorities,
    identity: &Identity,
    now: Timestamp,
    lifetime: Duration,
) -> Result<Signed, String> {
    let Some(authority) = authorities.signer() else {
        return Err("there is no certificate authority".into());
    };
    let (from, until) = (whole_seconds(now), whole_seconds(plus(now, lifetime)).min(authority.until));
    let sign = || -> Result<Signed, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
        let mut params = CertificateParams::new(identity.hosts.clone())?;
        set_subject(&mut params, identity.uri.rsplit("/role/").next().unwrap_or_default(), from, until);
        params.subject_alt_names.push(SanType::URI(identity.uri.as_str().try_into()?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = if identity.hosts.is_empty() {
            vec![ExtendedKeyUsagePurpose::ClientAuth]
        } else {
            vec![ExtendedKeyUsagePurpose::ServerAuth]
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Signed { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
    };
    sign().map_err(|e| format!("failed to issue a certificate: {e}"))
}

fn set_subject(params: &mut CertificateParams, name: &str, from: Timestamp, until: Timestamp) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "gantry");
    // The upper bound of X.520; the identity is in the subject alternative name.
    params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    let at = |time: Timestamp| {
        let since = Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        date_time_ymd(1970, 1, 1) + since
    };
    params.not_before = at(from) - CLOCK_SKEW;
    params.not_after = at(until);
}

fn subject(certificate: &str) -> Result<String, String> {
    let all =
        CertificateInfo::read_all("a new authority", certificate.as_bytes()).map_err(|e| e.to_string())?;
    let first = all.into_iter().next();
    first.map(|info| info.subject).ok_or_else(|| "a new authority has no certificate".into())
}

/// Certificates have times in seconds.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
