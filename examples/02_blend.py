"""Blend three corpora by weight, in both orders, and compare how closely they follow the weights.

    python examples/02_blend.py

The corpora are those of the quickstart. A run with weights is built in Megatron Core's order and in
the scalable order, opened for training, and the share of each dataset over the run is plotted.
"""

import argparse
import textwrap
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import zindex
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.inspection.tables.plan_table import report_run

quickstart = import_module("01_quickstart")  # in the same folder

SEED, SEQUENCE_LENGTH, SPLIT = 1234, 128, "100,0,0"
WEIGHTS = {"code": 0.7, "docstrings": 0.2, "reference": 0.1}
ORDERS = ("megatron", "scalable")
COLORS = {"code": "#0072b2", "docstrings": "#d55e00", "reference": "#009e73"}


def write_run(run_file: Path, order: str, num_samples: int) -> None:
    """Write the YAML file of a run that blends the corpora in an order."""
    datasets = "".join(
        f"  - {{path: corpora/{name}.zarr, weight: {weight}}}\n" for name, weight in WEIGHTS.items()
    )
    run_file.write_text(
        f"sequence_length: {SEQUENCE_LENGTH}\nseed: {SEED}\nsplit: {SPLIT!r}\norder: {order}\n"
        f"index: index\nsamples: {{train: {num_samples}}}\ndatasets:\n{datasets}"
    )


def open_blend(folder: Path, order: str, num_samples: int, tokenizer: Any) -> BlendedDataset:
    """Return the blend as a training job opens it; its index is found by ``path_to_cache``."""
    paths = [str(folder / "corpora" / f"{name}.zarr") for name in WEIGHTS]
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE_LENGTH,
        blend=(paths, list(WEIGHTS.values())),
        split=SPLIT,
        path_to_cache=str(folder / "index"),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        order=order,
    )
    sizes = (num_samples, 0, 0)
    train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return train


def check_blend(blend: BlendedDataset) -> None:
    """Check that each dataset has its share, and that no sample is repeated."""
    datasets, samples = blend.dataset_index[:], blend.dataset_sample_index[:]
    for dataset, weight in enumerate(WEIGHTS.values()):
        drawn = np.sort(samples[datasets == dataset])
        assert abs(len(drawn) - weight * len(blend)) <= 1, f"{len(drawn)} of {len(blend)}"
        assert np.array_equal(drawn, np.arange(len(drawn)))


def count_drawn(blend: BlendedDataset) -> npt.NDArray[np.int64]:
    """Return the samples of each dataset in the first 1, 2, ... positions."""
    is_drawn = blend.dataset_index[:, None] == np.arange(len(WEIGHTS))
    return np.cumsum(is_drawn, axis=0, dtype=np.int64)


def print_shares(counts: dict[str, npt.NDArray[np.int64]]) -> None:
    """Print the share of each dataset after 1, 10, 100, ... samples."""
    print(f"{'':>10}" + "".join(f"{order:^36}" for order in counts))
    print(f"{'samples':>10}" + "".join(f"{name:>12}" for name in WEIGHTS) * len(counts))
    shortest = min(map(len, counts.values()))
    for number in (*(10**k for k in range(len(str(shortest - 1)))), None):
        rows = [drawn[-1 if number is None else number - 1] for drawn in counts.values()]
        shares = "".join(f"{share:12.4f}" for row in rows for share in row / row.sum())
        print(f"{'all' if number is None else f'{number:,}':>10}{shares}")


def plot_shares(counts: dict[str, npt.NDArray[np.int64]], path: Path) -> None:
    """Plot the share of each dataset over the run, both orders side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    weights = np.array(list(WEIGHTS.values()))
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.6), sharey=True, layout="constrained")
    for axis, (order, drawn) in zip(axes, counts.items(), strict=True):
        total = len(drawn)
        numbers = np.unique(np.geomspace(1, total, 1500).astype(np.int64))[:, None]
        shares = drawn[numbers[:, 0] - 1] / numbers
        farthest = np.abs(drawn - np.outer(np.arange(1, total + 1), weights)).max()
        if order == "megatron":
            note = f"shaded: weight ± 1 sample; at most {farthest:.1f} samples away"
            band = np.broadcast_to(1 / numbers, shares.shape)
        else:  # of draws without replacement
            note = f"shaded: weight ± 2 standard deviations; at most {farthest:.0f} samples away"
            band = 2 * np.sqrt(weights * (1 - weights) * (1 / numbers - 1 / total))
        for dataset, (name, weight) in enumerate(WEIGHTS.items()):
            color, x, width = COLORS[name], numbers[:, 0], band[:, dataset]
            axis.fill_between(x, weight - width, weight + width, color=color, alpha=0.12, lw=0)
            axis.plot(x, shares[:, dataset], color=color, lw=1.3)
            axis.text(1.3 * total, weight, f"{name} {weight:g}", color=color, va="center")
        axis.set_title(f"order: {order}", loc="left", weight="bold", pad=22)
        axis.text(0, 1.03, note, transform=axis.transAxes, size=9, color="0.35")
        axis.set(xscale="log", xlim=(1, total), ylim=(0, 1), xlabel="samples since the start")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of the samples so far")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def show_picture(counts: dict[str, npt.NDArray[np.int64]], path: Path) -> str:
    """Plot the shares and return the path of the plot, or why there is none."""
    try:
        plot_shares(counts, path)
    except ImportError as error:
        return f"No plot ({error}); install zindex[quickstart]"
    return f"Plot: {path}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("blend"), help="where to write")
    parser.add_argument(
        "--files", type=int, default=200, help="documents per corpus (default: 200)"
    )
    parser.add_argument("--samples", type=int, default=100_000, help="(default: 100000)")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens (default: 2048)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    folder = quickstart.prepare_folder(arguments.folder)
    start = time.monotonic()

    quickstart.say(1, "Tokenise text that ships with Python and convert it to Zarr")
    names, tokenizer = quickstart.write_corpora(
        folder / "corpora", arguments.files, arguments.vocab_size
    )
    prefixes = [folder / "corpora" / name for name in names]
    zindex.convert(prefixes, folder / "corpora", tokenizer=tokenizer)

    quickstart.say(2, "Plan a blend by weight (computes sizes, writes nothing)")
    run_files = [folder / f"{order}.yaml" for order in ORDERS]
    for order, run_file in zip(ORDERS, run_files, strict=True):
        write_run(run_file, order, arguments.samples)
    print(textwrap.indent(report_run(zindex.load_config(run_files[0])).to_text(), "   "))

    quickstart.say(3, "Build it in both orders on this machine's cores")
    for run_file in run_files:
        built = zindex.build(run_file)[None, "train"]
        print(f"   {run_file.name}: {built.store.root}")

    quickstart.say(4, "Open both as a training job does, and compare their draws")
    blends = {order: open_blend(folder, order, arguments.samples, tokenizer) for order in ORDERS}
    for blend in blends.values():
        check_blend(blend)
    counts = {order: count_drawn(blend) for order, blend in blends.items()}
    print_shares(counts)
    print(f"\n{show_picture(counts, folder / 'blend.png')}")
    print(f"Both orders draw the share of each dataset; {time.monotonic() - start:.0f} s in all.")


if __name__ == "__main__":
    main()
