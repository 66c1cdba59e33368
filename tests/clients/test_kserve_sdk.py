"""The KServe SDK gets what the original library predicts."""

import json
import subprocess
import sys
from pathlib import Path

from judges import CASES, close

ASKS = Path(__file__).parent / "kserve_asks.py"


def test_the_kserve_sdk_over_rest_and_grpc(served):
    questions = [
        {
            "model": case.name,
            "input": case.input,
            "shape": list(case.rows.shape),
            "datatype": case.datatype,
            "dtype": str(case.rows.dtype),
            "rows": case.rows.tolist(),
        }
        for case in CASES
    ]
    work = json.dumps({"address": served.inference, "questions": questions})
    asked = subprocess.run([sys.executable, ASKS], input=work, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    answers = json.loads(asked.stdout)
    assert len(answers) == len(CASES)
    for case, ways in zip(CASES, answers, strict=True):
        assert ways.keys() == {"rest, binary", "rest, JSON", "grpc"}
        for way, outputs in ways.items():
            assert outputs.keys() == case.right.keys(), (case, way)
            for name, right in case.right.items():
                close(outputs[name], right)
