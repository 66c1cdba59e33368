//! Pods that Seldon's operator made: which of them restart under Gantry's, and why. Decided by the operator's own code, from
//! the same objects.

use super::{
    api::{Api, Trouble},
    kinds,
    report::Report,
};
use gantry_operator::{
    Settings,
    cluster::{
        Adoption, Child, ChildKind, Custom, CustomKind, Desired, Key, SeldonConfig, SeldonRuntime, Server,
        ServerConfig,
    },
    kinds::{runtime, server},
};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};

/// Differences of a workload that are told.
const TOLD: usize = 4;

/// What there is of a cluster.
struct Found {
    servers: Vec<Custom<Server>>,
    server_configs: BTreeMap<String, Custom<ServerConfig>>,
    runtimes: Vec<Custom<SeldonRuntime>>,
    configs: BTreeMap<String, Custom<SeldonConfig>>,
    workloads: BTreeMap<(ChildKind, Key), Child>,
}

/// Says of each workload that Servers and SeldonRuntimes are to have what becomes of it.
pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    let found = match look(api, namespace).await {
        Ok(found) => found,
        Err(trouble) => {
            return report.wrong("pods of Servers and SeldonRuntimes", &trouble.to_string(), "");
        }
    };
    let mut seen = BTreeSet::new();
    for object in found.servers.iter().filter(|object| !object.is_deleted()) {
        let what = format!("Server {} in {}", object.key().name, object.key().namespace);
        match of_server(object, &found.server_configs) {
            Ok(objects) => tell(&objects, &found, &mut seen, report),
            Err(why) => report.note(&what, "nothing is touched", &why),
        }
    }
    for object in found.runtimes.iter().filter(|object| !object.is_deleted()) {
        let what = format!("SeldonRuntime {} in {}", object.key().name, object.key().namespace);
        match of_runtime(object, &found.configs) {
            Ok(objects) => tell(&objects, &found, &mut seen, report),
            Err(why) => report.note(&what, "nothing is touched", &why),
        }
    }
    if seen.is_empty() {
        report.note("pods of Servers and SeldonRuntimes", "none", "");
    }
}

async fn look(api: &Api, namespace: &str) -> Result<Found, Trouble> {
    let mut workloads = BTreeMap::new();
    for kind in [ChildKind::StatefulSet, ChildKind::Deployment] {
        let path = format!("/apis/apps/v1/{}", kind.resource().plural);
        for child in read::<Child>(api, &path).await? {
            workloads.insert((kind, Key::of(&child.metadata)), child);
        }
    }
    Ok(Found {
        servers: read(api, &kinds::list_path("servers", None)).await?,
        server_configs: named(read(api, &kinds::list_path("serverconfigs", Some(namespace))).await?),
        runtimes: read(api, &kinds::list_path("seldonruntimes", None)).await?,
        configs: named(read(api, &kinds::list_path("seldonconfigs", Some(namespace))).await?),
        workloads,
    })
}

async fn read<T: DeserializeOwned>(api: &Api, path: &str) -> Result<Vec<T>, Trouble> {
    let items = api.list(path, "").await?;
    // What cannot be read was told already, as an object that would be refused.
    Ok(items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect())
}

fn named<K: CustomKind>(objects: Vec<Custom<K>>) -> BTreeMap<String, Custom<K>> {
    objects.into_iter().map(|object| (object.key().name, object)).collect()
}

/// What a Server becomes; `Err` says what is in the way.
fn of_server(
    object: &Custom<Server>,
    configs: &BTreeMap<String, Custom<ServerConfig>>,
) -> Result<Vec<Desired>, String> {
    let spec = object.spec.as_ref().map_err(Clone::clone)?;
    let config = configs.get(&spec.server_config);
    let config = config.ok_or_else(|| format!("there is no ServerConfig {} there", spec.server_config))?;
    let scaling = spec.scaling().map_err(|(field, why)| format!("{field} {why}"))?;
    server::objects(&server::Build {
        key: &object.key(),
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().map_err(Clone::clone)?,
        image: &Settings::default().image,
        workload: ChildKind::StatefulSet,
        replicas: scaling.replicas,
        is_autoscaled: false,
        annotations: BTreeMap::new(),
        config_maps: &BTreeMap::new(),
    })
}

/// What a SeldonRuntime becomes; `Err` says what is in the way.
fn of_runtime(
    object: &Custom<SeldonRuntime>,
    configs: &BTreeMap<String, Custom<SeldonConfig>>,
) -> Result<Vec<Desired>, String> {
    let spec = object.spec.as_ref().map_err(Clone::clone)?;
    let config = configs.get(&spec.seldon_config);
    let config = config.ok_or_else(|| format!("there is no SeldonConfig {} there", spec.seldon_config))?;
    runtime::objects(&runtime::Build {
        key: &object.key(),
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().map_err(Clone::clone)?,
        image: &Settings::default().image,
        autoscaled: &BTreeSet::new(),
        annotations: BTreeMap::new(),
    })
}

fn tell(objects: &[Desired], found: &Found, seen: &mut BTreeSet<(ChildKind, Key)>, report: &mut Report) {
    for wanted in objects.iter().filter(|wanted| wanted.bare.is_some()) {
        let place = (wanted.kind, wanted.key.clone());
        let what = format!("{} {} in {}", wanted.kind, wanted.key.name, wanted.key.namespace);
        match found.workloads.get(&place).map(|live| (live, wanted.adoption(live))) {
            None => report.note(&what, "is made", "it is not there yet"),
            Some((_, None)) => report.ok(&what, "Gantry's already"),
            Some((live, _)) if !is_owned(live, wanted) => {
                report.wrong(
                    &what,
                    "is not touched",
                    "it does not belong to the object of that name: rename one of the two",
                );
            }
            Some((_, Some(Adoption::AsItIs))) => report.ok(&what, "is adopted as it is, nothing restarts"),
            Some((_, Some(Adoption::Changed(places)))) => {
                let few: Vec<&str> = places.iter().take(TOLD).map(String::as_str).collect();
                let more = if places.len() > few.len() { ", …" } else { "" };
                let hint = format!("its pods are not what is asked for in {}{more}", few.join(", "));
                report.note(&what, "is changed, its pods restart", &hint);
            }
        }
        seen.insert(place);
    }
}

fn is_owned(live: &Child, wanted: &Desired) -> bool {
    let owner = wanted.body.pointer("/metadata/ownerReferences/0/uid").and_then(serde_json::Value::as_str);
    live.controller().map(|(_, uid)| uid) == owner
}
