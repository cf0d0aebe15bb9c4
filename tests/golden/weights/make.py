"""Writes quants.gguf and rope.json, the reference data of tests/weights.

    python -m venv v && v/bin/pip install numpy gguf==0.19.0 torch==2.11.0 transformers==5.24.0
    v/bin/python make.py

quants.gguf: for each block type T a tensor `T` of random blocks and `T.expected` with its float32
values, dequantised by the Python package gguf. The scales include zero, negative, subnormal and
large values. rope.json: inverse frequencies as transformers computes them.
"""

import json
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
ROWS, COLS = 3, 1024
# Byte positions of the float16 numbers in a block of each type.
HALVES = {
    "F16": None,
    "BF16": None,
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_blocks(rng, name, count, block_bytes):
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    special = np.array([0.0, -0.0, 6e-8, -6e-5, 65504.0, -1.0], np.float16)
    for at in HALVES[name] or []:
        halves = rng.normal(0, 0.1, count).astype(np.float16)
        chosen = rng.random(count) < 0.3
        halves[chosen] = rng.choice(special, chosen.sum())
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks


def write_quants():
    rng = np.random.default_rng(20250601)
    writer = gguf.GGUFWriter(HERE / "quants.gguf", "llama")
    writer.add_description("random blocks of every type and their float32 values")
    for name in HALVES:
        qtype = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[qtype]
        if name in ("F16", "BF16"):
            bits = rng.integers(0, 1 << 16, ROWS * COLS, dtype=np.uint16)
            exponent = 0x7C00 if name == "F16" else 0x7F80
            bits[(bits & exponent) == exponent] &= 0x83FF if name == "F16" else 0x807F
            data = bits.view(np.uint8).reshape(ROWS, COLS * 2)
        else:
            data = random_blocks(rng, name, ROWS * COLS // values, size).reshape(ROWS, -1)
        if name == "F16":
            expected = data.view(np.float16).astype(np.float32)
        else:
            expected = gguf.dequantize(data, qtype)
        assert np.isfinite(expected).all(), name
        writer.add_tensor(name, data, raw_dtype=qtype)
        writer.add_tensor(name + ".expected", expected.astype(np.float32).reshape(ROWS, COLS))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


ROPE_CASES = [
    dict(head_dim=64, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    dict(head_dim=64, rope_parameters=dict(rope_type="default", rope_theta=100000.0)),
    dict(head_dim=128, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    dict(head_dim=96, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    dict(head_dim=64, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
    dict(
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=8192,
        ),
    ),
    dict(
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=8192,
        ),
    ),
    dict(
        head_dim=24,
        max_position_embeddings=512,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=64,
        ),
    ),
    dict(
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=1000000.0, factor=4.0,
            original_max_position_embeddings=32768,
        ),
    ),
    dict(
        head_dim=64,
        max_position_embeddings=65536,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=16.0, beta_fast=24.0, beta_slow=2.0,
            mscale=0.707, mscale_all_dim=0.5, original_max_position_embeddings=4096,
        ),
    ),
    dict(
        head_dim=80,
        max_position_embeddings=65536,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=16.0, attention_factor=1.25,
            truncate=False, original_max_position_embeddings=4096,
        ),
    ),
]


def write_rope():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cases = []
    for case in ROPE_CASES:
        config = LlamaConfig(
            hidden_size=256, num_attention_heads=4, num_hidden_layers=1, intermediate_size=64,
            vocab_size=32, **case,
        )
        rope = LlamaRotaryEmbedding(config)
        cases.append(
            dict(case, inv_freq=[float(x) for x in rope.inv_freq.float()],
                 attention_factor=float(rope.attention_scaling))
        )
    (HERE / "rope.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    write_quants()
    write_rope()
