//! Pipelines, experiments and services: their clients, and the invariants of their statuses.

use super::{
    Cluster,
    client::{SchedulerApi, with_timeout},
    gateway_host,
    ground_truth::{Possible, Response, Truth},
    invariants::{DependantStatuses, STATUS_TIMEOUT},
};
use crate::scenario::{Action, DesiredExperiment, DesiredPipeline, DesiredService, Scenario};
use futures::future::BoxFuture;
use gantry_proto::{
    gantry::{
        PodEndpoint, ServiceBackend, ServiceComponent, ServiceName, ServiceRoute,
        services_client::ServicesClient,
    },
    scheduler::{
        self as pb, PipelineStatusResponse, pipeline_status_response::PipelineOperation,
        pipeline_version_state::PipelineStatus, scheduler_client::SchedulerClient,
    },
};
use std::{collections::BTreeMap, fmt, time::Duration};
use tokio::sync::mpsc;
use tonic::{Code, Status, transport::Channel};

const NAMESPACE: &str = "ns";

enum Operation<T> {
    /// `None` deletes.
    Apply(Option<T>),
    /// Repeats the latest request until its outcome is certain.
    Confirm,
    /// Sends the desired state again, to a scheduler that lost it.
    Resend,
}

type Operations<T> = BTreeMap<String, mpsc::UnboundedSender<Operation<T>>>;

/// A kind of objects that clients apply and delete.
trait Object: Clone + fmt::Debug + Send + 'static {
    fn possible<'a>(truth: &'a mut Truth, name: &str) -> &'a mut Possible<Self>;

    fn request(
        name: String,
        wanted: Option<Self>,
        channel: Channel,
    ) -> BoxFuture<'static, Result<(), Status>>;
}

impl Object for DesiredPipeline {
    fn possible<'a>(truth: &'a mut Truth, name: &str) -> &'a mut Possible<Self> {
        truth.pipelines.entry(name.to_owned()).or_default()
    }

    fn request(
        name: String,
        wanted: Option<Self>,
        channel: Channel,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let mut client = SchedulerClient::new(channel);
        Box::pin(async move {
            match wanted {
                Some(desired) => {
                    let pipeline = Some(pipeline(&name, &desired));
                    client.load_pipeline(with_timeout(pb::LoadPipelineRequest { pipeline })).await.map(drop)
                }
                None => {
                    client.unload_pipeline(with_timeout(pb::UnloadPipelineRequest { name })).await.map(drop)
                }
            }
        })
    }
}

impl Object for DesiredExperiment {
    fn possible<'a>(truth: &'a mut Truth, name: &str) -> &'a mut Possible<Self> {
        truth.experiments.entry(name.to_owned()).or_default()
    }

    fn request(
        name: String,
        wanted: Option<Self>,
        channel: Channel,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let mut client = SchedulerClient::new(channel);
        Box::pin(async move {
            match wanted {
                Some(desired) => {
                    let experiment = Some(experiment(&name, &desired));
                    let request = with_timeout(pb::StartExperimentRequest { experiment });
                    client.start_experiment(request).await.map(drop)
                }
                None => {
                    client.stop_experiment(with_timeout(pb::StopExperimentRequest { name })).await.map(drop)
                }
            }
        })
    }
}

impl Object for DesiredService {
    fn possible<'a>(truth: &'a mut Truth, name: &str) -> &'a mut Possible<Self> {
        truth.services.entry(name.to_owned()).or_default()
    }

    fn request(
        name: String,
        wanted: Option<Self>,
        channel: Channel,
    ) -> BoxFuture<'static, Result<(), Status>> {
        let mut client = ServicesClient::new(channel);
        Box::pin(async move {
            if let Some(desired) = wanted {
                return client.put_service(with_timeout(service(&name, desired))).await.map(drop);
            }
            let name = ServiceName { namespace: NAMESPACE.into(), name };
            client.delete_service(with_timeout(name)).await.map(drop)
        })
    }
}

fn service(name: &str, DesiredService { pods }: DesiredService) -> ServiceRoute {
    let pod = |index: u32| PodEndpoint {
        name: format!("{name}-{index}"),
        host: format!("10.0.0.{index}"),
        http_port: 8080,
        ..Default::default()
    };
    let backend = ServiceBackend {
        name: name.to_owned(),
        weight: 100,
        pods: (0..pods).map(pod).collect(),
        ..ServiceBackend::default()
    };
    let component = ServiceComponent { backends: vec![backend], sleeps: pods == 0, ..Default::default() };
    let (namespace, name) = (NAMESPACE.into(), name.into());
    ServiceRoute { namespace, name, components: vec![component], ..Default::default() }
}

fn pipeline(name: &str, desired: &DesiredPipeline) -> pb::Pipeline {
    let inputs =
        std::iter::once(Vec::new()).chain(desired.steps.iter().map(|step| vec![format!("{step}.outputs")]));
    let steps = desired.steps.iter().zip(inputs).map(|(step, inputs)| pb::PipelineStep {
        name: step.clone(),
        inputs,
        join_window_ms: Some(desired.window),
        ..Default::default()
    });
    let output = desired
        .steps
        .last()
        .map(|last| pb::PipelineOutput { steps: vec![format!("{last}.outputs")], ..Default::default() });
    pb::Pipeline { name: name.to_owned(), steps: steps.collect(), output, ..Default::default() }
}

fn experiment(name: &str, desired: &DesiredExperiment) -> pb::Experiment {
    let candidate =
        |(name, weight): &(String, u32)| pb::ExperimentCandidate { name: name.clone(), weight: *weight };
    let resource_type =
        if desired.of_pipelines { pb::ResourceType::Pipeline } else { pb::ResourceType::Model };
    pb::Experiment {
        name: name.to_owned(),
        default: desired.candidates.first().map(|(name, _)| name.clone()),
        candidates: desired.candidates.iter().map(candidate).collect(),
        mirror: desired.mirror.clone().map(|name| pb::ExperimentMirror { name, percent: 10 }),
        resource_type: resource_type as i32,
        ..Default::default()
    }
}

/// Executes the operations on one object in order.
async fn run<T: Object>(
    api: SchedulerApi,
    name: String,
    mut operations: mpsc::UnboundedReceiver<Operation<T>>,
) {
    while let Some(operation) = operations.recv().await {
        let latest = T::possible(&mut api.truth.lock(), &name).latest();
        match operation {
            Operation::Apply(wanted) => drop(send(&api, &name, wanted).await),
            Operation::Resend if latest.is_some() => drop(send(&api, &name, latest).await),
            Operation::Resend => {}
            Operation::Confirm => confirm::<T>(&api, &name).await,
        }
    }
}

async fn send<T: Object>(api: &SchedulerApi, name: &str, wanted: Option<T>) -> Response {
    let state_losses = {
        let mut truth = api.truth.lock();
        T::possible(&mut truth, name).request(wanted.clone());
        truth.state_losses
    };
    let what = format!("{wanted:?}");
    let response = async { T::request(name.to_owned(), wanted, api.channel().await?).await };
    let code = response.await.map_or_else(|status| status.code(), |()| Code::Ok);
    api.trace.note(&api.host, format_args!("applies {what} as {name}: {code:?}"));
    let response = api.outcome(code, state_losses);
    T::possible(&mut api.truth.lock(), name).respond(response);
    response
}

async fn confirm<T: Object>(api: &SchedulerApi, name: &str) {
    loop {
        let wanted = {
            let mut truth = api.truth.lock();
            let possible = T::possible(&mut truth, name);
            if possible.0.len() < 2 {
                return;
            }
            possible.latest()
        };
        let deletes = wanted.is_none();
        match send(api, name, wanted).await {
            Response::Acknowledged => return,
            // Deleting an unknown object is rejected: it is absent.
            Response::Rejected if deletes => {
                T::possible(&mut api.truth.lock(), name).0 = vec![None];
                return;
            }
            // Another experiment may have the default: then an earlier state is the current one.
            Response::Rejected => drop(T::possible(&mut api.truth.lock(), name).0.pop()),
            Response::Unknown => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The clients of all pipelines, experiments and services.
pub(crate) struct Dependants {
    pipelines: Operations<DesiredPipeline>,
    experiments: Operations<DesiredExperiment>,
    services: Operations<DesiredService>,
}

impl Dependants {
    pub(crate) fn new(scenario: &Scenario, api: impl Fn() -> SchedulerApi) -> Self {
        let mut clients =
            Self { pipelines: BTreeMap::new(), experiments: BTreeMap::new(), services: BTreeMap::new() };
        for step in &scenario.steps {
            match &step.action {
                Action::LoadPipeline { pipeline: name, .. } | Action::UnloadPipeline { pipeline: name } => {
                    client(&mut clients.pipelines, name, &api);
                }
                Action::StartExperiment { experiment: name, .. }
                | Action::StopExperiment { experiment: name } => {
                    client(&mut clients.experiments, name, &api);
                }
                Action::PutService { service: name, .. } | Action::DeleteService { service: name } => {
                    client(&mut clients.services, name, &api);
                }
                _ => {}
            }
        }
        clients
    }

    pub(crate) fn pipeline(&self, name: &str, wanted: Option<DesiredPipeline>) {
        if let Some(client) = self.pipelines.get(name) {
            let _ = client.send(Operation::Apply(wanted));
        }
    }

    pub(crate) fn experiment(&self, name: &str, wanted: Option<DesiredExperiment>) {
        if let Some(client) = self.experiments.get(name) {
            let _ = client.send(Operation::Apply(wanted));
        }
    }

    pub(crate) fn service(&self, name: &str, wanted: Option<DesiredService>) {
        if let Some(client) = self.services.get(name) {
            let _ = client.send(Operation::Apply(wanted));
        }
    }

    pub(crate) fn resend(&self) {
        self.pipelines.values().for_each(|client| drop(client.send(Operation::Resend)));
        self.experiments.values().for_each(|client| drop(client.send(Operation::Resend)));
        self.services.values().for_each(|client| drop(client.send(Operation::Resend)));
    }

    pub(crate) fn confirm(&self) {
        self.pipelines.values().for_each(|client| drop(client.send(Operation::Confirm)));
        self.experiments.values().for_each(|client| drop(client.send(Operation::Confirm)));
        self.services.values().for_each(|client| drop(client.send(Operation::Confirm)));
    }
}

fn client<T: Object>(clients: &mut Operations<T>, name: &str, api: impl Fn() -> SchedulerApi) {
    if !clients.contains_key(name) {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(api(), name.to_owned(), receiver));
        clients.insert(name.to_owned(), sender);
    }
}

/// The definition of a pipeline that exists, without what the scheduler assigns.
fn defined(status: Option<&PipelineStatusResponse>) -> Option<pb::Pipeline> {
    let status = status.filter(|s| s.operation() != PipelineOperation::PipelineDelete)?;
    let pipeline = status.versions.first()?.pipeline.clone()?;
    Some(pb::Pipeline { uid: String::new(), version: 0, ..pipeline })
}

impl Cluster {
    async fn dependant_statuses(&mut self) -> Option<DependantStatuses> {
        match tokio::time::timeout(STATUS_TIMEOUT, self.observer.dependants()).await {
            Ok(Ok(statuses)) => Some(statuses),
            Ok(Err(status)) => {
                self.trace.violate("status_requests_succeed", status.to_string());
                None
            }
            Err(_) => {
                self.trace.violate("status_requests_succeed", "timed out");
                None
            }
        }
    }

    /// What is acknowledged is durable, and what is ready is executed by every gateway.
    pub(super) async fn check_dependants(&mut self) {
        let Some(statuses) = self.dependant_statuses().await else { return };
        self.check_executed(&statuses);
        let truth = self.truth.lock();
        for (name, possible) in &truth.pipelines {
            let reported = defined(statuses.pipelines.get(name));
            let mut states = possible.0.iter().map(|p| p.as_ref().map(|desired| pipeline(name, desired)));
            if !possible.0.is_empty() && !states.any(|state| state == reported) {
                let what = format!("{name} may be {possible:?}, but the scheduler reports {reported:?}");
                self.trace.violate("acknowledged_is_durable", what);
            }
        }
        for (name, possible) in &truth.experiments {
            let status = statuses.experiments.get(name).filter(|status| !status.deleted);
            let reported = status.and_then(|status| status.definition.clone());
            let mut states = possible.0.iter().map(|e| e.as_ref().map(|desired| experiment(name, desired)));
            if !possible.0.is_empty() && !states.any(|state| state == reported) {
                let what = format!("{name} may be {possible:?}, but the scheduler reports {reported:?}");
                self.trace.violate("acknowledged_is_durable", what);
            }
        }
    }

    /// Every gateway executes a pipeline that is ready, and splits traffic with an experiment that is active.
    fn check_executed(&self, statuses: &DependantStatuses) {
        let now = self.now();
        for (index, process) in &self.gateways {
            let (Some(process), host) = (process, gateway_host(*index)) else { continue };
            let excused = self.truth.is_expired(&host, now) || self.truth.is_disconnected(&host, now);
            if !process.routes.is_synced() || excused {
                continue;
            }
            for (name, status) in &statuses.pipelines {
                let Some(version) = status.versions.first() else { continue };
                let ready = version.state.as_ref().is_some_and(|state| {
                    state.models_ready && state.status() == PipelineStatus::PipelineReady
                });
                let uid = version.pipeline.as_ref().map(|pipeline| pipeline.uid.clone());
                let executed = process.routes.executed(name);
                if ready && executed != uid.clone().map(|uid| (uid, true)) {
                    let what = format!("{name} is ready as {uid:?}, but {host} executes {executed:?}");
                    self.trace.violate("ready_pipelines_are_executed", what);
                }
            }
            for (name, status) in statuses.experiments.iter().filter(|(_, status)| status.active) {
                if !process.routes.is_active(name) {
                    let what = format!("{name} is active, but not in {host}: {status:?}");
                    self.trace.violate("active_experiments_are_everywhere", what);
                }
            }
        }
    }

    /// The first difference between desired and actual state.
    pub(super) async fn diverging_dependant(&mut self) -> Option<String> {
        let statuses = self.dependant_statuses().await?;
        let truth = self.truth.lock();
        let pipelines = truth.pipelines.iter().filter(|(_, possible)| !possible.0.is_empty());
        let pipelines = pipelines.map(|(name, possible)| {
            let status = statuses.pipelines.get(name);
            (name, possible.certain().map(|certain| self.pipeline_divergence(name, certain.as_ref(), status)))
        });
        let experiments = truth.experiments.iter().filter(|(_, possible)| !possible.0.is_empty());
        let experiments = experiments.map(|(name, possible)| {
            let status = statuses.experiments.get(name);
            (
                name,
                possible.certain().map(|certain| self.experiment_divergence(name, certain.as_ref(), status)),
            )
        });
        let services = truth.services.iter().filter(|(_, possible)| !possible.0.is_empty());
        let services = services.map(|(name, possible)| {
            let routed = self.watcher.service(name);
            let difference = |certain: &Option<DesiredService>| {
                let wanted = certain.map(|desired| service(name, desired));
                (routed != wanted).then(|| format!("{wanted:?} is desired, and routed is {routed:?}"))
            };
            (name, possible.certain().map(difference))
        });
        pipelines.chain(experiments).chain(services).find_map(|(name, divergence)| match divergence {
            None => Some(format!("what is desired for as {name} is in doubt")),
            Some(problem) => problem.map(|problem| format!("{name}: {problem}")),
        })
    }

    fn pipeline_divergence(
        &self,
        name: &str,
        wanted: Option<&DesiredPipeline>,
        status: Option<&PipelineStatusResponse>,
    ) -> Option<String> {
        let version = status.and_then(|status| status.versions.first());
        let state = version.and_then(|v| v.state.clone()).unwrap_or_default();
        let route = self.watcher.pipeline(name);
        let Some(desired) = wanted else {
            let gone = status.is_none() || state.status() == PipelineStatus::PipelineTerminated;
            return (!gone || route.is_some()).then(|| format!("deleted, but {state:?}, routed: {route:?}"));
        };
        if defined(status) != Some(pipeline(name, desired)) {
            return Some(format!("{desired:?} is desired, and reported is {status:?}"));
        }
        let serves = desired.steps.iter().all(|step| self.watcher.serves(step));
        if state.models_ready != serves || (serves && state.status() != PipelineStatus::PipelineReady) {
            return Some(format!("its models serve: {serves}, but it is {state:?}"));
        }
        let Some(route) = route else { return Some("it is not routed".into()) };
        let uid = version.and_then(|v| v.pipeline.as_ref()).map(|p| &p.uid);
        let executed = route.definition.as_ref().map(|definition| &definition.uid);
        ((serves && (executed != uid || !route.ready)) || (route.ready && executed == uid && !serves))
            .then(|| format!("its models serve: {serves}, but its route is {route:?}"))
    }

    fn experiment_divergence(
        &self,
        name: &str,
        wanted: Option<&DesiredExperiment>,
        status: Option<&pb::ExperimentStatusResponse>,
    ) -> Option<String> {
        let route = self.watcher.experiment(name);
        let Some(desired) = wanted else {
            let gone = status.is_none_or(|status| status.deleted && !status.active);
            return (!gone || route.is_some()).then(|| format!("stopped, but {status:?}, routed: {route:?}"));
        };
        let status = status?;
        let serves = |resource: &String| {
            if desired.of_pipelines {
                self.watcher.pipeline(resource).is_some_and(|route| route.ready)
            } else {
                self.watcher.serves(resource)
            }
        };
        let active = desired.candidates.iter().map(|(name, _)| name).chain(&desired.mirror).all(serves);
        let routed = route.as_ref().is_some_and(|route| route.active);
        (status.active != active || routed != active || route.is_none())
            .then(|| format!("its candidates serve: {active}, but it is {status:?}, routed: {route:?}"))
    }

    pub(super) async fn check_final_statuses(&mut self) {
        let Some(statuses) = self.dependant_statuses().await else { return };
        for (name, status) in &statuses.pipelines {
            let received = self.last_statuses.pipeline(name);
            if received.as_ref() != Some(status) {
                let what = format!("{name} is {status:?}, but the subscriber received {received:?}");
                self.trace.violate("subscribers_see_the_final_status", what);
            }
        }
        for (name, status) in &statuses.experiments {
            let received = self.last_statuses.experiment(name);
            if received.as_ref() != Some(status) {
                let what = format!("{name} is {status:?}, but the subscriber received {received:?}");
                self.trace.violate("subscribers_see_the_final_status", what);
            }
        }
    }
}
