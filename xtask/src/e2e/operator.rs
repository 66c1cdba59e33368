//! Inside, with the operator: the chart for one namespace, a `SeldonRuntime`, a Server, a Model of a mounted volume; then
//! the same Server as a Deployment. At the end all of it goes again.

use super::{
    install::{install, model, serve},
    question::Question,
    world::World,
};
use crate::Failure;

pub(super) fn run(world: &World) -> Result<(), Failure> {
    let one_namespace = ["--set", "clusterwide=false"];
    install(world, &one_namespace)?;
    serve(world)?;
    model(world, "iris", "iris", "onnx", 2)?;
    let mesh = world.service("seldon-mesh", 80)?;
    Question::iris(mesh)?;
    world.gantry(&["check", "--namespace", &world.namespace()])?;

    let deployments = ["--set", "clusterwide=false,operator.useDeploymentsForServers=true"];
    let installed = install(world, &deployments)?;
    world.until(
        "a Deployment in place of the StatefulSet",
        60,
        &["get", "deployment,statefulset", "--output=name"],
        |said| said.contains("deployment.apps/gantry\n") && !said.contains("statefulset.apps/gantry\n"),
    )?;
    world.kubectl(&["rollout", "status", "deployment/gantry", "--timeout=120s"])?;
    world.wait_for("condition=Ready", &["server/gantry", "model/iris"], 120)?;
    Question::iris(mesh)?;

    installed.uninstall(world)?;
    world.until(
        "the end of everything that was made",
        120,
        &["get", "pods,services,statefulsets,deployments", "--output=name"],
        str::is_empty,
    )
}
