#!/usr/bin/env python3
"""Checks that every script says what it is for when it is asked, and does nothing else then.

usage: check_scripts.py ROOT
"""
import pathlib
import subprocess
import sys


def problems_of(script, flag):
    run = subprocess.run(["bash", script, flag], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         timeout=10)
    name = f"{script.name} {flag}"
    problems = []
    if run.returncode != 0:
        problems.append(f"{name}: expected exit code 0, found {run.returncode}")
    if f"\nusage: scripts/{script.name}" not in run.stdout:
        problems.append(f"{name}: its usage is not on standard output")
    if run.stdout.startswith("#") or "set -euo" in run.stdout:
        problems.append(f"{name}: prints its code")
    if run.stderr:
        problems.append(f"{name}: standard error has: {run.stderr.splitlines()[0]}")
    return problems


def main():
    scripts = sorted((pathlib.Path(sys.argv[1]) / "scripts").glob("*.sh"))
    problems = [problem for script in scripts for flag in ("-h", "--help")
                for problem in problems_of(script, flag)]
    if not scripts:
        problems.append("no script found")
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
