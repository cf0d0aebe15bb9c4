#!/usr/bin/env python3
"""Speed of oscar-dump --import and oscar-calibrate beside the public recipe in plain PyTorch.

Both sides read the same official dump (layer_<L>/{q,k,v,seq_lens}/<chunk>.pt) and write a K and a V
rotation file for the targets qqt and sst with composition r_h_pbr. The PyTorch side is the public
method in float64: torch.load, second moments, score weights, eigh, U H P. Runs alternate; the table
shows medians and the ratio of medians, and the peak resident memory of each process.

usage: import_speed.py --bin build/release/bin [--tokens 20000] [--layers 4] [--repeats 3]
                       [--threads 2] [--work DIR] [--moments LIST]
Needs a Python that can import torch (PYTHONPATH=.deps/torch).
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REFERENCE = r"""
import pathlib, sys, torch
folder, out, threads = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)

def load(layer, name):
    files = sorted((folder / f"layer_{layer}" / name).glob("*.pt"), key=lambda p: int(p.stem))
    return torch.cat([torch.load(p, weights_only=True) for p in files if int(p.stem) != 0]).double()

def rotation(c):
    c = (c + c.T) / 2
    d = c.shape[0]
    values, u = torch.linalg.eigh(c)
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)]) / 2 ** 0.5
    bits = d.bit_length() - 1
    reverse = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(d)]
    perm = torch.empty(d, dtype=torch.long)
    perm[torch.tensor(reverse)] = torch.argsort(values, descending=True)
    return values, (u @ h)[:, perm]

result = {"k": {}, "v": {}}
for path in folder.glob("layer_*"):
    layer = int(path.name.split("_")[1])
    q, k, v = (load(layer, name) for name in "qkv")
    n, hq, d = q.shape
    hkv = k.shape[1]
    g = hq // hkv
    # The two targets are two passes, as in the public script: each forms what it needs of q.
    cq = torch.einsum("nhd,nhe->de", q, q) / (n * hq)
    cv = torch.zeros(d, d, dtype=torch.float64)
    for head in range(hkv):
        rows = q[:, head * g:(head + 1) * g].reshape(-1, d)
        a = rows.T @ rows / rows.shape[0]
        w = ((k[:, head] @ a) * k[:, head]).sum(1)
        w = w * n / w.sum().clamp_min(1e-12)
        cv += (v[:, head] * w[:, None]).T @ v[:, head] / n
    for side, c in (("k", cq), ("v", cv / hkv)):
        values, r = rotation(c)
        result[side][layer] = {"layer_id": layer, "rotation": r.float().contiguous(),
                               "eigenvalues": values.float().contiguous()}
for side, layers in result.items():
    torch.save({"format_version": 1, "layers": layers}, out / f"{side}.pt")
"""


def run(command, environment):
    """Wall seconds, processor seconds and peak resident MiB of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"failed ({process.returncode}): {' '.join(map(str, command))}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def make_dump(folder, tokens, layers, q_heads, kv_heads, dim, chunk):
    import torch
    generator = torch.Generator().manual_seed(1)
    for layer in range(layers):
        for name in ("q", "k", "v", "seq_lens"):
            (folder / f"layer_{layer}" / name).mkdir(parents=True)
        sizes = [6] + [min(chunk, tokens - at) for at in range(0, tokens, chunk)]
        for index, size in enumerate(sizes):
            for name, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads)):
                rows = torch.randn(size, heads, dim, generator=generator)
                rows = (rows * torch.linspace(0.2, 2, dim)).bfloat16()
                torch.save(rows, folder / f"layer_{layer}" / name / f"{index}.pt")
            torch.save(torch.tensor([size], dtype=torch.int32),
                       folder / f"layer_{layer}" / "seq_lens" / f"{index}.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--q-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--moments", default="qq,sst")
    parser.add_argument("--work", type=pathlib.Path)
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp(prefix="oscar-import-speed-"))
    dump = work / "dump"
    if not dump.exists():
        # In a process of its own: a child's peak memory counts what its parent held at the fork.
        maker = multiprocessing.get_context("spawn").Process(
            target=make_dump, args=(dump, options.tokens, options.layers, options.q_heads,
                                    options.kv_heads, options.dim, options.chunk))
        maker.start()
        maker.join()
        if maker.exitcode != 0:
            sys.exit("cannot make the dump")
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    reference = [sys.executable, "-W", "ignore", "-c", REFERENCE, dump, work, str(options.threads)]
    trace, entry = work / "t.trace.h5", work / "entry"
    imported = [options.bin / "oscar-dump", "--import", dump, "--q-heads", str(options.q_heads),
                "--kv-heads", str(options.kv_heads), "--moments", options.moments,
                "--rows-tokens", "0", "--threads", str(options.threads), "--quiet", "--force",
                "--out", trace]
    calibrated = [options.bin / "oscar-calibrate", "--traces", trace, "--k-target", "qqt",
                  "--v-target", "sst", "--clip", "0.96,0.92", "--model-name", "bench", "--threads",
                  str(options.threads), "--quiet", "--force", "--out", entry]
    rows = {"pytorch": [], "import": [], "calibrate": []}
    for _ in range(options.repeats):
        for name, command in (("pytorch", reference), ("import", imported),
                              ("calibrate", calibrated)):
            rows[name].append(run([str(c) for c in command], environment))
    median = {name: statistics.median(r[0] for r in values) for name, values in rows.items()}
    peak = {name: max(r[2] for r in values) for name, values in rows.items()}
    processor = {name: statistics.median(r[1] for r in values) for name, values in rows.items()}
    ours = median["import"] + median["calibrate"]
    print(json.dumps({
        "tokens": options.tokens, "layers": options.layers, "q_heads": options.q_heads,
        "kv_heads": options.kv_heads, "dim": options.dim, "threads": options.threads,
        "moments": options.moments, "repeats": options.repeats,
        "share_of_pytorch_time": {name: round(value / median["pytorch"], 3)
                                  for name, value in median.items()},
        "times_faster": round(median["pytorch"] / ours, 2),
        "times_less_processor_time": round(
            processor["pytorch"] / (processor["import"] + processor["calibrate"]), 2),
        "peak_mib": {name: round(value) for name, value in peak.items()}}, indent=2))
    if options.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
