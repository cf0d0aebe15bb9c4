#!/usr/bin/env python3
"""Checks built files: libraries neither print nor exit, no program holds LibTorch and OpenBLAS.

usage: check_binaries.py BUILD_DIR          checks the build
       check_binaries.py BUILD_DIR --self-test   shows that planted symbols are found
"""
import pathlib
import re
import subprocess
import sys

FORBIDDEN = re.compile(
    r" U (std::cout|std::cerr|std::clog|printf|puts|putchar|fputs|stdout|stderr|exit|_exit|abort|"
    r"quick_exit|getenv|secure_getenv|fmt::v\d+::(vprint|print)\b.*)(@.*)?$")
MAY_PRINT = {"cli"}
# Library code of third parties inside our objects may name these: none so far.


def forbidden_symbols(listing):
    return sorted({m.group(1) for line in listing.splitlines() if (m := FORBIDDEN.search(line))})


def check(build):
    problems = []
    archives = sorted((build / "lib/oscar").glob("*/liboscar_*.a"))
    if not archives:
        problems.append(f"no archive under {build}/lib/oscar")
    for archive in archives:
        module = archive.parent.name
        if module in MAY_PRINT:
            continue
        listing = subprocess.run(["nm", "-C", "--undefined-only", archive], check=True,
                                 capture_output=True, text=True).stdout
        if not listing.strip():
            problems.append(f"{archive.name}: nm lists nothing")
        for symbol in forbidden_symbols(listing):
            problems.append(f"{archive.name}: uses {symbol}")
    programs = sorted((build / "bin").glob("oscar-*"))
    if not programs:
        problems.append(f"no program under {build}/bin")
    for program in programs:
        needed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        torch, blas = "libtorch_cpu" in needed, "libopenblas" in needed
        if torch and blas:
            problems.append(f"{program.name}: loads both LibTorch and OpenBLAS")
        if program.name == "oscar-zoo" and (torch or blas):
            problems.append("oscar-zoo: loads LibTorch or OpenBLAS")
        if program.name == "oscar-calibrate" and not blas:
            problems.append("oscar-calibrate: does not load OpenBLAS")
    return problems


def self_test():
    planted = ["                 U std::cout@GLIBCXX_3.4", "                 U printf@GLIBC_2.2.5",
               "                 U exit@GLIBC_2.2.5", "                 U getenv",
               "                 U fmt::v9::vprint(_IO_FILE*, fmt::v9::basic_string_view<char>)"]
    problems = [f"not found: {line}" for line in planted if not forbidden_symbols(line)]
    if forbidden_symbols("                 U memcpy\n0000 T exit_code"):
        problems.append("a harmless symbol was refused")
    return problems


def main():
    build = pathlib.Path(sys.argv[1])
    problems = self_test() if "--self-test" in sys.argv else check(build)
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
