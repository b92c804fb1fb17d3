"""Sphinx settings of the reference; ``python -m tests.reference`` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

project = "zindex"
root_doc = "tests/reference/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "zindex/*/README.md",
    "cluster/README.md",
    "cluster/*/README.md",
    "tests/benchmarks/README.md",
    "tests/reference/*.md",
]
exclude_patterns = [".*", "**/.*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_heading_anchors = 3
# GitHub renders links to folders and anchors of its own kind; Sphinx cannot check these.
suppress_warnings = ["myst.xref_missing", "myst.header"]
default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
html_theme = "furo"
html_title = "zindex"
