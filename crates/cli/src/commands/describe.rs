//! `gantry describe`: full state of an object, summary first, next step last.

mod graph_objects;

use crate::{
    args::Global,
    client::Scheduler,
    error::{CommandError, Exit},
    object_ref,
    output::{Format, Style, Tone, ago, bytes, count, document, emit, print_stderr, rfc3339, sanitize},
    view::{ModelView, Readiness, Resource, ServerView, VersionView},
};
use gantry_api::{Kind, Model};
use gantry_proto::scheduler::{ResourceType, model_status::ModelState};

/// Show the full state of objects in readable form.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry describe model/iris\n  gantry describe server builtin\n  \
    gantry describe pipeline/join experiment/half")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let objects = object_ref::named(&args.resources)?;
    let scheduler = Scheduler::connect(global).await?;
    let style = Style::stdout();
    let mut texts = Vec::new();
    let mut missing = false;
    for object in &objects {
        if let Some(found) = scheduler.resource(object, true).await? {
            texts.push(page(&scheduler, &found, style).await?);
        } else {
            print_stderr(&scheduler.not_found(object).await.message);
            missing = true;
        }
    }
    emit(texts.join("\n"))?;
    if missing { Err(CommandError::silent(Exit::NotFound)) } else { Ok(()) }
}

async fn page(scheduler: &Scheduler, found: &Resource, style: Style) -> Result<String, CommandError> {
    Ok(match found {
        Resource::Model(view) => model(view, style),
        Resource::Server(view) => {
            let models = scheduler.models(false).await?;
            let models: Vec<ModelView> = models.into_iter().map(ModelView::from).collect();
            server(view, &models, style)
        }
        Resource::Pipeline(view) => {
            graph_objects::pipeline(view, &scheduler.resources(Kind::Model, false).await?, style)
        }
        Resource::Experiment(view) => {
            let kind = match view.definition.resource_type() {
                ResourceType::Model => Kind::Model,
                ResourceType::Pipeline => Kind::Pipeline,
            };
            graph_objects::experiment(view, &scheduler.resources(kind, false).await?, style)
        }
        Resource::RolloutPolicy(view) => {
            let spec = document(&view.document(), &Format::Yaml)?;
            format!("{}\n\n{spec}", summary(found))
        }
    })
}

/// The first line: readiness and its reason.
pub(super) fn summary(found: &Resource) -> String {
    match found {
        Resource::Model(model) => match model.latest() {
            Some(latest) => model_summary(model, latest),
            None => format!("{} has no version.", model.name),
        },
        Resource::Server(server) => server_summary(server),
        Resource::Pipeline(pipeline) => graph_objects::pipeline_summary(pipeline),
        Resource::Experiment(experiment) => graph_objects::experiment_summary(experiment),
        Resource::RolloutPolicy(policy) => format!("{} {}.", policy.name, policy.summary()),
    }
}

/// Lines of name and value; further lines of a value are indented below the first.
struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn new(style: Style, summary: &str, tone: Tone) -> Self {
        Self { text: format!("{}\n\n", style.paint(&sanitize(summary), tone)), style }
    }

    fn line(&mut self, name: &str, value: &str) {
        for (i, value) in sanitize(value).lines().enumerate() {
            let name = if i == 0 { name } else { "" };
            let padded = format!("{name:<15}");
            self.text += "  ";
            self.text += &self.style.paint(&padded, Tone::Faint);
            self.text += value;
            self.text.push('\n');
        }
    }
}

fn model(model: &ModelView, style: Style) -> String {
    let Some(latest) = model.latest() else {
        return format!("{} has no version.\n", model.name);
    };
    let mut page = Page::new(style, &model_summary(model, latest), latest.readiness().tone());
    let manifest = Model::from_proto(&latest.definition);
    let spec = &manifest.spec;
    page.line("storage", &latest.storage_uri());
    if let Some(version) = spec.artifact_version {
        page.line("artifact", &format!("version folder {version}"));
    }
    if let Some(secret) = &spec.secret_name {
        page.line("credentials", &format!("Secret {secret}"));
    }
    page.line(
        "requirements",
        &if spec.requirements.is_empty() { "none".into() } else { spec.requirements.join(", ") },
    );
    page.line("memory", &spec.memory.as_ref().map_or_else(|| "unset".into(), |m| bytes(m.bytes())));
    let mut replicas = format!("{} desired, {} available", spec.replicas.unwrap_or(1), latest.available);
    if let Some(min) = spec.min_replicas {
        replicas += &format!(", at least {min}");
    }
    if let Some(max) = spec.max_replicas {
        replicas += &format!(", at most {max}");
    }
    page.line("replicas", &replicas);
    if let Some(server) = &spec.server {
        page.line("server", &format!("only {server}"));
    }
    if let Some(explainer) = &spec.explainer {
        let target = explainer.model_ref.as_ref().or(explainer.pipeline_ref.as_ref());
        let kind = explainer.r#type.as_deref().unwrap_or("unset type");
        page.line("explains", &format!("{} by {kind}", target.map_or("nothing", String::as_str)));
    }
    if let Some(llm) = &spec.llm {
        let target = llm.model_ref.as_ref().or(llm.pipeline_ref.as_ref());
        page.line("llm for", target.map_or("nothing", String::as_str));
    }
    let parameters: Vec<String> =
        spec.parameters.iter().map(|p| format!("{} = {}", p.name, p.value)).collect();
    page.line("parameters", &parameters.join("\n"));
    if spec.logger.is_some() {
        page.line("payloads", "logged");
    }
    if let (Some(namespace), Some(generation)) = (&manifest.metadata.namespace, manifest.metadata.generation)
    {
        page.line("kubernetes", &format!("namespace {namespace}, generation {generation}"));
    }
    let versions: Vec<String> = model.versions.iter().map(version_lines).collect();
    page.line("versions", &versions.join("\n"));
    page.line("next", &next_step(&model.name, latest));
    page.text
}

fn model_summary(model: &ModelView, latest: &VersionView) -> String {
    let name = &model.name;
    let older = model.versions.iter().skip(1).find(|v| v.available > 0);
    let older = older.map(|v| format!(" Version {} still serves.", v.number)).unwrap_or_default();
    let reason = latest.message();
    match latest.readiness() {
        Readiness::Ready => format!(
            "{name} is ready: version {} serves on {}, {} of {}.",
            latest.number,
            latest.server_column(),
            latest.available,
            count(latest.desired, "replica")
        ),
        Readiness::Deleted if model.is_terminated() => format!("{name} is deleted."),
        Readiness::Deleted => format!("{name} is being deleted: {reason}."),
        Readiness::Failed => format!("{name} failed: {reason}.{older}"),
        Readiness::Progressing if reason.is_empty() => format!("{name} is not ready.{older}"),
        Readiness::Progressing => format!("{name} is not ready: {reason}.{older}"),
    }
}

fn version_lines(version: &VersionView) -> String {
    let since = |at: Option<prost_types::Timestamp>| {
        rfc3339(at).map(|s| format!("since {s} ({})", ago(at))).unwrap_or_default()
    };
    let server = version.server.as_ref().map_or_else(|| "unplaced".to_owned(), |s| format!("on {s}"));
    let mut lines =
        format!("{:<4} {:<16} {server:<15} {}", version.number, version.state_name(), since(version.since));
    // A replica's reason is printed with the replica.
    let by_replica =
        version.replicas.iter().any(|r| !r.reason.is_empty() && version.reason.ends_with(&r.reason));
    if !version.reason.is_empty() && !by_replica {
        lines += &format!("\n       {}", version.reason);
    }
    for replica in &version.replicas {
        lines += &format!(
            "\n       replica {:<4} {:<12} {}",
            replica.index,
            replica.state_name(),
            since(replica.since)
        );
        if !replica.reason.is_empty() {
            lines += &format!("\n         {}", replica.reason);
        }
    }
    lines
}

fn next_step(name: &str, version: &VersionView) -> String {
    match version.state {
        ModelState::ModelAvailable => format!("send a request: gantry infer {name}"),
        ModelState::ModelFailed => {
            format!("see gantry logs model/{name}; fix the manifest or the model files, then gantry apply")
        }
        ModelState::ScheduleFailed if version.reason_code == "NoServer" => {
            "start a server: gantry up".to_owned()
        }
        ModelState::ScheduleFailed if version.reason_code == "NoCapability" => {
            "add the capability to a server, or change spec.requirements".to_owned()
        }
        ModelState::ScheduleFailed if version.reason_code == "NoMemory" => {
            "free memory (gantry top servers), add a replica, or lower spec.memory".to_owned()
        }
        ModelState::ScheduleFailed => "list the servers: gantry get servers".to_owned(),
        ModelState::ModelScaledDown => "set spec.replicas to 1 or more and apply".to_owned(),
        ModelState::ModelTerminated => "apply its manifest to recreate it".to_owned(),
        ModelState::ModelTerminating => format!("wait: gantry wait model/{name} --for=deleted"),
        ModelState::ModelTerminateFailed => format!("see gantry logs model/{name}, then retry the deletion"),
        _ => format!("wait: gantry wait model/{name} --for=ready"),
    }
}

fn server_summary(server: &ServerView) -> String {
    let name = &server.name;
    match server.readiness() {
        Readiness::Ready => format!("{name} is ready: {}.", server.message()),
        Readiness::Deleted => format!("{name} is {}.", server.message()),
        _ => format!("{name} is not ready: {}.", server.message()),
    }
}

fn server(server: &ServerView, models: &[ModelView], style: Style) -> String {
    let name = &server.name;
    let mut page = Page::new(style, &server_summary(server), server.readiness().tone());
    let (free, total) = server.memory();
    page.line("replicas", &format!("{} expected, {} joined", server.expected, server.available));
    page.line("memory", &format!("{} free of {}", bytes(free), bytes(total)));
    let replicas: Vec<String> = server
        .replicas
        .iter()
        .map(|r| {
            format!(
                "replica {:<4} {} free of {}, {}",
                r.replica_idx,
                bytes(r.available_memory_bytes),
                bytes(r.total_memory_bytes),
                count(r.num_loaded_models, "model")
            )
        })
        .collect();
    page.line("joined", &replicas.join("\n"));
    let placed: Vec<String> = models
        .iter()
        .filter_map(|m| m.latest().map(|v| (m, v)))
        .filter(|(m, v)| !m.deleted && v.server.as_ref() == Some(name))
        .map(|(m, v)| format!("{} version {}, {}", m.name, v.number, v.state_name()))
        .collect();
    page.line("models", &if placed.is_empty() { "none".into() } else { placed.join("\n") });
    let next = match server.readiness() {
        Readiness::Ready => "show its load: gantry top servers".to_owned(),
        Readiness::Deleted => "apply its manifest to recreate it".to_owned(),
        _ => format!("start the missing replicas, then gantry wait server/{name} --for=ready"),
    };
    page.line("next", &next);
    page.text
}
