"""The programs of bench/ that run `trunkline bench`, on messages so small that only their form is looked at.

usage: bench_tools_test.py BUILD
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BUILD = sys.argv.pop()


def run(program, *arguments):
    command = [sys.executable, ROOT / "bench" / program, "--build", BUILD, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


class BenchTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_sweeps_draw_and_tell(self):
        options = ["--output", self.folder, "--min", "1K", "--max", "4K", "--large", "64K", "--iterations", "3,2"]
        options += ["--trunks", "1,2", "--lanes", "1,2", "--turns", "1"]
        names = ["figure6", "figure8", "figure9", "lanes"]
        done = run("sweep", *names, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in names:
            self.assertEqual(ElementTree.parse(self.folder / f"{name}.svg").getroot().attrib["width"], "860")
            self.assertIn("emulated", (self.folder / f"{name}.txt").read_text())
        rows = (self.folder / "figure6.txt").read_text().splitlines()[-3:]
        self.assertEqual([row.split()[0] for row in rows], ["1K", "2K", "4K"])
        self.assertTrue(all(float(cell) > 0 for row in rows for cell in row.split()[1:]))
        self.assertIn("measured earlier", done.stderr)  # figure8 shares figure6's runs

    def test_ratios_are_judged(self):
        file = self.folder / "ratios.json"
        options = ["--turns", "1", "--size", "64K", "--iterations", "3", "--rounds", "20", "--json", file]
        done = run("ratios", "6to1", "latency", "cost", *options)
        lines = json.loads(file.read_text())["lines"]
        self.assertEqual(len(lines), 8, done.stderr)
        for line in lines:
            least = line["direction"] == "at least"
            reached = line["measured"] >= line["asked"] if least else line["measured"] <= line["asked"]
            self.assertEqual(line["reached"], reached)
            self.assertIn(line["what"], done.stdout)
        self.assertEqual(done.returncode, 0 if all(line["reached"] for line in lines) else 1)

    def test_table6_stands_beside_the_paper(self):
        file = self.folder / "table6.json"
        options = ["--nodes", "2", "--iterations", "1", "--scales", "1/2000:1/100", "--layers", "1", "--rows", "1", "--tokens", "8"]
        done = run("table6", *options, "--json", file)
        self.assertIn("Emulated computation (a timer), t = 0.0005, k = 0.01", done.stdout, done.stderr)
        self.assertIn("Real computation on", done.stdout)
        emulated, real = json.loads(file.read_text())["tables"]
        self.assertEqual([(row["nodes"], row["cables_a_pair"]) for row in emulated["rows"]], [(1, 0), *2 * [(2, 1), (2, 2), (2, 3), (2, 6)]])
        self.assertTrue(all(row["emulated_computation"] for row in emulated["rows"]))
        self.assertFalse(any(row["emulated_computation"] for row in real["rows"]))
        by_row = {(row["nodes"], row["cables_a_pair"], row["overlap"]): row["iteration_s"] for row in emulated["rows"]}
        efficient = by_row[1, 0, True] / by_row[2, 6, True] >= 0.97
        after = [by_row[2, cables, False] for cables in (1, 2, 3, 6)]
        ordered = after == sorted(set(after), reverse=True)
        self.assertEqual("asked: yes" in done.stdout, efficient)
        self.assertEqual("(6 pairs): yes" in done.stdout, ordered)
        self.assertEqual(done.returncode, 0 if efficient and ordered else 1)

    def test_whole_graph_is_judged(self):
        shape = ROOT / "tests/golden/llama-smol/model/config.json"
        options = ["3x8", "--pairs", "2", "--shape", shape, "--optimizer", "sgd"]
        done = run("whole_graph", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = done.stdout.splitlines()[-1].split()
        self.assertEqual(cells[:3], ["3", "x", "8"])
        self.assertTrue(all(float(cell) > 0 for cell in cells[3:8]))
        self.assertEqual(run("whole_graph", *options, "--least", "1000").returncode, 1)
        missing = run("whole_graph", "--shape", self.folder / "none.json")
        self.assertIn("none.json: No such file", missing.stderr)
        self.assertEqual(missing.returncode, 1)

    def test_overlap_is_judged(self):
        file = self.folder / "overlap.json"
        options = ["--turns", "1", "--iterations", "1", "--mb", "1", "--backward", "0.02", "--layers", "1", "--tokens", "8"]
        done = run("overlap", *options, "--json", file)
        runs = json.loads(file.read_text())
        good = [runs[kind][0]["hidden_s"] >= 0.9 * runs[kind][0]["hideable_s"] for kind in ("emulated", "real")]
        self.assertEqual(done.stdout.count("asked: yes"), sum(good), done.stderr)
        self.assertEqual(done.returncode, 0 if all(good) else 1)
        [sharded] = runs["sharded"]
        self.assertTrue(sharded["shard_optimizer"])
        self.assertIn(f"median {100 * sharded['gather_hidden_fraction']:.1f} %\n", done.stdout)

    def test_a_failed_run_is_told(self):
        done = run("ratios", "6to1", "--size", "nonsense")
        self.assertEqual(done.returncode, 1)
        self.assertIn("6to1: did not run", done.stdout)
        self.assertIn("is not a size", done.stderr)

    def test_peers_say_what_they_would_run(self):
        done = run("tcp_peers", "--dry-run", "--turns", "1", "--sizes", "4096", "--peers", "mlx")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mlx_allreduce.py 4096", done.stderr)


if __name__ == "__main__":
    unittest.main()
