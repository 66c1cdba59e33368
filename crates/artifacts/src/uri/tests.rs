use proptest::prelude::*;

use super::*;

#[test]
fn accepted_spellings() {
    let table: &[(&str, &str)] = &[
        ("/models/iris", "/models/iris"),
        ("models/iris", "models/iris"),
        ("./models:v1/iris", "./models:v1/iris"),
        ("../iris", "../iris"),
        ("file:///models/a%20b", "/models/a b"),
        ("file://localhost/models", "/models"),
        ("file:/models", "/models"),
        ("http://example.com/m.onnx", "http://example.com/m.onnx"),
        ("HTTPS://Example.com:8443/m.onnx", "https://example.com:8443/m.onnx"),
        ("https://example.com/m.zip?X-Amz-Signature=abc", "https://example.com/m.zip?redacted"),
        ("http://0x7f.1/m", "http://127.0.0.1/m"),
        ("http://2130706433/m", "http://127.0.0.1/m"),
        ("http://0177.0.0.1/m", "http://127.0.0.1/m"),
        ("http://[::1]:80/m", "http://[::1]/m"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("s3:bucket/key/", "s3://bucket/key"),
        ("s3://bucket", "s3://bucket"),
        ("gs://seldon-models/iris", "gs://seldon-models/iris"),
        ("gs:seldon-models/iris", "gs://seldon-models/iris"),
        ("gcs://b/k", "gs://b/k"),
        ("az://c/p", "az://c/p"),
        ("azure://c/p", "az://c/p"),
        ("azureblob:c/p", "az://c/p"),
        ("abfs://c/p", "az://c/p"),
        ("abfss://c@account1.dfs.core.windows.net/p", "abfss://c@account1.dfs.core.windows.net/p"),
        ("hf://org/model", "hf://org/model"),
        ("hf://org/model@v1.0/onnx/model.onnx", "hf://org/model@v1.0/onnx/model.onnx"),
        ("hf://org/model@refs%2Fpr%2F1", "hf://org/model@refs%2Fpr%2F1"),
        ("hf://org/model:abc123", "hf://org/model@abc123"),
        ("minio:bucket/path", "minio:bucket/path"),
    ];
    for (text, shown) in table {
        let uri = Uri::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(uri.to_string(), *shown, "{text}");
    }
    assert_eq!(Uri::parse("minio:b/p").unwrap().named_remote(), Some("minio"));
    assert_eq!(Uri::parse("s3:b/p").unwrap().named_remote(), None);
    let pinned = format!("https://h/m.onnx#sha256={}", "ab".repeat(32));
    assert_eq!(Uri::parse(&pinned).unwrap().to_string(), pinned);
    assert_eq!(Uri::parse("iris").unwrap().resolve(Path::new("/m")), Uri::Local("/m/iris".into()));
}

#[test]
fn invalid_uris_are_explained() {
    let table: &[(&str, &str)] = &[
        ("", "is empty"),
        ("   ", "is empty"),
        (" s3://b/k", "white space at character 1"),
        ("s3://b/k ", "white space at character 9"),
        ("s3://b/k\n", "control or invisible"),
        ("s3://b/\u{202e}k", "control or invisible character at character 8"),
        ("s3://b/\0k", "control"),
        ("s4://b/k", "did you mean s3://?"),
        ("htttp://h/k", "did you mean http://?"),
        ("s3a://b/k", "did you mean s3://?"),
        ("gopher://h/k", "known are file://"),
        ("minio://b/k", "minio:bucket/path"),
        ("pvc://claim/x", "mount it"),
        ("ftp://h/x", "copy the files"),
        ("http:h/x", "write http://host/path"),
        ("https:///x", "needs a host"),
        ("http://", "needs a host"),
        ("http://?q", "needs a host"),
        ("http://h:99999/x", "port"),
        ("http://h/../x", "`..` is not allowed"),
        ("http://h/%2e%2E/x", "`..` is not allowed"),
        ("http://h/x#frag", "sha256="),
        ("http://h/x#sha256=12", "64 hexadecimal"),
        ("s3://", "needs a bucket"),
        ("s3:///key", "needs a bucket"),
        ("gs:", "needs a bucket"),
        ("az:///p", "needs a container"),
        ("s3://b/../k", "`..` is not allowed"),
        ("s3://b/a//k", "single slashes"),
        ("s3://b/./k", "single slashes"),
        ("s3://b/k?versionId=1", "no meaning"),
        ("s3://b/a\\b", "no meaning"),
        ("s3://buc ket/k", "letters, digits"),
        ("s3://../k", "letters, digits"),
        ("hf://model", "an organisation and a model"),
        ("hf://org/../x", "repository name"),
        ("hf://org/m@/x", "a revision is"),
        ("hf://org/m@..%2F..", "a revision is"),
        ("hf://org/m/../x", "`..` is not allowed"),
        ("file://host/x", "absolute path and no host"),
        ("file://x", "absolute path and no host"),
        ("file:///a%ff", "not UTF-8"),
        ("file:///a%00", "control"),
        ("~/models", "not expanded"),
        ("abfss://c@UPPER.dfs.core.windows.net/p", "lower-case"),
        ("abfss://c@acct.evil.example/p", "lower-case"),
    ];
    for (text, part) in table {
        let error = Uri::parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
    assert!(matches!(Uri::parse(&"a".repeat(5000)), Err(UriError::TooLong(5000))));
}

#[test]
fn credentials_are_refused_and_never_repeated() {
    let token = "hunter2CANARY";
    for text in [
        format!("https://user:{token}@h/x"),
        format!("https://{token}@h/x"),
        format!("http://a@{token}@h/x"),
        format!("http://h\\@{token}@evil/x"),
        format!("s3://AKIA:{token}@bucket/k"),
        format!("minio:{token}@bucket/k"),
        format!("hf://user:{token}@x/m"),
        format!("abfss://c:{token}@acct/p"),
        format!("s3://b/k?X-Amz-Signature={token}"),
    ] {
        let error = Uri::parse(&text).expect_err(&text);
        assert!(!format!("{error} {error:?}").contains(token), "{text}: {error:?}");
    }
    let signed = Uri::parse(&format!("https://h/x?sig={token}")).unwrap();
    assert!(!format!("{signed} {signed:?}").contains(token));
    assert!(signed.identity().contains(token), "the cache key must tell signed URLs apart");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_panics_and_display_is_stable(text in prop_oneof![
        any::<String>(),
        "(s3|gs|az|hf|file|https?|abfss|minio|x):/{0,3}[a-zA-Z0-9@:%./?#=_ -]{0,40}",
        "[a-z0-9./:~%@-]{0,30}",
    ]) {
        if let Ok(uri) = Uri::parse(&text) {
            let shown = uri.to_string();
            let again = Uri::parse(&shown).map_err(|error| TestCaseError::fail(format!("{shown:?}: {error}")))?;
            prop_assert_eq!(again.to_string(), shown);
        }
    }
}
