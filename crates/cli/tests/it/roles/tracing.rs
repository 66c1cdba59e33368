//! One trace through gateway and runtime, exported to a collector.

use super::process::{Process, infer, wait_until};
use gantry_trace::collector::{Collector, ReceivedSpan};
use std::path::Path;

const PARENT: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
const UNSAMPLED: &str = "traceparent: 00-11111111111111111111111111111111-b7ad6b7169203331-00\r\n";

#[test]
fn request_is_one_trace_with_nested_spans() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let collector = runtime.block_on(Collector::start()).unwrap();
    let state = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart");
    let mut args = vec!["up".to_owned(), models.display().to_string(), "--no-watch".to_owned()];
    args.push(format!("--state-dir={}", state.path().display()));
    for port in ["inference", "admin", "scheduler", "agent"] {
        args.push(format!("--{port}-port=0"));
    }
    let endpoint = format!("http://{}", collector.address);
    let up = Process::start_with(&args, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    up.wait_for_line("Ready in");
    let inference = up.addresses()["inference"].clone();
    assert_eq!(infer(&inference, UNSAMPLED).unwrap().0, 200);
    assert_eq!(infer(&inference, PARENT).unwrap().0, 200);

    let of_trace = || -> Vec<ReceivedSpan> {
        let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
        collector.spans().into_iter().filter(|t| t.trace == trace).collect()
    };
    wait_until("three spans exported", || of_trace().len() >= 3);
    let spans = of_trace();
    let find = |service: &str, kind: i32| {
        spans.iter().find(|s| s.service == service && s.kind == kind).unwrap_or_else(|| panic!("{spans:#?}"))
    };
    let (request, target, runtime_span) =
        (find("gantry-gateway", 2), find("gantry-gateway", 3), find("gantry-runtime", 2));
    assert_eq!(request.parent, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((&target.parent, &runtime_span.parent), (&request.span, &target.span));
    assert_eq!(request.name, "POST /v2/models/{model}/infer");
    assert!(target.attributes.contains(&("gantry.model".into(), "iris_1".into())), "{target:?}");
    assert!(runtime_span.attributes.contains(&("gantry.model".into(), "iris_1".into())), "{runtime_span:?}");
    assert_eq!(spans.len(), 3, "{spans:#?}");
    let unsampled = [0x11_u8; 16];
    assert!(
        collector.spans().iter().all(|t| t.trace != unsampled),
        "an unsampled request must not be exported"
    );
}
