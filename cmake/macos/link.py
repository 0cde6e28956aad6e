"""Links a program for macOS with zig, taking on trust the compiled libraries that no package here has for macOS.

usage: link.py TARGET ZIG_COMMAND...     what CMake's toolchain file calls for each program

MLX's own library is at hand, so each of its functions that we name must exist. Of the others (PRESUMED), each name of
theirs that stands in our objects is presumed to exist: a stub library beside the program lists them. Every other
undefined symbol fails the link: a function of ours that only Linux defines, or one that macOS does not have.
"""

import re
import subprocess
import sys
from pathlib import Path

# C names as they are; C++ names as mangled, of a namespace: YAML::, hwy::.
PRESUMED = re.compile(rb"\0(_crc32_iscsi|_sodium_\w+|_crypto_\w+|_randombytes_\w+|__ZNK?\d*(?:4YAML|3hwy)\w+|__ZT[ISV]N(?:4YAML|3hwy)\w+)(?=\0)")


def main():
    target, command = sys.argv[1], sys.argv[2:]
    names = set()
    for word in command:
        if word.endswith((".o", ".a")) and Path(word).is_file():
            names.update(PRESUMED.findall(Path(word).read_bytes()))
    if names:
        stub = Path(target + "_stub")
        stub.mkdir(parents=True, exist_ok=True)
        symbols = ", ".join(f"'{name.decode()}'" for name in sorted(names))
        (stub / "libpresumed.tbd").write_text(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '@rpath/libpresumed.dylib'\n"
            f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {symbols} ]\n...\n"
        )
        command.append(str(stub / "libpresumed.tbd"))
    return subprocess.run([*command, "-o", target]).returncode


if __name__ == "__main__":
    sys.exit(main())
