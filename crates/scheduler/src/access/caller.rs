//! The caller of a request, for the checks that need the message: owner, replica, name of a gateway.

use super::{
    role::{Grant, Identity, Role},
    table::describe,
};
use crate::audit::Change;
use gantry_core::scheduling::{Owner, ReplicaId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tonic::{Extensions, Status};

/// In the extensions of each request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    identity: Arc<Identity>,
    /// What the call changes, for the audit log.
    change: Arc<Mutex<Change>>,
}

impl Caller {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity: Arc::new(identity), change: Arc::default() }
    }

    /// The caller of a request. Every request has one: without the layer nothing is allowed.
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, Status> {
        extensions.get::<Self>().cloned().ok_or_else(|| Status::internal("the caller is not identified"))
    }

    /// The owner on whose behalf the caller acts, if its role allows it.
    pub(crate) fn owner(&self, named: Owner) -> Result<Owner, Status> {
        let text = named.to_string();
        let result = self.identity.grant.owner(named);
        self.change().set_owner(result.as_ref().map_or(text.clone(), Owner::to_string));
        result.map_err(|rule| {
            let what = format!("act as the owner {text}: its role {rule}");
            self.denied(
                &what,
                "use a certificate of the role that declares this object, or name another owner",
            )
        })
    }

    /// Whether the caller's certificate has the role of an operator.
    pub(crate) fn is_operator(&self) -> bool {
        matches!(self.identity.grant, Grant::Role { role: Role::Operator, .. })
    }

    /// Denies a call for a replica that the certificate does not name.
    pub(crate) fn check_replica(&self, id: &ReplicaId) -> Result<(), Status> {
        if self.identity.grant.is_replica(id) {
            return Ok(());
        }
        Err(self.denied(
            &format!("act for replica {} of server {}", id.index, id.server),
            "use the certificate of that replica",
        ))
    }

    /// Denies a call under the name of another gateway.
    pub(crate) fn check_gateway(&self, name: &str) -> Result<(), Status> {
        if self.identity.grant.is_gateway(name) {
            return Ok(());
        }
        Err(self.denied(
            &format!("act as gateway {name}"),
            "use the certificate of that gateway, or set its name with --name",
        ))
    }

    /// Denies a change in another namespace.
    pub(crate) fn check_namespace(&self, namespace: &str) -> Result<(), Status> {
        if self.identity.grant.is_in_namespace(namespace) {
            return Ok(());
        }
        Err(self.denied(
            &format!("change objects of namespace {namespace}"),
            "use the certificate of that namespace's operator",
        ))
    }

    /// What the call changes, for the audit log.
    pub(crate) fn change(&self) -> MutexGuard<'_, Change> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self, what: &str, remedy: &str) -> Status {
        Status::permission_denied(format!("{} may not {what}: {remedy}", describe(&self.identity)))
    }
}
