//! Requests, rates and latencies by model, for `gantry status` and `gantry top`.

use gantry_runtime::{Runtime, Usage};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Statistics with the request rate since the previous call.
pub(crate) fn reporter(runtime: Arc<Runtime>) -> impl Fn() -> Value + Send + Sync {
    let previous = Mutex::new((Instant::now(), BTreeMap::<String, u64>::new()));
    move || {
        let usage = runtime.usage();
        let mut previous = previous.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = previous.0.elapsed().as_secs_f64().max(1e-3);
        let requests = |u: &Usage| u.statistics.success.count + u.statistics.fail.count;
        let models: Vec<Value> = usage
            .iter()
            .map(|u| {
                // `iris_2` is version 2 of iris.
                let (name, version) = u.statistics.name.rsplit_once('_').unwrap_or((&u.statistics.name, "1"));
                let before = previous.1.get(&u.statistics.name).copied().unwrap_or(0);
                let rate = requests(u).saturating_sub(before) as f64 / seconds;
                let ms = |d: Option<std::time::Duration>| d.map(|d| d.as_secs_f64() * 1e3);
                json!({
                    "name": name, "version": version, "requests": requests(u), "errors": u.statistics.fail.count,
                    "p50_ms": ms(u.p50), "p99_ms": ms(u.p99), "rate": rate,
                })
            })
            .collect();
        *previous =
            (Instant::now(), usage.iter().map(|u| (u.statistics.name.clone(), requests(u))).collect());
        json!({ "models": models })
    }
}
