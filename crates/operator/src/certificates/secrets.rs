//! Reads and writes the Secrets of a namespace.

use super::{
    authorities::{Authorities, Retired},
    policy::{CLOCK_SKEW, CertificateView, Identity, SecretView, plus},
    sign,
    wanted::BUNDLE,
};
use crate::cluster::MANAGED_BY;
use gantry_tls::{CertificateInfo, is_key_of};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

type Files = BTreeMap<String, ByteString>;

/// Whether the operator wrote a Secret.
pub(super) fn is_ours(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY.0)).is_some_and(|value| value == MANAGED_BY.1)
}

pub(super) fn view(secret: &Secret) -> SecretView {
    let empty = Files::new();
    let files = secret.data.as_ref().unwrap_or(&empty);
    let mut view = SecretView { trusted: trusted(files), ..SecretView::default() };
    for (file, certificate) in files {
        let Some(item) = file.strip_suffix(".crt").filter(|_| file != BUNDLE) else { continue };
        let key = files.get(&key_file(item));
        if let Some(certificate) = key.and_then(|key| certificate_view(&certificate.0, &key.0)) {
            view.certificates.insert(item.to_owned(), certificate);
        }
    }
    let of_item = |file: &str| {
        let item = file.strip_suffix(".crt").or_else(|| file.strip_suffix(".key"));
        item.is_some_and(|item| view.certificates.contains_key(item))
    };
    view.has_leftovers = files.keys().any(|file| file != BUNDLE && !of_item(file));
    view
}

fn certificate_view(certificate: &[u8], key: &[u8]) -> Option<CertificateView> {
    let info = CertificateInfo::read_all("", certificate).ok()?.into_iter().next()?;
    if !is_key_of(certificate, key) {
        return None;
    }
    let [uri] = <[String; 1]>::try_from(info.uris).ok()?;
    let from = Timestamp::from_second(info.not_before).ok()?;
    Some(CertificateView {
        issuer: info.issuer,
        identity: Identity { uri, hosts: info.hosts },
        from: plus(from, CLOCK_SKEW),
        until: Timestamp::from_second(info.not_after).ok()?,
    })
}

fn trusted(files: &Files) -> BTreeSet<String> {
    let text = files.get(BUNDLE).map(|text| text.0.as_slice()).unwrap_or_default();
    let all = CertificateInfo::read_all(BUNDLE, text).unwrap_or_default();
    all.into_iter().map(|info| info.subject).collect()
}

/// Authorities that every part trusts, from their Secrets: one of them may have signed what a part presents.
pub(super) fn recovered(secrets: &[&Secret], now: Timestamp) -> Vec<Retired> {
    let mut found = BTreeMap::new();
    for secret in secrets {
        let bundle = secret.data.as_ref().and_then(|files| files.get(BUNDLE));
        let text = bundle.map(|text| String::from_utf8_lossy(&text.0).into_owned()).unwrap_or_default();
        for pem in certificates(&text) {
            let info = CertificateInfo::read_all(BUNDLE, pem.as_bytes()).ok().and_then(|mut all| all.pop());
            let until = info.as_ref().and_then(|info| Timestamp::from_second(info.not_after).ok());
            if let (Some(info), Some(until)) = (info, until.filter(|until| now < *until)) {
                found.insert(info.subject.clone(), Retired { name: info.subject, certificate: pem, until });
            }
        }
    }
    let is_everywhere = |name: &String| secrets.iter().all(|secret| view(secret).trusted.contains(name));
    found.into_iter().filter(|(name, _)| is_everywhere(name)).map(|(_, retired)| retired).collect()
}

/// The certificates of a PEM text, one by one.
fn certificates(text: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    text.split_inclusive(END).filter(|part| part.ends_with(END)).map(|part| part.trim().to_owned()).collect()
}

/// The files of a Secret with new certificates for some items; the others keep theirs.
pub(super) fn files(
    held: Option<&Secret>,
    authorities: &Authorities,
    items: &BTreeMap<String, Identity>,
    renew: &BTreeSet<String>,
    now: Timestamp,
    lifetime: Duration,
) -> Result<Files, String> {
    let before = held.and_then(|secret| secret.data.as_ref());
    let mut files = Files::from([(BUNDLE.to_owned(), ByteString(authorities.bundle().into_bytes()))]);
    for (item, identity) in items {
        let names = [certificate_file(item), key_file(item)];
        if renew.contains(item) {
            let signed = sign::certificate(authorities, identity, now, lifetime)?;
            let texts = [signed.certificate, signed.key];
            files.extend(names.into_iter().zip(texts.map(|text| ByteString(text.into_bytes()))));
        } else {
            let kept = names.into_iter().filter_map(|name| Some((name.clone(), before?.get(&name)?.clone())));
            files.extend(kept);
        }
    }
    Ok(files)
}

pub fn certificate_file(item: &str) -> String {
    format!("{item}.crt")
}

pub fn key_file(item: &str) -> String {
    format!("{item}.key")
}
