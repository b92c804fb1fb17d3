"""What tests of systems need of the machine: skipped without, unless all of it must be there."""

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn

import pytest


def go_without(reason: str) -> NoReturn:
    """Skip a test; where the variable ZINDEX_TEST_SYSTEMS is set, as in .ci/run, it fails."""
    if "ZINDEX_TEST_SYSTEMS" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def need_programs(programs: Sequence[str], packages: str) -> None:
    """Go without a test whose programs are not there."""
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [program for program in programs if shutil.which(program, path=places) is None]
    if missing:
        go_without(f"needs {' '.join(missing)}; install {packages}")
