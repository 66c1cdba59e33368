//! Readiness probe of a replica.

use super::{plan::Key, supervisor::ChangeEvent};
use crate::{address::Address, http_client::Connection};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const STARTING_INTERVAL: Duration = Duration::from_millis(200);
const READY_INTERVAL: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Probes a replica until its run ends, and reports changes of its readiness.
pub(super) async fn probe(
    key: Key,
    run: u64,
    port: u16,
    events: mpsc::Sender<ChangeEvent>,
    run_ended: CancellationToken,
) {
    let Ok(address) = Address::parse(&format!("127.0.0.1:{port}"), port, "") else { return };
    let mut connection = Connection::new(address, PROBE_TIMEOUT);
    let mut was_ready = false;
    run_ended
        .run_until_cancelled(async {
            loop {
                let response = connection.get("/v2/health/ready").await;
                let ready = response.is_ok_and(|r| r.status().is_success());
                if ready != was_ready {
                    was_ready = ready;
                    if events.send(ChangeEvent::Ready { key: key.clone(), run, ready }).await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(if ready { READY_INTERVAL } else { STARTING_INTERVAL }).await;
            }
        })
        .await;
}
