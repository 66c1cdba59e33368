//! `gantry adopt`: take objects over from whoever manages them.

use crate::{
    args::Global,
    client::Scheduler,
    failure::{Exit, Failure},
    output::{emit_line, say},
    reference,
};

/// Take models or servers over from whoever manages them.
///
/// Every object belongs to whoever asked for it first: a file, the command line, an operator. A change by somebody
/// else is refused until the object is taken over on purpose. Nothing else changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry adopt model/iris\n  gantry adopt model iris fraud")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let what = reference::named(&args.what)?;
    let scheduler = Scheduler::connect(global).await?;
    let mut missing = false;
    for one in &what {
        match scheduler.adopt(one).await {
            Ok(previous) => emit_line(&format!("{one} {}", words(&previous)))?,
            Err(failure) if failure.exit == Exit::NotFound => {
                say(&failure.message);
                missing = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    if missing { Err(Failure::said(Exit::NotFound)) } else { Ok(()) }
}

fn words(previous: &str) -> String {
    match previous.split_once(':') {
        _ if previous == "cli" => "belongs to the command line already".into(),
        _ if previous.is_empty() => "adopted: it belonged to nobody".into(),
        Some(("file", path)) => {
            format!(
                "adopted from the file {path}; while gantry up follows that file, it will ask for its own again"
            )
        }
        Some(("operator", namespace)) if !namespace.is_empty() => {
            format!("adopted from the operator (namespace {namespace})")
        }
        _ if previous.starts_with("operator") => "adopted from the operator".into(),
        _ => format!("adopted from {previous}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_before_is_named() {
        for (previous, says) in [
            ("", "adopted: it belonged to nobody"),
            ("cli", "belongs to the command line already"),
            ("operator:ml", "adopted from the operator (namespace ml)"),
            ("operator:", "adopted from the operator"),
            ("terraform", "adopted from terraform"),
        ] {
            assert_eq!(words(previous), says);
        }
        assert!(words("file:/m/iris.yaml").starts_with("adopted from the file /m/iris.yaml"));
    }
}
