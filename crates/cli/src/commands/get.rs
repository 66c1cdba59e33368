//! `gantry get`: objects as tables, JSON, YAML or JSONPath output.

use crate::{
    args::Global,
    client::Scheduler,
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef, Selection, kind_name},
    output::{
        Format, PLACEHOLDER, Style, Table, Tone, ago, bytes, document, emit, emit_document, emit_line,
        list_document, print_stderr,
    },
    view::{ModelView, Readiness, ServerView, VersionView},
};
use gantry_api::Kind;
use serde_json::Value;

/// List models and servers.
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
    /// Include deleted models and servers
    #[arg(long)]
    all: bool,
    /// Watch for changes
    #[arg(short, long)]
    watch: bool,
    /// Omit headings
    #[arg(long)]
    no_headers: bool,
}

enum Resource {
    Model(ModelView),
    Server(ServerView),
}

impl Resource {
    fn object_ref(&self) -> ObjectRef {
        match self {
            Self::Model(m) => ObjectRef { kind: Kind::Model, name: m.name.clone() },
            Self::Server(s) => ObjectRef { kind: Kind::Server, name: s.name.clone() },
        }
    }

    fn document(&self, all_versions: bool) -> Value {
        match self {
            Self::Model(m) => m.document(all_versions),
            Self::Server(s) => s.document(),
        }
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
    if kinds.contains(&Kind::Model) {
        let models = scheduler.models(args.all_versions).await?.into_iter().map(ModelView::from);
        found.extend(models.filter(|m| args.all || !m.is_terminated()).map(Resource::Model));
    }
    if kinds.contains(&Kind::Server) {
        let servers = scheduler.servers().await?.into_iter().map(ServerView::from);
        found.extend(servers.filter(|s| args.all || !s.is_terminated()).map(Resource::Server));
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
        let resource = match name.kind {
            Kind::Model => scheduler
                .model(&name.name, args.all_versions)
                .await?
                .map(ModelView::from)
                .filter(|m| args.all || !m.is_terminated())
                .map(Resource::Model),
            Kind::Server => scheduler
                .server(&name.name)
                .await?
                .map(ServerView::from)
                .filter(|s| args.all || !s.is_terminated())
                .map(Resource::Server),
        };
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
                    let names: Vec<String> = kinds.iter().map(|k| format!("{}s", kind_name(*k))).collect();
                    print_stderr(&format!("No {}.", names.join(" and no ")));
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

/// One table per kind.
fn tables(args: &Args, found: &[Resource], with_kind: bool) -> Vec<Table> {
    let wide = args.output == Format::Wide;
    let mut tables = Vec::new();
    if found.iter().any(|f| matches!(f, Resource::Model(_))) {
        let mut table =
            if args.no_headers { Table::without_headings() } else { Table::new(model_headings(wide)) };
        for found in found {
            let Resource::Model(model) = found else { continue };
            for version in model.versions.iter().take(if args.all_versions { usize::MAX } else { 1 }) {
                table.row(model_row(model, version, wide, with_kind));
            }
        }
        tables.push(table);
    }
    if found.iter().any(|f| matches!(f, Resource::Server(_))) {
        let headings = ["NAME", "READY", "REPLICAS", "MODELS", "FREE", "MEMORY"];
        let mut table = if args.no_headers { Table::without_headings() } else { Table::new(&headings) };
        for found in found {
            let Resource::Server(server) = found else { continue };
            table.row(server_row(server, with_kind));
        }
        tables.push(table);
    }
    tables
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

fn model_row(model: &ModelView, version: &VersionView, wide: bool, with_kind: bool) -> Vec<(String, Tone)> {
    let readiness = version.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let mut cells = vec![
        plain(if with_kind { format!("model/{}", model.name) } else { model.name.clone() }),
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

fn server_row(server: &ServerView, with_kind: bool) -> Vec<(String, Tone)> {
    let readiness = server.readiness();
    let plain = |text: String| (text, Tone::Plain);
    let (free, total) = server.memory();
    vec![
        plain(if with_kind { format!("server/{}", server.name) } else { server.name.clone() }),
        (ready_column(readiness), readiness.tone()),
        plain(server.replicas_column()),
        plain(server.models.to_string()),
        plain(bytes(free)),
        plain(bytes(total)),
    ]
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
    let mut models = scheduler.watch_models().await?;
    let mut servers = scheduler.watch_servers().await?;
    let selected = |object: &ObjectRef| match selection {
        Selection::Kinds(kinds) => kinds.contains(&object.kind),
        Selection::Named(names) => names.contains(object),
    };
    // A subscription starts with the current state, which has been printed.
    let mut last: std::collections::BTreeMap<ObjectRef, Value> =
        shown.iter().map(|f| (f.object_ref(), f.document(false))).collect();
    loop {
        let found = tokio::select! {
            model = models.next() => Resource::Model(model?.into()),
            server = servers.next() => Resource::Server(server?.into()),
        };
        let object = found.object_ref();
        let now = found.document(false);
        let already_gone = !last.contains_key(&object)
            && match &found {
                Resource::Model(m) => m.is_terminated(),
                Resource::Server(s) => s.is_terminated(),
            };
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
                let printed = tables(args, shown, mixed);
                for mut table in row {
                    let index = usize::from(object.kind == Kind::Server && printed.len() > 1);
                    if let Some(above) = printed.get(index) {
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
