//! A container image as one file that containerd, podman and docker all load: an OCI layout that has docker's manifest
//! beside it. One layer; the same contents give the same digest.

use super::tar::{Entry, Tar};
use crate::Failure;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _};

/// Nobody's number, as other images without a shell have it.
const USER: u32 = 65532;

/// The files of an image, by name without a leading slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Contents {
    /// Adds a program.
    pub(crate) fn program(&mut self, name: &str, bytes: &[u8]) {
        self.add(name, 0o755, bytes);
    }

    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.files.insert(name.trim_start_matches('/').to_owned(), (mode, bytes.to_vec()));
    }

    fn layer(mut self) -> Result<Vec<u8>, Failure> {
        let user = format!("gantry:x:{USER}:{USER}:gantry:/:/sbin/nologin\n");
        self.add("etc/passwd", 0o644, format!("root:x:0:0:root:/:/sbin/nologin\n{user}").as_bytes());
        self.add("etc/group", 0o644, format!("root:x:0:\ngantry:x:{USER}:\n").as_bytes());
        let mut directories = BTreeMap::from([("tmp/".to_owned(), 0o1777)]);
        for name in self.files.keys() {
            for (slash, _) in name.match_indices('/') {
                directories.entry(name.get(..=slash).unwrap_or_default().to_owned()).or_insert(0o755);
            }
        }
        let mut tar = Tar::default();
        for (name, mode) in &directories {
            tar.add(name, *mode, &Entry::Directory)?;
        }
        for (name, (mode, bytes)) in &self.files {
            tar.add(name, *mode, &Entry::File(bytes))?;
        }
        Ok(tar.finish())
    }
}

/// An image.
pub(crate) struct Image<'a> {
    /// Its name with its tag, such as `localhost/gantry:0.1.0`.
    pub(crate) name: &'a str,
    /// The program that it runs.
    pub(crate) entrypoint: &'a str,
    pub(crate) contents: Contents,
}

impl Image<'_> {
    /// The archive.
    pub(crate) fn archive(self) -> Result<Vec<u8>, Failure> {
        let tag = self.name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
        let tag = tag.ok_or_else(|| format!("{}: an image's name ends with a tag, such as :1", self.name))?;
        let layer = self.contents.layer()?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "User": format!("{USER}:{USER}"),
                "Entrypoint": [self.entrypoint],
                "Env": ["PATH=/"],
                "WorkingDir": "/",
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask image" }],
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        })
        .to_string();
        let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        if let Some(fields) = listed.as_object_mut() {
            fields.insert("platform".into(), json!({ "architecture": architecture(), "os": "linux" }));
            let names =
                json!({ "io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": tag });
            fields.insert("annotations".into(), names);
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [listed],
        });
        let docker = json!([{
            "Config": blob(config.as_bytes()),
            "RepoTags": [self.name],
            "Layers": [blob(&layer)],
        }]);
        let mut tar = Tar::default();
        let mut add = |name: &str, bytes: &[u8]| tar.add(name, 0o644, &Entry::File(bytes));
        add("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        add("index.json", index.to_string().as_bytes())?;
        add("manifest.json", docker.to_string().as_bytes())?;
        for bytes in [manifest.as_bytes(), config.as_bytes(), &layer] {
            add(&blob(bytes), bytes)?;
        }
        Ok(tar.finish())
    }
}

/// The architecture's name as images have it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len() })
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", sha256(bytes))
}

/// The digest by which images name their parts.
pub(super) fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(program: &[u8]) -> Vec<u8> {
        let mut contents = Contents::default();
        contents.program("/lib/x86_64/libm.so.6", b"m");
        contents.program("gantry", program);
        Image { name: "localhost:5000/gantry:1", entrypoint: "/gantry", contents }.archive().unwrap()
    }

    /// The files of an archive, by name.
    fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut rest = archive;
        while rest[0] != 0 {
            let text = |from: usize, to: usize| {
                String::from_utf8(rest[from..to].to_vec()).unwrap().trim_end_matches('\0').to_owned()
            };
            let size = usize::from_str_radix(&text(124, 136), 8).unwrap();
            files.insert(text(0, 100), rest[512..512 + size].to_vec());
            rest = &rest[512 + size.next_multiple_of(512)..];
        }
        files
    }

    #[test]
    fn every_part_is_where_its_digest_says() {
        let files = unpack(&image(b"program"));
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let at = |value: &Value, pointer: &str| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_else(|| panic!("{pointer}: {value}"))
                .to_owned()
        };
        let part =
            |digest: String| &files[&format!("blobs/sha256/{}", digest.strip_prefix("sha256:").unwrap())];
        for (name, bytes) in files.iter().filter(|(name, _)| name.starts_with("blobs/")) {
            assert_eq!(name, &blob(bytes));
        }
        let index = json(&files["index.json"]);
        assert_eq!(
            index.pointer("/manifests/0/annotations/io.containerd.image.name").unwrap(),
            "localhost:5000/gantry:1"
        );
        let manifest = json(part(at(&index, "/manifests/0/digest")));
        let config = json(part(at(&manifest, "/config/digest")));
        assert_eq!(at(&config, "/config/User"), "65532:65532");
        assert_eq!(at(&config, "/config/Entrypoint/0"), "/gantry");
        let layer = part(at(&manifest, "/layers/0/digest"));
        assert_eq!(at(&config, "/rootfs/diff_ids/0"), at(&manifest, "/layers/0/digest"));
        let docker = json(&files["manifest.json"]);
        assert_eq!(&files[&at(&docker, "/0/Layers/0")], layer);
        let inside = unpack(layer);
        assert_eq!(inside["gantry"], b"program");
        let names: Vec<&str> = inside.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "etc/",
                "etc/group",
                "etc/passwd",
                "gantry",
                "lib/",
                "lib/x86_64/",
                "lib/x86_64/libm.so.6",
                "tmp/"
            ]
        );
    }

    #[test]
    fn the_same_contents_give_the_same_bytes() {
        assert_eq!(image(b"program"), image(b"program"));
        assert_ne!(sha256(&image(b"program")), sha256(&image(b"another")));
    }

    #[test]
    fn a_name_without_a_tag_is_refused() {
        for name in ["gantry", "localhost:5000/gantry"] {
            let image = Image { name, entrypoint: "/gantry", contents: Contents::default() };
            assert!(image.archive().is_err(), "{name}");
        }
    }
}
