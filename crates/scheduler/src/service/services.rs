//! `gantry.v1.Services`: routes to pods that the scheduler does not place.

use super::{Stream, subscribe, within_deadline};
use crate::{
    access::Caller,
    audit::Object,
    convert,
    engine::{Handle, Start},
    read_model::ServiceSnapshot,
    status,
};
use gantry_core::scheduling::Command;
use gantry_proto::gantry::{
    DeleteServiceResponse, PutServiceResponse, Reset, ServiceEvent, ServiceName, ServiceRoute,
    ServiceTraffic, ServiceTrafficRequest, Synced, WatchServicesRequest, service_event::Event,
    services_server,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(crate) struct Services {
    pub(crate) engine: Handle,
}

/// Denies a change in a namespace of another operator.
fn check(caller: &Caller, namespace: &str, name: &str) -> Result<(), Status> {
    caller.change().add(Object::new("service", name).in_namespace(namespace));
    caller.check_namespace(namespace)
}

#[tonic::async_trait]
impl services_server::Services for Services {
    async fn put_service(
        &self,
        request: Request<ServiceRoute>,
    ) -> Result<Response<PutServiceResponse>, Status> {
        let ServiceRoute { namespace, name, .. } = request.get_ref();
        check(&Caller::of(request.extensions())?, namespace, name)?;
        let record = convert::service(request.get_ref())
            .map_err(|invalid| Status::invalid_argument(format!("invalid route: {invalid}")))?;
        within_deadline(self.engine.command(Command::PutService(record.into()))).await?;
        Ok(Response::new(PutServiceResponse {}))
    }

    async fn delete_service(
        &self,
        request: Request<ServiceName>,
    ) -> Result<Response<DeleteServiceResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let ServiceName { namespace, name } = request.into_inner();
        check(&caller, &namespace, &name)?;
        let name = convert::service_key(&namespace, &name);
        within_deadline(self.engine.command(Command::DeleteService { name })).await?;
        Ok(Response::new(DeleteServiceResponse {}))
    }

    async fn get_service_traffic(
        &self,
        request: Request<ServiceTrafficRequest>,
    ) -> Result<Response<ServiceTraffic>, Status> {
        let ServiceTrafficRequest { namespace, name, generation } = request.into_inner();
        let key = convert::service_key(&namespace, &name);
        let is_algorithm = |view: Arc<ServiceSnapshot>| status::is_algorithm(&view);
        if !self.engine.read_model.service(&key).is_some_and(is_algorithm) {
            return Err(Status::not_found(format!("there is no route to Algorithm {key}")));
        }
        let (age_ms, versions) = self.engine.service_traffic.of(&key, generation).unwrap_or_default();
        let Start { state_id, epoch } = self.engine.start;
        Ok(Response::new(ServiceTraffic { state_id, epoch, age_ms, versions }))
    }

    type WatchServicesStream = Stream<ServiceEvent>;

    async fn watch_services(
        &self,
        _: Request<WatchServicesRequest>,
    ) -> Result<Response<Self::WatchServicesStream>, Status> {
        let event = |event| ServiceEvent { event: Some(event) };
        let describe = |engine: &Handle, name: &Arc<str>| {
            let view = engine.read_model.service(name);
            let event = match view {
                Some(view) => Event::Upsert(status::service(&view)),
                None => Event::Delete(status::service_name(name)),
            };
            vec![ServiceEvent { event: Some(event) }]
        };
        let frame = [Event::Reset(Reset {}), Event::Synced(Synced {})].map(|e| Some(event(e)));
        let everything = |engine: &Handle| engine.read_model.services();
        let subscribers = &self.engine.services;
        Ok(subscribe::subscribe_between(&self.engine, "service", subscribers, everything, describe, frame))
    }
}
