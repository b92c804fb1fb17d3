"""What steps saw: the samples of runs of every kind, their texts, screens and refusals."""

import json
from pathlib import Path

import pytest

import zindex
from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus, numbers
from tests.forked import run_fresh
from tests.indexing.runs import make_config, make_run
from tests.inspection.answers.brute_force import KINDS, draw_run
from tests.inspection.answers.test_info import write_yaml
from zindex.errors import ConfigError, PlanError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers import run_order
from zindex.inspection.answers import trace as trace_module
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.answers.trace import trace
from zindex.plan.packing import PackingRules


class Numbers:
    """A tokenizer whose text is the numbers."""

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


@pytest.mark.parametrize("seed", numbers(1, 12))
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_ranks(kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, seed + 100, tmp_path, write_corpus)
    order = RunOrder(run.config, run.split)
    for rank in range(2):
        found = trace(
            order, 1, rank=rank, num_ranks=2, global_batch_size=8, micro_batch_size=2,
            tokenizer=Numbers(),
        )  # fmt: skip
        positions = [8 + 2 * rank, 9 + 2 * rank, 12 + 2 * rank, 13 + 2 * rank]
        assert [sample.position for sample in found.samples] == positions
        for sample in found.samples:
            wanted = run.samples[sample.position]
            assert (sample.step, sample.rank) == (1, rank)
            assert (sample.dataset_id, sample.epoch) == (wanted.dataset, wanted.epoch)
            assert sample.dataset == order.paths[wanted.dataset]
            texts = " ".join(str(part.text) for part in sample.parts)
            assert {int(word) for word in texts.split()} == wanted.held
        assert all(len(line) <= 80 for line in found.to_lines())
        assert json.loads(json.dumps(found.to_json()))["samples"][0]["position"] == positions[0]


def test_positions(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    one = trace(config, position=7).samples
    assert one == trace(config, position=range(5, 9)).samples[2:3]
    assert one == trace(config, position=(7, 8)).samples
    assert (one[0].step, one[0].rank) == (None, None)
    halves = [
        trace(config, position=(3, 9), rank=rank, num_ranks=2, micro_batch_size=1).samples
        for rank in range(2)
    ]
    assert [[sample.position for sample in half] for half in halves] == [[4, 6, 8], [3, 5, 7]]
    many = trace(config, position=(0, 40))
    assert "more parts; --json lists all" in many.to_lines()[-1]


def test_refusals(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus)
    with pytest.raises(ConfigError, match=r"needs step .* or position .*, one of the two"):
        trace(config)
    with pytest.raises(ConfigError, match=r"needs step .* or position .*, one of the two"):
        trace(config, 1, position=3)
    with pytest.raises(ConfigError, match="needs the size of batches, got none"):
        trace(config, 1)
    with pytest.raises(
        PlanError, match=r"must lie in \[0, 40\), the samples of train, got \[40, 4"
    ):
        trace(config, 10, global_batch_size=4)
    with pytest.raises(PlanError, match=r"must lie in \[0, 40\), .* got \[4, 4\); name some"):
        trace(config, position=(4, 4))
    for question in ({"position": (0, 10**15)}, {"step": 0, "global_batch_size": 10**15}):
        with pytest.raises(PlanError, match=r"must lie in \[0, 40\), .* got \[0, 1,000,000,0"):
            trace(config, **question)
    with pytest.raises(ConfigError, match=r"a rank must be in \[0, 2\), got 5; give the number"):
        trace(config, position=(3, 9), rank=5, num_ranks=2, micro_batch_size=1)
    with pytest.raises(ConfigError, match=r"rank 0 must take some .*, it takes none of \[7, 8\)"):
        trace(config, position=7, rank=0, num_ranks=2, micro_batch_size=1)
    with pytest.raises(ConfigError, match="split must be one of train, valid, test, got 'dev'"):
        trace(config, position=4, split="dev")
    with pytest.raises(ConfigError, match="must have detokenize or decode, got object"):
        trace(config, position=4, tokenizer=object())
    monkeypatch.setattr(trace_module, "MAX_POSITIONS", 8)
    with pytest.raises(ConfigError, match="at most 8 positions, got 9; name fewer"):
        trace(config, position=(0, 9))
    apart = make_config(tmp_path, *(item.path for item in config.datasets))
    with pytest.raises(PlanError, match="must be a blend or one dataset to have an order, got 2"):
        trace(apart, position=0)


def test_what_is_not_built(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = make_run(tmp_path, write_corpus, packing=PackingRules())
    with pytest.raises(StoreNotFoundError, match="index of web train packed must be built to be"):
        trace(packed, position=0)
    config = make_run(tmp_path, write_corpus)
    computed = trace(config, position=(0, 40))
    assert not Path(config.index).exists()
    monkeypatch.setattr(run_order, "MAX_COMPUTED_ROWS", 10)
    with pytest.raises(StoreNotFoundError, match="index of web train must be built to be asked"):
        trace(config, position=0)
    zindex.build(config, SerialExecutor())
    assert trace(config, position=(0, 40)) == computed


def test_commands_need_no_torch(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    code = (
        f"import sys, zindex; zindex.trace({str(run_file)!r}, position=3)\n"
        "print({'dask', 'distributed', 'numba', 'torch', 'xarray', 'zarr'} & {*sys.modules})"
    )
    assert run_fresh("-c", code, check=True).stdout.splitlines()[-1] == "set()"
    wanted = trace(config, 2, global_batch_size=8, num_ranks=4, rank=1)
    options = ("--step", 2, "--global-batch-size", 8, "--ranks", 4, "--rank", 1)
    assert json.loads(succeed("trace", run_file, *options, "--json")) == json.loads(
        json.dumps(wanted.to_json())
    )
    printed = succeed("trace", run_file, "--position", "3:5")
    assert printed.startswith("train, positions [3, 5): 2 samples\n")
    line = fail("trace", run_file, "--position", "3-5")
    assert line.startswith("Error: --position must be START:STOP, such as 120000:124000, got 3-5")
