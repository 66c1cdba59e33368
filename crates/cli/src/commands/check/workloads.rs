//! Workloads of Seldon's operator: which pods restart after the migration, and why. Uses the operator's own planning code.

use super::{
    api::{Api, ApiError},
    crds,
    report::Report,
};
use gantry_operator::{
    Settings,
    cluster::{
        Adoption, Custom, CustomKind, Desired, Key, OwnedObject, ResourceKind, SeldonConfig, SeldonRuntime,
        Server, ServerConfig,
    },
    controllers::{seldon_runtime as runtime, server},
    workload::Inherited,
};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};

/// Differences listed per workload.
const MAX_LISTED: usize = 4;

/// Objects read from the cluster.
struct ClusterState {
    servers: Vec<Custom<Server>>,
    server_configs: BTreeMap<String, Custom<ServerConfig>>,
    runtimes: Vec<Custom<SeldonRuntime>>,
    configs: BTreeMap<String, Custom<SeldonConfig>>,
    workloads: BTreeMap<(ResourceKind, Key), OwnedObject>,
}

/// Reports the change of each workload of Servers and SeldonRuntimes.
pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    let found = match fetch(api, namespace).await {
        Ok(found) => found,
        Err(error) => {
            return report.fail("pods of Servers and SeldonRuntimes", &error.to_string(), "");
        }
    };
    let mut seen = BTreeSet::new();
    for object in found.servers.iter().filter(|object| !object.is_deleted()) {
        let what = format!("Server {} in {}", object.key().name, object.key().namespace);
        match server_objects(object, &found.server_configs) {
            Ok(objects) => report_changes(&objects, &found, &mut seen, report),
            Err(why) => report.note(&what, "unchanged", &why),
        }
    }
    for object in found.runtimes.iter().filter(|object| !object.is_deleted()) {
        let what = format!("SeldonRuntime {} in {}", object.key().name, object.key().namespace);
        match runtime_objects(object, &found.configs) {
            Ok(objects) => report_changes(&objects, &found, &mut seen, report),
            Err(why) => report.note(&what, "unchanged", &why),
        }
    }
    if seen.is_empty() {
        report.note("pods of Servers and SeldonRuntimes", "none", "");
    }
}

async fn fetch(api: &Api, namespace: &str) -> Result<ClusterState, ApiError> {
    let mut workloads = BTreeMap::new();
    for kind in [ResourceKind::STATEFUL_SET, ResourceKind::DEPLOYMENT] {
        let path = format!("/apis/apps/v1/{}", kind.plural);
        for child in read::<OwnedObject>(api, &path).await? {
            workloads.insert((kind, Key::of(&child.metadata)), child);
        }
    }
    Ok(ClusterState {
        servers: read(api, &crds::list_path("servers", None)).await?,
        server_configs: named(read(api, &crds::list_path("serverconfigs", Some(namespace))).await?),
        runtimes: read(api, &crds::list_path("seldonruntimes", None)).await?,
        configs: named(read(api, &crds::list_path("seldonconfigs", Some(namespace))).await?),
        workloads,
    })
}

async fn read<T: DeserializeOwned>(api: &Api, path: &str) -> Result<Vec<T>, ApiError> {
    let items = api.list(path, "").await?;
    // Invalid objects are already reported.
    Ok(items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect())
}

fn named<K: CustomKind>(objects: Vec<Custom<K>>) -> BTreeMap<String, Custom<K>> {
    objects.into_iter().map(|object| (object.key().name, object)).collect()
}

/// The desired objects of a Server, or the reason why there are none.
fn server_objects(
    object: &Custom<Server>,
    configs: &BTreeMap<String, Custom<ServerConfig>>,
) -> Result<Vec<Desired>, String> {
    let spec = object.spec.as_ref().map_err(Clone::clone)?;
    let config = configs.get(&spec.server_config);
    let config = config.ok_or_else(|| format!("ServerConfig {} not found", spec.server_config))?;
    let scaling = spec.scaling().map_err(|(field, why)| format!("{field} {why}"))?;
    Ok(server::objects(&server::Build {
        key: &object.key(),
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().map_err(Clone::clone)?,
        image: &Settings::default().image,
        workload: ResourceKind::STATEFUL_SET,
        replicas: scaling.replicas,
        is_autoscaled: false,
        reads_secrets: false,
        has_certificates: false,
        inherited: Inherited::of(&object.metadata).over(&Inherited::of(&config.metadata)),
        annotations: BTreeMap::new(),
        config_maps: &BTreeMap::new(),
    }))
}

/// The desired objects of a SeldonRuntime, or the reason why there are none.
fn runtime_objects(
    object: &Custom<SeldonRuntime>,
    configs: &BTreeMap<String, Custom<SeldonConfig>>,
) -> Result<Vec<Desired>, String> {
    let spec = object.spec.as_ref().map_err(Clone::clone)?;
    let config = configs.get(&spec.seldon_config);
    let config = config.ok_or_else(|| format!("SeldonConfig {} not found", spec.seldon_config))?;
    runtime::objects(&runtime::Build {
        key: &object.key(),
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().map_err(Clone::clone)?,
        image: &Settings::default().image,
        // Pods as the operator's image with a client would have them.
        has_kafka_client: true,
        counts: None,
        autoscaled: &BTreeSet::new(),
        agent_secrets: &[],
        certificates: None,
        inherited: Inherited::of(&object.metadata).over(&Inherited::of(&config.metadata)),
        annotations: BTreeMap::new(),
    })
}

fn report_changes(
    objects: &[Desired],
    found: &ClusterState,
    seen: &mut BTreeSet<(ResourceKind, Key)>,
    report: &mut Report,
) {
    for desired in objects.iter().filter(|desired| desired.base_pod.is_some()) {
        let key = (desired.kind, desired.key.clone());
        let what = format!("{} {} in {}", desired.kind, desired.key.name, desired.key.namespace);
        match found.workloads.get(&key).map(|live| (live, desired.adoption(live))) {
            None => report.note(&what, "will be created", ""),
            Some((_, None)) => report.ok(&what, "already Gantry's"),
            Some((live, _)) if !is_owned(live, desired) => {
                report.fail(&what, "skipped", "not owned by the object of that name: rename one of them");
            }
            Some((_, Some(Adoption::Unchanged))) => report.ok(&what, "adopted without a restart"),
            Some((_, Some(Adoption::Changed(fields)))) => {
                let listed: Vec<&str> = fields.iter().take(MAX_LISTED).map(String::as_str).collect();
                let more = if fields.len() > listed.len() { ", …" } else { "" };
                let hint = format!("pod template differs in {}{more}", listed.join(", "));
                report.note(&what, "will change; its pods restart", &hint);
            }
        }
        seen.insert(key);
    }
}

fn is_owned(live: &OwnedObject, desired: &Desired) -> bool {
    let owner = desired.body.pointer("/metadata/ownerReferences/0/uid").and_then(serde_json::Value::as_str);
    live.controller().map(|(_, uid)| uid) == owner
}
