//! Encoded model definitions by content digest. Core carries only the digests.

use gantry_core::scheduling::{Definition, Digest, State};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    sync::Arc,
};

/// A definition with its encoded message.
#[derive(Clone, Debug)]
pub(crate) struct EncodedDefinition {
    pub(crate) definition: Definition,
    pub(crate) bytes: Arc<[u8]>,
}

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

/// The encoded definitions of all versions, by model.
#[derive(Debug, Default)]
pub(crate) struct Definitions(BTreeMap<Arc<str>, ByDigest>);

impl Definitions {
    pub(crate) fn insert(&mut self, model: &Arc<str>, content: Digest, bytes: Arc<[u8]>) {
        let of_model = self.0.entry(model.clone()).or_default();
        if of_model.iter().all(|(known, _)| *known != content) {
            of_model.push((content, bytes));
        }
    }

    pub(crate) fn get(&self, definition: &Definition) -> Option<&Arc<[u8]>> {
        let of_model = self.0.get(&definition.name)?;
        of_model.iter().find(|(content, _)| *content == definition.content).map(|(_, bytes)| bytes)
    }

    /// Drops the definitions of a model that no version uses.
    pub(crate) fn prune(&mut self, model: &Arc<str>, state: &State) {
        let Some(of_model) = self.0.get_mut(model) else { return };
        let versions = state.models().get(model).map(|m| m.versions.as_slice()).unwrap_or_default();
        of_model.retain(|(content, _)| versions.iter().any(|v| v.definition.content == *content));
        if of_model.is_empty() {
            self.0.remove(model);
        }
    }
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
        for EncodedDefinition { definition, bytes } in [&a, &b] {
            definitions.insert(&definition.name, definition.content, bytes.clone());
        }
        let mut state = State::new(Policy::default());
        let load = Command::LoadModel { definition: Box::new(b.definition.clone()), by: Owner::Cli };
        state.apply(load, 1).unwrap();
        definitions.prune(&b.definition.name, &state);
        assert_eq!(definitions.get(&a.definition), None);
        assert_eq!(definitions.get(&b.definition), Some(&b.bytes));
        definitions.prune(&b.definition.name, &State::new(Policy::default()));
        assert!(definitions.0.is_empty());
    }
}
