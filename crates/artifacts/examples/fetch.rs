//! Fetches one source and prints the result:
//! `cargo run --release -p gantry-artifacts --example fetch -- URI [--cache DIR] [--version N] [--secret FILE] [--loopback]`

use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use gantry_artifacts::{Config, Fetcher, ProgressSink, Request, Secret, Uri};

struct Notes;

impl ProgressSink for Notes {
    fn bytes(&self, _done: u64, _total: Option<u64>) {}

    fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new(std::env::temp_dir().join("gantry-artifacts"));
    let mut request = None;
    let mut arguments = std::env::args().skip(1);
    let mut version = None;
    let mut secret = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--loopback" => config.allow_loopback = true,
            "--cache" => config.cache_dir = arguments.next().ok_or("--cache needs a directory")?.into(),
            "--version" => version = Some(arguments.next().ok_or("--version needs a number")?.parse()?),
            "--secret" => {
                let file = arguments.next().ok_or("--secret needs a file")?;
                secret = Some(Secret::parse(&std::fs::read_to_string(file)?)?);
            }
            uri => request = Some(Request::new(Uri::parse(uri)?)),
        }
    }
    let mut request = request.ok_or("which URI?")?;
    request.artifact_version = version;
    request.secret = secret;
    let started = Instant::now();
    let fetched = Fetcher::new(config)?.fetch(&request, &Notes).await?;
    let took = started.elapsed();
    let rate = fetched.bytes as f64 / took.as_secs_f64() / 1e6;
    let from = if fetched.from_cache { "cache" } else { "source" };
    writeln!(
        std::io::stdout(),
        "{} {} bytes from {from} in {took:.2?} ({rate:.0} MB/s)",
        fetched.path.display(),
        fetched.bytes
    )?;
    Ok(())
}
