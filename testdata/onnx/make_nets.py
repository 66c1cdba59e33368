"""Writes small neural networks with onnx.helper, and what ONNX Runtime answers: nets/<case>.onnx and .json.

    venv/bin/python make_nets.py

The weights are seeded noise; the point is the arithmetic. Also writes tiny models of single operators (ops_*),
whose expected outputs are ONNX Runtime's: what the specification leaves open, it decides.
"""

import json
import os

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "nets")
NAMES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "bool": "BOOL", "uint8": "UINT8"}
KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL, "uint8": TensorProto.UINT8, "object": TensorProto.STRING}


def plain(array):
    if array.dtype.kind == "f":
        return [None if np.isnan(v) else ("inf" if v == np.inf else "-inf" if v == -np.inf else float(v)) for v in array.ravel()]
    return [v if isinstance(v, str) else v.item() for v in array.ravel()]


def described(name, array):
    return {"name": name, "datatype": NAMES.get(array.dtype.name, "BYTES"), "shape": list(array.shape), "data": plain(array)}


def model_of(nodes, inputs, outputs, weights, opset=17):
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(n, KINDS[a.dtype.name], shape) for n, (a, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in outputs],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9)


def save(name, model, inputs):
    payload = model.SerializeToString()
    session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
    arrays = {n: a for n, (a, _) in inputs.items()}
    answers = session.run(None, arrays)
    with open(os.path.join(OUT, name + ".onnx"), "wb") as f:
        f.write(payload)
    body = {
        "inputs": [described(n, a) for n, a in arrays.items()],
        "outputs": [dict(described(o.name, np.asarray(a)), ort=0.0) for o, a in zip(session.get_outputs(), answers)],
    }
    with open(os.path.join(OUT, name + ".json"), "w") as f:
        json.dump(body, f, separators=(",", ":"))
        f.write("\n")


def noise(rng, *shape, scale=1.0):
    return (rng.normal(size=shape) * scale).astype(np.float32)


def mlp(sizes, batch, seed=1, out=None):
    """Dense layers with Relu and a softmax at the end."""
    rng = np.random.RandomState(seed)
    nodes, weights, last = [], {}, "x"
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        weights[f"w{i}"], weights[f"b{i}"] = noise(rng, a, b, scale=(2 / a) ** 0.5), noise(rng, b, scale=0.1)
        end = i == len(sizes) - 2
        nodes.append(helper.make_node("Gemm", [last, f"w{i}", f"b{i}"], [f"g{i}"], name=f"dense{i}"))
        nodes.append(helper.make_node("Softmax" if end else "Relu", [f"g{i}"], ["y" if end else f"r{i}"], name=f"act{i}", **({"axis": -1} if end else {})))
        last = f"r{i}"
    x = noise(rng, batch, sizes[0])
    inputs = {"x": (x, ["N", sizes[0]])}
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT, ["N", sizes[-1]])], weights), inputs


def cnn(batch, seed=2, channels=(3, 8, 16), side=32, classes=10):
    """Convolutions with Relu and pooling, then a dense layer."""
    rng = np.random.RandomState(seed)
    nodes, weights, last = [], {}, "x"
    for i, (a, b) in enumerate(zip(channels, channels[1:])):
        weights[f"k{i}"], weights[f"c{i}"] = noise(rng, b, a, 3, 3, scale=(2 / (9 * a)) ** 0.5), noise(rng, b, scale=0.1)
        nodes += [
            helper.make_node("Conv", [last, f"k{i}", f"c{i}"], [f"v{i}"], name=f"conv{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"v{i}"], [f"a{i}"], name=f"relu{i}"),
            helper.make_node("MaxPool", [f"a{i}"], [f"p{i}"], name=f"pool{i}", kernel_shape=[2, 2], strides=[2, 2]),
        ]
        last = f"p{i}"
    size = channels[-1] * (side // 2 ** (len(channels) - 1)) ** 2
    weights["w"], weights["b"] = noise(rng, size, classes, scale=(1 / size) ** 0.5), noise(rng, classes, scale=0.1)
    nodes += [
        helper.make_node("Flatten", [last], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w", "b"], ["logits"], name="dense"),
        helper.make_node("Softmax", ["logits"], ["y"], name="softmax", axis=-1),
    ]
    x = noise(rng, batch, channels[0], side, side)
    inputs = {"x": (x, ["N", channels[0], side, side])}
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT, ["N", classes])], weights), inputs


def depthwise(batch, seed=3):
    """A separable convolution: what small vision networks are made of."""
    rng = np.random.RandomState(seed)
    weights = {"k": noise(rng, 6, 1, 3, 3), "p": noise(rng, 4, 6, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["d"], name="depth", kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=6),
        helper.make_node("HardSwish", ["d"], ["h"], name="swish"),
        helper.make_node("Conv", ["h", "p"], ["v"], name="point", kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["v"], ["y"], name="mean"),
    ]
    inputs = {"x": (noise(rng, batch, 6, 9, 9), ["N", 6, 9, 9])}
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT, ["N", 4, 1, 1])], weights), inputs


def op(name, op_type, arrays, attributes=None, outputs=1, domain="", opset=21, kinds=None, weights=None):
    """One operator. Arrays are graph inputs, weights are initializers after them."""
    weights = weights or {}
    inputs = {f"x{i}": (np.asarray(a), list(np.asarray(a).shape)) for i, a in enumerate(arrays)}
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, list(inputs) + list(weights), names, name="node", domain=domain, **(attributes or {}))
    kinds = kinds or [TensorProto.FLOAT] * outputs
    save("ops_" + name, model_of([node], inputs, [(n, k, None) for n, k in zip(names, kinds)], weights, opset), inputs)


def ops():
    rng = np.random.RandomState(5)
    x = noise(rng, 2, 3, 4)
    odd = np.array([[-2.5, -0.5, 0.0, 0.5], [1.5, 2.5, np.nan, 1e9]], dtype=np.float32)
    f, i64, b, s = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
    for t in ("Neg", "Abs", "Sign", "Exp", "Floor", "Ceil", "Round", "Relu", "Sigmoid", "Tanh", "Softplus", "Reciprocal"):
        op(t.lower(), t, [odd])
    op("sqrt", "Sqrt", [np.abs(x)])
    op("log", "Log", [np.abs(x)])
    op("sigmoid_long", "Sigmoid", [noise(rng, 200, scale=5)])
    op("tanh_long", "Tanh", [noise(rng, 200, scale=3)])
    op("is_nan", "IsNaN", [odd], kinds=[b])
    for t in ("Add", "Sub", "Mul", "Div", "Pow"):
        op(t.lower(), t, [np.abs(x) + 1, np.abs(noise(rng, 3, 1))])
    op("add_ints", "Add", [np.array([[1, 2], [3, 4]]), np.array([10, 20])], kinds=[i64])
    op("div_ints", "Div", [np.array([7, -7, 8]), np.array([2, 2, 3])], kinds=[i64])
    op("mod_ints", "Mod", [np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])], kinds=[i64])
    for t in ("Max", "Min"):
        op(t.lower(), t, [odd, np.zeros_like(odd), np.ones((4,), np.float32)])
    op("mean", "Mean", [x, x + 1])
    op("sum", "Sum", [x, x[:, :1], x[:1]])
    for t in ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"):
        op(t.lower(), t, [odd, np.zeros((4,), np.float32)], kinds=[b])
    op("equal_strings", "Equal", [np.array([["a"], ["b"]], dtype=object), np.array(["a", "b", "c"], dtype=object)], kinds=[b])
    for t in ("And", "Or", "Xor"):
        op(t.lower(), t, [np.array([True, True, False, False]), np.array([True, False, True, False])], kinds=[b])
    op("not", "Not", [np.array([True, False])], kinds=[b])
    op("where", "Where", [np.array([[True], [False], [True]]), x[0], noise(rng, 4)])
    op("clip", "Clip", [odd, np.float32(-1), np.float32(2)])
    op("clip_crossed", "Clip", [odd, np.float32(2), np.float32(-1)])
    op("softmax", "Softmax", [x], {"axis": 1})
    op("softmax_old", "Softmax", [x], {"axis": 1}, opset=11)
    op("log_softmax", "LogSoftmax", [x])
    op("leaky_relu", "LeakyRelu", [odd], {"alpha": 0.2})
    op("elu", "Elu", [odd])
    for t in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"):
        op(t.lower(), t, [x], {"keepdims": 0}, weights={"axes": np.array([0, -1])})
        op(t.lower() + "_all", t, [x])
    op("reduce_log_sum", "ReduceLogSum", [np.abs(x)], weights={"axes": np.array([1])})
    op("reduce_sum_ints", "ReduceSum", [np.array([[1, 2], [3, 4]])], weights={"axes": np.array([1])}, kinds=[i64])
    ties = np.array([[3, 1, 3], [2, 2, 1]], dtype=np.float32)
    op("argmax", "ArgMax", [ties], {"axis": 1}, kinds=[i64])
    op("argmax_last", "ArgMax", [ties], {"axis": 1, "select_last_index": 1, "keepdims": 0}, kinds=[i64])
    op("argmin", "ArgMin", [ties], {"axis": 0, "keepdims": 0}, kinds=[i64])
    op("top_k", "TopK", [ties], {"axis": 1}, outputs=2, kinds=[f, i64], weights={"k": np.array([2])})
    op("top_k_smallest", "TopK", [ties], {"axis": 1, "largest": 0}, outputs=2, kinds=[f, i64], weights={"k": np.array([2])})
    op("cumsum", "CumSum", [x], weights={"axis": np.array(1)})
    op("cumsum_odd", "CumSum", [x], {"exclusive": 1, "reverse": 1}, weights={"axis": np.array(2)})
    op("lp_normalization", "LpNormalization", [x], {"axis": 1, "p": 1})
    op("gather", "Gather", [x, np.array([[0, -1], [2, 1]])], {"axis": 1})
    op("gather_strings", "Gather", [np.array(["a", "b", "c"], dtype=object), np.array([2, 0])], kinds=[s])
    op("gather_elements", "GatherElements", [x, np.array([[[0, 1, 0, 1]], [[1, 0, 0, 0]]])], {"axis": 0})
    w = {"starts": np.array([-1, 0]), "ends": np.array([-100, 3]), "axes": np.array([1, 2]), "steps": np.array([-1, 2])}
    op("slice", "Slice", [x], weights=w)
    op("slice_plain", "Slice", [x], weights={"starts": np.array([1]), "ends": np.array([1000])})
    op("slice_empty", "Slice", [x], weights={"starts": np.array([3]), "ends": np.array([1]), "axes": np.array([2])})
    op("one_hot", "OneHot", [np.array([[0, 2], [1, -1]])], {"axis": 1}, weights={"depth": np.array(3), "values": np.array([0, 5], np.float32)})
    op("reshape", "Reshape", [x], weights={"shape": np.array([0, -1])})
    op("flatten", "Flatten", [x], {"axis": 2})
    op("squeeze", "Squeeze", [x[:, :1]], weights={"axes": np.array([1])})
    op("unsqueeze", "Unsqueeze", [x], weights={"axes": np.array([0, -1])})
    op("transpose", "Transpose", [x], {"perm": [2, 0, 1]})
    op("expand", "Expand", [x[:, :1]], weights={"shape": np.array([2, 5, 4])})
    op("tile", "Tile", [x[0]], weights={"repeats": np.array([2, 3])})
    op("concat", "Concat", [x, x[:, :1]], {"axis": 1})
    op("split", "Split", [x], {"axis": 2}, outputs=2, weights={"parts": np.array([1, 3])})
    op("split_even", "Split", [x], {"axis": 1, "num_outputs": 2}, outputs=2)
    op("shape", "Shape", [x], {"start": 1}, kinds=[i64])
    op("size", "Size", [x], kinds=[i64])
    op("constant_of_shape", "ConstantOfShape", [np.array([2, 3])], {"value": numpy_helper.from_array(np.array([7], np.int64))}, kinds=[i64])
    op("range", "Range", [np.array(5), np.array(-4), np.array(-2)], kinds=[i64])
    op("matmul", "MatMul", [noise(rng, 2, 1, 3, 4), noise(rng, 5, 4, 2)])
    op("matmul_vectors", "MatMul", [noise(rng, 4), noise(rng, 4)])
    op("matmul_wide", "MatMul", [noise(rng, 70, 40)], weights={"w": noise(rng, 40, 300)})
    op("matmul_one_row", "MatMul", [noise(rng, 1, 40)], weights={"w": noise(rng, 40, 300)})
    op("matmul_doubles", "MatMul", [rng.normal(size=(3, 4))], weights={"w": rng.normal(size=(4, 2))}, kinds=[TensorProto.DOUBLE])
    op("gemm", "Gemm", [noise(rng, 4, 3)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, weights={"w": noise(rng, 5, 4), "c": noise(rng, 3, 1)})
    op("gemm_bias", "Gemm", [noise(rng, 33, 20)], weights={"w": noise(rng, 20, 150), "c": noise(rng, 150)})
    for name, kind in (("int64", i64), ("string", s), ("bool", b), ("double", TensorProto.DOUBLE)):
        op(f"cast_{name}", "Cast", [np.array([1.5, -2.0, 0.0, 123456.789, 1e-7], np.float32)], {"to": kind}, kinds=[kind])
    op("cast_from_string", "Cast", [np.array(["1.5", "-2", "1e3"], dtype=object)], {"to": f})
    op("cast_int_to_string", "Cast", [np.array([1, -20])], {"to": s}, kinds=[s])
    images(rng)
    ml(rng)


def images(rng):
    x = noise(rng, 2, 3, 9, 7)
    k, k2 = noise(rng, 5, 3, 3, 2), noise(rng, 8, 3, 3, 3)
    op("conv", "Conv", [x], weights={"k": k, "b": noise(rng, 5)})
    op("conv_padded", "Conv", [x], {"pads": [1, 0, 2, 3]}, weights={"k": k})
    op("conv_stride", "Conv", [x], {"strides": [2, 3], "pads": [1, 1, 1, 1]}, weights={"k": k2})
    op("conv_dilated", "Conv", [x], {"dilations": [2, 3], "strides": [1, 2]}, weights={"k": k})
    op("conv_same_upper", "Conv", [x], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, weights={"k": k2})
    op("conv_same_lower", "Conv", [x], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, weights={"k": noise(rng, 13, 3, 2, 2)})
    op("conv_groups", "Conv", [noise(rng, 2, 4, 6, 6)], {"group": 2, "pads": [1, 1, 1, 1]}, weights={"k": noise(rng, 8, 2, 3, 3), "b": noise(rng, 8)})
    op("conv_points", "Conv", [x], {"strides": [2, 2]}, weights={"k": noise(rng, 20, 3, 1, 1)})
    op("max_pool", "MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2]})
    op("max_pool_even", "MaxPool", [x[:, :, :8, :6]], {"kernel_shape": [2, 2], "strides": [2, 2]})
    op("max_pool_padded", "MaxPool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})
    op("max_pool_ceil", "MaxPool", [x], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1, "dilations": [1, 2]})
    op("average_pool", "AveragePool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})
    op("average_pool_counted", "AveragePool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1})
    op("global_average_pool", "GlobalAveragePool", [x])
    op("batch_normalization", "BatchNormalization", [x], {"epsilon": 0.01}, weights={"s": noise(rng, 3), "b": noise(rng, 3), "m": noise(rng, 3), "v": np.abs(noise(rng, 3))})


def ml(rng):
    m, f, i64, s = "ai.onnx.ml", TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
    x = noise(rng, 5, 3)
    for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        op(f"linear_classifier_{post.lower()}", "LinearClassifier", [x], {"coefficients": noise(rng, 9), "intercepts": noise(rng, 3), "classlabels_ints": [4, 5, 6], "post_transform": post}, 2, m, kinds=[i64, f])
        op(f"linear_classifier_one_{post.lower()}", "LinearClassifier", [x], {"coefficients": noise(rng, 3), "intercepts": noise(rng, 1), "classlabels_strings": ["no", "yes"], "post_transform": post}, 2, m, kinds=[s, f])
    op("linear_regressor", "LinearRegressor", [x], {"coefficients": noise(rng, 6), "intercepts": noise(rng, 2), "targets": 2}, 1, m)
    op("normalizer_max_signed", "Normalizer", [np.array([[-1, -2], [0, 0], [3, -4]], np.float32)], {"norm": "MAX"}, 1, m)
    op("normalizer_l2", "Normalizer", [np.array([[-1, -2], [0, 0], [3, -4]], np.float32)], {"norm": "L2"}, 1, m)
    op("scaler", "Scaler", [x.astype(np.float64)], {"offset": [1.0, 2.0, 3.0], "scale": [0.1, 0.2, 0.3]}, 1, m)
    op("binarizer", "Binarizer", [x], {"threshold": 0.2}, 1, m)
    op("label_encoder", "LabelEncoder", [np.array([["a"], ["z"], ["b"]], dtype=object)], {"keys_strings": ["a", "b"], "values_floats": [1.5, 2.5], "default_float": -9.0}, 1, m)
    op("label_encoder_default", "LabelEncoder", [np.array([3, 9])], {"keys_int64s": [3], "values_strings": ["three"]}, 1, m, kinds=[s])
    op("label_encoder_nan", "LabelEncoder", [np.array([np.nan, 1], np.float32)], {"keys_floats": [np.nan, 1.0], "values_int64s": [7, 8]}, 1, m, kinds=[i64])
    op("feature_extractor", "ArrayFeatureExtractor", [x, np.array([2, 0])], None, 1, m)
    op("feature_extractor_flat", "ArrayFeatureExtractor", [np.array([5, 6, 7])], None, 1, m, kinds=[i64], weights={"at": np.array([[2, 2]])})
    op("feature_vectorizer", "FeatureVectorizer", [x, x[:, :1]], {"inputdimensions": [2, 2]}, 1, m)
    tree = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2], "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"], "nodes_values": [0.1, 0, 0, -0.2, 0, 0],
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    }
    leaves = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2]}
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        op(f"tree_regressor_{how.lower()}", "TreeEnsembleRegressor", [x], dict(tree, n_targets=1, aggregate_function=how, target_ids=[0] * 4, target_weights=[1.0, -2.0, 0.5, 3.0], base_values=[0.25], target_treeids=leaves["treeids"], target_nodeids=leaves["nodeids"]), 1, m)
    for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for sign, weights in (("mixed", [0.5, -0.7, 0.2, 0.4]), ("positive", [0.5, 0.1, 0.2, 0.4])):
            for base in ((), (0.1,)):
                attributes = dict(tree, classlabels_int64s=[0, 1], class_ids=[0] * 4, class_weights=weights, post_transform=post, class_treeids=leaves["treeids"], class_nodeids=leaves["nodeids"])
                if base:
                    attributes["base_values"] = list(base)
                op(f"tree_binary_{post.lower()}_{sign}{'_base' if base else ''}", "TreeEnsembleClassifier", [x], attributes, 2, m, kinds=[i64, f])
        three = dict(tree, classlabels_strings=["a", "b", "c"], class_ids=[0, 1, 2, 1], class_weights=[0.5, 0.7, 0.2, 0.4], post_transform=post, class_treeids=leaves["treeids"], class_nodeids=leaves["nodeids"])
        op(f"tree_three_{post.lower()}", "TreeEnsembleClassifier", [x], three, 2, m, kinds=[s, f])


def main():
    os.makedirs(OUT, exist_ok=True)
    for old in os.listdir(OUT):
        os.remove(os.path.join(OUT, old))
    save("mlp", *mlp([16, 32, 32, 5], 4))
    save("cnn", *cnn(2, channels=(3, 4, 8), side=16, classes=5))
    save("depthwise", *depthwise(2))
    ops()


if __name__ == "__main__":
    main()
