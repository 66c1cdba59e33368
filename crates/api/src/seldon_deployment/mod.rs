//! Conversion of the kind `SeldonDeployment` (`machinelearning.seldon.io/v1`) into Models, Servers, Pipelines and
//! Experiments.
//!
//! ```text
//! predictor ─▶ graph (units in an arena) ─▶ models (one per unit, a Server where pods are customised)
//!                                        └▶ pipeline (units in the order of the old orchestrator)
//! predictors with traffic ─▶ experiment
//! ```
//!
//! Everything that has no counterpart is listed with its path, so that nothing is lost unnoticed.

mod graph;
mod models;
mod predictors;
mod source;

#[cfg(test)]
mod tests;

use crate::{
    Diagnostic, Metadata, Object,
    name::suggest_name,
    yaml::{self, Node},
};
use source::SeldonDeployment;

/// The kind that is converted.
const SELDON_DEPLOYMENT: &str = "SeldonDeployment";
const API_GROUP: &str = "machinelearning.seldon.io";

/// Whether an object of another API group can be converted.
pub fn is_convertible(kind: &str, api_version: &str) -> bool {
    kind == SELDON_DEPLOYMENT && api_version.split('/').next() == Some(API_GROUP)
}

/// The objects that replace one `SeldonDeployment`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    pub name: String,
    /// In the order of application.
    pub objects: Vec<Object>,
    /// What was not carried over, or needs attention.
    pub notes: Vec<Diagnostic>,
}

/// Converts every `SeldonDeployment` of a manifest; other objects are ignored.
pub fn convert_seldon_deployments(file: &str, text: &str) -> Result<Vec<Conversion>, Vec<Diagnostic>> {
    let in_file = |diagnostic| Diagnostic { file: file.to_owned(), ..diagnostic };
    let documents = yaml::parse(text).map_err(|error| vec![in_file(error)])?;
    let (mut conversions, mut errors) = (Vec::new(), Vec::new());
    for node in documents.iter().flat_map(crate::parse::items).filter(|node| is_deployment(node)) {
        match convert(node) {
            Ok(mut conversion) => {
                conversion.notes = conversion.notes.into_iter().map(in_file).collect();
                conversions.push(conversion);
            }
            Err(error) => errors.push(in_file(error)),
        }
    }
    if errors.is_empty() { Ok(conversions) } else { Err(errors) }
}

fn is_deployment(node: &Node) -> bool {
    let text = |field| node.get(field).and_then(Node::text).unwrap_or_default();
    is_convertible(text("kind"), text("apiVersion"))
}

fn convert(node: &Node) -> Result<Conversion, Diagnostic> {
    let deployment: SeldonDeployment = serde_json::from_value(node.to_json())
        .map_err(|e| Diagnostic::new(node.line, "", format!("is not a valid {SELDON_DEPLOYMENT}: {e}")))?;
    let error = |path: &str, message: &str| Err(Diagnostic::new(node.line_of(path), path, message));
    let Some(name) = suggest_name(&deployment.metadata.name) else {
        return error(
            "metadata.name",
            "is empty or too long: give the object a name of at most 64 characters",
        );
    };
    if deployment.spec.predictors.is_empty() {
        return error("spec.predictors", "is empty: there is nothing to convert");
    }
    let mut output = Output::new(node, &deployment.metadata);
    predictors::convert(&name, &deployment.spec, &mut output)?;
    let mut names = std::collections::BTreeSet::new();
    if let Some(twice) = output.objects.iter().find(|o| !names.insert((o.kind(), o.name()))) {
        let message = format!("{} {} would exist twice: rename a unit", twice.kind().name(), twice.name());
        return error("spec.predictors", &message);
    }
    output.objects.sort_by_key(Object::kind);
    output.notes.sort_by_key(|note| note.line);
    Ok(Conversion { name, objects: output.objects, notes: output.notes })
}

/// Objects and notes found so far.
struct Output<'a> {
    node: &'a Node,
    /// Namespace and labels of every object.
    metadata: Metadata,
    objects: Vec<Object>,
    notes: Vec<Diagnostic>,
}

impl<'a> Output<'a> {
    fn new(node: &'a Node, source: &Metadata) -> Self {
        let metadata = Metadata {
            namespace: source.namespace.clone(),
            labels: source.labels.clone(),
            ..Metadata::default()
        };
        Self { node, metadata, objects: Vec::new(), notes: Vec::new() }
    }

    fn add(&mut self, mut object: Object) {
        let metadata = match &mut object {
            Object::Model(model) => &mut model.metadata,
            Object::Server(server) => &mut server.metadata,
            Object::Pipeline(pipeline) => &mut pipeline.metadata,
            Object::Experiment(experiment) => &mut experiment.metadata,
            Object::RolloutPolicy(policy) => &mut policy.metadata,
        };
        metadata.namespace.clone_from(&self.metadata.namespace);
        metadata.labels.clone_from(&self.metadata.labels);
        self.objects.push(object);
    }

    fn note(&mut self, path: &str, message: impl Into<String>) {
        self.notes.push(Diagnostic::new(self.node.line_of(path), path, message));
    }

    fn error(&self, path: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(self.node.line_of(path), path, message)
    }

    /// Lists fields that have no counterpart.
    fn not_carried_over(&mut self, path: &str, fields: &serde_json::Map<String, serde_json::Value>) {
        for (field, value) in fields {
            if value.is_null() {
                continue;
            }
            let reason = source::reason(field).map(|reason| format!(": {reason}")).unwrap_or_default();
            self.note(&format!("{path}.{field}"), format!("is not carried over{reason}"));
        }
    }

    /// A valid name, with a note if the given one is not.
    fn name(&mut self, path: &str, name: &str) -> Result<String, Diagnostic> {
        let Some(valid) = suggest_name(name) else {
            return Err(self.error(path, "is empty or too long: use at most 64 characters"));
        };
        if valid != name {
            self.note(
                path,
                format!("\"{}\" becomes {valid}: names have a-z, 0-9 and -", name.escape_debug()),
            );
        }
        Ok(valid)
    }
}
