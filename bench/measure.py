"""Runs of `trunkline bench` for the programs beside this file."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from chart import size_text  # noqa: E402, F401: for those who import this

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def add_options(parser):
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build/release", help="folder of the programs (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands instead of running them")


def machine():
    """This machine in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.system()} {platform.release()}"


def say(text=""):
    print(text, file=sys.stderr, flush=True)


class Failed(Exception):
    """A program that ended badly; the text has what it said."""


def run(command, timeout=1200, **more):
    """A command's standard output."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, **more)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Failed(f"{' '.join(map(str, command))}\n{error}") from error
    if done.returncode != 0:
        raise Failed(f"exit {done.returncode} from: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Bench:
    """`trunkline bench` on ranks of this machine."""

    def __init__(self, options):
        self.build = options.build
        self.dry_run = options.dry_run
        if not (self.build / "trunkline").exists():
            sys.exit(f"{Path(sys.argv[0]).name}: there is no {self.build / 'trunkline'}: ./run build, or --build DIR")

    def rows(self, collective, ranks, *flags, cables=None):
        """The lines of JSON of one run. cables: a SPEC as for --cables; None: TCP on loopback."""
        program = self.build / "trunkline"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows"
            command = [program, "launch", "-n", ranks]
            if cables is not None:
                command += ["--cables", cables]
            command += ["--", program, "bench", collective, *flags]
            say("  " + " ".join(map(str, command)).replace(str(program), "trunkline"))
            if self.dry_run:
                return []
            run([*command, "--json", file])
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        if cables is not None and any(cable["id"] == "tcp" for row in rows for cable in row["cables"]):
            raise Failed(f"{' '.join(map(str, command))}\nran over TCP, not over cables")
        return rows

    def row(self, *arguments, **more):
        """Of a run of one size."""
        rows = self.rows(*arguments, **more)
        return rows[0] if rows else None

    def stream(self, *flags):
        """What the emulated fabric does with no protocol above it."""
        command = [self.build / "fabric_stream", "--json", *flags]
        say("  " + " ".join(["fabric_stream", *map(str, command[1:])]))
        return None if self.dry_run else json.loads(run(command))


def median(values):
    return statistics.median(values)


def spec(count, more=""):
    """A SPEC of so many cables; more: "gbps=10,delay_us=5"."""
    return f"{count}:{more}" if more else f"{count}"


def table(rows):
    """Rows of texts as aligned columns, the first row a head."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]

    def line(row):
        first, *rest = map(str, row)
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:])]
        return "  ".join([first.ljust(widths[0]), *cells]).rstrip()

    return "\n".join(map(line, rows))
