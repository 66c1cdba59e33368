//! Ownership: only the owner changes an object.

use crate::harness::{by, client, control, model, pipeline, scheduler, status, unload, with_kubernetes_meta};
use gantry_proto::{
    gantry::AdoptRequest,
    scheduler::{
        Experiment, ExperimentCandidate, KubernetesMeta, ModelStatusResponse, ServerNotify,
        ServerNotifyRequest, ServerStatusRequest, StartExperimentRequest, StopExperimentRequest,
        UnloadPipelineRequest,
    },
};
use tonic::{Code, Request};

#[tokio::test(flavor = "multi_thread")]
async fn change_by_another_owner_is_rejected_with_owner() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    c.load_model(by("file:/srv/iris.yaml", model("iris", "/a"))).await.unwrap();
    c.load_model(model("typed", "/a")).await.unwrap();
    c.load_model(with_kubernetes_meta(model("kube", "/a"), 7)).await.unwrap();
    for (name, manager) in [("iris", "file:/srv/iris.yaml"), ("typed", "cli"), ("kube", "operator:ml")] {
        assert_eq!(status(&mut c, name).await.manager, manager);
    }
    for (name, owner) in [("iris", "/srv/iris.yaml"), ("kube", "namespace ml, generation 7")] {
        let refused = c.unload_model(unload(name)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(owner), "{}", refused.message());
        assert!(refused.message().contains(&format!("gantry adopt model/{name}")), "{}", refused.message());
        assert!(c.load_model(model(name, "/b")).await.is_err());
    }
    // Allowed: the owner, and a gateway acting for it.
    c.load_model(by("file:/srv/iris.yaml", model("iris", "/b"))).await.unwrap();
    c.unload_model(by("owner", unload("kube"))).await.unwrap();
    let nameless = c.load_model(by("", model("x", "/a"))).await.unwrap_err();
    assert!(nameless.message().contains("gantry-manager"), "{}", nameless.message());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_without_a_generation_is_not_the_operators() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    // As Seldon's CLI: metadata without a generation with a load, none with an unload.
    for kubernetes_meta in
        [KubernetesMeta::default(), KubernetesMeta { namespace: "ml".into(), generation: 0 }]
    {
        let mut request = model("iris", "/a");
        request.model.as_mut().unwrap().meta.as_mut().unwrap().kubernetes_meta = Some(kubernetes_meta);
        c.load_model(request).await.unwrap();
        assert_eq!(status(&mut c, "iris").await.manager, "cli");
        c.unload_model(unload("iris")).await.unwrap();
    }
    running.stop().await;
}

/// Seldon's operator: metadata with a load, only a name with a deletion, no header with either.
#[tokio::test(flavor = "multi_thread")]
async fn seldon_operator_deletes_its_pipelines_and_experiments() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let kubernetes_meta = Some(KubernetesMeta { namespace: "ml".into(), generation: 3 });
    let load = |name: &str| {
        let mut request = pipeline(name, &["a"]);
        request.pipeline.as_mut().unwrap().kubernetes_meta.clone_from(&kubernetes_meta);
        request
    };
    let start = |name: &str| {
        let candidate = |name: &str| ExperimentCandidate { name: name.into(), weight: 1 };
        let experiment = Experiment {
            name: name.into(),
            candidates: vec![candidate("a"), candidate("b")],
            kubernetes_meta: kubernetes_meta.clone(),
            ..Default::default()
        };
        StartExperimentRequest { experiment: Some(experiment) }
    };
    let unload = |name: &str| UnloadPipelineRequest { name: name.into() };
    let stop = |name: &str| StopExperimentRequest { name: name.into() };
    c.load_pipeline(load("theirs")).await.unwrap();
    c.start_experiment(start("theirs")).await.unwrap();
    // Gantry's operator.
    c.load_pipeline(replacing(load("ours"))).await.unwrap();
    c.start_experiment(replacing(start("ours"))).await.unwrap();
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    for refused in [
        c.unload_pipeline(unload("ours")).await.unwrap_err(),
        c.stop_experiment(stop("ours")).await.unwrap_err(),
        c.unload_pipeline(by("cli", unload("theirs"))).await.unwrap_err(),
        c.stop_experiment(by("cli", stop("theirs"))).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("belongs to the operator (namespace ml"), "{refused:?}");
    }
    c.unload_pipeline(unload("theirs")).await.unwrap();
    c.stop_experiment(stop("theirs")).await.unwrap();
    c.unload_pipeline(by("operator:ml", unload("ours"))).await.unwrap();
    c.stop_experiment(by("operator:ml", stop("ours"))).await.unwrap();
    running.stop().await;
}

fn replacing<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("gantry-replaces-generation", 0.into());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn load_by_a_gateway_neither_revives_a_deleted_model_nor_changes_one() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let file = "file:/srv/iris.yaml";
    c.load_model(by(file, model("iris", "/b"))).await.unwrap();
    // The gateway read the definition before its owner changed it.
    c.load_model(by("owner", model("iris", "/a"))).await.unwrap();
    let uri =
        |status: ModelStatusResponse| status.versions[0].model_defn.clone().unwrap().model_spec.unwrap().uri;
    assert_eq!(uri(status(&mut c, "iris").await), "/b");
    // What a gateway unloaded it may load again, also after a restart.
    c.unload_model(by("owner", unload("iris"))).await.unwrap();
    assert!(status(&mut c, "iris").await.deleted);
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    c.load_model(by("owner", model("iris", "/a"))).await.unwrap();
    let restored = status(&mut c, "iris").await;
    assert_eq!((restored.deleted, restored.manager.as_str()), (false, file));
    assert_eq!(uri(restored), "/b");
    // What its owner deleted stays deleted.
    c.unload_model(by("owner", unload("iris"))).await.unwrap();
    c.unload_model(by(file, unload("iris"))).await.unwrap();
    let refused = c.load_model(by("owner", model("iris", "/a"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("iris was deleted"), "{}", refused.message());
    assert!(status(&mut c, "iris").await.deleted);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adopt_transfers_ownership() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut control = control(&running).await;
    c.load_model(with_kubernetes_meta(model("iris", "/a"), 1)).await.unwrap();
    let adopt = |kind: &str, name: &str| AdoptRequest { kind: kind.into(), name: name.into() };
    let adopted = control.adopt(adopt("model", "iris")).await.unwrap().into_inner();
    assert_eq!(adopted.previous, "operator:ml");
    assert_eq!(status(&mut c, "iris").await.manager, "cli");
    c.load_model(model("iris", "/b")).await.unwrap();
    let notify = |kubernetes: Option<KubernetesMeta>| ServerNotifyRequest {
        servers: vec![ServerNotify {
            name: "big".into(),
            expected_replicas: 1,
            kubernetes_meta: kubernetes,
            ..Default::default()
        }],
        is_first_sync: false,
    };
    let kubernetes = KubernetesMeta { namespace: "ml".into(), generation: 1 };
    c.server_notify(notify(Some(kubernetes))).await.unwrap();
    assert_eq!(c.server_notify(notify(None)).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(control.adopt(adopt("server", "big")).await.unwrap().into_inner().previous, "operator:ml");
    c.server_notify(notify(None)).await.unwrap();
    let servers = crate::harness::all(c.server_status(ServerStatusRequest::default()).await.unwrap()).await;
    assert_eq!(servers[0].manager, "cli");
    let owner = control.adopt(by("owner", adopt("model", "iris"))).await.unwrap_err();
    assert_eq!(owner.code(), Code::FailedPrecondition);
    running.stop().await;
}
