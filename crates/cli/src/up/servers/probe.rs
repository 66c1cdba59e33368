//! Whether a replica answers.

use super::{plan::Key, supervisor::News};
use crate::client::{Address, Connection};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How often a replica that starts is asked whether it is ready, and one that is ready whether it still is.
const PROBE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How long it may take to say so.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// Asks a replica whether it is ready, until its run is over, and tells when that changes.
pub(super) async fn probe(key: Key, run: u64, port: u16, news: mpsc::Sender<News>, over: CancellationToken) {
    let Ok(address) = Address::parse(&format!("127.0.0.1:{port}"), port, "") else { return };
    let mut connection = Connection::new(address, PROBE_TIME);
    let mut was = false;
    let asking = async {
        loop {
            let answer = connection.get("/v2/health/ready").await;
            let ready = answer.is_ok_and(|a| a.status().is_success());
            if ready != was {
                was = ready;
                if news.send(News::Ready { key: key.clone(), run, ready }).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(if ready { PROBE.1 } else { PROBE.0 }).await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = over.cancelled() => {}
    }
}
