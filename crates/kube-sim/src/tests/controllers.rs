//! Built-in controllers.

use super::*;
use ::kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{Namespace, Pod},
};

#[tokio::test(start_paused = true)]
async fn controllers_drive_workloads_and_namespaces() {
    let server = server();
    let client = server.client("test", "default");
    let mover = server.clone();
    let controllers =
        Controllers { workloads: Some(Workloads::new(Duration::from_secs(3), true)), ..Controllers::all() };
    let task = tokio::spawn(async move { mover.run(controllers).await });
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let ready = async |wanted: i32| {
        until(async || {
            let status = sets.get("web").await.unwrap().status?;
            (status.ready_replicas.unwrap_or(0) == wanted && status.replicas == wanted).then_some(())
        })
        .await;
    };
    let apply = PatchParams::apply("gantry/server");
    sets.patch("web", &apply, &Patch::Apply(stateful_set(3, "web:1"))).await.unwrap();
    ready(3).await;
    assert_eq!(pods.list(&ListParams::default().labels("app=web")).await.unwrap().items.len(), 3);
    let scale = json!({"spec": {"replicas": 1}});
    sets.patch_scale("web", &PatchParams::default(), &Patch::Merge(&scale)).await.unwrap();
    ready(1).await;
    let before = pods.get("web-0").await.unwrap().uid();
    let only = stateful_set(1, "web:2");
    sets.patch("web", &apply.clone().force(), &Patch::Apply(only)).await.unwrap();
    until(async || (pods.get_opt("web-0").await.unwrap()?.uid() != before).then_some(())).await;
    sets.delete("web", &DeleteParams::default()).await.unwrap();
    until(async || pods.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())).await;

    let spaces: Api<Namespace> = Api::all(client.clone());
    let mut held = map("held", "1");
    held.metadata.finalizers = Some(vec!["gantry.dev/held".into()]);
    maps(&client).create(&PostParams::default(), &held).await.unwrap();
    spaces.delete("default", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(maps(&client).create(&PostParams::default(), &map("late", "1")).await), 403);
    let off = json!({"metadata": {"finalizers": null}});
    maps(&client).patch("held", &PatchParams::default(), &Patch::Merge(off)).await.unwrap();
    until(async || spaces.get_opt("default").await.unwrap().is_none().then_some(())).await;
    task.abort();
    let _ = task.await;
}

#[tokio::test(start_paused = true)]
async fn owner_with_different_uid_does_not_keep_dependents() {
    let server = server();
    let mover = server.clone();
    let maps = maps(&server.client("test", "default"));
    let owner = maps.create(&PostParams::default(), &map("owner", "1")).await.unwrap();
    let mut child = map("child", "1");
    child.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid().unwrap(),
    }]))
    .unwrap();
    maps.create(&PostParams::default(), &child).await.unwrap();
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &map("owner", "1")).await.unwrap();
    let task = tokio::spawn(async move { mover.run(Controllers::all()).await });
    until(async || maps.get_opt("child").await.unwrap().is_none().then_some(())).await;
    assert!(maps.get_opt("owner").await.unwrap().is_some());
    task.abort();
    let _ = task.await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_for_dependents_and_orphans_stay() {
    let server = server();
    let mover = server.clone();
    let task = tokio::spawn(async move { mover.run(Controllers::all()).await });
    let maps = maps(&server.client("test", "default"));
    for (owner, how, child_stays) in
        [("f", DeleteParams::foreground(), false), ("o", DeleteParams::orphan(), true)]
    {
        let made = maps.create(&PostParams::default(), &map(owner, "1")).await.unwrap();
        let mut child = map(&format!("{owner}-child"), "1");
        child.metadata.owner_references = serde_json::from_value(json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": made.uid().unwrap(), "blockOwnerDeletion": true,
        }]))
        .unwrap();
        maps.create(&PostParams::default(), &child).await.unwrap();
        maps.delete(owner, &how).await.unwrap();
        until(async || maps.get_opt(owner).await.unwrap().is_none().then_some(())).await;
        let child = maps.get_opt(&format!("{owner}-child")).await.unwrap();
        assert_eq!(child.is_some(), child_stays, "{owner}");
        assert!(child.is_none_or(|child| child.owner_references().is_empty()), "an orphan has no owner");
    }
    task.abort();
    let _ = task.await;
}

#[tokio::test(start_paused = true)]
async fn deployment_without_pods_becomes_available_and_settles() {
    let server = server();
    let mover = server.clone();
    let task = tokio::spawn(async move { mover.run(Controllers::all()).await });
    let deployments: Api<Deployment> = Api::namespaced(server.client("test", "default"), "default");
    let mut deployment = stateful_set(2, "web:1");
    deployment["kind"] = json!("Deployment");
    deployment["spec"].as_object_mut().unwrap().remove("serviceName");
    deployments.patch("web", &PatchParams::apply("test"), &Patch::Apply(deployment)).await.unwrap();
    let ready = until(async || {
        let found = deployments.get("web").await.unwrap();
        (found.status.as_ref()?.ready_replicas == Some(2)).then_some(found)
    })
    .await;
    let status = ready.status.unwrap();
    assert_eq!((status.observed_generation, status.available_replicas), (Some(1), Some(2)));
    let revision = server.with(|state| state.revision());
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(server.with(|state| state.revision()), revision, "a quiet world writes nothing");
    task.abort();
    let _ = task.await;
}
