//! Trace settings from flags and OpenTelemetry's environment variables. `OTEL_RESOURCE_ATTRIBUTES` and
//! `OTEL_EXPORTER_OTLP_{HEADERS,COMPRESSION}` are read by the SDK itself.

use std::path::PathBuf;

/// Collector and sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    /// Sampling ratio of traces that start here, from 0 to 1.
    pub ratio: f64,
    /// Service name for every part, instead of `gantry-gateway` and so on.
    pub service: Option<String>,
    /// CA of the collector's certificate, for `https`.
    pub ca: Option<PathBuf>,
}

/// Invalid trace settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SettingsError {
    #[error("{0} is \"{1}\": it must be http://HOST:PORT, such as http://127.0.0.1:4317")]
    Endpoint(String, String),
    #[error("{0} is \"{1}\": it must be a number from 0 to 1")]
    Ratio(String, String),
    #[error(
        "OTEL_TRACES_SAMPLER is \"{0}\": it can be parentbased_traceidratio, parentbased_always_on or parentbased_always_off"
    )]
    Sampler(String),
    #[error("{0} is \"{1}\": only grpc is supported")]
    Protocol(String, String),
    #[error("collector {0} uses TLS: set OTEL_EXPORTER_OTLP_CERTIFICATE to the CA of its certificate")]
    Ca(String),
    #[error("{0}")]
    Certificate(String),
    #[error("OTLP exporter: {0}")]
    Exporter(String),
}

impl Settings {
    /// Resolves flags, then environment variables; `None` when tracing is off.
    pub fn resolve(
        endpoint: Option<String>,
        ratio: Option<f64>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let set = |name: &str| environment(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let off = |name: &str, word: &str| set(name).is_some_and(|v| v.eq_ignore_ascii_case(word));
        let disabled = off("OTEL_SDK_DISABLED", "true") || off("OTEL_TRACES_EXPORTER", "none");
        // OTEL_EXPORTER_OTLP_TRACES_* overrides OTEL_EXPORTER_OTLP_*.
        let signal = |tail: &str| {
            ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].into_iter().find_map(|head| {
                let name = format!("{head}{tail}");
                set(&name).map(|value| (name, value))
            })
        };
        let from_environment = if disabled { None } else { signal("ENDPOINT") };
        let flag = endpoint.filter(|e| !e.is_empty()).map(|e| ("--trace-endpoint".to_owned(), e));
        let Some((name, endpoint)) = flag.or(from_environment) else { return Ok(None) };
        let is_address = endpoint
            .parse::<http::Uri>()
            .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
        if !is_address {
            return Err(SettingsError::Endpoint(name, endpoint));
        }
        if let Some((name, protocol)) = signal("PROTOCOL").filter(|(_, p)| p != "grpc") {
            return Err(SettingsError::Protocol(name, protocol));
        }
        let ca = signal("CERTIFICATE").map(|(_, path)| PathBuf::from(path));
        if endpoint.starts_with("https://") && ca.is_none() {
            return Err(SettingsError::Ca(endpoint));
        }
        let invalid = |value: &str| SettingsError::Ratio("OTEL_TRACES_SAMPLER_ARG".into(), value.to_owned());
        let argument = match set("OTEL_TRACES_SAMPLER_ARG") {
            None => 1.0,
            Some(text) => {
                text.parse().ok().filter(|r| (0.0..=1.0).contains(r)).ok_or_else(|| invalid(&text))?
            }
        };
        let sampled = match set("OTEL_TRACES_SAMPLER").as_deref() {
            None | Some("parentbased_traceidratio" | "traceidratio") => argument,
            Some("parentbased_always_on" | "always_on") => 1.0,
            Some("parentbased_always_off" | "always_off") => 0.0,
            Some(other) => return Err(SettingsError::Sampler(other.to_owned())),
        };
        if let Some(ratio) = ratio.filter(|r| !(0.0..=1.0).contains(r)) {
            return Err(SettingsError::Ratio("--trace-ratio".into(), ratio.to_string()));
        }
        Ok(Some(Self { endpoint, ratio: ratio.unwrap_or(sampled), service: set("OTEL_SERVICE_NAME"), ca }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flag: Option<&str>, set: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Settings::resolve(flag.map(str::to_owned), None, &find)
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");

    #[test]
    fn tracing_is_off_without_endpoint() {
        assert_eq!(resolve(None, &[]), Ok(None));
        assert_eq!(resolve(None, &[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(resolve(None, &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        assert_eq!(resolve(None, &[ENDPOINT]).unwrap().unwrap().endpoint, "http://c:4317");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1");
        assert_eq!(resolve(None, &[ENDPOINT, traces]).unwrap().unwrap().endpoint, "http://t:1");
        assert_eq!(resolve(Some("http://f:2"), &[ENDPOINT]).unwrap().unwrap().endpoint, "http://f:2");
    }

    #[test]
    fn otel_environment_variables_are_read() {
        let settings = resolve(
            None,
            &[
                ENDPOINT,
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_SERVICE_NAME", "mine"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        assert!((settings.ratio - 0.25).abs() < f64::EPSILON);
        assert_eq!(settings.service.as_deref(), Some("mine"));
    }

    #[test]
    fn invalid_settings_name_the_variable() {
        for (set, message) in [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")][..], "OTEL_EXPORTER_OTLP_ENDPOINT is \"c:4317\""),
            (&[ENDPOINT, ("OTEL_TRACES_SAMPLER_ARG", "2")], "OTEL_TRACES_SAMPLER_ARG is \"2\""),
            (
                &[ENDPOINT, ("OTEL_TRACES_SAMPLER", "jaeger_remote")],
                "OTEL_TRACES_SAMPLER is \"jaeger_remote\"",
            ),
            (
                &[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"http/json\"",
            ),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317")], "collector https://c:4317 uses TLS"),
        ] {
            let got = resolve(None, set).unwrap_err().to_string();
            assert!(got.starts_with(message), "{got}");
        }
    }
}
