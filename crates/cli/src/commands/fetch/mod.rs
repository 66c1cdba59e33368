//! `gantry fetch`: model artifacts into directories, as KServe's storage initializer does.

mod publish;
mod source;

use crate::{client::block_on, error::CommandError, output::print_stderr};
use gantry_artifacts::{Config, Fetcher, NetRule, Request, Silent};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Networks of clusters, beside the public ones. Link-local addresses, where clouds have their metadata, are not among them.
const PRIVATE: [&str; 5] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];
const UNVERIFIED: &str =
    "S3_VERIFY_SSL is ignored: certificates are verified; set AWS_CA_BUNDLE for a private authority";
/// Where work in progress is, below the target directory: on the same file system.
const WORK: &str = ".gantry-fetch";

/// Download model artifacts into directories, like the storage initializer of KServe.
///
/// Folders keep their layout, archives are unpacked. Credentials come from the environment: AWS_*, S3_*,
/// GOOGLE_APPLICATION_CREDENTIALS, AZURE_*, HF_TOKEN, STORAGE_CONFIG. A file appears in the directory when it is complete.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry fetch s3://models/iris /mnt/models\n  \
    gantry fetch gs://models/base /mnt/models/base https://host/labels.zip /mnt/models/labels")]
pub(crate) struct Args {
    /// Source and target directory, alternating
    #[arg(required = true, num_args = 2.., value_names = ["URI", "DIR"])]
    pairs: Vec<String>,

    /// Further network (CIDR) or host that artifacts may be fetched from; repeatable
    #[arg(long, value_name = "NETWORK")]
    allow_net: Vec<NetRule>,

    /// Ask the cloud's metadata service for credentials when there are no others
    #[arg(long)]
    instance_credentials: bool,

    /// File for the reason of a failure, if it exists
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let pairs: Vec<(&str, &Path)> = args
        .pairs
        .chunks(2)
        .map(|pair| match pair {
            [uri, directory] => Ok((uri.as_str(), Path::new(directory.as_str()))),
            _ => Err(CommandError::usage(
                "every URI needs a directory after it: gantry fetch URI DIR [URI DIR …]",
            )),
        })
        .collect::<Result<_, _>>()?;
    for (uri, directory) in pairs {
        let fetching = async { fetch(args, uri, directory).await.map_err(CommandError::failed) };
        if let Err(mut error) = block_on(fetching) {
            // One line: it becomes the pod's termination message.
            let cause = error.message.split_whitespace().collect::<Vec<_>>().join(" ");
            error.message = format!("failed to fetch {}: {cause}", source::shown(uri));
            if args.termination_log.exists() {
                // The message on stderr is the same.
                let _ = std::fs::write(&args.termination_log, &error.message);
            }
            return Err(error);
        }
    }
    Ok(())
}

async fn fetch(args: &Args, uri: &str, directory: &Path) -> Result<(), String> {
    let environment = source::Environment::read(|name| std::env::var(name).ok())?;
    let is_unverified = environment.asks_for_unverified_tls();
    if is_unverified {
        print_stderr(UNVERIFIED);
    }
    let parsed = environment.parse(uri)?;
    let failed = |what: &str, error: std::io::Error| format!("{what} {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(|error| failed("cannot create", error))?;
    let work = directory.join(WORK);
    let mut config = Config::new(&work);
    config.cache_limit = u64::MAX;
    config.use_stale = false;
    config.allow_loopback = true;
    config.allow =
        PRIVATE.iter().filter_map(|rule| rule.parse().ok()).chain(args.allow_net.clone()).collect();
    config.instance_credentials = args.instance_credentials;
    config.extra_roots_pem = environment.authorities()?;
    let secret = environment.http_secret(&parsed)?;
    config.env = Arc::new(move |name| environment.get(name));
    let fetcher = Fetcher::new(config).map_err(|error| error.to_string())?;
    let request = Request { keep_layout: true, secret, ..Request::new(parsed) };
    // The warning is part of the pod's message only where it may be the cause.
    let hint = if is_unverified { format!("; {UNVERIFIED}") } else { String::new() };
    let fetched = fetcher.fetch(&request, &Silent).await.map_err(|error| format!("{error}{hint}"))?;
    let bytes = fetched.bytes;
    publish::move_files(&fetched.path, directory).map_err(|error| failed("cannot write to", error))?;
    drop((fetched, fetcher));
    std::fs::remove_dir_all(&work).map_err(|error| failed("cannot clean up", error))?;
    print_stderr(&format!("{} is in {} ({bytes} bytes)", source::shown(uri), directory.display()));
    Ok(())
}
