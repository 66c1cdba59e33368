//! Launch spec of a server, from annotations of its manifest: other tools can still read the manifest.

use gantry_api::{Quantity, Server};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// Command line, in shell syntax without expansion or as a JSON list.
const COMMAND: &str = "gantry.dev/command";
/// Environment variables, one `NAME=VALUE` per line.
const ENV: &str = "gantry.dev/env";
/// Working directory, relative to the manifest.
const DIRECTORY: &str = "gantry.dev/directory";
/// Type of the inference server.
const TYPE: &str = "gantry.dev/server-type";
/// Memory for models, per replica.
const MEMORY: &str = "gantry.dev/memory";
/// Memory overcommit in percent.
const OVERCOMMIT: &str = "gantry.dev/overcommit";

/// Other annotations with our prefix are rejected: a typo would be ignored otherwise.
const KNOWN: [&str; 6] = [COMMAND, ENV, DIRECTORY, TYPE, MEMORY, OVERCOMMIT];

const DEFAULT_MEMORY: u64 = 1 << 30;
/// Per server, on one machine.
const MAX_REPLICAS: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSpec {
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    pub(crate) kind: String,
    pub(crate) capabilities: Vec<String>,
    pub(crate) memory: u64,
    pub(crate) over_commit: u32,
    pub(crate) replicas: u32,
    /// Minimum and maximum of replicas for scaling.
    pub(crate) bounds: (u32, u32),
}

/// Ports and model directory of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Allocation {
    pub(crate) http_port: u16,
    pub(crate) grpc_port: u16,
    pub(crate) metrics_port: u16,
    pub(crate) models_dir: PathBuf,
}

/// A field and its problem.
pub(crate) type Invalid = (String, String);

impl LaunchSpec {
    /// The launch spec of a manifest; `None` without a command.
    pub(crate) fn read(server: &Server, folder: &Path) -> Result<Option<Self>, Vec<Invalid>> {
        let annotations = &server.metadata.annotations;
        let at = |name: &str| format!("metadata.annotations.{name}");
        let mut invalid = Vec::new();
        for name in
            annotations.keys().filter(|n| n.starts_with("gantry.dev/") && !KNOWN.contains(&n.as_str()))
        {
            let meant =
                gantry_api::nearest(name, KNOWN).map(|n| format!(". Did you mean {n}?")).unwrap_or_default();
            invalid.push((at(name), format!("is not an annotation of Server{meant}")));
        }
        let mut reader = Reader { annotations, invalid };
        let command = reader.take(COMMAND, Vec::new(), command);
        let spec = Self {
            env: reader.take(ENV, BTreeMap::new(), env),
            directory: folder.join(annotations.get(DIRECTORY).map_or("", String::as_str)),
            kind: reader.take(TYPE, default_kind(&server.spec.server_config), kind),
            memory: reader.take(MEMORY, DEFAULT_MEMORY, |t| Quantity::parse(t).map(|q| q.bytes())),
            over_commit: reader.take(OVERCOMMIT, 0, |t| {
                t.trim().parse().map_err(|_| "must be an integer percentage, such as 10".to_owned())
            }),
            capabilities: capabilities(server),
            replicas: 0,
            bounds: (0, 0),
            command,
        };
        let mut invalid = reader.invalid;
        let proto = server.to_proto();
        if proto.expected_replicas > MAX_REPLICAS {
            let message = format!("is {}, more than {MAX_REPLICAS} on one machine", proto.expected_replicas);
            invalid.push(("spec.replicas".into(), message));
        }
        if !annotations.contains_key(COMMAND) {
            let other = annotations.keys().find(|n| KNOWN.contains(&n.as_str()));
            if let Some(other) = other {
                invalid.push((at(other), format!("has no effect without {COMMAND}: add the command to run")));
            }
            return if invalid.is_empty() { Ok(None) } else { Err(invalid) };
        }
        if !invalid.is_empty() {
            return Err(invalid);
        }
        let max = if proto.max_replicas == 0 {
            proto.expected_replicas
        } else {
            proto.max_replicas.min(MAX_REPLICAS)
        };
        let bounds = (proto.min_replicas.min(max), max);
        Ok(Some(Self { replicas: proto.expected_replicas, bounds, ..spec }))
    }

    /// Whether the server serves both protocols on its HTTP port: it never receives a gRPC port.
    pub(crate) fn is_single_port(&self) -> bool {
        let mentions = |text: &String| text.contains("{grpc_port}");
        self.kind != "mlserver" && !self.command.iter().any(mentions) && !self.env.values().any(mentions)
    }

    /// A hash that changes when replicas must be restarted.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.command, &self.env, &self.directory, &self.kind).hash(&mut hasher);
        (&self.capabilities, self.memory, self.over_commit).hash(&mut hasher);
        hasher.finish()
    }

    /// Command and environment of one replica, with placeholders replaced.
    pub(crate) fn render(
        &self,
        server: &str,
        replica: u32,
        allocation: &Allocation,
    ) -> (Vec<String>, BTreeMap<String, String>) {
        let values = [
            ("{http_port}", allocation.http_port.to_string()),
            ("{grpc_port}", allocation.grpc_port.to_string()),
            ("{metrics_port}", allocation.metrics_port.to_string()),
            ("{models_dir}", allocation.models_dir.display().to_string()),
            ("{server}", server.to_owned()),
            ("{replica}", replica.to_string()),
            ("{gantry}", std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default()),
        ];
        let fill =
            |text: &String| values.iter().fold(text.clone(), |text, (name, value)| text.replace(name, value));
        let mut env = self.default_env(allocation);
        env.extend(self.env.iter().map(|(name, value)| (name.clone(), fill(value))));
        (self.command.iter().map(fill).collect(), env)
    }

    /// Variables that MLServer reads its ports from.
    fn default_env(&self, allocation: &Allocation) -> BTreeMap<String, String> {
        if self.kind != "mlserver" {
            return BTreeMap::new();
        }
        let text = |name: &str, value: &dyn ToString| (format!("MLSERVER_{name}"), value.to_string());
        [
            text("HOST", &"127.0.0.1"),
            text("HTTP_PORT", &allocation.http_port),
            text("GRPC_PORT", &allocation.grpc_port),
            text("METRICS_PORT", &allocation.metrics_port),
            text("MODEL_REPOSITORY_ROOT", &allocation.models_dir.display()),
            // The agent loads models.
            text("LOAD_MODELS_AT_STARTUP", &"false"),
        ]
        .into()
    }
}

struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    invalid: Vec<Invalid>,
}

impl Reader<'_> {
    fn take<T>(&mut self, name: &str, default: T, read: impl FnOnce(&str) -> Result<T, String>) -> T {
        let Some(text) = self.annotations.get(name) else { return default };
        match read(text) {
            Ok(value) => value,
            Err(message) => {
                self.invalid.push((format!("metadata.annotations.{name}"), message));
                default
            }
        }
    }
}

fn command(text: &str) -> Result<Vec<String>, String> {
    let words = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|e| format!("is not a JSON list of strings: {e}"))?
    } else {
        shlex::split(text).ok_or("has an unclosed quote or ends with a backslash")?
    };
    if words.first().is_none_or(String::is_empty) {
        return Err("is empty: set the command to run, such as mlserver start {models_dir}".into());
    }
    if let Some(word) = words.iter().find(|w| w.contains('\0')) {
        return Err(format!("has an argument with a NUL byte: {}", word.escape_debug()));
    }
    Ok(words)
}

fn env(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut env = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        match line.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() && !value.contains('\0') => {
                env.insert(name.trim().to_owned(), value.to_owned());
            }
            _ => return Err(format!("has a line that is not NAME=VALUE: {}", line.escape_debug())),
        }
    }
    Ok(env)
}

const KINDS: [&str; 4] = ["mlserver", "triton", "builtin", "oip"];

fn kind(text: &str) -> Result<String, String> {
    let text = text.trim();
    if KINDS.contains(&text) {
        return Ok(text.to_owned());
    }
    let meant = gantry_api::nearest(text, KINDS).map(|k| format!(". Did you mean {k}?")).unwrap_or_default();
    Err(format!("\"{}\" is not a server type: use {}{meant}", text.escape_debug(), KINDS.join(", ")))
}

/// A server config named after a server type is of that type; any other is an OIP server.
fn default_kind(config: &str) -> String {
    if KINDS.contains(&config) { config.to_owned() } else { "oip".to_owned() }
}

fn capabilities(server: &Server) -> Vec<String> {
    let spec = &server.spec;
    spec.capabilities.iter().chain(&spec.extra_capabilities).map(|c| c.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(annotations: &[(&str, &str)]) -> Server {
        let mut server = Server::named("ml", 2);
        server.spec.server_config = "mlserver".into();
        server.metadata.annotations =
            annotations.iter().map(|(n, v)| (format!("gantry.dev/{n}"), (*v).to_owned())).collect();
        server
    }

    #[test]
    fn manifest_becomes_launch_spec() {
        let annotations = [
            ("command", "mlserver start {models_dir} --port {http_port}"),
            ("env", "A=1\n# comment\nB={grpc_port}=x"),
            ("directory", "venv"),
            ("memory", "2Gi"),
            ("overcommit", "10"),
        ];
        let mut manifest = server(&annotations);
        manifest.spec.max_replicas = Some(4);
        let spec = LaunchSpec::read(&manifest, Path::new("/m")).unwrap().unwrap();
        assert_eq!((spec.kind.as_str(), spec.memory, spec.over_commit), ("mlserver", 2 << 30, 10));
        assert_eq!((spec.replicas, spec.bounds), (2, (0, 4)));
        assert_eq!(spec.directory, Path::new("/m/venv"));
        let allocation =
            Allocation { http_port: 1, grpc_port: 2, metrics_port: 3, models_dir: "/models".into() };
        let (command, env) = spec.render("ml", 1, &allocation);
        assert_eq!(command, ["mlserver", "start", "/models", "--port", "1"]);
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("1", "2=x"));
        assert_eq!(env["MLSERVER_HTTP_PORT"], "1");
        assert!(!spec.is_single_port());
        let plain = server(&[("command", "serve {http_port}"), ("server-type", "oip")]);
        assert!(LaunchSpec::read(&plain, Path::new("/")).unwrap().unwrap().is_single_port());
        assert_eq!(LaunchSpec::read(&Server::named("plain", 1), Path::new("/")).unwrap(), None);
    }

    #[test]
    fn command_is_split_in_shell_syntax_without_expansion() {
        for (text, expected) in [
            ("mlserver start {models_dir}", &["mlserver", "start", "{models_dir}"][..]),
            ("  a\n  b ", &["a", "b"]),
            (r#"sh -c "echo 'hi there' $HOME""#, &["sh", "-c", "echo 'hi there' $HOME"]),
            (r"a\ b '' c\\d --x='1 2'", &["a b", "", r"c\d", "--x=1 2"]),
            (r#"["a", "b c"]"#, &["a", "b c"]),
        ] {
            assert_eq!(command(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn replica_count_does_not_change_the_fingerprint() {
        let read = |server: &Server| LaunchSpec::read(server, Path::new("/m")).unwrap().unwrap();
        let mut manifest = server(&[("command", "a b")]);
        let before = read(&manifest);
        manifest.spec.replicas = Some(5);
        assert_eq!(before.fingerprint(), read(&manifest).fingerprint());
        assert_ne!(before.fingerprint(), read(&server(&[("command", "a c")])).fingerprint());
        assert_ne!(before.fingerprint(), read(&server(&[("command", "a b"), ("env", "A=1")])).fingerprint());
    }

    #[test]
    fn invalid_annotations_are_rejected_with_a_reason() {
        for (annotations, expected) in [
            (
                &[("comand", "x")][..],
                "gantry.dev/comand is not an annotation of Server. Did you mean gantry.dev/command?",
            ),
            (&[("command", " ")], "is empty"),
            (&[("command", "a 'b")], "unclosed quote"),
            (&[("command", "[1]")], "is not a JSON list of strings"),
            (&[("command", "a"), ("env", "nonsense")], "not NAME=VALUE: nonsense"),
            (&[("command", "a"), ("server-type", "mlsever")], "Did you mean mlserver?"),
            (&[("command", "a"), ("memory", "lots")], "gantry.dev/memory"),
            (&[("command", "a"), ("overcommit", "-1")], "integer percentage"),
            (&[("env", "A=1")], "has no effect without gantry.dev/command"),
        ] {
            let invalid = LaunchSpec::read(&server(annotations), Path::new("/m")).unwrap_err();
            let messages: Vec<String> =
                invalid.iter().map(|(path, message)| format!("{path} {message}")).collect();
            assert!(messages.iter().any(|m| m.contains(expected)), "{annotations:?}: {messages:?}");
        }
        let mut many = server(&[("command", "a")]);
        many.spec.replicas = Some(1000);
        assert!(LaunchSpec::read(&many, Path::new("/")).unwrap_err()[0].1.contains("more than 64"));
    }
}
