"""Batches of records that were read one by one."""

import torch

from zindex.keyed import dpo_collate_fn, grpo_collate_fn


def test_d9_prompts_are_filled_up_on_the_left() -> None:
    def group(prompt: list[int], responses: list[list[int]]) -> dict[str, object]:
        return {
            "prompts": torch.tensor(prompt),
            "responses": [torch.tensor(item) for item in responses],
            "masks": [torch.ones(len(item), dtype=torch.bool) for item in responses],
            "rewards": torch.arange(len(responses), dtype=torch.float32),
        }

    items = [group([1, 2, 3], [[4, 5], [6]]), group([10, 11], [[7, 8, 9, 9], [5]])]
    batch = grpo_collate_fn(items)
    assert batch["prompts"].tolist() == [[1, 2, 3], [0, 10, 11]]
    assert batch["prompt_mask"].tolist() == [[True, True, True], [False, True, True]]
    assert batch["responses"].shape == batch["masks"].shape == (2, 2, 4)
    assert batch["responses"][0].tolist() == [[4, 5, 0, 0], [6, 0, 0, 0]]
    assert batch["masks"][1].tolist() == [[True] * 4, [True, False, False, False]]
    assert batch["group_mask"].all()


def test_a_batch_of_nothing() -> None:
    assert {name: tuple(value.shape) for name, value in dpo_collate_fn([]).items()} == {
        "chosen": (0, 0),
        "chosen_mask": (0, 0),
        "rejected": (0, 0),
        "rejected_mask": (0, 0),
    }
    assert grpo_collate_fn([])["responses"].shape == (0, 0, 0)
