#!/usr/bin/env python3
"""Makes a data set from the Python standard library: a function without its docstring, and the docstring.

usage: make_data.py MODEL OUTPUT   MODEL's tokenizer measures the functions; OUTPUT gets {train,valid,test}.jsonl, and in
                                   sample.txt a prompt like theirs for a function that is in no library

The rows are chat rows. Which file a row is in depends on its module alone, so no module is in two of them. The same
Python makes the same files. OUTPUT is written beside and renamed, so it is whole or absent.
"""

import ast
import hashlib
import inspect
import json
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path

from tokenizers import Tokenizer

INSTRUCTION = "Write the docstring of this Python function."
LONGEST = 160  # tokens of a function and its docstring
SHORTEST_DOCSTRING = 6  # tokens
ROWS = {"train": 600, "valid": 60, "test": 60}  # at most
SAMPLE = """\
def most_common_word(path, shortest=4):
    counts = {}
    with open(path, encoding="utf-8") as file:
        for word in file.read().lower().split():
            if len(word) >= shortest:
                counts[word] = counts.get(word, 0) + 1
    return max(counts, key=counts.get, default=None)
"""
# Not what a library's reader would call its functions: tests, programs, packages that came with something else.
LEFT_OUT = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip"}


def prompt_of(code):
    return f"{INSTRUCTION}\n\n{code}"


def hash_of(text):
    return hashlib.sha256(text.encode()).digest()


def modules(library):
    """(path in the library, source) of each readable file, in a fixed order."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if LEFT_OUT.isdisjoint(parts):
            try:
                yield "/".join(parts), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a file in another encoding


def split_of(module):
    share = hash_of(module)[0]
    return "valid" if share < 26 else "test" if share < 52 else "train"


def functions(source):
    """(code without the docstring, docstring) of each function that has one and does more than carry it."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # templates
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or len(node.body) < 2:
            continue
        docstring, first = ast.get_docstring(node), node.body[0]
        if not docstring or first.lineno == node.lineno:
            continue
        start = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
        kept = lines[start - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
        code = textwrap.dedent("\n".join(line for line in kept if line.strip()))
        yield code, inspect.cleandoc(docstring)


def rows(tokenizer, library):
    """{split: chat rows}, in an order that mixes modules."""
    found = {split: {} for split in ROWS}
    seen = set()
    for module, source in modules(library):
        for code, docstring in functions(source):
            size = len(tokenizer.encode(docstring).ids)
            repeated = code in seen or docstring in seen
            seen.update((code, docstring))
            if not repeated and size >= SHORTEST_DOCSTRING and len(tokenizer.encode(code).ids) + size <= LONGEST:
                messages = [
                    {"role": "user", "content": prompt_of(code)},
                    {"role": "assistant", "content": docstring},
                ]
                found[split_of(module)][hash_of(code + docstring)] = {"messages": messages}
    return {split: [of[key] for key in sorted(of)[: ROWS[split]]] for split, of in found.items()}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, output = Path(sys.argv[1]), Path(sys.argv[2])
    if (output / "train.jsonl").is_file():
        print(f"{output}: already there")
        return
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    library = Path(sysconfig.get_paths()["stdlib"])
    splits = rows(tokenizer, library)
    few = [split for split, of in splits.items() if len(of) < 24]
    if few:
        sys.exit(
            f"make_data.py: {library} has too few functions with docstrings for {', '.join(few)}: "
            "it is not a whole Python standard library; install python3 (Debian: apt-get install libpython3-stdlib)"
        )

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split, of in splits.items():
        (partial / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    (partial / "sample.txt").write_text(prompt_of(SAMPLE.rstrip()))
    shutil.rmtree(output, ignore_errors=True)
    partial.rename(output)
    counts = ", ".join(f"{len(of)} {split}" for split, of in splits.items())
    print(f"{output}: {counts} rows from the standard library of Python {sys.version.split()[0]} in {library}")


if __name__ == "__main__":
    main()
