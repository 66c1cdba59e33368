//! Pipelines on topics of a real broker: the same graphs return the same. `cargo xtask kafka` runs it.

use crate::{
    pipelines::{Case, joins, versioned},
    support::{
        FakeRemote, Pipelined, Placement, TEST_TIMEOUT, config, event, grpc_outputs, grpc_request, pipeline,
        reset, step, synced, until,
    },
};
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_api::PipelineSpec;
use gantry_gateway::kafka::Settings;
use gantry_kafka::{Consumed, Produced, engine::Client, headers, topics::Side};
use gantry_oip::{
    Code,
    server::{InferenceServer, Reply, grpc_reply},
};
use gantry_proto::{
    gantry::route_event::Event,
    inference as pb,
    scheduler::{DataflowSpec, Pipeline},
};
use prometheus_client::registry::Registry;
use prost::Message as _;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

#[allow(dead_code, reason = "the tests of gantry-kafka use all of it")]
#[path = "../../../kafka/tests/it/support/broker.rs"]
mod broker;

/// The consumers of all pipelines join their groups first.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);

/// For the broker.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A gateway that consumes topics.
struct Consuming {
    pipelined: Pipelined,
    settings: Arc<Settings>,
    client: Client,
    /// Of the errors topic.
    errors: Mutex<Vec<Consumed>>,
    _stop: tokio_util::sync::DropGuard,
}

impl Consuming {
    async fn start(namespace: &str) -> Self {
        Self::with_config(namespace, config()).await
    }

    async fn with_config(namespace: &str, config: gantry_gateway::Config) -> Self {
        let broker = broker::Broker::shared();
        let text =
            format!(r#"{{"bootstrap.servers":"{}","worker":{{"retryTimeoutMs":20000}}}}"#, broker.address());
        let settings = Settings::parse(&text, namespace, &|_| None).unwrap();
        let stop = CancellationToken::new();
        let pipelined = Pipelined::prepared(Placement::Local, config, |gateway| {
            drop(gateway.consume_topics(settings.clone(), &mut Registry::default(), stop.clone()));
        })
        .await;
        pipelined.running.routes.apply(reset());
        pipelined.running.routes.apply(synced());
        let settings = Arc::new(settings);
        let client = Client::connect(&settings).await.unwrap();
        client.create_topics(&[settings.topics.errors()]).await.unwrap();
        Self { pipelined, settings, client, errors: Mutex::default(), _stop: stop.drop_guard() }
    }

    /// Writes a request, with the name of the pipeline as its ID.
    async fn send(&self, name: &str, inputs: &[&str]) {
        self.send_with(name, inputs, Vec::new()).await;
    }

    async fn send_with(&self, name: &str, inputs: &[&str], headers: headers::Headers) {
        let topic = self.settings.topics.pipeline(name, Side::Inputs);
        let outputs = self.settings.topics.pipeline(name, Side::Outputs);
        self.client.create_topics(&[topic.clone(), outputs]).await.unwrap();
        let record = Produced {
            topic,
            partition: None,
            key: Some(format!("0.{name}.{name}").into()),
            value: grpc_request(inputs).encode_to_vec().into(),
            headers,
        };
        self.client.produce(&[record]).await.unwrap();
    }

    async fn records(&self, topic: &str) -> Vec<Consumed> {
        let started = std::time::Instant::now();
        loop {
            match self.client.read_last(topic, 1000, TEST_TIMEOUT).await {
                Ok(records) => return records,
                // A new topic has no leader for a moment.
                Err(error) => assert!(started.elapsed() < TEST_TIMEOUT, "{topic}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The outputs, or the error.
    async fn answer(&self, name: &str) -> Result<String, String> {
        let outputs = self.settings.topics.pipeline(name, Side::Outputs);
        loop {
            if let Some(record) = self.records(&outputs).await.first() {
                assert_eq!(headers::get(&record.headers, "x-pipeline-version"), Some("1"));
                return Ok(grpc_outputs(pb::ModelInferResponse::decode(record.value.clone()).unwrap()));
            }
            let mut errors = self.errors.lock().await;
            let of_pipeline = |record: &&Consumed| {
                headers::get(&record.headers, headers::PIPELINE) == Some(name)
                    && headers::get(&record.headers, headers::ANSWERED).is_none()
            };
            if let Some(record) = errors.iter().find(of_pipeline) {
                return Err(String::from_utf8(record.value.to_vec()).unwrap());
            }
            *errors = self.records(&self.settings.topics.errors()).await;
        }
    }
}

/// The table with topics of its own for each pipeline: `p` becomes `p-1`, `p-2`, and so on.
fn numbered(number: usize, case: Case) -> Case {
    let pipelines: Vec<String> = case.readers.keys().cloned().chain(["p".to_owned()]).collect();
    let own = |name: &str| format!("{name}-{number}");
    let rename = |reference: &mut String| {
        let (first, rest) =
            reference.split_once('.').map_or((&**reference, ""), |(first, rest)| (first, rest));
        if pipelines.iter().any(|name| name == first) {
            let dot = if rest.is_empty() { "" } else { "." };
            *reference = format!("{}{dot}{rest}", own(first));
        }
    };
    let rename_keys = |map: &mut BTreeMap<String, String>| {
        let renamed = std::mem::take(map).into_iter().map(|(mut from, to)| {
            rename(&mut from);
            (from, to)
        });
        *map = renamed.collect();
    };
    let rename_all = |mut spec: PipelineSpec| {
        for step in &mut spec.steps {
            step.inputs.iter_mut().chain(&mut step.triggers).for_each(rename);
            rename_keys(&mut step.tensor_map);
        }
        if let Some(output) = &mut spec.output {
            output.steps.iter_mut().for_each(rename);
        }
        if let Some(input) = &mut spec.input {
            input.external_inputs.iter_mut().chain(&mut input.external_triggers).for_each(rename);
            rename_keys(&mut input.tensor_map);
        }
        spec
    };
    Case {
        spec: rename_all(case.spec),
        error: case.error.map(|error| error.replace(" p.", &format!(" {}.", own("p")))),
        readers: case.readers.into_iter().map(|(name, spec)| (own(&name), rename_all(spec))).collect(),
        ..case
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_return_the_same_from_topics() {
    let consuming = Consuming::start("table").await;
    let cases: Vec<_> = Case::table().enumerate().map(|(number, case)| numbered(number, case)).collect();
    for (number, case) in cases.iter().enumerate() {
        for (name, reader) in &case.readers {
            consuming.pipelined.pipeline(versioned(reader, name, &case.about));
        }
        consuming.pipelined.pipeline(versioned(&case.spec, &format!("p-{number}"), &case.about));
    }
    for (number, case) in cases.iter().enumerate() {
        let send = async |inputs: Vec<String>| {
            let name = format!("p-{number}");
            let inputs: Vec<&str> = inputs.iter().map(|input| &**input).collect();
            consuming.send(&name, &inputs).await;
            if case.spec.output.is_some() {
                return tokio::time::timeout(ANSWER_TIMEOUT, consuming.answer(&name))
                    .await
                    .expect(&case.about);
            }
            // Nothing is written; over REST it is an error.
            Err(case.error.clone().unwrap_or_default())
        };
        case.check(&consuming.pipelined, send).await;
    }
    let models = &consuming.pipelined.models;
    models.returns("l", &["m"]);
    models.returns("r", &["n"]);
    for (definition, _) in joins() {
        consuming.send(&definition.name, &["x"]).await;
        consuming.pipelined.pipeline(definition);
    }
    for (definition, expected) in joins() {
        match consuming.answer(&definition.name).await {
            Ok(outputs) => assert!(expected.contains(&outputs), "{:?}: {outputs}", definition.steps.last()),
            Err(error) => {
                assert!(expected.is_empty() && error.contains("no output"), "{definition:?}: {error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_steps_are_retried_or_written() {
    let consuming = Consuming::start("failures").await;
    consuming.pipelined.models.fails("bad", Code::InvalidArgument, "wrong shape");
    consuming.pipelined.pipeline(pipeline("fails", vec![step("a", &[]), step("bad", &["a"])], &["bad"]));
    consuming.send("fails", &["x"]).await;
    let error = consuming.answer("fails").await.unwrap_err();
    assert!(error.starts_with("bad : wrong shape"), "{error}");
    let errors = consuming.errors.lock().await.clone();
    assert_eq!(headers::get(&errors[0].headers, headers::ERRORS), Some("bad"));
    // The data of the step that succeeded is in its topic.
    let step_outputs = consuming.settings.topics.model("a", Side::Outputs);
    assert_eq!(consuming.records(&step_outputs).await.len(), 1);

    // The response does not depend on the step that fails.
    consuming.pipelined.pipeline(pipeline("aside", vec![step("a", &[]), step("bad", &["a"])], &["a"]));
    consuming.send("aside", &["x"]).await;
    assert_eq!(consuming.answer("aside").await.as_deref(), Ok("y=a(x=1)"));
    let is_of_step = |record: &&Consumed| headers::get(&record.headers, headers::PIPELINE) == Some("aside");
    until("the error of the step", || async {
        consuming.records(&consuming.settings.topics.errors()).await.iter().any(|record| is_of_step(&record))
    })
    .await;
    let errors = consuming.records(&consuming.settings.topics.errors()).await;
    let error = errors.iter().find(is_of_step).unwrap();
    assert_eq!(error.value, "bad : wrong shape");
    assert_eq!(headers::get(&error.headers, headers::ERRORS), Some("bad"));
    assert_eq!(headers::get(&error.headers, headers::REQUEST_ID), Some("aside"));
    assert_eq!(headers::get(&error.headers, headers::ANSWERED), Some("true"));

    // A model without a replica: the record waits for it.
    consuming.send("late", &["x"]).await;
    let late = pipeline("late", vec![step("missing", &[])], &["missing"]);
    consuming.pipelined.apply(Event::UpsertPipeline(crate::support::pipeline_route(late)));
    let group_started = consuming.settings.topics.model("missing", Side::Inputs);
    until("topics of the pipeline", || async {
        consuming.client.read_last(&group_started, 1, TEST_TIMEOUT).await.is_ok()
    })
    .await;
    consuming.pipelined.model("missing");
    assert_eq!(consuming.answer("late").await.as_deref(), Ok("y=missing(x=1)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_without_output_runs_all_steps_before_its_record_is_done() {
    let consuming = Consuming::start("silent").await;
    let silent =
        Pipeline { output: None, ..pipeline("silent", vec![step("a", &[]), step("b", &["a"])], &[]) };
    consuming.pipelined.pipeline(silent);
    consuming.send("silent", &["x"]).await;
    let outputs = consuming.settings.topics.model("b", Side::Outputs);
    until("the outputs of the last step", || async {
        consuming.client.read_last(&outputs, 1, TEST_TIMEOUT).await.is_ok_and(|records| records.len() == 1)
    })
    .await;
    assert!(consuming.records(&consuming.settings.topics.pipeline("silent", Side::Outputs)).await.is_empty());
    assert!(consuming.records(&consuming.settings.topics.errors()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_deleted_with_the_pipeline_only_if_configured() {
    let consuming = Consuming::start("cleaned").await;
    for (name, clean) in [("kept", false), ("cleaned", true), ("unsynced", true)] {
        let dataflow_spec = Some(DataflowSpec { clean_topics_on_delete: clean });
        let definition = Pipeline { dataflow_spec, ..pipeline(name, vec![step("a", &[])], &["a"]) };
        consuming.pipelined.pipeline(definition);
        consuming.send(name, &["x"]).await;
        assert!(consuming.answer(name).await.is_ok());
    }
    let exists = |name: &str| {
        let topic = consuming.settings.topics.pipeline(name, Side::Outputs);
        let client = &consuming.client;
        async move { client.read_last(&topic, 1, TEST_TIMEOUT).await.is_ok() }
    };
    // A scheduler that lost its state deletes nothing: the pipeline is missing in the sync.
    let routes = &consuming.pipelined.running.routes;
    routes.apply(event(Event::DeletePipeline("kept".into())));
    routes.apply(event(Event::DeletePipeline("cleaned".into())));
    routes.apply(reset());
    routes.apply(synced());
    let topic = consuming.settings.topics.pipeline("cleaned", Side::Outputs);
    until("the deletion", || async {
        consuming.client.read_last(&topic, 1, Duration::from_secs(2)).await.is_err()
    })
    .await;
    assert!(exists("kept").await && exists("unsynced").await);
}

/// A collector of spans; of the messages of OTLP only what is compared.
#[derive(Default)]
struct Collector(std::sync::Mutex<Vec<Span>>);

#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Spans<Spans<Span>>>,
}

/// Of a resource, and of a scope.
#[derive(Clone, PartialEq, prost::Message)]
struct Spans<T: prost::Message + std::fmt::Debug + Default> {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<T>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    /// 2 is an error.
    #[prost(int32, tag = "3")]
    code: i32,
}

impl InferenceServer for Collector {
    fn call(&self, request: http::Request<Bytes>) -> BoxFuture<'_, http::Response<Reply>> {
        // Behind the prefix of the gRPC message.
        let export = Export::decode(request.into_body().slice(5..)).unwrap();
        let scopes = export.resources.into_iter().flat_map(|resource| resource.spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Box::pin(async { grpc_reply(&()) })
    }
}

impl Collector {
    fn span(&self, name: &str, is_wanted: impl Fn(&Span) -> bool) -> Option<Span> {
        self.0.lock().unwrap().iter().find(|span| span.name == name && is_wanted(span)).cloned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_continues_the_trace_of_its_header() {
    const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let collector = Arc::new(Collector::default());
    let remote = FakeRemote::start(Arc::clone(&collector)).await;
    let endpoint = format!("http://{}", remote.address);
    let settings = gantry_trace::Settings { endpoint, ratio: 1.0, service: None, ca: None };
    let tracer = gantry_trace::Tracer::start(settings, "gantry-gateway").unwrap();
    let gateway = gantry_gateway::Config { tracer: tracer.clone(), ..config() };
    let consuming = Consuming::with_config("traced", gateway).await;
    for name in ["traced", "untraced"] {
        consuming.pipelined.pipeline(pipeline(name, vec![step("a", &[])], &["a"]));
    }
    consuming.pipelined.models.fails("bad", Code::InvalidArgument, "wrong shape");
    consuming.pipelined.pipeline(pipeline("failed", vec![step("bad", &[])], &["bad"]));
    let header = (headers::TRACEPARENT.into(), Bytes::from_static(SENT.as_bytes()));
    let topics = &consuming.settings.topics;
    let context = |record: &Consumed| -> [String; 4] {
        let text = headers::get(&record.headers, headers::TRACEPARENT).unwrap();
        text.split('-').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
    };
    let hex = |id: &[u8]| id.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let received = async |name: &str, is_wanted: &(dyn Fn(&Span) -> bool + Sync)| {
        until("a span", || async {
            tracer.close(TEST_TIMEOUT).await;
            collector.span(name, is_wanted).is_some()
        })
        .await;
        collector.span(name, is_wanted).unwrap()
    };

    consuming.send_with("traced", &["x"], vec![header]).await;
    consuming.answer("traced").await.unwrap();
    let outputs = consuming.records(&topics.pipeline("traced", Side::Outputs)).await;
    let [_, trace, span, flags] = context(&outputs[0]);
    assert_eq!((trace.as_str(), flags.as_str()), ("4bf92f3577b34da6a3ce929d0e0e4736", "01"));
    let steps = consuming.records(&topics.model("a", Side::Outputs)).await;
    assert_eq!(context(&steps[0]), context(&outputs[0]));
    let of_record = received("process record", &|span| hex(&span.trace) == trace).await;
    assert_eq!((hex(&of_record.parent), hex(&of_record.id)), ("00f067aa0ba902b7".to_owned(), span.clone()));
    assert!(of_record.status.is_none_or(|status| status.code != 2));
    let of_step = received("step", &|span| hex(&span.trace) == trace).await;
    assert_eq!(hex(&of_step.parent), span);

    // Without a header the record starts a trace.
    consuming.send("untraced", &["x"]).await;
    consuming.answer("untraced").await.unwrap();
    let outputs = consuming.records(&topics.pipeline("untraced", Side::Outputs)).await;
    let [_, root, ..] = context(&outputs[0]);
    assert_ne!(root, trace);
    let of_record = received("process record", &|span| hex(&span.trace) == root).await;
    assert!(of_record.parent.is_empty());

    consuming.send("failed", &["x"]).await;
    consuming.answer("failed").await.unwrap_err();
    let is_failed = |span: &Span| span.status.as_ref().is_some_and(|status| status.code == 2);
    let of_failed = received("process record", &is_failed).await;
    let errors = consuming.records(&topics.errors()).await;
    let error = errors.iter().find(|error| headers::get(&error.headers, headers::PIPELINE) == Some("failed"));
    assert_eq!(context(error.unwrap())[1], hex(&of_failed.trace));
}
