//! The operator in one namespace: a `SeldonRuntime`, a Server, a Model from a mounted volume; then the same Server as a
//! Deployment; then removal.

use super::{
    harness::Harness,
    inference_check::InferenceCheck,
    install::{install, model, serve},
};
use crate::Failure;

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let one_namespace = ["--set", "clusterwide=false"];
    install(harness, &one_namespace)?;
    serve(harness)?;
    model(harness, "iris", "iris", "onnx", 2)?;
    let mesh = harness.service("seldon-mesh", 80)?;
    InferenceCheck::iris(mesh)?;
    harness.gantry(&["check", "--namespace", &harness.namespace()])?;

    let deployments = ["--set", "clusterwide=false,operator.useDeploymentsForServers=true"];
    let installed = install(harness, &deployments)?;
    harness.until(
        "a Deployment in place of the StatefulSet",
        60,
        &["get", "deployment,statefulset", "--output=name"],
        |output| output.contains("deployment.apps/gantry\n") && !output.contains("statefulset.apps/gantry\n"),
    )?;
    harness.kubectl(&["rollout", "status", "deployment/gantry", "--timeout=120s"])?;
    harness.wait_for("condition=Ready", &["server/gantry", "model/iris"], 120)?;
    InferenceCheck::iris(mesh)?;

    installed.uninstall(harness)?;
    harness.until(
        "removal of all objects",
        120,
        &["get", "pods,services,statefulsets,deployments", "--output=name"],
        str::is_empty,
    )
}
