"""Calls an InferenceService with the KServe SDK. A separate program, like kserve_client.py. Reads the address and rows as JSON
from standard input, writes results to standard output."""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def v1(url, headers, work):
    client = InferenceRESTClient(RESTConfig(protocol="v1", timeout=30))
    name, results = work["name"], {}
    results["live"] = await client.is_server_live(url, headers=headers)
    results["ready"] = await client.is_model_ready(url, name, headers=headers)
    results["predict"] = await client.infer(url, {"instances": work["rows"]}, model_name=name, headers=headers)
    for what, call in [
        ("explain", client.explain(url, name, {"instances": work["rows"]}, headers=headers)),
        ("bad shape", client.infer(url, {"instances": [[1]]}, model_name=name, headers=headers)),
        ("other model", client.is_model_ready(url, "other", headers=headers)),
    ]:
        try:
            results[what] = await call
        except httpx.HTTPStatusError as error:
            results[what] = [error.response.status_code, error.response.json()["error"]]
    await client.close()
    return results


def request(work):
    rows = work["rows"]
    tensor = InferInput(work["input"], [len(rows), len(rows[0])], "FP32")
    tensor.set_data_from_numpy(np.array(rows, dtype=np.float32), binary_data=True)
    return InferRequest(model_name=work["name"], infer_inputs=[tensor])


def outputs(response):
    return {output.name: output.as_numpy().ravel().tolist() for output in response.outputs}


async def v2(url, headers, work):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    name = work["name"]
    results = {
        "live": await client.is_server_live(url, headers=headers),
        "ready": await client.is_server_ready(url, headers=headers),
        "model ready": await client.is_model_ready(url, name, headers=headers),
        "infer": outputs(await client.infer(url, request(work), model_name=name, headers=headers)),
    }
    await client.close()
    return results


async def grpc(work, host=None):
    authority = [("grpc.default_authority", host)] if host else None
    client = InferenceGRPCClient(work["address"], timeout=30, channel_args=authority)
    results = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model ready": await client.is_model_ready(work["name"]),
        "infer": outputs(await client.infer(request(work))),
    }
    await client.close()
    return results


async def main():
    work = json.load(sys.stdin)
    root = f"http://{work['address']}"
    host = f"{work['name']}-{work['namespace']}.example.com"
    places = {
        "path": (f"{root}/serving/{work['namespace']}/{work['name']}", None),
        "host": (root, {"Host": host}),
        "plain": (root, None),
    }
    results = {"grpc": await grpc(work), "grpc host": await grpc(work, host)}
    for place, (url, headers) in places.items():
        results[f"v1 {place}"] = await v1(url, headers, work)
        results[f"v2 {place}"] = await v2(url, headers, work)
    json.dump(results, sys.stdout)


asyncio.run(main())
