//! InferenceGraphs of the manifests. The gateway executes them; the scheduler has only the services that they call.

use gantry_api::{
    ClusterObject, DEFAULT_NAMESPACE, Diagnostic, INFERENCE_SERVICE, Kind, Object, kserve::InferenceGraphSpec,
};
use gantry_proto::gantry::ServiceRoute;
use std::collections::BTreeMap;

/// By namespace and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Graphs(BTreeMap<(String, String), InferenceGraphSpec>);

impl Graphs {
    /// Each `serviceName` must be an InferenceService of the same namespace in the files.
    pub(crate) fn new(
        found: Vec<ClusterObject>,
        objects: &BTreeMap<(Kind, String), Object>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let is_service = |namespace: &str, name: &str| {
            let object = objects.get(&(Kind::Model, name.to_owned()));
            matches!(object, Some(Object::Model(model)) if model.kind == INFERENCE_SERVICE
                && model.metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace)
        };
        let (mut graphs, mut problems) = (BTreeMap::new(), Vec::new());
        for ClusterObject { name, namespace, file, line, graph, .. } in found {
            let Some(spec) = graph else { continue };
            let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
            let mut problem =
                |path: String, message| problems.push(Diagnostic { file: file.clone(), line, path, message });
            for (node, steps) in spec.nodes.iter().map(|(name, node)| (name, &node.steps)) {
                for (i, step) in steps.iter().enumerate() {
                    let missing = step
                        .service_name
                        .as_deref()
                        .filter(|service| !service.is_empty() && !is_service(&namespace, service));
                    if let Some(service) = missing {
                        problem(
                            format!("spec.nodes.{node}.steps[{i}].serviceName"),
                            format!(
                                "\"{service}\" is no InferenceService of namespace {namespace} in these files: add its manifest"
                            ),
                        );
                    }
                }
            }
            if is_service(&namespace, &name) || graphs.contains_key(&(namespace.clone(), name.clone())) {
                let message =
                    format!("\"{name}\" is another service of namespace {namespace} too: names are unique");
                problem("metadata.name".into(), message);
            }
            graphs.insert((namespace, name), *spec);
        }
        if problems.is_empty() { Ok(Self(graphs)) } else { Err(problems) }
    }

    pub(crate) fn routes(&self) -> Vec<ServiceRoute> {
        let route = |((namespace, name), spec): (&(String, String), &InferenceGraphSpec)| ServiceRoute {
            namespace: namespace.clone(),
            name: name.clone(),
            graph: serde_json::to_vec(spec).unwrap_or_default(),
            ..ServiceRoute::default()
        };
        self.0.iter().map(route).collect()
    }

    /// Namespaces and names.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// What changed, such as `inferencegraph/pets added`.
    pub(crate) fn changes(&self, before: &Self) -> Vec<String> {
        let removed = before.0.keys().filter(|key| !self.0.contains_key(*key)).map(|key| (key, "removed"));
        let changed = self.0.iter().filter_map(|(key, spec)| match before.0.get(key) {
            None => Some((key, "added")),
            Some(old) => (old != spec).then_some((key, "changed")),
        });
        removed.chain(changed).map(|((_, name), verb)| format!("inferencegraph/{name} {verb}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;

    const SERVICE: &str = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris}\n\
                           spec: {predictor: {model: {modelFormat: {name: onnx}, storageUri: iris}}}\n";

    fn graph(name: &str, namespace: &str, service: &str) -> String {
        format!(
            "---\napiVersion: serving.kserve.io/v1alpha1\nkind: InferenceGraph\n\
             metadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{nodes: {{root: {{routerType: Sequence, steps: [{{serviceName: {service}}}]}}}}}}\n"
        )
    }

    /// The graphs of a file, or its problems.
    fn read(text: &str) -> Result<Graphs, Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("all.yaml"), text).unwrap();
        let read = Sources::new(&[dir.path().to_owned()]).unwrap().read();
        read.map(|desired| desired.graphs).map_err(|problems| {
            let folder = dir.path().canonicalize().unwrap().display().to_string();
            problems.lines().map(|line| line.replace(&format!("{folder}/"), "")).collect()
        })
    }

    #[test]
    fn graph_of_services_in_the_files_is_routed() {
        let one = read(&format!("{SERVICE}{}", graph("pets", "default", "iris"))).unwrap();
        let routes = one.routes();
        assert_eq!((routes[0].namespace.as_str(), routes[0].name.as_str()), ("default", "pets"));
        let spec = String::from_utf8(routes[0].graph.clone()).unwrap();
        assert_eq!(spec, r#"{"nodes":{"root":{"routerType":"Sequence","steps":[{"serviceName":"iris"}]}}}"#);
        assert_eq!(one.changes(&Graphs::default()), ["inferencegraph/pets added"]);
        assert_eq!(Graphs::default().changes(&one), ["inferencegraph/pets removed"]);
        assert_eq!(one.changes(&one), Vec::<String>::new());
    }

    #[test]
    fn graph_with_unknown_services_or_a_used_name_is_a_problem() {
        let missing = "\"wine\" is no InferenceService of namespace default in these files: add its manifest";
        let other = missing.replace("wine", "iris").replace("default", "shop");
        let step = "all.yaml:6: spec.nodes.root.steps[0].serviceName";
        let used = "\"iris\" is another service of namespace default too: names are unique";
        for (text, expected) in [
            (graph("pets", "default", "wine"), format!("{step} {missing}")),
            (graph("pets", "shop", "iris"), format!("{step} {other}")),
            (graph("iris", "default", "iris"), format!("all.yaml:6: metadata.name {used}")),
        ] {
            assert_eq!(read(&format!("{SERVICE}{text}")).unwrap_err(), [expected]);
        }
    }
}
