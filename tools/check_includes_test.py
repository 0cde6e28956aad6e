#!/usr/bin/env python3
"""Tests of check_includes.py: it must fail on what the table forbids and pass what it allows."""

import tempfile
import unittest
from pathlib import Path

import check_includes


class CheckIncludes(unittest.TestCase):
    def faults(self, path, include):
        """The faults of a tree that has one file with one include, beside headers of several folders."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for header in ("src/base/file.h", "src/link/link.h", "src/comm/trunk.h", "src/train/step.h",
                           "include/trunkline/error.h", "include/trunkline/group.h", "tests/cases/case.h"):
                (root / header).parent.mkdir(parents=True, exist_ok=True)
                (root / header).touch()
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"// A comment.\n#include {include}\n", encoding="utf-8")
            found, count = check_includes.faults(root)
            self.assertEqual(count, 1)
            return found

    def allowed(self, path, *includes):
        for include in includes:
            self.assertEqual(self.faults(path, include), [])

    def refused(self, path, *includes):
        for include in includes:
            found = self.faults(path, include)
            self.assertEqual(len(found), 1, f"{path} may include {include}")
            self.assertTrue(found[0].startswith(f"{path}:2: #include {include} "), found)

    def test_folders(self):
        self.allowed("src/comm/a.cc", '"base/file.h"', '"link/link.h"', '"comm/trunk.h"', '"trunkline/group.h"')
        self.refused("src/comm/a.cc", '"train/step.h"')
        self.refused("src/base/a.h", '"link/link.h"', '"comm/trunk.h"')

    def test_public_headers(self):
        self.allowed("src/base/a.cc", '"trunkline/error.h"')
        self.refused("src/base/a.cc", '"trunkline/group.h"')
        self.refused("src/model/a.cc", '"trunkline/group.h"')
        self.allowed("src/train/a.cc", '"trunkline/group.h"')
        self.allowed("include/trunkline/a.h", '"trunkline/error.h"', "<vector>")
        self.refused("include/trunkline/a.h", '"base/file.h"', "<fmt/format.h>")
        self.allowed("examples/a.cc", '"trunkline/group.h"')
        self.refused("examples/a.cc", '"comm/trunk.h"')

    def test_libraries(self):
        self.allowed("src/comm/a.cc", "<hwy/highway.h>", "<fmt/format.h>", "<span>")
        self.refused("src/comm/a.cc", "<mlx/mlx.h>", "<nlohmann/json.hpp>", "<unistd.h>", "<sys/socket.h>", "<stdint.h>")
        self.allowed("src/train/a.cc", "<mlx/mlx.h>", "<nlohmann/json.hpp>")
        self.refused("src/train/a.cc", "<CLI/CLI.hpp>", "<yaml-cpp/yaml.h>", "<boost/asio.hpp>")

    def test_verbs_headers_are_for_verbs_files_and_the_fabric(self):
        self.allowed("src/link/verbs_link.cc", "<infiniband/verbs.h>")
        self.allowed("src/fabric/device.cc", "<infiniband/verbs.h>")
        self.refused("src/link/tcp_link.cc", "<infiniband/verbs.h>")
        self.refused("tests/a_test.cc", "<infiniband/verbs.h>")

    def test_tests_may_use_what_lies_above(self):
        self.allowed("src/link/a_test.cc", "<gtest/gtest.h>", "<gmock/gmock.h>", '"comm/trunk.h"', '"train/step.h"')
        self.allowed("src/comm/a_test.cc", "<sys/wait.h>")
        self.refused("src/comm/a.cc", "<gtest/gtest.h>")
        self.allowed("tests/cases/a_test.cc", '"cases/case.h"')
        self.refused("src/train/a_test.cc", '"cases/case.h"')
        self.allowed("tests/a_test.cc", '"base/file.h"', '"train/step.h"', "<mlx/mlx.h>", "<gtest/gtest.h>")

    def test_what_cannot_be_judged(self):
        self.refused("src/comm/a.cc", "HEADER", '"comm/absent.h"', '"trunk.h"')
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "src/new").mkdir(parents=True)
            (Path(folder) / "src/new/a.h").touch()
            self.assertEqual(check_includes.faults(Path(folder)), (["src/new/a.h: lies in no folder of the table"], 0))

    def test_the_table_leans_one_way(self):
        names = [name.removeprefix("src/") for name in check_includes.FOLDERS]
        for at, line in enumerate(check_includes.FOLDERS.values()):
            self.assertLessEqual(set(line.uses.split()), set(names[:at]))


if __name__ == "__main__":
    unittest.main()
