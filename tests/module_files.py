"""Modules from files that are not on the path, such as those of a checkout of Megatron-LM."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(name: str, path: str | Path) -> ModuleType:
    """Import a file as the module of a name, which need not be that of the file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
