//! `gantry scheduler --store etcd://…`: leads, or stands by.
//!
//! ```text
//! standby ──campaign──▶ leader: ports open ──lease lost──▶ ports closed, standby again
//! ```

use super::scheduler::{Args, bind_listeners};
use crate::error::CommandError;
use gantry_standalone::{
    bootstrap::{
        Scheduler, Tracer,
        admin_server::{self, AdminServer, Role, stuck_reason},
        listen,
        log::LogBuffer,
        notifications::Notifier,
        scheduler_server::{BoundListener, RunningScheduler},
        signal, trace,
    },
    console::print,
};
use gantry_store::{
    Store,
    etcd::{Candidate, Leadership, Settings, Standby},
};
use prometheus_client::registry::Registry;
use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// After a failure to serve as the leader, the others get the first chance.
const RETRY_DELAY: Duration = Duration::from_secs(1);

const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// What health and metrics show of the current leadership.
#[derive(Clone, Default)]
struct Current(Arc<Mutex<Option<Arc<Leading>>>>);

struct Leading {
    scheduler: Scheduler,
    registry: Registry,
}

impl Current {
    fn get(&self) -> Option<Arc<Leading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, leading: Option<Leading>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = leading.map(Arc::new);
    }

    fn role(&self, reason: &watch::Receiver<Standby>) -> Role {
        match self.get() {
            Some(leading) => Role::Leader { epoch: leading.scheduler.epoch() },
            None => Role::Standby { reason: reason.borrow().to_string() },
        }
    }
}

/// Why a leader stopped to serve.
enum Ended {
    Signal,
    Lost(String),
}

pub(super) struct Context<'a> {
    pub(super) args: &'a Args,
    pub(super) stop: &'a CancellationToken,
    pub(super) tracer: &'a Tracer,
    pub(super) tls: Option<gantry_tls::Server>,
    pub(super) plaintext_host: Option<IpAddr>,
    pub(super) notifier: Notifier,
}

impl Context<'_> {
    /// Runs until Ctrl-C or SIGTERM.
    pub(super) async fn serve(&self, settings: Settings, logs: LogBuffer) -> Result<(), CommandError> {
        let location = settings.location.to_string();
        // A port that is in use is found now, not when this scheduler has to lead.
        drop(self.bind().await?);
        // So is an audit log that cannot be written.
        self.args.access.start()?.finish().await;
        let (health, health_address) =
            listen::bind("health", self.args.health_host, self.args.health_probe_port, "--health-probe-port")
                .await?;
        let candidate = Candidate::start(settings).map_err(failed)?;
        let mut registry = Registry::default();
        candidate.register_metrics(&mut registry);
        self.tracer.register_metrics(&mut registry);
        let current = Current::default();
        let admin = AdminServer {
            stuck: {
                let current = current.clone();
                Box::new(move || current.get().and_then(|leading| stuck_reason(leading.scheduler.liveness())))
            },
            role: {
                let (current, reason) = (current.clone(), candidate.reason());
                Box::new(move || current.role(&reason))
            },
            more_metrics: {
                let current = current.clone();
                Box::new(move |text| match current.get() {
                    Some(leading) => {
                        prometheus_client::encoding::text::encode_registry(text, &leading.registry)
                    }
                    None => Ok(()),
                })
            },
            ..AdminServer::new(registry, logs)
        };
        let stop_admin = CancellationToken::new();
        tokio::spawn(admin_server::serve(admin, health, stop_admin.clone()));
        print(&format!("gantry scheduler {} · state in {location}", env!("CARGO_PKG_VERSION")));
        print("");
        print(&format!(
            "  health    http://{:<24} /live, /ready, /startup, /metrics",
            health_address.to_string()
        ));
        print("");
        let result = self.campaign_and_lead(&candidate, &current).await;
        trace::flush(self.tracer).await;
        stop_admin.cancel();
        result
    }

    async fn campaign_and_lead(&self, candidate: &Candidate, current: &Current) -> Result<(), CommandError> {
        loop {
            let elected = tokio::select! {
                elected = candidate.campaign() => elected.map_err(failed)?,
                () = print_reasons(candidate.reason()) => continue,
                () = self.stop.cancelled() => return Ok(()),
            };
            match self.lead(elected.0, elected.1, current).await? {
                Ended::Signal => return Ok(()),
                Ended::Lost(reason) => {
                    tracing::warn!(%reason, "stepped down");
                    print(&format!("Stepped down: {reason}. The ports are closed."));
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Serves while this process leads.
    async fn lead(
        &self,
        store: Store,
        leadership: Leadership,
        current: &Current,
    ) -> Result<Ended, CommandError> {
        let access = self.args.access.start();
        let bound = match access {
            Ok(access) => self.bind().await.map(|listeners| (listeners, access)),
            Err(error) => Err(error),
        };
        let (listeners, access) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                leadership.resign().await;
                return Err(error);
            }
        };
        let lines: Vec<_> = listeners.iter().map(BoundListener::describe).collect();
        let notifier = self.notifier.clone();
        let running = match RunningScheduler::start(store, listeners, access, notifier, self.tracer) {
            Ok(running) => running,
            // The lease was lost while the records were read.
            Err(error) if leadership.is_lost() => return Ok(Ended::Lost(error.to_string())),
            Err(error) => {
                leadership.resign().await;
                return Err(error);
            }
        };
        let scheduler = running.scheduler().clone();
        let mut registry = Registry::default();
        running.register_metrics(&mut registry);
        let epoch = scheduler.epoch();
        current.set(Some(Leading { scheduler: scheduler.clone(), registry }));
        print(&format!("Leader, epoch {epoch}."));
        for line in &lines {
            print(line);
        }
        print("Ready. Ctrl-C stops; desired state is kept in etcd.");
        tracing::info!(epoch, "this scheduler leads");
        // In this order: the engine also ends when the lease is lost.
        let ended = tokio::select! {
            biased;
            () = self.stop.cancelled() => Ended::Signal,
            reason = leadership.ended() => Ended::Lost(reason),
            reason = stuck(&scheduler) => {
                leadership.resign().await;
                return Err(CommandError::failed(format!("{reason}; this process ends, so that a standby leads")));
            }
        };
        current.set(None);
        if let Ended::Lost(_) = ended {
            // No order of this leader is sent any more.
            scheduler.stop();
        } else {
            tracing::info!("stopping; finishing open calls");
        }
        drop(scheduler);
        tokio::select! {
            () = running.shut_down() => {}
            () = signal::terminated() => {}
        }
        leadership.resign().await;
        Ok(ended)
    }

    async fn bind(&self) -> Result<Vec<BoundListener>, CommandError> {
        bind_listeners(self.args, self.tls.clone(), self.plaintext_host).await
    }
}

/// Waits until the engine makes no progress: its leader would keep a standby from leading.
async fn stuck(scheduler: &Scheduler) -> String {
    loop {
        tokio::time::sleep(HEALTH_INTERVAL).await;
        if let Some(reason) = stuck_reason(scheduler.liveness()) {
            return reason;
        }
    }
}

/// Prints why this process stands by, each time that the reason changes.
async fn print_reasons(mut reason: watch::Receiver<Standby>) {
    while reason.changed().await.is_ok() {
        let reason = reason.borrow_and_update().to_string();
        tracing::info!(%reason, "standing by");
        print(&format!("Standby: {reason}. The ports open when this scheduler leads."));
    }
    std::future::pending::<()>().await;
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: gantry_store::StoreError) -> CommandError {
    CommandError::failed(error.to_string())
}
