//! Rights of the scheduler's callers, and the audit log.

use crate::error::CommandError;
use gantry_scheduler::{AuditLog, AuditSettings, AuditWriter, Guard, Trust, UnmarkedCertificates};
use gantry_tls::Server;
use prometheus_client::registry::Registry;
use std::{path::PathBuf, time::Duration};

/// Limit for the last entries of the audit log to be written at shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Access to the control plane")]
pub struct AccessArgs {
    /// Rights of client certificates without a role: none, client, or any (all rights, as before roles). A role is a URI
    /// of the certificate: spiffe://TRUST-DOMAIN/gantry/role/ROLE.
    #[arg(
        long,
        env = "GANTRY_ROLE_OF_UNMARKED_CERTIFICATES",
        value_name = "ROLE",
        default_value = UnmarkedCertificates::Client.name()
    )]
    role_of_unmarked_certificates: UnmarkedCertificates,

    /// File for the audit log: a JSON line for each change and each denied call.
    #[arg(long, env = "GANTRY_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<PathBuf>,

    /// Size at which the audit log starts a new file, such as 64Mi.
    #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = max_size)]
    audit_log_max_size: u64,

    /// Number of files of the audit log; the oldest is replaced.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    audit_log_files: u32,
}

fn max_size(text: &str) -> Result<u64, String> {
    const MIN: u64 = 64 << 10;
    let size = super::args::memory(text)?;
    if size < MIN { Err("use at least 64Ki".into()) } else { Ok(size) }
}

impl AccessArgs {
    /// Opens the audit log, if there is one.
    pub fn start(&self) -> Result<Access, CommandError> {
        let (log, writer) = match &self.audit_log {
            None => (None, None),
            Some(file) => {
                let settings = AuditSettings {
                    file: file.clone(),
                    max_size: self.audit_log_max_size,
                    max_files: self.audit_log_files,
                };
                let (log, writer) = AuditLog::open(settings).map_err(|e| {
                    CommandError::failed(format!(
                        "{}: the audit log cannot be written: {e}; choose another file with --audit-log",
                        file.display()
                    ))
                })?;
                (Some(log), Some(writer))
            }
        };
        Ok(Access { guard: Guard::new(log), unmarked: self.role_of_unmarked_certificates, writer })
    }
}

/// The rights of callers on all listeners of a scheduler.
#[derive(Debug)]
pub struct Access {
    guard: Guard,
    unmarked: UnmarkedCertificates,
    writer: Option<AuditWriter>,
}

impl Access {
    /// Shared by all listeners.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// How the callers of a listener are identified.
    pub fn trust(&self, tls: Option<&Server>) -> Trust {
        if !tls.is_some_and(Server::is_mutual) {
            return Trust::Everyone;
        }
        if self.unmarked == UnmarkedCertificates::Any {
            tracing::warn!(
                "certificates without a role have all rights: issue certificates with roles, then remove \
                 --role-of-unmarked-certificates=any"
            );
        }
        Trust::Certificates(self.unmarked)
    }

    pub fn register_metrics(&self, registry: &mut Registry) {
        self.guard.register_metrics(registry);
    }

    /// Writes the last entries of the audit log.
    pub async fn finish(self) {
        if let Some(writer) = self.writer {
            writer.finish(FINISH_TIMEOUT).await;
        }
    }
}
