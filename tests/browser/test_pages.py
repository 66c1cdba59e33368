"""Every page, with no model, with one, and with ten thousand: it shows them, and axe finds nothing."""

import pytest
from browser import NARROW, WIDE
from manifests import READY

PAGES = ["", "models", "servers", "pipelines", "experiments", "rollouts", "events", "logs", "api"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("models", "theme"), [("empty", "light"), ("one", "light"), ("one", "dark"), ("many", "light")])
def test_page_is_accessible_with_any_number_of_models(request, visit, models, theme, page):
    gantry = request.getfixturevalue(models)
    opened = visit(gantry.admin, page, theme=theme)
    assert opened.violations() == []
    opened.screenshot(f"{models}-{page or 'overview'}-{theme}")


@pytest.mark.parametrize("page", ["", "models", "servers", "models/iris", "servers/builtin", "api"])
def test_page_fits_a_narrow_screen(visit, one, page):
    opened = visit(one.admin, page, size=NARROW)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert opened.violations() == []
    opened.screenshot(f"narrow-{page.replace('/', '-') or 'overview'}")


@pytest.mark.parametrize(
    ("page", "theme"),
    [
        ("pipelines/checkout", "light"),
        ("pipelines/checkout", "dark"),
        ("pipelines", "light"),
        ("experiments", "light"),
        ("experiments/half", "dark"),
        ("", "dark"),
    ],
)
def test_pipelines_and_experiments_are_drawn(visit, examples, theme, page):
    opened = visit(examples.admin, page, theme=theme)
    assert opened.violations() == []
    opened.screenshot(f"examples-{page.replace('/', '-') or 'overview'}-{theme}")


def test_pipeline_and_experiment_count_requests(visit, examples):
    opened = visit(examples.admin, "pipelines/checkout")
    page = opened.page
    page.get_by_label("payment").wait_for()
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator(".answer").wait_for()
    # The graph has the run, with the times of both steps.
    opened.until("the run in the graph", lambda: page.locator(".node-line", has_text="1 of 1 runs").count() == 2)
    assert opened.violations() == []
    opened.screenshot("pipeline-run")
    for _ in range(5):
        sent = examples.command("infer", "iris-a")
        assert sent.returncode == 0, sent.stderr
    opened.open("experiments/half")
    count = "[...document.querySelectorAll('tbody tr')].map((row) => Number(row.cells[2].innerText)).reduce((a, b) => a + b)"
    opened.until("the requests of the candidates", lambda: page.evaluate(count) >= 5)
    opened.screenshot("experiment-requests")


def test_ten_thousand_models_are_listed_searched_and_sorted(visit, many):
    opened = visit(many.admin, "models")
    page = opened.page
    opened.until_text("10,000 models")
    table = page.get_by_role("table", name="Models")
    assert table.get_attribute("aria-rowcount") == "10001"
    assert page.locator("[role=row]").count() < 100, "only what is visible is drawn"
    page.get_by_role("searchbox").fill("model-0420")
    opened.until("the rows", lambda: opened.rows() == 10)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Ready", exact=True).click()
    opened.until("the rows", lambda: opened.rows() == READY)
    page.get_by_role("link", name="model-00007").wait_for()
    page.get_by_role("button", name="All", exact=True).click()
    opened.until("the rows", lambda: opened.rows() == 10000)
    # The last row, by the keyboard.
    page.locator(".virtual-box").focus()
    page.keyboard.press("End")
    page.get_by_role("link", name="model-09999").wait_for()
    page.get_by_role("button", name="Name").click()
    page.locator(".virtual-box").focus()
    page.keyboard.press("Home")
    page.get_by_role("link", name="model-09999").wait_for()
    opened.screenshot("many-models-sorted")


def test_pages_are_reached_by_keyboard(visit, one):
    opened = visit(one.admin, size=WIDE)
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText").startswith("Models")
    page.keyboard.press("Enter")
    focused = "document.activeElement.tagName + document.activeElement.innerText"
    opened.until("the heading has the focus", lambda: page.evaluate(focused) == "H1Models")
    assert page.title() == "Models · Gantry"
