"""Objects as the API server has them, without what differs from run to run, compared with files.

`GANTRY_UPDATE_SNAPSHOTS=1 cargo xtask test --only-cluster` writes the files anew; look at what changed before you keep it."""

import difflib
import json
import os
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "snapshots"
VOLATILE = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "selfLink"}
# Digests of what names the namespace, and kubectl's copy of what was written.
ANNOTATIONS = {"gantry.dev/applied", "gantry.dev/config-generation", "kubectl.kubernetes.io/last-applied-configuration"}
# Addresses and ports that the API server gives.
GIVEN = {"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"}
# What Kubernetes puts into every namespace.
ALWAYS = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
OURS = "mlops.seldon.io/"
MADE = "statefulsets,deployments,services,poddisruptionbudgets,configmaps,serviceaccounts,roles,rolebindings"
KINDS = "models,servers,seldonruntimes,serverconfigs,seldonconfigs,pipelines,experiments"


def plain(found, namespace):
    """An object without what differs from run to run. Of Kubernetes' own kinds the status is Kubernetes' own business."""

    def walk(value, name=""):
        if isinstance(value, dict):
            kept = {k: walk(v, k) for k, v in value.items() if k not in VOLATILE}
            if name == "annotations":
                kept = {k: v for k, v in kept.items() if k not in ANNOTATIONS}
            return {k: v for k, v in kept.items() if not (k == "annotations" and not v)}
        if name in GIVEN and value not in ("None", ["None"]):
            return "<given>"
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, str):
            # The scheduler counts versions of a name, also of those that are gone.
            return re.sub(r"\bversion \d+", "version N", value.replace(namespace, "NAMESPACE"))
        return value

    shown = walk(found)
    if not shown["apiVersion"].startswith(OURS):
        shown.pop("status", None)
        shown["metadata"].pop("generation", None)
    return shown


def world(kubectl, kinds=MADE):
    """Everything of some kinds in a namespace, by kind and name."""
    found = json.loads(kubectl("get", kinds, "-o", "json"))["items"]
    place = lambda o: (o["kind"], o["metadata"]["name"])
    return {" ".join(place(o)): plain(o, kubectl.namespace) for o in found if place(o) not in ALWAYS}


def matches(name, found):
    """Fails where what was found is not what the file says."""
    file = FOLDER / f"{name}.json"
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if os.environ.get("GANTRY_UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
        return
    assert file.exists(), f"there is no {file}: write it with GANTRY_UPDATE_SNAPSHOTS=1"
    known = file.read_text()
    if text != known:
        diff = difflib.unified_diff(known.splitlines(), text.splitlines(), "as it was", "as it is", lineterm="")
        raise AssertionError(
            "\n".join(diff) + f"\n\n{file.name} is not what the API server has. If it is meant, write it anew with "
            "GANTRY_UPDATE_SNAPSHOTS=1; a change of a pod template replaces pods when people upgrade."
        )
