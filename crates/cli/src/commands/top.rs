//! `gantry top`: load per model, pipeline and candidate, memory per server replica.

use super::{
    logs::admin_error,
    status::{millis, rate},
};
use crate::{
    args::Global,
    client::{
        Address, CandidateStats, LoadStats, Scheduler, admin_connection, fetch_gateway_stats,
        fetch_load_stats,
    },
    error::CommandError,
    output::{PLACEHOLDER, Style, Table, Tone, bytes, emit, print_stderr},
    view::ServerView,
};
use clap::ValueEnum;

/// Show load per model, pipeline and candidate, and memory per server replica.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry top\n  gantry top models\n  gantry top pipelines\n  gantry top servers"
)]
pub(crate) struct Args {
    /// Show one kind only
    #[arg(value_enum, value_name = "KIND")]
    kind: Option<TopKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TopKind {
    /// Request rate, latency and errors per model
    #[value(alias = "model")]
    Models,
    /// Request rate, latency and errors per pipeline
    #[value(alias = "pipeline")]
    Pipelines,
    /// Request rate, latency and errors per candidate of an experiment
    #[value(alias = "experiment")]
    Experiments,
    /// Memory and models per server replica
    #[value(alias = "server")]
    Servers,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let style = Style::stdout();
    let mut parts = Vec::new();
    let shows = |kind| args.kind.is_none_or(|wanted| wanted == kind);
    if args.kind != Some(TopKind::Servers) {
        let address = Address::parse(&global.admin(), 9003, "--admin")?;
        let mut connection = admin_connection(&address, global.call_timeout());
        if shows(TopKind::Models) {
            let load = fetch_load_stats(&mut connection).await.map_err(|e| admin_error(&address, &e))?;
            if load.is_empty() {
                print_stderr("No inference requests yet.");
            } else {
                parts.push(load_table("MODEL", load.into_values().collect()).render(style));
            }
        }
        if shows(TopKind::Pipelines) || shows(TopKind::Experiments) {
            let stats = fetch_gateway_stats(&mut connection).await.map_err(|e| admin_error(&address, &e))?;
            let (pipelines, candidates) = stats;
            if shows(TopKind::Pipelines) && !pipelines.is_empty() {
                parts.push(load_table("PIPELINE", pipelines).render(style));
            } else if args.kind == Some(TopKind::Pipelines) {
                print_stderr("No requests of pipelines yet.");
            }
            if shows(TopKind::Experiments) && !candidates.is_empty() {
                parts.push(candidate_table(candidates).render(style));
            } else if args.kind == Some(TopKind::Experiments) {
                print_stderr("No experiments.");
            }
        }
    }
    if shows(TopKind::Servers) {
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

const LOAD: [&str; 5] = ["REQ/S", "P50", "P99", "REQUESTS", "ERRORS"];

/// Highest request rate first.
fn load_table(kind: &str, mut loads: Vec<LoadStats>) -> Table {
    loads.sort_by(|a, b| {
        let by_rate = b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0));
        by_rate.then(b.requests.cmp(&a.requests)).then(a.name.cmp(&b.name))
    });
    let headings: Vec<&str> = [kind].into_iter().chain(LOAD).collect();
    let mut table = Table::new(&headings);
    for load in loads {
        table.row(load_cells(load));
    }
    table
}

/// Candidates next to each other, to compare them.
fn candidate_table(candidates: Vec<CandidateStats>) -> Table {
    let headings: Vec<&str> = ["EXPERIMENT", "CANDIDATE"].into_iter().chain(LOAD).collect();
    let mut table = Table::new(&headings);
    for CandidateStats { experiment, load } in candidates {
        table.row([(experiment, Tone::Plain)].into_iter().chain(load_cells(load)).collect());
    }
    table
}

fn load_cells(load: LoadStats) -> Vec<(String, Tone)> {
    let or_placeholder =
        |value: Option<String>| (value.unwrap_or_else(|| PLACEHOLDER.to_owned()), Tone::Plain);
    let errors = if load.errors > 0 { Tone::Bad } else { Tone::Plain };
    vec![
        (load.name, Tone::Plain),
        or_placeholder(load.rate.map(rate)),
        or_placeholder(load.p50_ms.map(millis)),
        or_placeholder(load.p99_ms.map(millis)),
        (load.requests.to_string(), Tone::Plain),
        (load.errors.to_string(), errors),
    ]
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
