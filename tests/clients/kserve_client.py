"""Sends requests with the KServe SDK. A separate program: the SDK and tritonclient register the same protobuf messages, so
one process cannot have both. Reads requests as JSON from standard input, writes responses to standard output."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def infer(client, url, case, binary):
    rest = isinstance(client, InferenceRESTClient)
    model = case["model"]
    tensor = InferInput(case["input"], case["shape"], case["datatype"])
    rows = np.array(case["rows"], dtype=case["dtype"])
    tensor.set_data_from_numpy(rows, binary_data=binary)
    request = InferRequest(model_name=model, infer_inputs=[tensor])
    if rest:
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, model)
        response = await client.infer(url, request, model_name=model)
    else:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(model)
        response = await client.infer(request)
    return {output.name: output.as_numpy().astype(object).ravel().tolist() for output in response.outputs}


async def main():
    work = json.load(sys.stdin)
    rest = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    grpc = InferenceGRPCClient(work["address"], timeout=30)
    responses = []
    for case in work["requests"]:
        url = f"http://{work['address']}"
        responses.append(
            {
                "rest, binary": await infer(rest, url, case, True),
                "rest, JSON": await infer(rest, url, case, False),
                "grpc": await infer(grpc, url, case, True),
            }
        )
    await rest.close()
    await grpc.close()
    json.dump(responses, sys.stdout, default=str)


asyncio.run(main())
