//! Spans from where they begin to a collector.

use crate::{Context, Settings, Tracer, collector::Collector};
use http::{HeaderMap, HeaderValue};
use std::time::Duration;

fn settings(endpoint: String, ratio: f64) -> Settings {
    Settings { endpoint, ratio, service: None, resource: Vec::new(), headers: Vec::new(), ca: None }
}

fn from(parent: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(parent));
    headers
}

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_on_from_hop_to_hop() {
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
    let told = collector.told();
    let find = |name: &str| told.iter().find(|t| t.name == name).unwrap().clone();
    let (server, client, next) = (find("server"), find("client"), find("next"));
    assert_eq!(server.parent, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((&client.parent, &next.parent), (&server.span, &client.span));
    assert!(told.iter().all(|t| t.trace == 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes()));
    assert_eq!((server.kind, client.kind, next.kind), (2, 3, 2));
    assert_eq!((server.service.as_str(), next.service.as_str()), ("first", "second"));
    assert_eq!(server.attributes, [("n".to_owned(), "7".to_owned())]);
    assert!(client.failed && !server.failed && told.iter().all(|t| t.has_length));
    let mut registry = prometheus_client::registry::Registry::default();
    tracer.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("gantry_trace_spans_exported_total 3"), "{text}");
}

#[tokio::test]
async fn the_caller_decides_whether_a_trace_is_recorded() {
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
        // Whoever comes after hears of the decision in any case.
        assert_eq!(Context::of(&next).unwrap().sampled, recorded);
    }
}

#[tokio::test]
async fn a_tracer_that_is_off_does_nothing() {
    let tracer = Tracer::off();
    let span = tracer.server(&from(SAMPLED), || unreachable!("no name is made"));
    let mut next = HeaderMap::new();
    span.inject(&mut next);
    assert!(!tracer.is_on() && next.is_empty() && tracer.context(&from(SAMPLED)).is_none());
}

#[tokio::test(start_paused = true)]
async fn spans_that_nobody_takes_are_counted_and_hold_up_nobody() {
    let tracer = Tracer::start(settings("http://127.0.0.1:1".into(), 1.0), "x").unwrap();
    for _ in 0..10_000 {
        drop(tracer.server(&HeaderMap::new(), || "x".into()));
    }
    tracer.close(Duration::from_mins(10)).await;
    let mut registry = prometheus_client::registry::Registry::default();
    tracer.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("gantry_trace_spans_dropped_total 10000"), "{text}");
}
