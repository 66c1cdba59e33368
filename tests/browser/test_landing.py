"""The inference port for browsers: the page at `/`, names of the models, and the description of the API."""


def test_root_is_a_page_for_browsers_and_liveness_for_others(browser, one):
    page = browser.new_page()
    page.goto(f"http://{one.inference}/")
    assert page.get_by_role("heading", level=1).inner_text().startswith("Gantry ")
    assert "/v2/models/{model}/infer" in page.inner_text("body")
    page.get_by_role("link", name="Dashboard and API browser").click()
    page.get_by_role("heading", level=1, name="model served").wait_for()
    page.close()
    assert one.request("GET", "/").json() == {"status": "alive"}


def test_models_are_listed_in_pages(many):
    first = many.request("GET", "/v2/models?limit=2").json()
    assert first["models"] == [{"name": "model-00000", "ready": True}, {"name": "model-00001", "ready": True}]
    second = many.request("GET", f"/v2/models?limit=1&after={first['next']}").json()
    assert second["models"][0]["name"] == "model-00002"
    last = many.request("GET", "/v2/models?after=model-09998").json()
    assert last == {"models": [{"name": "model-09999", "ready": False}]}
    assert len(many.request("GET", "/v2/models").json()["models"]) == 1000
    assert many.request("GET", "/v2/models?limit=0").status == 400


def test_described_paths_are_those_that_the_gateway_serves(one):
    document = one.request("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        for method in methods:
            example = path.replace("{model}", "iris").replace("{version}", "1").replace("{path}", "x")
            if "unload" in example:
                continue
            answer = one.request(method.upper(), example.replace("{pipeline}", "none"), "{}" if method == "post" else None)
            assert answer.status != 405, path
            assert b"there is no path" not in answer.body, path


def test_api_browser_lists_every_path(visit, one):
    opened = visit(one.admin, "api")
    paths = one.request("GET", "/openapi.json").json()["paths"]
    shown = opened.page.locator("details.operation").count()
    assert shown == len(paths)
    opened.page.locator("details.operation summary").first.click()
    opened.page.get_by_role("group", name="with curl").first.wait_for()
    assert opened.violations() == []
    opened.screenshot("api-open")


def test_configuration_is_that_of_the_metadata(one):
    config = one.request("GET", "/v2/models/iris/config").json()
    assert config["input"] == [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert one.request("GET", "/v2/models/none/config").status == 404
