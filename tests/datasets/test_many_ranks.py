"""Many ranks build and open the same blend: no collective, no rank that others cannot do without.

Each rank is a separate process.
"""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.cloud.servers import free_port
from tests.conftest import WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from tests.datasets.rank_process import summarize
from tests.forked import Forked
from zindex.datasets.gpt_dataset import GPTDataset

SIZES = [60, 20, None]


@pytest.fixture
def run_config(write_corpus: WriteCorpus, tmp_path: Path) -> dict[str, Any]:
    """Give the settings of a blend of three datasets without indices."""
    lengths = [[3, 5, 2, 7, 9, 4, 6, 30], [20, 1, 8, 14] * 4, [6] * 30]
    paths = [write_corpus(values, name=f"c{i}") for i, values in enumerate(lengths)]
    weights = [0.5, 0.2, 0.3]
    return {
        "blend_per_split": [[paths, weights], [paths[:2], None], [paths[2:], None]],
        "path_to_cache": str(tmp_path / "cache"),
        "index_takeover": 60.0,
        "index_timeout": 120.0,
        "max_computed_rows": 0,
    }


def expected(run_config: dict[str, Any], tmp_path: Path) -> list[Any]:
    """Return what one process alone gets, at another place."""
    config = plain_config(**(run_config | {"path_to_cache": str(tmp_path / "alone")}))
    return summarize(build_datasets(GPTDataset, SIZES, config))


class Ranks(ExitStack):
    """Processes that are always killed at the end of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Forked] = []

    def start(self, settings: dict[str, Any], *launcher: str, **variables: str) -> Forked:
        command = [*launcher, "-m", "tests.datasets.rank_process"]
        process = Forked(
            *(*command, json.dumps(settings | {"sizes": SIZES})),
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            forks=True,
        )
        self.processes.append(self.enter_context(process))
        return process

    def start_all(self, num_ranks: int, place: str, **settings: Any) -> None:
        for rank in range(num_ranks):
            own = {"rank": rank, "num_ranks": num_ranks, "init_method": place}
            self.start(settings | own)

    def start_under_agent(self, num_ranks: int, **settings: Any) -> None:
        """Start ranks as torchrun's agent does, which serves their store; this process is it."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(num_ranks):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": num_ranks,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": self.store.port,
                "TORCHELASTIC_USE_AGENT_STORE": True,
                "TORCHELASTIC_RESTART_COUNT": 0,
            }
            self.start(settings, **{name: str(value) for name, value in variables.items()})

    def outcome(self, rank: int) -> dict[str, Any]:
        """Return the last line that a rank says."""
        process = self.processes[rank]
        out, err = process.communicate()
        assert process.returncode == 0, err
        facts: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return facts


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks() as processes:
        yield processes


def meeting_place(kind: str, tmp_path: Path) -> str:
    """Return where ranks meet: a file, or a port that rank 0 serves."""
    if kind == "file":
        return f"file://{tmp_path}/meeting"
    return f"tcp://127.0.0.1:{free_port()}"


def some(quick: list[tuple[Any, ...]], *options: list[Any]) -> list[Any]:
    """Return all combinations; those that are not named are slow."""
    return [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.slow)
        for case in itertools.product(*options)
    ]


@pytest.mark.parametrize(
    ("num_ranks", "order"),
    some([(2, "megatron"), (4, "scalable")], [2, 4], ["megatron", "scalable"]),
)
def test_all_ranks_get_the_same(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, num_ranks: int, order: str
) -> None:
    config = run_config | {"order": order}
    absent = [2] if num_ranks == 4 else []
    ranks.start_all(num_ranks, f"file://{tmp_path}/meeting", config=config, absent=absent)
    wanted = expected(config, tmp_path)
    for rank in range(num_ranks):
        datasets = [None] * 3 if rank in absent else wanted
        assert ranks.outcome(rank) == {"rank": rank, "datasets": datasets}


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_torchrun(run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, num_ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    process = ranks.start({"config": run_config}, *launcher)
    wanted = expected(run_config, tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    said = [facts for facts in map(json.loads, out.splitlines()) if "joined" not in facts]
    assert sorted(said, key=lambda facts: facts["rank"]) == [
        {"rank": rank, "datasets": wanted} for rank in range(num_ranks)
    ]


@pytest.mark.parametrize(
    ("kind", "stop_after"), some([("file", 0), ("tcp", 9)], ["file", "tcp"], [0, 3, 9])
)
def test_a_rank_takes_over_from_a_killed_one(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, kind: str, stop_after: int
) -> None:
    config = run_config | {"index_takeover": 1.0}
    place = meeting_place(kind, tmp_path)
    ranks.start_all(3, place, config=config, stop_on=0, stop_after=stop_after, grace=0.5)
    builder = ranks.processes[0]
    assert json.loads(builder.stdout.readline()) == {"rank": 0, "joined": True}
    assert json.loads(builder.stdout.readline()) == {"midway": True}
    os.kill(builder.pid, signal.SIGKILL)
    wanted = expected(config, tmp_path)
    for rank in (1, 2):
        assert ranks.outcome(rank) == {"rank": rank, "datasets": wanted}
    assert builder.wait(200) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "wrong", "wrong_on"),
    some(
        [("tcp", "damaged", 0), ("file", "memory", 1)],
        ["file", "tcp"],
        ["damaged", "memory"],
        [0, 1, 2],
    ),
)
def test_a_failure_of_one_rank_is_an_error_on_all(
    run_config: dict[str, Any], ranks: Ranks, tmp_path: Path, kind: str, wrong_on: int, wrong: str
) -> None:
    place = meeting_place(kind, tmp_path)
    ranks.start_all(3, place, config=run_config, wrong_on=wrong_on, wrong=wrong)
    first = run_config["blend_per_split"][0][0][0]
    text = f"{first}.idx must be whole, it is cut short; copy it again"
    own = told = ("SourceError", text)
    if wrong == "memory":
        own, told = ("MemoryError", "no memory"), ("ZindexError", "MemoryError: no memory")
    for rank in range(3):
        facts = ranks.outcome(rank)
        if rank == wrong_on:
            assert facts == {"rank": rank, "kind": own[0], "error": own[1]}
        else:
            heard = {"kind": told[0], "error": f"rank {wrong_on}: {told[1]}"}
            assert facts == {"rank": rank} | heard


@pytest.mark.parametrize(
    ("kind", "num_ranks", "divergent_on"),
    some([("tcp", 2, 1), ("file", 4, 0)], ["file", "tcp"], [2, 4, 8], [0, 1]),
)
def test_ranks_with_different_blends_fail_together(
    run_config: dict[str, Any],
    ranks: Ranks,
    tmp_path: Path,
    kind: str,
    num_ranks: int,
    divergent_on: int,
) -> None:
    """Not one of them trains on data of its own."""
    paths, weights = run_config["blend_per_split"][0]
    train = [paths[:2], weights[:2]]
    divergent = {"blend_per_split": [train, *run_config["blend_per_split"][1:]]}
    place = meeting_place(kind, tmp_path)
    own = {"config": run_config, "divergent": divergent, "divergent_on": divergent_on}
    ranks.start_all(num_ranks, place, **own)
    for rank in range(num_ranks):
        facts = ranks.outcome(rank)
        assert facts["kind"] == "ConfigError", facts
        assert "they differ in the number of train.paths: rank" in facts["error"]
        assert f"rank {divergent_on} has 2" in facts["error"]
        assert "has 3" in facts["error"]
