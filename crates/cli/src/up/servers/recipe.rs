//! What a Server manifest says about running it: annotations, so that the manifest stays one that others read too.

use super::words;
use gantry_api::{Quantity, Server};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// The command to run, as words or as a JSON list.
const COMMAND: &str = "gantry.dev/command";
/// Variables for it, `NAME=VALUE` a line.
const ENV: &str = "gantry.dev/env";
/// Where it is run; relative to the manifest.
const DIRECTORY: &str = "gantry.dev/directory";
/// Which kind of inference server it is.
const TYPE: &str = "gantry.dev/server-type";
/// Memory for models, of each replica.
const MEMORY: &str = "gantry.dev/memory";
/// How much more memory may be promised, in percent.
const OVERCOMMIT: &str = "gantry.dev/overcommit";

/// Every annotation that begins like ours must be one of ours: a mistake in it would be passed over otherwise.
const KNOWN: [&str; 6] = [COMMAND, ENV, DIRECTORY, TYPE, MEMORY, OVERCOMMIT];

/// Memory of a replica when nobody says how much.
const DEFAULT_MEMORY: u64 = 1 << 30;
/// Most replicas on one machine.
const MOST: u32 = 64;

/// How a server's replicas are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    pub(crate) kind: String,
    pub(crate) capabilities: Vec<String>,
    pub(crate) memory: u64,
    pub(crate) over_commit: u32,
    pub(crate) replicas: u32,
    /// Fewest and most replicas that scaling may ask for.
    pub(crate) bounds: (u32, u32),
}

/// Where one replica listens and keeps its models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) http_port: u16,
    pub(crate) grpc_port: u16,
    pub(crate) metrics_port: u16,
    pub(crate) models_dir: PathBuf,
}

/// What is wrong: the field, and the words.
pub(crate) type Refusal = (String, String);

impl Recipe {
    /// The recipe of a manifest; `None` when it names no command.
    pub(crate) fn read(server: &Server, folder: &Path) -> Result<Option<Self>, Vec<Refusal>> {
        let notes = &server.metadata.annotations;
        let at = |name: &str| format!("metadata.annotations.{name}");
        let mut refused = Vec::new();
        for name in notes.keys().filter(|n| n.starts_with("gantry.dev/") && !KNOWN.contains(&n.as_str())) {
            let meant =
                gantry_api::nearest(name, KNOWN).map(|n| format!(". Did you mean {n}?")).unwrap_or_default();
            refused.push((at(name), format!("is not an annotation of Server{meant}")));
        }
        let mut read = Reader { notes, refused };
        let command = read.take(COMMAND, Vec::new(), command);
        let recipe = Self {
            env: read.take(ENV, BTreeMap::new(), env),
            directory: folder.join(notes.get(DIRECTORY).map_or("", String::as_str)),
            kind: read.take(TYPE, default_kind(&server.spec.server_config), kind),
            memory: read.take(MEMORY, DEFAULT_MEMORY, |t| Quantity::parse(t).map(|q| q.bytes())),
            over_commit: read.take(OVERCOMMIT, 0, |t| {
                t.trim().parse().map_err(|_| "must be a whole number of percent, such as 10".to_owned())
            }),
            capabilities: capabilities(server),
            replicas: 0,
            bounds: (0, 0),
            command,
        };
        let mut refused = read.refused;
        let asked = server.to_proto();
        if asked.expected_replicas > MOST {
            let words = format!("is {}, more than {MOST} on one machine", asked.expected_replicas);
            refused.push(("spec.replicas".into(), words));
        }
        if !notes.contains_key(COMMAND) {
            let lonely = notes.keys().find(|n| KNOWN.contains(&n.as_str()));
            if let Some(lonely) = lonely {
                refused.push((at(lonely), format!("stands without {COMMAND}: name the command to run")));
            }
            return if refused.is_empty() { Ok(None) } else { Err(refused) };
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        let most =
            if asked.max_replicas == 0 { asked.expected_replicas } else { asked.max_replicas.min(MOST) };
        let bounds = (asked.min_replicas.min(most), most);
        Ok(Some(Self { replicas: asked.expected_replicas, bounds, ..recipe }))
    }

    /// Whether the server takes both protocols at its one port: nobody tells it a second one.
    pub(crate) fn one_port(&self) -> bool {
        let mentions = |text: &String| text.contains("{grpc_port}");
        self.kind != "mlserver" && !self.command.iter().any(mentions) && !self.env.values().any(mentions)
    }

    /// A number that changes when a replica would have to be started anew.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.command, &self.env, &self.directory, &self.kind).hash(&mut hasher);
        (&self.capabilities, self.memory, self.over_commit).hash(&mut hasher);
        hasher.finish()
    }

    /// The command and the variables of one replica.
    pub(crate) fn fill(
        &self,
        server: &str,
        replica: u32,
        place: &Place,
    ) -> (Vec<String>, BTreeMap<String, String>) {
        let values = [
            ("{http_port}", place.http_port.to_string()),
            ("{grpc_port}", place.grpc_port.to_string()),
            ("{metrics_port}", place.metrics_port.to_string()),
            ("{models_dir}", place.models_dir.display().to_string()),
            ("{server}", server.to_owned()),
            ("{replica}", replica.to_string()),
            ("{gantry}", std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default()),
        ];
        let fill =
            |text: &String| values.iter().fold(text.clone(), |text, (name, value)| text.replace(name, value));
        let mut env = self.usual(place);
        env.extend(self.env.iter().map(|(name, value)| (name.clone(), fill(value))));
        (self.command.iter().map(fill).collect(), env)
    }

    /// Variables by which a known kind of server learns its place, so that nobody has to write them.
    fn usual(&self, place: &Place) -> BTreeMap<String, String> {
        if self.kind != "mlserver" {
            return BTreeMap::new();
        }
        let text = |name: &str, value: &dyn ToString| (format!("MLSERVER_{name}"), value.to_string());
        [
            text("HOST", &"127.0.0.1"),
            text("HTTP_PORT", &place.http_port),
            text("GRPC_PORT", &place.grpc_port),
            text("METRICS_PORT", &place.metrics_port),
            text("MODEL_REPOSITORY_ROOT", &place.models_dir.display()),
            // What is loaded is the agent's decision.
            text("LOAD_MODELS_AT_STARTUP", &"false"),
        ]
        .into()
    }
}

struct Reader<'a> {
    notes: &'a BTreeMap<String, String>,
    refused: Vec<Refusal>,
}

impl Reader<'_> {
    fn take<T>(&mut self, name: &str, default: T, read: impl FnOnce(&str) -> Result<T, String>) -> T {
        let Some(text) = self.notes.get(name) else { return default };
        match read(text) {
            Ok(value) => value,
            Err(words) => {
                self.refused.push((format!("metadata.annotations.{name}"), words));
                default
            }
        }
    }
}

fn command(text: &str) -> Result<Vec<String>, String> {
    let words = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|e| format!("is not a JSON list of texts: {e}"))?
    } else {
        words::split(text)?
    };
    if words.first().is_none_or(String::is_empty) {
        return Err("is empty: write the command to run, such as mlserver start {models_dir}".into());
    }
    if let Some(word) = words.iter().find(|w| w.contains('\0')) {
        return Err(format!("has a word with a zero byte: {}", word.escape_debug()));
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
    Err(format!("\"{}\" is not known: write {}{meant}", text.escape_debug(), KINDS.join(", ")))
}

/// A configuration that is named after a kind of server is of that kind; any other speaks the protocol.
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

    fn server(notes: &[(&str, &str)]) -> Server {
        let mut server = Server::named("ml", 2);
        server.spec.server_config = "mlserver".into();
        server.metadata.annotations =
            notes.iter().map(|(n, v)| (format!("gantry.dev/{n}"), (*v).to_owned())).collect();
        server
    }

    #[test]
    fn a_manifest_becomes_a_recipe() {
        let notes = [
            ("command", "mlserver start {models_dir} --port {http_port}"),
            ("env", "A=1\n# words\nB={grpc_port}=x"),
            ("directory", "venv"),
            ("memory", "2Gi"),
            ("overcommit", "10"),
        ];
        let mut asked = server(&notes);
        asked.spec.max_replicas = Some(4);
        let recipe = Recipe::read(&asked, Path::new("/m")).unwrap().unwrap();
        assert_eq!((recipe.kind.as_str(), recipe.memory, recipe.over_commit), ("mlserver", 2 << 30, 10));
        assert_eq!((recipe.replicas, recipe.bounds), (2, (0, 4)));
        assert_eq!(recipe.directory, Path::new("/m/venv"));
        let place = Place { http_port: 1, grpc_port: 2, metrics_port: 3, models_dir: "/models".into() };
        let (command, env) = recipe.fill("ml", 1, &place);
        assert_eq!(command, ["mlserver", "start", "/models", "--port", "1"]);
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("1", "2=x"));
        assert_eq!(env["MLSERVER_HTTP_PORT"], "1");
        assert!(!recipe.one_port());
        let plain = server(&[("command", "serve {http_port}"), ("server-type", "oip")]);
        assert!(Recipe::read(&plain, Path::new("/")).unwrap().unwrap().one_port());
        assert_eq!(Recipe::read(&Server::named("plain", 1), Path::new("/")).unwrap(), None);
    }

    #[test]
    fn only_what_needs_a_new_start_changes_the_fingerprint() {
        let read = |server: &Server| Recipe::read(server, Path::new("/m")).unwrap().unwrap();
        let mut asked = server(&[("command", "a b")]);
        let before = read(&asked);
        asked.spec.replicas = Some(5);
        assert_eq!(before.fingerprint(), read(&asked).fingerprint());
        assert_ne!(before.fingerprint(), read(&server(&[("command", "a c")])).fingerprint());
        assert_ne!(before.fingerprint(), read(&server(&[("command", "a b"), ("env", "A=1")])).fingerprint());
    }

    #[test]
    fn mistakes_are_named() {
        for (notes, says) in [
            (
                &[("comand", "x")][..],
                "gantry.dev/comand is not an annotation of Server. Did you mean gantry.dev/command?",
            ),
            (&[("command", " ")], "is empty"),
            (&[("command", "a 'b")], "has a ' that is not closed"),
            (&[("command", "[1]")], "is not a JSON list of texts"),
            (&[("command", "a"), ("env", "nonsense")], "not NAME=VALUE: nonsense"),
            (&[("command", "a"), ("server-type", "mlsever")], "Did you mean mlserver?"),
            (&[("command", "a"), ("memory", "lots")], "gantry.dev/memory"),
            (&[("command", "a"), ("overcommit", "-1")], "whole number of percent"),
            (&[("env", "A=1")], "stands without gantry.dev/command"),
        ] {
            let refused = Recipe::read(&server(notes), Path::new("/m")).unwrap_err();
            let said: Vec<String> = refused.iter().map(|(path, words)| format!("{path} {words}")).collect();
            assert!(said.iter().any(|s| s.contains(says)), "{notes:?}: {said:?}");
        }
        let mut many = server(&[("command", "a")]);
        many.spec.replicas = Some(1000);
        assert!(Recipe::read(&many, Path::new("/")).unwrap_err()[0].1.contains("more than 64"));
    }
}
