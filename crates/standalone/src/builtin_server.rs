//! The built-in runtime as the model server of an agent.

use futures::future::BoxFuture;
use gantry_agent::{LoadOrder, Loaded, ModelServer};
use gantry_runtime::Runtime;
use std::sync::Arc;

pub(crate) const CAPABILITIES: [&str; 4] = ["onnx", "xgboost", "lightgbm", "gantry"];

pub(crate) struct BuiltinServer(pub(crate) Arc<Runtime>);

impl ModelServer for BuiltinServer {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        let runtime = self.0.clone();
        Box::pin(async move {
            let load = move || {
                let parameters = order.parameters.iter().map(|(n, v)| (n.as_str(), v.as_str()));
                runtime.load(&order.name, &order.directory, parameters)
            };
            match tokio::task::spawn_blocking(load).await {
                Ok(Ok(info)) => Ok(Loaded {
                    platform: info.platform.to_owned(),
                    engine: info.engine,
                    memory_bytes: info.memory_bytes as u64,
                    ..Loaded::default()
                }),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the model loader panicked; the log has the details".into()),
            }
        })
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.0.unload(&name);
            Ok(())
        })
    }
}
