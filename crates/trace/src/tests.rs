//! Propagation, sampling and export to a collector.

use crate::{Settings, Tracer, collector::Collector, export::QUEUE_CAPACITY};
use http::{HeaderMap, HeaderValue};
use std::time::Duration;

fn settings(endpoint: String, ratio: f64) -> Settings {
    Settings { endpoint, ratio, service: None, ca: None }
}

fn from(parent: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(parent));
    headers
}

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[tokio::test(flavor = "multi_thread")]
async fn trace_continues_across_hops() {
    let collector = Collector::start().await.unwrap();
    let tracer = Tracer::start(settings(format!("http://{}", collector.address), 0.0), "first").unwrap();
    let second = tracer.of_part("second");
    {
        let mut server = tracer.server(&from(SAMPLED), || "server".into());
        server.set("n", 7);
        let mut client = tracer.client(server.context(), || "client".into());
        client.fail("broken");
        let mut next = HeaderMap::new();
        client.inject(&mut next);
        drop(second.server(&next, || "next".into()));
    }
    tracer.close(Duration::from_secs(30)).await;
    let spans = collector.spans();
    let find = |name: &str| spans.iter().find(|t| t.name == name).unwrap().clone();
    let (server, client, next) = (find("server"), find("client"), find("next"));
    assert_eq!(server.parent, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((&client.parent, &next.parent), (&server.span, &client.span));
    assert!(spans.iter().all(|t| t.trace == 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes()));
    assert_eq!((server.kind, client.kind, next.kind), (2, 3, 2));
    assert_eq!((server.service.as_str(), next.service.as_str()), ("first", "second"));
    assert_eq!(server.attributes, [("n".to_owned(), "7".to_owned())]);
    assert!(client.failed && !server.failed && spans.iter().all(|t| t.has_length));
    let mut registry = prometheus_client::registry::Registry::default();
    tracer.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("gantry_trace_spans_exported_total 3"), "{text}");
}

#[tokio::test]
async fn caller_decides_sampling() {
    let tracer = |ratio| Tracer::start(settings("http://127.0.0.1:1".into(), ratio), "x").unwrap();
    for (ratio, headers, recorded) in [
        (0.0, from(SAMPLED), true),
        (1.0, from(UNSAMPLED), false),
        (1.0, HeaderMap::new(), true),
        (0.0, HeaderMap::new(), false),
        (1.0, from("nonsense"), true),
    ] {
        let span = tracer(ratio).server(&headers, || "x".into());
        assert_eq!(span.is_recording(), recorded, "{ratio} {headers:?}");
        let mut next = HeaderMap::new();
        span.inject(&mut next);
        // The decision is propagated in any case.
        assert_eq!(tracer(ratio).context(&next).unwrap().is_sampled(), recorded);
    }
}

#[tokio::test]
async fn disabled_tracer_does_nothing() {
    let tracer = Tracer::off();
    let span = tracer.server(&from(SAMPLED), || unreachable!("name of a disabled span"));
    let mut next = HeaderMap::new();
    span.inject(&mut next);
    assert!(!tracer.is_on() && next.is_empty() && tracer.context(&from(SAMPLED)).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_beyond_queue_capacity_are_dropped_and_counted() {
    let tracer = Tracer::start(settings("http://127.0.0.1:1".into(), 1.0), "x").unwrap();
    for _ in 0..QUEUE_CAPACITY + 3000 {
        drop(tracer.server(&HeaderMap::new(), || "x".into()));
    }
    let mut registry = prometheus_client::registry::Registry::default();
    tracer.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let (_, dropped) = text.split_once("gantry_trace_spans_dropped_total ").unwrap();
    let dropped: usize = dropped.lines().next().unwrap().parse().unwrap();
    assert!((1000..=QUEUE_CAPACITY + 3000).contains(&dropped), "{text}");
}

#[tokio::test]
async fn malformed_traceparent_is_ignored() {
    let tracer = Tracer::start(settings("http://127.0.0.1:1".into(), 1.0), "x").unwrap();
    for (text, valid) in [
        (UNSAMPLED, true),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later-version", true),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
        ("00-af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
        ("", false),
        ("-", false),
    ] {
        assert_eq!(tracer.context(&from(text)).is_some(), valid, "{text}");
    }
}
