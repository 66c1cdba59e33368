//! Durable pipelines: records of topics run as requests do.

use crate::{
    Gateway,
    pipeline::{Record, RunContext, StepTensor, execute},
    policy::balance::stable_hash,
    routes::{Pipeline, Routes},
    serve::{Shared, Worker},
};
use gantry_kafka::engine::{
    self, ExecuteError, Execution, Executor, Metrics, Pipelines, RecordSpan, RunRequest, StepRecord,
};
pub use gantry_kafka::{
    Consumed, Settings, encoding::decode, engine::Client, engine::request_id, headers,
    settings::SettingsError, topics::Side,
};
use gantry_oip::{Code, Error, InferTensor};
use gantry_transport::{Protocol, deadline, memory::ConnectionMemory};
use http::{HeaderMap, HeaderValue};
use prometheus_client::registry::Registry;
use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// How often idle upstream connections are closed.
const POOL_SWEEP_INTERVAL: Duration = Duration::from_secs(10);

impl Gateway {
    /// Consumes all pipelines from topics until `shutdown` is cancelled; the task ends when offsets are committed.
    pub fn consume_topics(
        &self,
        settings: Settings,
        registry: &mut Registry,
        shutdown: CancellationToken,
    ) -> JoinHandle<()> {
        let metrics = Metrics::default();
        metrics.register(registry);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let index = shared.config.workers;
            let worker = Arc::new(Worker::new(index, Arc::clone(&shared), Arc::new(AtomicUsize::new(0))));
            let executor = Arc::new(GatewayExecutor { pipelines: watch::Sender::default(), worker });
            let updating = tokio::spawn(Arc::clone(&executor).update(shutdown.clone()));
            engine::run(settings, executor, metrics, shutdown).await;
            updating.abort();
        })
    }
}

/// Runs records on a worker of their own.
struct GatewayExecutor {
    pipelines: watch::Sender<Pipelines>,
    worker: Arc<Worker>,
}

impl GatewayExecutor {
    /// Publishes the pipelines of the routes.
    async fn update(self: Arc<Self>, shutdown: CancellationToken) {
        let routes = self.worker.shared.routes.clone();
        let mut changes = routes.pipeline_changes();
        let mut sweep = tokio::time::interval(POOL_SWEEP_INTERVAL);
        loop {
            changes.borrow_and_update();
            // Before the first sync, no pipeline is known to be absent.
            if routes.is_synced() {
                let current = pipelines(&routes);
                self.pipelines.send_if_modified(|published| {
                    let is_changed = *published != current;
                    *published = current;
                    is_changed
                });
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                _ = sweep.tick() => self.worker.sweep(),
                () = shutdown.cancelled() => return,
            }
        }
    }
}

fn pipelines(routes: &Routes) -> Pipelines {
    let of = |name: &String| {
        let pipeline = routes.pipeline(name)?;
        let graph = pipeline.graph.as_ref().ok()?;
        // Runs of a version that is rolled out write to the topics of its steps.
        let graphs = pipeline.versions().filter_map(|version| version.graph.as_ref().ok());
        let mut steps: Vec<Arc<str>> = graphs.flat_map(|graph| graph.steps()).map(Arc::clone).collect();
        let mut seen = HashSet::new();
        steps.retain(|step| seen.insert(Arc::clone(step)));
        Some(Arc::new(engine::Pipeline {
            name: Arc::clone(&pipeline.name),
            steps,
            external: graph.external().cloned().map(Arc::new),
            clean_topics_on_delete: pipeline.clean_topics_on_delete,
        }))
    };
    routes.pipelines().iter().filter_map(of).collect()
}

/// Ends when it is dropped.
struct Span(gantry_trace::Span);

impl RecordSpan for Span {
    fn fail(&mut self) {
        self.0.fail("");
    }
}

impl Executor for GatewayExecutor {
    type Span = Span;

    fn span(&self, pipeline: &str, request_id: &str, record: &Consumed, headers: &mut HeaderMap) -> Span {
        // Low cardinality: the name of the span contains neither topic nor pipeline.
        let mut span = self.worker.shared.config.tracer.server(headers, || "process record".to_owned());
        if span.is_recording() {
            span.set("messaging.system", "kafka");
            span.set("messaging.operation.type", "process");
            span.set("messaging.destination.name", record.topic.to_string());
            span.set("messaging.destination.partition.id", record.partition.to_string());
            span.set("messaging.kafka.offset", record.offset);
            span.set("gantry.pipeline", pipeline.to_owned());
            span.set("gantry.request_id", request_id.to_owned());
        }
        span.inject(headers);
        Span(span)
    }

    fn pipelines(&self) -> watch::Receiver<Pipelines> {
        self.pipelines.subscribe()
    }

    fn is_deleted(&self, pipeline: &str) -> bool {
        self.worker.shared.routes.is_deleted_pipeline(pipeline)
    }

    async fn execute(&self, request: RunRequest) -> Execution {
        let name = Arc::clone(&request.pipeline);
        let Some(pipeline) = self.worker.shared.routes.pipeline(&name) else {
            let error = Error::unavailable(format!("{name} : there is no such pipeline"), 1);
            return failed(&name, 0, &error);
        };
        // A record that is read again runs on the same version, unless the weights changed.
        let pipeline = pipeline.pick(|| stable_hash(&[request.request_id.as_bytes()]));
        let attribution = pipeline.attribute();
        let started = Instant::now();
        let mut record = Record::default();
        let result = match self.context(&pipeline, request, started) {
            Ok((context, inputs)) => {
                let result = execute(&context, inputs, &mut record).await;
                Self::observe(&context, &record, &result);
                result
            }
            Err(error) => Err(error),
        };
        if let Some(attribution) = attribution {
            let class = record.result_class(Protocol::Grpc, result.as_ref().err());
            attribution.record(class, Instant::now());
        }
        let shared = &self.worker.shared;
        let code = result.as_ref().err().map_or(Protocol::Grpc.ok(), |error| Protocol::Grpc.code(error));
        shared.metrics.record_pipeline(&pipeline.metrics, Protocol::Grpc, code, started.elapsed());
        let has_output = pipeline.graph.as_ref().is_ok_and(|graph| graph.has_output());
        Execution {
            version: pipeline.version,
            result: result
                .map(|outputs| has_output.then_some(outputs))
                .map_err(|error| execute_error(&name, Some(&record), &error)),
            steps: steps(record),
        }
    }
}

impl GatewayExecutor {
    fn context(
        &self,
        pipeline: &Arc<Pipeline>,
        request: RunRequest,
        started: Instant,
    ) -> Result<(Arc<RunContext>, Vec<StepTensor>), Error> {
        let shared: &Arc<Shared> = &self.worker.shared;
        let graph = pipeline.graph.clone();
        let graph = graph.map_err(|reason| {
            Error::unavailable(format!("{} : the pipeline is not served: {reason}", pipeline.name), 1)
        })?;
        let memory = ConnectionMemory::new(&shared.memory);
        let inputs = StepTensor::hold(request.inputs, &memory)
            .map_err(|_| Error::unavailable(format!("{} : no memory for the request", pipeline.name), 1))?;
        let request_id = HeaderValue::from_str(&request.request_id)
            .map_err(|_| Error::invalid(format!("{} : the request ID is no header value", pipeline.name)))?;
        let context = RunContext {
            worker: Arc::clone(&self.worker),
            pipeline: Arc::clone(pipeline),
            graph,
            request_id,
            sticky: None,
            trace: shared.config.tracer.context(&request.headers),
            forwarded: request.headers,
            parameters: request.parameters,
            memory,
            started,
            deadline: deadline(started, shared.config.request_timeout),
            hops: 0,
            durable: true,
        };
        Ok((Arc::new(context), inputs))
    }

    /// Keeps the run for `gantry pipeline inspect`; tensors only as configured.
    fn observe(context: &RunContext, record: &Record, result: &Result<Vec<InferTensor>, Error>) {
        context.pipeline.recent.keep(context, record.copy(context.keeps_payloads()), result.as_ref().err());
    }
}

fn steps(record: Record) -> Vec<StepRecord> {
    let tensors = |tensors: Vec<StepTensor>| tensors.into_iter().map(StepTensor::into_tensor).collect();
    let step = |step: crate::pipeline::StepRecord| {
        let kept = step.tensors.unwrap_or_default();
        StepRecord {
            step: step.step,
            inputs: tensors(kept.inputs),
            outputs: step.error.map_or_else(|| Ok(tensors(kept.outputs)), Err),
            route: step.route,
        }
    };
    record.steps.into_iter().map(step).collect()
}

fn failed(pipeline: &Arc<str>, version: u32, error: &Error) -> Execution {
    Execution { version, steps: Vec::new(), result: Err(execute_error(pipeline, None, error)) }
}

/// Names the step that failed last, or the pipeline.
fn execute_error(pipeline: &Arc<str>, record: Option<&Record>, error: &Error) -> ExecuteError {
    let steps = record.map_or(&[][..], |record| &record.steps);
    let step = steps.iter().rev().find(|step| step.error.is_some()).map(|step| Arc::clone(&step.step));
    let is_transient = matches!(
        error.code,
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::NotReady
    );
    let step = step.unwrap_or_else(|| Arc::clone(pipeline));
    ExecuteError { is_transient, step, message: error.message.clone() }
}
