//! What is told to the tracer: OpenTelemetry's own environment variables.

use std::path::PathBuf;

/// Where traces go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    /// The share of traces that begin here and are recorded, from 0 to 1.
    pub ratio: f64,
    /// A name for every part, instead of `gantry-gateway` and so on.
    pub service: Option<String>,
    /// What is said of this process besides.
    pub resource: Vec<(String, String)>,
    /// Headers of every call to the collector, such as a token.
    pub headers: Vec<(String, String)>,
    /// The CA of the collector's certificate, for `https`.
    pub ca: Option<PathBuf>,
}

/// What is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not an address.
    #[error("{0} is \"{1}\": it must be http://HOST:PORT, such as http://127.0.0.1:4317")]
    Endpoint(String, String),
    /// Not a share.
    #[error("{0} is \"{1}\": it must be a number from 0 to 1")]
    Ratio(String, String),
    /// A sampler that there is not.
    #[error(
        "OTEL_TRACES_SAMPLER is \"{0}\": it can be parentbased_traceidratio, parentbased_always_on or parentbased_always_off"
    )]
    Sampler(String),
    /// A protocol that is not spoken.
    #[error("{0} is \"{1}\": traces go out as grpc only")]
    Protocol(String, String),
    /// TLS without the CA.
    #[error(
        "the collector at {0} speaks TLS: name the CA of its certificate with OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    Ca(String),
    /// A certificate that cannot be used.
    #[error("{0}")]
    Certificate(String),
}

impl Settings {
    /// What the flags say, else the environment; `None` when nothing is to be traced.
    pub fn resolve(
        endpoint: Option<String>,
        ratio: Option<f64>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let set = |name: &str| environment(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let off = |name: &str, word: &str| set(name).is_some_and(|v| v.eq_ignore_ascii_case(word));
        let disabled = off("OTEL_SDK_DISABLED", "true") || off("OTEL_TRACES_EXPORTER", "none");
        // A variable for traces comes before the one for everything.
        let either = |tail: &str| {
            ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].into_iter().find_map(|head| {
                let name = format!("{head}{tail}");
                set(&name).map(|value| (name, value))
            })
        };
        let from_environment = if disabled { None } else { either("ENDPOINT") };
        let given = endpoint.filter(|e| !e.is_empty()).map(|e| ("--trace-endpoint".to_owned(), e));
        let Some((name, endpoint)) = given.or(from_environment) else { return Ok(None) };
        let is_address = endpoint
            .parse::<http::Uri>()
            .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
        if !is_address {
            return Err(SettingsError::Endpoint(name, endpoint));
        }
        if let Some((name, protocol)) = either("PROTOCOL").filter(|(_, p)| p != "grpc") {
            return Err(SettingsError::Protocol(name, protocol));
        }
        let ca = either("CERTIFICATE").map(|(_, path)| PathBuf::from(path));
        if endpoint.starts_with("https://") && ca.is_none() {
            return Err(SettingsError::Ca(endpoint));
        }
        let wrong = |value: &str| SettingsError::Ratio("OTEL_TRACES_SAMPLER_ARG".into(), value.to_owned());
        let argument = match set("OTEL_TRACES_SAMPLER_ARG") {
            None => 1.0,
            Some(text) => {
                text.parse().ok().filter(|r| (0.0..=1.0).contains(r)).ok_or_else(|| wrong(&text))?
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
        Ok(Some(Self {
            endpoint,
            ratio: ratio.unwrap_or(sampled),
            service: set("OTEL_SERVICE_NAME"),
            resource: set("OTEL_RESOURCE_ATTRIBUTES").map(|t| pairs(&t)).unwrap_or_default(),
            headers: either("HEADERS").map(|(_, t)| pairs(&t)).unwrap_or_default(),
            ca,
        }))
    }
}

/// `a=1,b=2`.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    text.split(',').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flag: Option<&str>, set: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Settings::resolve(flag.map(str::to_owned), None, &find)
    }

    const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");

    #[test]
    fn nothing_is_traced_unless_somebody_says_where_to() {
        assert_eq!(resolve(None, &[]), Ok(None));
        assert_eq!(resolve(None, &[AT, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(resolve(None, &[AT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        assert_eq!(resolve(None, &[AT]).unwrap().unwrap().endpoint, "http://c:4317");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1");
        assert_eq!(resolve(None, &[AT, traces]).unwrap().unwrap().endpoint, "http://t:1");
        assert_eq!(resolve(Some("http://f:2"), &[AT]).unwrap().unwrap().endpoint, "http://f:2");
    }

    #[test]
    fn the_variables_of_opentelemetry_count() {
        let settings = resolve(
            None,
            &[
                AT,
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_SERVICE_NAME", "mine"),
                ("OTEL_RESOURCE_ATTRIBUTES", "env=prod, zone = b,broken"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer x"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        assert!((settings.ratio - 0.25).abs() < f64::EPSILON);
        assert_eq!(settings.service.as_deref(), Some("mine"));
        assert_eq!(settings.resource, [("env".into(), "prod".into()), ("zone".into(), "b".into())]);
        assert_eq!(settings.headers, [("authorization".into(), "Bearer x".into())]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (set, says) in [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")][..], "OTEL_EXPORTER_OTLP_ENDPOINT is \"c:4317\""),
            (&[AT, ("OTEL_TRACES_SAMPLER_ARG", "2")], "OTEL_TRACES_SAMPLER_ARG is \"2\""),
            (&[AT, ("OTEL_TRACES_SAMPLER", "jaeger_remote")], "OTEL_TRACES_SAMPLER is \"jaeger_remote\""),
            (
                &[AT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"http/json\"",
            ),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317")],
                "the collector at https://c:4317 speaks TLS",
            ),
        ] {
            let got = resolve(None, set).unwrap_err().to_string();
            assert!(got.starts_with(says), "{got}");
        }
    }
}
