//! A planted token must appear in the requests, and nowhere else.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use gantry_artifacts::{Request, Secret, Uri};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::server::{Response, Server};
use crate::{Harness, Recorder, env};

const TOKEN: &str = "CANARYx9f8e7d6c";

/// Collects every log line of every target and level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut Text(&mut self.0.lock().unwrap()));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Text(&mut self.0.lock().unwrap()));
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The secrets of every store with the token in every place, and a URI that uses each.
fn cases(server: &Server) -> Vec<(String, Option<String>, Vec<(&'static str, String)>)> {
    let url = server.url("");
    let token_key = "Q0FOQVJZeDlmOGU3ZDZj"; // the token as base64, as an account key is
    vec![
        (
            "s3://b/k".into(),
            Some(format!(
                "{{type: s3, name: s3, parameters: {{access_key_id: AK, secret_access_key: {TOKEN}, session_token: {TOKEN}, endpoint: '{url}'}}}}"
            )),
            vec![],
        ),
        (
            "s3://b/k".into(),
            None,
            vec![
                ("AWS_ENDPOINT_URL", url.clone()),
                ("AWS_ACCESS_KEY_ID", "AK".into()),
                ("AWS_SECRET_ACCESS_KEY", TOKEN.into()),
            ],
        ),
        (
            "gs://b/k".into(),
            Some(format!(
                "{{type: gcs, name: gs, parameters: {{service_account_credentials: '{{\"private_key\":\"{TOKEN}\"}}', endpoint: '{url}'}}}}"
            )),
            vec![],
        ),
        (
            "gs://b/k".into(),
            Some(format!("{{type: gcs, name: gs, parameters: {{service_account_credentials: '{TOKEN}'}}}}")),
            vec![],
        ),
        (
            "az://c/k".into(),
            Some(format!(
                "{{type: azureblob, name: az, parameters: {{account: acct, key: {token_key}, endpoint: '{url}'}}}}"
            )),
            vec![],
        ),
        (
            "az://c/k".into(),
            Some(format!("{{type: azureblob, name: az, parameters: {{account: acct, key: '{TOKEN}!'}}}}")),
            vec![],
        ),
        (
            "az://c/k".into(),
            Some(format!(
                "{{type: azureblob, name: az, parameters: {{sas_url: '{url}/c?sv=1&sig={TOKEN}'}}}}"
            )),
            vec![],
        ),
        ("hf://org/model".into(), None, vec![("HF_ENDPOINT", url.clone()), ("HF_TOKEN", TOKEN.into())]),
        (server.url(&format!("/m.bin?sig={TOKEN}")), None, vec![]),
        (
            server.url("/m.bin"),
            Some(format!(
                "{{type: http, parameters: {{url: '{url}', bearer_token: {TOKEN}, headers: 'X-Key,{TOKEN}'}}}}"
            )),
            vec![],
        ),
        (
            "https://127.0.0.1:1/m.bin".into(),
            Some(format!("{{type: http, parameters: {{url: 'https://other', bearer_token: {TOKEN}}}}}")),
            vec![],
        ),
    ]
}

#[tokio::test]
async fn planted_token_is_never_printed() {
    // For the whole process: what other tests log meanwhile must not contain the token either.
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let mut printed = String::new();
    let mut sent = 0;
    for status in [200, 301, 401, 403, 404, 500, 503] {
        // A server that echoes the request, as error pages do.
        let server = Server::start(move |seen| {
            let echo = format!(
                "<Error><Code>{}</Code><Message>{:?}</Message></Error>",
                seen.header("authorization").unwrap_or("Oops"),
                seen
            );
            let answer =
                Response::ok(echo).header("location", format!("http://127.0.0.1:1/x?{}", seen.target));
            if status == 200 { answer } else { answer.with_status(status) }
        })
        .await;
        for (uri, secret, variables) in cases(&server) {
            let pairs: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let harness = Harness::with(|config| config.env = env(&pairs));
            let mut request = Request::new(Uri::parse(&uri).unwrap());
            request.secret = secret.map(|secret| Secret::parse(&secret).unwrap());
            let progress = Recorder::default();
            let result = harness.fetcher.fetch(&request, &progress).await;
            let _ = write!(
                printed,
                "{result:?} {result:#?} {request:?} {:?} {:?}",
                harness.fetcher,
                progress.notes.lock().unwrap()
            );
            if let Err(error) = &result {
                let _ = writeln!(printed, "{error}");
            }
            // What lies in the cache directory is output too, except for the fetched files themselves.
            for entry in std::fs::read_dir(harness.dir.path().join("cache/index")).unwrap().flatten() {
                printed += &std::fs::read_to_string(entry.path()).unwrap();
            }
        }
        sent += server.seen().iter().filter(|seen| format!("{seen:?}").contains(TOKEN)).count();
    }
    assert!(sent > 0, "the token must have been used");
    let logged = log.0.lock().unwrap().clone();
    assert!(logged.contains("retry"), "the log must have been recorded: {logged}");
    for (name, text) in [("output", &printed), ("log", &logged)] {
        if let Some(place) = text.find(TOKEN) {
            let context: String =
                text[..place].chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
            panic!("the token is in the {name} after: {context}");
        }
    }
}
