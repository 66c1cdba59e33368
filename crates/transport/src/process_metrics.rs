//! Figures of the process with the names that Prometheus' client libraries use, and the version.

use prometheus_client::{metrics::info::Info, registry::Registry};

/// Registers `gantry_build_info` and, on Linux, `process_*`.
pub fn register(registry: &mut Registry) {
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    registry.register("gantry_build", "Version of the program", Info::new(version));
    #[cfg(target_os = "linux")]
    registry.register_collector(Box::new(linux::ProcessCollector));
}

#[cfg(target_os = "linux")]
mod linux {
    use procfs::process::{LimitValue, Process};
    use prometheus_client::{
        collector::Collector,
        encoding::{DescriptorEncoder, EncodeMetric},
        metrics::{counter::ConstCounter, gauge::ConstGauge},
        registry::Unit,
    };

    #[derive(Debug)]
    pub(super) struct ProcessCollector;

    impl Collector for ProcessCollector {
        /// A figure that cannot be read is left out: a scrape does not fail for it.
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            let Ok(process) = Process::myself() else { return Ok(()) };
            let mut put = |name: &str, help: &str, unit: Option<&Unit>, value: &dyn EncodeMetric| {
                value.encode(encoder.encode_descriptor(name, help, unit, value.metric_type())?)
            };
            let (seconds, bytes) = (Some(&Unit::Seconds), Some(&Unit::Bytes));
            if let Ok(stat) = process.stat() {
                #[allow(clippy::cast_precision_loss, reason = "ticks of a hundredth of a second")]
                let from_ticks = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
                let cpu = ConstCounter::new(from_ticks(stat.utime + stat.stime));
                put("process_cpu", "Processor time of the process", seconds, &cpu)?;
                let memory = ConstGauge::new(stat.rss.saturating_mul(procfs::page_size()));
                put("process_resident_memory", "Resident memory of the process", bytes, &memory)?;
                let memory = ConstGauge::new(stat.vsize);
                put("process_virtual_memory", "Virtual memory of the process", bytes, &memory)?;
                put("process_threads", "Threads of the process", None, &ConstGauge::new(stat.num_threads))?;
                if let Ok(boot) = procfs::boot_time_secs() {
                    #[allow(clippy::cast_precision_loss, reason = "seconds since 1970")]
                    let start = ConstGauge::new(boot as f64 + from_ticks(stat.starttime));
                    put("process_start_time", "Start of the process since 1970", seconds, &start)?;
                }
            }
            if let Ok(open) = process.fd_count() {
                put("process_open_fds", "Open file descriptors", None, &ConstGauge::new(open))?;
            }
            if let Ok(limits) = process.limits()
                && let LimitValue::Value(most) = limits.max_open_files.soft_limit
            {
                put("process_max_fds", "Limit of open file descriptors", None, &ConstGauge::new(most))?;
            }
            Ok(())
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    #[test]
    fn figures_of_this_process_are_plausible() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
        };
        assert!(text.contains(&format!("gantry_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 100_000.0 && resident <= value("process_virtual_memory_bytes"), "{text}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        // The start has the precision of the boot time, a second.
        assert!((-2.0..86_400.0).contains(&age), "{age}");
        assert!(value("process_threads") >= 1.0);
        assert!((1.0..=value("process_max_fds")).contains(&value("process_open_fds")), "{text}");
    }
}
