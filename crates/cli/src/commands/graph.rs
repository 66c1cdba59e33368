//! `gantry graph`: a drawing of a pipeline.

use crate::{
    args::Global,
    client::{Scheduler, block_on},
    error::{CommandError, Exit},
    manifests::Manifests,
    object_ref,
    output::emit_document,
    view::Resource,
};
use clap::ValueEnum;
use gantry_api::{Drawing, Kind, Object, Pipeline};
use std::path::PathBuf;

/// Draw the graph of a pipeline.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry graph pipeline/join\n  gantry graph pipeline/join -o svg > join.svg\n  \
    gantry graph -f join.yaml -o mermaid"
)]
pub(crate) struct Args {
    /// pipeline NAME…, or pipeline/NAME…
    #[arg(value_name = "RESOURCE", required_unless_present = "files", conflicts_with = "files")]
    resources: Vec<String>,
    /// Draw the pipelines of a manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Lines for a terminal
    Text,
    /// A Mermaid flowchart, as in Markdown
    Mermaid,
    /// An SVG image
    Svg,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let pipelines =
        if args.files.is_empty() { block_on(fetch(global, &args.resources))? } else { read(&args.files)? };
    let drawing = match args.output {
        Form::Text => Drawing::Text,
        Form::Mermaid => Drawing::Mermaid,
        Form::Svg => Drawing::Svg,
    };
    for pipeline in &pipelines {
        let drawn = pipeline.spec.draw(&pipeline.metadata.name, drawing);
        emit_document(&drawn.map_err(CommandError::failed)?)?;
    }
    Ok(())
}

fn read(files: &[PathBuf]) -> Result<Vec<Pipeline>, CommandError> {
    let objects = Manifests::read(files, false)?.checked("Nothing was drawn.")?;
    let pipeline = |object| match object {
        Object::Pipeline(pipeline) => Some(*pipeline),
        _ => None,
    };
    let pipelines: Vec<Pipeline> = objects.into_iter().filter_map(|p| pipeline(p.object)).collect();
    if pipelines.is_empty() {
        return Err(CommandError::usage("the manifests contain no pipelines: nothing was drawn"));
    }
    Ok(pipelines)
}

async fn fetch(global: &Global, resources: &[String]) -> Result<Vec<Pipeline>, CommandError> {
    let objects = object_ref::named(resources)?;
    if let Some(other) = objects.iter().find(|object| object.kind != Kind::Pipeline) {
        return Err(CommandError::usage(format!("{other} has no graph: name a pipeline")));
    }
    let scheduler = Scheduler::connect(global).await?;
    let mut pipelines = Vec::new();
    for object in &objects {
        let found = scheduler.resource(object, false).await?;
        let Some(Resource::Pipeline(found)) = found.filter(|found| !found.is_terminated()) else {
            return Err(scheduler.not_found(object).await);
        };
        let Some(latest) = found.latest() else {
            return Err(CommandError::new(Exit::NotFound, format!("{object} has no version")));
        };
        pipelines.push(Pipeline::from_proto(&latest.definition));
    }
    Ok(pipelines)
}
