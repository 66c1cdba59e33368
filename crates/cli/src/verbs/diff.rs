//! `gantry diff`: what applying manifests would do, before anything changes.

use crate::{
    args::Global,
    client::{Scheduler, block_on},
    failure::{Exit, Failure},
    manifests::Manifests,
    output::{NOTHING, Style, Table, Tone, emit, say},
    view::ModelView,
};
use clap::ValueEnum;
use gantry_api::{Model, Object, Parsed};
use gantry_proto::gantry::{PlanRequest, PlannedChange, planned_change::Action};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Say what applying manifests would do, and do nothing.
///
/// Ends with 0 when nothing would change, with 1 when something would, with 6 when something would be refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry diff -f iris.yaml\n  gantry diff -f models/ -R -o json")]
pub(crate) struct Args {
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into the directories of directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Form::Table, value_name = "FORMAT")]
    output: Form,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A line for each object that would change
    Table,
    /// A list of objects for a program, with those that would not change
    Json,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let objects = Manifests::read(&args.files, args.recursive)?.checked("Nothing was compared.")?;
    if objects.is_empty() {
        return Err(Failure::usage("there is no object in what was given: nothing was compared"));
    }
    block_on(async {
        let scheduler = Scheduler::connect(global).await?;
        let Some(plan) = Plan::make(&scheduler, &objects).await? else {
            let words = "the scheduler cannot plan: it is another system's, or an older version; \
                         gantry apply --dry-run tells what can be told without it";
            return Err(Failure::new(Exit::Refused, words));
        };
        match args.output {
            Form::Table if !plan.changes() => say("Nothing would change."),
            Form::Table => emit(plan.table(false).render(Style::stdout()))?,
            Form::Json => emit(format!("{:#}\n", plan.document()))?,
        }
        match plan.refused() {
            true => Err(Failure::said(Exit::Refused)),
            // As diff does: differences are no failure, but not nothing either.
            false if plan.changes() => Err(Failure::said(Exit::Failed)),
            false => Ok(()),
        }
    })
}

/// What would become of each object.
pub(crate) struct Plan(Vec<PlannedChange>);

impl Plan {
    /// Asks what would happen; `None` when the scheduler cannot tell.
    pub(crate) async fn make(scheduler: &Scheduler, objects: &[Parsed]) -> Result<Option<Self>, Failure> {
        let mut request = PlanRequest::default();
        for parsed in objects {
            match &parsed.object {
                Object::Model(model) => request.models.push(model.to_proto()),
                Object::Server(server) => request.servers.push(server.to_proto()),
            }
        }
        let Some(mut changes) = scheduler.plan(request).await? else { return Ok(None) };
        for change in &mut changes {
            let differs = matches!(change.action(), Action::Update | Action::Adjust);
            if !differs || change.kind != "model" || change.effects.iter().any(|e| e.contains("changed")) {
                continue;
            }
            let Some(now) = scheduler.model(&change.name, false).await?.map(ModelView::from) else {
                continue;
            };
            let asked = objects.iter().find_map(|p| match &p.object {
                Object::Model(model) if model.metadata.name == change.name => Some(&**model),
                _ => None,
            });
            if let (Some(asked), Some(latest)) = (asked, now.latest()) {
                change.effects.splice(0..0, differences(&Model::from_proto(&latest.definition), asked));
            }
        }
        Ok(Some(Self(changes)))
    }

    /// Whether anything would change.
    pub(crate) fn changes(&self) -> bool {
        self.0.iter().any(|c| c.action() != Action::Unchanged)
    }

    /// Whether anything would be refused.
    pub(crate) fn refused(&self) -> bool {
        self.0.iter().any(|c| c.action() == Action::Refuse)
    }

    /// A row for each object: what, from where to where, what follows.
    pub(crate) fn table(&self, unchanged_too: bool) -> Table {
        let mut table = Table::bare();
        for change in &self.0 {
            if change.action() == Action::Unchanged && !unchanged_too {
                continue;
            }
            let tone = match change.action() {
                Action::Unchanged => Tone::Faint,
                Action::Refuse => Tone::Bad,
                Action::Delete => Tone::Plain,
                _ if change.placed || change.kind != "model" => Tone::Good,
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

    /// The plan for a program.
    pub(crate) fn document(&self) -> Value {
        let one = |change: &PlannedChange| {
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
        self.0.iter().map(one).collect()
    }
}

/// `1 → 2`, `new`, `gone`.
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

/// What differs between two manifests, field by field: `replicas 1 → 3`, `storageUri changed`.
fn differences(now: &Model, asked: &Model) -> Vec<String> {
    // Through the contract and back, so that a default that is written and one that is not are the same.
    let asked = Model::from_proto(&asked.to_proto());
    let fields = |model: &Model| match serde_json::to_value(&model.spec) {
        Ok(Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    let (now, asked) = (fields(now), fields(&asked));
    let mut names: Vec<&String> = now.keys().chain(asked.keys()).collect();
    names.sort();
    names.dedup();
    let short = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Some(NOTHING.to_owned()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(Value::Bool(flag)) => Some(flag.to_string()),
        // A place may hold a signature: it is not shown.
        _ => None,
    };
    names
        .into_iter()
        .filter(|name| now.get(*name) != asked.get(*name))
        .map(|name| match (short(now.get(name)), short(asked.get(name))) {
            (Some(from), Some(to)) => format!("{name} {from} → {to}"),
            _ => format!("{name} changed"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_field() {
        let now = Model::from_proto(&Model::named("m", "s3://bucket/old?signature=secret").to_proto());
        let mut asked = Model::named("m", "s3://bucket/new?signature=secret");
        assert_eq!(differences(&now, &now.clone()), [] as [&str; 0]);
        asked.spec.replicas = Some(3);
        asked.spec.requirements = vec!["onnx".into()];
        let now = Model::from_proto(&now.to_proto());
        assert_eq!(
            differences(&now, &asked),
            ["replicas 1 → 3", "requirements changed", "storageUri changed"]
        );
    }

    #[test]
    fn a_line_for_each_object() {
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
            change("theirs", Action::Refuse, 1, 1, &["theirs belongs to the operator"]),
        ]);
        insta::assert_snapshot!(plan.table(true).render(Style::plain()), @r"
          model/fraud    1 → 2        storageUri changed; loads on builtin beside version 1
          model/huge     new          needs 6.0 GB; most free is 4.2 GB on mlserver-0
          model/iris     unchanged
          model/old      deleted
          model/more     4 adjusted   replicas 1 → 2
          model/theirs   refused      theirs belongs to the operator
        ");
        assert!(plan.changes() && plan.refused());
        assert_eq!(plan.document()[1]["fromVersion"], Value::Null);
        assert_eq!(plan.document()[0]["action"], "update");
    }
}
