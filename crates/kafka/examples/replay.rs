//! Writes the records of dead letters again, each to the topic and partition from which it was read:
//! `replay HOST:PORT|KAFKA_JSON NAMESPACE PIPELINE [REQUEST_ID…]`.
//!
//! Without request IDs all dead letters of the pipeline are written, of the last 1,000 records of each partition.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use gantry_kafka::{Settings, dead_letter, engine::Client, headers};
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

const READ: u32 = 1000;
const READ_TIMEOUT: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [broker, namespace, pipeline, requests @ ..] = &arguments[..] else {
        eprintln!("usage: replay HOST:PORT|KAFKA_JSON NAMESPACE PIPELINE [REQUEST_ID…]");
        return ExitCode::from(2);
    };
    match replay(broker, namespace, pipeline, requests).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn replay(
    broker: &str,
    namespace: &str,
    pipeline: &str,
    requests: &[String],
) -> Result<(), Box<dyn std::error::Error>> {
    let environment = |name: &str| std::env::var(name).ok();
    let settings = match broker.strip_suffix(".json") {
        Some(_) => Settings::read(Path::new(broker), namespace, &environment)?,
        None => Settings::with_broker(broker, namespace, &environment)?,
    };
    let settings = Arc::new(settings);
    let client = Client::connect(&settings).await?;
    let letters = client.read_last(&settings.topics.errors(), READ, READ_TIMEOUT).await?;
    let header = |record, name| headers::get(record, name).unwrap_or_default();
    for letter in &letters {
        let id = header(&letter.headers, headers::REQUEST_ID).to_owned();
        let is_selected = header(&letter.headers, headers::PIPELINE) == pipeline
            && header(&letter.headers, headers::ANSWERED).is_empty()
            && (requests.is_empty() || requests.contains(&id));
        if !is_selected {
            continue;
        }
        let source = header(&letter.headers, headers::SOURCE);
        match dead_letter::original(letter) {
            Some(record) => {
                client.produce(&[record]).await?;
                println!("{id}\t{source}");
            }
            None => {
                eprintln!("{id}\t{source}\tskipped: {}", header(&letter.headers, headers::OMITTED));
            }
        }
    }
    client.close().await;
    Ok(())
}
