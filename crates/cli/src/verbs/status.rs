//! `gantry status`: what serves, how much, and what does not and why.

use super::supervised::{now, trouble};
use crate::{
    args::Global,
    client::{Address, Connection, Figures, Scheduler, admin, figures, supervised},
    failure::Failure,
    output::{NOTHING, Style, Table, Tone, bytes, emit, is_terminal, say},
    seldon::{Control, StatusAll},
    up::servers::ReplicaReport,
    view::{ModelView, Readiness, ServerView},
};
use gantry_proto::scheduler::model_status::ModelState;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// How often figures are asked for while watching; states come by themselves.
const REFRESH: Duration = Duration::from_secs(1);
/// Changes within this time are drawn together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Figures are a bonus: nobody waits long for them.
const PATIENCE: Duration = Duration::from_millis(500);

/// Show at a glance what serves, how much, and what does not and why.
///
/// REQ/S and P99 come from the admin endpoint; without it they are left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry status\n  gantry status --watch\n  gantry status -f iris.yaml")]
pub(crate) struct Args {
    /// Go on: redraw on a terminal, elsewhere print what changed. With -f: wait until all is ready
    #[arg(short, long, visible_alias = "wait")]
    watch: bool,
    /// Seldon's form: the status of what a manifest describes, as JSON
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Args {
    /// What was asked for, if it was asked for in Seldon's form.
    pub(crate) fn of_file(&self) -> Option<StatusAll> {
        let control = Control { show_response: true, ..Control::default() };
        self.file.clone().map(|file| StatusAll { file, wait: self.watch, control })
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let scheduler = Scheduler::connect(global).await?;
    let address = Address::parse(&global.admin(), 9003, "--admin")?;
    let mut admin = admin(&address, PATIENCE);
    if args.watch {
        return watch(&scheduler, &mut admin).await;
    }
    let screen = Screen::look(&scheduler, &mut admin).await?;
    if screen.models.is_empty() {
        say("No models. Apply one with `gantry apply -f FILE`, or serve a directory with `gantry up PATH`.");
    }
    emit(screen.render(Style::stdout()))
}

/// Everything that is shown.
struct Screen {
    models: Vec<ModelView>,
    servers: Vec<ServerView>,
    figures: BTreeMap<String, Figures>,
    processes: Vec<ReplicaReport>,
}

impl Screen {
    async fn look(scheduler: &Scheduler, admin: &mut Connection) -> Result<Self, Failure> {
        let models = scheduler.models(true).await?.into_iter().map(ModelView::from);
        let servers = scheduler.servers().await?.into_iter().map(ServerView::from);
        Ok(Self {
            models: models.filter(|m| !m.is_gone()).collect(),
            servers: servers.filter(|s| !s.is_gone()).collect(),
            figures: figures(admin).await.unwrap_or_default(),
            processes: supervised(admin).await,
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
                let trouble = trouble(&server.name, &self.processes, now()).unwrap_or_default();
                cells.push((trouble, Tone::Bad));
                table.row(cells);
            }
            parts.push(table.render(style));
        }
        parts.join("\n")
    }

    fn model_table(&self) -> Table {
        let mut table = Table::new(&["MODELS", "SERVER", "VERSION", "READY", "REQ/S", "P99", ""]);
        for model in &self.models {
            for (depth, cells) in self.model_cells(model).into_iter().enumerate() {
                table.row(if depth == 0 { cells } else { branch(cells) });
            }
        }
        table
    }

    /// A row for the latest version, and one for each older version that still has replicas.
    fn model_cells(&self, model: &ModelView) -> Vec<Vec<(String, Tone)>> {
        let Some(latest) = model.latest() else { return Vec::new() };
        let readiness = latest.readiness();
        let known = self.figures.get(&model.name);
        let plain = |text: String| (text, Tone::Plain);
        let why = match readiness {
            Readiness::Ready => latest.reason.clone(),
            _ => latest.message(),
        };
        let mut rows = vec![vec![
            plain(model.name.clone()),
            plain(latest.server_word()),
            plain(latest.number.to_string()),
            (latest.replicas_word(), readiness.tone()),
            plain(known.and_then(|f| f.rate).map_or_else(|| NOTHING.to_owned(), rate)),
            plain(known.and_then(|f| f.p99_ms).map_or_else(|| NOTHING.to_owned(), millis)),
            (why, readiness.tone()),
        ]];
        for version in model.versions.iter().skip(1).filter(|v| !v.replicas.is_empty()) {
            let says = if version.available > 0 && latest.state != ModelState::ModelAvailable {
                format!("serves until version {} is ready", latest.number)
            } else {
                version.message()
            };
            rows.push(vec![
                plain(format!("version {}", version.number)),
                plain(version.server_word()),
                plain(version.number.to_string()),
                plain(version.available.to_string()),
                plain(String::new()),
                plain(String::new()),
                (says, Tone::Faint),
            ]);
        }
        rows
    }
}

/// A row that belongs to the one above it.
fn branch(mut cells: Vec<(String, Tone)>) -> Vec<(String, Tone)> {
    if let Some((name, _)) = cells.first_mut() {
        *name = format!("└ {name}");
    }
    cells
}

fn server_cells(server: &ServerView) -> Vec<(String, Tone)> {
    let (free, total) = server.memory();
    vec![
        (server.name.clone(), Tone::Plain),
        (server.replicas_word(), server.readiness().tone()),
        (server.models.to_string(), Tone::Plain),
        (format!("{} of {} used", bytes(total.saturating_sub(free)), bytes(total)), Tone::Plain),
    ]
}

/// Requests a second, with as many digits as mean something.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 10.0 && per_second > 0.0 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

/// A time in milliseconds.
pub(crate) fn millis(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

async fn watch(scheduler: &Scheduler, admin: &mut Connection) -> Result<(), Failure> {
    let mut models = scheduler.watch_models().await?;
    let mut servers = scheduler.watch_servers().await?;
    let terminal = is_terminal();
    let style = Style::stdout();
    let mut drawn = 0;
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let screen = Screen::look(scheduler, admin).await?;
        if terminal {
            drawn = redraw(&screen.render(style), drawn)?;
        } else {
            append(&screen, &mut last)?;
        }
        // On a terminal the figures move; elsewhere only changes of state are news.
        let refresh =
            async { if terminal { tokio::time::sleep(REFRESH).await } else { std::future::pending().await } };
        tokio::select! {
            changed = models.next() => drop(changed?),
            changed = servers.next() => drop(changed?),
            () = refresh => continue,
        }
        // A load passes through several states at once: one drawing is enough for them.
        let settle = tokio::time::sleep(TOGETHER);
        tokio::pin!(settle);
        loop {
            tokio::select! {
                () = &mut settle => break,
                changed = models.next() => drop(changed?),
                changed = servers.next() => drop(changed?),
            }
        }
    }
}

/// Draws over what was drawn before; says how many lines stand there now.
fn redraw(text: &str, drawn: usize) -> Result<usize, Failure> {
    let rows = terminal_size::terminal_size().map(|(_, terminal_size::Height(rows))| usize::from(rows));
    let text = fit(text, rows);
    let up = if drawn > 0 { format!("\u{1b}[{drawn}A\r") } else { String::new() };
    // Each line is cut at the edge of the screen, so that lines and rows stay the same number.
    let mut screen = format!("{up}\u{1b}[J");
    for line in text.lines() {
        screen += &format!("\u{1b}[?7l{line}\u{1b}[?7h\n");
    }
    emit(screen)?;
    Ok(text.lines().count())
}

/// As many lines as the screen has room for: what scrolled away could not be drawn over.
fn fit(text: &str, rows: Option<usize>) -> String {
    let total = text.lines().count();
    match rows {
        Some(rows) if total >= rows => {
            let kept = rows.saturating_sub(2);
            let lines: Vec<&str> = text.lines().take(kept).collect();
            format!(
                "{}\n… {} more lines; make the window higher, or see gantry get\n",
                lines.join("\n"),
                total - kept
            )
        }
        _ => text.to_owned(),
    }
}

/// Prints the models that changed, one a line.
fn append(screen: &Screen, last: &mut BTreeMap<String, String>) -> Result<(), Failure> {
    let mut now = BTreeMap::new();
    for model in &screen.models {
        let Some(latest) = model.latest() else { continue };
        let line = format!(
            "{} version {} {} {} {}",
            model.name,
            latest.number,
            latest.state_word(),
            latest.replicas_word(),
            latest.message()
        );
        now.insert(model.name.clone(), line.trim_end().to_owned());
    }
    for (name, line) in &now {
        if last.get(name) != Some(line) {
            emit(format!("{line}\n"))?;
        }
    }
    for name in last.keys().filter(|n| !now.contains_key(*n)) {
        emit(format!("{name} is gone\n"))?;
    }
    *last = now;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_never_higher_than_the_window() {
        let text = "a\nb\nc\nd\n";
        assert_eq!(fit(text, None), text);
        assert_eq!(fit(text, Some(5)), text);
        assert_eq!(fit(text, Some(4)), "a\nb\n… 2 more lines; make the window higher, or see gantry get\n");
        assert!(fit(text, Some(1)).starts_with('\n'));
    }

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        for (value, expected) in [(0.0, "0"), (0.25, "0.2"), (9.96, "10.0"), (214.3, "214")] {
            assert_eq!(rate(value), expected);
        }
        for (value, expected) in [(0.84, "0.8 ms"), (14.2, "14 ms"), (12_345.0, "12.3 s")] {
            assert_eq!(millis(value), expected);
        }
    }
}
