//! Reads, writes and watches.

use super::*;
use ::kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams},
};
use futures::TryStreamExt;

#[tokio::test(start_paused = true)]
async fn objects_are_created_updated_and_deleted() {
    let client = server().client("test", "default");
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &map("a", "1")).await.unwrap();
    assert_eq!(code(maps.create(&PostParams::default(), &map("a", "1")).await), 409);
    let mut stale = made.clone();
    let patched = maps
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"more": "x"}})))
        .await
        .unwrap();
    assert_eq!(patched.data.as_ref().unwrap().len(), 2);
    stale.data = None;
    assert_eq!(code(maps.replace("a", &PostParams::default(), &stale).await), 409);
    let wrong = Preconditions { uid: Some("other".into()), resource_version: None };
    let wrong = DeleteParams { preconditions: Some(wrong), ..DeleteParams::default() };
    assert_eq!(code(maps.delete("a", &wrong).await), 409);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn status_write_does_not_increment_generation() {
    let models = models(&server().client("test", "default"));
    let apply = PatchParams::apply("gantry/model");
    let model = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": "iris"},
        "spec": {"storageUri": "gs://a"}, "status": {"replicas": 9},
    });
    let made = models.patch("iris", &apply, &Patch::Apply(&model)).await.unwrap();
    assert_eq!((made.metadata.generation, made.data.get("status")), (Some(1), None));
    let status = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": "iris"}, "status": {"replicas": 1}, "spec": {"storageUri": "x"},
    });
    let updated = models.patch_status("iris", &apply, &Patch::Apply(&status)).await.unwrap();
    assert_eq!((updated.metadata.generation, &updated.data["status"]["replicas"]), (Some(1), &json!(1)));
    assert_eq!(updated.data["spec"]["storageUri"], "gs://a");
    let again = models.patch_status("iris", &apply, &Patch::Apply(&status)).await.unwrap();
    assert_eq!(again.resource_version(), updated.resource_version(), "applying the same is no write");
    let moved = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": "iris"},
        "spec": {"storageUri": "gs://b"},
    });
    let changed = models.patch("iris", &apply, &Patch::Apply(&moved)).await.unwrap();
    assert_eq!((changed.metadata.generation, &changed.data["status"]["replicas"]), (Some(2), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn finalizer_blocks_deletion_until_removed() {
    let models = models(&server().client("test", "default"));
    let model = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model",
        "metadata": {"name": "iris", "finalizers": ["gantry.dev/model"]}, "spec": {},
    });
    models.create(&PostParams::default(), &serde_json::from_value(model).unwrap()).await.unwrap();
    let deleted = models.delete("iris", &DeleteParams::default()).await.unwrap();
    assert!(deleted.left().unwrap().metadata.deletion_timestamp.is_some());
    let off = json!([
        {"op": "test", "path": "/metadata/finalizers/0", "value": "other"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    let patch = |patch: serde_json::Value| Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    assert_eq!(code(models.patch("iris", &PatchParams::default(), &patch(off)).await), 422);
    let off = json!([
        {"op": "test", "path": "/metadata/finalizers/0", "value": "gantry.dev/model"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    models.patch("iris", &PatchParams::default(), &patch(off)).await.unwrap();
    assert!(models.get_opt("iris").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn watch_reports_objects_entering_and_leaving_selector() {
    let client = server().client("test", "default");
    let maps = maps(&client);
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    maps.create(&PostParams::default(), &map("a", "1")).await.unwrap();
    maps.create(&PostParams::default(), &map("b", "2")).await.unwrap();
    let relabel = json!({"metadata": {"labels": {"value": "2"}}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(relabel)).await.unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    let events = maps.watch(&WatchParams::default().labels("value=2").timeout(5), &start).await.unwrap();
    let received: Vec<String> = events
        .map_ok(|event| match event {
            WatchEvent::Added(map) => format!("+{}", map.name_any()),
            WatchEvent::Deleted(map) => format!("-{}", map.name_any()),
            WatchEvent::Modified(map) => format!("~{}", map.name_any()),
            WatchEvent::Bookmark(_) => "bookmark".into(),
            WatchEvent::Error(status) => status.reason,
        })
        .try_collect()
        .await
        .unwrap();
    assert_eq!(received, ["+b", "+a", "-b"]);
}

#[tokio::test(start_paused = true)]
async fn list_pages_are_consistent_and_expire() {
    let server = server();
    let maps = maps(&server.client("test", "default"));
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &map(name, "1")).await.unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(1)));
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = maps.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(second.items[0].name_any(), "c", "a page is of the list's moment");
    server.with(|state| state.compact(state.revision()));
    assert_eq!(code(maps.list(&ListParams::default().limit(2).continue_token(&token)).await), 410);
}

#[tokio::test(start_paused = true)]
async fn gantry_crds_are_served() {
    let server = Server::new(Registry::with_gantry().unwrap(), 7, "2026-01-01T00:00:00Z".parse().unwrap());
    let client = server.client("test", "default");
    for (plural, kind) in [
        ("models", "Model"),
        ("servers", "Server"),
        ("pipelines", "Pipeline"),
        ("experiments", "Experiment"),
        ("seldonruntimes", "SeldonRuntime"),
        ("seldonconfigs", "SeldonConfig"),
        ("serverconfigs", "ServerConfig"),
    ] {
        let kind = GroupVersionKind::gvk("mlops.seldon.io", "v1alpha1", kind);
        let api: Api<DynamicObject> = Api::namespaced_with(
            client.clone(),
            "default",
            &ApiResource::from_gvk_with_plural(&kind, plural),
        );
        assert!(api.list(&ListParams::default()).await.unwrap().items.is_empty(), "{plural}");
    }
    let models = models(&client);
    let odd = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": "odd"},
        "spec": {"storageUri": 7},
    });
    assert_eq!(code(models.create(&PostParams::default(), &serde_json::from_value(odd).unwrap()).await), 422);
    let good = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": "iris"},
        "spec": {"storageUri": "gs://a", "requirements": ["sklearn"], "notAField": 1},
    });
    let made = models.create(&PostParams::default(), &serde_json::from_value(good).unwrap()).await.unwrap();
    assert_eq!(made.data["spec"].get("notAField"), None, "what the schema does not know is pruned");
    let client_version = client.apiserver_version().await.unwrap();
    assert_eq!((client_version.major.as_str(), client_version.minor.as_str()), ("1", "36"));
}
