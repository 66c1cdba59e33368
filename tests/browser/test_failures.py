"""Pages while something fails."""

from gantry import EXAMPLES, Gantry
from processes import Stack, free_ports, responds

MODEL = "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {}}}\nspec: {{storageUri: {}, requirements: [onnx]}}\n"


def test_model_that_fails_is_explained(visit, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"not a model")
    manifest = tmp_path / "broken.yaml"
    manifest.write_text(MODEL.format("broken", broken))
    with Gantry(tmp_path / "state", manifest) as gantry:
        opened = visit(gantry.admin)
        opened.until_text("1 object not ready")
        explained = gantry.command("explain", "model/broken").stdout.splitlines()[0]
        opened.until_text(explained)
        opened.screenshot("failure-overview")
        opened.page.get_by_role("link", name="broken").first.click()
        opened.page.get_by_role("heading", level=1, name="broken").wait_for()
        opened.until_text(explained)
        opened.until_text("The form appears when the model is ready.")
        assert opened.violations() == []
        opened.screenshot("failure-model")
        # It becomes ready while the page is open.
        manifest.write_text(MODEL.format("broken", EXAMPLES / "iris"))
        opened.page.get_by_role("button", name="Send", exact=True).wait_for()


def test_page_shows_that_gantry_is_gone_and_that_it_returned(visit, tmp_path):
    with Gantry(tmp_path / "state", EXAMPLES / "iris.yaml") as gantry:
        opened = visit(gantry.admin)
        opened.until_text("1 model served")
        port = gantry.admin.split(":")[1]
        gantry.kill()
        opened.until_text("No connection to Gantry since")
        assert "1 model served" in opened.text(), "the last data stay"
        assert opened.violations() == []
        opened.screenshot("gantry-gone")
    with Gantry(tmp_path / "state", EXAMPLES / "iris.yaml", flags=[f"--admin-port={port}"]):
        opened.until_gone("No connection")
    assert all("ERR_" in error for error in opened.errors), opened.errors
    opened.errors.clear()


def test_server_that_dies_while_the_page_is_open(visit, tmp_path):
    stack = Stack(tmp_path)
    try:
        models = tmp_path / "models"
        models.mkdir()
        (port,) = free_ports(1)
        runtime = stack.start("runtime", models, "--explicit", f"--port={port}")
        runtime.until("the runtime", lambda: responds(f"127.0.0.1:{port}", "/v2/health/ready"))
        agent = stack.agent(
            "--capabilities", "onnx", name="external", kind="builtin", http_port=port, grpc_port=port, models=models
        )
        assert stack.apply("iris", EXAMPLES / "iris", "onnx").returncode == 0
        opened = visit(stack.admin, "servers")
        opened.until_text("external-0")
        opened.until_text("1 replica joined")
        agent.kill()
        runtime.kill()
        opened.until_gone("1 replica joined")
        opened.screenshot("server-gone")
        opened.open("")
        opened.until_text("not ready")
        assert opened.violations() == []
        opened.screenshot("server-gone-overview")
    finally:
        stack.close()
