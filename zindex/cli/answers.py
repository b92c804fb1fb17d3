"""Inspection commands: ``info``, ``ls``, ``trace``, ``find``, ``show``, ``diff``, ``report``."""

from typing import Any

import click

from zindex.cli import options
from zindex.cli.edit import parse_range

_split = options.first_choice("--split", ["train", "valid", "test"])
_tokenizer = options.join(
    options.flag("--decode", "Decode with the tokenizer saved with the corpora."),
    options.value("--tokenizer", metavar="FILE", help="Decode with this tokenizer file or folder."),
)


@click.command("info")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options.summary()
def info_command(paths: tuple[str, ...]) -> tuple[dict[str, Any], str, int]:
    """Describe stores, runs, pairs and sample files.

    Prints kind, sizes, lengths, tokenizer, source, age and health. PATH is a corpus, index, blend,
    keyed or record store, a RUN.yaml, a .bin/.idx pair, a .jsonl, .tar or .parquet file, or a
    folder. Exits with 1 if any of them is damaged or unfinished.
    """
    from zindex.inspection.answers.info import info, info_lines

    found = list(map(info, paths))
    facts = {"paths": [item.to_json() for item in found]}
    return facts, "\n".join(info_lines(found)), 0 if all(item.is_whole for item in found) else 1


@click.command("ls")
@click.argument("folder", default=".", metavar="[FOLDER]")
@options.summary()
def ls_command(folder: str) -> tuple[dict[str, Any], str]:
    """List the stores, runs, pairs and sample files of a folder."""
    from zindex.inspection.answers.info import ls, ls_lines

    found = ls(folder)
    return {"entries": [item.to_json() for item in found]}, "\n".join(ls_lines(found))


@click.command("trace")
@click.argument("run_file", metavar="RUN.yaml")
@options.value("--step", type=int, metavar="N", help="Training step, from 0.")
@options.parsed(
    "--position", parse=parse_range, metavar="START:STOP", help="Positions instead of a step."
)
@options.value("--rank", type=int, help="Show only this data-parallel rank.")
@options.batches
@_split
@_tokenizer
@options.summary()
def trace_command(
    run_file: str, decode: bool, tokenizer: str | None, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Show the samples that a training step consumed.

    Prints datasets, documents, token spans and epochs, and decoded texts if there is a tokenizer.
    The last token of a sample is only a label.
    """
    from zindex.inspection.answers.trace import trace

    found = trace(run_file, tokenizer=tokenizer or decode, **settings)
    return found.to_json(), "\n".join(found.to_lines())


@click.command("find")
@click.argument("run_file", metavar="RUN.yaml")
@options.value("--dataset", metavar="NAME", help="Path, name or number of a dataset of the run.")
@options.value("--document", type=int, metavar="D", help="Number of the document in the dataset.")
@options.parsed(
    "--tokens", parse=parse_range, metavar="START:STOP", help="Token range in the document."
)
@options.value("--id", "source_id", metavar="ID", help="Source id instead of a document.")
@options.value(
    "--field", metavar="NAME", help="Field that holds the id. [default: the first that is kept]"
)
@options.value("--text", help="Text to search for instead of a document.")
@options.value(
    "--tokenizer", metavar="FILE", help="Tokenizer for --text, by default the saved one."
)
@options.value(
    "--consumed",
    type=int,
    metavar="N",
    help="Samples consumed so far, to separate past and future.",
)
@options.batches
@_split
@options.scheduler
@options.summary()
def find_command(run_file: str, **settings: Any) -> tuple[dict[str, Any], str]:
    """Find the positions of a document, id or text in a run.

    Prints every position that contains the document, the token range or the text, with its step,
    rank and epoch. A document can be named by the id of its source, if the corpus keeps it.
    """
    from zindex.inspection.answers.find import find

    found = find(run_file, **settings)
    return found.to_json(), "\n".join(found.to_lines())


@click.command("show")
@click.argument("path")
@options.value("--document", type=int, metavar="N", help="Document of a corpus or pair.")
@options.value("--sample", type=int, metavar="N", help="Position in a RUN.yaml or an index.")
@options.value("--record", type=int, metavar="N", help="Record of a keyed or record store.")
@options.generation
@_split
@_tokenizer
@options.summary()
def show_command(
    path: str, decode: bool, tokenizer: str | None, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Show a document, a sample or a record.

    Prints tokens, or decoded text if there is a tokenizer. Tokens that are trained on are green,
    masked tokens are dim.
    """
    from zindex.inspection.answers.show import show

    found = show(path, tokenizer=tokenizer or decode, **settings)
    return found.to_json(), "\n".join(found.to_lines(_paint))


def _paint(text: str, mask: bool | None) -> str:
    """Colour a text by its mask."""
    if mask is None:
        return text
    return click.style(text, fg="green") if mask else click.style(text, dim=True)


@click.command("diff")
@click.argument("first", metavar="RUN.yaml")
@click.argument("second", required=False, metavar="[OTHER.yaml]")
@options.repeatable(
    "--state",
    "states",
    metavar="STATE.json",
    help="Compare only what this loader state has consumed; twice for two states.",
)
@_split
@options.summary()
def diff_command(
    first: str, second: str | None, states: tuple[str, ...], split: str
) -> tuple[dict[str, Any], str, int]:
    """Compare the samples of two runs, or of loader states.

    With one run, compares it before and after its last edit, or, with --state, the samples that
    loaders have consumed: two states, or one with the whole run. Prints the first difference, the
    share of differing positions, the samples per dataset, and the tokens of only one. Exits with 1
    if there is a difference.
    """
    from zindex.inspection.answers.diff import diff

    found = diff(first, second, states=states, split=split)
    return found.to_json(), "\n".join(found.to_lines()), 0 if found.is_same else 1


@click.command("report")
@click.argument("run_file", metavar="RUN.yaml")
@click.argument("other", required=False, metavar="[OTHER.yaml]")
@options.value("--output", metavar="FILE", help="HTML file to write; replaces an earlier report.")
@_split
@options.batches
@options.value("--nodes", "num_nodes", type=int, help="Nodes with the ranks.  [default: 1]")
@options.value(
    "--loader-workers", "num_workers", type=int, help="Loader workers per rank.  [default: 2]"
)
@options.value("--prefetch", type=int, help="Batches each worker prefetches.  [default: 2]")
@options.value("--cache-nbytes", type=int, help="Chunk cache of each worker.  [default: 268435456]")
@options.value("--bandwidth", type=float, help="Bytes per second per node.  [default: 1e9]")
@options.value("--latency", type=float, help="Seconds per request.  [default: 0.03]")
@options.value(
    "--samples", "num_shown", type=click.IntRange(0, 100), default=6, help="Samples to show."
)
@options.value("--tokenizer", metavar="FILE", help="Tokenizer, by default the saved one.")
@options.summary()
def report_command(
    run_file: str,
    other: str | None,
    output: str | None,
    split: str,
    num_shown: int,
    tokenizer: str | None,
    **settings: Any,
) -> tuple[dict[str, Any], str]:
    """Report on a run, or compare two runs, in one HTML file.

    The file loads nothing: mix, epochs, lengths, limits, shuffle tests, simulated reads of the
    loaders, forecast of the build, and sample texts. With --json, prints the figures.
    """
    from zindex.reporting.report import report

    found = report(
        run_file,
        other,
        output=output,
        split=split,
        reads=settings,
        num_shown=num_shown,
        tokenizer=tokenizer or True,
    )
    written = [] if output is None else [f"report: {output}"]
    return found.to_json(), "\n".join([*found.to_lines(), *written])
