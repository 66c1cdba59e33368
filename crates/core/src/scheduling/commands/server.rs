//! Commands about servers.

use crate::scheduling::{
    Millis, ReplicaId,
    command::{Effects, Rejection},
    owner::{Kind, Owner, check_owner, owner_after},
    server::ExpectedReplicas,
    state::State,
};
use std::sync::Arc;

impl State {
    pub(in crate::scheduling) fn adopt_server(
        &mut self,
        name: Arc<str>,
        by: Owner,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let Some(server) = self.servers.get_mut(&name) else {
            return Err(Rejection::UnknownServer(name));
        };
        if by == Owner::Gateway || server.owner.as_ref() == Some(&by) {
            return Ok(());
        }
        server.owner = Some(by);
        effects.servers.insert(name.clone());
        effects.store_servers.insert(name);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one command")]
    pub(in crate::scheduling) fn upsert_server(
        &mut self,
        name: &Arc<str>,
        expected: ExpectedReplicas,
        shared: bool,
        namespace: Option<String>,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        if let Some(server) = self.servers.get(name) {
            let generation = server.expected.and_then(|e| e.generation);
            check_owner(Kind::Server, name, server.owner.as_ref(), generation, &by, expected.replicas == 0)?;
        }
        let server = self.servers.entry(name.clone()).or_default();
        let owner = owner_after(server.owner.clone(), by);
        let shared = shared || server.joined_shared;
        let changed = server.owner != owner
            || server.expected != Some(expected)
            || server.namespace != namespace
            || server.shared != shared;
        if !changed {
            return Ok(());
        }
        let was_terminating = server.is_terminating();
        server.owner = owner;
        server.expected = Some(expected);
        server.namespace = namespace;
        server.shared = shared;
        server.requested_replicas = None;
        server.since = now;
        effects.store_servers.insert(name.clone());
        effects.servers.insert(name.clone());
        if server.is_terminating() != was_terminating {
            let replicas: Vec<u32> = server.replicas.keys().copied().collect();
            for index in replicas {
                let id = ReplicaId { server: name.clone(), index };
                self.reconcile_all_on(&id, false, now, effects);
            }
        }
        self.forget_server_if_gone(name, effects);
        self.retry_waiting(name, true, now, effects);
        Ok(())
    }
}
