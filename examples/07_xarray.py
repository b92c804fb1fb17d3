"""Inspect corpora and a run with xarray and Dask, before anything is converted or built.

    python examples/07_xarray.py

The corpora are those of the quickstart. Their .bin/.idx pairs and the indices of a blend open as
lazy arrays; lengths, tokens and the blend over time are plotted with ordinary xarray and Dask code.
"""

import argparse
import time
from importlib import import_module
from pathlib import Path

import dask.array
import numpy as np
import numpy.typing as npt
import xarray

import zindex

quickstart = import_module("01_quickstart")  # in the same folder

WEIGHTS = {"code": 0.7, "docstrings": 0.2, "reference": 0.1}
COLORS = {"code": "#0072b2", "docstrings": "#d55e00", "reference": "#009e73"}
SEQUENCE_LENGTH = 128
#: Samples per point of the blend over time.
WINDOW = 250

Values = npt.NDArray[np.int64]


def write_run(run_file: Path, num_samples: int) -> None:
    """Write the YAML file of a run that blends the pairs."""
    datasets = "".join(
        f"  - {{path: corpora/{name}, weight: {weight}}}\n" for name, weight in WEIGHTS.items()
    )
    run_file.write_text(
        f"sequence_length: {SEQUENCE_LENGTH}\nsplit: '100,0,0'\norder: scalable\n"
        f"samples: {{train: {num_samples}}}\ndatasets:\n{datasets}"
    )


def describe(name: str, corpus: xarray.Dataset) -> str:
    """Return one line about a corpus."""
    lengths = corpus.sequence_length
    return (
        f"   {name:<11} {lengths.size:>6,} documents {corpus.tokens.size:>10,} tokens, "
        f"{float(lengths.mean()):,.0f} per document, at most {int(lengths.max()):,}"
    )


def count_tokens(corpus: xarray.Dataset, vocab_size: int) -> Values:
    """Return how often each token occurs, the most frequent first."""
    counts: Values = dask.array.bincount(corpus.tokens.data, minlength=vocab_size).compute()
    return np.sort(counts)[::-1]


def count_lengths(corpus: xarray.Dataset, edges: Values) -> Values:
    """Return how many documents have a length in each bin."""
    counts: Values = dask.array.histogram(corpus.sequence_length.data, edges)[0].compute()
    return counts


def mix_over_time(blend: xarray.DataTree) -> xarray.DataArray:
    """Return the share of each dataset in every window of the run."""
    drawn = blend["dataset_index"] == xarray.DataArray(np.arange(len(WEIGHTS)), dims="dataset")
    shares = drawn.coarsen(sample=WINDOW, boundary="trim").mean()
    return shares.assign_coords(dataset=blend["dataset"].values).compute()


def plot(
    corpora: dict[str, xarray.Dataset], mix: xarray.DataArray, vocab_size: int, path: Path
) -> None:
    """Draw lengths, tokens and the blend over time side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (lengths, tokens, shares) = plt.subplots(
        1, 3, figsize=(14, 4.4), layout="constrained", width_ratios=(1, 1, 1.3)
    )
    longest = max(int(corpus.sequence_length.max()) for corpus in corpora.values())
    edges = np.geomspace(1, longest + 1, 25)
    for place, (name, corpus) in enumerate(corpora.items()):
        color, counts = COLORS[name], count_lengths(corpus, edges)
        lengths.stairs(counts, edges, color=color, fill=True, alpha=0.12)
        lengths.stairs(counts, edges, color=color, lw=1.5)
        at = {"transform": lengths.transAxes, "va": "top"}
        lengths.text(0.02, 0.98 - 0.07 * place, name, color=color, **at)
        found = np.trim_zeros(count_tokens(corpus, vocab_size))
        tokens.plot(np.arange(1, len(found) + 1), found / found.sum(), color=color, lw=1.5)
        share = mix.sel(dataset=name)
        shares.plot(share.sample, share, color=color, lw=0.9)
        shares.hlines(WEIGHTS[name], 0, share.sample[-1], color=color, lw=0.8, ls="--")
        label = f" {name} {WEIGHTS[name]:g}"
        shares.text(float(share.sample[-1]), WEIGHTS[name], label, color=color, va="center")
    titles = ("documents by length", "tokens by rank", f"share of every {WINDOW} samples")
    for axis, title in zip((lengths, tokens, shares), titles, strict=True):
        axis.set_title(title, loc="left", weight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    lengths.set(xscale="log", xlabel="tokens of a document", ylabel="documents")
    tokens.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="share of all tokens")
    shares.set(xlabel="samples since the start", ylim=(0, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("xarray"), help="where to write")
    parser.add_argument(
        "--files", type=int, default=200, help="documents per corpus (default: 200)"
    )
    parser.add_argument("--samples", type=int, default=20_000, help="(default: 20000)")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens (default: 2048)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    folder = quickstart.prepare_folder(arguments.folder)
    start = time.monotonic()

    quickstart.say(1, "Tokenise text that Python brings along, as .bin/.idx pairs")
    names, tokenizer = quickstart.write_corpora(
        folder / "corpora", arguments.files, arguments.vocab_size
    )

    quickstart.say(2, "Open the pairs with xarray, lazily and without conversion")
    corpora = {
        name: xarray.open_dataset(folder / "corpora" / f"{name}.idx", engine="zindex", chunks={})
        for name in names
    }
    for name, corpus in corpora.items():
        print(describe(name, corpus))

    quickstart.say(
        3, "Open the indices of a blend that is not built; shards are computed on demand"
    )
    write_run(folder / "run.yaml", arguments.samples)
    tree = zindex.open_index(folder / "run.yaml")
    blend = tree["train/blend"]
    print("   " + repr(blend["dataset_index"].data))
    position = arguments.samples // 2
    name = str(blend["dataset"].values[int(blend["dataset_index"][position])])
    sample = int(blend["dataset_sample_index"][position])
    tokens = tree[f"train/datasets/{name}"].to_dataset().zindex.sample(sample)
    print(f"   position {position:,} is sample {sample:,} of {name}, tokens {tokens.values[:8]}...")

    mix = mix_over_time(blend)
    quickstart.say(4, "Plot lengths, tokens and the blend over time")
    for name, share in zip(mix.dataset.values, mix.mean("sample").values, strict=True):
        print(f"   {name:<11} {share:.4f} of the run, weight {WEIGHTS[name]:g}")
    try:
        plot(corpora, mix, tokenizer.vocab_size, folder / "run.png")
        print(f"\nThe picture: {folder / 'run.png'}")
    except ImportError as error:
        print(f"\nNo plot ({error}); install zindex[quickstart]")
    print(f"{time.monotonic() - start:.0f} s in all.")


if __name__ == "__main__":
    main()
