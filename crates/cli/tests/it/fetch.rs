//! `gantry fetch` against an HTTP server and an S3 stand-in.

use crate::harness::{RunResult, command, finish};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex},
};

/// Objects of the bucket `b`.
const OBJECTS: [(&str, &str); 3] =
    [("iris/1/model.onnx", "one"), ("iris/2/model.onnx", "two"), ("one.onnx", "single")];

/// Answers every request; the heads of all requests are kept.
fn server() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let heads = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let heads = Arc::clone(&heads);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|n| n > 2) {}
                let (status, body) = answer(head.split(' ').nth(1).unwrap_or("/"));
                heads.lock().unwrap().push(head);
                let mut stream = stream;
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(&[head.as_bytes(), &body].concat());
            });
        }
    });
    (address, seen)
}

fn answer(target: &str) -> (&'static str, Vec<u8>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if query.contains("list-type=2") {
        let prefix =
            query.split('&').find_map(|p| p.strip_prefix("prefix=")).unwrap_or("").replace("%2F", "/");
        let mut xml = String::from("<ListBucketResult>");
        for (key, text) in OBJECTS.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            match key.get(prefix.len()..).unwrap().split_once('/') {
                Some((folder, _)) if query.contains("delimiter") => {
                    xml.push_str(&format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>"));
                }
                _ => xml.push_str(&format!(
                    "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>{}</Size></Contents>",
                    text.len()
                )),
            }
        }
        return ("200 OK", (xml + "<IsTruncated>false</IsTruncated></ListBucketResult>").into_bytes());
    }
    if path == "/archive.tar" {
        return ("200 OK", tar(&[("top/model.onnx", "packed"), ("top/labels.txt", "a")]));
    }
    let object = OBJECTS.iter().find(|(key, _)| path == format!("/b/{key}"));
    object.map_or(("404 Not Found", Vec::new()), |(_, text)| ("200 OK", text.as_bytes().to_vec()))
}

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, text) in files {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(text.as_bytes());
        out.resize(out.len().div_ceil(512) * 512, 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn fetch(args: &[&str], variables: &[(&str, &str)]) -> RunResult {
    let mut command = command(&[&["fetch"], args].concat());
    finish(command.envs(variables.iter().copied()))
}

/// Every file below, with its content.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|file| format!("{name}/{file}")));
        } else {
            found.push(format!("{name}={}", fs::read_to_string(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn sources_are_fetched_as_they_are() {
    let (address, seen) = server();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir_all(at("volume/1")).unwrap();
    fs::write(at("volume/1/m.txt"), "local").unwrap();
    let http = format!("http://{address}/archive.tar");
    let object = format!("http://{address}/b/one.onnx");
    let endpoint = format!("http://{address}");
    let s3 =
        [("S3_ENDPOINT", endpoint.as_str()), ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "hush")];
    let anonymous = [("AWS_ENDPOINT_URL", endpoint.as_str()), ("awsAnonymousCredential", "true")];
    let config = format!(
        "{{\"type\":\"s3\",\"access_key_id\":\"spec\",\"secret_access_key\":\"x\",\"endpoint_url\":\"{endpoint}\"}}"
    );
    let specification = [("STORAGE_CONFIG", config.as_str())];
    let headers = [("127.0.0.1-headers", "{\"x-token\":\"t\"}")];
    for (name, uri, variables, expected) in [
        ("archive", http.as_str(), &[][..], &["top/labels.txt=a", "top/model.onnx=packed"][..]),
        ("file", object.as_str(), &headers[..], &["one.onnx=single"]),
        ("folder", "s3://b/iris", &s3[..], &["1/model.onnx=one", "2/model.onnx=two"]),
        ("object", "s3://b/one.onnx", &anonymous[..], &["one.onnx=single"]),
        ("spec", "s3://b/iris/2", &specification[..], &["model.onnx=two"]),
        ("local", &format!("file://{}", at("volume")), &[][..], &["1/m.txt=local"]),
    ] {
        let result = fetch(&[uri, &at(name)], variables);
        assert_eq!(result.code, 0, "{name}: {result:?}");
        assert_eq!(files(Path::new(&at(name))), expected, "{name}");
    }
    let heads = seen.lock().unwrap().concat();
    assert!(
        heads.contains("x-token: t")
            && heads.contains("Credential=key/")
            && heads.contains("Credential=spec/")
    );
    let both = fetch(&[&http, &at("two/a"), &object, &at("two/b")], &[]);
    assert_eq!(both.code, 0, "{both:?}");
    assert_eq!(
        files(Path::new(&at("two"))),
        ["a/top/labels.txt=a", "a/top/model.onnx=packed", "b/one.onnx=single"]
    );
}

#[test]
fn fetch_after_a_crash_starts_over() {
    let (address, _) = server();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("models");
    // What a killed run leaves: its work, and files that were already moved.
    fs::create_dir_all(target.join(".gantry-fetch/tmp/1-1")).unwrap();
    fs::write(target.join(".gantry-fetch/tmp/1-1/part"), "half").unwrap();
    fs::write(target.join("one.onnx"), "an older model").unwrap();
    let uri = format!("http://{address}/b/one.onnx");
    let result = fetch(&[&uri, target.to_str().unwrap()], &[]);
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(files(&target), ["one.onnx=single"]);
}

#[test]
fn failure_is_one_line_with_source_and_cause() {
    let (address, _) = server();
    let dir = tempfile::tempdir().unwrap();
    let (target, log) = (dir.path().join("models"), dir.path().join("termination-log"));
    fs::write(&log, "").unwrap();
    let missing = format!("http://{address}/none.onnx?token=hush");
    for (uri, expected) in [
        (missing.as_str(), format!("failed to fetch http://{address}/none.onnx: ")),
        ("pvc://claim/x", "failed to fetch pvc://claim/x: pvc:// is not supported here: ".into()),
        ("/no/such/model", "failed to fetch /no/such/model: cannot read the local source".into()),
        ("http://169.254.169.254/latest", "failed to fetch http://169.254.169.254/latest: ".into()),
    ] {
        let args = [uri, target.to_str().unwrap(), "--termination-log", log.to_str().unwrap()];
        let result = fetch(&args, &[]);
        assert_eq!(result.code, 1, "{result:?}");
        assert!(result.stderr.starts_with(&expected) && result.stderr.lines().count() == 1, "{result:?}");
        assert!(!result.stderr.contains("hush"), "{result:?}");
        assert_eq!(fs::read_to_string(&log).unwrap(), result.stderr.trim_end());
        assert!(files(&target).iter().all(|file| file.starts_with(".gantry-fetch/")), "{:?}", files(&target));
    }
    let odd = fetch(&["s3://b/x", "/tmp/a", "s3://b/y"], &[]);
    assert_eq!((odd.code, odd.stderr.contains("every URI needs a directory")), (2, true), "{odd:?}");
}
