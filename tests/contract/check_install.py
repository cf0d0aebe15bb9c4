#!/usr/bin/env python3
"""Installs the build into an empty folder and runs every installed program from elsewhere.

usage: check_install.py CMAKE BUILD_DIR
"""
import pathlib
import subprocess
import sys
import tempfile


def main():
    cmake, build = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    expected = {p.name for p in (build / "bin").glob("oscar-*")}
    problems = [] if expected else [f"no program under {build}/bin"]
    with tempfile.TemporaryDirectory(prefix="oscar install ") as folder:
        subprocess.run([cmake, "--install", build, "--prefix", folder], check=True,
                       capture_output=True)
        installed = sorted((pathlib.Path(folder) / "bin").iterdir())
        if {p.name for p in installed} != expected:
            problems.append(f"installed {[p.name for p in installed]}, expected {sorted(expected)}")
        for program in installed:
            done = subprocess.run([program, "--version"], cwd=folder, capture_output=True, text=True)
            if done.returncode != 0 or not done.stdout.startswith(program.name):
                problems.append(f"{program.name} --version: exit code {done.returncode}: "
                                f"{done.stderr.strip()}")
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
