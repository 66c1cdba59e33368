"""The package: notebooks, types, and the wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python"
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE / "src"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    last = notebook.cells[-1].outputs
    assert last and last[0].get("data", {}).get("text/plain") == "True", last


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_package_is_typed():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_wheel_contains_the_program(tmp_path):
    program = tmp_path / "gantry"
    program.write_text("#!/bin/sh\necho wheel\n")
    program.chmod(0o755)
    environment = os.environ | {"GANTRY_BINARY": str(program)}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PACKAGE, env=environment, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    assert "py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "gantry/bin/gantry" in names and "gantry/py.typed" in names
        assert archive.getinfo("gantry/bin/gantry").external_attr >> 16 & 0o111, "it is executable"
