"""Random numbers of one key, and texts with their middles moved."""

from pathlib import Path

import numpy as np
import pytest

from tests.text.small_tokenizer import save_tokenizer
from zindex.datasets.fim_dataset import GPTFIMDatasetConfig
from zindex.datasets.text_tokenizers import MegatronTokenizerText
from zindex.plan.keys import fill_key
from zindex.samples.fim import MiddleFiller, RandomStream

GOLDEN = [139, 576, 87, 866]


def test_random_numbers_are_stable() -> None:
    draws = RandomStream(fill_key(1234, "train", 5))
    assert [draws.below(1000) for _ in range(4)] == GOLDEN
    again = RandomStream(fill_key(1234, "train", 5))
    assert [again.draw(0.5) for _ in range(4)] == [value < 500 for value in GOLDEN]


def test_random_numbers_are_uniform() -> None:
    draws = RandomStream(np.array([1, 2], np.uint64))
    counts = np.bincount([draws.below(5) for _ in range(5000)], minlength=5)
    assert counts.min() > 900
    assert sum(draws.draw(0.3) for _ in range(5000)) == pytest.approx(1500, abs=150)
    assert not any(draws.draw(0.0) for _ in range(100))
    assert all(draws.draw(1.0) for _ in range(100))


def test_keys_differ_by_seed_split_and_sample() -> None:
    keys = {
        tuple(fill_key(seed, split, sample).tolist())
        for seed in (1, 2)
        for split in ("train", "valid")
        for sample in (0, 1, 2**40)
    }
    assert len(keys) == 12


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_a_tokenizer_of_zindex(tmp_path: Path, spm_rate: float) -> None:
    tokenizer = MegatronTokenizerText(str(save_tokenizer(tmp_path)))
    special = {"prefix": "<|im_start|>", "middle": "<|im_end|>", "suffix": "<bod>"}
    config = GPTFIMDatasetConfig(
        random_seed=1,
        sequence_length=8,
        split="1",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        tokenizer=tokenizer,
        fim_rate=1.0,
        fim_spm_rate=spm_rate,
        fim_extra_tokens=special | {"pad": "<eod>", "eod": "<eod>"},
    )
    filler = MiddleFiller(config)
    text = "def f(x):\n    return xü"
    for number in range(10):
        draws = RandomStream(np.array([number, 1], np.uint64))
        filled = filler.permute(np.array(tokenizer.tokenize(text)), 1.0, draws)
        read = tokenizer._tokenizer.tokenizer.decode(filled.tolist(), skip_special_tokens=False)
        assert read.startswith("<|im_start|>")
        body, middle = read.removeprefix("<|im_start|>").split("<|im_end|>")
        prefix, suffix = body.split("<bod>")
        if spm_rate:  # then the prefix precedes the middle
            assert prefix == ""
            assert middle + suffix == text
        else:
            assert prefix + middle + suffix == text
