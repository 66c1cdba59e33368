"""`serve`: from a trained model to a client."""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, List, Optional, Union


from gantry import _program
from gantry._client import Client
from gantry._error import GantryError
from gantry._export import export

START_TIMEOUT = 120.0


class Server:
    """A `gantry up` of this process, with a directory for its models."""

    def __init__(
        self,
        directory: Optional[Union[str, Path]] = None,
        *,
        models: Optional[Union[str, Path]] = None,
        allow_python: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        """``directory`` keeps the state, for the next start; ``models`` is a directory of model files or manifests to serve."""
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="gantry-")
        self.directory = Path(directory or self._temporary.name)  # type: ignore[union-attr]
        self.allow_python = allow_python
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = [f"--{name}-port=0" for name in ("inference", "admin", "scheduler", "agent")]
        flags += ["--allow-python"] if allow_python else []
        flags += [str(models)] if models is not None else []
        command = [_program.find(), "up", "--state-dir", str(self.directory / "state"), *flags]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            # Interrupting a cell must not stop the server.
            start_new_session=True,
        )
        self._lines: List[str] = []
        self._started = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()
        atexit.register(self.stop)
        if not self._started.wait(start_timeout) or self._process.poll() is not None:
            output = "\n".join(self._lines[-20:])
            self.stop()
            raise GantryError(f"gantry did not start:\n{output}")
        self.inference = self._address("inference")
        self.scheduler = self._address("scheduler")
        self.admin = self._address("admin")

    def __repr__(self) -> str:
        state = "running" if self._process.poll() is None else "stopped"
        return f"Server({self.inference!r}, {state})"

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))
            del self._lines[:-1000]
            if line.startswith("Ready"):
                self._started.set()
        self._started.set()

    def _address(self, name: str) -> str:
        for line in self._lines:
            found = re.match(rf"\s+{name}\s+(?:http://)?(\S+:\d+)", line)
            if found:
                return found[1]
        raise GantryError(f"gantry printed no address of its {name} port:\n" + "\n".join(self._lines[-20:]))

    @property
    def output(self) -> List[str]:
        """The last lines that the server printed."""
        return list(self._lines)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def client(self, name: str, **options: Any) -> Client:
        return Client(name, self.inference, **options)

    def stop(self) -> None:
        """Stops the server; requests in flight finish."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_lock = threading.Lock()
_servers: Dict[bool, Server] = {}


def _shared(allow_python: bool) -> Server:
    """The server of this Python process."""
    with _lock:
        server = _servers.get(allow_python)
        if server is None or not server.running:
            server = _servers[allow_python] = Server(allow_python=allow_python)
        return server


def shutdown() -> None:
    """Stops the servers that `serve` started."""
    with _lock:
        for server in _servers.values():
            server.stop()
        _servers.clear()


def environment() -> Dict[str, str]:
    """The variables of the gantry program: its Python environments are made with this interpreter."""
    return {"GANTRY_PYTHON": sys.executable, **os.environ}


def run(*arguments: str) -> str:
    """Runs a command of the program; the error has what it prints."""
    done = subprocess.run(
        [_program.find(), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment()
    )
    if done.returncode:
        raise GantryError((done.stderr or done.stdout).strip() or f"gantry {arguments[0]} failed")
    return done.stdout


def connect(name: str, address: Optional[str] = None, **options: Any) -> Client:
    """A client of a model that is served already; the address is GANTRY_INFERENCE, or 127.0.0.1:9000."""
    return Client(name, address or os.environ.get("GANTRY_INFERENCE") or "127.0.0.1:9000", **options)


def serve(
    model: Any,
    X_sample: Any = None,
    name: str = "model",
    *,
    server: Optional[Server] = None,
    allow_python: bool = False,
    timeout: float = 600.0,
) -> Client:
    """Serves a trained model and returns a client.

    ``model`` is an estimator of scikit-learn, XGBoost, LightGBM or CatBoost, a module of PyTorch, a model of Keras, an ONNX model, or
    the path of a model file. It is converted for the built-in runtime, and its predictions on ``X_sample`` (some rows of the
    training data) are compared. With ``allow_python`` it is not converted: its own library serves it, in a process and an
    environment of its own.

    Serving another model under the same name replaces it without a failed request. The server is started once per Python
    process, and stops with it; `GANTRY_SCHEDULER` and `GANTRY_INFERENCE` name a running one instead.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        raise ValueError(f"{name!r} is not a model name: use a-z, 0-9 and -")
    remote = os.environ.get("GANTRY_SCHEDULER") if server is None else None
    with tempfile.TemporaryDirectory(prefix="gantry-export-") as work:
        file, requirement = export(model, X_sample, name, Path(work), allow_python, run)
        if server is None and remote is None:
            server = _shared(allow_python)
        place = server.directory if server is not None else Path(tempfile.mkdtemp(prefix="gantry-"))
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
        stored = folder / file.name
        if file.is_dir():
            shutil.copytree(file, stored)
        else:
            shutil.copyfile(file, stored)
        manifest = folder / "model.json"
        manifest.write_text(
            json.dumps(
                {
                    "apiVersion": "mlops.seldon.io/v1alpha1",
                    "kind": "Model",
                    "metadata": {"name": name},
                    "spec": {"storageUri": str(stored), "requirements": [requirement]},
                }
            )
        )
    scheduler = remote or server.scheduler  # type: ignore[union-attr]
    run("apply", "-f", str(manifest), "--wait", "--timeout", f"{timeout:.0f}s", "--scheduler", scheduler)
    return connect(name) if server is None else server.client(name)


