//! A scikit-learn model in `MLServer`: the chart's runtime, with an image of the packages in `PyPI`.

use super::{file_server::FileServer, harness::Harness, inference_services as services, install};
use crate::{
    Failure, Unavailable,
    bench::wire::http::{self, Connection},
    image::{self, Contents, Image},
    metadata, python,
};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

const RUNTIME: &str = "gantry-mlserver";
/// An iris setosa and an iris virginica: the classes 0 and 2.
const ROWS: &str = "{\"inputs\":[{\"name\":\"X\",\"shape\":[2,4],\"datatype\":\"FP32\",\
                    \"data\":[5.1,3.5,1.4,0.2,6.7,3.0,5.2,2.3]}]}";

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let programs = match programs() {
        Err(failure) if failure.is::<Unavailable>() => {
            println!("    NOT TESTED: MLServer in a pod: {failure}");
            return Ok(());
        }
        programs => programs?,
    };
    services::apply_crds(harness)?;
    let installed = install::install(harness, &["--set", "inferenceServices.enabled=true"])?;
    install::serve(harness)?;
    let runtime = format!("clusterservingruntime/{RUNTIME}");
    let name = harness.kubectl(&["get", &runtime, "--output=jsonpath={.spec.containers[0].image}"])?;
    import(harness, &programs, &format!("docker.io/{name}"))?;
    let files = FileServer::serve(train(&programs, &harness.directory("mlserver")?)?)?;
    let model = json!({
        "modelFormat": { "name": "sklearn" },
        "protocolVersion": "v2",
        // Its worker processes do not start with the uvloop of this environment.
        "env": [{ "name": "MLSERVER_PARALLEL_WORKERS", "value": "0" }],
        "storageUri": format!("http://{}/model.joblib", files.address),
    });
    harness.apply(services::service("species", &json!({ "model": model }), &json!({})))?;
    services::ready(harness, "species")?;
    let chosen = "--output=jsonpath={.status.clusterServingRuntimeName}";
    let chosen = harness.kubectl(&["get", "inferenceservice/species", chosen])?;
    if chosen != RUNTIME {
        return Err(format!("the operator chose the runtime {chosen:?}").into());
    }
    predict(harness, harness.service("seldon-mesh", 80)?)?;
    harness.kubectl(&["delete", "inferenceservices", "--all", "--timeout=60s"])?;
    installed.uninstall(harness)
}

/// The environment that tests of agents use, too.
fn programs() -> Result<PathBuf, Failure> {
    let python = python::find((3, 11), (3, 13))
        .ok_or_else(|| Unavailable("its packages need Python 3.11 to 3.13 with venv and pip".into()))?;
    python::environment(&python, &metadata::root().join("tests/clients/servers/mlserver.txt"))
}

fn import(harness: &Harness, programs: &Path, name: &str) -> Result<(), Failure> {
    let mut contents = Contents::default();
    image::add_python(&mut contents, programs)?;
    let program = programs.join("mlserver").display().to_string();
    let archive = harness.directory("images")?.join("mlserver.tar");
    // The command of MLServer's own image. It writes its metrics to the working directory.
    let entrypoint = [program.as_str(), "start", "/mnt/models"];
    fs::write(&archive, Image { name, entrypoint: &entrypoint, directory: "/tmp", contents }.archive()?)?;
    harness.import(&archive)?;
    Ok(fs::remove_file(&archive)?)
}

/// A scikit-learn model.
fn train(programs: &Path, directory: &Path) -> Result<Vec<u8>, Failure> {
    let file = directory.join("model.joblib");
    let script = metadata::root().join("xtask/peers/train.py");
    let trained = Command::new(programs.join("python")).arg(script).arg(&file).status()?;
    if !trained.success() {
        return Err(format!("training the model failed: {trained}").into());
    }
    Ok(fs::read(file)?)
}

/// V2 through the gateway, by host and by path.
fn predict(harness: &Harness, mesh: SocketAddr) -> Result<(), Failure> {
    let path = "/v2/models/species/infer";
    let host = format!("species-{}.example.com", harness.namespace());
    let below = format!("/serving/{}/species{path}", harness.namespace());
    for request in [http::post_to(&host, path, ROWS), http::post(&below, "", ROWS)] {
        let answer: Value = serde_json::from_slice(Connection::open(mesh)?.call(&request)?)?;
        if answer.pointer("/outputs/0/data") != Some(&json!([0, 2])) {
            return Err(format!("unexpected response of MLServer: {answer}").into());
        }
    }
    Ok(())
}
