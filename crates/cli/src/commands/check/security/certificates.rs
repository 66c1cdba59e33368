//! Validity of the certificates in a namespace.

use super::{
    super::{
        api::{Api, ApiError},
        objects::text,
        report::Report,
    },
    Namespace, pods,
};
use gantry_operator::certificates::{BUNDLE, SECRETS};
use gantry_tls::CertificateInfo;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) async fn check(api: &Api, namespace: &Namespace, report: &mut Report) {
    let mounted: BTreeSet<&str> = namespace
        .workloads
        .iter()
        .filter(|workload| {
            ["scheduler", "gateway", "agent"].iter().any(|command| pods::runs(workload, command))
        })
        .flat_map(pods::mounted_secrets)
        .filter(|name| SECRETS.contains(name))
        .collect();
    for name in mounted {
        let what = format!("Secret {name}");
        let path = format!("/api/v1/namespaces/{}/secrets/{name}", namespace.name);
        match api.get(&path).await {
            Ok(secret) => validity(&what, &secret, Timestamp::now(), report),
            Err(ApiError::NotFound) => {
                let hint = "pods that mount it do not start: see the log of the operator";
                report.fail(&what, "not found", hint);
            }
            Err(ApiError::Forbidden(_)) => report.note(&what, "unknown", "you may not read it"),
            Err(error) => report.note(&what, "unknown", &error.to_string()),
        }
    }
}

/// The certificate that expires first.
fn validity(what: &str, secret: &Value, now: Timestamp, report: &mut Report) {
    let is_ours = text(secret, "/metadata/labels/app.kubernetes.io~1managed-by") == "gantry";
    if !is_ours {
        let hint = "rename or delete it: the operator does not change objects of others";
        return report.fail(what, "not managed by the operator", hint);
    }
    let files = secret.get("data").and_then(Value::as_object);
    let mut first: Option<(i64, i64)> = None;
    for (file, data) in files.into_iter().flatten() {
        if file == BUNDLE || file.strip_suffix(".crt").is_none() {
            continue;
        }
        let decoded = serde_json::from_value::<ByteString>(data.clone()).unwrap_or_default();
        let Some(info) =
            CertificateInfo::read_all(file, &decoded.0).ok().and_then(|all| all.into_iter().next())
        else {
            return report.fail(what, &format!("{file} is damaged"), "the operator repairs it: see its log");
        };
        if first.is_none_or(|(_, until)| info.not_after < until) {
            first = Some((info.not_before, info.not_after));
        }
    }
    let Some((from, until)) = first else { return report.ok(what, "no certificates") };
    let shown = Timestamp::from_second(until).map(|at| at.to_string()).unwrap_or_default();
    let now = now.as_second();
    if now >= until {
        report.fail(what, &format!("expired {shown}"), "the operator renews it: see its log");
    } else if until - now < (until - from) / 6 {
        let hint = "it is renewed after two thirds of its lifetime: see the log of the operator";
        report.note(what, &format!("expires {shown}"), hint);
    } else {
        report.ok(what, &format!("valid until {shown}"));
    }
}
