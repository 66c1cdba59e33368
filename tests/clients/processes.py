"""Roles and inference servers as processes on free ports. Waiting is always for a condition."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gantry import TIMEOUT, Response, environment, program, run, until

HERE = Path(__file__).resolve().parent


def installed(server):
    """The programs of an inference server's environment, created by `cargo xtask test`."""
    named = os.environ.get(f"GANTRY_{server.upper()}_PROGRAMS")
    if not named:
        pytest.skip(f"{server} is not installed: run `cargo xtask test`")
    return Path(named)


def free_ports(count):
    """Free ports, for programs that do not support port 0."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def http_request(at, method, path, body=None, headers=None):
    """One REST request on a new connection."""
    connection = http.client.HTTPConnection(at, timeout=TIMEOUT)
    try:
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())
    finally:
        connection.close()


def responds(at, path, status=200):
    """Whether a GET returns this status."""
    try:
        return http_request(at, "GET", path).status == status
    except OSError:
        return False


class Process:
    """A process and its output."""

    def __init__(self, command, env=None, cwd=None):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env or environment(),
            cwd=cwd,
        )
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def output(self):
        return "\n".join(self.lines)

    def until(self, what, condition):
        """Waits for a condition while the process runs."""

        def check():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}"
            return condition()

        try:
            return until(what, check)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def address(self, name):
        """The address in the output line with this name."""
        found = (re.match(rf"\s+{name}\s+(?:https?://)?(127\.0\.0\.1:\d+)", line) for line in list(self.lines))
        return next((m[1] for m in found if m), None)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=TIMEOUT)
        self.reader.join()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=TIMEOUT)
        self.reader.join()


class Stack:
    """A scheduler, a gateway, and the agents and servers that a test adds."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []
        self.scheduler = self.start(
            "scheduler", "--state-dir", directory / "scheduler", "--scheduler-port=0", "--agent-port=0", "--health-probe-port=0"
        )
        self.scheduler.until("the scheduler", lambda: any(l.startswith("Ready.") for l in self.scheduler.lines))
        self.clients, self.agents = self.scheduler.address("clients"), self.scheduler.address("agents")
        self.gateway = self.start("gateway", "--scheduler", self.clients, "--inference-port=0", "--admin-port=0")
        self.gateway.until("the gateway", lambda: any(l.startswith("Ready.") for l in self.gateway.lines))
        self.inference, self.admin = self.gateway.address("inference"), self.gateway.address("admin")

    def start(self, *words, env=None):
        return self.keep(Process([program(), *words], env))

    def keep(self, process):
        self.processes.append(process)
        return process

    def agent(self, *flags, name="server", kind, http_port, grpc_port, models):
        """Starts an agent for a server and waits for its subscription."""
        host, port = self.agents.split(":")
        ports = ("proxy-http", "proxy-grpc", "debug", "metrics", "drainer", "readiness")
        agent = self.start(
            "agent",
            *("--server", name, "--server-type", kind, "--models-dir", models, "--state-dir", self.directory / name),
            *("--server-http-port", http_port, "--server-grpc-port", grpc_port),
            *("--scheduler-host", host, "--scheduler-port", port, "--local-root", "/"),
            *(f"--{p}-port=0" for p in ports),
            *flags,
        )
        agent.until("the agent", lambda: any(l.startswith("Ready.") for l in agent.lines))
        for name in ("metrics", "ready", "drain", "debug"):
            setattr(agent, name, agent.address(name))
        agent.until("the subscription", lambda: responds(agent.ready, "/ready"))
        return agent

    def command(self, *words, timeout=TIMEOUT):
        addresses = ["--scheduler", self.clients, "--inference", self.inference, "--admin", self.admin]
        return run(*words, *addresses, timeout=timeout)

    def apply(self, name, uri, *requirements, memory=None, wait=True):
        spec = {"storageUri": str(uri), "requirements": list(requirements)}
        if memory:
            spec["memory"] = memory
        manifest = {
            "apiVersion": "mlops.seldon.io/v1alpha1",
            "kind": "Model",
            "metadata": {"name": name},
            "spec": spec,
        }
        file = self.directory / f"{name}.json"
        file.write_text(json.dumps(manifest))
        return self.command("apply", "-f", file, *(["--wait"] if wait else []))

    def infer(self, model, rows, name="predict"):
        inputs = [{"name": name, "shape": [len(rows), len(rows[0])], "datatype": "FP32", "data": rows}]
        return http_request(self.inference, "POST", f"/v2/models/{model}/infer", {"inputs": inputs})

    def close(self):
        for process in reversed(self.processes):
            process.kill()


def metric(at, name):
    text = http_request(at, "GET", "/metrics").body.decode()
    return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines() if re.match(rf"{name}[ {{]", l))


def mlserver(stack, models, ports):
    """MLServer without models."""
    programs = installed("mlserver")
    http_port, grpc_port, metrics_port = ports
    home = stack.directory / f"mlserver-{http_port}"
    home.mkdir(exist_ok=True)
    settings = {
        "HOST": "127.0.0.1",
        "HTTP_PORT": http_port,
        "GRPC_PORT": grpc_port,
        "METRICS_PORT": metrics_port,
        "LOAD_MODELS_AT_STARTUP": "false",
        "PARALLEL_WORKERS": 0,
    }
    env = environment() | {f"MLSERVER_{name}": str(value) for name, value in settings.items()}
    return stack.keep(Process([programs / "mlserver", "start", models], env, home))


def triton(stack, models, ports):
    """Triton with its Python backend, from the pytriton wheel."""
    programs = installed("triton")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = programs.parent / "lib" / f"python{version}" / "site-packages"
    wheel = packages / "pytriton" / "tritonserver"
    # The wheel has one stub per Python version; Triton expects it beside the backend.
    backends = stack.directory / "backends"
    (backends / "python").mkdir(parents=True, exist_ok=True)
    parts = [p for p in (wheel / "backends" / "python").iterdir() if p.is_file()]
    for part in [*parts, wheel / "python_backend_stubs" / version / "triton_python_backend_stub"]:
        copy = backends / "python" / part.name
        if not copy.exists():
            copy.write_bytes(part.read_bytes())
            copy.chmod(0o755)
    import sysconfig

    libraries = [packages / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    env = environment() | {
        "LD_LIBRARY_PATH": ":".join(str(l) for l in libraries if l),
        "PYTHONPATH": str(packages),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    http_port, grpc_port, _ = ports
    return stack.keep(
        Process(
            [
                wheel / "bin" / "tritonserver",
                f"--model-repository={models}",
                f"--backend-directory={backends}",
                "--model-control-mode=explicit",
                "--http-address=127.0.0.1",
                "--grpc-address=127.0.0.1",
                f"--http-port={http_port}",
                f"--grpc-port={grpc_port}",
                "--allow-metrics=false",
                "--exit-timeout-secs=1",
            ],
            env,
        )
    )
