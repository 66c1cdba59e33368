//! The built-in runtime as the model server of an agent.

use futures::future::BoxFuture;
use gantry_agent::{LoadError, LoadOrder, Loaded, ModelServer};
use gantry_runtime::Runtime;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const CAPABILITIES: [&str; 4] = ["onnx", "xgboost", "lightgbm", "gantry"];
/// Of models in Python, by the requirements that manifests use for them.
const PYTHON_CAPABILITIES: [&str; 7] =
    [crate::sources::PYTHON, "sklearn", "mlflow", "catboost", "keras", "tensorflow", "pytorch"];

pub(crate) fn capabilities(allow_python: bool) -> Vec<String> {
    let python = PYTHON_CAPABILITIES.iter().filter(|_| allow_python);
    CAPABILITIES.iter().chain(python).map(|capability| (*capability).to_owned()).collect()
}

pub(crate) struct BuiltinServer {
    runtime: Arc<Runtime>,
    /// Memory for models.
    capacity: u64,
    /// Measured memory by name. The scheduler places models by `spec.memory`, which may be missing or too low.
    loaded: Mutex<HashMap<String, u64>>,
}

impl BuiltinServer {
    pub(crate) fn new(runtime: Arc<Runtime>, capacity: u64) -> Self {
        Self { runtime, capacity, loaded: Mutex::default() }
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accounts for a loaded model, if it fits.
    fn reserve(&self, name: &str, bytes: u64) -> Result<(), String> {
        let mut loaded = self.loaded();
        let used: u64 = loaded.iter().filter(|(n, _)| *n != name).map(|(_, bytes)| bytes).sum();
        if used.saturating_add(bytes) > self.capacity {
            let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
            return Err(format!(
                "the model takes {}, and {} of {} are used: raise --memory, or remove other models",
                megabytes(bytes),
                megabytes(used),
                megabytes(self.capacity)
            ));
        }
        loaded.insert(name.to_owned(), bytes);
        Ok(())
    }
}

impl ModelServer for BuiltinServer {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>> {
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let name = order.name.clone();
            let load = move || {
                let parameters = order.parameters.iter().map(|(n, v)| (n.as_str(), v.as_str()));
                runtime.load(&order.name, &order.directory, parameters)
            };
            match tokio::task::spawn_blocking(load).await {
                Ok(Ok(info)) => {
                    let memory_bytes = info.memory_bytes as u64;
                    if let Err(reason) = self.reserve(&name, memory_bytes) {
                        self.runtime.unload(&name);
                        return Err(LoadError::transient(reason));
                    }
                    Ok(Loaded {
                        platform: info.platform.to_owned(),
                        engine: info.engine,
                        memory_bytes,
                        ..Loaded::default()
                    })
                }
                Ok(Err(error)) => Err(LoadError {
                    message: error.to_string(),
                    permanent: !matches!(error, gantry_runtime::LoadError::Io { .. }),
                }),
                Err(_) => Err(LoadError::permanent("the model loader panicked; the log has the details")),
            }
        })
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.runtime.unload(&name);
            self.loaded().remove(&name);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn order(name: &str) -> LoadOrder {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris");
        LoadOrder {
            name: name.to_owned(),
            root: directory.clone(),
            directory,
            parameters: Vec::new(),
            definition: gantry_proto::agent::ModelVersion::default(),
            autoscaling: false,
        }
    }

    #[tokio::test]
    async fn model_without_declared_memory_is_refused_when_it_does_not_fit() {
        let runtime = Arc::new(Runtime::new(gantry_runtime::Config::default()).unwrap());
        let unlimited = BuiltinServer::new(runtime.clone(), u64::MAX);
        let size = unlimited.load(order("iris_1")).await.unwrap().memory_bytes;
        assert!(size > 0);
        assert_eq!(unlimited.unload("iris_1".into()).await, Ok(()));

        let server = BuiltinServer::new(runtime.clone(), size + size / 2);
        server.load(order("iris_1")).await.unwrap();
        let error = server.load(order("iris_2")).await.unwrap_err();
        assert!(error.message.contains("raise --memory"), "{error}");
        assert_eq!(runtime.usage().len(), 1, "the refused model is unloaded");
        server.load(order("iris_1")).await.unwrap();
        assert_eq!(server.unload("iris_1".into()).await, Ok(()));
        server.load(order("iris_2")).await.unwrap();
    }
}
