//! `gantry get`: objects as tables, JSON, YAML or JSONPath output.

use crate::{
    args::Global,
    client::Scheduler,
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef, Selection, kind_plural},
    output::{
        Format, PLACEHOLDER, Style, Table, Tone, ago, bytes, document, emit, emit_document, emit_line,
        list_document, print_stderr,
    },
    view::{ExperimentView, PipelineVersionView, PolicyView, Readiness, Resource, ServerView, VersionView},
};
use gantry_api::Kind;
use serde_json::Value;

/// List models, InferenceServices, servers, pipelines, experiments and rollout policies.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(
    after_help = "Examples:\n  gantry get\n  gantry get models -o wide\n  gantry get model/iris -o yaml\n  \
    gantry get model iris -o jsonpath='{.status.version}'\n  gantry get models -w"
)]
pub(crate) struct Args {
    /// KIND, KIND NAME…, or KIND/NAME… [default: all]
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    /// Output format: table, wide, json, yaml, name or jsonpath={.path}
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: Format,
    /// Include older versions that are still loaded
    #[arg(long)]
    all_versions: bool,
    /// Include deleted objects
    #[arg(long)]
    all: bool,
    /// Watch for changes
    #[arg(short, long)]
    watch: bool,
    /// Omit headings
    #[arg(long)]
    no_headers: bool,
}

impl Args {
    /// Whether the kind is InferenceService.
    fn wants_services(&self) -> bool {
        let word = self.resources.first().map(|first| first.split('/').next().unwrap_or(first));
        word.is_some_and(|word| {
            ["isvc", "inferenceservice", "inferenceservices"].contains(&word.to_ascii_lowercase().as_str())
        })
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let selection = object_ref::select(&args.resources)?;
    let scheduler = Scheduler::connect(global).await?;
    let (found, missing) = match &selection {
        Selection::Kinds(kinds) => (list(&scheduler, args, kinds).await?, Vec::new()),
        Selection::Named(names) => fetch(&scheduler, args, names).await?,
    };
    print(args, &selection, &found)?;
    for object in &missing {
        print_stderr(&scheduler.not_found(object).await.message);
    }
    if !missing.is_empty() {
        return Err(CommandError::silent(Exit::NotFound));
    }
    if args.watch {
        return watch(&scheduler, args, &selection, &found).await;
    }
    Ok(())
}

async fn list(scheduler: &Scheduler, args: &Args, kinds: &[Kind]) -> Result<Vec<Resource>, CommandError> {
    let mut found = Vec::new();
    for kind in kinds {
        let all = scheduler.resources(*kind, args.all_versions).await?;
        let is_wanted = |f: &Resource| !args.wants_services() || f.service_path().is_some();
        found.extend(all.into_iter().filter(|f| (args.all || !f.is_terminated()) && is_wanted(f)));
    }
    Ok(found)
}

async fn fetch(
    scheduler: &Scheduler,
    args: &Args,
    names: &[ObjectRef],
) -> Result<(Vec<Resource>, Vec<ObjectRef>), CommandError> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        let resource = scheduler.resource(name, args.all_versions).await?;
        let resource = resource.filter(|f| args.all || !f.is_terminated());
        match resource {
            Some(resource) => found.push(resource),
            None => missing.push(name.clone()),
        }
    }
    Ok((found, missing))
}

fn print(args: &Args, selection: &Selection, found: &[Resource]) -> Result<(), CommandError> {
    match &args.output {
        Format::Name => found.iter().try_for_each(|f| emit_line(&f.object_ref().to_string())),
        Format::Table | Format::Wide => {
            if found.is_empty() {
                if let Selection::Kinds(kinds) = selection {
                    let names: Vec<&str> = kinds.iter().map(|kind| kind_plural(*kind)).collect();
                    print_stderr(&format!("No {}.", names.join(", no ")));
                }
                return Ok(());
            }
            let mixed = matches!(selection, Selection::Kinds(kinds) if kinds.len() > 1)
                || found
                    .windows(2)
                    .any(|pair| matches!(pair, [a, b] if a.object_ref().kind != b.object_ref().kind));
            let tables = tables(args, found, mixed);
            let style = Style::stdout();
            let text: Vec<String> = tables.iter().map(|t| t.render(style)).collect();
            emit(text.join("\n"))
        }
        format => {
            let mut values: Vec<Value> = found.iter().map(|f| f.document(args.all_versions)).collect();
            let single = matches!(selection, Selection::Named(names) if names.len() == 1);
            let value = if single {
                let Some(value) = values.pop() else { return Ok(()) };
                value
            } else {
                list_document(&values)
            };
            let text = document(&value, format)?;
            emit_document(&text)
        }
    }
}

/// One table per kind, in the order of the objects.
fn tables(args: &Args, found: &[Resource], with_kind: bool) -> Vec<Table> {
    let mut tables: Vec<(Kind, Table)> = Vec::new();
    for found in found {
        let object = found.object_ref();
        if tables.last().is_none_or(|(kind, _)| *kind != object.kind) {
            let headings = if args.wants_services() {
                SERVICE_HEADINGS
            } else {
                headings(object.kind, args.output == Format::Wide)
            };
            let table = if args.no_headers { Table::without_headings() } else { Table::new(headings) };
            tables.push((object.kind, table));
        }
        let name = if with_kind { object.to_string() } else { object.name };
        if let Some((_, table)) = tables.last_mut() {
            for row in rows(args, found, &name) {
                table.row(row);
            }
        }
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

fn headings(kind: Kind, wide: bool) -> &'static [&'static str] {
    match (kind, wide) {
        (Kind::Model, wide) => model_headings(wide),
        (Kind::Server, _) => &["NAME", "READY", "REPLICAS", "MODELS", "FREE", "MEMORY"],
        (Kind::Pipeline, false) => &["NAME", "READY", "VERSION", "STEPS", "CHANGED", "MESSAGE"],
        (Kind::Pipeline, true) => {
            &["NAME", "READY", "VERSION", "STATE", "MODELS", "GATEWAY", "STEPS", "CHANGED", "MESSAGE"]
        }
        (Kind::RolloutPolicy, false) => &["NAME", "TARGETS", "STRATEGY", "BAKE"],
        (Kind::RolloutPolicy, true) => &["NAME", "TARGETS", "STRATEGY", "ANALYSIS", "BAKE"],
        (Kind::Experiment, false) => &["NAME", "READY", "CANDIDATES", "MIRROR", "MESSAGE"],
        (Kind::Experiment, true) => &[
            "NAME",
            "READY",
            "DEFAULT",
            "CANDIDATES",
            "CANDIDATES READY",
            "MIRROR",
            "MIRROR READY",
            "MESSAGE",
        ],
    }
}

/// One row for each version to print.
fn rows(args: &Args, found: &Resource, name: &str) -> Vec<Vec<(String, Tone)>> {
    let wide = args.output == Format::Wide;
    let limit = if args.all_versions { usize::MAX } else { 1 };
    match found {
        Resource::Model(model) if args.wants_services() => {
            let path = found.service_path().unwrap_or_default();
            model.versions.iter().take(limit).map(|v| service_row(name, &path, v)).collect()
        }
        Resource::Model(model) => {
            model.versions.iter().take(limit).map(|v| model_row(name, v, wide)).collect()
        }
        Resource::Server(server) => vec![server_row(name, server)],
        Resource::Pipeline(pipeline) => {
            pipeline.versions.iter().take(limit).map(|v| pipeline_row(name, v, wide)).collect()
        }
        Resource::Experiment(experiment) => vec![experiment_row(name, experiment, wide)],
        Resource::RolloutPolicy(policy) => vec![policy_row(name, policy, wide)],
    }
}

/// The path is that of the gateway.
const SERVICE_HEADINGS: &[&str] = &["NAME", "PATH", "READY", "VERSION", "CHANGED", "MESSAGE"];

fn service_row(name: &str, path: &str, version: &VersionView) -> Vec<(String, Tone)> {
    let (readiness, plain) = (version.readiness(), |text: String| (text, Tone::Plain));
    vec![
        plain(name.to_owned()),
        plain(path.to_owned()),
        (ready_column(readiness), readiness.tone()),
        plain(version.number.to_string()),
        (ago(version.since), Tone::Faint),
        plain(version.message()),
    ]
}

fn model_headings(wide: bool) -> &'static [&'static str] {
    if wide {
        &[
            "NAME",
            "READY",
            "REPLICAS",
            "SERVER",
            "VERSION",
            "STATE",
            "REQUIREMENTS",
            "MEMORY",
            "STORAGE",
            "CHANGED",
            "MESSAGE",
        ]
    } else {
        &["NAME", "READY", "REPLICAS", "SERVER", "VERSION", "CHANGED", "MESSAGE"]
    }
}

fn model_row(name: &str, version: &VersionView, wide: bool) -> Vec<(String, Tone)> {
    let readiness = version.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let mut cells = vec![
        plain(name.to_owned()),
        (ready_column(readiness), readiness.tone()),
        plain(version.replicas_column()),
        plain(version.server_column()),
        plain(version.number.to_string()),
    ];
    if wide {
        let memory = version.definition.model_spec.as_ref().and_then(|s| s.memory_bytes);
        let requirements = version.requirements().join(",");
        cells.push((version.state_name().to_owned(), readiness.tone()));
        cells.push(plain(if requirements.is_empty() { PLACEHOLDER.to_owned() } else { requirements }));
        cells.push(plain(memory.map_or_else(|| PLACEHOLDER.to_owned(), bytes)));
        cells.push(plain(version.storage_uri()));
    }
    cells.push((ago(version.since), Tone::Faint));
    cells.push(plain(version.message()));
    cells
}

fn server_row(name: &str, server: &ServerView) -> Vec<(String, Tone)> {
    let readiness = server.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let (free, total) = server.memory();
    vec![
        plain(name.to_owned()),
        (ready_column(readiness), readiness.tone()),
        plain(server.replicas_column()),
        plain(server.models.to_string()),
        plain(bytes(free)),
        plain(bytes(total)),
    ]
}

fn pipeline_row(name: &str, version: &PipelineVersionView, wide: bool) -> Vec<(String, Tone)> {
    let readiness = version.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let mut cells = vec![
        plain(name.to_owned()),
        (ready_column(readiness), readiness.tone()),
        plain(version.number.to_string()),
    ];
    if wide {
        cells.push((version.state_name().to_owned(), readiness.tone()));
        cells.push(plain(if version.models_ready { "True" } else { "False" }.to_owned()));
        cells.push(plain(version.gateway.as_str_name().trim_start_matches("Pipeline").to_owned()));
    }
    cells.push(plain(version.steps_column()));
    cells.push((ago(version.since), Tone::Faint));
    cells.push(plain(version.message()));
    cells
}

fn experiment_row(name: &str, experiment: &ExperimentView, wide: bool) -> Vec<(String, Tone)> {
    let readiness = experiment.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let or_placeholder = |text: Option<String>| plain(text.unwrap_or_else(|| PLACEHOLDER.to_owned()));
    let flag = |ready: bool| plain(if ready { "True" } else { "False" }.to_owned());
    let mut cells = vec![plain(name.to_owned()), (ready_column(readiness), readiness.tone())];
    let candidates = or_placeholder(Some(experiment.candidates_column()).filter(|c| !c.is_empty()));
    if wide {
        cells.push(or_placeholder(experiment.definition.default.clone()));
        cells.push(candidates);
        cells.push(flag(experiment.candidates_ready));
        cells.push(or_placeholder(experiment.mirror_column()));
        cells.push(flag(experiment.mirror_ready));
    } else {
        cells.push(candidates);
        cells.push(or_placeholder(experiment.mirror_column()));
    }
    cells.push(plain(experiment.message()));
    cells
}

fn policy_row(name: &str, policy: &PolicyView, wide: bool) -> Vec<(String, Tone)> {
    let mut cells = vec![name.to_owned(), policy.targets_column(), policy.strategy_column()];
    if wide {
        cells.push(policy.analysis_column().to_owned());
    }
    cells.push(policy.bake_column());
    cells.into_iter().map(|cell| (cell, Tone::Plain)).collect()
}

fn ready_column(readiness: Readiness) -> String {
    if readiness == Readiness::Ready { "True".into() } else { "False".into() }
}

/// Prints each object when it changes.
async fn watch(
    scheduler: &Scheduler,
    args: &Args,
    selection: &Selection,
    shown: &[Resource],
) -> Result<(), CommandError> {
    let kinds: Vec<Kind> = match selection {
        Selection::Kinds(kinds) => kinds.clone(),
        Selection::Named(names) => {
            let kinds: std::collections::BTreeSet<Kind> = names.iter().map(|n| n.kind).collect();
            kinds.into_iter().collect()
        }
    };
    let mut changes = scheduler.watch(&kinds).await?;
    let selected = |object: &ObjectRef| match selection {
        Selection::Kinds(kinds) => kinds.contains(&object.kind),
        Selection::Named(names) => names.contains(object),
    };
    // A subscription starts with the current state, which has been printed.
    let mut last: std::collections::BTreeMap<ObjectRef, Value> =
        shown.iter().map(|f| (f.object_ref(), f.document(false))).collect();
    loop {
        let found = changes.next().await?;
        let object = found.object_ref();
        let now = found.document(false);
        let already_gone = !last.contains_key(&object) && found.is_terminated();
        if !selected(&object) || already_gone || last.get(&object) == Some(&now) {
            continue;
        }
        last.insert(object.clone(), now);
        match &args.output {
            Format::Name => emit_line(&object.to_string())?,
            Format::Table | Format::Wide => {
                // Align with the rows above.
                let changed = [found];
                let mixed = matches!(selection, Selection::Kinds(kinds) if kinds.len() > 1);
                let row = tables(&Args { no_headers: true, ..args.clone() }, &changed, mixed);
                let above: Vec<Resource> =
                    shown.iter().filter(|f| f.object_ref().kind == object.kind).cloned().collect();
                for mut table in row {
                    if let Some(above) = tables(args, &above, mixed).first() {
                        table.align(above);
                    }
                    emit(table.render(Style::stdout()))?;
                }
            }
            format => {
                let text = document(&found.document(args.all_versions), format)?;
                if *format == Format::Yaml {
                    emit_line("---")?;
                }
                emit_document(&text)?;
            }
        }
    }
}
