//! A chain of three identities: a pipeline of Gantry and an ensemble of Triton, on the same cores.
//!
//! The Triton of the wheel has the Python back end alone, so its identities are Python models.

use super::pipelines;
use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange},
        note,
        servers::{self, Process, Scratch},
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
    ports, python,
};
use std::{fs, net::SocketAddr, path::Path, process::Command};

const REQUESTS: usize = 2000;
const STEPS: [&str; 3] = ["one", "two", "three"];
/// Copies its input.
const MODEL: &str = "import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        given = [triton.get_input_tensor_by_name(r, 'x').as_numpy() for r in requests]
        return [triton.InferenceResponse([triton.Tensor('y', x)]) for x in given]
";
const TENSORS: &str = "input [{ name: \"x\" data_type: TYPE_FP32 dims: [ -1, 4 ] }]
output [{ name: \"y\" data_type: TYPE_FP32 dims: [ -1, 4 ] }]
";

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| measure_unpinned(bench))
}

fn measure_unpinned(bench: &Bench) -> Result<Vec<Row>, Failure> {
    note("starting Triton");
    let mut triton = Triton::start(bench.triton()?)?;
    let body = pipelines::small_request();
    let theirs = http::post("/v2/models/chain/infer", "", &body);
    let response = servers::wait_for_response(&mut triton.process, triton.address, &theirs)?;
    let theirs = Exchange { request: theirs, response };
    let scratch = Scratch::new("ensemble")?;
    pipelines::write_graphs(bench, &scratch.0)?;
    let gantry = servers::start_gantry(Command::new(&bench.gantry), &[&scratch.0])?;
    let ours = pipelines::exchange(gantry.inference, &http::post("/v2/pipelines/chain/infer", "", &body))?;
    let mut rows = Vec::new();
    for connections in [1, 16] {
        let (mut p50, mut p99) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for _ in 0..bench.rounds {
            note(&format!("chain over {connections} connections"));
            let (half, most) = percentiles(gantry.inference, &ours, connections)?;
            p50.0.push(half);
            p99.0.push(most);
            let (half, most) = percentiles(triton.address, &theirs, connections)?;
            p50.1.push(half);
            p99.1.push(most);
        }
        for (what, (ours, theirs), floor) in [("p50", p50, Some(1.0)), ("p99", p99, None)] {
            rows.push(Row {
                what: format!("chain of three identities, {connections} connections, {what}"),
                peer: "ensemble of Triton".into(),
                ours: format!("{} µs", figure(median(&ours))),
                theirs: format!("{} µs", figure(median(&theirs))),
                rounds: divide(&ours, &theirs),
                unit: "x",
                better: Better::Lower,
                floor,
                aim: Some(0.3),
            });
        }
    }
    Ok(rows)
}

/// p50 and p99, in microseconds.
fn percentiles(address: SocketAddr, exchange: &Exchange, connections: usize) -> Result<(f64, f64), Failure> {
    let each = REQUESTS / connections;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let exchange = exchange.clone();
            // Failures are no `Send`.
            std::thread::spawn(move || {
                load::latencies(address, &[exchange], each).map_err(|error| error.to_string())
            })
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        all.extend(thread.join().map_err(|_| "a thread of the load panicked")??);
    }
    all.sort_by(f64::total_cmp);
    let at = |percent: usize| all.get(all.len() * percent / 100).copied().ok_or("no latencies");
    Ok((at(50)?, at(99)?))
}

struct Triton {
    process: Process,
    address: SocketAddr,
    _home: Scratch,
}

impl Triton {
    /// With the models and their ensemble.
    fn start(programs: &Path) -> Result<Self, Failure> {
        let home = Scratch::new("triton")?;
        let models = home.0.join("models");
        for step in STEPS {
            fs::create_dir_all(models.join(step).join("1"))?;
            fs::write(models.join(step).join("1/model.py"), MODEL)?;
            let config = format!("name: \"{step}\"\nbackend: \"python\"\nmax_batch_size: 0\n{TENSORS}");
            fs::write(models.join(step).join("config.pbtxt"), config)?;
        }
        fs::create_dir_all(models.join("chain/1"))?;
        let mut steps = Vec::new();
        for (step, (from, to)) in STEPS.iter().zip([("x", "a"), ("a", "b"), ("b", "y")]) {
            steps.push(format!(
                "{{ model_name: \"{step}\" model_version: -1 input_map {{ key: \"x\" value: \"{from}\" }} \
                 output_map {{ key: \"y\" value: \"{to}\" }} }}"
            ));
        }
        let chain = format!(
            "name: \"chain\"\nplatform: \"ensemble\"\nmax_batch_size: 0\n{TENSORS}ensemble_scheduling {{ step [ {} ] }}\n",
            steps.join(", ")
        );
        fs::write(models.join("chain/config.pbtxt"), chain)?;

        let packages = python::packages(programs, "pytriton")?;
        let wheel = packages.join("pytriton/tritonserver");
        // The wheel has one stub per Python version; Triton expects it beside the back end.
        let backends = home.0.join("backends/python");
        fs::create_dir_all(&backends)?;
        for part in fs::read_dir(wheel.join("backends/python"))? {
            let part = part?;
            if part.file_type()?.is_file() {
                fs::copy(part.path(), backends.join(part.file_name()))?;
            }
        }
        let version = packages.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let version = version.and_then(|name| name.strip_prefix("python")).ok_or("no Python version")?;
        let stub = "triton_python_backend_stub";
        fs::copy(wheel.join("python_backend_stubs").join(version).join(stub), backends.join(stub))?;
        let script = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))";
        let libraries = Command::new(programs.join("python")).args(["-c", script]).output()?;
        let libraries = String::from_utf8(libraries.stdout)?;
        let [http_port, grpc_port] = ports::free()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(wheel.join("bin/tritonserver"));
        command
            .arg(format!("--model-repository={}", models.display()))
            .arg(format!("--backend-directory={}", home.0.join("backends").display()))
            .args(["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-metrics=false"])
            .arg(format!("--http-port={http_port}"))
            .arg(format!("--grpc-port={grpc_port}"))
            .env("PYTHONPATH", &packages)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env(
                "LD_LIBRARY_PATH",
                format!("{}:{}", packages.join("nvidia_pytriton.libs").display(), libraries.trim()),
            );
        let process = Process::start(&mut command, home.0.join("out"))?;
        Ok(Self { process, address: servers::local(http_port), _home: home })
    }
}
