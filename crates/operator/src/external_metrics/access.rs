//! Whether a caller may read: the API server decides, and its answers are kept for some seconds.

use super::{
    api::{Failure, METRIC},
    front_proxy::Caller,
};
use http::StatusCode;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Further answers are not kept.
const MAX_KEPT: usize = 1024;
/// Members of this group may do everything.
const ADMINISTRATORS: &str = "system:masters";

type Question = (Caller, String);

pub(super) struct Access {
    reviews: Api<SubjectAccessReview>,
    kept: Mutex<BTreeMap<Question, (Instant, bool)>>,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        Self { reviews: Api::all(client), kept: Mutex::default() }
    }

    /// Fails unless the caller may read the metric in a namespace.
    pub(super) async fn check(&self, caller: Caller, namespace: &str) -> Result<(), Failure> {
        if caller.groups.iter().any(|group| group == ADMINISTRATORS) {
            return Ok(());
        }
        let user = caller.user.clone();
        let question = (caller, namespace.to_owned());
        let allowed = if let Some(allowed) = self.known(&question) {
            allowed
        } else {
            let allowed = self.review(&question).await.map_err(|why| {
                let message = format!("the permissions of {user} cannot be checked: {why}");
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            })?;
            self.keep(question, allowed);
            allowed
        };
        if allowed {
            return Ok(());
        }
        let message = format!(
            "{user} may not list {METRIC} of the group external.metrics.k8s.io in namespace {namespace}: grant it with a Role"
        );
        Err(Failure::new(StatusCode::FORBIDDEN, "Forbidden", message))
    }

    fn known(&self, question: &Question) -> Option<bool> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(question).filter(|(at, _)| at.elapsed() < KEPT_FOR).map(|(_, allowed)| *allowed)
    }

    fn keep(&self, question: Question, allowed: bool) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (at, _)| at.elapsed() < KEPT_FOR);
        if kept.len() < MAX_KEPT {
            kept.insert(question, (Instant::now(), allowed));
        }
    }

    async fn review(&self, (caller, namespace): &Question) -> Result<bool, String> {
        let attributes = ResourceAttributes {
            group: Some("external.metrics.k8s.io".into()),
            version: Some("v1beta1".into()),
            resource: Some(METRIC.into()),
            namespace: Some(namespace.clone()),
            verb: Some("list".into()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(caller.user.clone()),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let params = PostParams::default();
        let answer = tokio::time::timeout(CALL_TIMEOUT, self.reviews.create(&params, &review)).await;
        let answer = answer.map_err(|_| "no answer from the API server".to_owned())?;
        Ok(answer.map_err(|e| e.to_string())?.status.is_some_and(|status| status.allowed))
    }
}
