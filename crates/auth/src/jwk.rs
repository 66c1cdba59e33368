//! Public keys of an issuer (JSON Web Key Set), and signatures.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;

/// Of a key set, in bytes.
pub(crate) const MAX_KEY_SET: usize = 1 << 20;
const MAX_KEYS: usize = 256;

/// Signatures with a public key. Others, among them `none` and those with a shared secret, have no variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Algorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point, or the key of Ed25519.
    Point(Vec<u8>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Jwk {
    id: Option<Box<str>>,
    algorithm: Algorithm,
    material: Material,
}

/// The fields that count; private ones are not read.
#[derive(Deserialize)]
struct Fields {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    /// `None` for a key that verifies no signature of ours.
    fn parse(value: Value) -> Option<Self> {
        let fields: Fields = serde_json::from_value(value).ok()?;
        let verifies = fields.usage.as_deref().is_none_or(|usage| usage == "sig")
            && fields.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !verifies {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let sized = |text: &Option<String>| bytes(text).filter(|bytes| bytes.len() == 32);
        let (algorithm, material) = match (fields.kty.as_str(), fields.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (bytes(&fields.n)?, bytes(&fields.e)?);
                let n: Vec<u8> = n.into_iter().skip_while(|byte| *byte == 0).collect();
                // 2048 to 8192 bits.
                if !(256..=1024).contains(&n.len()) || e.is_empty() || e.len() > 8 {
                    return None;
                }
                (Algorithm::Rs256, Material::Rsa { n, e })
            }
            ("EC", Some("P-256")) => {
                let point = [vec![4], sized(&fields.x)?, sized(&fields.y)?].concat();
                (Algorithm::Es256, Material::Point(point))
            }
            ("OKP", Some("Ed25519")) => (Algorithm::EdDsa, Material::Point(sized(&fields.x)?)),
            _ => return None,
        };
        // Another algorithm with the same kind of key, such as RS512.
        if fields.alg.is_some_and(|named| named != algorithm.name()) {
            return None;
        }
        Some(Self { id: fields.kid.map(Into::into), algorithm, material })
    }

    pub(crate) fn verify(&self, signed: &[u8], signature: &[u8]) -> bool {
        let verified = match (&self.material, self.algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rs256) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
            }
            (Material::Point(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
            }
            (Material::Point(point), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&ED25519, point).verify(signed, signature)
            }
            (Material::Rsa { .. }, _) | (Material::Point(_), Algorithm::Rs256) => return false,
        };
        verified.is_ok()
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<Jwk>);

impl KeySet {
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        if json.len() > MAX_KEY_SET {
            return Err(format!("the key set is larger than {MAX_KEY_SET} bytes"));
        }
        // The message of serde may repeat the input.
        let set: Set = serde_json::from_slice(json).map_err(|e| {
            format!("not a JSON Web Key Set {{\"keys\":[…]}} (line {}, column {})", e.line(), e.column())
        })?;
        let keys: Vec<Jwk> = set.keys.into_iter().filter_map(Jwk::parse).take(MAX_KEYS).collect();
        if keys.is_empty() {
            return Err("the key set has no public key for RS256, ES256 or EdDSA".to_owned());
        }
        Ok(Self(keys))
    }

    /// The key that the token names; a token without a name needs a set with one key of its algorithm.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Jwk> {
        let mut fitting = self.0.iter().filter(|key| key.algorithm == algorithm);
        match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
