//! `SeldonConfigs` and `ServerConfigs`: what runtimes and Servers are made of. Nothing is made from them alone; they are
//! checked where they are written, so that whoever writes one does not have to look at what uses it.

#[cfg(test)]
mod tests;

use super::{
    alone::{Snapshot, controller},
    checked::{Checked, check, told},
};
use crate::{
    cluster::{CustomKind, SeldonConfig, ServerConfig},
    conditions::{Outlook, Says},
    plan::Plan,
};
use gantry_api::PlainStatus;
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;

/// The controller of `SeldonConfigs`.
#[derive(Clone, Copy, Debug)]
pub struct SeldonConfigs;

/// The controller of `ServerConfigs`.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfigs;

controller!(SeldonConfigs, SeldonConfig, "seldonconfig", configs, plan);
controller!(ServerConfigs, ServerConfig, "serverconfig", server_configs, plan);

/// Says whether it can be used. How many use it is not said: that would be a write here for every change there.
fn plan<K: Checked + CustomKind<Status = PlainStatus>>(
    snapshot: &Snapshot<K>,
    now: Timestamp,
) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    let Some(object) = snapshot.object.as_deref().filter(|object| !object.is_deleted()) else { return plan };
    let says = match check(object) {
        Ok(_) => Says::new(true, "Valid", "can be used", Outlook::Settled),
        Err(_) if mutant::is("calls_bad_configurations_ready") => {
            Says::new(true, "Valid", "can be used", Outlook::Settled)
        }
        Err(says) => says,
    };
    plan.status = Some(told(object, &[], &says, now));
    plan
}
