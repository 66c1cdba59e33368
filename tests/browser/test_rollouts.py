"""A rollout: its weights and evidence, and its end by the page."""

import shutil

from gantry import EXAMPLES, Gantry, until

POLICY = """apiVersion: gantry.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: careful}
spec:
  targetRef: {kind: Model, name: iris}
  strategy: {canary: {steps: [{weight: 20, hold: 1h}, {weight: 50, hold: 1h}]}}
"""
MODEL = """apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata: {{name: iris}}
spec: {{storageUri: {}, requirements: [onnx]}}
"""


def test_rollout_is_shown_with_its_evidence_and_aborted(visit, tmp_path):
    second = shutil.copytree(EXAMPLES / "iris", tmp_path / "second")
    manifest = tmp_path / "objects.yaml"
    manifest.write_text(f"{POLICY}---\n{MODEL.format(EXAMPLES / 'iris')}")
    with Gantry(tmp_path / "state", flags=["--dashboard-actions"]) as gantry:

        def apply():
            ended = gantry.command("apply", "-f", manifest)
            assert ended.returncode == 0, ended.stderr

        apply()
        until("the first version", lambda: gantry.infer("iris", [[1, 2, 3, 4]]).status == 200)
        opened = visit(gantry.admin, "rollouts")
        opened.until_text("careful")
        manifest.write_text(f"{POLICY}---\n{MODEL.format(second)}")
        apply()
        opened.until_text("candidate v2")
        opened.until_text("stage 1 of 2")

        def evidence():
            gantry.infer("iris", [[1, 2, 3, 4]])
            cells = opened.page.locator("tbody tr", has_text="candidate v2").locator("td")
            return cells.nth(0).inner_text() == "20 %" and cells.nth(1).inner_text() != "0"

        opened.until("requests of the candidate", evidence)
        assert opened.violations() == []
        opened.screenshot("rollout")
        opened.open("")
        opened.until_text("Rollouts in progress")
        opened.screenshot("rollout-overview")
        opened.open("models/iris")
        page = opened.page
        # One of the versions serves.
        page.get_by_role("button", name="Send", exact=True).wait_for()
        page.get_by_role("button", name="Abort").click()
        assert opened.violations() == []
        page.get_by_role("dialog").get_by_role("button", name="Abort").click()
        until("all requests go to the first version", lambda: versions(gantry) == {"1"})
        opened.open("rollouts")
        opened.until_gone("candidate v2")


def versions(gantry):
    answers = [gantry.infer("iris", [[1, 2, 3, 4]]) for _ in range(30)]
    return {answer.json()["model_version"] for answer in answers}
