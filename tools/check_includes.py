#!/usr/bin/env python3
"""Fails on an #include that the folder table does not allow. docs/design.md explains the table; this is it as data.

usage: check_includes.py [ROOT]     ROOT: the repository, by default the one that this file lies in
"""

import re
import sys
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Folder(NamedTuple):
    uses: str  # folders
    libraries: str


# Lowest first. A folder may use the folders and libraries that its line names, itself, the C++ standard library and fmt.
FOLDERS = {
    "src/base": Folder("", "posix spdlog highway isa-l sodium"),
    "src/cluster": Folder("base", "posix json"),
    "src/plan": Folder("base cluster", "json"),
    "src/link": Folder("base cluster", "posix verbs sodium"),
    "src/fabric": Folder("base cluster", "posix verbs"),
    "src/comm": Folder("base cluster plan link", "highway"),
    "src/bridge": Folder("base comm", "mlx"),
    "src/model": Folder("base plan", "mlx json"),
    "src/train": Folder("base plan comm bridge model", "mlx json"),
    "src/launch": Folder("base cluster link", "posix json"),
    "src/cli": Folder("base cluster plan link fabric comm bridge model train launch", "cli11 yaml json"),
}

# What is not in src/. `public`: the headers in include/trunkline.
EVERYTHING = "base cluster plan link fabric comm bridge model train launch cli"
EVERY_LIBRARY = "posix spdlog highway isa-l json sodium mlx cli11 yaml gtest benchmark"
OTHERS = {
    "include/trunkline": Folder("", ""),
    "tests": Folder(EVERYTHING, EVERY_LIBRARY),
    "bench": Folder(EVERYTHING, EVERY_LIBRARY + " mpi"),
    "examples": Folder("", "mlx"),
}

# The public headers that are everybody's. The others are comm's, for those who may use comm.
PUBLIC_BASE = {"trunkline/dtype.h", "trunkline/error.h", "trunkline/algorithm.h"}

# Which library a header belongs to: by its first folder or, for single headers, by its name.
LIBRARY_OF = {
    "fmt": "fmt", "spdlog": "spdlog", "hwy": "highway", "isa-l": "isa-l", "isa-l.h": "isa-l", "nlohmann": "json",
    "sodium.h": "sodium", "sodium": "sodium", "infiniband": "verbs", "mlx": "mlx", "CLI": "cli11", "yaml-cpp": "yaml",
    "gtest": "gtest", "gmock": "gtest", "benchmark": "benchmark", "mpi.h": "mpi",
}

STANDARD = set("""algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes
    climits clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef
    cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list
    fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map
    memory memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version""".split())

# Headers of the operating systems, under the table's word POSIX. Those that C has too declare more in POSIX than in C++.
POSIX = set("""aio.h dirent.h dlfcn.h fcntl.h fnmatch.h glob.h grp.h ifaddrs.h langinfo.h libgen.h malloc.h netdb.h poll.h pthread.h pwd.h
    sched.h semaphore.h signal.h spawn.h strings.h syslog.h termios.h ucontext.h unistd.h util.h utime.h pty.h
    crt_externs.h libproc.h malloc.h sysexits.h limits.h stdio.h stdlib.h string.h time.h""".split())
POSIX_FOLDERS = {"sys", "net", "netinet", "arpa", "linux", "mach", "mach-o"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)"|(\S.*))')


def library_of(header):
    """The library's name in the table, "std", or None for a header that nobody has listed."""
    first = PurePosixPath(header).parts[0]
    if header in STANDARD:
        return "std"
    if header in POSIX or first in POSIX_FOLDERS and "/" in header:
        return "posix"
    return LIBRARY_OF.get(first)


class Rules(NamedTuple):
    folder: str  # "src/comm", "tests", ...
    folders: set
    libraries: set


def rules_for(path):
    """What the file at `path` (relative to the root) may use, or None if it lies outside the table."""
    names = list(FOLDERS)
    for name, line in {**FOLDERS, **OTHERS}.items():
        if not path.is_relative_to(name):
            continue
        folders = set(line.uses.split())
        libraries = {"std", "fmt", *line.libraries.split()}
        if name == "include/trunkline" or name == "examples":
            libraries.discard("fmt")
        if name in FOLDERS:
            folders.add(name.removeprefix("src/"))
            if path.name.endswith(("_test.cc", "_test.h")):
                folders.update(above.removeprefix("src/") for above in names[names.index(name) :])
                libraries.update(EVERY_LIBRARY.split())
        if name == "src/link" and not path.name.startswith("verbs"):
            libraries.discard("verbs")
        return Rules(name, folders, libraries)
    return None


def fault_of(root, rules, own, header):
    """Why a file under `rules` may not include `header` (`own`: it stands in quotes), or None if it may."""
    if own:
        if rules.folder in OTHERS and (root / rules.folder / header).is_file():
            return None
        if not any((root / base / header).is_file() for base in ("src", "include")):
            return "is in neither src/ nor include/; name it from there"
        first = PurePosixPath(header).parts[0]
        if first == "trunkline":
            public = rules.folder in OTHERS or "comm" in rules.folders or header in PUBLIC_BASE
            return None if public else "is comm's, which this folder may not use"
        return None if first in rules.folders else f"is of {first}, which this folder may not use"
    library = library_of(header)
    if library is None:
        return "is of no library that the table knows"
    return None if library in rules.libraries else f"is of {library}, which this file may not use"


def faults(root):
    """One "FILE:LINE: ..." for each #include under `root` that the table does not allow, and the number of all."""
    found, count = [], 0
    for top in ("src", "include", *(name for name in OTHERS if "/" not in name)):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in {".h", ".hpp", ".inc", ".c", ".cc", ".cpp", ".cxx", ".m", ".mm"}:
                continue
            path = file.relative_to(root)
            rules = rules_for(path)
            if rules is None:
                found.append(f"{path}: lies in no folder of the table")
                continue
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                count += 1
                system, own, macro = match.groups()
                fault = "names a macro, not a header" if macro else fault_of(root, rules, own is not None, own or system)
                if fault:
                    found.append(f"{path}:{number}: #include {match[0].split('include', 1)[1].strip()} {fault}")
    return found, count


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found, count = faults(root)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{count} includes read, {len(found)} not allowed by the table in {Path(__file__).name} (docs/design.md, Folders)")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
