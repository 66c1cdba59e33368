//! A test CA.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use std::path::{Path, PathBuf};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct Paths {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// Certificate and key for these names, as PEM.
    pub(crate) fn sign(&self, names: &[&str]) -> (String, String) {
        self.sign_with(names, |_| {})
    }

    pub(crate) fn expired(&self, names: &[&str]) -> (String, String) {
        self.sign_with(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// Writes `<name>.crt` and `<name>.key`.
pub(crate) fn put(directory: &Path, name: &str, (certificate, key): (String, String)) -> Paths {
    let paths = Paths {
        certificate: directory.join(format!("{name}.crt")),
        key: directory.join(format!("{name}.key")),
    };
    std::fs::write(&paths.certificate, certificate).unwrap();
    std::fs::write(&paths.key, key).unwrap();
    paths
}
