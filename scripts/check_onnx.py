"""Writes the node test cases of the package onnx as JSON, one case a line, for the example onnx_nodes.

A tensor is [type, shape, values]. 32-bit integers become 64-bit ones; a case with other types that our tensors do not have
says so in "why_not".

The weights of the package's GRU, LSTM and RNN cases are one number each, which cannot tell one gate from another, and its GRUs reset
the state before its product alone. So there are cases of these beside them, of numbers by chance, that the package's reference computes.
"""

import json
import sys
import warnings

import numpy as np
import onnx
import onnx.reference
from onnx.backend.test.case.node import collect_testcases

TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
TYPES |= {"int32": "i64", "int64": "i64", "uint8": "u8", "bool": "bool"}
STEP = {"f16": 2.0**-9, "bf16": 2.0**-6}
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
        given, made = iter(inputs), iter(outputs)
        row["attributes"] = {a.name: attribute(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        # An input or output without a name is omitted.
        row["inputs"] = [tensor(next(given)) if name else None for name in node.input]
        row["outputs"] = [tensor(next(made)) if name else None for name in node.output]
        # Half precision allows at least two units: the package rounds in between, Highwater once at the end.
        steps = [STEP.get(made[0], 0.0) for made in row["outputs"] if made]
        row["tolerance"] = [max([float(case.rtol), *steps]), float(case.atol)]
    except NotHere as reason:
        row["why_not"] = str(reason)
    return row


def recurrent(op, direction, layout, **options):
    """A case of a recurrent op with all that it may be given, but for what our ops do not have."""
    gates, states = {"GRU": (3, ["h"]), "LSTM": (4, ["h", "c"]), "RNN": (1, ["h"])}[op]
    directions = 2 if direction == "bidirectional" else 1
    length, batch, width, hidden = 4, 3, 2, 5
    rows, batch_first = gates * hidden, layout == 1
    shapes = {
        "X": (batch, length, width) if batch_first else (length, batch, width),
        "W": (directions, rows, width),
        "R": (directions, rows, hidden),
        "B": (directions, 2 * rows),
    }
    for state in states:
        shapes[f"initial_{state}"] = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    rng = np.random.default_rng(0)
    given = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    attributes = {"hidden_size": hidden, "direction": direction, "layout": layout, **options}
    inputs = ["X", "W", "R", "B", "", *(f"initial_{state}" for state in states)]
    node = onnx.helper.make_node(op, inputs, ["Y", *(f"Y_{state}" for state in states)], **attributes)
    outputs = onnx.reference.ReferenceEvaluator(node).run(None, given)
    return {
        "name": "_".join(["reference", op.lower(), direction, "layout", str(layout), *options]),
        "op": op,
        "attributes": attributes,
        "inputs": [tensor(given[name]) if name else None for name in inputs],
        "outputs": [tensor(output) for output in outputs],
        "tolerance": [1e-3, 1e-7],
    }


warnings.simplefilter("ignore")
with np.errstate(all="ignore"):
    stdout, sys.stdout = sys.stdout, sys.stderr  # some cases print
    cases = collect_testcases(None)
    sys.stdout = stdout
for case in cases:
    # Cases with several nodes are decomposed ops.
    if len(case.model.graph.node) == 1:
        print(json.dumps(exported(case), allow_nan=False))
for op, options in (("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("RNN", {})):
    for direction in ("forward", "reverse", "bidirectional"):
        for layout in (0, 1):
            print(json.dumps(recurrent(op, direction, layout, **options), allow_nan=False))
