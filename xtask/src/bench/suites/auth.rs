//! Cost of authentication: the same request to a gateway that requires a credential, and to one that does not.

use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange},
        machine::Core,
        servers::{self, Scratch},
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use std::net::SocketAddr;

/// Of each credential in a round.
const REQUESTS: usize = 4000;
const BODY: &str = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
const KEY: &str = "gantry_of_the_benchmark";

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = Scratch::new("auth")?;
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| "no random numbers")?;
    let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).map_err(|_| "an invalid key pair")?;
    let jwks = serde_json::json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": base64url(pair.public_key().as_ref())},
    ]});
    std::fs::write(scratch.0.join("jwks.json"), jwks.to_string())?;
    let config = scratch.0.join("auth.yaml");
    std::fs::write(&config, configuration())?;

    let models = bench.root.join("examples/quickstart");
    let open = servers::gantry(&bench.machine, &bench.gantry, &[&models])?;
    let mut command = bench.machine.command(Core::Server, &bench.gantry);
    command.env("GANTRY_AUTH_CONFIG", &config);
    let closed = servers::start_gantry(command, &[&models])?;

    let without = exchange(open.inference, "")?;
    let with_key = exchange(closed.inference, &format!("x-api-key: {KEY}\r\n"))?;
    let with_token = exchange(closed.inference, &format!("authorization: Bearer {}\r\n", token(&pair)))?;
    let p50 = |address: SocketAddr, exchange: &Exchange| -> Result<f64, Failure> {
        Ok(median(&load::latencies(address, std::slice::from_ref(exchange), REQUESTS)?))
    };
    let (mut plain, mut keys, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds.max(5) {
        plain.push(p50(open.inference, &without)?);
        keys.push(p50(closed.inference, &with_key)?);
        tokens.push(p50(closed.inference, &with_token)?);
    }
    let row = |what: &str, mine: &[f64]| Row {
        what: what.into(),
        peer: "ourselves without".into(),
        ours: format!("{} µs", figure(median(mine))),
        theirs: format!("{} µs", figure(median(&plain))),
        rounds: divide(mine, &plain),
        unit: "x",
        better: Better::Lower,
        floor: Some(1.1),
        aim: Some(1.03),
    };
    Ok(vec![
        row("iris over REST, p50 with an API key", &keys),
        row("iris over REST, p50 with a JWT, verified before", &tokens),
    ])
}

fn exchange(address: SocketAddr, headers: &str) -> Result<Exchange, Failure> {
    let request = http::post("/v2/models/iris/infer", headers, BODY);
    let response = http::Connection::open(address)?.call(&request)?.to_vec();
    Ok(Exchange { request, response })
}

fn configuration() -> String {
    let sha256 =
        digest(&SHA256, KEY.as_bytes()).as_ref().iter().fold(String::new(), |hex, b| format!("{hex}{b:02x}"));
    let rest = "  allow: {models: [iris, other-*]}\n  rate: {perSecond: 1000000, burst: 1000000}\n";
    format!(
        "keys:\n- name: key\n  sha256: {sha256}\n{rest}\
         issuers:\n- issuer: bench\n  audience: gantry\n  jwks: jwks.json\n  grants:\n  - name: token\n    claim: groups\n    \
         values: [bench]\n    allow: {{models: [iris]}}\n    rate: {{perSecond: 1000000, burst: 1000000}}\n"
    )
}

/// Of the usual size of an identity provider's.
fn token(pair: &Ed25519KeyPair) -> String {
    let claims = serde_json::json!({
        "iss": "bench", "aud": "gantry", "sub": "client", "exp": 4_000_000_000_u64,
        "groups": ["bench", "readers", "writers"], "padding": "x".repeat(400),
    });
    let signed = format!(
        "{}.{}",
        base64url(br#"{"alg":"EdDSA","kid":"one","typ":"JWT"}"#),
        base64url(claims.to_string().as_bytes())
    );
    let signature = pair.sign(signed.as_bytes());
    format!("{signed}.{}", base64url(signature.as_ref()))
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.extend(DIGITS.get(index as usize).map(|digit| char::from(*digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64url;

    #[test]
    fn base64url_has_no_padding() {
        for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("\u{fffd}?", "77-9Pw")]
        {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
    }
}
