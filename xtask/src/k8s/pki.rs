//! Cluster PKI: CAs, certificates and kubeconfigs.

use super::node::Node;
use crate::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// A component or user with a certificate.
struct Party {
    file: String,
    name: String,
    group: Option<&'static str>,
    /// Subject alternative names of servers.
    serves: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pki {
    directory: PathBuf,
}

impl Pki {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(crate) fn certificate(&self, party: &str) -> String {
        self.directory.join(format!("{party}.crt")).display().to_string()
    }

    pub(crate) fn key(&self, party: &str) -> String {
        self.directory.join(format!("{party}.key")).display().to_string()
    }

    /// The public key of a key pair without a certificate.
    pub(crate) fn public_key(&self, party: &str) -> String {
        self.directory.join(format!("{party}.pub")).display().to_string()
    }

    pub(crate) fn kubeconfig(&self, party: &str) -> PathBuf {
        self.directory.join(format!("{party}.kubeconfig"))
    }

    /// Writes all files for an API server at this URL and these addresses, and for these nodes.
    pub(crate) fn write(&self, server: &str, addresses: &[&str], nodes: &[Node]) -> Result<(), Failure> {
        fs::create_dir_all(&self.directory)?;
        let cluster = self.authority("ca", "kubernetes-ca")?;
        // Front-proxy CA: authenticates the API server to aggregated APIs.
        let front = self.authority("front-proxy-ca", "front-proxy-ca")?;
        for party in parties(addresses, nodes) {
            self.sign(&party, &cluster)?;
        }
        let proxy = client("front-proxy-client", "front-proxy-client", None);
        self.sign(&proxy, &front)?;
        // Signing key of service account tokens.
        let tokens = KeyPair::generate()?;
        secret(Path::new(&self.key("service-accounts")), &tokens.serialize_pem())?;
        fs::write(self.public_key("service-accounts"), tokens.public_key_pem())?;
        for party in ["admin", "controller-manager", "scheduler", "kube-proxy"] {
            self.write_kubeconfig(party, server)?;
        }
        for node in nodes {
            self.write_kubeconfig(&node.name(), server)?;
        }
        Ok(())
    }

    fn authority(&self, file: &str, name: &str) -> Result<CertifiedIssuer<'static, KeyPair>, Failure> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(self.certificate(file), authority.pem())?;
        secret(Path::new(&self.key(file)), &authority.key().serialize_pem())?;
        Ok(authority)
    }

    fn sign(&self, party: &Party, authority: &CertifiedIssuer<'static, KeyPair>) -> Result<(), Failure> {
        let mut params = CertificateParams::new(party.serves.clone())?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = DistinguishedName::new();
        if let Some(group) = party.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.distinguished_name.push(DnType::CommonName, party.name.as_str());
        let key = KeyPair::generate()?;
        fs::write(self.certificate(&party.file), params.signed_by(&key, authority)?.pem())?;
        secret(Path::new(&self.key(&party.file)), &key.serialize_pem())
    }

    fn write_kubeconfig(&self, party: &str, server: &str) -> Result<(), Failure> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "gantry", "cluster": {
                "server": server,
                "certificate-authority": self.certificate("ca"),
            }}],
            "users": [{ "name": party, "user": {
                "client-certificate": self.certificate(party),
                "client-key": self.key(party),
            }}],
            "contexts": [{ "name": "gantry", "context": { "cluster": "gantry", "user": party } }],
            "current-context": "gantry",
        });
        secret(&self.kubeconfig(party), &format!("{config:#}\n"))
    }
}

fn client(file: &str, name: &str, group: Option<&'static str>) -> Party {
    Party { file: file.to_owned(), name: name.to_owned(), group, serves: Vec::new() }
}

/// All certificates of the cluster CA, with the names and groups of the default RBAC roles.
fn parties(addresses: &[&str], nodes: &[Node]) -> Vec<Party> {
    let kubernetes = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let of_node = |node: &Node| {
        let (name, user) = (node.name(), format!("system:node:{}", node.name()));
        let serves = vec![name.clone(), "localhost".to_owned(), node.address().to_string()];
        let serving = client(&format!("{name}-serving"), &user, Some("system:nodes"));
        [client(&name, &user, Some("system:nodes")), Party { serves, ..serving }]
    };
    let mut parties = vec![
        Party {
            serves: [owned(&kubernetes), owned(addresses)].concat(),
            ..client("apiserver", "kube-apiserver", None)
        },
        client("admin", "kubernetes-admin", Some("system:masters")),
        client("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters")),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("kube-proxy", "system:kube-proxy", None),
    ];
    parties.extend(nodes.iter().flat_map(of_node));
    parties
}

/// Writes a file with mode 0600.
fn secret(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::node::FIRST, *};
    use serde_json::Value;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn kubeconfig_users_have_certificate_and_private_key() {
        let directory = std::env::temp_dir().join(format!("gantry-pki-{}", std::process::id()));
        let pki = Pki::at(directory.clone());
        pki.write("https://127.0.0.1:1", &["127.0.0.1"], &[FIRST]).unwrap();
        for party in ["admin", "controller-manager", "scheduler", "kube-proxy", "node-1"] {
            let text = fs::read_to_string(pki.kubeconfig(party)).unwrap();
            let config: Value = serde_json::from_str(&text).unwrap();
            let at = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
            assert_eq!(at("/clusters/0/cluster/server"), "https://127.0.0.1:1");
            let certificate = fs::read_to_string(at("/users/0/user/client-certificate")).unwrap();
            assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{party}");
            let mode = fs::metadata(at("/users/0/user/client-key")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{party}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
