//! Gantry's own control service on the scheduler: explain, plan (dry run), adopt.

use super::{
    Scheduler,
    scheduler::{as_cli, is_unknown},
};
use crate::{
    error::{CommandError, Exit},
    object_ref::{ObjectRef, kind_name},
};
use gantry_proto::gantry::{
    AdoptRequest, ExplainRequest, Explanation, PlanRequest, PlannedChange, control_client::ControlClient,
};
use tonic::{Code, Status, transport::Channel};

impl Scheduler {
    pub(crate) async fn explain(&self, object: &ObjectRef) -> Result<Explanation, CommandError> {
        let request = ExplainRequest { kind: kind_name(object.kind).to_owned(), name: object.name.clone() };
        let mut client = self.control();
        match self.call(client.explain(request)).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) if is_unknown(&status) => Err(self.not_found(object).await),
            Err(status) => Err(self.unsupported("explain", &status)),
        }
    }

    /// The changes that applying the objects would cause; `None` if the scheduler has no plan service.
    pub(crate) async fn plan(
        &self,
        request: PlanRequest,
    ) -> Result<Option<Vec<PlannedChange>>, CommandError> {
        let mut client = self.control();
        // Ownership conflicts depend on the manager, so the plan carries ours.
        match self.call(client.plan(as_cli(request))).await {
            Ok(response) => Ok(Some(response.into_inner().changes)),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(self.error(&status)),
        }
    }

    /// Transfers ownership to the CLI and returns the previous owner.
    pub(crate) async fn adopt(&self, object: &ObjectRef) -> Result<String, CommandError> {
        let request = AdoptRequest { kind: kind_name(object.kind).to_owned(), name: object.name.clone() };
        let mut client = self.control();
        match self.call(client.adopt(as_cli(request))).await {
            Ok(response) => Ok(response.into_inner().previous),
            Err(status) if is_unknown(&status) => Err(self.not_found(object).await),
            Err(status) => Err(self.unsupported("adopt", &status)),
        }
    }

    fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel())
    }

    /// A Seldon scheduler returns `Unimplemented`.
    pub(super) fn unsupported(&self, call: &str, status: &Status) -> CommandError {
        if status.code() != Code::Unimplemented {
            return self.error(status);
        }
        let message = format!(
            "the scheduler at {} does not support {call}: it is not a Gantry scheduler, or an older version",
            self.address()
        );
        CommandError::new(Exit::Refused, message)
    }
}
