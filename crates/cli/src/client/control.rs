//! What people ask of the scheduler beyond the contract: why, what if, whose.

use super::{
    Scheduler,
    scheduler::{changing, is_unknown},
};
use crate::{
    failure::{Exit, Failure},
    reference::{Reference, word},
};
use gantry_proto::gantry::{
    AdoptRequest, ExplainRequest, Explanation, PlanRequest, PlannedChange, control_client::ControlClient,
};
use tonic::{Code, Status, transport::Channel};

impl Scheduler {
    /// Why an object is as it is.
    pub(crate) async fn explain(&self, what: &Reference) -> Result<Explanation, Failure> {
        let request = ExplainRequest { kind: word(what.kind).to_owned(), name: what.name.clone() };
        let mut client = self.control();
        match self.call(client.explain(request)).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) if is_unknown(&status) => Err(Failure::new(Exit::NotFound, self.unknown(what).await)),
            Err(status) => Err(self.cannot("explain", &status)),
        }
    }

    /// What would happen if these were asked for; `None` when the scheduler cannot tell.
    pub(crate) async fn plan(&self, request: PlanRequest) -> Result<Option<Vec<PlannedChange>>, Failure> {
        let mut client = self.control();
        // The plan says what would be refused to us, so it must know who we are.
        match self.call(client.plan(changing(request))).await {
            Ok(answer) => Ok(Some(answer.into_inner().changes)),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(self.failure(&status)),
        }
    }

    /// Takes an object over; says who had it.
    pub(crate) async fn adopt(&self, what: &Reference) -> Result<String, Failure> {
        let request = AdoptRequest { kind: word(what.kind).to_owned(), name: what.name.clone() };
        let mut client = self.control();
        match self.call(client.adopt(changing(request))).await {
            Ok(answer) => Ok(answer.into_inner().previous),
            Err(status) if is_unknown(&status) => Err(Failure::new(Exit::NotFound, self.unknown(what).await)),
            Err(status) => Err(self.cannot("adopt", &status)),
        }
    }

    fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel())
    }

    /// A scheduler that is not Gantry's speaks the contract and no more.
    fn cannot(&self, verb: &str, status: &Status) -> Failure {
        if status.code() != Code::Unimplemented {
            return self.failure(status);
        }
        let words = format!(
            "the scheduler at {} cannot {verb}: it is another system's, or an older version",
            self.address()
        );
        Failure::new(Exit::Refused, words)
    }
}
