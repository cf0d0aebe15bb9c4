"""Prints what torch.load(weights_only=True) reads from a file, as one JSON value.

usage: python3 describe.py FILE.pt

Tensors become {"tensor": {dtype, shape, stride, contiguous, values}} with values flattened in
row-major order, dicts {"dict": [[key, value], ...]}, lists and tuples {"list": [...]}, other values
themselves; a float becomes {"float": hexadecimal text} so that no digit is lost.
"""

import json
import sys

import torch

NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}


def describe(value):
    if isinstance(value, torch.Tensor):
        return {"tensor": {
            "dtype": NAMES[value.dtype], "shape": list(value.shape), "stride": list(value.stride()),
            "contiguous": value.is_contiguous(),
            "values": [float(x) for x in value.reshape(-1).tolist()]}}
    if isinstance(value, dict):
        return {"dict": [[describe(k), describe(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [describe(x) for x in value]}
    if isinstance(value, float):
        return {"float": value.hex()}
    return value


if __name__ == "__main__":
    json.dump(describe(torch.load(sys.argv[1], weights_only=True)), sys.stdout)
