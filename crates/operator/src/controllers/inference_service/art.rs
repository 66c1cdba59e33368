//! The explainer of the Adversarial Robustness Toolbox.

use super::{
    component::ComponentKind,
    config::ArtConfig,
    pod::{MAIN, MODEL_DIR, has_flag, set},
};
use crate::{cluster::Key, workload::merge};
use gantry_api::kserve::ComponentSpec;
use serde_json::{Map, Value, json};

/// Fields of `art` besides those of a container.
const FIELDS: [&str; 4] = ["type", "storageUri", "runtimeVersion", "config"];

/// `spec.explainer.art`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Art<'a> {
    pub spec: &'a Map<String, Value>,
    pub config: &'a ArtConfig,
    pub service: &'a Key,
    pub component: &'a ComponentSpec,
    /// Resources of containers without their own.
    pub resources: &'a Value,
}

impl Art<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        self.spec.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// The artifact of the explainer.
    pub(super) fn storage_uri(&self) -> Option<&str> {
        self.text("storageUri")
    }

    /// Its container, first in the pod.
    pub(super) fn container(&self) -> Result<Value, String> {
        let path = format!("spec.{}.art", ComponentKind::Explainer.as_str());
        let attack = self.text("type").ok_or_else(|| {
            format!("{path}.type is missing: name the attack of the toolbox, such as SquareAttack")
        })?;
        let mut own = self.spec.clone();
        own.retain(|field, _| !FIELDS.contains(&field.as_str()));
        let args = own.remove("args").and_then(|args| args.as_array().cloned()).unwrap_or_default();
        let version = self.text("runtimeVersion").unwrap_or(&self.config.default_image_version);
        let image = format!("{}:{version}", self.config.image);
        let base = json!({ "name": MAIN, "image": image, "resources": self.resources });
        let mut container = merge(&base, &Value::Object(own));
        let Key { namespace, name } = self.service;
        let mut flags: Vec<Value> = Vec::new();
        let mut add = |flag: &str, value: &str| {
            if !has_flag(&args, flag) {
                flags.extend([flag.into(), value.into()]);
            }
        };
        add("--model_name", name);
        add("--http_port", "8080");
        add("--predictor_host", &format!("{name}-predictor.{namespace}"));
        if let Some(workers) = self.component.container_concurrency.filter(|workers| *workers > 0) {
            add("--workers", &workers.to_string());
        }
        if self.storage_uri().is_some() {
            add("--storage_uri", MODEL_DIR);
        }
        add("--adversary_type", attack);
        // Sorted by name.
        for (name, value) in self.spec.get("config").and_then(Value::as_object).into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            add(&format!("--{name}"), &text);
        }
        set(&mut container, "args", flags.into_iter().chain(args).collect());
        Ok(container)
    }
}
