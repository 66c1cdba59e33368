//! A test CA with a scheduler and a client certificate.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use std::path::{Path, PathBuf};

pub(crate) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    pub(crate) fn new(directory: &Path) -> Self {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "gantry test");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.join("ca.crt"), ca.pem()).unwrap();
        for (name, hosts) in
            [("scheduler", vec!["localhost".to_owned(), "127.0.0.1".to_owned()]), ("client", vec![])]
        {
            let mut params = CertificateParams::new(hosts).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            std::fs::write(directory.join(format!("{name}.crt")), params.signed_by(&key, &ca).unwrap().pem())
                .unwrap();
            std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn server(&self) -> Vec<String> {
        self.flags(&[
            ("tls-cert", "scheduler.crt"),
            ("tls-key", "scheduler.key"),
            ("tls-client-ca", "ca.crt"),
        ])
    }

    pub(crate) fn client(&self) -> Vec<String> {
        self.flags(&[
            ("tls-ca", "ca.crt"),
            ("tls-client-cert", "client.crt"),
            ("tls-client-key", "client.key"),
        ])
    }

    /// TLS without a client certificate.
    pub(crate) fn only_ca(&self) -> Vec<String> {
        self.flags(&[("tls-ca", "ca.crt")])
    }

    /// Client settings as environment variables of Seldon's components.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let file = |name: &str| self.directory.join(name).display().to_string();
        vec![
            ("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL".to_owned()),
            ("CONTROL_PLANE_SERVER_TLS_CA_LOCATION", file("ca.crt")),
            ("CONTROL_PLANE_CLIENT_TLS_CRT_LOCATION", file("client.crt")),
            ("CONTROL_PLANE_CLIENT_TLS_KEY_LOCATION", file("client.key")),
        ]
    }

    fn flags(&self, files: &[(&str, &str)]) -> Vec<String> {
        let flag = |(flag, file): &(&str, &str)| format!("--{flag}={}", self.directory.join(file).display());
        files.iter().map(flag).collect()
    }
}
