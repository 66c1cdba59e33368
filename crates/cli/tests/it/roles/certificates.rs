//! A test CA with a certificate for the scheduler and for each role, and one without a role.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
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
        let roles = ["client", "viewer", "agent", "gateway", "operator"];
        for name in ["scheduler", "unmarked", "agent-of-another"].into_iter().chain(roles) {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            let name_of = |text: String| SanType::URI(text.as_str().try_into().unwrap());
            params.subject_alt_names = match name {
                "scheduler" => {
                    let local = SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
                    vec![SanType::DnsName("localhost".try_into().unwrap()), local]
                }
                "unmarked" => Vec::new(),
                "agent-of-another" => vec![name_of("spiffe://test/gantry/role/agent/another/0".into())],
                role => vec![name_of(format!("spiffe://test/gantry/role/{role}"))],
            };
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
        self.of("client")
    }

    /// TLS with the certificate of a role, or with `unmarked`.
    pub(crate) fn of(&self, role: &str) -> Vec<String> {
        self.flags(&[
            ("tls-ca", "ca.crt"),
            ("tls-client-cert", &format!("{role}.crt")),
            ("tls-client-key", &format!("{role}.key")),
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
