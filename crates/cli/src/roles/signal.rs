//! Being asked to stop.

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn asked_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            let _ = tokio::signal::ctrl_c().await;
            return;
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// A token that is cancelled when somebody asks to stop.
pub(crate) fn stopping() -> tokio_util::sync::CancellationToken {
    let stop = tokio_util::sync::CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        asked_to_stop().await;
        asked.cancel();
    });
    stop
}
