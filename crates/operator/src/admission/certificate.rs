//! Issues serving certificates, each with its own CA whose key is discarded.

use super::rotation_policy::IssuedCertificate;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::time::Duration;

/// Clock skew tolerated on API servers.
const CLOCK_SKEW: Duration = Duration::from_hours(1);

/// Issues a certificate for host names or IP addresses, valid from now.
pub fn issue(names: &[String], now: Timestamp, lifetime: Duration) -> Result<IssuedCertificate, String> {
    let until = SignedDuration::try_from(lifetime).ok().and_then(|time| now.checked_add(time).ok());
    let until = until.ok_or("certificate lifetime is out of range")?;
    sign(names, now, until).map_err(|e| format!("failed to issue a certificate: {e}"))
}

fn sign(names: &[String], from: Timestamp, until: Timestamp) -> Result<IssuedCertificate, rcgen::Error> {
    // Unique subjects: clients select the CA by subject.
    let mut authority = params(Vec::new(), &format!("Gantry's webhook, since {from}"), from, until)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut leaf = params(names.to_vec(), "Gantry's webhook", from, until)?;
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok(IssuedCertificate {
        certificate: leaf.signed_by(&key, &authority)?.pem(),
        key: key.serialize_pem(),
        authority: authority.pem(),
        names: names.to_vec(),
        from,
        until,
    })
}

fn params(
    names: Vec<String>,
    common_name: &str,
    from: Timestamp,
    until: Timestamp,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    let at = |time: Timestamp| {
        let since = Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        date_time_ymd(1970, 1, 1) + since
    };
    params.not_before = at(from) - CLOCK_SKEW;
    params.not_after = at(until);
    Ok(params)
}
