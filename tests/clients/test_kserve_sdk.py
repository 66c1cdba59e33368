"""Predictions through the KServe SDK equal those of the original libraries."""

import json
import subprocess
import sys
from pathlib import Path

from reference_predictions import CASES, close

CLIENT = Path(__file__).parent / "kserve_client.py"


def test_kserve_sdk_over_rest_and_grpc(served):
    requests = [
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
    work = json.dumps({"address": served.inference, "requests": requests})
    client = subprocess.run([sys.executable, CLIENT], input=work, capture_output=True, text=True, timeout=120)
    assert client.returncode == 0, client.stderr
    responses = json.loads(client.stdout)
    assert len(responses) == len(CASES)
    for case, variants in zip(CASES, responses, strict=True):
        assert variants.keys() == {"rest, binary", "rest, JSON", "grpc"}
        for variant, outputs in variants.items():
            assert outputs.keys() == case.expected.keys(), (case, variant)
            for name, right in case.expected.items():
                close(outputs[name], right)
