#!/usr/bin/env python3
"""Runs clang-tidy over the sources that are built from src/, tests left out, and fails on any finding.

usage: lint.py [FILE...]     FILE: only these

A file that passed is not looked at again until it, a header of ours that it includes, its compile command or the checks
change: build/lint/ holds one empty file for each such state.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "build/release"
PASSED = ROOT / "build/lint"
CLANG_TIDY = Path(sys.executable).parent / "clang-tidy"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def with_headers(source):
    """`source` and every header of ours that it includes, directly or not."""
    seen, waiting = set(), [source]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
            waiting += [path for path in (ROOT / "src" / name, ROOT / "include" / name) if path.is_file()]
    return sorted(seen)


def state_of(source, command, tools):
    digest = hashlib.sha256(tools + command.encode())
    for file in with_headers(source):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return PASSED / digest.hexdigest()


def findings(source):
    run = subprocess.run([sys.executable, CLANG_TIDY, "--quiet", "-p", DATABASE, source], capture_output=True, text=True)
    return run.stdout + run.stderr if run.returncode != 0 else None


def main():
    database = json.loads((DATABASE / "compile_commands.json").read_text(encoding="utf-8"))
    commands = {Path(entry["file"]): entry["command"] for entry in database}
    only = {Path(name).resolve() for name in sys.argv[1:]}
    version = subprocess.run([sys.executable, CLANG_TIDY, "--version"], capture_output=True, check=True).stdout
    tools = version + (ROOT / ".clang-tidy").read_bytes()
    states = {}
    for source, command in sorted(commands.items()):
        if source.is_relative_to(ROOT / "src") and not source.name.endswith("_test.cc") and (not only or source in only):
            states[source] = state_of(source, command, tools)
    PASSED.mkdir(parents=True, exist_ok=True)
    due = [source for source, state in states.items() if not state.exists()]
    print(f"{len(states)} files, {len(due)} of them changed since they last passed", flush=True)
    bad = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, found in zip(due, pool.map(findings, due)):
            if found is None:
                states[source].touch()
            else:
                bad += 1
                print(found, flush=True)
    if not states:
        print("no file to look at: configure the release preset first, and name files under src/")
    return 1 if bad or not states else 0


if __name__ == "__main__":
    sys.exit(main())
