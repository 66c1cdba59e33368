//! Manifests that a page sends: parsed, planned and applied.

use crate::scheduler::{Scheduler, as_cli, within};
use gantry_api::{Kind, Object, Parsed, check_set, parse, resolve_policies};
use gantry_proto::{
    gantry::{DeletePolicyRequest, PlanRequest},
    scheduler::{
        LoadModelRequest, LoadPipelineRequest, ModelReference, ServerNotify, ServerNotifyRequest,
        StartExperimentRequest, StopExperimentRequest, UnloadModelRequest, UnloadPipelineRequest,
    },
};
use tonic::Status;

/// The name of the text in messages.
const FILE: &str = "manifest";

/// The objects of a text, or all its errors. Servers and policies come before what needs them.
pub(crate) fn objects(text: &str) -> Result<Vec<Parsed>, Vec<String>> {
    let shown =
        |errors: Vec<gantry_api::Diagnostic>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut objects = parse(FILE, text).map_err(shown)?;
    let mut errors = check_set(&objects);
    errors.extend(resolve_policies(&mut objects));
    if !errors.is_empty() {
        return Err(shown(errors));
    }
    if objects.is_empty() {
        return Err(vec!["the manifest has no object".to_owned()]);
    }
    objects.sort_by_key(|parsed| parsed.object.kind());
    Ok(objects)
}

/// The dry run of applying objects. Policies are not part of it.
pub(crate) fn plan(objects: &[Parsed]) -> PlanRequest {
    let mut request = PlanRequest::default();
    for parsed in objects {
        match &parsed.object {
            Object::Model(model) => request.models.push(model.to_proto()),
            Object::Server(server) => request.servers.push(server.to_proto()),
            Object::Pipeline(pipeline) => request.pipelines.push(pipeline.to_proto()),
            Object::Experiment(experiment) => request.experiments.push(experiment.to_proto()),
            Object::RolloutPolicy(_) => {}
        }
    }
    request
}

/// The dry run of deleting an object; `None` for a kind without one.
pub(crate) fn plan_deletion(kind: Kind, name: &str) -> Option<PlanRequest> {
    let mut request = PlanRequest::default();
    match kind {
        Kind::Model => request.unload.push(name.to_owned()),
        Kind::Pipeline => request.unload_pipelines.push(name.to_owned()),
        Kind::Experiment => request.stop_experiments.push(name.to_owned()),
        Kind::Server | Kind::RolloutPolicy => return None,
    }
    Some(request)
}

pub(crate) async fn apply(scheduler: &Scheduler, object: &Object) -> Result<(), Status> {
    let mut client = scheduler.client();
    match object {
        Object::Model(model) => {
            let message = LoadModelRequest { model: Some(model.to_proto()) };
            within(client.load_model(as_cli(message))).await.map(drop)
        }
        Object::Server(server) => notify(scheduler, server.to_proto()).await,
        Object::Pipeline(pipeline) => {
            let message = LoadPipelineRequest { pipeline: Some(pipeline.to_proto()) };
            within(client.load_pipeline(as_cli(message))).await.map(drop)
        }
        Object::Experiment(experiment) => {
            let message = StartExperimentRequest { experiment: Some(experiment.to_proto()) };
            within(client.start_experiment(as_cli(message))).await.map(drop)
        }
        Object::RolloutPolicy(policy) => {
            within(scheduler.rollouts().put_policy(as_cli(policy.to_proto()))).await.map(drop)
        }
    }
}

pub(crate) async fn delete(scheduler: &Scheduler, kind: Kind, name: &str) -> Result<(), Status> {
    let mut client = scheduler.client();
    let name = name.to_owned();
    match kind {
        Kind::Model => {
            let model = Some(ModelReference { name, version: None });
            let message = UnloadModelRequest { model, kubernetes_meta: None };
            within(client.unload_model(as_cli(message))).await.map(drop)
        }
        Kind::Server => {
            let absent = ServerNotify { name, shared: true, ..ServerNotify::default() };
            notify(scheduler, absent).await
        }
        Kind::Pipeline => {
            within(client.unload_pipeline(as_cli(UnloadPipelineRequest { name }))).await.map(drop)
        }
        Kind::Experiment => {
            within(client.stop_experiment(as_cli(StopExperimentRequest { name }))).await.map(drop)
        }
        Kind::RolloutPolicy => {
            within(scheduler.rollouts().delete_policy(as_cli(DeletePolicyRequest { name }))).await.map(drop)
        }
    }
}

async fn notify(scheduler: &Scheduler, server: ServerNotify) -> Result<(), Status> {
    let message = ServerNotifyRequest { servers: vec![server], is_first_sync: false };
    within(scheduler.client().server_notify(as_cli(message))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_line_and_the_remedy() {
        let model = "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {name: m}\nspec:\n  storagUri: /m\n";
        let errors = objects(model).unwrap_err();
        assert!(errors[0].starts_with("manifest:5: spec.storagUri is not a field of Model"), "{errors:?}");
        assert_eq!(objects("").unwrap_err(), ["the manifest has no object"]);
    }

    #[test]
    fn servers_are_applied_before_models() {
        let text = "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {name: m}\nspec: {storageUri: /m}\n---\n\
                    apiVersion: mlops.seldon.io/v1alpha1\nkind: Server\nmetadata: {name: s}\nspec: {serverConfig: mlserver}\n";
        let objects = objects(text).unwrap();
        assert_eq!(objects.iter().map(|p| p.object.name()).collect::<Vec<_>>(), ["s", "m"]);
        let request = plan(&objects);
        assert_eq!((request.models.len(), request.servers.len()), (1, 1));
    }
}
