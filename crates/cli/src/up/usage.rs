//! Requests and times by model, for `gantry status` and `gantry top`.

use gantry_runtime::{Runtime, Usage};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A report with the rate of requests since the report before.
pub(crate) fn report(runtime: Arc<Runtime>) -> impl Fn() -> Value + Send + Sync {
    let started = (Instant::now(), BTreeMap::<String, u64>::new());
    let last = Mutex::new(started);
    move || {
        let usage = runtime.usage();
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = last.0.elapsed().as_secs_f64().max(1e-3);
        let requests = |u: &Usage| u.statistics.success.count + u.statistics.fail.count;
        let models: Vec<Value> = usage
            .iter()
            .map(|u| {
                // `iris_2` is version 2 of iris.
                let (name, version) = u.statistics.name.rsplit_once('_').unwrap_or((&u.statistics.name, "1"));
                let new = requests(u).saturating_sub(last.1.get(&u.statistics.name).copied().unwrap_or(0));
                let ms = |d: Option<std::time::Duration>| d.map(|d| d.as_secs_f64() * 1e3);
                json!({
                    "name": name, "version": version, "requests": requests(u), "errors": u.statistics.fail.count,
                    "p50_ms": ms(u.p50), "p99_ms": ms(u.p99), "rate": new as f64 / seconds,
                })
            })
            .collect();
        *last = (Instant::now(), usage.iter().map(|u| (u.statistics.name.clone(), requests(u))).collect());
        json!({ "models": models })
    }
}
