//! A broker that requires a certificate of the client and a password.

use crate::support::{Broker, Flow, Input, Worker, free_port};
use gantry_kafka::topics::Side;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::Path;

/// Writes `ca.pem`, and `server.pem`, `client.pem` with their keys, all signed by it.
fn write_certificates(directory: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&key).unwrap();
    let issuer = Issuer::new(parameters, key);
    std::fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
    for (name, host) in [("server", "127.0.0.1"), ("client", "gantry")] {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        std::fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        let both = format!("{}{}", key.serialize_pem(), certificate.pem());
        std::fs::write(directory.join(format!("{name}.pem")), both).unwrap();
    }
}

#[tokio::test]
async fn worker_connects_with_certificates_and_scram() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    write_certificates(directory.path());
    std::fs::write(path("password"), "s3cret").unwrap();
    std::fs::write(path("wrong"), "other").unwrap();
    let port = free_port();
    let (keys, ca) = (path("server.pem"), path("ca.pem"));
    let properties = format!(
        "ssl.keystore.type=PEM\nssl.keystore.location={keys}\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n\
         listener.name.sasl_ssl.ssl.client.auth=required\nsasl.enabled.mechanisms=SCRAM-SHA-512\n\
         listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
    );
    let user = ["--add-scram", "SCRAM-SHA-512=[name=gantry,password=s3cret]"];
    let listener = format!(",SASL_SSL://127.0.0.1:{port}");
    let broker = Broker::start_with(tempfile::tempdir().unwrap(), &listener, &properties, &user);
    let mut flow = Flow::new(&broker, "secure", 1).await;
    flow.send(Input::number("k", 1)).await;
    let (certificate, key, password, wrong) =
        (path("client.crt"), path("client.key"), path("password"), path("wrong"));
    let environment = |password| {
        [
            ("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL"),
            ("KAFKA_BROKER_TLS_CA_LOCATION", ca.as_str()),
            ("KAFKA_CLIENT_TLS_CRT_LOCATION", certificate.as_str()),
            ("KAFKA_CLIENT_TLS_KEY_LOCATION", key.as_str()),
            ("KAFKA_CLIENT_SASL_USERNAME", "gantry"),
            ("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", password),
        ]
    };
    let address = format!("127.0.0.1:{port}");
    let rejected = Worker::start_at(&address, 1, "", &["secure"], &environment(wrong.as_str()));
    rejected.wait_for_log("cannot connect to Kafka");
    assert!(!rejected.log().contains("other"), "the password is not in the log");
    let _worker = Worker::start_at(&address, 1, "", &["secure"], &environment(password.as_str()));
    assert_eq!(flow.outputs(1).await[0].number(Side::Outputs), 4);
}
