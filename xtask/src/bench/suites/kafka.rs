//! Pipelines on Kafka: a worker compared with Kafka's own producer and consumer, and a chain of steps in process compared
//! with the same chain from topic to topic.
//!
//! The broker, its clients and Gantry share all cores.

use crate::{
    Failure,
    bench::{
        Bench, note, servers,
        suites::pipelines,
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
    kafka, ports,
};
use serde_json::Value;
use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const RECORDS: usize = 100_000;
const STEPS: usize = 3;
const REQUESTS: usize = 300;
const CHAIN_REQUESTS: usize = 5000;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let libraries = kafka::libraries()?;
    let program = bench.build_with("gantry-kafka", "bench", "client")?;
    bench.machine.on_all_cores(|| measure_unpinned(bench, &libraries, &program))
}

fn measure_unpinned(bench: &Bench, libraries: &Path, program: &Path) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("kafka")?;
    let broker = Broker::start(libraries, &scratch.0)?;
    let models = servers::Scratch::new("kafka-chain")?;
    pipelines::write_graphs(bench, &models.0)?;
    let ours = servers::start_gantry(Command::new(&bench.gantry), &[&models.0])?;
    let chain = pipelines::exchange(
        ours.inference,
        &http::post("/v2/pipelines/chain/infer", "", &pipelines::small_request()),
    )?;
    let (mut worker, mut tools, mut in_process, mut hops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0.0;
    for round in 0..bench.rounds.min(3) {
        note("records through one worker and one step");
        let result = run(Command::new(program).args(["worker", &broker.address, &RECORDS.to_string()]))?;
        worker.push(field(&result, "records_per_second")?);
        bytes = field(&result, "value_bytes")?;
        note("kafka-producer-perf-test and kafka-consumer-perf-test");
        tools.push(broker.loop_rate(round, bytes)?);
        note("a chain in process and from topic to topic");
        in_process.push(pipelines::p50(ours.inference, &chain, CHAIN_REQUESTS)?);
        let arguments = ["hops", &broker.address, &STEPS.to_string(), &REQUESTS.to_string()];
        hops.push(field(&run(Command::new(program).args(arguments))?, "p50_us")?);
    }
    Ok(vec![
        Row {
            what: format!(
                "records of {bytes} bytes through one worker and one step, with the topics of the step"
            ),
            peer: "kafka-producer-perf-test and kafka-consumer-perf-test, one topic".into(),
            ours: format!("{}/s", figure(median(&worker))),
            theirs: format!("{}/s", figure(median(&tools))),
            rounds: divide(&worker, &tools),
            unit: "x",
            better: Better::Higher,
            floor: Some(0.2),
            aim: Some(0.5),
        },
        Row {
            what: "three-step chain of identities over REST, p50".into(),
            peer: format!("the same from topic to topic, {} topics", 2 * STEPS + 2),
            ours: format!("{} µs", figure(median(&in_process))),
            theirs: format!("{} µs", figure(median(&hops))),
            rounds: divide(&in_process, &hops),
            unit: "x",
            better: Better::Lower,
            floor: Some(0.1),
            aim: Some(0.02),
        },
    ])
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn field(json: &str, name: &str) -> Result<f64, Failure> {
    let value: Value = serde_json::from_str(json)?;
    value.get(name).and_then(Value::as_f64).ok_or_else(|| format!("{json} has no {name}").into())
}

/// Apache Kafka with one node, killed on drop.
struct Broker {
    address: String,
    libraries: PathBuf,
    _process: servers::Process,
}

impl Broker {
    fn start(libraries: &Path, directory: &Path) -> Result<Self, Failure> {
        let [port, controller] = ports::free()?;
        let address = format!("127.0.0.1:{port}");
        let data = directory.join("data");
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://{address}\ncontroller.listener.names=CONTROLLER\n\
             log.dirs={}\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=2\n\
             group.initial.rebalance.delay.ms=0\n",
            data.display()
        );
        let file = directory.join("server.properties");
        fs::write(&file, properties)?;
        let cluster = "Z2FudHJ5LWthZmthLWJlbm";
        run(java(libraries, "kafka.tools.StorageTool").args(["format", "-t", cluster, "-c"]).arg(&file))?;
        let mut process =
            servers::Process::start(java(libraries, "kafka.Kafka").arg(&file), directory.join("broker.log"))?;
        process.until("the broker", |_| TcpStream::connect(&address).ok())?;
        Ok(Self { address, libraries: libraries.to_owned(), _process: process })
    }

    /// Records per second of Kafka's own tools: a producer that waits for all acknowledgements, and a consumer of the same
    /// topic that reads along.
    fn loop_rate(&self, round: usize, bytes: f64) -> Result<f64, Failure> {
        let (topic, records) = (format!("perf-{round}"), (5 * RECORDS).to_string());
        let mut consumer = java(&self.libraries, "org.apache.kafka.tools.ConsumerPerformance");
        consumer.args(["--bootstrap-server", &self.address, "--topic", &topic, "--messages", &records]);
        let consumer = consumer.args(["--timeout", "60000", "--hide-header"]);
        let consumer = consumer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut producer = java(&self.libraries, "org.apache.kafka.tools.ProducerPerformance");
        producer.args(["--topic", &topic, "--num-records", &records, "--record-size", &bytes.to_string()]);
        producer.args(["--throughput", "-1", "--producer-props", "acks=all"]);
        let output = run(producer.arg(format!("bootstrap.servers={}", self.address)));
        let read = consumer.wait_with_output()?;
        if !read.status.success() {
            let errors = String::from_utf8_lossy(&read.stderr);
            return Err(format!("kafka-consumer-perf-test failed: {errors}").into());
        }
        let output = output?;
        let last = output.lines().rev().find(|line| line.contains("99.9th")).unwrap_or_default();
        let rate = last.split(" records/sec").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
        rate.ok_or_else(|| format!("kafka-producer-perf-test printed no rate: {output}").into())
    }
}

fn java(libraries: &Path, main: &str) -> Command {
    let mut command = Command::new("java");
    command.arg("-Xmx512m").arg("-cp").arg(format!("{}/*", libraries.display())).arg(main);
    command
}
