//! Encoded definitions of models, pipelines and experiments by content digest. Core carries only the digests.

use gantry_core::scheduling::{Command, Definition, Digest, Kind, State};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    sync::Arc,
};

/// A definition with its encoded message.
#[derive(Clone, Debug)]
pub(crate) struct Encoded<D> {
    pub(crate) definition: D,
    pub(crate) bytes: Arc<[u8]>,
}

pub(crate) type EncodedDefinition = Encoded<Definition>;

/// Not cryptographic: digests are compared within one process and never stored.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        hasher.write(bytes);
        u128::from(hasher.finish())
    };
    Digest(half(0) << 64 | half(1))
}

type ByDigest = Vec<(Digest, Arc<[u8]>)>;

type ByName = BTreeMap<Arc<str>, ByDigest>;

/// The encoded definitions of all versions, by name.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    models: ByName,
    pipelines: ByName,
    experiments: ByName,
}

/// Identifies a definition.
pub(crate) type Key = (Kind, Arc<str>, Digest);

/// The definition that a command carries.
pub(crate) fn key(command: &Command) -> Option<Key> {
    match command {
        Command::LoadModel { definition: d, .. } => Some((Kind::Model, d.name.clone(), d.content)),
        Command::LoadPipeline { definition: d, .. } => Some((Kind::Pipeline, d.name.clone(), d.content)),
        Command::StartExperiment { definition: d, .. } => Some((Kind::Experiment, d.name.clone(), d.content)),
        _ => None,
    }
}

/// Whether a version has this definition.
fn is_used(state: &State, kind: Kind, name: &str, content: Digest) -> bool {
    match kind {
        Kind::Model => state
            .models()
            .get(name)
            .is_some_and(|m| m.versions.iter().any(|v| v.definition.content == content)),
        Kind::Pipeline => state
            .pipelines()
            .get(name)
            .is_some_and(|p| p.versions.iter().any(|v| v.definition.content == content)),
        Kind::Experiment => state.experiments().get(name).is_some_and(|e| e.definition.content == content),
        Kind::Server | Kind::Service => false,
    }
}

impl Definitions {
    /// `None` for servers and services, which core keeps completely.
    const fn of(&mut self, kind: Kind) -> Option<&mut ByName> {
        match kind {
            Kind::Model => Some(&mut self.models),
            Kind::Pipeline => Some(&mut self.pipelines),
            Kind::Experiment => Some(&mut self.experiments),
            Kind::Server | Kind::Service => None,
        }
    }

    pub(crate) fn insert(&mut self, (kind, name, content): Key, bytes: Arc<[u8]>) {
        let Some(of_name) = self.of(kind).map(|by_name| by_name.entry(name).or_default()) else { return };
        if of_name.iter().all(|(known, _)| *known != content) {
            of_name.push((content, bytes));
        }
    }

    /// Keeps a definition that the state uses; a repeated command may have changed nothing.
    pub(crate) fn insert_used(&mut self, key: Key, bytes: Arc<[u8]>, state: &State) {
        if is_used(state, key.0, &key.1, key.2) {
            self.insert(key, bytes);
        }
    }

    pub(crate) fn model(&self, definition: &Definition) -> Option<&Arc<[u8]>> {
        find(&self.models, &definition.name, definition.content)
    }

    pub(crate) fn pipeline(&self, name: &str, content: Digest) -> Option<&Arc<[u8]>> {
        find(&self.pipelines, name, content)
    }

    pub(crate) fn experiment(&self, name: &str, content: Digest) -> Option<&Arc<[u8]>> {
        find(&self.experiments, name, content)
    }

    /// Drops the definitions of an object that no version uses.
    pub(crate) fn prune(&mut self, kind: Kind, name: &Arc<str>, state: &State) {
        let Some(by_name) = self.of(kind) else { return };
        let Some(of_name) = by_name.get_mut(name) else { return };
        of_name.retain(|(content, _)| is_used(state, kind, name, *content));
        if of_name.is_empty() {
            by_name.remove(name);
        }
    }
}

fn find<'a>(by_name: &'a ByName, name: &str, content: Digest) -> Option<&'a Arc<[u8]>> {
    by_name.get(name)?.iter().find(|(known, _)| *known == content).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert;
    use gantry_core::scheduling::{Command, Owner, Policy};
    use gantry_proto::scheduler as pb;

    fn encoded(uri: &str) -> EncodedDefinition {
        let meta = pb::MetaData { name: "iris".into(), ..Default::default() };
        let spec = pb::ModelSpec { uri: uri.into(), ..Default::default() };
        let model = pb::Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
        convert::definition(model).unwrap()
    }

    #[test]
    fn prune_keeps_definitions_of_existing_versions() {
        let (a, b) = (encoded("/a"), encoded("/b"));
        assert_ne!(a.definition.content, b.definition.content);
        let mut definitions = Definitions::default();
        for Encoded { definition, bytes } in [&a, &b] {
            let key = (Kind::Model, definition.name.clone(), definition.content);
            definitions.insert(key, bytes.clone());
        }
        let mut state = State::new(Policy::default());
        let load = Command::LoadModel { definition: Box::new(b.definition.clone()), by: Owner::Cli };
        state.apply(load, 1).unwrap();
        definitions.prune(Kind::Model, &b.definition.name, &state);
        assert_eq!(definitions.model(&a.definition), None);
        assert_eq!(definitions.model(&b.definition), Some(&b.bytes));
        definitions.prune(Kind::Model, &b.definition.name, &State::new(Policy::default()));
        assert!(definitions.models.is_empty());
    }
}
