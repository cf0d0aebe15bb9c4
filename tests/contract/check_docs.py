#!/usr/bin/env python3
"""Checks the documents: what they name exists, and option pages equal the programs' own text.

usage: check_docs.py ROOT BUILD_DIR [--write]   --write updates docs/cli/*.md
"""
import pathlib
import re
import subprocess
import sys

# Words that would speak of how the project is developed, or of one machine.
PRIVATE = re.compile(r"/work/|/root/|\bsession\b.*\bagent\b|\bsubagent|issue #?\d|/tmp/wt-", re.I)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:apps|lib|tests|docs|scripts|configs|datasets|rotation_zoo)/[\w./<>*-]+)`")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
# Flags of other programs that our documents show.
FOREIGN = {"preset", "build", "install", "prefix", "no-deps", "target", "label-regex", "check", "model",
           "format", "output-on-failure", "parallel", "bin", "repeats", "write", "self-test", "help",
           "kv-cache-dtype", "kv-cache-quant-group-size", "prefill-attention-backend",
           "decode-attention-backend", "page-size", "chunked-prefill-size", "tp", "model-path",
           "disable-radix-cache", "break-system-packages", "work", "quick", "help-markdown", "stage", "test-dir", "only", "gtest"}


def documents(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "*.md"], capture_output=True, text=True,
                            check=True).stdout.split()
    return [root / name for name in listed if not name.startswith("tests/golden/")]


# Commands of a program that have options of their own, and so a page.
COMMANDS = {"oscar-verify": ["bench"]}


def program_pages(build):
    pages = {}
    for program in sorted((build / "bin").glob("oscar-*")):
        for command in [None] + COMMANDS.get(program.name, []):
            name = program.name if command is None else f"{program.name}-{command}"
            arguments = [program] + ([] if command is None else [command]) + ["--help-markdown"]
            pages[name] = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    return pages


def link_problems(root):
    """Links that lead nowhere, and documents that nobody finds from docs/README.md."""
    problems, linked = [], set()
    for path in documents(root):
        for target in LINK.findall(path.read_text()):
            found = (path.parent / target).resolve()
            if not found.exists():
                problems.append(f"{path.relative_to(root)}: links to {target}, which does not exist")
            if path == root / "docs/README.md":
                linked.add(found)
    for path in documents(root):
        if path.name != "README.md" or path.parent.parent == root:
            if path not in linked and path != root / "docs/README.md":
                problems.append(f"docs/README.md does not link {path.relative_to(root)}")
    return problems


def main():
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    write = "--write" in sys.argv
    problems = []
    pages = program_pages(build)
    known = set(FOREIGN)
    for name, page in pages.items():
        known |= set(FLAG.findall(page))
        known |= {"no-" + flag for flag in FLAG.findall(page)}
        target = root / "docs/cli" / f"{name}.md"
        if write:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page)
        elif not target.exists() or target.read_text() != page:
            problems.append(f"docs/cli/{name}.md differs from {name} --help-markdown: "
                            "run tests/contract/check_docs.py with --write")
    # Without LibTorch two programs are not built; their pages still name their flags.
    for page in (root / "docs/cli").glob("*.md"):
        known |= set(FLAG.findall(page.read_text()))
    problems += link_problems(root)
    files = documents(root)
    if not files:
        problems.append("no document found")
    for path in files:
        text = path.read_text()
        name = path.relative_to(root)
        for found in PATH.findall(text):
            if "<" in found or "*" in found:
                continue
            if not (root / found.rstrip("/")).exists():
                problems.append(f"{name}: names {found}, which does not exist")
        for flag in set(FLAG.findall(text)):
            if flag not in known and not flag.startswith("no-"):
                problems.append(f"{name}: names --{flag}, which no program has")
        private = PRIVATE.search(text)
        if private:
            problems.append(f"{name}: names something private: {private.group(0)}")
    print("\n".join(problems) if problems else "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
