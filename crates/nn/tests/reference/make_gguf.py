"""Makes blocks.gguf and blocks.npz for tests/suite/io_gguf.rs. Needs gguf (0.19) and NumPy; run in this folder.

Each tensor of blocks.gguf has random bytes with small scales. blocks.npz has its values according to `gguf.dequantize`.
"""

import gguf
import numpy

random = numpy.random.default_rng(58)
T = gguf.GGMLQuantizationType
# The offsets of the 16-bit floats in a block.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}

writer = gguf.GGUFWriter("blocks.gguf", "test")
for kind in ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]:
    add = getattr(writer, "add_" + kind)
    limits = numpy.iinfo(kind)
    add(f"least.{kind}", int(limits.min))
    add(f"most.{kind}", int(limits.max))
writer.add_float32("value.float32", 0.1)
writer.add_float64("value.float64", 0.1)
writer.add_bool("value.bool", True)
writer.add_string("value.string", "größer")
writer.add_array("array.string", ["a", "", "Ġthe"])
writer.add_array("array.float32", [0.5, -1.5])
writer.add_array("array.int32", [1, -2, 3])
writer.add_array("array.bool", [True, False])
writer.add_key_value("array.array", [[1, 2], [3]], gguf.GGUFValueType.ARRAY)

expected = {}
for kind, scales in SCALES.items():
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (3 * 2, size), dtype=numpy.uint8)
    for at in scales:
        floats = random.normal(0, 0.05, (len(blocks), 1)).astype(numpy.float16)
        blocks[:, at:at + 2] = floats.view(numpy.uint8)
    data = blocks.reshape(3, 2 * size)
    writer.add_tensor(kind.name, data, raw_dtype=kind)
    expected[kind.name] = gguf.dequantize(data, kind)

values = random.normal(0, 1, (3, 5)).astype(numpy.float32)
writer.add_tensor("F32", values)
expected["F32"] = values
writer.add_tensor("F16", values.astype(numpy.float16))
expected["F16"] = values.astype(numpy.float16).astype(numpy.float32)
bits = gguf.quantize(values, T.BF16)
writer.add_tensor("BF16", bits, raw_dtype=T.BF16)
expected["BF16"] = gguf.dequantize(bits, T.BF16)
whole = random.integers(-100, 100, (2, 3))
for kind in ["int8", "int16", "int32", "int64", "float64"]:
    writer.add_tensor(kind, whole.astype(kind))
    expected[kind] = whole.astype(numpy.float32)
# A type that Highwater does not read.
data = random.integers(0, 256, (1, 84), dtype=numpy.uint8)
writer.add_tensor("Q2_K", data, raw_dtype=T.Q2_K)

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
numpy.savez_compressed("blocks.npz", **expected)
