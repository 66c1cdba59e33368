//! Making a certificate: an authority, what it signs, and nothing that remembers the authority's key.

use super::keeping::Pair;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::time::Duration;

/// Clocks differ: a certificate is good for an API server whose clock is late by this.
const LATE: Duration = Duration::from_hours(1);

/// A new certificate for these names (host names or addresses), good from now on.
pub fn issue(names: &[String], now: Timestamp, lifetime: Duration) -> Result<Pair, String> {
    let until = SignedDuration::try_from(lifetime).ok().and_then(|time| now.checked_add(time).ok());
    let until = until.ok_or("the certificate would outlive the calendar")?;
    make(names, now, until).map_err(|e| format!("a certificate cannot be made: {e}"))
}

fn make(names: &[String], from: Timestamp, until: Timestamp) -> Result<Pair, rcgen::Error> {
    // Two authorities of one name would be told apart by their keys only.
    let mut authority = params(Vec::new(), &format!("Gantry's webhook, since {from}"), from, until)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut shown = params(names.to_vec(), "Gantry's webhook", from, until)?;
    shown.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    shown.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    shown.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok(Pair {
        certificate: shown.signed_by(&key, &authority)?.pem(),
        key: key.serialize_pem(),
        authority: authority.pem(),
        names: names.to_vec(),
        from,
        until,
    })
}

fn params(
    names: Vec<String>,
    called: &str,
    from: Timestamp,
    until: Timestamp,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, called);
    let at = |time: Timestamp| {
        let since = Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        date_time_ymd(1970, 1, 1) + since
    };
    params.not_before = at(from) - LATE;
    params.not_after = at(until);
    Ok(params)
}
