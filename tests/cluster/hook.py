"""The admission webhook's configuration, for an operator outside of the cluster."""

import base64
import json

from cluster import model
from gantry import ROOT, until

MANIFESTS = ROOT / "deploy" / "manifests"
NOWHERE = 'Warning: spec.server: there is no Server "nowhere" in namespace {}: the model waits until there is one'


class Hook:
    """The configuration that is installed with Gantry, for one namespace and for an operator outside of the cluster."""

    def __init__(self, kubectl, url="https://127.0.0.1:1/validate"):
        self.kubectl = kubectl
        self.name = f"gantry-{kubectl.namespace}"
        said = kubectl("create", "--dry-run=client", "-o", "json", "-f", MANIFESTS / "webhook.yaml", "--namespace", "seldon-mesh")
        installed = json.loads("[" + said.replace("\n}\n{", "\n},{") + "]")
        objects = [o for one in installed for o in one.get("items", [one])]
        self.made = next(o for o in objects if o["kind"] == "ValidatingWebhookConfiguration")
        self.made["metadata"] = {"name": self.name}
        self.hook = self.made["webhooks"][0]
        selector = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [kubectl.namespace]}
        self.hook["namespaceSelector"] = {"matchExpressions": [selector]}
        self.lead_to(url)

    def lead_to(self, url):
        self.hook["clientConfig"] = {"url": url}
        self.apply()

    def apply(self, *flags):
        self.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(self.made))

    def flags(self):
        return ["--webhook", "--webhook-port=0", f"--webhook-configuration={self.name}", "--webhook-secret=hook"]

    def bundle(self):
        found = self.kubectl.get("validatingwebhookconfiguration", self.name)["webhooks"][0]
        return base64.b64decode(found["clientConfig"].get("caBundle", "")).decode()

    def until_asked(self):
        """Waits until the API server has an answer from the webhook: it learns of a configuration in its own time."""
        warning = NOWHERE.format(self.kubectl.namespace)
        until("the webhook's first answer", lambda: warning in self.probe().stderr)

    def probe(self):
        """Something that the webhook has a word on, and that changes nothing."""
        pinned = model("probe", "gs://models/x", server="nowhere")
        return self.kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pinned))
