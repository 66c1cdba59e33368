//! A new kind, complete: another group, cluster-scoped, with a relation to Model.

use crate::registered::{get, start};
use gantry_operator::{
    Caches, Controller, Relation,
    cluster::{Custom, CustomKind, Key, Model, ResourceScope},
    controllers::Registry,
    plan::Plan,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Lists the models of a namespace with their readiness.
#[derive(Clone, Debug)]
struct ModelReport;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ReportSpec {
    namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ReportStatus {
    models: Vec<String>,
}

impl CustomKind for ModelReport {
    const GROUP: &'static str = "reports.example.com";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "ModelReport";
    const PLURAL: &'static str = "modelreports";
    const SCOPE: ResourceScope = ResourceScope::Cluster;
    type Spec = ReportSpec;
    type Status = ReportStatus;
}

struct ModelReportController;

impl Controller for ModelReportController {
    type Kind = ModelReport;
    type Snapshot = (Option<Arc<Custom<ModelReport>>>, Vec<Arc<Custom<Model>>>);
    const NAME: &'static str = "modelreport";

    fn relations() -> Vec<Relation> {
        vec![Relation::to::<Model>(|caches, change| {
            let reports = caches.of::<ModelReport>().all();
            let is_of = |r: &&Arc<Custom<ModelReport>>| {
                r.spec.as_ref().is_ok_and(|s| s.namespace == change.key.namespace)
            };
            reports.iter().filter(is_of).map(|report| report.key()).collect()
        })]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        let report = caches.of::<ModelReport>().get(key);
        let spec = report.as_ref().and_then(|r| r.spec.clone().ok());
        let models = spec.map(|spec| caches.of::<Model>().in_namespace(&spec.namespace));
        (report, models.unwrap_or_default())
    }

    fn plan((report, models): &Self::Snapshot, _: Timestamp) -> Plan<ReportStatus> {
        let line = |model: &Arc<Custom<Model>>| {
            let conditions = model.status.iter().flat_map(|s| &s.conditions);
            let ready = conditions.filter(|c| c.r#type == "Ready").map(|c| c.status.as_str()).next();
            format!("{} {}", model.key().name, ready.unwrap_or("?"))
        };
        let status = report.as_ref().map(|_| ReportStatus { models: models.iter().map(line).collect() });
        Plan { status, ..Plan::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn custom_kind_follows_models_of_another_group() {
    let kube = start(
        &[("modelreports", "ModelReport", false)],
        Registry::built_in().with::<ModelReportController>(),
    )
    .await;
    let client = kube.client("user", "ml");
    let reports: Api<Custom<ModelReport>> = Api::all(client.clone());
    let report = json!({ "metadata": { "name": "ml" }, "spec": { "namespace": "ml" } });
    let report: Custom<ModelReport> = serde_json::from_value(report).unwrap();
    reports.create(&PostParams::default(), &report).await.unwrap();
    let models: Api<Custom<Model>> = Api::namespaced_with(client, "ml", &());
    let reported = || get(&kube, "modelreports.reports.example.com", "", "ml", "/status/models");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(reported(), json!([]));
    // The operator writes the status of the model itself: without a scheduler it is Unknown.
    let model = json!({ "metadata": { "name": "iris" }, "spec": { "storageUri": "gs://iris" } });
    models.create(&PostParams::default(), &serde_json::from_value(model).unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(reported(), json!(["iris Unknown"]));
    models.delete("iris", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(reported(), json!([]));
}
