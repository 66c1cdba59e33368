"""Writes networks that take as much as a request asks for, into hostile/.

    venv/bin/python make_hostile.py

Each is a loop of `n` turns, which only rten runs. `doubling` doubles a list in each turn and gives its length: after
three turns 8, after forty more than any memory holds. `turning` gives what it was given, after as many turns as asked.
"""

import os

import onnx
from onnx import TensorProto, helper

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile")


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def loop(name, turn, finish):
    """A graph that does `turn` (v to v_out) `n` times on a list of one, and then `finish` (last to y)."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["go_on_out"]), turn],
        "body",
        [value("i", TensorProto.INT64, []), value("go_on", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [None])],
        [value("go_on_out", TensorProto.BOOL, []), value("v_out", TensorProto.FLOAT, [None])],
    )
    constants = [
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("none", TensorProto.INT64, [0], []),
    ]
    nodes = [
        helper.make_node("Reshape", ["n", "none"], ["turns"], "turns"),
        helper.make_node("Loop", ["turns", "yes", "one"], ["last"], "loop", body=body),
        finish,
    ]
    graph = helper.make_graph(
        nodes, name, [value("n", TensorProto.INT64, [1])], [value("y", TensorProto.INT64, [1])], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    os.makedirs(os.path.join(FOLDER, name), exist_ok=True)
    onnx.save(model, os.path.join(FOLDER, name, "model.onnx"))


if __name__ == "__main__":
    length = helper.make_node("Shape", ["last"], ["y"], "length")
    loop("doubling", helper.make_node("Concat", ["v", "v"], ["v_out"], axis=0), length)
    loop("turning", helper.make_node("Relu", ["v"], ["v_out"]), length)
