//! Model parameters of the runtime.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows per batched run; 0 or 1 disables batching.
    pub max_batch_size: usize,
    /// How long a request waits for others to share its run.
    pub max_batch_time: Duration,
    /// Threads per run.
    pub threads: usize,
    /// Memory limit of a run's values, in bytes.
    pub max_run_memory: usize,
    /// Time limit of a run.
    pub max_run_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let engine = gantry_onnx::Options::default();
        Self {
            max_batch_size: 0,
            max_batch_time: Duration::ZERO,
            threads: 1,
            max_run_memory: engine.max_run_bytes,
            max_run_time: engine.max_run_time,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter {name}: {problem}")]
pub struct SettingsError {
    name: String,
    problem: String,
}

/// Gantry's own parameters, ignored here.
const OWN_PREFIX: &str = "gantry.";

impl Settings {
    /// Unknown parameters are ignored: they may be meant for another server.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for (name, value) in parameters {
            let whole = |most: usize| {
                value.trim().parse::<usize>().ok().filter(|n| *n <= most).ok_or_else(|| SettingsError {
                    name: name.to_owned(),
                    problem: format!("must be a whole number up to {most}, got \"{}\"", value.escape_debug()),
                })
            };
            let seconds = |least: f64, most: f64| {
                let seconds = value.trim().parse::<f64>().ok().filter(|s| (least..=most).contains(s));
                seconds.map(Duration::from_secs_f64).ok_or_else(|| SettingsError {
                    name: name.to_owned(),
                    problem: format!(
                        "must be seconds from {least} to {most}, got \"{}\"",
                        value.escape_debug()
                    ),
                })
            };
            match name {
                "max_batch_size" => settings.max_batch_size = whole(1 << 20)?,
                "max_batch_time" => settings.max_batch_time = seconds(0.0, 10.0)?,
                "max_run_time" => settings.max_run_time = seconds(0.001, 3600.0)?,
                "max_run_memory" => {
                    let bytes = gantry_core::quantity::bytes(value.trim())
                        .and_then(|bytes| usize::try_from(bytes).map_err(|e| e.to_string()))
                        .and_then(|bytes| {
                            if bytes > 0 {
                                Ok(bytes)
                            } else {
                                Err("0 is too small: a run needs memory".to_owned())
                            }
                        });
                    settings.max_run_memory =
                        bytes.map_err(|problem| SettingsError { name: name.to_owned(), problem })?;
                }
                "threads" => settings.threads = whole(256)?.max(1),
                other if other.starts_with(OWN_PREFIX) => {}
                other => tracing::debug!(parameter = other, "parameter is not used by the built-in runtime"),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let parsed = Settings::parse([
            ("max_batch_size", "16"),
            // The last counts, as in Seldon's agent.
            ("max_batch_size", "32"),
            ("max_batch_time", "0.005"),
            ("threads", "2"),
            ("max_run_memory", "512Mi"),
            ("max_run_time", "2.5"),
            ("other", "x"),
        ]);
        let expected = Settings {
            max_batch_size: 32,
            max_batch_time: Duration::from_millis(5),
            threads: 2,
            max_run_memory: 512 << 20,
            max_run_time: Duration::from_millis(2500),
        };
        assert_eq!(parsed, Ok(expected));
        for bad in [
            ("max_batch_size", "-1"),
            ("max_batch_size", "many"),
            ("max_batch_time", "11"),
            ("max_batch_time", "NaN"),
            ("threads", "999"),
            ("max_run_time", "0"),
        ] {
            let error = Settings::parse([bad]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("parameter {}: must be", bad.0)), "{error}");
        }
        for (bad, problem) in [
            ("much", "\"much\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes"),
            ("-1", "\"-1\" is negative: memory is at least 0"),
            ("0", "0 is too small: a run needs memory"),
        ] {
            let error = Settings::parse([("max_run_memory", bad)]).unwrap_err().to_string();
            assert_eq!(error, format!("parameter max_run_memory: {problem}"));
        }
    }
}
