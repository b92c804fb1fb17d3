"""Build the guides and the reference into ``.reference/``; a warning is an error."""

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from tests.reference.schemas import ROOT, make_page

HERE = Path(__file__).parent

if __name__ == "__main__":
    (HERE / "yaml.md").write_text(make_page(), encoding="utf-8")
    folders = ["-c", str(HERE), str(ROOT), str(ROOT / ".reference")]
    sys.exit(build_main(["-q", "-W", "--keep-going", *folders]))
