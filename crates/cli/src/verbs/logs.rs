//! `gantry logs`: what the serving process logged.

use crate::{
    args::Global,
    client::{Address, Connection, HttpProblem, error_text},
    failure::{Exit, Failure},
    output::emit,
    reference,
};
use gantry_api::Kind;
use http::StatusCode;
use http_body_util::BodyExt as _;

/// Print what the serving process logged.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry logs --lines 20\n  gantry logs model/iris -f")]
pub(crate) struct Args {
    /// Only lines about this model
    #[arg(value_name = "KIND/NAME")]
    what: Option<String>,
    /// Go on with every new line
    #[arg(short, long)]
    follow: bool,
    /// How many lines to begin with
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
    lines: u32,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let mut path = format!("/logs?lines={}", args.lines);
    if args.follow {
        path += "&follow=1";
    }
    if let Some(what) = &args.what {
        let [of] = reference::named(std::slice::from_ref(what))?
            .try_into()
            .map_err(|_| Failure::usage("logs are of one object at a time"))?;
        gantry_api::check_name(&of.name).map_err(|e| Failure::usage(format!("{of}: name {e}")))?;
        path += match of.kind {
            Kind::Model => "&model=",
            Kind::Server => "&server=",
        };
        path += &of.name;
    }
    let address = Address::parse(&global.admin(), 9003, "--admin")?;
    let mut connection = Connection::new(address.clone(), global.call_timeout());
    let answer = connection.stream(&path).await.map_err(|p| admin_failure(&address, &p))?;
    let status = answer.status();
    let mut body = answer.into_body();
    if status != StatusCode::OK {
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let said = error_text(status, &body);
        return Err(match status {
            StatusCode::NOT_FOUND => Failure::new(Exit::NotFound, format!("{address} has no logs: {said}")),
            _ => Failure::failed(format!("{address} answered {}: {said}", status.as_u16())),
        });
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Failure::unavailable(format!("{address} broke off: {e}")))?;
        if let Ok(data) = frame.into_data() {
            emit(data)?;
        }
    }
    Ok(())
}

/// Why the admin endpoint did not answer.
pub(crate) fn admin_failure(address: &Address, problem: &HttpProblem) -> Failure {
    match problem {
        HttpProblem::Refused => Failure::unavailable(format!(
            "no admin endpoint answers at {address}: start one with `gantry up`, or name another with --admin"
        )),
        HttpProblem::Late(time) => {
            Failure::new(Exit::Timeout, format!("{address} did not answer within {time:?}"))
        }
        HttpProblem::Broken(why) => Failure::unavailable(format!("{address} broke off: {why}")),
    }
}
