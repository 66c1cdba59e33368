//! `gantry adopt`: transfers ownership of objects to the CLI.

use crate::{
    args::Global,
    client::Scheduler,
    error::{CommandError, Exit},
    object_ref,
    output::{emit_line, print_stderr},
};

/// Transfer ownership of objects to the CLI.
///
/// The first manager of an object owns it: a file, the CLI, an operator. Changes by another manager are refused until it
/// adopts the object. The object itself does not change.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry adopt model/iris\n  gantry adopt model iris fraud")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<String>,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let objects = object_ref::named(&args.resources)?;
    let scheduler = Scheduler::connect(global).await?;
    let mut missing = false;
    for object in &objects {
        match scheduler.adopt(object).await {
            Ok(previous) => emit_line(&format!("{object} {}", result(&previous)))?,
            Err(error) if error.exit == Exit::NotFound => {
                print_stderr(&error.message);
                missing = true;
            }
            Err(error) => return Err(error),
        }
    }
    if missing { Err(CommandError::silent(Exit::NotFound)) } else { Ok(()) }
}

fn result(previous: &str) -> String {
    match previous.split_once(':') {
        _ if previous == "cli" => "is already owned by the CLI".into(),
        _ if previous.is_empty() => "adopted: it had no owner".into(),
        Some(("file", path)) => {
            format!("adopted from file {path}; a gantry up that watches the file will apply it again")
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
    fn result_names_the_previous_owner() {
        for (previous, expected) in [
            ("", "adopted: it had no owner"),
            ("cli", "is already owned by the CLI"),
            ("operator:ml", "adopted from the operator (namespace ml)"),
            ("operator:", "adopted from the operator"),
            ("terraform", "adopted from terraform"),
        ] {
            assert_eq!(result(previous), expected);
        }
        assert!(result("file:/m/iris.yaml").starts_with("adopted from file /m/iris.yaml;"));
    }
}
