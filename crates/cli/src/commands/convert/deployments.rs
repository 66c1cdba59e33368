//! `gantry convert -f`: objects of Seldon Core v1 as Models, Servers, Pipelines and Experiments.

use crate::{
    error::{CommandError, Exit},
    manifests::read_files,
    output::{count, emit, print_stderr},
};
use gantry_api::{Conversion, convert_seldon_deployments};
use std::path::PathBuf;

pub(super) fn run(files: &[PathBuf], recursive: bool) -> Result<(), CommandError> {
    let mut conversions = Vec::new();
    let mut problems = Vec::new();
    for (file, text) in read_files(files, recursive)? {
        match text {
            Ok(text) => match convert_seldon_deployments(&file, &text) {
                Ok(found) => conversions.extend(found.into_iter().map(|c| (file.clone(), c))),
                Err(errors) => problems.extend(errors.iter().map(ToString::to_string)),
            },
            Err(message) => problems.push(format!("{file}: {message}")),
        }
    }
    if !problems.is_empty() {
        return Err(CommandError::new(
            Exit::Usage,
            format!("{}\nNothing was converted.", problems.join("\n")),
        ));
    }
    if conversions.is_empty() {
        return Err(CommandError::usage("no SeldonDeployment of machinelearning.seldon.io found"));
    }
    let mut documents = Vec::new();
    for (file, conversion) in &conversions {
        documents.extend(manifests(file, conversion)?);
    }
    emit(documents.join("---\n"))?;
    let notes: Vec<_> = conversions.iter().flat_map(|(_, c)| &c.notes).collect();
    for note in &notes {
        print_stderr(&note.to_string());
    }
    let objects: usize = conversions.iter().map(|(_, c)| c.objects.len()).sum();
    print_stderr(&format!(
        "{} from {}, {} to read",
        count(objects as u64, "object"),
        count(conversions.len() as u64, "SeldonDeployment"),
        count(notes.len() as u64, "note")
    ));
    Ok(())
}

/// The manifests of one deployment; the notes are comments of the first.
fn manifests(file: &str, conversion: &Conversion) -> Result<Vec<String>, CommandError> {
    let mut comment = format!("# From SeldonDeployment {} in {file}.\n", conversion.name);
    for note in &conversion.notes {
        // A line break would end the comment.
        let text: String = note.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        comment += &format!("# {text}\n");
    }
    let failed = |e: &dyn std::fmt::Display| CommandError::failed(format!("cannot serialize: {e}"));
    let mut documents = Vec::new();
    for object in &conversion.objects {
        let yaml = serde_saphyr::to_string(object).map_err(|e| failed(&e))?;
        documents.push(format!("{}{yaml}", std::mem::take(&mut comment)));
    }
    Ok(documents)
}
