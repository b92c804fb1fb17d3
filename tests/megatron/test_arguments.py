"""Megatron's command lines, and what Megatron itself would make of them."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zindex.errors import ConfigError
from zindex.megatron.prepare import as_config, parse_arguments

BASE = "--seq-length 16 --train-iters 100 --global-batch-size 8 --data-cache-path cache "


def parse(text: str, **settings: Any) -> Any:
    """Parse a command line."""
    return parse_arguments(text.split(), **settings)


def test_a_whole_command_line_with_its_launcher() -> None:
    found = parse(
        "torchrun --nproc-per-node 8 --data-path no pretrain_gpt.py --lr 1e-4 --bf16 "
        "--data-path 0.3 a 0.7 b --split 90,10,0 --seed 7 --tokenizer-type NullTokenizer "
        "--eval-interval=30 --eval-iters 5 --no-mmap-bin-files " + BASE
    )
    assert found.kind == "gpt"
    assert found.blend == (["a", "b"], [0.3, 0.7])
    assert found.blend_per_split is None
    assert found.sizes == ((800, 4 * 5 * 8, 5 * 8),)
    config = as_config(found, Tokenizer())
    assert (config.random_seed, config.sequence_length, config.split) == (7, 16, "90,10,0")
    assert config.path_to_cache == "cache"
    assert config.mmap_bin_files is False


class Tokenizer:
    """What configurations ask for."""

    vocab_size = 9
    pad = -1
    eod = cls = sep = mask = bos = eos = 0
    inv_vocab: dict[int, str] = {}  # noqa: RUF012
    additional_special_tokens_ids = (1,)
    unique_identifiers: dict[str, str] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("script", "kind"),
    [("pretrain_gpt.py", "gpt"), ("x/pretrain_bert.py", "bert"), ("pretrain_t5.py", "t5")],
)
def test_kind_is_the_scripts(script: str, kind: str) -> None:
    line = f"{script} {BASE} --data-path a --decoder-seq-length 9 --bert-no-binary-head"
    assert parse(line).kind == kind
    assert parse(line, kind="bert").kind == "bert"
    config = as_config(parse(line), Tokenizer())
    assert type(config).__module__ == f"zindex.datasets.{kind}_{'config' * (kind == 'gpt')}" + (
        "dataset" * (kind != "gpt")
    )
    if kind == "bert":
        assert (config.classification_head, config.masking_max_ngram) == (False, 3)
    if kind == "t5":
        assert (config.sequence_length_decoder, config.masking_max_ngram) == (9, 10)


def test_split_has_megatrons_default() -> None:
    assert parse(f"x.py {BASE} --data-path a").split == "969, 30, 1"
    assert parse(f"x.py {BASE} --train-data-path a").split is None


def test_data_of_each_split(tmp_path: Path) -> None:
    own = [(["a"], None), (["b", "c"], [1.0, 2.0]), None]
    found = parse(f"x.py {BASE} --train-data-path a --valid-data-path 1 b 2 c")
    assert found.blend_per_split == own
    path = tmp_path / "paths.json"
    path.write_text(json.dumps({"train": "a", "valid": ["1", "b", "2", "c"], "test": None}))
    assert parse(f"x.py {BASE} --per-split-data-args-path {path}").blend_per_split == own
    text = tmp_path / "paths.txt"
    text.write_text("0.5 a\n0.5 b\n")
    assert parse(f"x.py {BASE} --data-args-path {text}").blend == (["a", "b"], [0.5, 0.5])


def test_sizes() -> None:
    line = "x.py --data-path a --seq-length 4 --global-batch-size 10 --eval-iters 2 "
    assert parse(line + "--train-iters 1000").sizes == ((10000, 40, 20),)
    assert parse(line + "--train-samples 10009").sizes == ((10009, 40, 20),)
    assert parse(line + "--train-iters 1000 --full-validation").sizes == ((10000, None, 20),)
    assert parse(line + "--train-iters 1000 --eval-global-batch-size 3").sizes == ((10000, 12, 6),)
    phases = parse(line + "--train-iters 1000 --phase-transition-iterations 100,700").sizes
    assert phases == ((1000, 40, 20), (6000, 40, 20), (3000, 40, 20))


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(40))
def test_iterations_of_a_growing_batch(number: int) -> None:
    """Against Megatron's own calculator, walked as its training walks it."""
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    draw = np.random.default_rng(number)
    first, step, num_steps = (int(draw.integers(1, 9)) for _ in range(3))
    batch_size, ramp = first + step * num_steps, int(draw.integers(1, 2000))
    samples = int(draw.integers(1, 5000))
    calculator = RampupBatchsizeNumMicroBatchesCalculator(
        rank=0,
        global_batch_size=batch_size,
        micro_batch_size=1,
        data_parallel_size=1,
        decrease_batch_size_if_needed=False,
        start_global_batch_size=first,
        batch_size_increment=step,
        ramup_samples=ramp,
    )
    consumed = iterations = 0
    while consumed <= ramp:
        calculator.update(consumed, consistency_check=False)
        consumed += calculator.get_current_global_batch_size()
        iterations += 1
    if samples > consumed:
        iterations += (samples - consumed) // batch_size
    found = parse(
        f"x.py --data-path a --train-samples {samples} --global-batch-size {batch_size} "
        f"--rampup-batch-size {first} {step} {ramp} --eval-interval 1 --eval-iters 1"
    )
    assert found.sizes == ((samples, (iterations + 1) * batch_size, batch_size),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--data-path a --train-data-path b", "data must be named in one way, got --data-path and"),
        ("", "data must be named in one way, got none; give one of --data-path;"),
        ("--data-path a --mock-data", "a training with --mock-data has no index to prepare"),
        ("--data-path a --sft", "a training with --sft has no index to prepare"),
        ("--data-path a --yaml-cfg x", "a training with --yaml-cfg has no index"),
        ("--data-path a --dataloader-type external", "--dataloader-type external has no index"),
        ("--data-path a --train-samples 5", "by --train-iters or by --train-samples, got both"),
        ("--data-path a --seed x", "must be as for the training script: argument --seed: invalid"),
        ("--data-path a --rampup-batch-size 1 1 1", "must come with --train-samples, got"),
        ("--data-path a --phase-transition-iterations 9,x", "must be whole numbers with commas"),
        ("--data-path a --phase-transition-iterations 200", "within the training of 100 iter"),
    ],
)
def test_jobs_that_cannot_be_prepared(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(f"x.py {BASE} {line}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--train-iters 5", "--global-batch-size must be given, got none"),
        ("--global-batch-size 5", "by --train-iters or by --train-samples, got neither"),
        (
            "--global-batch-size 5 --train-samples 9 --rampup-batch-size 2 2 9",
            "a step that leads from it to --global-batch-size 5, and samples, got ['2', '2', '9']",
        ),
    ],
)
def test_sizes_that_cannot_be_known(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(f"x.py --data-path a {line}")


def test_lengths_must_be_given() -> None:
    line = "--data-path a --train-iters 5 --global-batch-size 1"
    with pytest.raises(ConfigError, match="--seq-length must be given, got none"):
        as_config(parse(f"x.py {line}"), Tokenizer())
    with pytest.raises(ConfigError, match="--decoder-seq-length must be given for T5"):
        as_config(parse(f"pretrain_t5.py {line} --seq-length 8"), Tokenizer())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"must be JSON, got .*; write a list of paths for each split"),
        ('{"train": "a"}', "must have the keys train, valid, test, it lacks valid, test; write"),
        ("[]", "must have the keys train, valid, test, it lacks train, valid, test"),
    ],
)
def test_files_of_paths_are_checked(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "paths.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        parse(f"x.py {BASE} --per-split-data-args-path {path}")
