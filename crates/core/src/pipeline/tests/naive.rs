//! An interpreter of acyclic pipelines straight from the written references: after each event, it looks at every step again.

use super::*;

/// `x.inputs` or `x.outputs` to its tensors; `None` if they never arrive. In the order of arrival.
type Known = Vec<(String, Option<Vec<Traced>>)>;

#[derive(Default)]
pub(super) struct Naive {
    known: Known,
    pub(super) started: Vec<(String, String)>,
    finished: Vec<String>,
    pub(super) response: Option<Result<String, ()>>,
}

/// The result of a join: its tensors, not yet known, or never.
enum Joined {
    Tensors(Vec<Traced>),
    Unknown,
    Never,
}

impl Naive {
    pub(super) fn start(definition: &Definition, request: Vec<Traced>) -> Self {
        let mut naive = Self::default();
        naive.known.push(("p.outputs".into(), None));
        naive.known.push(("p.inputs".into(), Some(request)));
        naive.advance(definition);
        naive
    }

    pub(super) fn complete(&mut self, definition: &Definition, step: &str, outputs: Vec<Traced>) {
        self.known.push((format!("{step}.outputs"), Some(outputs)));
        self.advance(definition);
    }

    fn advance(&mut self, definition: &Definition) {
        loop {
            let waiting =
                definition.steps.iter().filter(|step| !self.finished.contains(&step.name.to_string()));
            let next = waiting
                .map(|step| (step, self.ready(step)))
                .find(|(_, joined)| !matches!(joined, Joined::Unknown));
            let Some((step, joined)) = next else { break };
            self.finished.push(step.name.to_string());
            if let Joined::Tensors(tensors) = joined {
                self.started.push((step.name.to_string(), shown(&tensors)));
                self.known.push((format!("{}.inputs", step.name), Some(tensors)));
            } else {
                self.known.push((format!("{}.inputs", step.name), None));
                self.known.push((format!("{}.outputs", step.name), None));
            }
        }
        if self.response.is_none() {
            let output = definition.output.as_ref().unwrap();
            self.response = match self.joined(&output.steps, output.join, &output.tensor_map) {
                Joined::Tensors(tensors) => Some(Ok(shown(&tensors))),
                Joined::Unknown => None,
                Joined::Never => Some(Err(())),
            };
        }
    }

    fn ready(&self, step: &Step) -> Joined {
        let inputs = self.joined(&step.inputs, step.inputs_join, &step.tensor_map);
        if step.triggers.is_empty() {
            return inputs;
        }
        match (inputs, self.joined(&step.triggers, step.triggers_join, &BTreeMap::new())) {
            (Joined::Never, _) | (_, Joined::Never) => Joined::Never,
            (Joined::Tensors(tensors), Joined::Tensors(_)) => Joined::Tensors(tensors),
            _ => Joined::Unknown,
        }
    }

    fn joined(&self, written: &[String], join: Join, renames: &BTreeMap<String, String>) -> Joined {
        // Origins in the written order, each with the tensors that are selected from it.
        let mut origins: Vec<(String, Vec<String>)> = Vec::new();
        let written = if written.is_empty() { &["p".to_owned()] } else { written };
        for reference in written {
            let mut parts = reference.split('.');
            let name = parts.next().unwrap();
            let kind = parts.next().unwrap_or(if name == "p" { "inputs" } else { "outputs" });
            let origin = format!("{name}.{kind}");
            let tensor = parts.next().map(ToOwned::to_owned);
            match origins.iter_mut().find(|(known, _)| *known == origin) {
                Some((_, tensors)) => tensors.extend(tensor),
                None => origins.push((origin, tensor.into_iter().collect())),
            }
        }
        let read = |(origin, selected): &(String, Vec<String>)| -> Option<Vec<Traced>> {
            let (_, tensors) = self.known.iter().find(|(known, _)| known == origin)?;
            let all = tensors.clone().unwrap_or_default().into_iter();
            let selects =
                |tensor: &Traced| selected.is_empty() || selected.iter().any(|name| **name == *tensor.name);
            let renamed = |tensor: Traced| match renames.get(&format!("{origin}.{}", tensor.name)) {
                Some(name) => tensor.renamed(&name.as_str().into()),
                None => tensor,
            };
            Some(all.filter(selects).map(renamed).collect())
        };
        let sources: Vec<_> = origins.iter().map(|origin| (&origin.0, read(origin))).collect();
        let is_arrived =
            |source: &Option<Vec<Traced>>| source.as_ref().is_some_and(|tensors| !tensors.is_empty());
        let arrived = sources.iter().filter(|(_, source)| is_arrived(source)).count();
        let unknown = sources.iter().filter(|(_, source)| source.is_none()).count();
        let first = || {
            let arrived = |origin: &String| {
                sources
                    .iter()
                    .find(|(known, source)| *known == origin && is_arrived(source))
                    .map(|(_, s)| s.clone())
            };
            self.known.iter().find_map(|(origin, _)| arrived(origin)).flatten().unwrap_or_default()
        };
        let all = || sources.iter().flat_map(|(_, source)| source.clone().unwrap_or_default()).collect();
        match join {
            Join::Inner if arrived + unknown < sources.len() => Joined::Never,
            Join::Inner | Join::Outer if unknown > 0 => Joined::Unknown,
            Join::Outer | Join::Any if arrived + unknown == 0 => Joined::Never,
            Join::Inner | Join::Outer => Joined::Tensors(all()),
            Join::Any if arrived > 0 => Joined::Tensors(first()),
            Join::Any => Joined::Unknown,
        }
    }
}
