"""The audit log while the API server writes to it."""

import json

import pytest
from cluster import Audit


def line(name):
    event = {
        "stage": "ResponseComplete",
        "verb": "create",
        "userAgent": "gantry-operator",
        "objectRef": {"resource": "models", "name": name},
        "responseStatus": {"code": 201},
    }
    return json.dumps(event, ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize("written", [0, 1, -2, -1, None], ids=["none", "first byte", "within a character", "no newline", "complete"])
def test_line_incomplete_at_construction_is_skipped(tmp_path, written):
    path = tmp_path / "audit.log"
    before = line("earlier-é")
    half = before[:written]
    if written == -2:
        half = before[: before.index("é".encode()) + 1]
    path.write_bytes(line("first") + half)
    audit = Audit(path)
    assert audit.writes() == []
    with path.open("ab") as log:
        log.write(before[len(half) :])
        log.write(line("after"))
    skipped = [] if half else ["earlier-é"]
    assert [w[2] for w in audit.writes()] == [*skipped, "after"]


def test_incomplete_last_line_is_read_when_it_is_complete(tmp_path):
    path = tmp_path / "audit.log"
    path.write_bytes(b"")
    audit = Audit(path)
    whole = line("one") + line("two")
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        assert len(audit.writes()) == whole[:end].count(b"\n"), end
