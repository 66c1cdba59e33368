//! `gantry top`: load per model, memory per server replica.

use super::{
    logs::admin_error,
    status::{millis, rate},
};
use crate::{
    args::Global,
    client::{Address, LoadStats, Scheduler, admin_connection, fetch_load_stats},
    error::CommandError,
    output::{PLACEHOLDER, Style, Table, Tone, bytes, emit, print_stderr},
    view::ServerView,
};
use clap::ValueEnum;

/// Show load per model and memory per server replica.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry top\n  gantry top models\n  gantry top servers")]
pub(crate) struct Args {
    /// Show models or servers only
    #[arg(value_enum, value_name = "KIND")]
    kind: Option<TopKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopKind {
    /// Request rate, latency and errors per model
    #[value(alias = "model")]
    Models,
    /// Memory and models per server replica
    #[value(alias = "server")]
    Servers,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let style = Style::stdout();
    let mut parts = Vec::new();
    if args.kind != Some(TopKind::Servers) {
        let address = Address::parse(&global.admin(), 9003, "--admin")?;
        let mut connection = admin_connection(&address, global.call_timeout());
        let load = fetch_load_stats(&mut connection).await.map_err(|e| admin_error(&address, &e))?;
        if load.is_empty() {
            print_stderr("No inference requests yet.");
        } else {
            parts.push(model_table(load.into_values().collect()).render(style));
        }
    }
    if args.kind != Some(TopKind::Models) {
        let scheduler = Scheduler::connect(global).await?;
        let servers: Vec<ServerView> = scheduler.servers().await?.into_iter().map(ServerView::from).collect();
        if servers.iter().all(|s| s.replicas.is_empty()) {
            print_stderr("No server replicas.");
        } else {
            parts.push(server_table(&servers).render(style));
        }
    }
    emit(parts.join("\n"))
}

/// Highest request rate first.
fn model_table(mut models: Vec<LoadStats>) -> Table {
    models.sort_by(|a, b| {
        let by_rate = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
        by_rate.then(b.requests.cmp(&a.requests)).then(a.name.cmp(&b.name))
    });
    let mut table = Table::new(&["MODEL", "REQ/S", "P50", "P99", "REQUESTS", "ERRORS"]);
    let or_placeholder =
        |value: Option<String>| (value.unwrap_or_else(|| PLACEHOLDER.to_owned()), Tone::Plain);
    for model in models {
        let errors = if model.errors > 0 { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            (model.name, Tone::Plain),
            or_placeholder(model.rate.map(rate)),
            or_placeholder(model.p50_ms.map(millis)),
            or_placeholder(model.p99_ms.map(millis)),
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
