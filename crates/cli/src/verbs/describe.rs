//! `gantry describe`: everything that is known about one object, the answer first, what to do last.

use crate::{
    args::Global,
    client::Scheduler,
    failure::{Exit, Failure},
    output::{Style, Tone, ago, bytes, emit, harmless, say, stamp},
    reference,
    view::{ModelView, Readiness, ServerView, VersionView, count},
};
use gantry_api::{Kind, Model};
use gantry_proto::scheduler::model_status::ModelState;

/// Tell everything that is known about models or servers, in words.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry describe model/iris\n  gantry describe server builtin")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let what = reference::named(&args.what)?;
    let scheduler = Scheduler::connect(global).await?;
    let style = Style::stdout();
    let mut texts = Vec::new();
    let mut missing = false;
    for one in &what {
        let text = match one.kind {
            Kind::Model => scheduler.model(&one.name, true).await?.map(|m| model(&m.into(), style)),
            Kind::Server => match scheduler.server(&one.name).await? {
                None => None,
                Some(found) => {
                    let models = scheduler.models(false).await?;
                    let models: Vec<ModelView> = models.into_iter().map(ModelView::from).collect();
                    Some(server(&found.into(), &models, style))
                }
            },
        };
        if let Some(text) = text {
            texts.push(text);
        } else {
            say(&scheduler.unknown(one).await);
            missing = true;
        }
    }
    emit(texts.join("\n"))?;
    if missing { Err(Failure::said(Exit::NotFound)) } else { Ok(()) }
}

/// Lines of a name and a value; a value of several lines is indented under its first.
struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn new(style: Style, answer: &str, tone: Tone) -> Self {
        Self { text: format!("{}\n\n", style.paint(&harmless(answer), tone)), style }
    }

    fn line(&mut self, name: &str, value: &str) {
        for (i, value) in harmless(value).lines().enumerate() {
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
    let mut page = Page::new(style, &answer(model, latest), latest.readiness().tone());
    let manifest = Model::from_proto(&latest.definition);
    let spec = &manifest.spec;
    page.line("storage", &latest.place());
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
    page.line("memory", &spec.memory.as_ref().map_or_else(|| "not said".into(), |m| bytes(m.bytes())));
    let mut replicas = format!("{} wanted, {} serving", spec.replicas.unwrap_or(1), latest.available);
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
        let of = explainer.model_ref.as_ref().or(explainer.pipeline_ref.as_ref());
        let kind = explainer.r#type.as_deref().unwrap_or("a kind that is not said");
        page.line("explains", &format!("{} by {kind}", of.map_or("nothing", String::as_str)));
    }
    if let Some(llm) = &spec.llm {
        let of = llm.model_ref.as_ref().or(llm.pipeline_ref.as_ref());
        page.line("llm for", of.map_or("nothing", String::as_str));
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

/// The first line: whether it serves, and why not.
fn answer(model: &ModelView, latest: &VersionView) -> String {
    let name = &model.name;
    let older = model.versions.iter().skip(1).find(|v| v.available > 0);
    let meanwhile = older.map(|v| format!(" Version {} serves meanwhile.", v.number)).unwrap_or_default();
    let why = latest.message();
    match latest.readiness() {
        Readiness::Ready => format!(
            "{name} is ready: version {} serves on {}, {} of {}.",
            latest.number,
            latest.server_word(),
            latest.available,
            count(i32::try_from(latest.wanted).unwrap_or(i32::MAX), "replica")
        ),
        Readiness::Gone if model.is_gone() => format!("{name} is deleted."),
        Readiness::Gone => format!("{name} is being deleted: {why}."),
        Readiness::Failed => format!("{name} failed: {why}.{meanwhile}"),
        Readiness::Coming if why.is_empty() => format!("{name} is not ready.{meanwhile}"),
        Readiness::Coming => format!("{name} is not ready: {why}.{meanwhile}"),
    }
}

fn version_lines(version: &VersionView) -> String {
    let since = |at: Option<prost_types::Timestamp>| {
        stamp(at).map(|s| format!("since {s} ({})", ago(at))).unwrap_or_default()
    };
    let place = version.server.as_ref().map_or_else(|| "nowhere".to_owned(), |s| format!("on {s}"));
    let mut lines =
        format!("{:<4} {:<16} {place:<15} {}", version.number, version.state_word(), since(version.since));
    // A reason that is a replica's stands there.
    let by_replica =
        version.replicas.iter().any(|r| !r.reason.is_empty() && version.reason.ends_with(&r.reason));
    if !version.reason.is_empty() && !by_replica {
        lines += &format!("\n       {}", version.reason);
    }
    for replica in &version.replicas {
        lines += &format!(
            "\n       replica {:<4} {:<12} {}",
            replica.index,
            replica.state_word(),
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
        ModelState::ModelAvailable => format!("ask it: gantry infer {name}"),
        ModelState::ModelFailed => {
            format!(
                "see gantry logs model/{name}; correct the manifest or its files, then gantry apply again"
            )
        }
        ModelState::ScheduleFailed if version.code == "NoServer" => "start a server: gantry up".to_owned(),
        ModelState::ScheduleFailed if version.code == "NoCapability" => {
            "add the capability to a server, or change spec.requirements".to_owned()
        }
        ModelState::ScheduleFailed if version.code == "NoMemory" => {
            "free memory (gantry top servers), add a replica, or lower spec.memory".to_owned()
        }
        ModelState::ScheduleFailed => "see which servers there are: gantry get servers".to_owned(),
        ModelState::ModelScaledDown => "set spec.replicas to 1 or more and apply it again".to_owned(),
        ModelState::ModelTerminated => "apply its manifest to have it back".to_owned(),
        ModelState::ModelTerminating => format!("wait: gantry wait model/{name} --for=deleted"),
        ModelState::ModelTerminateFailed => format!("see gantry logs model/{name}, then delete it again"),
        _ => format!("wait: gantry wait model/{name} --for=ready"),
    }
}

fn server(server: &ServerView, models: &[ModelView], style: Style) -> String {
    let name = &server.name;
    let answer = match server.readiness() {
        Readiness::Ready => format!("{name} is ready: {}.", server.message()),
        Readiness::Gone => format!("{name} is {}.", server.message()),
        _ => format!("{name} is not ready: {}.", server.message()),
    };
    let mut page = Page::new(style, &answer, server.readiness().tone());
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
    let on_it: Vec<String> = models
        .iter()
        .filter_map(|m| m.latest().map(|v| (m, v)))
        .filter(|(m, v)| !m.deleted && v.server.as_ref() == Some(name))
        .map(|(m, v)| format!("{} version {}, {}", m.name, v.number, v.state_word()))
        .collect();
    page.line("models", &if on_it.is_empty() { "none".into() } else { on_it.join("\n") });
    let next = match server.readiness() {
        Readiness::Ready => "see its load: gantry top servers".to_owned(),
        Readiness::Gone => "apply its manifest to have it back".to_owned(),
        _ => format!("start the missing replicas, then gantry wait server/{name} --for=ready"),
    };
    page.line("next", &next);
    page.text
}
