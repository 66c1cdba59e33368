"""A model's page: its inputs, and a form whose request and snippets work."""

import subprocess
import sys


def test_form_sends_a_request_and_shows_the_outputs(visit, one):
    opened = visit(one.admin, "models/iris")
    page = opened.page
    field = page.get_by_label("X")
    field.wait_for()
    assert opened.violations() == []
    field.fill("[[5.1, 3.5, 1.4, 0.2], [6.2, 2.9, 4.3, 1.3]]")
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator(".answer").wait_for()
    assert "HTTP 200" in opened.text(".answer")
    assert "[2" in opened.text(".output")
    assert opened.violations() == []
    opened.screenshot("model-answer")


def test_snippets_do_what_the_form_does(visit, one):
    page = visit(one.admin, "models/iris").page
    page.get_by_label("X").fill("[5.1, 3.5, 1.4, 0.2]")
    curl = page.get_by_role("group", name="The request with curl").inner_text()
    answered = subprocess.run(["bash", "-c", f"{curl} -sS --fail"], capture_output=True, text=True, timeout=60)
    assert '"outputs"' in answered.stdout, answered.stderr
    page.get_by_role("tab", name="Python").click()
    python = page.get_by_role("group", name="The request in Python").inner_text()
    answered = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60)
    assert "'outputs'" in answered.stdout, answered.stderr
    # By the keyboard.
    page.keyboard.press("ArrowRight")
    assert "InferInput" in page.get_by_role("group", name="The request with tritonclient").inner_text()


def test_wrong_input_is_explained_before_and_after_it_is_sent(visit, one):
    opened = visit(one.admin, "models/iris")
    page = opened.page
    field = page.get_by_label("X")
    field.fill("[1, 2, 3]")
    assert "needs 4 values, got 3" in opened.text("#input-0-note")
    assert field.get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_role("alert").wait_for()
    assert "input X: shape [1,4] needs 4 values, got 3" in page.get_by_role("alert").inner_text()
    opened.screenshot("model-wrong-input")
    field.fill("[1, 2")
    assert page.get_by_role("button", name="Send", exact=True).is_disabled()
    assert "not a JSON list" in opened.text("#input-0-note")
    # The browser reports the answer with status 400 as an error of the console.
    assert all("400" in error for error in opened.errors)
    opened.errors.clear()


def test_unknown_object_is_not_found(visit, one):
    for path, text in [("models/iriss", "there is no model"), ("servers/x", "there is no server"), ("nothing", "There is no page")]:
        opened = visit(one.admin, path)
        opened.until_text(text)
        assert all("404" in error for error in opened.errors)
        opened.errors.clear()
