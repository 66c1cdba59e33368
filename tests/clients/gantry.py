"""The `gantry up` process under test. Waiting is always for a condition, never for a fixed time."""

import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "quickstart"
# A debug build on a busy machine starts slowly.
TIMEOUT = 60.0


def program():
    """The binary: `$GANTRY`, else the newest build."""
    named = os.environ.get("GANTRY")
    if named:
        return named
    built = [ROOT / "target" / profile / "gantry" for profile in ("debug", "release")]
    built = [b for b in built if b.exists()]
    assert built, "build gantry first, or run `cargo xtask test`"
    return str(max(built, key=lambda b: b.stat().st_mtime))


def until(what, condition, timeout=TIMEOUT):
    """Polls until the result is true, and returns it."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"timed out after {timeout} s: {what}"
        time.sleep(0.005)


def run(*arguments, timeout=TIMEOUT):
    """Runs a command."""
    command = [program(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment())


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GANTRY_", "SELDON_"))}
    return kept | {"NO_COLOR": "1"}


class Response:
    """A REST response."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class Gantry:
    """`gantry up` on free ports."""

    def __init__(self, state, *paths, flags=()):
        names = ("inference", "admin", "scheduler", "agent")
        ports = [f"--{n}-port=0" for n in names if not any(f.startswith(f"--{n}-port=") for f in flags)]
        command = [program(), "up", *map(str, paths), "--state-dir", str(state), *ports, *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self.out, self.err = [], []
        self.readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def output(self):
        return "\n".join(self.out + self.err)

    def ready(self):
        def check():
            assert self.process.poll() is None, f"gantry ended with {self.process.returncode}:\n{self.output()}"
            return any(line.startswith("Ready in ") for line in self.out)

        try:
            until("the start of gantry", check)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.output()}") from None
        addresses = {}
        for line in self.out:
            found = re.match(r"\s+(inference|scheduler|admin)\s+(?:http://)?(127\.0\.0\.1:\d+)", line)
            if found:
                addresses[found[1]] = found[2]
        self.inference, self.scheduler, self.admin = (addresses[n] for n in ("inference", "scheduler", "admin"))
        return self

    def request(self, method, path, body=None, headers=None, at=None):
        """One REST request on a new connection."""
        connection = http.client.HTTPConnection(at or self.inference, timeout=TIMEOUT)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())
        finally:
            connection.close()

    def infer(self, model, rows, name="X", datatype="FP32", **headers):
        inputs = [{"name": name, "shape": [len(rows), len(rows[0])], "datatype": datatype, "data": rows}]
        return self.request("POST", f"/v2/models/{model}/infer", {"inputs": inputs}, headers)

    def metric(self, name):
        text = self.request("GET", "/metrics", at=self.admin).body.decode()
        return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines() if re.match(rf"{name}[ {{]", l))

    def command(self, *arguments, timeout=TIMEOUT):
        addresses = ["--scheduler", self.scheduler, "--inference", self.inference, "--admin", self.admin]
        return run(*arguments, *addresses, timeout=timeout)

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def ended(self, timeout=TIMEOUT):
        code = self.process.wait(timeout=timeout)
        for reader in self.readers:
            reader.join()
        return code

    def stop(self):
        if self.process.poll() is None:
            self.interrupt()
        return self.ended()

    def kill(self):
        self.process.kill()
        self.ended()

    def __enter__(self):
        return self.ready()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
