#!/usr/bin/env python3
"""Does the order of the schemes depend on how the text is split?

For each seed, all documents of datasets/ are shuffled and split into calibration (two thirds) and
held-out (one third) text; then the whole pipeline runs on both halves. Prints, per seed, attention KL
and next-token KL of every scheme, the order, and the ratios of OSCAR to the baselines.

usage: split_seeds.py --bin build/release/bin --model FILE.gguf [--seeds 1 2] [--tokens 16384]
                      [--threads 2] [--work DIR]
"""
import argparse
import csv
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def documents():
    """(kind, content) of every passage and question."""
    found = []
    for path in sorted((ROOT / "datasets").glob("prose_*.txt")):
        found += [("prose", d.strip("\n")) for d in path.read_text().split("\n---\n")]
    for path in sorted((ROOT / "datasets").glob("mcq_*.csv")):
        with open(path, newline="") as file:
            found += [("mcq", row) for row in csv.DictReader(file)]
    return found


def write(folder, name, chosen):
    prose, mcq = folder / f"{name}.txt", folder / f"{name}.csv"
    prose.write_text("\n---\n".join(c for kind, c in chosen if kind == "prose") + "\n")
    rows = [c for kind, c in chosen if kind == "mcq"]
    with open(mcq, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return [str(prose), str(mcq)]


def run_seed(seed, options, work):
    chosen = documents()
    random.Random(seed).shuffle(chosen)
    cut = len(chosen) * 2 // 3
    calibration = write(work, f"calibration{seed}", chosen[:cut])
    heldout = write(work, f"heldout{seed}", chosen[cut:])
    common = ["--threads", str(options.threads), "--quiet", "--force"]
    traces = {}
    for name, text, tokens in (("c", calibration, options.tokens), ("h", heldout, 8192)):
        traces[name] = str(work / f"{name}{seed}.trace.h5")
        subprocess.run([options.bin / "oscar-dump", "--model", options.model, "--text", *text,
                        "--tokens", str(tokens), "--rows-tokens", "8192", "--out", traces[name],
                        *common], check=True, stdout=subprocess.DEVNULL)
    entry = str(work / f"entry{seed}")
    subprocess.run([options.bin / "oscar-calibrate", "--traces", traces["c"], "--model-name", "split",
                    "--out", entry, *common], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([options.bin / "oscar-verify", "--zoo", entry, "--traces", traces["h"],
                           "--model", options.model, "--text", *heldout, "--tokens", "4096",
                           "--schemes", "bf16,naive,hadamard,clip-only,oscar", "--json", *common],
                          stdout=subprocess.PIPE, text=True)
    for path in traces.values():
        pathlib.Path(path).unlink()
    return json.loads(done.stdout)


def summary(record):
    means = {}
    for scheme in record["schemes"]:
        if scheme["control"]:
            continue
        name = scheme["name"].split(":")[0]
        means[name] = {m: scheme["metrics"][m]["mean"] for m in ("attention_kl", "next_token_kl")}
    result = {"verdict": record["verdict"], "schemes": means}
    for metric in ("attention_kl", "next_token_kl"):
        result[f"order by {metric}"] = sorted(means, key=lambda n: means[n][metric])
        result[f"oscar / baseline, {metric}"] = {
            n: round(means["oscar"][metric] / means[n][metric], 4)
            for n in ("hadamard", "clip-only", "naive")}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=pathlib.Path)
    options = parser.parse_args()
    work = options.work or pathlib.Path(tempfile.mkdtemp(prefix="oscar-split-"))
    work.mkdir(parents=True, exist_ok=True)
    results = {str(seed): summary(run_seed(seed, options, work)) for seed in options.seeds}
    orders = {tuple(r[f"order by {m}"]) for r in results.values()
              for m in ("attention_kl", "next_token_kl")}
    print(json.dumps({"seeds": results, "same order everywhere": len(orders) == 1}, indent=2))
    if options.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
