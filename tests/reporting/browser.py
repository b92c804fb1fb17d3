"""A headless Chromium that opens files."""

import shutil
import subprocess
from pathlib import Path

from tests.cluster.systems.needs import go_without

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def browse(page: Path, *options: str) -> str:
    """Open a page and return what the browser prints; a line of the console is an error."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        go_without("needs a browser; install chromium-headless-shell")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    private = f"--user-data-dir={page.parent / 'profile'}"
    logged = ("--enable-logging=stderr", "--virtual-time-budget=3000", "--hide-scrollbars")
    arguments = [program, *flags, private, *logged, *options, page.as_uri()]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout
