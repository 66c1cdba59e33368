//! `gantry.v1.Routing`: route streams of gateways.

use super::{Stream, WINDOW, answer, deliver};
use crate::{
    engine::{Acknowledged, Handle, Message, Start},
    outbox::{Outbox, RouteChanges},
    status,
};
use gantry_core::scheduling::{Kind, Removal, ReplicaId};
use gantry_proto::gantry::{
    DemandReport, DemandResponse, Reset, Route, RouteAcknowledgement, RouteAcknowledgementResponse,
    RouteEvent, Synced, WatchRoutesRequest, route_event::Event, routing_server::Routing,
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
        loop {
            if reset && !self.send_everything(&to).await {
                return;
            }
            let changes = tokio::select! {
                biased;
                () = to.closed() => return,
                () = token.cancelled() => return,
                changes = outbox.changes() => changes,
            };
            reset = changes.reset;
            // A reset sends every object.
            let events = if reset { Vec::new() } else { self.events(changes.by_sequence) };
            for (sequence, event) in events {
                if !self.send(&to, sequence, event).await {
                    return;
                }
            }
        }
    }

    /// Events of changes that are sent together, ordered and numbered.
    fn events(&self, changes: BTreeMap<u64, (Kind, Arc<str>)>) -> Vec<(u64, Event)> {
        // The last change of each object. Models are read before pipelines, and those before experiments: a pipeline that
        // is ready and has not changed since had its models when they were read.
        let last: BTreeMap<_, _> =
            changes.into_iter().map(|(sequence, (kind, name))| ((kind, name), sequence)).collect();
        let mut complete = last.values().copied().max().unwrap_or_default();
        let mut events = Vec::with_capacity(last.len());
        for ((kind, name), sequence) in last {
            match self.event(kind, &name, sequence) {
                Some(event) => events.push((sequence, event)),
                None => complete = complete.min(sequence.saturating_sub(1)),
            }
        }
        by_dependency(events, complete)
    }

    async fn send_everything(&self, to: &mpsc::Sender<Result<RouteEvent, Status>>) -> bool {
        if !self.send(to, 0, Event::Reset(Reset {})).await {
            return false;
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
                return false;
            }
        }
        for (name, view) in pipelines {
            if let Some(route) = status::pipeline_route(&name, &view)
                && !self.send(to, view.pipeline.route_sequence, Event::UpsertPipeline(route)).await
            {
                return false;
            }
        }
        for view in experiments {
            if let Some(route) = status::experiment_route(&view)
                && !self.send(to, view.experiment.route_sequence, Event::UpsertExperiment(route)).await
            {
                return false;
            }
        }
        self.send(to, last, Event::Synced(Synced {})).await
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

/// Orders events that are sent together by [`position`]: an object that changed several times is sent once, so the order of
/// the numbers is not the order of the dependencies. Each event carries the number up to which all changes have been sent,
/// `complete` after the last one.
fn by_dependency(mut events: Vec<(u64, Event)>, mut complete: u64) -> Vec<(u64, Event)> {
    events.sort_by_key(|(sequence, event)| (position(event), *sequence));
    for (sequence, _) in events.iter_mut().rev() {
        let before = complete.min(sequence.saturating_sub(1));
        *sequence = std::mem::replace(&mut complete, before);
    }
    events
}

/// What starts to serve follows what it depends on; then what stops precedes what it depends on. So a gateway executes
/// neither a pipeline nor an experiment without its models.
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
        let name: Arc<str> = request.into_inner().subscriber.into();
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
        let DemandReport { subscriber, models } = request.into_inner();
        self.engine.send(Message::Demand { gateway: subscriber.into(), models }).await;
        Ok(Response::new(DemandResponse {}))
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

    #[tokio::test]
    async fn changed_pipeline_is_sent_under_its_latest_number() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let restored = restore::load(&store, Policy::default(), 0).unwrap();
        let (engine, running) = engine::new(Config::new(store), restored);
        tokio::spawn(running.run());
        for step in ["a", "b"] {
            let steps = vec![pb::PipelineStep { name: step.into(), ..Default::default() }];
            let message = pb::Pipeline { name: "p".into(), steps, ..Default::default() };
            let encoded = convert::accepted_pipeline(message);
            engine.load_pipeline(encoded, Owner::Cli).await.unwrap();
        }
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
        // The model changed again after its pipeline and its experiment had started.
        let started = vec![(1, pipeline("p", true)), (2, experiment(true)), (3, model("m", true))];
        let expected = [(0, model("m", true)), (1, pipeline("p", true)), (3, experiment(true))];
        assert_eq!(by_dependency(started, 3), expected);

        let stopped = vec![(4, Event::Delete("m".into())), (5, pipeline("p", false)), (6, experiment(false))];
        let expected = [(3, experiment(false)), (3, pipeline("p", false)), (6, Event::Delete("m".into()))];
        assert_eq!(by_dependency(stopped, 6), expected);

        // A new version of a pipeline precedes the end of the model that only its old version needs.
        let replaced =
            vec![(7, Event::Delete("old".into())), (8, model("new", true)), (9, pipeline("p", true))];
        let expected = [(6, model("new", true)), (6, pipeline("p", true)), (9, Event::Delete("old".into()))];
        assert_eq!(by_dependency(replaced, 9), expected);
    }

    #[test]
    fn events_of_models_keep_their_numbers() {
        let events = vec![(1, model("a", true)), (4, model("b", true)), (5, model("c", true))];
        let numbers: Vec<u64> = by_dependency(events, 5).into_iter().map(|(sequence, _)| sequence).collect();
        assert_eq!(numbers, [3, 4, 5]);
    }
}
