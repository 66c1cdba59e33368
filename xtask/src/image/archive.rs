//! A container image archive for containerd, podman and docker: an OCI layout plus docker's manifest. One layer; equal
//! contents give an equal digest.

use crate::Failure;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};
use tar::{Builder, EntryType, Header};

/// The conventional non-root uid of images without a shell.
const USER: u32 = 65532;

/// The files of an image, by name without a leading slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Contents {
    pub(crate) fn program(&mut self, name: &str, bytes: &[u8]) {
        self.add(name, 0o755, bytes);
    }

    /// A file or directory at its place on this machine. Links are followed; entries named in `without` are left
    /// out, whatever their ending.
    pub(crate) fn tree(&mut self, path: &Path, without: &[&str]) -> Result<(), Failure> {
        if path.is_file() {
            let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            self.program(&path.display().to_string(), &bytes);
            return Ok(());
        }
        for entry in fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !without.iter().any(|left_out| name.split('.').next() == Some(left_out)) {
                self.tree(&entry.path(), without)?;
            }
        }
        Ok(())
    }

    /// Files with this ending.
    pub(super) fn ending_with(&self, ending: &str) -> Vec<PathBuf> {
        let named = self.files.keys().filter(|name| name.ends_with(ending));
        named.map(|name| Path::new("/").join(name)).collect()
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
        let mut tar = Builder::new(Vec::new());
        for (name, mode) in &directories {
            append(&mut tar, EntryType::Directory, name, *mode, &[])?;
        }
        for (name, (mode, bytes)) in &self.files {
            append(&mut tar, EntryType::Regular, name, *mode, bytes)?;
        }
        Ok(tar.into_inner()?)
    }
}

/// Appends an entry of root without a modification time, so that archives are reproducible.
fn append(
    tar: &mut Builder<Vec<u8>>,
    kind: EntryType,
    name: &str,
    mode: u32,
    content: &[u8],
) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, name, content)
}

pub(crate) struct Image<'a> {
    /// Name with tag, such as `localhost/gantry:0.1.0`.
    pub(crate) name: &'a str,
    pub(crate) entrypoint: &'a [&'a str],
    /// The working directory, such as `/tmp`, which everyone may write to.
    pub(crate) directory: &'a str,
    pub(crate) contents: Contents,
}

impl Image<'_> {
    pub(crate) fn archive(self) -> Result<Vec<u8>, Failure> {
        let tag = self.name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
        let tag = tag.ok_or_else(|| format!("{}: the image name needs a tag, such as :1", self.name))?;
        let layer = self.contents.layer()?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "User": format!("{USER}:{USER}"),
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/"],
                "WorkingDir": self.directory,
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
        let mut tar = Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| append(&mut tar, EntryType::Regular, name, 0o644, bytes);
        add("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        add("index.json", index.to_string().as_bytes())?;
        add("manifest.json", docker.to_string().as_bytes())?;
        for bytes in [manifest.as_bytes(), config.as_bytes(), &layer] {
            add(&blob(bytes), bytes)?;
        }
        Ok(tar.into_inner()?)
    }
}

/// The OCI name of the architecture.
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

pub(crate) fn sha256(bytes: &[u8]) -> String {
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
        Image { name: "localhost:5000/gantry:1", entrypoint: &["/gantry"], directory: "/", contents }
            .archive()
            .unwrap()
    }

    fn unpack(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            io::Read::read_to_end(&mut entry, &mut content).unwrap();
            files.insert(name, content);
        }
        files
    }

    #[test]
    fn blobs_are_named_by_digest() {
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
    fn archive_is_reproducible() {
        assert_eq!(image(b"program"), image(b"program"));
        assert_ne!(sha256(&image(b"program")), sha256(&image(b"another")));
    }

    #[test]
    fn name_without_tag_is_rejected() {
        for name in ["gantry", "localhost:5000/gantry"] {
            let image =
                Image { name, entrypoint: &["/gantry"], directory: "/", contents: Contents::default() };
            assert!(image.archive().is_err(), "{name}");
        }
    }
}
