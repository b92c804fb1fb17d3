"""Pages in a headless browser: scripts run, hostile ones do not, both themes, narrow and wide."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.reporting.browser import browse
from tests.reporting.pages import Page, make_hostile_page
from zindex.reporting.page import DOCTYPE

# Colors of the page in the light and the dark theme; see page.css.
PAGES = {"light": (246, 247, 249), "dark": (18, 22, 28)}


def _write_page(folder: Path, write_corpus: WriteCorpus) -> Path:
    place = folder / "report.html"
    place.write_text(make_hostile_page(folder, write_corpus))
    return place


def test_scripts(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    page = _write_page(tmp_path, write_corpus)
    text = browse(page, "--dump-dom")
    assert text.startswith(DOCTYPE)
    before, after = Page(page.read_text()), Page(text)
    assert "button" not in before.tags
    # The headers of the table of datasets became buttons; the policy allows this script only.
    assert after.tags.count("button") == 9
    assert "<title>zindex report: " in text
    assert "img" not in after.tags


def test_pictures(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    image: Any = pytest.importorskip("PIL.Image", reason="needs the extra 'streaming'")
    page, picture = _write_page(tmp_path, write_corpus), tmp_path / "page.png"
    for theme, width in (("light", 400), ("dark", 400), ("light", 1280)):
        scheme = f"--blink-settings=preferredColorScheme={int(theme == 'light')}"
        browse(page, scheme, f"--window-size={width},3000", f"--screenshot={picture}")
        pixels = np.asarray(image.open(picture).convert("RGB"))
        assert pixels.shape == (3000, width, 3)
        # Nothing is wider than the page: below the bar of links, the margin has its color.
        assert (pixels[300:, -8:] == np.array(PAGES[theme])).all()
        # Something is drawn in every part of the page.
        for part in np.array_split(pixels[:2400], 6):
            assert (part != np.array(PAGES[theme])).any(-1).mean() > 0.05
