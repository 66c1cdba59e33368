"""Asks with the KServe SDK. A program of its own: the SDK and tritonclient register the same messages, so one process
cannot have both. Reads what to ask as JSON from standard input, writes what came back to standard output."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def ask(client, place, question, binary):
    rest = isinstance(client, InferenceRESTClient)
    model = question["model"]
    given = InferInput(question["input"], question["shape"], question["datatype"])
    rows = np.array(question["rows"], dtype=question["dtype"])
    given.set_data_from_numpy(rows, binary_data=binary)
    request = InferRequest(model_name=model, infer_inputs=[given])
    if rest:
        assert await client.is_server_live(place) and await client.is_server_ready(place)
        assert await client.is_model_ready(place, model)
        response = await client.infer(place, request, model_name=model)
    else:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(model)
        response = await client.infer(request)
    return {output.name: output.as_numpy().astype(object).ravel().tolist() for output in response.outputs}


async def main():
    work = json.load(sys.stdin)
    rest = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    grpc = InferenceGRPCClient(work["address"], timeout=30)
    answers = []
    for question in work["questions"]:
        place = f"http://{work['address']}"
        answers.append(
            {
                "rest, binary": await ask(rest, place, question, True),
                "rest, JSON": await ask(rest, place, question, False),
                "grpc": await ask(grpc, place, question, True),
            }
        )
    await rest.close()
    await grpc.close()
    json.dump(answers, sys.stdout, default=str)


asyncio.run(main())
