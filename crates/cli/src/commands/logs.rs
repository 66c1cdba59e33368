//! `gantry logs`: logs of the serving process.

use crate::{
    args::Global,
    client::{Address, Connection, HttpError, error_text},
    error::{CommandError, Exit},
    object_ref,
    output::emit,
};
use gantry_api::Kind;
use http::StatusCode;
use http_body_util::BodyExt as _;

/// Print logs of the serving process, one model or one server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry logs --lines 20\n  gantry logs model/iris -f")]
pub(crate) struct Args {
    /// Only lines of this model or server
    #[arg(value_name = "KIND/NAME")]
    resource: Option<String>,
    /// Stream new lines
    #[arg(short, long)]
    follow: bool,
    /// Number of recent lines to print
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
    lines: u32,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let mut path = format!("/logs?lines={}", args.lines);
    if args.follow {
        path += "&follow=1";
    }
    if let Some(resource) = &args.resource {
        let [object] = object_ref::named(std::slice::from_ref(resource))?
            .try_into()
            .map_err(|_| CommandError::usage("logs accepts one object"))?;
        gantry_api::check_name(&object.name)
            .map_err(|e| CommandError::usage(format!("{object}: name {e}")))?;
        path += match object.kind {
            Kind::Model => "&model=",
            Kind::Server => "&server=",
            Kind::Pipeline | Kind::Experiment | Kind::RolloutPolicy => {
                return Err(CommandError::usage(format!("{object} has no logs: name a model of it")));
            }
        };
        path += &object.name;
    }
    let address = Address::parse(&global.admin(), 9003, "--admin")?;
    let mut connection = Connection::new(address.clone(), global.call_timeout());
    let response = connection.stream(&path).await.map_err(|e| admin_error(&address, &e))?;
    let status = response.status();
    let mut body = response.into_body();
    if status != StatusCode::OK {
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let error = error_text(status, &body);
        return Err(match status {
            StatusCode::NOT_FOUND => {
                CommandError::new(Exit::NotFound, format!("{address} has no logs: {error}"))
            }
            _ => CommandError::failed(format!("{address} returned HTTP {}: {error}", status.as_u16())),
        });
    }
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| CommandError::unavailable(format!("connection to {address} closed: {e}")))?;
        if let Ok(data) = frame.into_data() {
            emit(data)?;
        }
    }
    Ok(())
}

pub(crate) fn admin_error(address: &Address, error: &HttpError) -> CommandError {
    match error {
        HttpError::Refused => CommandError::unavailable(format!(
            "no admin endpoint at {address}: start one with `gantry up`, or set --admin"
        )),
        HttpError::Timeout(time) => {
            CommandError::new(Exit::Timeout, format!("{address} did not answer within {time:?}"))
        }
        HttpError::Failed(why) => CommandError::unavailable(format!("connection to {address} failed: {why}")),
    }
}
