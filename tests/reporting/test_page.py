"""Pages: well-formed, without network, safe with hostile names and texts, small."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from tests.indexing.runs import make_run
from tests.reporting.pages import HOSTILE, Page, hostile_run, make_hostile_page
from zindex.config import RunConfig
from zindex.plan.packing import PackingRules
from zindex.reporting.figures import measure_run
from zindex.reporting.page import make_page
from zindex.reporting.report import report

SECTIONS = ("overview", "mix", "datasets", "lengths", "order", "reads", "build", "samples")


def check(text: str) -> Page:
    """Check a page, and return it."""
    page = Page(text)
    assert set(page.tags) <= {
        *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section"),
        *("footer", "script", "h1", "h2", "h3", "p", "a", "b", "i", "em", "small", "span", "div"),
        *("br", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "figure"),
        *("figcaption", "svg", "line", "path", "rect", "article"),
    }
    assert page.tags.count("script") == page.tags.count("style") == 1
    names = {name for _, name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on") or name in ("src", "srcset")}
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    links = page.values("href")
    assert [link for link in links if link.startswith("#")] == links
    assert {link[1:] for link in links} == set(ids)
    outside = re.findall(r"https?://|url\(|@import|//[a-z]", text)
    assert not outside
    [policy] = [value for value in page.values("content") if "script-src" in value]
    assert policy.startswith("default-src 'none'")
    script = text[text.index("<script>") + 8 : text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert len(text.encode()) <= 1_000_000
    return page


def test_hostile_names_and_texts(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    text = make_hostile_page(tmp_path, write_corpus)
    page = check(text)
    assert page.values("id") == [*SECTIONS]
    assert HOSTILE.replace("/", ":") in page.texts
    assert any(each.startswith(HOSTILE) for each in page.texts)
    assert "<img" not in text
    assert not re.search("[\x00-\x08\u202e]", text)


def _unbuilt(config: RunConfig) -> RunConfig:
    return replace(config, packing=PackingRules(), samples={"train": 40, "valid": 0, "test": 0})


def test_pages_of_runs_of_every_kind(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    assert check(report(config).to_html()).values("id") == [*SECTIONS]
    apart = [replace(item, weight=None) for item in config.datasets]
    unblended = replace(config, datasets=tuple(apart))
    page = check(report(unblended).to_html())
    assert "reads" not in page.values("id")
    page = check(report(_unbuilt(config)).to_html())
    assert page.values("id") == ["overview", "mix", "datasets", "lengths", "build"]
    assert any("must be built to be asked" in text for text in page.texts)
    alone = replace(unblended, datasets=unblended.datasets[:1])
    assert "reads" in check(report(alone).to_html()).values("id")
    few = replace(config, samples={"train": 1, "valid": 0, "test": 0})
    check(report(few, num_shown=0).to_html())


def test_two_runs(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    other = replace(config, seed=7)
    text = report(config, other).to_html()
    page = check(text)
    assert page.values("id") == ["differences", *SECTIONS]
    assert any("of the common positions have another sample" in each for each in page.texts)
    colors = re.findall(r'class="f(\d)"', text)
    assert {"0", "1"} <= set(colors)
    same = check(report(config, config).to_html())
    assert any(each.startswith("No difference was found") for each in same.texts)
    page = check(report(config, _unbuilt(config)).to_html())
    assert any(each.startswith("The orders are not compared: ") for each in page.texts)


@pytest.mark.parametrize("num_datasets", [1, 21, 1000, 3000])
def test_many_datasets(num_datasets: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    found = measure_run(make_run(tmp_path, write_corpus))
    template = found.datasets[0]
    datasets = tuple(
        replace(template, name=f"{'n' * 150}-{number}", num_samples=10**9 - number, lengths=None)
        for number in range(num_datasets)
    )
    many = replace(found, datasets=datasets, mix=None)
    check(make_page([many]))
    text = make_page([many, many], "they are made up")
    page = check(text)
    assert page.values("class").count("sortable short") == (2 if num_datasets > 20 else 0)
    if num_datasets > 20:
        assert f"{num_datasets - 20:,} other dataset" in text
        assert ("more datasets are in the JSON" in text) == (num_datasets > 500)


def test_a_page_is_the_same_each_time(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = hostile_run(tmp_path, write_corpus, 500)
    assert report(config).to_html() == report(config).to_html()
