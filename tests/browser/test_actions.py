"""Changes from the pages, and what refuses them."""

from gantry import EXAMPLES

SECOND = f"""apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata:
  name: second
spec:
  storageUri: {EXAMPLES / 'fraud'}
  requirements: [xgboost]
"""


def test_manifest_is_compared_applied_and_unloaded(visit, one):
    opened = visit(one.admin, "apply")
    page = opened.page
    page.get_by_role("textbox").fill(SECOND.replace("storageUri", "storagUri"))
    page.get_by_role("button", name="Show the differences").click()
    opened.until_text("Did you mean storageUri?")
    opened.errors.clear()
    assert page.get_by_role("button", name="Apply", exact=True).is_disabled(), "without its differences"
    page.get_by_role("textbox").fill(SECOND)
    page.get_by_role("button", name="Show the differences").click()
    opened.until_text("model/second")
    assert opened.violations() == []
    opened.screenshot("apply-differences")
    page.get_by_role("button", name="Apply", exact=True).click()
    opened.until_text("applied")
    page.get_by_role("link", name="second").click()
    opened.until_text("Ready")
    page.get_by_role("button", name="Unload").click()
    assert opened.violations() == []
    opened.screenshot("unload")
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    page.get_by_role("heading", level=1, name="Models").wait_for()
    opened.until_gone("second")


def test_objects_of_files_are_not_changed(visit, one):
    opened = visit(one.admin, "models/iris")
    page = opened.page
    page.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    page.get_by_role("alert").wait_for()
    assert "gantry adopt model/iris" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="Cancel").click()
    opened.errors.clear()


def test_read_only_dashboard_changes_nothing(visit, empty):
    opened = visit(empty.admin, "apply")
    opened.until_text("read-only")
    headers = {"content-type": "application/json", "x-gantry-dashboard": "1"}
    for path in ["plan", "plan-deletion", "apply", "delete", "steer"]:
        body = {"manifest": SECOND, "kind": "model", "name": "iris", "action": "abort"}
        refused = empty.request("POST", f"/api/{path}", body, headers, at=empty.admin)
        assert (refused.status, "--dashboard-actions" in refused.error) == (403, True), path


def test_requests_of_other_sites_are_refused(one):
    def status(method="GET", path="/api/overview", **headers):
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return one.request(method, path, "{}" if method == "POST" else None, fields, at=one.admin).status

    port = one.admin.split(":")[1]
    assert status() == 200
    assert status(host=f"localhost:{port}") == 200
    assert status(host=f"evil.example:{port}") == 403
    assert status(path="/", host=f"evil.example:{port}") == 403
    assert status(path="/logs", host=f"evil.example:{port}") == 403
    assert status(path="/metrics", host=f"evil.example:{port}") == 200, "probes and scrapers use any name"
    assert status(sec_fetch_site="cross-site", sec_fetch_mode="cors") == 403
    assert status("POST", "/api/delete") == 403
    assert status("POST", "/api/delete", x_gantry_dashboard="1", origin="http://evil.example") == 403
    assert status("OPTIONS", "/api/delete", origin="http://evil.example", access_control_request_method="POST") == 403


def test_page_loads_nothing_from_elsewhere_and_no_frame(one):
    response = one.request("GET", "/", at=one.admin)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    etag = response.headers["etag"]
    assert one.request("GET", "/", headers={"if-none-match": etag}, at=one.admin).status == 304
