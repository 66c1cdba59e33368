"""An InferenceService with KServe's Python SDK, unchanged, on a cluster whose pods run: created, called, rolled out as a canary,
promoted and deleted. `cargo xtask e2e` runs it; standard input has the work as JSON, standard output gets one line per step."""

import asyncio
import json
import sys
import time

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    KServeClient,
    RESTConfig,
    V1beta1InferenceService,
    V1beta1InferenceServiceSpec,
    V1beta1ModelFormat,
    V1beta1ModelSpec,
    V1beta1PredictorSpec,
)
from kubernetes import client as kubernetes
from kubernetes.client import ApiException

NAME = "sdk"
ROWS = [[5.1, 3.5, 1.4, 0.2]]


def service(work, labels=None, canary_traffic_percent=None):
    model = V1beta1ModelSpec(model_format=V1beta1ModelFormat(name="onnx"), storage_uri=work["uri"])
    predictor = V1beta1PredictorSpec(
        model=model, labels=labels, canary_traffic_percent=canary_traffic_percent, min_replicas=1
    )
    return V1beta1InferenceService(
        api_version="serving.kserve.io/v1beta1",
        kind="InferenceService",
        metadata=kubernetes.V1ObjectMeta(name=NAME, namespace=work["namespace"]),
        spec=V1beta1InferenceServiceSpec(predictor=predictor),
    )


def request():
    tensor = InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array(ROWS, dtype=np.float32), binary_data=False)
    return InferRequest(model_name=NAME, infer_inputs=[tensor])


def label(response):
    return int(response.outputs[0].as_numpy().ravel()[0])


async def calls(work, host):
    url, headers = f"http://{work['mesh']}", {"Host": host}
    rest = InferenceRESTClient(RESTConfig(protocol="v1", timeout=30))
    predicted = await rest.infer(url, {"instances": ROWS}, model_name=NAME, headers=headers)
    assert predicted["predictions"][0]["label"] == 0, predicted
    await rest.close()
    rest = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    assert await rest.is_server_live(url, headers=headers) and await rest.is_server_ready(url, headers=headers)
    assert await rest.is_model_ready(url, NAME, headers=headers)
    assert label(await rest.infer(url, request(), model_name=NAME, headers=headers)) == 0
    await rest.close()
    grpc = InferenceGRPCClient(work["mesh"], timeout=30, channel_args=[("grpc.default_authority", host)])
    assert await grpc.is_server_live() and await grpc.is_server_ready()
    assert await grpc.is_model_ready(NAME)
    assert label(await grpc.infer(request())) == 0
    await grpc.close()


async def backends(work, host):
    """The backends that serve some requests."""
    rest = InferenceRESTClient(RESTConfig(protocol="v1", timeout=30))
    found = set()
    for _ in range(100):
        headers = {}
        await rest.infer(
            f"http://{work['mesh']}",
            {"instances": ROWS},
            model_name=NAME,
            headers={"Host": host},
            response_headers=headers,
        )
        found.add(headers["x-seldon-route"].strip(":"))
    await rest.close()
    return found


def deployments(work):
    apps = kubernetes.AppsV1Api()
    found = apps.list_namespaced_deployment(work["namespace"], label_selector=f"serving.kserve.io/inferenceservice={NAME}")
    return {d.metadata.name: d.spec.template.metadata.labels.get("version") for d in found.items}


def until(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)


def main():
    work = json.load(sys.stdin)
    namespace = work["namespace"]
    sdk = KServeClient(config_file=work["kubeconfig"])
    ready = dict(namespace=namespace, timeout_seconds=120, polling_interval=0.5)

    sdk.create(service(work, {"version": "1"}))
    sdk.wait_isvc_ready(NAME, **ready)
    found = sdk.get(NAME, namespace=namespace)
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 1
    url = found["status"]["url"]
    host = url.removeprefix("http://")
    asyncio.run(calls(work, host))
    print("created and called by REST and gRPC at", url, flush=True)

    patched = sdk.patch(NAME, service(work, {"version": "2"}, 20), namespace=namespace)
    sdk.wait_isvc_ready(NAME, expected_generation=patched["metadata"]["generation"], **ready)
    both = {f"{NAME}-predictor": "1", f"{NAME}-predictor-canary": "2"}
    assert deployments(work) == both
    until("requests to both", lambda: asyncio.run(backends(work, host)) == set(both))
    asyncio.run(calls(work, host))
    print("canary with 20 % beside the previous spec", flush=True)

    promoted = sdk.patch(NAME, service(work, {"version": "2"}, 100), namespace=namespace)
    sdk.wait_isvc_ready(NAME, expected_generation=promoted["metadata"]["generation"], **ready)
    until("the end of the canary", lambda: deployments(work) == {f"{NAME}-predictor": "2"})
    assert asyncio.run(backends(work, host)) == {f"{NAME}-predictor"}
    asyncio.run(calls(work, host))
    print("promoted", flush=True)

    sdk.delete(NAME, namespace=namespace)

    def is_gone():
        try:
            kubernetes.CustomObjectsApi().get_namespaced_custom_object(
                "serving.kserve.io", "v1beta1", namespace, "inferenceservices", NAME
            )
        except ApiException as error:
            return error.status == 404
        return False

    until("the deletion", is_gone)
    print("deleted", flush=True)


main()
