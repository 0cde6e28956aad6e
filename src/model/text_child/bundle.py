"""Runs the modules of this folder from SOURCES, where CMake puts their texts by name, before this one."""

import importlib.abc
import importlib.util
import sys


class Bundle(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in SOURCES else None  # noqa: F821

    def get_source(self, name):
        return SOURCES[name]  # noqa: F821

    def is_package(self, name):
        return name == "text_child"


sys.meta_path.insert(0, Bundle())

from text_child.serve import main  # noqa: E402, F401
