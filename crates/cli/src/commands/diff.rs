//! `gantry diff`: the changes that applying manifests would cause.

use crate::{
    args::Global,
    client::{Scheduler, block_on},
    error::{CommandError, Exit},
    manifests::Manifests,
    object_ref::{ObjectRef, kind_name},
    output::{PLACEHOLDER, Style, Table, Tone, emit, print_stderr},
    view::{Resource, targets},
};
use clap::ValueEnum;
use gantry_api::{Experiment, Kind, Model, Object, Parsed, Pipeline, RolloutPolicy};
use gantry_proto::gantry::{PlanRequest, PlannedChange, planned_change::Action};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show the changes that applying manifests would cause, without applying them.
///
/// Exits with 0 if nothing would change, 1 if something would change, 6 if a change would be refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry diff -f iris.yaml\n  gantry diff -f models/ -R -o json")]
pub(crate) struct Args {
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Include subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Table, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One line per changed object
    Table,
    /// A JSON list of all objects, including unchanged ones
    Json,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let manifests = Manifests::read(&args.files, args.recursive)?.with_resolved_policies();
    let objects = manifests.checked("Nothing was compared.")?;
    if objects.is_empty() {
        return Err(CommandError::usage("the manifests contain no objects: nothing was compared"));
    }
    block_on(async {
        let scheduler = Scheduler::connect(global).await?;
        let Some(plan) = Plan::fetch(&scheduler, &objects).await? else {
            let message = "the scheduler does not support diff: it is not a Gantry scheduler, or an older version; \
                           gantry apply --dry-run shows changes without scheduling decisions";
            return Err(CommandError::new(Exit::Refused, message));
        };
        match args.output {
            Form::Table if !plan.has_changes() => print_stderr("Nothing would change."),
            Form::Table => emit(plan.table(false).render(Style::stdout()))?,
            Form::Json => emit(format!("{:#}\n", plan.document()))?,
        }
        match plan.refused() {
            true => Err(CommandError::silent(Exit::Refused)),
            // Exit code 1 for differences, as diff(1).
            false if plan.has_changes() => Err(CommandError::silent(Exit::Failed)),
            false => Ok(()),
        }
    })
}

/// The planned change of each object.
pub(crate) struct Plan(Vec<PlannedChange>);

impl Plan {
    /// `None` if the scheduler has no plan service.
    pub(crate) async fn fetch(
        scheduler: &Scheduler,
        objects: &[Parsed],
    ) -> Result<Option<Self>, CommandError> {
        let mut request = PlanRequest::default();
        let mut policies = Vec::new();
        for parsed in objects {
            match &parsed.object {
                Object::Model(model) => request.models.push(model.to_proto()),
                Object::Server(server) => request.servers.push(server.to_proto()),
                Object::Pipeline(pipeline) => request.pipelines.push(pipeline.to_proto()),
                Object::Experiment(experiment) => request.experiments.push(experiment.to_proto()),
                Object::RolloutPolicy(policy) => policies.push(policy.as_ref()),
            }
        }
        let Some(mut changes) = scheduler.plan(request).await? else { return Ok(None) };
        for change in &mut changes {
            let differs = matches!(change.action(), Action::Update | Action::Adjust);
            if !differs || change.effects.iter().any(|e| e.contains("changed")) {
                continue;
            }
            let Some(desired) = objects.iter().map(|p| &p.object).find(|o| is_object_of(change, o)) else {
                continue;
            };
            let object = ObjectRef { kind: desired.kind(), name: change.name.clone() };
            let now = scheduler.resource(&object, false).await?;
            change
                .effects
                .splice(0..0, now.map(|now| resource_differences(&now, desired)).unwrap_or_default());
        }
        for policy in policies {
            let object = ObjectRef { kind: Kind::RolloutPolicy, name: policy.metadata.name.clone() };
            let now = scheduler.resource(&object, false).await?;
            changes.push(policy_change(now.as_ref(), policy));
        }
        Ok(Some(Self(changes)))
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.0.iter().any(|c| c.action() != Action::Unchanged)
    }

    pub(crate) fn refused(&self) -> bool {
        self.0.iter().any(|c| c.action() == Action::Refuse)
    }

    /// One row per object: reference, version change, effects.
    pub(crate) fn table(&self, include_unchanged: bool) -> Table {
        let mut table = Table::without_headings();
        for change in &self.0 {
            if change.action() == Action::Unchanged && !include_unchanged {
                continue;
            }
            let tone = match change.action() {
                Action::Unchanged => Tone::Faint,
                Action::Refuse => Tone::Bad,
                Action::Delete => Tone::Plain,
                _ if change.placed || change.kind == "server" => Tone::Good,
                _ => Tone::Bad,
            };
            table.row(vec![
                (format!("  {}/{}", change.kind, change.name), Tone::Plain),
                (versions(change), tone),
                (change.effects.join("; "), Tone::Plain),
            ]);
        }
        table
    }

    pub(crate) fn document(&self) -> Value {
        let entry = |change: &PlannedChange| {
            let version = |number: u32| if number == 0 { Value::Null } else { number.into() };
            json!({
                "kind": change.kind,
                "name": change.name,
                "action": change.action().as_str_name().to_lowercase(),
                "fromVersion": version(change.from_version),
                "toVersion": version(change.to_version),
                "effects": change.effects,
                "placed": change.placed,
            })
        };
        self.0.iter().map(entry).collect()
    }
}

/// `1 → 2`, `new`, `deleted`.
fn versions(change: &PlannedChange) -> String {
    match change.action() {
        Action::Unchanged => "unchanged".into(),
        Action::Create => "new".into(),
        Action::Update => format!("{} → {}", change.from_version, change.to_version),
        Action::Adjust if change.from_version > 0 => format!("{} adjusted", change.from_version),
        Action::Adjust => "adjusted".into(),
        Action::Delete => "deleted".into(),
        Action::Refuse => "refused".into(),
    }
}

/// A policy is compared here: it changes no placement.
fn policy_change(now: Option<&Resource>, desired: &RolloutPolicy) -> PlannedChange {
    let selected = targets(&desired.models, &desired.pipelines);
    let (action, effects) = match now {
        Some(Resource::RolloutPolicy(now)) => {
            let mut effects = match now.spec.as_deref() {
                Some(spec) => field_differences(spec, &desired.spec),
                None => vec!["spec changed".to_owned()],
            };
            let before = targets(&now.models, &now.pipelines);
            if before != selected {
                effects.push(format!("targets {before} → {selected}"));
            }
            (if effects.is_empty() { Action::Unchanged } else { Action::Adjust }, effects)
        }
        _ => (Action::Create, vec![format!("rolls out {selected}")]),
    };
    PlannedChange {
        kind: kind_name(Kind::RolloutPolicy).to_owned(),
        name: desired.metadata.name.clone(),
        action: action.into(),
        effects,
        placed: true,
        ..PlannedChange::default()
    }
}

fn is_object_of(change: &PlannedChange, object: &Object) -> bool {
    kind_name(object.kind()) == change.kind && object.name() == change.name
}

fn resource_differences(now: &Resource, desired: &Object) -> Vec<String> {
    match (now, desired) {
        (Resource::Model(now), Object::Model(desired)) => now
            .latest()
            .map(|latest| differences(&Model::from_proto(&latest.definition), desired))
            .unwrap_or_default(),
        (Resource::Pipeline(now), Object::Pipeline(desired)) => now
            .latest()
            .map(|latest| {
                // A protobuf round trip normalizes defaults.
                let desired = Pipeline::from_proto(&desired.to_proto());
                field_differences(&Pipeline::from_proto(&latest.definition).spec, &desired.spec)
            })
            .unwrap_or_default(),
        (Resource::Experiment(now), Object::Experiment(desired)) => {
            field_differences(&Experiment::from_proto(&now.definition).spec, &desired.spec)
        }
        _ => Vec::new(),
    }
}

/// Differences by spec field: `replicas 1 → 3`, `storageUri changed`.
fn differences(current: &Model, desired: &Model) -> Vec<String> {
    // A protobuf round trip normalizes defaults. Statuses do not contain credentials.
    let shown = |model: &Model| {
        let mut model = model.to_proto();
        gantry_proto::redact(&mut model);
        Model::from_proto(&model)
    };
    field_differences(&shown(current).spec, &shown(desired).spec)
}

fn field_differences(current: &impl Serialize, desired: &impl Serialize) -> Vec<String> {
    let (current, desired) = (fields(current), fields(desired));
    let mut names: Vec<&String> = current.keys().chain(desired.keys()).collect();
    names.sort();
    names.dedup();
    let short = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Some(PLACEHOLDER.to_owned()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(Value::Bool(flag)) => Some(flag.to_string()),
        // A storageUri may contain a signature and is not printed.
        _ => None,
    };
    names
        .into_iter()
        .filter(|name| current.get(*name) != desired.get(*name))
        .map(|name| match (short(current.get(name)), short(desired.get(name))) {
            (Some(from), Some(to)) => format!("{name} {from} → {to}"),
            _ => format!("{name} changed"),
        })
        .collect()
}

fn fields(spec: &impl Serialize) -> serde_json::Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_lists_changed_fields() {
        let now = Model::from_proto(&Model::named("m", "s3://bucket/old?signature=secret").to_proto());
        let mut desired = Model::named("m", "s3://bucket/new?signature=secret");
        assert_eq!(differences(&now, &now.clone()), [] as [&str; 0]);
        desired.spec.replicas = Some(3);
        desired.spec.requirements = vec!["onnx".into()];
        let now = Model::from_proto(&now.to_proto());
        assert_eq!(
            differences(&now, &desired),
            ["replicas 1 → 3", "requirements changed", "storageUri changed"]
        );
    }

    #[test]
    fn policy_change_lists_changed_fields_and_models() {
        let desired = |hold: &str, models: &[&str]| {
            let spec = json!({ "strategy": { "blueGreen": { "hold": hold } }, "bake": "5m" });
            let mut policy = RolloutPolicy::named("careful", serde_json::from_value(spec).unwrap());
            policy.models = models.iter().map(|m| (*m).to_owned()).collect();
            policy
        };
        let now = |policy: &RolloutPolicy| Resource::RolloutPolicy(policy.to_proto().into());
        for (before, after, action, effects) in [
            (None, desired("1m", &["iris"]), Action::Create, vec!["rolls out iris"]),
            (Some(desired("60s", &["iris"])), desired("1m", &["iris"]), Action::Unchanged, vec![]),
            (
                Some(desired("1m", &["iris"])),
                desired("2m", &["iris", "fraud"]),
                Action::Adjust,
                vec!["strategy changed", "targets iris → iris, fraud"],
            ),
        ] {
            let change = policy_change(before.as_ref().map(now).as_ref(), &after);
            assert_eq!(
                (change.action(), change.effects),
                (action, effects.into_iter().map(str::to_owned).collect())
            );
        }
    }

    #[test]
    fn table_has_one_line_per_object() {
        let change = |name: &str, action: Action, from, to, effects: &[&str]| PlannedChange {
            kind: "model".into(),
            name: name.into(),
            action: action as i32,
            from_version: from,
            to_version: to,
            effects: effects.iter().map(|e| (*e).to_owned()).collect(),
            placed: true,
        };
        let plan = Plan(vec![
            change(
                "fraud",
                Action::Update,
                1,
                2,
                &["storageUri changed", "loads on builtin beside version 1"],
            ),
            change("huge", Action::Create, 0, 1, &["needs 6.0 GB; most free is 4.2 GB on mlserver-0"]),
            change("iris", Action::Unchanged, 3, 3, &[]),
            change("old", Action::Delete, 1, 0, &[]),
            change("more", Action::Adjust, 4, 4, &["replicas 1 → 2"]),
            change("foreign", Action::Refuse, 1, 1, &["foreign belongs to the operator"]),
        ]);
        insta::assert_snapshot!(plan.table(true).render(Style::plain()), @r"
          model/fraud     1 → 2        storageUri changed; loads on builtin beside version 1
          model/huge      new          needs 6.0 GB; most free is 4.2 GB on mlserver-0
          model/iris      unchanged
          model/old       deleted
          model/more      4 adjusted   replicas 1 → 2
          model/foreign   refused      foreign belongs to the operator
        ");
        assert!(plan.has_changes() && plan.refused());
        assert_eq!(plan.document()[1]["fromVersion"], Value::Null);
        assert_eq!(plan.document()[0]["action"], "update");
    }
}
