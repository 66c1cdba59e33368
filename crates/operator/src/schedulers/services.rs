//! Routes of `InferenceServices`, `InferenceGraphs` and Algorithms in the schedulers: a scheduler may have those of several
//! namespaces.

use super::{
    RpcOutcome, SchedulerCache, SchedulerConnection, scheduler_cache::NamespaceState, views::ServiceView,
};
use crate::{
    cluster::{InferenceService, Key, KindId},
    plan::SchedulerAction,
};
use gantry_proto::gantry::{
    ServiceRoute, ServiceTraffic, ServiceTrafficRequest, service_event::Event,
    services_client::ServicesClient,
};
use tonic::Code;

/// The key of a service in the cache of a scheduler.
pub fn service_at(scheduler: &str, service: &Key) -> Key {
    Key::new(scheduler, service.to_string())
}

/// The object of a view: only services have the namespace in their name.
pub(super) fn key_of(scheduler: &str, name: &str) -> Key {
    let (namespace, name) = name.split_once('/').unwrap_or((scheduler, name));
    Key::new(namespace, name)
}

/// What a route leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    Service,
    Graph,
    Algorithm,
}

impl RouteKind {
    pub const fn of(route: &ServiceRoute) -> Self {
        match (&route.algorithm, route.graph.is_empty()) {
            (Some(_), _) => Self::Algorithm,
            (None, true) => Self::Service,
            (None, false) => Self::Graph,
        }
    }
}

impl SchedulerConnection {
    /// Statistics of the revisions of an Algorithm; `None` while the scheduler has no route to it.
    pub async fn service_traffic(
        &self,
        request: ServiceTrafficRequest,
    ) -> Result<Option<ServiceTraffic>, String> {
        let (channel, limit) = self.channel().map_err(|outcome| match outcome {
            RpcOutcome::Rejected(why) | RpcOutcome::Unavailable(why) => why,
            RpcOutcome::Accepted => String::new(),
        })?;
        let mut client = ServicesClient::new(channel);
        let call = tokio::time::timeout(limit, client.get_service_traffic(request));
        let answer = call.await.map_err(|_| format!("no answer within {} s", limit.as_secs()))?;
        match answer {
            Ok(traffic) => Ok(Some(traffic.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) if status.code() == Code::Unimplemented => {
                Err("it has no statistics of Algorithms: run Gantry's scheduler in this version".into())
            }
            Err(status) => Err(status.message().to_owned()),
        }
    }
}

impl SchedulerCache {
    /// `home` is the operator's namespace.
    pub fn new(home: &str, is_shared: bool) -> Self {
        Self { home: home.to_owned(), is_shared, ..Self::default() }
    }

    /// Whether services are read from the scheduler of a namespace. A shared one is read once.
    pub(super) fn has_services_of(&self, namespace: &str) -> bool {
        !self.is_shared || namespace == self.home
    }

    /// The scheduler of the services of a namespace: its own, else the operator's; `None` if it has no services.
    pub fn service_scheduler(&self, namespace: &str) -> Option<String> {
        let own = Some(namespace).filter(|own| self.has_services_of(own) && self.has_scheduler(own));
        let scheduler = own.or_else(|| Some(&*self.home).filter(|home| self.has_scheduler(home)))?;
        let is_usable = |state: &NamespaceState| !state.is_synced || state.has_services;
        self.read(scheduler, is_usable).filter(|usable| *usable).map(|_| scheduler.to_owned())
    }

    /// The schedulers that have a route of this kind and name.
    pub fn routed_by(&self, service: &Key, kind: RouteKind) -> Vec<String> {
        let name = service.to_string();
        let is_of_kind = |view: &ServiceView| RouteKind::of(&view.route) == kind;
        let has = |state: &NamespaceState| {
            state.is_synced && state.view::<ServiceView>(&name).is_some_and(is_of_kind)
        };
        self.lock().iter().filter(|(_, state)| has(state)).map(|(scheduler, _)| scheduler.clone()).collect()
    }

    pub(super) fn services_synced(&self, scheduler: &str) {
        self.update(scheduler, |state| state.has_services = true);
    }

    /// Returns the service or graph that changed.
    pub(super) fn apply_service_event(&self, scheduler: &str, event: Event) -> Option<Key> {
        match event {
            Event::Upsert(state) => {
                let view = ServiceView::from(state);
                let key = Key::new(view.route.namespace.clone(), view.route.name.clone());
                self.apply(scheduler, &key.to_string(), view).then_some(key)
            }
            Event::Delete(service) => {
                let key = Key::new(service.namespace, service.name);
                self.remove_service(scheduler, &key).then_some(key)
            }
            Event::Reset(_) | Event::Synced(_) => None,
        }
    }

    fn remove_service(&self, scheduler: &str, service: &Key) -> bool {
        let at = (KindId::of::<InferenceService>(), service.to_string());
        self.update(scheduler, |state| {
            state.requests.remove(&at);
            state.views.remove(&at).is_some()
        })
    }

    /// The scheduler has stored a change, whose event follows: until then the route counts as not admitted.
    pub fn service_accepted(&self, action: &SchedulerAction) {
        match action {
            SchedulerAction::PutService { scheduler, route } => {
                let name = Key::new(route.namespace.clone(), route.name.clone()).to_string();
                self.update(scheduler, |state| {
                    if state.view::<ServiceView>(&name).is_none_or(|known| known.route != **route) {
                        let reason = "no gateway has acknowledged the route yet".to_owned();
                        let view = ServiceView { route: (**route).clone(), reason, ..ServiceView::default() };
                        let at = (KindId::of::<InferenceService>(), name);
                        state.views.insert(at, Box::new(view));
                    }
                });
            }
            SchedulerAction::DeleteService { scheduler, service } => {
                self.remove_service(scheduler, service);
            }
            _ => {}
        }
    }
}
