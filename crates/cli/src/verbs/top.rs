//! `gantry top`: load per model, memory per server replica.

use super::{
    logs::admin_failure,
    status::{millis, rate},
};
use crate::{
    args::Global,
    client::{Address, Figures, Scheduler, admin, figures},
    failure::Failure,
    output::{NOTHING, Style, Table, Tone, bytes, emit, say},
    view::ServerView,
};
use clap::ValueEnum;

/// Show load per model and memory per server replica.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry top\n  gantry top models\n  gantry top servers")]
pub(crate) struct Args {
    /// What to show; both without it
    #[arg(value_enum)]
    what: Option<What>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Requests, errors and times of each model
    #[value(alias = "model")]
    Models,
    /// Memory and models of each replica of each server
    #[value(alias = "server")]
    Servers,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let style = Style::stdout();
    let mut parts = Vec::new();
    if args.what != Some(What::Servers) {
        let address = Address::parse(&global.admin(), 9003, "--admin")?;
        let mut connection = admin(&address, global.call_timeout());
        let figures = figures(&mut connection).await.map_err(|p| admin_failure(&address, &p))?;
        if figures.is_empty() {
            say("No model has been asked yet.");
        } else {
            parts.push(model_table(figures.into_values().collect()).render(style));
        }
    }
    if args.what != Some(What::Models) {
        let scheduler = Scheduler::connect(global).await?;
        let servers: Vec<ServerView> = scheduler.servers().await?.into_iter().map(ServerView::from).collect();
        if servers.iter().all(|s| s.replicas.is_empty()) {
            say("No server has joined.");
        } else {
            parts.push(server_table(&servers).render(style));
        }
    }
    emit(parts.join("\n"))
}

/// The busiest model first.
fn model_table(mut figures: Vec<Figures>) -> Table {
    figures.sort_by(|a, b| {
        let busy = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
        busy.then(b.requests.cmp(&a.requests)).then(a.name.cmp(&b.name))
    });
    let mut table = Table::new(&["MODEL", "REQ/S", "P50", "P99", "REQUESTS", "ERRORS"]);
    let or_nothing = |value: Option<String>| (value.unwrap_or_else(|| NOTHING.to_owned()), Tone::Plain);
    for model in figures {
        let errors = if model.errors > 0 { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            (model.name, Tone::Plain),
            or_nothing(model.rate.map(rate)),
            or_nothing(model.p50_ms.map(millis)),
            or_nothing(model.p99_ms.map(millis)),
            (model.requests.to_string(), Tone::Plain),
            (model.errors.to_string(), errors),
        ]);
    }
    table
}

fn server_table(servers: &[ServerView]) -> Table {
    let mut table = Table::new(&["SERVER", "REPLICA", "MODELS", "USED", "FREE", "MEMORY"]);
    for server in servers {
        for replica in &server.replicas {
            let (free, total) = (replica.available_memory_bytes, replica.total_memory_bytes);
            let cells = [
                server.name.clone(),
                replica.replica_idx.to_string(),
                replica.num_loaded_models.to_string(),
                bytes(total.saturating_sub(free)),
                bytes(free),
                bytes(total),
            ];
            table.row(cells.into_iter().map(|c| (c, Tone::Plain)).collect());
        }
    }
    table
}
