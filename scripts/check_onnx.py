"""Writes the node test cases of the package onnx as JSON, one case a line, for the example onnx_nodes.

A tensor is [type, shape, values]. 32-bit integers become 64-bit ones; a case with other types that our tensors do not have
says so in "why_not".
"""

import json
import sys
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

TYPES = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i64", "bool": "bool", "uint8": "u8"}
MOST_ELEMENTS = 100_000


class NotHere(Exception):
    pass


def number(value):
    return value if isinstance(value, (bool, int)) or np.isfinite(value) else str(value)


def tensor(array):
    if isinstance(array, onnx.TensorProto):
        array = onnx.numpy_helper.to_array(array)
    if not isinstance(array, (np.ndarray, np.generic, int, float)):
        raise NotHere(f"no tensor but {type(array).__name__}")
    array = np.asarray(array)
    if str(array.dtype) not in TYPES:
        raise NotHere(f"type {array.dtype}")
    if array.size > MOST_ELEMENTS:
        raise NotHere("too large")
    return [TYPES[str(array.dtype)], list(array.shape), [number(v) for v in array.reshape(-1).tolist()]]


def attribute(value):
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, onnx.TensorProto):
        return tensor(onnx.numpy_helper.to_array(value))
    if isinstance(value, (list, tuple)) or hasattr(value, "__len__"):
        return [attribute(v) for v in value]
    raise NotHere("has a graph in it")


def exported(case):
    node = case.model.graph.node[0]
    row = {"name": case.name, "op": node.op_type, "version": case.model.opset_import[0].version}
    try:
        inputs, outputs = case.data_sets[0]
        given = iter(inputs)
        row["attributes"] = {a.name: attribute(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        # An input without a name is one that was left out.
        row["inputs"] = [tensor(next(given)) if name else None for name in node.input]
        row["outputs"] = [tensor(output) for output in outputs]
        row["tolerance"] = [float(case.rtol), float(case.atol)]
    except NotHere as reason:
        row["why_not"] = str(reason)
    return row


warnings.simplefilter("ignore")
with np.errstate(all="ignore"):
    stdout, sys.stdout = sys.stdout, sys.stderr  # some cases print
    cases = collect_testcases(None)
    sys.stdout = stdout
for case in cases:
    # Cases of several nodes are ops written out in others.
    if len(case.model.graph.node) == 1:
        print(json.dumps(exported(case), allow_nan=False))
