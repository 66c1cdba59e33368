//! `gantry.v1.Routing`: route streams of gateways.

use super::{Stream, WINDOW, answer, deliver};
use crate::{
    engine::{Handle, Message},
    outbox::{Outbox, RouteChanges},
};
use gantry_proto::gantry::{
    DemandReport, DemandResponse, Reset, RouteAcknowledgement, RouteAcknowledgementResponse, RouteEvent,
    Synced, WatchRoutesRequest, route_event::Event, routing_server::Routing,
};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

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
            for (sequence, model) in changes.by_sequence {
                let route = self.engine.read_model.model(&model).and_then(|v| v.route.clone());
                let event = route.map_or_else(|| Event::Delete(model.to_string()), Event::Upsert);
                if !self.send(&to, sequence, event).await {
                    return;
                }
            }
        }
    }

    async fn send_everything(&self, to: &mpsc::Sender<Result<RouteEvent, Status>>) -> bool {
        if !self.send(to, 0, Event::Reset(Reset {})).await {
            return false;
        }
        // Read the sequence first: changes during the dump follow as separate events.
        let last = self.engine.read_model.sequence();
        for name in self.engine.read_model.models() {
            let Some(view) = self.engine.read_model.model(&name) else { continue };
            if let Some(route) = view.route.clone()
                && !self.send(to, view.model.route_sequence, Event::Upsert(route)).await
            {
                return false;
            }
        }
        self.send(to, last, Event::Synced(Synced {})).await
    }

    async fn send(&self, to: &mpsc::Sender<Result<RouteEvent, Status>>, sequence: u64, event: Event) -> bool {
        deliver(to, RouteEvent { epoch: self.engine.epoch, sequence, event: Some(event) }).await
    }
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
        let RouteAcknowledgement { subscriber, epoch, applied, drained } = request.into_inner();
        // Acknowledgements of an earlier start do not apply.
        if epoch == self.engine.epoch {
            self.engine
                .send(Message::GatewayAcknowledged { name: subscriber.into(), applied, drained })
                .await;
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
