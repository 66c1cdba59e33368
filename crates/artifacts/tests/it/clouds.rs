//! S3, Google Cloud Storage, Azure and the Hugging Face hub, played by a small server.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use gantry_artifacts::{ErrorKind, Request, Secret, Uri};

use crate::server::{Response, Seen, Server};
use crate::{Harness, env, names};

/// Keys and contents of the bucket that all stores serve.
fn bucket() -> Vec<(&'static str, &'static str)> {
    vec![
        ("iris/model-settings.json", "{}"),
        ("iris/1/model.joblib", "one"),
        ("iris/2/model.joblib", "two!"),
        ("iris/2/sub/extra name+.txt", "extra"),
        ("iris/10/model.joblib", "ten"),
        ("iris2/other.txt", "must not match the prefix iris"),
        ("plain/model.onnx", "onnx"),
        ("plain/labels/a.txt", "a"),
        ("marked/sub", ""),
        ("marked/sub/file", "x"),
        ("single.onnx", "single"),
    ]
}

fn etag(text: &str) -> String {
    use md5::Digest as _;
    crate::hex(&md5::Md5::digest(text.as_bytes()))
}

/// A page of keys below a prefix, and the folders when a delimiter is given.
fn listing(prefix: &str, delimiter: bool) -> (Vec<(&'static str, &'static str)>, BTreeSet<String>) {
    let mut objects = Vec::new();
    let mut folders = BTreeSet::new();
    for (key, text) in bucket() {
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        match rest.split_once('/') {
            Some((folder, _)) if delimiter => {
                folders.insert(format!("{prefix}{folder}/"));
            }
            _ => objects.push((key, text)),
        }
    }
    (objects, folders)
}

fn object(seen: &Seen, root: &str) -> Response {
    let path = url::form_urlencoded::parse(format!("k={}", seen.path().replace('+', "%2B")).as_bytes())
        .next()
        .unwrap()
        .1
        .into_owned();
    let key = path.strip_prefix(root).unwrap_or_default();
    let found = bucket().into_iter().find(|(name, _)| *name == key);
    found.map_or_else(
        || Response::status(404),
        |(_, text)| Response::file(seen, text.as_bytes(), &format!("\"{}\"", etag(text))),
    )
}

fn s3_like(seen: &Seen) -> Response {
    if seen.query("list-type").is_none() {
        return object(seen, "/b/");
    }
    let (objects, folders) =
        listing(&seen.query("prefix").unwrap_or_default(), seen.query("delimiter").is_some());
    // Two keys per page, so that continuation is exercised.
    let start: usize = seen.query("continuation-token").map_or(0, |token| token.parse().unwrap());
    let page = objects.iter().skip(start).take(2);
    let more = objects.len() > start + 2;
    let mut xml = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    for (key, text) in page {
        xml += &format!(
            "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>\"{}\"</ETag><Size>{}</Size></Contents>",
            etag(text),
            text.len()
        );
    }
    for folder in folders.iter().filter(|_| start == 0) {
        xml += &format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
    }
    if more {
        xml += &format!("<NextContinuationToken>{}</NextContinuationToken>", start + 2);
    }
    xml += &format!("<IsTruncated>{more}</IsTruncated></ListBucketResult>");
    Response::ok(xml)
}

fn azure_like(seen: &Seen) -> Response {
    if seen.query("comp").is_none() {
        return object(seen, "/b/");
    }
    let (objects, folders) =
        listing(&seen.query("prefix").unwrap_or_default(), seen.query("delimiter").is_some());
    let mut xml = String::from("<?xml version=\"1.0\"?><EnumerationResults><Blobs>");
    for (key, text) in objects {
        xml += &format!(
            "<Blob><Name>{key}</Name><Properties><Creation-Time>Mon, 01 Jan 2024 00:00:00 GMT</Creation-Time><Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified><Content-Length>{}</Content-Length><Etag>{}</Etag><Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
            text.len(),
            etag(text)
        );
    }
    for folder in folders {
        xml += &format!("<BlobPrefix><Name>{folder}</Name></BlobPrefix>");
    }
    Response::ok(xml + "</Blobs><NextMarker/></EnumerationResults>")
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn hub_like(seen: &Seen) -> Response {
    if seen.path() == "/api/models/org/model/revision/main" {
        return Response::ok(format!("{{\"sha\":\"{COMMIT}\",\"id\":\"org/model\"}}"));
    }
    if seen.path() == format!("/api/models/org/model/tree/{COMMIT}") {
        let entries: Vec<String> = bucket()
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(path, text)| {
                let sha = crate::sha256(text.as_bytes());
                let lfs = if path.contains(".onnx") {
                    format!(",\"lfs\":{{\"oid\":\"{sha}\",\"size\":{},\"pointerSize\":1}}", text.len())
                } else {
                    String::new()
                };
                format!(
                    "{{\"type\":\"file\",\"oid\":\"{}\",\"size\":{},\"path\":\"{path}\"{lfs}}}",
                    etag(text),
                    text.len()
                )
            })
            .collect();
        let half = entries.len() / 2;
        let host = seen.header("host").unwrap();
        if seen.query("cursor").is_none() {
            let next = format!("<http://{host}{}&cursor=x>; rel=\"next\"", seen.target);
            return Response::ok(format!(
                "[{{\"type\":\"directory\",\"oid\":\"d\",\"size\":0,\"path\":\"iris\"}},{}]",
                entries[..half].join(",")
            ))
            .header("link", next);
        }
        return Response::ok(format!("[{}]", entries[half..].join(",")));
    }
    object(seen, &format!("/org/model/resolve/{COMMIT}/"))
}

/// A fetcher and the root of the bucket for every store.
async fn stores() -> Vec<(&'static str, Harness, Server)> {
    let s3 = Server::start(s3_like).await;
    let gs = Server::start(s3_like).await;
    let azure = Server::start(azure_like).await;
    let hub = Server::start(hub_like).await;
    let harness = |server: &Server, pairs: &[(&str, &str)]| {
        let url = server.url("");
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .map(|(name, value)| (*name, if *value == "URL" { url.as_str() } else { *value }))
            .collect();
        Harness::with(|config| config.env = env(&pairs))
    };
    let s3_bench = harness(
        &s3,
        &[
            ("AWS_ENDPOINT_URL", "URL"),
            ("AWS_ACCESS_KEY_ID", "AKID"),
            ("AWS_SECRET_ACCESS_KEY", "sk"),
            ("AWS_SESSION_TOKEN", "st"),
            ("AWS_REGION", "eu-west-1"),
        ],
    );
    let gs_bench = harness(&gs, &[("STORAGE_EMULATOR_HOST", "URL")]);
    let az_bench = harness(
        &azure,
        &[
            ("AZURE_STORAGE_ENDPOINT", "URL"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "acct"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
        ],
    );
    let hub_bench = harness(&hub, &[("HF_ENDPOINT", "URL"), ("HF_TOKEN", "hf_token")]);
    vec![
        ("s3://b/", s3_bench, s3),
        ("gs://b/", gs_bench, gs),
        ("az://b/", az_bench, azure),
        ("hf://org/model/", hub_bench, hub),
    ]
}

#[tokio::test]
async fn folders_files_and_versions() {
    for (root, harness, server) in stores().await {
        let at = |path: &str| format!("{root}{path}");
        let highest = harness.fetch(&at("iris")).await.unwrap_or_else(|error| panic!("{root}: {error}"));
        assert_eq!(names(&highest), ["10/model.joblib", "model-settings.json"], "{root}");
        assert_eq!(highest.version, Some(10));
        assert!(highest.model_dir().ends_with("10"));
        let two = harness.version(&at("iris"), 2).await.unwrap();
        assert_eq!(names(&two), ["2/model.joblib", "2/sub/extra name+.txt", "model-settings.json"], "{root}");
        let fetched_others = server.seen().iter().any(|seen| seen.path().contains("/1/model"));
        assert!(!fetched_others, "{root}: only the wanted version may be downloaded");
        let error = harness.version(&at("iris"), 3).await.unwrap_err();
        assert!(error.to_string().contains("present are 1, 2, 10"), "{root}: {error}");
        let error = harness.version(&at("plain"), 1).await.unwrap_err();
        assert!(error.to_string().contains("no version folders"), "{root}: {error}");
        assert_eq!(
            names(&harness.fetch(&at("plain")).await.unwrap()),
            ["labels/a.txt", "model.onnx"],
            "{root}"
        );
        assert_eq!(names(&harness.fetch(&at("single.onnx")).await.unwrap()), ["single.onnx"], "{root}");
        assert_eq!(names(&harness.fetch(&at("marked")).await.unwrap()), ["sub/file"], "{root}");
        let error = harness.fetch(&at("nothing")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{root}: {error}");
        let error = harness.version(&at("nothing"), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{root}: {error}");

        let before = server.count();
        let again = harness.fetch(&at("plain")).await.unwrap();
        assert!(again.from_cache, "{root}");
        let downloads = server.seen()[before..].iter().filter(|seen| seen.path().contains(".onnx")).count();
        assert_eq!(downloads, 0, "{root}: an unchanged folder is listed, not downloaded");
        harness.assert_no_leftovers();
    }
}

#[tokio::test]
async fn credentials_are_sent_only_to_their_host() {
    for (root, harness, server) in stores().await {
        harness.fetch(&format!("{root}plain")).await.unwrap();
        for seen in server.seen() {
            let authorization = seen.header("authorization").unwrap_or_default();
            match root {
                "s3://b/" => {
                    assert!(
                        authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKID/")
                            && authorization.contains("/eu-west-1/s3/aws4_request"),
                        "{seen:?}"
                    );
                    assert_eq!(seen.header("x-amz-security-token"), Some("st"));
                }
                "az://b/" => assert!(authorization.starts_with("SharedKey acct:"), "{seen:?}"),
                "hf://org/model/" => assert_eq!(authorization, "Bearer hf_token"),
                _ => assert_eq!(authorization, ""),
            }
        }
    }
    // The hub sends downloads to another host, which must not see the token.
    let cdn = Server::script([Response::ok("single")]).await;
    let elsewhere = cdn.url("/blob");
    let hub = Server::start(move |seen| {
        if seen.path().contains("/resolve/") { Response::redirect(elsewhere.clone()) } else { hub_like(seen) }
    })
    .await;
    let endpoint = hub.url("");
    let harness =
        Harness::with(|config| config.env = env(&[("HF_ENDPOINT", &endpoint), ("HF_TOKEN", "hf_token")]));
    harness.fetch("hf://org/model/single.onnx").await.unwrap();
    assert_eq!((cdn.count(), cdn.seen()[0].header("authorization")), (1, None));
}

#[tokio::test]
async fn listing_continued_on_another_server_is_rejected() {
    let evil = Server::script([Response::ok("[]")]).await;
    let link = format!("<{}>; rel=\"next\"", evil.url("/steal"));
    let hub = Server::start(move |seen| {
        let answer = hub_like(seen);
        if seen.path().contains("/tree/") {
            Response::ok("[{\"type\":\"file\",\"oid\":\"x\",\"size\":1,\"path\":\"a\"}]")
                .header("link", link.clone())
        } else {
            answer
        }
    })
    .await;
    let endpoint = hub.url("");
    let harness =
        Harness::with(|config| config.env = env(&[("HF_ENDPOINT", &endpoint), ("HF_TOKEN", "hf_token")]));
    let error = harness.fetch("hf://org/model").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && evil.count() == 0, "{error}");
}

#[tokio::test]
async fn named_remote_uses_its_secret() {
    let server = Server::start(s3_like).await;
    let harness = Harness::new();
    let secret = format!(
        "type: s3\nname: minio\nparameters:\n  provider: Minio\n  env_auth: false\n  access_key_id: AK\n  secret_access_key: SK\n  endpoint: {}\n",
        server.url("")
    );
    let mut request = Request::new(Uri::parse("minio:b/plain").unwrap());
    let error = harness.request(&request).await.unwrap_err();
    assert!(error.to_string().contains("name: minio"), "{error}");
    request.secret = Some(Secret::parse(&secret).unwrap());
    assert_eq!(names(&harness.request(&request).await.unwrap()), ["labels/a.txt", "model.onnx"]);
    assert!(server.seen()[0].header("authorization").unwrap().contains("Credential=AK/"));
    request.uri = Uri::parse("other:b/plain").unwrap();
    assert!(harness.request(&request).await.unwrap_err().to_string().contains("name: other"));
    request.uri = Uri::parse("gs://b/plain").unwrap();
    assert!(harness.request(&request).await.unwrap_err().to_string().contains("another kind of store"));
    // rclone's way to read Google storage through its S3 interface.
    request.uri = Uri::parse("gs:b/plain").unwrap();
    request.secret = Some(Secret::parse(&secret.replace("name: minio", "name: gs")).unwrap());
    assert_eq!(harness.request(&request).await.unwrap().bytes, 5);
}

#[tokio::test]
async fn store_checksum_mismatch_is_detected() {
    let corrupt = |seen: &Seen| match seen.path() {
        "/b/plain/model.onnx" => Response::ok("ONNX").header("etag", format!("\"{}\"", etag("onnx"))),
        _ => s3_like(seen),
    };
    let server = Server::start(corrupt).await;
    let endpoint = server.url("");
    let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
    let error = harness.fetch("s3://b/plain").await.unwrap_err();
    assert!(error.to_string().contains("does not match its checksum"), "{error}");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn object_without_list_permission_is_fetched() {
    let server =
        Server::start(
            |seen| if seen.query("list-type").is_some() { Response::status(403) } else { s3_like(seen) },
        )
        .await;
    let endpoint = server.url("");
    let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
    assert_eq!(names(&harness.fetch("s3://b/single.onnx").await.unwrap()), ["single.onnx"]);
}

#[tokio::test]
async fn transient_listing_failures_are_retried() {
    let flaky = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&flaky);
    let server = Server::start(move |seen| {
        if counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 {
            Response::status(503)
        } else {
            s3_like(seen)
        }
    })
    .await;
    let endpoint = server.url("");
    let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
    assert_eq!(harness.fetch("s3://b/plain").await.unwrap().bytes, 5);

    let moved = Server::script([Response::status(301).header("x-amz-bucket-region", "eu-north-1")]).await;
    let endpoint = moved.url("");
    let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
    let error = harness.fetch("s3://b/plain").await.unwrap_err();
    assert!(error.to_string().contains("set the region eu-north-1"), "{error}");
    let nonsense = Server::script([Response::ok("<html>")]).await;
    let endpoint = nonsense.url("");
    let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
    assert_eq!(harness.fetch("s3://b/plain").await.unwrap_err().kind(), ErrorKind::Permanent);
}

#[tokio::test]
async fn hostile_object_keys_are_rejected() {
    for key in ["plain/../../etc/passwd", "plain/a\\b", "plain//x", "plain/./x"] {
        let xml = format!(
            "<ListBucketResult><Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>1</Size></Contents><IsTruncated>false</IsTruncated></ListBucketResult>"
        );
        let server = Server::start(move |seen| {
            if seen.query("list-type").is_some() { Response::ok(xml.clone()) } else { Response::ok("x") }
        })
        .await;
        let endpoint = server.url("");
        let harness = Harness::with(|config| config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]));
        let error = harness.fetch("s3://b/plain").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permanent, "{key}: {error}");
        harness.assert_no_leftovers();
    }
}

#[tokio::test]
async fn google_service_account_signs_its_token() {
    let server = Server::start(s3_like).await;
    let key = include_str!("fixtures/account.key");
    let account = serde_json::json!({
        "type": "service_account",
        "private_key": key,
        "private_key_id": "1",
        "client_email": "reader@project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "http://169.254.169.254/token",
    });
    let parameters =
        serde_json::json!({"service_account_credentials": account.to_string(), "endpoint": server.url("")});
    let text = serde_json::json!({"type": "google cloud storage", "name": "gs", "parameters": parameters});
    let harness = Harness::new();
    let mut request = Request::new(Uri::parse("gs://b/plain").unwrap());
    request.secret = Some(Secret::parse(&text.to_string()).unwrap());
    assert_eq!(harness.request(&request).await.unwrap().bytes, 5);
    for seen in server.seen() {
        let token = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let decode = |part: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap();
        let claims = String::from_utf8(decode(signed.split_once('.').unwrap().1)).unwrap();
        assert!(claims.contains("reader@project.iam.gserviceaccount.com"), "{claims}");
        let pem = key.lines().filter(|line| !line.starts_with("-----")).collect::<String>();
        let der = base64::engine::general_purpose::STANDARD.decode(pem).unwrap();
        let pair = ring::signature::RsaKeyPair::from_pkcs8(&der).unwrap();
        let public = ring::signature::UnparsedPublicKey::new(
            &ring::signature::RSA_PKCS1_2048_8192_SHA256,
            ring::signature::KeyPair::public_key(&pair),
        );
        public.verify(signed.as_bytes(), &decode(signature)).unwrap();
    }
    // The machine's own token must not go to an endpoint that a secret names.
    let mixed =
        format!("{{type: gcs, name: gs, parameters: {{env_auth: true, endpoint: '{}'}}}}", server.url(""));
    request.secret = Some(Secret::parse(&mixed).unwrap());
    assert_eq!(harness.request(&request).await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn endless_listing_is_aborted() {
    let pages: [(&str, &str); 2] = [
        ("no objects", ""),
        (
            "objects",
            "<Contents><Key>plain/KEY</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>1</Size></Contents>",
        ),
    ];
    for (name, page) in pages {
        let counter = std::sync::atomic::AtomicUsize::new(0);
        let server = Server::start(move |_| {
            let count = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string();
            let page = page.replace("KEY", &count);
            Response::ok(format!("<ListBucketResult>{page}<IsTruncated>true</IsTruncated><NextContinuationToken>{count}</NextContinuationToken></ListBucketResult>"))
        })
        .await;
        let endpoint = server.url("");
        let harness = Harness::with(|config| {
            config.env = env(&[("AWS_ENDPOINT_URL", &endpoint)]);
            config.limits.files = 100;
        });
        let error = harness.fetch("s3://b/plain").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{name}: {error}");
    }
}
