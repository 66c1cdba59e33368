//! Scheduler connections: one per namespace that needs a scheduler.

use crate::{
    context::Context, controller::SchedulerRole, controllers::server, schedulers::SchedulerConnection,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
};

/// Opens or closes the connection of a namespace, as its objects require.
pub(crate) fn update(context: &Arc<Context>, namespace: &str) {
    // The initial sync with a scheduler has to be complete.
    if !context.may_write() || !context.is_synced(namespace) {
        return;
    }
    // What was deleted while the scheduler was unreachable is unloaded after the next sync.
    let is_needed = is_needed(context, namespace)
        || (context.connector.serves_all() && context.caches.schedulers.may_have_objects(namespace));
    let mut connections = context.connections.lock().unwrap_or_else(PoisonError::into_inner);
    match (is_needed, connections.contains_key(namespace)) {
        (true, false) => {
            let connection = open(context, namespace);
            connections.insert(namespace.to_owned(), connection);
        }
        (false, true) => {
            if let Some(connection) = connections.remove(namespace) {
                connection.close();
            }
            drop(connections);
            context.caches.schedulers.remove_namespace(namespace);
            context.queues.add_namespace(&context.caches, namespace);
        }
        _ => {}
    }
}

/// A scheduler is needed where an object deploys one. A scheduler that serves every namespace is needed wherever one of
/// its clients may be.
fn is_needed(context: &Context, namespace: &str) -> bool {
    let caches = &context.caches;
    let has = |role: SchedulerRole| {
        let mut registrations = caches.registry.iter().filter(|r| r.scheduler == role);
        registrations.any(|r| caches.has_any_in(r.id, namespace))
    };
    let settings = &caches.settings;
    let has_services =
        (settings.inference_services || settings.algorithms) && namespace == settings.namespace;
    has(SchedulerRole::Provider)
        || (context.connector.serves_all()
            && (caches.settings.scope.contains(namespace) || has_services || has(SchedulerRole::Client)))
}

fn open(context: &Arc<Context>, namespace: &str) -> SchedulerConnection {
    let (to, name) = (Arc::clone(context), namespace.to_owned());
    let notify = move |event| {
        to.queues.scheduler_changed(&to.caches, &name, event);
        update(&to, &name);
    };
    let (of, name) = (Arc::clone(context), namespace.to_owned());
    let servers = move || of.may_write().then(|| server::deployed(&of.caches, &name));
    let (connector, fence) = (Arc::clone(&context.connector), context.fence.clone());
    let schedulers = Arc::clone(&context.caches.schedulers);
    SchedulerConnection::open(namespace, connector, schedulers, fence, servers, notify)
}

/// Opens every connection that is needed, once this operator leads.
pub(crate) fn open_all(context: &Arc<Context>) {
    let caches = &context.caches;
    let mut namespaces = BTreeSet::new();
    for registration in caches.registry.iter().filter(|r| r.scheduler != SchedulerRole::None) {
        namespaces.extend(caches.keys(registration.id).into_iter().map(|key| key.namespace));
    }
    // Objects deleted while no operator ran are in no cache; only the scheduler knows them.
    let scopes = caches.settings.scope.watched(&caches.settings.namespace);
    namespaces.extend(scopes.into_iter().filter(|scope| !scope.is_empty()));
    namespaces.insert(caches.settings.namespace.clone());
    for namespace in &namespaces {
        update(context, namespace);
    }
}

pub(crate) fn close_all(context: &Context) {
    let connections =
        std::mem::take(&mut *context.connections.lock().unwrap_or_else(PoisonError::into_inner));
    connections.values().for_each(SchedulerConnection::close);
}
