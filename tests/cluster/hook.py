"""The ValidatingWebhookConfiguration for an operator outside the cluster."""

import base64
import json

from cluster import model
from gantry import ROOT, until

MANIFESTS = ROOT / "deploy" / "manifests"
NOWHERE = 'Warning: spec.server: Server "nowhere" not found in namespace {}; the model is not scheduled until it exists'


class Hook:
    """The installed configuration, restricted to one namespace and pointing outside the cluster."""

    def __init__(self, kubectl, url="https://127.0.0.1:1/validate"):
        self.kubectl = kubectl
        self.name = f"gantry-{kubectl.namespace}"
        printed = kubectl("create", "--dry-run=client", "-o", "json", "-f", MANIFESTS / "webhook.yaml", "--namespace", "seldon-mesh")
        installed = json.loads("[" + printed.replace("\n}\n{", "\n},{") + "]")
        objects = [o for one in installed for o in one.get("items", [one])]
        self.configuration = next(o for o in objects if o["kind"] == "ValidatingWebhookConfiguration")
        self.configuration["metadata"] = {"name": self.name}
        self.hook = self.configuration["webhooks"][0]
        selector = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [kubectl.namespace]}
        self.hook["namespaceSelector"] = {"matchExpressions": [selector]}
        self.point_to(url)

    def point_to(self, url):
        self.hook["clientConfig"] = {"url": url}
        self.apply()

    def apply(self, *flags):
        self.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(self.configuration))

    def flags(self):
        return ["--webhook", "--webhook-port=0", f"--webhook-configuration={self.name}", "--webhook-secret=hook"]

    def bundle(self):
        found = self.kubectl.get("validatingwebhookconfiguration", self.name)["webhooks"][0]
        return base64.b64decode(found["clientConfig"].get("caBundle", "")).decode()

    def until_called(self):
        """Waits until the API server calls the webhook: it reads configurations with a delay."""
        warning = NOWHERE.format(self.kubectl.namespace)
        until("the first webhook call", lambda: warning in self.probe().stderr)

    def probe(self):
        """A dry run that the webhook warns about."""
        pinned = model("probe", "gs://models/x", server="nowhere")
        return self.kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pinned))
