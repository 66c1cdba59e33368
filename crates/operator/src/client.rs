//! Clients of the API server.
//!
//! Each client has one HTTP/2 connection, which its watches share; with a server that does not offer HTTP/2, one
//! HTTP/1.1 connection for each watch.

use http::{HeaderValue, header::USER_AGENT};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use std::time::Duration;
use tower::{BoxError, ServiceBuilder};

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// A connection without a response to a ping for so long is closed. A watch would not notice that its server is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A client without retries of its own: reconciliation retries what is still needed.
pub fn connect(mut config: Config, component: &str) -> Result<Client, kube::Error> {
    config.default_retry = false;
    // Appears in the audit log.
    let agent = format!("gantry-operator/{} ({component})", env!("CARGO_PKG_VERSION"));
    if let Ok(agent) = HeaderValue::try_from(agent) {
        config.headers.push((USER_AGENT, agent));
    }
    config.connect_timeout = Some(CONNECT_TIME);
    // kube's own client has HTTP/1.1 only, and knows proxies.
    let server_name = config.tls_server_name.clone().map(TryInto::try_into).transpose();
    match server_name {
        Ok(server_name) if config.proxy_url.is_none() => {
            let resolver = server_name.map(FixedServerNameResolver::new);
            http2(&config, resolver)
        }
        _ => Ok(ClientBuilder::try_from(config)?.build()),
    }
}

fn http2(config: &Config, server_name: Option<FixedServerNameResolver>) -> Result<Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // The head and the body of a request are frames of their own: the second would wait 40 ms for an acknowledgement.
    tcp.set_nodelay(true);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(resolver) = server_name {
        tls = tls.with_server_name_resolver(resolver);
    }
    let mut connector = TimeoutConnector::new(tls.enable_http1().enable_http2().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let client = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
