//! `gantry status`: readiness, load, and the reason for anything not ready.

use super::{
    describe,
    replica_processes::{crash_summary, now_ms},
};
use crate::{
    args::Global,
    client::{
        Address, Connection, LoadStats, Scheduler, admin_connection, fetch_load_stats,
        fetch_replica_processes,
    },
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef},
    output::{PLACEHOLDER, Style, Table, Tone, bytes, count, emit, is_terminal, print_stderr},
    seldon::{Control, StatusAll},
    view::{ExperimentView, ModelView, PipelineVersionView, PipelineView, Readiness, Resource, ServerView},
};
use gantry_api::Kind;
use gantry_proto::scheduler::model_status::ModelState;
use gantry_standalone::servers::ReplicaReport;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Interval of load statistics while watching; states are pushed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Changes within this window are drawn once.
const REDRAW_DEBOUNCE: Duration = Duration::from_millis(50);
/// Load statistics are optional, so their timeout is short.
const ADMIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Show all objects: readiness, load, and the reason for anything not ready.
///
/// With objects, one sentence for each. REQ/S and P99 come from the admin endpoint and are omitted without it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry status\n  gantry status --watch\n  gantry status experiment/half\n  \
    gantry status -f iris.yaml"
)]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(value_name = "RESOURCE", conflicts_with_all = ["watch", "file"])]
    resources: Vec<String>,
    /// Watch for changes (redraws on a terminal, otherwise prints one line per change). With -f, wait
    /// until everything is ready
    #[arg(short, long, visible_alias = "wait")]
    watch: bool,
    /// Seldon CLI: print the status of the objects of a manifest as JSON
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Args {
    /// The arguments of Seldon's `status -f`, if `-f` is set.
    pub(crate) fn as_seldon(&self) -> Option<StatusAll> {
        let control = Control { show_response: true, ..Control::default() };
        self.file.clone().map(|file| StatusAll { file, wait: self.watch, timeout_secs: None, control })
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let scheduler = Scheduler::connect(global).await?;
    let address = Address::parse(&global.admin(), 9003, "--admin")?;
    let mut admin = admin_connection(&address, ADMIN_TIMEOUT);
    if args.watch {
        return watch(&scheduler, &mut admin).await;
    }
    if !args.resources.is_empty() {
        let load = fetch_load_stats(&mut admin).await.unwrap_or_default();
        return sentences(&scheduler, &object_ref::named(&args.resources)?, &load).await;
    }
    let overview = Overview::fetch(&scheduler, &mut admin).await?;
    if overview.models.is_empty() {
        print_stderr(
            "No models. Apply one with `gantry apply -f FILE`, or serve a directory with `gantry up PATH`.",
        );
    }
    emit(overview.render(Style::stdout()))
}

/// One sentence for each object.
async fn sentences(
    scheduler: &Scheduler,
    objects: &[ObjectRef],
    load: &BTreeMap<String, LoadStats>,
) -> Result<(), CommandError> {
    let mut missing = false;
    for object in objects {
        match scheduler.resource(object, true).await? {
            Some(Resource::Experiment(experiment)) if experiment.active => {
                emit(format!("{}\n", split_sentence(&experiment, load)))?;
            }
            Some(found) => emit(format!("{}\n", describe::summary(&found)))?,
            None => {
                print_stderr(&scheduler.not_found(object).await.message);
                missing = true;
            }
        }
    }
    if missing { Err(CommandError::silent(Exit::NotFound)) } else { Ok(()) }
}

/// `half splits iris: 50 % iris-a (1012 requests, p99 0.8 ms), 50 % iris-b (988 requests, p99 0.9 ms).`
fn split_sentence(experiment: &ExperimentView, load: &BTreeMap<String, LoadStats>) -> String {
    let candidate = |(name, share): (&str, String)| {
        let load = load.get(name).map(|l| {
            let p99 = l.p99_ms.map(|ms| format!(", p99 {}", millis(ms))).unwrap_or_default();
            format!(" ({}{p99})", count(l.requests, "request"))
        });
        format!("{share} {name}{}", load.unwrap_or_default())
    };
    let shares: Vec<String> = experiment.shares().into_iter().map(candidate).collect();
    let mirror = experiment.mirror_column().map(|m| format!(" Mirror: {m}.")).unwrap_or_default();
    format!("{} splits {}: {}.{mirror}", experiment.name, experiment.target(), shares.join(", "))
}

struct Overview {
    models: Vec<ModelView>,
    servers: Vec<ServerView>,
    pipelines: Vec<PipelineView>,
    experiments: Vec<ExperimentView>,
    load: BTreeMap<String, LoadStats>,
    processes: Vec<ReplicaReport>,
}

impl Overview {
    async fn fetch(scheduler: &Scheduler, admin: &mut Connection) -> Result<Self, CommandError> {
        let models = scheduler.models(true).await?.into_iter().map(ModelView::from);
        let servers = scheduler.servers().await?.into_iter().map(ServerView::from);
        let pipelines = scheduler.pipelines(false).await?.into_iter().map(PipelineView::from);
        let experiments = scheduler.experiments().await?.into_iter().map(ExperimentView::from);
        Ok(Self {
            pipelines: pipelines.filter(|p| !p.is_terminated()).collect(),
            experiments: experiments.filter(|e| !e.deleted).collect(),
            models: models.filter(|m| !m.is_terminated()).collect(),
            servers: servers.filter(|s| !s.is_terminated()).collect(),
            load: fetch_load_stats(admin).await.unwrap_or_default(),
            processes: fetch_replica_processes(admin).await,
        })
    }

    fn render(&self, style: Style) -> String {
        let mut parts = Vec::new();
        if !self.models.is_empty() {
            parts.push(self.model_table().render(style));
        }
        if !self.servers.is_empty() {
            let mut table = Table::new(&["SERVERS", "REPLICAS", "MODELS", "MEMORY", ""]);
            for server in &self.servers {
                let mut cells = server_cells(server);
                let crashes = crash_summary(&server.name, &self.processes, now_ms()).unwrap_or_default();
                cells.push((crashes, Tone::Bad));
                table.row(cells);
            }
            parts.push(table.render(style));
        }
        if !self.pipelines.is_empty() {
            let mut table = Table::new(&["PIPELINES", "VERSION", "STEPS", "READY", ""]);
            for pipeline in &self.pipelines {
                table.row(pipeline_cells(pipeline));
            }
            parts.push(table.render(style));
        }
        if !self.experiments.is_empty() {
            let mut table = Table::new(&["EXPERIMENTS", "CANDIDATES", "MIRROR", "READY", ""]);
            for experiment in &self.experiments {
                table.row(experiment_cells(experiment));
            }
            parts.push(table.render(style));
        }
        parts.join("\n")
    }

    fn model_table(&self) -> Table {
        let mut table = Table::new(&["MODELS", "SERVER", "VERSION", "READY", "REQ/S", "P99", ""]);
        for model in &self.models {
            for (depth, cells) in self.model_cells(model).into_iter().enumerate() {
                table.row(if depth == 0 { cells } else { child_row(cells) });
            }
        }
        table
    }

    /// A row for the latest version, and one for each older version that still has replicas.
    fn model_cells(&self, model: &ModelView) -> Vec<Vec<(String, Tone)>> {
        let Some(latest) = model.latest() else { return Vec::new() };
        let readiness = latest.readiness();
        let load = self.load.get(&model.name);
        let plain = |text: String| (text, Tone::Plain);
        let message = match readiness {
            Readiness::Ready => latest.reason.clone(),
            _ => latest.message(),
        };
        let mut rows = vec![vec![
            plain(model.name.clone()),
            plain(latest.server_column()),
            plain(latest.number.to_string()),
            (latest.replicas_column(), readiness.tone()),
            plain(load.and_then(|l| l.rate).map_or_else(|| PLACEHOLDER.to_owned(), rate)),
            plain(load.and_then(|l| l.p99_ms).map_or_else(|| PLACEHOLDER.to_owned(), millis)),
            (message, readiness.tone()),
        ]];
        for version in model.versions.iter().skip(1).filter(|v| !v.replicas.is_empty()) {
            let message = if version.available > 0 && latest.state != ModelState::ModelAvailable {
                format!("serves until version {} is ready", latest.number)
            } else {
                version.message()
            };
            rows.push(vec![
                plain(format!("version {}", version.number)),
                plain(version.server_column()),
                plain(version.number.to_string()),
                plain(version.available.to_string()),
                plain(String::new()),
                plain(String::new()),
                (message, Tone::Faint),
            ]);
        }
        rows
    }
}

/// Marks a row as belonging to the one above.
fn child_row(mut cells: Vec<(String, Tone)>) -> Vec<(String, Tone)> {
    if let Some((name, _)) = cells.first_mut() {
        *name = format!("└ {name}");
    }
    cells
}

fn server_cells(server: &ServerView) -> Vec<(String, Tone)> {
    let (free, total) = server.memory();
    vec![
        (server.name.clone(), Tone::Plain),
        (server.replicas_column(), server.readiness().tone()),
        (server.models.to_string(), Tone::Plain),
        (format!("{} of {} used", bytes(total.saturating_sub(free)), bytes(total)), Tone::Plain),
    ]
}

fn pipeline_cells(pipeline: &PipelineView) -> Vec<(String, Tone)> {
    let readiness = pipeline.readiness();
    let latest = pipeline.latest();
    vec![
        (pipeline.name.clone(), Tone::Plain),
        (latest.map(|v| v.number.to_string()).unwrap_or_default(), Tone::Plain),
        (latest.map(PipelineVersionView::steps_column).unwrap_or_default(), Tone::Plain),
        (yes_or_no(readiness), readiness.tone()),
        (problem(readiness, pipeline.message()), readiness.tone()),
    ]
}

fn experiment_cells(experiment: &ExperimentView) -> Vec<(String, Tone)> {
    let readiness = experiment.readiness();
    vec![
        (experiment.name.clone(), Tone::Plain),
        (experiment.candidates_column(), Tone::Plain),
        (experiment.mirror_column().unwrap_or_else(|| PLACEHOLDER.to_owned()), Tone::Plain),
        (yes_or_no(readiness), readiness.tone()),
        (problem(readiness, experiment.message()), readiness.tone()),
    ]
}

fn yes_or_no(readiness: Readiness) -> String {
    if readiness == Readiness::Ready { "yes" } else { "no" }.to_owned()
}

/// Nothing for an object that is ready.
fn problem(readiness: Readiness, message: String) -> String {
    if readiness == Readiness::Ready { String::new() } else { message }
}

/// Requests per second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 10.0 && per_second > 0.0 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

pub(crate) fn millis(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

async fn watch(scheduler: &Scheduler, admin: &mut Connection) -> Result<(), CommandError> {
    let mut changes = scheduler.watch(&Kind::ALL).await?;
    let terminal = is_terminal();
    let style = Style::stdout();
    let mut drawn = 0;
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let overview = Overview::fetch(scheduler, admin).await?;
        if terminal {
            drawn = redraw(&overview.render(style), drawn)?;
        } else {
            print_changes(&overview, &mut last)?;
        }
        // Load statistics are only redrawn on a terminal.
        let refresh = async {
            if terminal { tokio::time::sleep(REFRESH_INTERVAL).await } else { std::future::pending().await }
        };
        tokio::select! {
            changed = changes.next() => drop(changed?),
            () = refresh => continue,
        }
        let debounce = tokio::time::sleep(REDRAW_DEBOUNCE);
        tokio::pin!(debounce);
        loop {
            tokio::select! {
                () = &mut debounce => break,
                changed = changes.next() => drop(changed?),
            }
        }
    }
}

/// Replaces the `drawn` lines above the cursor; returns the number of lines drawn.
pub(super) fn redraw(text: &str, drawn: usize) -> Result<usize, CommandError> {
    let rows = terminal_size::terminal_size().map(|(_, terminal_size::Height(rows))| usize::from(rows));
    let text = fit(text, rows);
    let up = if drawn > 0 { format!("\u{1b}[{drawn}A\r") } else { String::new() };
    // Without auto-wrap, so that one line is one row.
    let mut screen = format!("{up}\u{1b}[J");
    for line in text.lines() {
        screen += &format!("\u{1b}[?7l{line}\u{1b}[?7h\n");
    }
    emit(screen)?;
    Ok(text.lines().count())
}

/// Truncates to the height of the terminal: lines that scrolled away cannot be redrawn.
fn fit(text: &str, rows: Option<usize>) -> String {
    let total = text.lines().count();
    match rows {
        Some(rows) if total >= rows => {
            let kept = rows.saturating_sub(2);
            let lines: Vec<&str> = text.lines().take(kept).collect();
            format!(
                "{}\n… {} more lines: enlarge the window, or use gantry get\n",
                lines.join("\n"),
                total - kept
            )
        }
        _ => text.to_owned(),
    }
}

/// Prints one line per changed model, pipeline or experiment.
fn print_changes(overview: &Overview, last: &mut BTreeMap<String, String>) -> Result<(), CommandError> {
    let mut now = BTreeMap::new();
    for model in &overview.models {
        let Some(latest) = model.latest() else { continue };
        let line = format!(
            "{} version {} {} {} {}",
            model.name,
            latest.number,
            latest.state_name(),
            latest.replicas_column(),
            latest.message()
        );
        now.insert(model.name.clone(), line.trim_end().to_owned());
    }
    for pipeline in &overview.pipelines {
        let Some(latest) = pipeline.latest() else { continue };
        let name = format!("pipeline/{}", pipeline.name);
        let line = format!("{name} version {} {} {}", latest.number, latest.state_name(), latest.message());
        now.insert(name, line);
    }
    for experiment in &overview.experiments {
        let name = format!("experiment/{}", experiment.name);
        now.insert(name.clone(), format!("{name} {}", experiment.message()));
    }
    for (name, line) in &now {
        if last.get(name) != Some(line) {
            emit(format!("{line}\n"))?;
        }
    }
    for name in last.keys().filter(|n| !now.contains_key(*n)) {
        emit(format!("{name} deleted\n"))?;
    }
    *last = now;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_truncates_to_terminal_height() {
        let text = "a\nb\nc\nd\n";
        assert_eq!(fit(text, None), text);
        assert_eq!(fit(text, Some(5)), text);
        assert_eq!(fit(text, Some(4)), "a\nb\n… 2 more lines: enlarge the window, or use gantry get\n");
        assert!(fit(text, Some(1)).starts_with('\n'));
    }

    #[test]
    fn rate_and_millis_round_by_magnitude() {
        for (value, expected) in [(0.0, "0"), (0.25, "0.2"), (9.96, "10.0"), (214.3, "214")] {
            assert_eq!(rate(value), expected);
        }
        for (value, expected) in [(0.84, "0.8 ms"), (14.2, "14 ms"), (12_345.0, "12.3 s")] {
            assert_eq!(millis(value), expected);
        }
    }
}
