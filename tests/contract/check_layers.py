#!/usr/bin/env python3
"""Checks the architecture: docs/architecture.md's module table against the sources.

usage: check_layers.py ROOT          checks the tree
       check_layers.py ROOT --self-test   shows that each rule can fail
"""
import pathlib
import re
import sys

SYSTEM_RULES = {  # header prefix -> modules that may include it
    "torch/": {"model"}, "ATen/": {"model"}, "c10/": {"model"},
    "hdf5": {"h5"}, "H5": {"h5"},
    "lapacke": {"linalg"}, "cblas": {"linalg"}, "openblas": {"linalg"},
    "Eigen/": {"linalg", "quant", "stats", "metrics", "rotation", "calibrate", "inspect", "verify"},
    "nlohmann/": {"core", "weights", "text", "zoo", "report"},
    "CLI/": {"cli"},
    "pcre2": {"text"}, "utf8proc": {"text"},
    "zlib": {"torchfile"},
    "cuda": {"cuda"},
}
# What a library may not do: print, exit, read the environment. cli is the terminal.
FORBIDDEN = [
    (re.compile(r"\bstd::(cout|cerr|clog)\b"), "prints"),
    (re.compile(r"\bfmt::print\b|\b(std::)?f?printf\s*\("), "prints"),
    (re.compile(r"\bstd::(exit|abort|quick_exit|terminate)\s*\(|(?<![\w:.])(exit|abort)\s*\("), "exits"),
    (re.compile(r"\bgetenv\s*\("), "reads the environment"),
]
MAX_LINES = 500
MAX_MAIN_LINES = 60


def read_table(root):
    """Module -> modules it may include, from the table in docs/architecture.md."""
    allowed = {}
    for line in (root / "docs/architecture.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) >= 4 and cells[0].isdigit():
            names = [n.strip() for n in cells[1].split(",")]
            may = {n.strip() for n in cells[3].split(",") if n.strip() not in ("-", "")}
            for name in names:
                allowed[name] = may | {name}
    if not allowed:
        raise SystemExit("no module table found in docs/architecture.md")
    return allowed


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def check_file(path, module, text, allowed):
    problems = []
    for name in re.findall(r'#include\s+"oscar/(\w+)/', text):
        if name not in allowed.get(module, set()):
            problems.append(f"{path}: module {module} may not include {name}")
    for header in re.findall(r"#include\s+<([^>]+)>", text):
        for prefix, modules in SYSTEM_RULES.items():
            if header.startswith(prefix) and module not in modules:
                problems.append(f"{path}: module {module} may not include <{header}>")
    if module not in ("cli",):
        code = strip_comments(text)
        for pattern, what in FORBIDDEN:
            found = pattern.search(code)
            if found:
                problems.append(f"{path}: a library {what}: {found.group(0)}")
    if text.count("\n") > MAX_LINES:
        problems.append(f"{path}: {text.count(chr(10))} lines, at most {MAX_LINES}")
    if not text.isascii():
        problems.append(f"{path}: not ASCII")
    return problems


def check(root):
    allowed = read_table(root)
    problems = []
    count = 0
    for path in sorted((root / "lib/oscar").rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        count += 1
        module = path.relative_to(root / "lib/oscar").parts[0]
        name = path.relative_to(root)
        if module not in allowed:
            problems.append(f"{name}: module {module} is not in docs/architecture.md")
        problems += check_file(name, module, path.read_text(), allowed)
        listing = path.parent / "CMakeLists.txt"
        if not listing.exists() or not re.search(rf"(?<![\w.]){re.escape(path.name)}(?![\w.])",
                                                 listing.read_text()):
            problems.append(f"{name}: not listed in {listing.relative_to(root)}")
    for path in sorted((root / "tests").rglob("*_test.cc")):
        count += 1
        listing = path.parent / "CMakeLists.txt"
        if not listing.exists() or path.name not in listing.read_text():
            problems.append(f"{path.relative_to(root)}: not listed in its CMakeLists.txt")
    for path in sorted((root / "apps").rglob("*.cc")):
        count += 1
        lines = path.read_text().count("\n")
        if path.name == "main.cc" and lines > MAX_MAIN_LINES:
            problems.append(f"{path.relative_to(root)}: {lines} lines, at most {MAX_MAIN_LINES}")
        if path.name not in ("main.cc", "options.cc"):
            problems.append(f"{path.relative_to(root)}: a program is main.cc and options.cc only")
    if count == 0:
        problems.append("no source file found")
    return problems


def self_test(root):
    allowed = read_table(root)
    bad = {
        '#include "oscar/model/runner.h"\n': "may not include model",
        "#include <torch/torch.h>\n": "may not include <torch/",
        "#include <hdf5.h>\n": "may not include <hdf5",
        "#include <lapacke.h>\n": "may not include <lapacke",
        'void f() { std::cout << 1; }\n': "prints",
        'void f() { fmt::print("x"); }\n': "prints",
        "void f() { std::exit(1); }\n": "exits",
        'void f() { getenv("X"); }\n': "environment",
        "\n" * (MAX_LINES + 1): "lines",
        "// \u00e9\n": "ASCII",
    }
    failures = []
    for text, expected in bad.items():
        found = check_file("planted.cc", "core", text, allowed)
        if not any(expected in problem for problem in found):
            failures.append(f"planted fault not found: {text[:40]!r}")
    if check_file("planted.cc", "core", '#include "oscar/core/error.h"\n// std::cout\n', allowed):
        failures.append("a good file was refused")
    return failures


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = self_test(root) if "--self-test" in sys.argv else check(root)
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
