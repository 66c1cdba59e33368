"""Manifests of many models."""

from gantry import EXAMPLES

MANY = 10_000
READY = 100
PER_FILE = 500


def many_models(directory, loaded):
    """Ten thousand models of the same small file. The first ones are loaded; others need what no server has."""
    model = (
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: model-{:05}}}\n"
        "spec: {{storageUri: {}, requirements: [{}], memory: 1Ki}}\n"
    )
    documents = [model.format(n, EXAMPLES / "iris", "onnx" if n < loaded else "tensorrt") for n in range(MANY)]
    for start in range(0, MANY, PER_FILE):
        file = directory / f"models-{start:05}.yaml"
        file.write_text("---\n".join(documents[start : start + PER_FILE]))
