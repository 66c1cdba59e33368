"""Snapshots of objects on the API server, without values that differ between runs.

`GANTRY_UPDATE_SNAPSHOTS=1 cargo xtask test --only-cluster` updates the files; review the diff."""

import difflib
import json
import os
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "snapshots"
VOLATILE = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "selfLink"}
# Digests that depend on the namespace, and kubectl's last applied configuration.
ANNOTATIONS = {"gantry.dev/applied", "gantry.dev/config-generation", "kubectl.kubernetes.io/last-applied-configuration"}
# Allocated by the API server.
ALLOCATED = {"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"}
# Created by Kubernetes in every namespace.
ALWAYS = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
OURS = "mlops.seldon.io/"
MADE = "statefulsets,deployments,services,poddisruptionbudgets,configmaps,serviceaccounts,roles,rolebindings"
KINDS = "models,servers,seldonruntimes,serverconfigs,seldonconfigs,pipelines,experiments"


def normalized(found, namespace):
    """An object without values that differ between runs; built-in kinds without status."""

    def walk(value, name=""):
        if isinstance(value, dict):
            kept = {k: walk(v, k) for k, v in value.items() if k not in VOLATILE}
            if name == "annotations":
                kept = {k: v for k, v in kept.items() if k not in ANNOTATIONS}
            return {k: v for k, v in kept.items() if not (k == "annotations" and not v)}
        if name in ALLOCATED and value not in ("None", ["None"]):
            return "<given>"
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, str):
            # Version numbers are never reused, also after deletion.
            return re.sub(r"\bversion \d+", "version N", value.replace(namespace, "NAMESPACE"))
        return value

    shown = walk(found)
    if not shown["apiVersion"].startswith(OURS):
        shown.pop("status", None)
        shown["metadata"].pop("generation", None)
    return shown


def cluster_state(kubectl, kinds=MADE):
    """All objects of these kinds in a namespace, by kind and name."""
    found = json.loads(kubectl("get", kinds, "-o", "json"))["items"]
    place = lambda o: (o["kind"], o["metadata"]["name"])
    return {" ".join(place(o)): normalized(o, kubectl.namespace) for o in found if place(o) not in ALWAYS}


def matches(name, found):
    """Compares with the snapshot file."""
    file = FOLDER / f"{name}.json"
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if os.environ.get("GANTRY_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
        return
    assert file.exists(), f"{file} not found: create it with GANTRY_UPDATE_SNAPSHOTS=1"
    known = file.read_text()
    if text != known:
        diff = difflib.unified_diff(known.splitlines(), text.splitlines(), "expected", "actual", lineterm="")
        raise AssertionError(
            "\n".join(diff) + f"\n\n{file.name} differs. If intended, update it with "
            "GANTRY_UPDATE_SNAPSHOTS=1; a changed pod template restarts pods on upgrade."
        )
