//! `gantry get`: objects as tables, or as data for other programs.

use crate::{
    args::Global,
    client::Scheduler,
    failure::{Exit, Failure},
    output::{
        Format, NOTHING, Style, Table, Tone, ago, bytes, document, documents, emit, emit_document, emit_line,
        say,
    },
    reference::{self, Reference, Selection, word},
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
    /// KIND, KIND NAME…, or KIND/NAME…; everything without it
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// table, wide, json, yaml, name or jsonpath={.path}
    #[arg(short, long, default_value = "table", value_name = "FORMAT")]
    output: Format,
    /// Versions that are on their way out too
    #[arg(long)]
    all_versions: bool,
    /// Deleted models and servers too
    #[arg(long)]
    all: bool,
    /// Go on with every change
    #[arg(short, long)]
    watch: bool,
    /// Leave the headings out
    #[arg(long)]
    no_headers: bool,
}

/// One object that was found.
enum Found {
    Model(ModelView),
    Server(ServerView),
}

impl Found {
    fn reference(&self) -> Reference {
        match self {
            Self::Model(m) => Reference { kind: Kind::Model, name: m.name.clone() },
            Self::Server(s) => Reference { kind: Kind::Server, name: s.name.clone() },
        }
    }

    fn document(&self, all_versions: bool) -> Value {
        match self {
            Self::Model(m) => m.document(all_versions),
            Self::Server(s) => s.document(),
        }
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let selection = reference::select(&args.what)?;
    let scheduler = Scheduler::connect(global).await?;
    let (found, missing) = match &selection {
        Selection::Kinds(kinds) => (list(&scheduler, args, kinds).await?, Vec::new()),
        Selection::Named(names) => fetch(&scheduler, args, names).await?,
    };
    print(args, &selection, &found)?;
    for one in &missing {
        say(&scheduler.unknown(one).await);
    }
    if !missing.is_empty() {
        return Err(Failure::said(Exit::NotFound));
    }
    if args.watch {
        return watch(&scheduler, args, &selection, &found).await;
    }
    Ok(())
}

async fn list(scheduler: &Scheduler, args: &Args, kinds: &[Kind]) -> Result<Vec<Found>, Failure> {
    let mut found = Vec::new();
    if kinds.contains(&Kind::Model) {
        let models = scheduler.models(args.all_versions).await?.into_iter().map(ModelView::from);
        found.extend(models.filter(|m| args.all || !m.is_gone()).map(Found::Model));
    }
    if kinds.contains(&Kind::Server) {
        let servers = scheduler.servers().await?.into_iter().map(ServerView::from);
        found.extend(servers.filter(|s| args.all || !s.is_gone()).map(Found::Server));
    }
    Ok(found)
}

async fn fetch(
    scheduler: &Scheduler,
    args: &Args,
    names: &[Reference],
) -> Result<(Vec<Found>, Vec<Reference>), Failure> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for one in names {
        let object = match one.kind {
            Kind::Model => scheduler
                .model(&one.name, args.all_versions)
                .await?
                .map(ModelView::from)
                .filter(|m| args.all || !m.is_gone())
                .map(Found::Model),
            Kind::Server => scheduler
                .server(&one.name)
                .await?
                .map(ServerView::from)
                .filter(|s| args.all || !s.is_gone())
                .map(Found::Server),
        };
        match object {
            Some(object) => found.push(object),
            None => missing.push(one.clone()),
        }
    }
    Ok((found, missing))
}

fn print(args: &Args, selection: &Selection, found: &[Found]) -> Result<(), Failure> {
    match &args.output {
        Format::Name => found.iter().try_for_each(|f| emit_line(&f.reference().to_string())),
        Format::Table | Format::Wide => {
            if found.is_empty() {
                if let Selection::Kinds(kinds) = selection {
                    let names: Vec<String> = kinds.iter().map(|k| format!("{}s", word(*k))).collect();
                    say(&format!("No {}.", names.join(" and no ")));
                }
                return Ok(());
            }
            let mixed = matches!(selection, Selection::Kinds(kinds) if kinds.len() > 1)
                || found
                    .windows(2)
                    .any(|pair| matches!(pair, [a, b] if a.reference().kind != b.reference().kind));
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
                documents(&values)
            };
            let text = document(&value, format)?;
            emit_document(&text)
        }
    }
}

/// One table a kind.
fn tables(args: &Args, found: &[Found], with_kind: bool) -> Vec<Table> {
    let wide = args.output == Format::Wide;
    let mut tables = Vec::new();
    if found.iter().any(|f| matches!(f, Found::Model(_))) {
        let mut table = if args.no_headers { Table::bare() } else { Table::new(model_headings(wide)) };
        for found in found {
            let Found::Model(model) = found else { continue };
            for version in model.versions.iter().take(if args.all_versions { usize::MAX } else { 1 }) {
                table.row(model_row(model, version, wide, with_kind));
            }
        }
        tables.push(table);
    }
    if found.iter().any(|f| matches!(f, Found::Server(_))) {
        let headings = ["NAME", "READY", "REPLICAS", "MODELS", "FREE", "MEMORY"];
        let mut table = if args.no_headers { Table::bare() } else { Table::new(&headings) };
        for found in found {
            let Found::Server(server) = found else { continue };
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
        (ready_word(readiness), readiness.tone()),
        plain(version.replicas_word()),
        plain(version.server_word()),
        plain(version.number.to_string()),
    ];
    if wide {
        let memory = version.definition.model_spec.as_ref().and_then(|s| s.memory_bytes);
        let requirements = version.requirements().join(",");
        cells.push((version.state_word().to_owned(), readiness.tone()));
        cells.push(plain(if requirements.is_empty() { NOTHING.to_owned() } else { requirements }));
        cells.push(plain(memory.map_or_else(|| NOTHING.to_owned(), bytes)));
        cells.push(plain(version.place()));
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
        (ready_word(readiness), readiness.tone()),
        plain(server.replicas_word()),
        plain(server.models.to_string()),
        plain(bytes(free)),
        plain(bytes(total)),
    ]
}

fn ready_word(readiness: Readiness) -> String {
    if readiness == Readiness::Ready { "True".into() } else { "False".into() }
}

/// Prints each object again whenever it changes.
async fn watch(
    scheduler: &Scheduler,
    args: &Args,
    selection: &Selection,
    shown: &[Found],
) -> Result<(), Failure> {
    let mut models = scheduler.watch_models().await?;
    let mut servers = scheduler.watch_servers().await?;
    let wanted = |one: &Reference| match selection {
        Selection::Kinds(kinds) => kinds.contains(&one.kind),
        Selection::Named(names) => names.contains(one),
    };
    // A subscription begins with what is there; that has been printed.
    let mut last: std::collections::BTreeMap<Reference, Value> =
        shown.iter().map(|f| (f.reference(), f.document(false))).collect();
    loop {
        let found = tokio::select! {
            model = models.next() => Found::Model(model?.into()),
            server = servers.next() => Found::Server(server?.into()),
        };
        let one = found.reference();
        let now = found.document(false);
        let gone_before = !last.contains_key(&one)
            && match &found {
                Found::Model(m) => m.is_gone(),
                Found::Server(s) => s.is_gone(),
            };
        if !wanted(&one) || gone_before || last.get(&one) == Some(&now) {
            continue;
        }
        last.insert(one.clone(), now);
        match &args.output {
            Format::Name => emit_line(&one.to_string())?,
            Format::Table | Format::Wide => {
                // Rows line up with those above as far as their widths allow.
                let everything: Vec<Found> = vec![found];
                let mixed = matches!(selection, Selection::Kinds(kinds) if kinds.len() > 1);
                let row = tables(&Args { no_headers: true, ..args.clone() }, &everything, mixed);
                let reference = tables(args, shown, mixed);
                for mut table in row {
                    let of_kind = usize::from(one.kind == Kind::Server && reference.len() > 1);
                    if let Some(wide) = reference.get(of_kind) {
                        table.align(wide);
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
