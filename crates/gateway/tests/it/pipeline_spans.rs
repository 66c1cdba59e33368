//! Trace spans of pipelines: one for the request, one for each call of a step's model.

use crate::support::{Pipelined, Placement, config, pipeline, step};
use gantry_oip::Code;
use gantry_trace::{
    Settings, Tracer,
    collector::{Collector, ReceivedSpan},
};
use std::{collections::BTreeSet, time::Duration};

/// Longer than the export takes on a loaded machine.
const EXPORT_TIMEOUT: Duration = Duration::from_mins(1);
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn attribute<'a>(span: &'a ReceivedSpan, key: &str) -> Option<&'a str> {
    span.attributes.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_has_a_span_below_the_request() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let collector = Collector::start().await.unwrap();
        let endpoint = format!("http://{}", collector.address);
        let settings = Settings { endpoint, ratio: 0.0, service: None, ca: None };
        let tracer = Tracer::start(settings, "gantry-gateway").unwrap();
        let config = gantry_gateway::Config { tracer: tracer.clone(), ..config() };
        let pipelined = Pipelined::start_with(placement, config).await;
        let steps = vec![step("a", &[]), step("b", &["a"]), step("c", &["b"])];
        pipelined.pipeline(pipeline("p", steps, &["c"]));
        pipelined.models.fails("c", Code::Internal, "broken");
        let answer = pipelined.send("p", &[("traceparent", PARENT)], &["x"]).await;
        assert!(!answer.status.is_success(), "{answer:?}");
        drop(pipelined);
        tracer.close(EXPORT_TIMEOUT).await;
        let spans = collector.spans();
        let of_kind = |kind| spans.iter().filter(move |span| span.kind == kind);
        let [request] = of_kind(2).collect::<Vec<_>>()[..] else { panic!("{placement:?} {spans:#?}") };
        assert_eq!(request.name, "POST /v2/pipelines/{pipeline}/infer");
        assert_eq!(request.parent, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        let steps: Vec<&ReceivedSpan> = of_kind(3).collect();
        let named: BTreeSet<_> = steps.iter().filter_map(|span| attribute(span, "gantry.step")).collect();
        assert_eq!(named, BTreeSet::from(["a", "b", "c"]), "{placement:?} {spans:#?}");
        assert_eq!(steps.len(), 3, "{placement:?} {spans:#?}");
        let server = if placement == Placement::Local { "builtin" } else { "mlserver" };
        for span in steps {
            let step = attribute(span, "gantry.step").unwrap_or_default();
            assert_eq!(
                (span.name.as_str(), &span.parent, &span.trace),
                ("step", &request.span, &request.trace)
            );
            assert_eq!(attribute(span, "gantry.model"), Some(format!("{step}_1").as_str()));
            assert_eq!(
                (attribute(span, "gantry.server"), attribute(span, "gantry.replica")),
                (Some(server), Some("0"))
            );
            assert_eq!(span.failed, step == "c", "{placement:?} {span:?}");
        }
    }
}
