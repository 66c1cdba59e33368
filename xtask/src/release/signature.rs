//! Signatures that cosign and openssl verify: ECDSA on P-256 with SHA-256.

use crate::Failure;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};
use serde_json::{Value, json};
use std::path::Path;

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// A private key.
pub(super) struct Key(KeyPair);

impl Key {
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let pair = KeyPair::from_pkcs8_pem_and_sign_algo(&text, &PKCS_ECDSA_P256_SHA256).map_err(|e| {
            format!("{}: {e}; it must be an unencrypted ECDSA key on P-256 in PKCS #8", file.display())
        })?;
        Ok(Self(pair))
    }

    /// The signature of a message, in base64.
    pub(super) fn sign(&self, message: &[u8]) -> Result<String, Failure> {
        Ok(STANDARD.encode(self.0.sign(message)?))
    }

    /// A statement in a DSSE envelope.
    pub(super) fn envelope(&self, statement: &Value) -> Result<Value, Failure> {
        let payload = statement.to_string();
        let signature = self.sign(&signed_bytes(payload.as_bytes()))?;
        Ok(json!({
            "payloadType": PAYLOAD_TYPE,
            "payload": STANDARD.encode(payload),
            "signatures": [{"sig": signature}],
        }))
    }
}

/// The pre-authentication encoding of DSSE.
fn signed_bytes(payload: &[u8]) -> Vec<u8> {
    let header = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len());
    [header.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

    #[test]
    fn envelope_is_verified_with_the_public_key() {
        let key = Key(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap());
        let envelope = key.envelope(&json!({"subject": []})).unwrap();
        let decoded = |pointer: &str| {
            STANDARD.decode(envelope.pointer(pointer).and_then(Value::as_str).unwrap()).unwrap()
        };
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.0.public_key_raw());
        let signature = decoded("/signatures/0/sig");
        public.verify(&signed_bytes(&decoded("/payload")), &signature).unwrap();
        assert!(public.verify(&decoded("/payload"), &signature).is_err(), "the type is signed too");
    }

    #[test]
    fn encoding_is_that_of_the_dsse_specification() {
        let text = String::from_utf8(signed_bytes(b"{}")).unwrap();
        assert_eq!(text, "DSSEv1 28 application/vnd.in-toto+json 2 {}");
    }

    #[test]
    fn key_that_cannot_be_read_is_an_error_with_the_file() {
        let missing = Key::read(Path::new("/no/key.pem")).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(missing.starts_with("/no/key.pem: "), "{missing}");
    }
}
