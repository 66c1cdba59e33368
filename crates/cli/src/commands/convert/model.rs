//! `gantry convert MODEL`: converts a model by its own library, and compares the predictions.

use super::compare;
use crate::{
    error::{CommandError, Exit},
    output::{emit_line, print_stderr},
};
use gantry_python::{Converted, Converter, Environments, Recognised, Route, convert, recognise};
use gantry_runtime::{Config, Runtime};
use gantry_standalone::onnx_worker;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(30);

pub(super) fn run(
    path: &Path,
    output: Option<&Path>,
    sample: Option<&Path>,
    force: bool,
) -> Result<(), CommandError> {
    for file in [Some(path), sample].into_iter().flatten() {
        if !file.exists() {
            return Err(CommandError::usage(format!("{} does not exist", file.display())));
        }
    }
    let shown = path.display();
    let Some(model) = recognise(path) else {
        let message = format!("{shown} is no model that is known: docs/models.md lists the formats");
        return Err(CommandError::usage(message));
    };
    if let Route::Builtin(_) = model.route {
        let description = &model.description;
        return Err(CommandError::usage(format!(
            "{shown} is served as it is ({description}): gantry up {shown}"
        )));
    }
    let Some(converter) = model.converter else {
        return Err(CommandError::usage(format!("{shown}: {}", model.refusal(&shown.to_string()))));
    };
    let target = output.map_or_else(|| beside(path, converter), Path::to_owned);
    if target.exists() && !force {
        let target = target.display();
        return Err(CommandError::new(
            Exit::Refused,
            format!("{target} exists: replace it with --force, or name another file with -o"),
        ));
    }
    print_stderr(&format!("{shown}: {}", model.description));
    if model.runs_code {
        print_stderr("  loading it runs the code in it");
    }
    convert_to(&target, path, &model, converter, sample)?;
    print_stderr(&format!("serve it: gantry up {}", target.display()));
    emit_line(&target.display().to_string())
}

/// `churn.pkl` becomes `churn.onnx`, the folder `flowers` becomes `flowers.onnx`.
fn beside(path: &Path, converter: Converter) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = if path.is_dir() {
        name.as_str()
    } else {
        name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem)
    };
    path.with_file_name(format!("{stem}.{}", converter.ending()))
}

fn convert_to(
    target: &Path,
    path: &Path,
    model: &Recognised,
    converter: Converter,
    sample: Option<&Path>,
) -> Result<(), CommandError> {
    let shown = path.display();
    let environments = Environments::of_user().map_err(CommandError::usage)?;
    let environment = environments
        .prepare(&converter.requirements(model), &mut |line| print_stderr(&format!("  {line}")))
        .map_err(|e| CommandError::unavailable(format!("{shown}: {e}")))?;
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed =
        |e: std::io::Error| CommandError::failed(format!("{} is not writable: {e}", folder.display()));
    // In the folder of the target, so that it can be moved there at once.
    let draft = tempfile::Builder::new().prefix(".gantry-convert-").tempdir_in(folder).map_err(failed)?;
    let file = draft.path().join(format!("model.{}", converter.ending()));
    let converted = convert(&environment, model, converter, sample, &file, LIMIT).map_err(|reason| {
        CommandError::failed(format!("{shown}: {reason}\nNothing was written.{}", python(path, model)))
    })?;
    let version = environment.installed(&converted.tool.replace('.', "-")).unwrap_or_default();
    let tool = format!("{} {version}", converted.tool);
    print_stderr(&format!("  converted by {} with Python {}", tool.trim(), environment.version()));
    let report = agrees(&file, &converted).map_err(|reason| {
        CommandError::failed(format!("{shown}: {reason}\nNothing was written.{}", python(path, model)))
    })?;
    print_stderr(&format!("  {report}"));
    if let Some(note) = &converted.note {
        print_stderr(&format!("  note: {note}"));
    }
    std::fs::rename(&file, target).map_err(failed)
}

/// The other way to serve the model.
fn python(path: &Path, model: &Recognised) -> String {
    match model.route {
        Route::Python { .. } => {
            format!(" Serve it by its library: gantry up {} --allow-python", path.display())
        }
        _ => String::new(),
    }
}

/// Runs the converted model in the built-in runtime, as `gantry up` will.
fn agrees(file: &Path, converted: &Converted) -> Result<String, String> {
    let config = Config { onnx_worker: onnx_worker::command(), ..Config::default() };
    let runtime = Runtime::new(config).map_err(|e| format!("no inference threads: {e}"))?;
    runtime
        .load("model", file, [])
        .map_err(|e| format!("it was converted, but the built-in runtime does not serve the result: {e}"))?;
    let answer = runtime
        .evaluate("model", &converted.sample.inputs)
        .map_err(|e| format!("it was converted, but the built-in runtime fails on the sample: {e}"))?;
    compare::compare(&converted.sample.expected, &answer)
}
