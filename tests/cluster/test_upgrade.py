"""Records all objects created by this version, for the upgrade test of later ones
(`crates/operator/tests/it/upgrade.rs`). Run manually, once per version:

GANTRY_RECORD_UPGRADE=1 cargo xtask test --only-cluster -- recorded"""

import json
import shutil
import subprocess
from pathlib import Path

from cluster import Kubectl, Operator, condition, current, custom, model, with_server
from gantry import EXAMPLES, ROOT
from processes import Stack, program
from snapshots import ALWAYS, KINDS, MADE

UPGRADES = ROOT / "crates" / "operator" / "tests" / "it" / "upgrades"
# Part of the objects: the same in the test.
NAMESPACE = "recorded"


def test_record_objects_of_this_version(crds, tmp_path):
    version = subprocess.run([program(), "--version"], capture_output=True, text=True).stdout.split()[1]
    crds("create", "namespace", NAMESPACE)
    kubectl = Kubectl(NAMESPACE)
    # The same path on every machine.
    artifact = Path("/tmp/gantry-recorded/iris")
    shutil.copytree(EXAMPLES / "iris", artifact, dirs_exist_ok=True)
    # The agent of the simulation uses this server name.
    stack = with_server(Stack(tmp_path), "gantry")
    kubectl("apply", "-f", ROOT / "deploy" / "config")
    operator = Operator(kubectl, "--namespace", NAMESPACE, "--scheduler-address", stack.clients, "--image", "gantry:0.1.0")
    over = [{"name": "seldon-gateway", "replicas": 2}]
    kept = {"disableAutoUpdate": True, "podSpec": {"nodeSelector": {"disk": "ssd"}}}
    kubectl.apply(
        custom("SeldonRuntime", "seldon", {"seldonConfig": "default", "overrides": over}),
        custom("Server", "gantry", {"serverConfig": "gantry"}),
        custom("Server", "mlserver", {"serverConfig": "mlserver", "replicas": 2, "extraCapabilities": ["mine"]}),
        custom("Server", "triton", {"serverConfig": "triton", **kept}),
        custom("Pipeline", "chain", {"steps": [{"name": "iris"}]}),
        custom("Experiment", "split", {"candidates": [{"name": "iris", "weight": 100}]}),
        model("iris", artifact, "onnx"),
    )
    # Without a node the pods stay pending.
    waits = lambda name, count: lambda s: condition(s) and current(s) and f"0 of {count} pods" in condition(s)[2]
    for name, count in (("gantry", 1), ("mlserver", 2), ("triton", 1)):
        kubectl.until("the pods", "server", name, waits(name, count))
    kubectl.until("the components", "seldonruntime", "seldon", lambda r: condition(r) and "0 of 2 pods" in condition(r)[2])
    kubectl.ready("model", "iris")
    for kind, name in (("pipeline", "chain"), ("experiment", "split")):
        kubectl.until("the status", kind, name, lambda o: condition(o) and current(o))
    operator.kill()
    found = json.loads(kubectl("get", f"{KINDS},{MADE}", "-o", "json", "--show-managed-fields"))["items"]
    stack.close()
    place = lambda o: (o["kind"], o["metadata"]["name"])
    found = sorted((o for o in found if place(o) not in ALWAYS), key=place)
    for one in found:
        # A copy of the object.
        one["metadata"].get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    UPGRADES.mkdir(exist_ok=True)
    (UPGRADES / f"{version}.json").write_text(json.dumps(found, indent=1) + "\n")
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
