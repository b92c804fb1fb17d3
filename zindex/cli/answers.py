"""Questions on paths and runs: ``info``, ``ls``, ``trace``, ``find``, ``show`` and ``diff``."""

from typing import Any

import click

from zindex.cli import options


@click.command("info")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options.summary()
def info_command(paths: tuple[str, ...]) -> tuple[dict[str, Any], str, int]:
    """Say what is at paths: kind, sizes, lengths, tokenizer, source, age and health.

    PATH is a corpus, index, blend, keyed or record store, a RUN.yaml, a .bin/.idx pair, a .jsonl,
    .tar or .parquet file, or a folder. The exit code is 1 if any is damaged or not finished.
    """
    from zindex.inspection.answers.info import info, info_lines

    found = list(map(info, paths))
    facts = {"paths": [item.to_json() for item in found]}
    return facts, "\n".join(info_lines(found)), 0 if all(item.is_whole for item in found) else 1


@click.command("ls")
@click.argument("folder", default=".", metavar="[FOLDER]")
@options.summary()
def ls_command(folder: str) -> tuple[dict[str, Any], str]:
    """List what zindex reads in a folder: stores, runs, pairs and files of samples."""
    from zindex.inspection.answers.info import ls, ls_lines

    found = ls(folder)
    return {"entries": [item.to_json() for item in found]}, "\n".join(ls_lines(found))
