//! `gantry.v1.Routing`: route streams of gateways.

use super::{Stream, WINDOW, answer, deliver};
use crate::{
    access::Caller,
    audit::Object,
    engine::{Acknowledged, Handle, Message, Start},
    outbox::{Outbox, RouteChanges},
    status,
};
use gantry_core::scheduling::{Kind, Removal, ReplicaId};
use gantry_proto::gantry::{
    DemandReport, DemandResponse, Reset, Route, RouteAcknowledgement, RouteAcknowledgementResponse,
    RouteEvent, Synced, TrafficReport, TrafficResponse, WatchRoutesRequest, route_event::Event,
    routing_server::Routing,
};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// A longer list of removals is ignored; the number of the first undrained event applies instead.
const MAX_UNDRAINED: usize = 4096;

pub(crate) struct Gateways {
    pub(crate) engine: Handle,
}

struct Connection {
    engine: Handle,
    name: Arc<str>,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.engine.send_detached(Message::GatewayLeft { name: self.name.clone(), connection: self.number });
    }
}

impl Connection {
    async fn run(
        self,
        outbox: Arc<Outbox<RouteChanges>>,
        token: CancellationToken,
        to: mpsc::Sender<Result<RouteEvent, Status>>,
    ) {
        let _counted = self.engine.metrics.subscribed("gateway");
        let mut reset = true;
        let mut sent = 0;
        loop {
            if reset {
                let Some(last) = self.send_everything(&to).await else { return };
                sent = last;
            }
            let changes = tokio::select! {
                biased;
                () = to.closed() => return,
                () = token.cancelled() => return,
                changes = outbox.changes() => changes,
            };
            reset = changes.reset;
            // A reset sends every object.
            let (events, complete) =
                if reset { Default::default() } else { self.events(changes.by_sequence) };
            let last = events.len().saturating_sub(1);
            for (i, event) in events.into_iter().enumerate() {
                // An object that changed several times has one event, with its last number alone: what came before is
                // known to be complete after the last event only.
                if let Some(complete) = complete.filter(|_| i == last) {
                    sent = complete;
                }
                if !self.send(&to, sent, event).await {
                    return;
                }
            }
        }
    }

    /// Events of changes that are sent together, in their order, and the number that they complete. `None` if an object
    /// has changed again and follows.
    fn events(&self, changes: BTreeMap<u64, (Kind, Arc<str>)>) -> (Vec<Event>, Option<u64>) {
        let mut complete = changes.keys().last().copied();
        // The last change of each object. Models are read before pipelines, and those before experiments: a pipeline that
        // is ready and has not changed since had its models when they were read.
        let last: BTreeMap<_, _> =
            changes.into_iter().map(|(sequence, (kind, name))| ((kind, name), sequence)).collect();
        let mut events = Vec::with_capacity(last.len());
        for ((kind, name), sequence) in last {
            match self.event(kind, &name, sequence) {
                Some(event) => events.push(event),
                None => complete = None,
            }
        }
        // Stable: events of one position stay in the order of their names.
        events.sort_by_key(position);
        (events, complete)
    }

    /// Returns the number up to which everything has been sent; `None` if the stream has ended.
    async fn send_everything(&self, to: &mpsc::Sender<Result<RouteEvent, Status>>) -> Option<u64> {
        if !self.send(to, 0, Event::Reset(Reset {})).await {
            return None;
        }
        let read_model = &self.engine.read_model;
        // Read the sequence first: changes during the dump follow as separate events.
        let last = read_model.sequence();
        // Read before what they depend on, and sent after it: a gateway knows the models of a pipeline that is ready.
        let (experiments, pipelines) = (read_model.experiment_snapshots(), read_model.pipeline_snapshots());
        for name in read_model.models() {
            let Some(view) = read_model.model(&name) else { continue };
            if let Some(route) = view.route.clone()
                && !self.send(to, view.model.route_sequence, Event::Upsert(route)).await
            {
                return None;
            }
        }
        for (name, view) in pipelines {
            if let Some(route) = status::pipeline_route(&name, &view)
                && !self.send(to, view.pipeline.route_sequence, Event::UpsertPipeline(route)).await
            {
                return None;
            }
        }
        for view in experiments {
            if let Some(route) = status::experiment_route(&view)
                && !self.send(to, view.experiment.route_sequence, Event::UpsertExperiment(route)).await
            {
                return None;
            }
        }
        for name in read_model.services() {
            let Some(view) = read_model.service(&name) else { continue };
            let route = status::service_route(&view);
            if !self.send(to, view.service.route_sequence, Event::UpsertService(route)).await {
                return None;
            }
        }
        self.send(to, last, Event::Synced(Synced {})).await.then_some(last)
    }

    /// The current route of a changed object. `None` for a pipeline or an experiment that has changed again: what it
    /// depends on may not have been sent, and its later change follows.
    fn event(&self, kind: Kind, name: &str, sequence: u64) -> Option<Event> {
        let read_model = &self.engine.read_model;
        match kind {
            Kind::Pipeline => match read_model.pipeline(name) {
                Some(view) if view.pipeline.route_sequence > sequence => None,
                view => Some(
                    view.and_then(|view| status::pipeline_route(name, &view))
                        .map_or_else(|| Event::DeletePipeline(name.to_owned()), Event::UpsertPipeline),
                ),
            },
            Kind::Experiment => match read_model.experiment(name) {
                Some(view) if view.experiment.route_sequence > sequence => None,
                view => Some(
                    view.and_then(|view| status::experiment_route(&view))
                        .map_or_else(|| Event::DeleteExperiment(name.to_owned()), Event::UpsertExperiment),
                ),
            },
            Kind::Service => Some(match read_model.service(name) {
                Some(view) => Event::UpsertService(status::service_route(&view)),
                None => Event::DeleteService(status::service_name(name)),
            }),
            Kind::Model | Kind::Server => {
                let route = read_model.model(name).and_then(|view| view.route.clone());
                Some(route.map_or_else(|| Event::Delete(name.to_owned()), Event::Upsert))
            }
        }
    }

    async fn send(&self, to: &mpsc::Sender<Result<RouteEvent, Status>>, sequence: u64, event: Event) -> bool {
        let Start { state_id, epoch } = self.engine.start;
        deliver(to, RouteEvent { state_id, epoch, sequence, event: Some(event) }).await
    }
}

/// The position among events that are sent together: what starts to serve follows what it depends on; then what stops
/// precedes what it depends on. So a gateway executes neither a pipeline nor an experiment without its models. The numbers
/// do not tell: an object that changed several times is sent once.
fn position(event: &Event) -> u8 {
    let is_served = |route: &Route| {
        route.sleeps || route.versions.iter().any(|v| v.weight > 0 && !v.endpoints.is_empty())
    };
    match event {
        Event::Upsert(route) if is_served(route) => 0,
        Event::UpsertPipeline(route) if route.ready => 1,
        Event::UpsertExperiment(route) if route.active => 2,
        Event::UpsertExperiment(_) | Event::DeleteExperiment(_) => 3,
        Event::UpsertPipeline(_) | Event::DeletePipeline(_) => 4,
        Event::UpsertService(_) | Event::DeleteService(_) => 6,
        Event::Upsert(_) | Event::Delete(_) | Event::Reset(_) | Event::Synced(_) => 5,
    }
}

fn acknowledged(message: RouteAcknowledgement) -> Acknowledged {
    let RouteAcknowledgement { applied, drained, undrained, lists_undrained, .. } = message;
    if !lists_undrained || undrained.len() > MAX_UNDRAINED {
        return Acknowledged { applied, drained, ..Acknowledged::default() };
    }
    let undrained = undrained.into_iter().map(|r| Removal {
        model: r.model.into(),
        version: r.version,
        replica: ReplicaId { server: r.server.into(), index: r.replica },
    });
    Acknowledged { applied, drained: applied, undrained: undrained.collect() }
}

#[tonic::async_trait]
impl Routing for Gateways {
    type WatchRoutesStream = Stream<RouteEvent>;

    async fn watch_routes(
        &self,
        request: Request<WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let name: Arc<str> = request.into_inner().subscriber.into();
        caller.change().add(Object::new("gateway", &name));
        caller.check_gateway(&name)?;
        if name.is_empty() {
            return Err(Status::failed_precondition(
                "subscriber is empty: a gateway needs a name of its own",
            ));
        }
        let connection = Connection {
            engine: self.engine.clone(),
            name: name.clone(),
            number: self.engine.next_connection(),
        };
        let outbox = Outbox::<RouteChanges>::new();
        let token = self.engine.stop.child_token();
        let joined = self.engine.call(|reply| Message::GatewayJoined {
            name,
            connection: connection.number,
            outbox: outbox.clone(),
            guard: token.clone().drop_guard(),
            reply,
        });
        answer(joined).await?;
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(connection.run(outbox, token, sender));
        Ok(Response::new(Stream::new(receiver)))
    }

    async fn acknowledge_routes(
        &self,
        request: Request<RouteAcknowledgement>,
    ) -> Result<Response<RouteAcknowledgementResponse>, Status> {
        Caller::of(request.extensions())?.check_gateway(&request.get_ref().subscriber)?;
        let acknowledgement = request.into_inner();
        let RouteAcknowledgement { state_id, epoch, .. } = acknowledgement;
        let Start { state_id: own_id, epoch: own_epoch } = self.engine.start;
        // Acknowledgements of an earlier start do not apply.
        if epoch == own_epoch && (state_id == own_id || state_id == 0) {
            let name = acknowledgement.subscriber.as_str().into();
            let latest = acknowledged(acknowledgement);
            self.engine.send(Message::GatewayAcknowledged { name, latest }).await;
        }
        Ok(Response::new(RouteAcknowledgementResponse {}))
    }

    async fn report_demand(
        &self,
        request: Request<DemandReport>,
    ) -> Result<Response<DemandResponse>, Status> {
        Caller::of(request.extensions())?.check_gateway(&request.get_ref().subscriber)?;
        let DemandReport { subscriber, models } = request.into_inner();
        self.engine.send(Message::Demand { gateway: subscriber.into(), models }).await;
        Ok(Response::new(DemandResponse {}))
    }

    async fn report_traffic(
        &self,
        request: Request<TrafficReport>,
    ) -> Result<Response<TrafficResponse>, Status> {
        Caller::of(request.extensions())?.check_gateway(&request.get_ref().subscriber)?;
        let TrafficReport { subscriber, sequence, models, instance } = request.into_inner();
        let gateway = subscriber.into();
        self.engine.send(Message::Traffic { gateway, instance, sequence, models }).await;
        Ok(Response::new(TrafficResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, convert, engine, restore};
    use gantry_core::scheduling::{Owner, Policy};
    use gantry_proto::{
        gantry::{ExperimentRoute, PipelineRoute},
        scheduler as pb,
    };
    use gantry_store::Store;

    /// An engine that has loaded these pipelines, one after the other.
    async fn engine_with_pipelines(names: &[&str]) -> (Handle, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let restored = restore::load(&store, Policy::default(), 0).unwrap();
        let (engine, running) = engine::new(Config::new(store), restored);
        tokio::spawn(running.run());
        for (i, name) in names.iter().enumerate() {
            let steps = vec![pb::PipelineStep { name: format!("step-{i}"), ..Default::default() }];
            let message = pb::Pipeline { name: (*name).into(), steps, ..Default::default() };
            engine.load_pipeline(convert::accepted_pipeline(message), Owner::Cli).await.unwrap();
        }
        (engine, dir)
    }

    #[tokio::test]
    async fn changed_pipeline_is_sent_under_its_latest_number() {
        let (engine, _dir) = engine_with_pipelines(&["p", "p"]).await;
        let connection = Connection { engine, name: "g".into(), number: 1 };
        assert_eq!(connection.event(Kind::Pipeline, "p", 1), None, "the second change follows");
        assert!(matches!(connection.event(Kind::Pipeline, "p", 2), Some(Event::UpsertPipeline(_))));
        assert!(matches!(connection.event(Kind::Pipeline, "gone", 1), Some(Event::DeletePipeline(_))));
    }

    fn model(name: &str, serves: bool) -> Event {
        Event::Upsert(Route { model: name.into(), sleeps: serves, ..Route::default() })
    }

    fn pipeline(name: &str, ready: bool) -> Event {
        Event::UpsertPipeline(PipelineRoute { pipeline: name.into(), ready, ..PipelineRoute::default() })
    }

    fn experiment(active: bool) -> Event {
        Event::UpsertExperiment(ExperimentRoute { active, ..ExperimentRoute::default() })
    }

    #[test]
    fn events_sent_together_follow_their_dependencies() {
        let sorted = |mut events: Vec<Event>| {
            events.sort_by_key(position);
            events
        };
        let started = [model("m", true), pipeline("p", true), experiment(true)];
        assert_eq!(sorted(started.iter().rev().cloned().collect()), started);
        let stopped = [experiment(false), pipeline("p", false), Event::Delete("m".into())];
        assert_eq!(sorted(stopped.iter().rev().cloned().collect()), stopped);
        // A new version of a pipeline precedes the end of the model that only its old version needs.
        let replaced = [model("new", true), pipeline("p", true), Event::Delete("old".into())];
        assert_eq!(sorted(replaced.iter().rev().cloned().collect()), replaced);
    }

    /// A gateway that acknowledges an earlier event has not applied the changes of a later one.
    #[tokio::test]
    async fn only_the_last_event_completes_the_changes_sent_together() {
        let (engine, _disk) = engine_with_pipelines(&["a", "b"]).await;
        let connection = Connection { engine, name: "g".into(), number: 1 };
        let change = |sequence, name: &str| (sequence, (Kind::Pipeline, Arc::from(name)));
        let (events, complete) = connection.events([change(1, "a"), change(2, "b")].into());
        assert_eq!((events.len(), complete), (2, Some(2)));
        let (events, complete) = connection.events([change(0, "a"), change(2, "b")].into());
        assert_eq!((events.len(), complete), (1, None), "a later change of a pipeline follows");

        let outbox = Outbox::<RouteChanges>::new();
        let (sender, mut receiver) = mpsc::channel(WINDOW);
        tokio::spawn(connection.run(outbox.clone(), CancellationToken::new(), sender));
        let mut numbers = Vec::new();
        loop {
            let event = receiver.recv().await.unwrap().unwrap();
            if matches!(event.event, Some(Event::Synced(_))) {
                break;
            }
        }
        outbox.extend(&[change(3, "gone"), change(4, "lost"), change(6, "away")], 100);
        for _ in 0..3 {
            numbers.push(receiver.recv().await.unwrap().unwrap().sequence);
        }
        assert_eq!(numbers, [2, 2, 6]);
    }
}
