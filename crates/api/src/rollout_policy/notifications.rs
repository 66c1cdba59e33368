//! Where decisions about rollouts are reported.

use super::RolloutPolicySpec;
use crate::FieldError;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const MAX_URL: usize = 2048;

/// Reports of rollouts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationsSpec {
    /// HTTP endpoints that get a JSON document for each event; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub webhooks: Vec<WebhookSpec>,
}

/// An HTTP endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSpec {
    /// URL that gets a POST request, over http or https.
    #[schemars(length(max = 2048))]
    pub url: String,
    /// Events to report; default: starts, approvals, decisions and problems, but not every step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 13))]
    pub events: Vec<RolloutEvent>,
}

impl WebhookSpec {
    /// Whether the event with this name is reported.
    pub fn reports(&self, event: &str) -> bool {
        let events = if self.events.is_empty() { RolloutEvent::DEFAULT } else { &self.events };
        events.iter().any(|reported| reported.name() == event)
    }
}

/// An event of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolloutEvent {
    Started,
    StageEntered,
    ApprovalNeeded,
    Paused,
    Resumed,
    Promoted,
    RolledBack,
    Cancelled,
    BakeEnded,
    Degraded,
    Reverting,
    Reverted,
    RevertFailed,
}

impl RolloutEvent {
    /// Those of a webhook that names none.
    const DEFAULT: &[Self] = &[
        Self::Started,
        Self::ApprovalNeeded,
        Self::Promoted,
        Self::RolledBack,
        Self::Degraded,
        Self::Reverted,
        Self::RevertFailed,
    ];

    /// As in the engine.
    const fn name(self) -> &'static str {
        match self {
            Self::Started => "Started",
            Self::StageEntered => "StageEntered",
            Self::ApprovalNeeded => "ApprovalNeeded",
            Self::Paused => "Paused",
            Self::Resumed => "Resumed",
            Self::Promoted => "Promoted",
            Self::RolledBack => "RolledBack",
            Self::Cancelled => "Cancelled",
            Self::BakeEnded => "BakeEnded",
            Self::Degraded => "Degraded",
            Self::Reverting => "Reverting",
            Self::Reverted => "Reverted",
            Self::RevertFailed => "RevertFailed",
        }
    }
}

// Not derived, for the reason of TargetKind.
impl JsonSchema for RolloutEvent {
    fn schema_name() -> Cow<'static, str> {
        "RolloutEvent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": [
            "Started", "StageEntered", "ApprovalNeeded", "Paused", "Resumed", "Promoted", "RolledBack", "Cancelled",
            "BakeEnded", "Degraded", "Reverting", "Reverted", "RevertFailed",
        ] })
    }
}

/// The webhooks of a policy's `spec`; none if it is not valid.
pub fn webhooks_of_json(spec: &[u8]) -> Vec<WebhookSpec> {
    let spec = serde_json::from_slice::<RolloutPolicySpec>(spec).ok();
    spec.and_then(|spec| spec.notifications).map(|notifications| notifications.webhooks).unwrap_or_default()
}

pub(super) fn errors(notifications: &NotificationsSpec) -> Vec<FieldError> {
    let urls = notifications.webhooks.iter().enumerate();
    urls.filter_map(|(i, webhook)| {
        let problem = url_problem(&webhook.url)?;
        Some((format!("spec.notifications.webhooks[{i}].url"), problem.to_owned()))
    })
    .collect()
}

/// Why a URL cannot be notified. The message does not repeat it: its path may be a credential.
fn url_problem(url: &str) -> Option<&'static str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return Some("must begin with https:// or http://") };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.strip_prefix('[').map_or_else(
        || authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        |v6| v6.split(']').next().unwrap_or_default(),
    );
    if url.len() > MAX_URL {
        Some("is longer than 2048 characters")
    } else if authority.contains('@') {
        Some(
            "has a user name or password in it: use a URL with a token in its path, as chat services issue them",
        )
    } else if host.is_empty() {
        Some("has no host")
    } else if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        Some("has a character that URLs write as %XX, such as a space")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_core::rollout::Event;

    #[test]
    fn urls_are_accepted_or_refused_with_a_reason() {
        for (url, expected) in [
            ("https://hooks.example.com/T0/B0", None),
            ("http://receiver:8080/?a=b", None),
            ("http://[::1]:8080/x", None),
            ("ftp://a/b", Some("https://")),
            ("hooks.example.com", Some("https://")),
            ("", Some("https://")),
            ("https://", Some("no host")),
            ("https:///path", Some("no host")),
            ("https://:443/", Some("no host")),
            ("https://user:secret@example.com/", Some("user name")),
            ("https://example.com/a b", Some("%XX")),
            ("https://exämple.com/", Some("%XX")),
            (&format!("https://a/{}", "x".repeat(2048)), Some("2048")),
        ] {
            let problem = url_problem(url);
            assert_eq!(problem.is_some(), expected.is_some(), "{url}: {problem:?}");
            assert!(problem.unwrap_or_default().contains(expected.unwrap_or_default()), "{url}: {problem:?}");
            assert!(!problem.unwrap_or_default().contains("secret"), "{problem:?}");
        }
    }

    #[test]
    fn webhook_without_events_reports_decisions_and_not_every_step() {
        let webhook = WebhookSpec { url: "https://a".into(), events: Vec::new() };
        assert!(webhook.reports("RolledBack") && webhook.reports("Promoted"));
        assert!(!webhook.reports("StageEntered") && !webhook.reports("CommandRejected"));
        let steps = WebhookSpec { events: vec![RolloutEvent::StageEntered], ..webhook };
        assert!(steps.reports("StageEntered") && !steps.reports("RolledBack"));
    }

    #[test]
    fn names_are_those_of_the_engine() {
        let revision = || gantry_core::rollout::Revision::from("1");
        let started = Event::Started { revision: revision() };
        let promoted = Event::Promoted { revision: revision() };
        let ended = Event::BakeEnded { revision: revision() };
        for (own, engine) in [
            (RolloutEvent::Started, started.name()),
            (RolloutEvent::Promoted, promoted.name()),
            (RolloutEvent::BakeEnded, ended.name()),
        ] {
            assert_eq!(own.name(), engine);
            assert_eq!(serde_json::to_value(own).unwrap(), engine);
        }
    }

    #[test]
    fn webhooks_are_read_from_a_spec() {
        let spec = br#"{"strategy":{"blueGreen":{}},"notifications":{"webhooks":[{"url":"https://a","events":["Promoted"]}]}}"#;
        let expected = WebhookSpec { url: "https://a".into(), events: vec![RolloutEvent::Promoted] };
        assert_eq!(webhooks_of_json(spec), [expected]);
        for none in [&b"{}"[..], b"", br#"{"strategy":{"blueGreen":{}}}"#] {
            assert_eq!(webhooks_of_json(none), []);
        }
    }
}
