//! The owner of a valid credential, and what it may do.

use crate::{Action, Denied, Now, Reason, Target, access::Access, metrics::Counters, rate::Bucket};
use std::sync::Arc;

/// A known credential: a key, or a token that was verified.
#[derive(Debug)]
pub struct Principal {
    /// Of the key, or of the first grant that the token has.
    pub(crate) name: Arc<str>,
    pub(crate) access: Vec<Arc<Access>>,
    /// Seconds since 1970.
    pub(crate) expires: Option<u64>,
    pub(crate) bucket: Option<Arc<Bucket>>,
    pub(crate) counters: Counters,
}

impl Principal {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether a request may continue: the credential is valid, and the rate is not exceeded.
    pub(crate) fn admit(&self, now: Now) -> Result<(), Denied> {
        if self.is_expired(now.wall) {
            let message = format!("the credential of {} has expired: request a new one", self.name);
            return Err(Denied::new(Reason::Expired, message));
        }
        if let Some(bucket) = &self.bucket
            && let Err(wait) = bucket.take(now.steady)
        {
            self.counters.limited.inc();
            let seconds = u32::try_from(wait.div_ceil(1_000_000_000)).unwrap_or(u32::MAX).max(1);
            return Err(Denied {
                retry_after: Some(seconds),
                ..Denied::new(
                    Reason::Limited,
                    format!("the rate limit of {} is exceeded: retry in {seconds} s", self.name),
                )
            });
        }
        self.counters.accepted.inc();
        Ok(())
    }

    /// Refuses what the credential does not permit.
    pub fn authorize(&self, action: Action, target: Target<'_>) -> Result<(), Denied> {
        if self.access.iter().any(|access| access.allows(action, target)) {
            return Ok(());
        }
        let cut = |name: &str| name.chars().take(100).collect::<String>();
        let (object, list) = match target {
            Target::Model(name) | Target::ServiceModel { model: name, .. } => {
                (format!("model {:?}", cut(name)), "models")
            }
            Target::Pipeline(name) => (format!("pipeline {:?}", cut(name)), "pipelines"),
            Target::Experiment(name) => (format!("experiment {:?}", cut(name)), "experiments"),
            Target::Service { namespace } => {
                (format!("services in namespace {:?}", cut(namespace)), "namespaces")
            }
            Target::AllModels => ("all models".to_owned(), "models (with \"*\")"),
        };
        Err(self.forbidden(action, &object, list))
    }

    /// Refuses an action for which the credential has the right on no object: the object is not known yet.
    pub fn authorize_right(&self, action: Action) -> Result<(), Denied> {
        if self.has_right(action) {
            return Ok(());
        }
        Err(self.forbidden(action, "any object", "rights"))
    }

    pub fn has_right(&self, action: Action) -> bool {
        self.access.iter().any(|access| access.has_right(action))
    }

    /// Whether a list shows the model.
    pub fn sees(&self, model: &str) -> bool {
        self.access.iter().any(|access| access.allows(Action::Metadata, Target::Model(model)))
    }

    fn forbidden(&self, action: Action, object: &str, list: &str) -> Denied {
        self.counters.forbidden.inc();
        Denied::new(
            Reason::Forbidden,
            format!(
                "{} may not do this: it has no right {:?} for {object}; its allow.{list} in the authentication \
                 configuration decides",
                self.name,
                action.right(),
            ),
        )
    }

    #[cfg(test)]
    pub(crate) fn for_test(expires: Option<u64>) -> Self {
        Self { name: "test".into(), access: Vec::new(), expires, bucket: None, counters: Counters::default() }
    }
}
