//! An issuer with a key of each algorithm. The RSA key is of these tests only.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
        RsaKeyPair, RsaPublicKeyComponents,
    },
};
use serde_json::{Value, json};

pub(crate) struct Issuer {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
    random: SystemRandom,
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let random = SystemRandom::new();
        let signing = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let ec = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        Self {
            rsa: RsaKeyPair::from_pkcs8(include_bytes!("rsa-2048.pk8.der")).unwrap(),
            ec: EcdsaKeyPair::from_pkcs8(signing, ec.as_ref(), &random).unwrap(),
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
            random,
        }
    }

    pub(crate) fn modulus(&self) -> Vec<u8> {
        RsaPublicKeyComponents::<Vec<u8>>::from(self.rsa.public()).n
    }

    pub(crate) fn keys(&self) -> Vec<Value> {
        let rsa = RsaPublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
        let point = self.ec.public_key().as_ref();
        vec![
            json!({"kty": "RSA", "kid": "rsa", "use": "sig", "n": encode(rsa.n), "e": encode(rsa.e)}),
            json!({"kty": "EC", "kid": "ec", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..])}),
            json!({"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": encode(self.ed.public_key())}),
        ]
    }

    pub(crate) fn jwks(&self) -> String {
        json!({"keys": self.keys()}).to_string()
    }

    /// Signs with the key of the algorithm, whatever the header names.
    pub(crate) fn sign(&self, algorithm: &str, header: &Value, claims: &Value) -> String {
        self.sign_text(algorithm, &header.to_string(), &claims.to_string())
    }

    pub(crate) fn sign_text(&self, algorithm: &str, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = match algorithm {
            "RS256" => {
                let mut out = vec![0; self.rsa.public().modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &self.random, signed.as_bytes(), &mut out).unwrap();
                out
            }
            "ES256" => self.ec.sign(&self.random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            "EdDSA" => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
            other => panic!("{other}"),
        };
        format!("{signed}.{}", encode(signature))
    }

    /// A token that is accepted, with further claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.sign("EdDSA", &json!({"alg": "EdDSA", "kid": "ed"}), &valid(claims))
    }
}

/// Valid claims with changes; null removes one.
pub(crate) fn valid(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.example", "aud": "gantry", "sub": "ada", "exp": crate::NOW + 600,
        "groups": ["science"],
    });
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims
}

/// A configuration with this issuer.
pub(crate) fn config(jwks: &str, more: &str) -> String {
    format!(
        "issuers:
- issuer: https://issuer.example
  audience: [other, gantry]
  jwks: {jwks}
  {more}
  grants:
  - name: science
    claim: groups
    values: [science]
    allow: {{models: [fraud-*]}}
    rate: {{perSecond: 1, burst: 5}}
  - name: all
    claim: scope
    values: [admin]
    allow: {{models: ['*'], rights: [infer, repository]}}
"
    )
}
