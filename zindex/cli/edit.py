"""``zindex edit``: change a run from a position on, or list its edits."""

import json
import os
from typing import Any

import click

from zindex.cli.options import choice, json_option, repeatable, scheduler_option
from zindex.errors import ConfigError


@click.command()
@click.argument("run_file", metavar="RUN.yaml")
@click.option("--at", type=int, metavar="N", help="Position of the edit: samples consumed by then.")
@repeatable(
    "--reweight",
    metavar="PATH=WEIGHT",
    help="New weight of a dataset; the other weights stay; repeatable.",
)
@repeatable("--add", metavar="PATH=WEIGHT", help="A new dataset; repeatable.")
@repeatable("--drop", metavar="PATH", help="A dataset to remove; repeatable.")
@click.option("--skip", metavar="START:STOP", help="Positions to leave out.")
@click.option("--sequence-length", type=int, help="Tokens per sample from that position on.")
@click.option("--num-samples", type=int, help="Samples of the whole run, including consumed ones.")
@choice("--split", ["train", "valid", "test"], default="train", help="Split to edit.")
@click.option("--verify", is_flag=True, help="Walk the whole run and prove its edits.")
@scheduler_option
@json_option
def edit(
    run_file: str,
    at: int | None,
    reweight: tuple[str, ...],
    add: tuple[str, ...],
    drop: tuple[str, ...],
    skip: str | None,
    sequence_length: int | None,
    num_samples: int | None,
    split: str,
    verify: bool,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Change a run from a position on, or show its edits.

    RUN.yaml does not change: the edit is appended to the run's journal in its index folder, and
    applies to every process that opens the run afterwards. Without a change, lists the edits.
    """
    from zindex.config import load_config
    from zindex.inspection.tables.journal_table import entry_json, entry_lines, journal_lines
    from zindex.maintenance.edits.edit import edit as run
    from zindex.maintenance.edits.journal import open_journal
    from zindex.maintenance.edits.verify_journal import verify_journal

    config = load_config(run_file)
    folder = os.path.dirname(run_file)
    changes: dict[str, Any] = {
        "reweight": _parse_weights(reweight, "--reweight", folder),
        "add": _parse_weights(add, "--add", folder),
        "drop": [_join(folder, path) for path in drop],
        "skip": None if skip is None else _parse_range(skip),
        "sequence_length": sequence_length,
        "num_samples": num_samples,
    }
    changes = {name: value for name, value in changes.items() if value or value == 0}
    facts: dict[str, Any] = {}
    if changes or at is not None:
        entry = run(config, at, split=split, client=scheduler, **changes)
        lines, facts["edit"] = entry_lines(entry), entry_json(entry)
    else:
        journal = open_journal(config, split)
        lines, facts["edits"] = journal_lines(journal), list(map(entry_json, journal.entries))
    if verify:
        report = verify_journal(config, split=split, client=scheduler)
        facts["verified"] = {"num_samples": report.num_samples, "num_skipped": report.num_skipped}
        lines.append(
            f"verified: {report.num_samples:,} positions have a sample each of their own, "
            f"{report.num_skipped:,} are left out"
        )
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines))


def _join(folder: str, path: str) -> str:
    """Return a path as the run's file takes it: from the directory of the file."""
    if "://" in path:
        return path
    return os.path.join(folder, os.path.expanduser(path))


def _parse_weights(texts: tuple[str, ...], option: str, folder: str) -> dict[str, float]:
    """Return the weights of ``PATH=WEIGHT`` options."""
    weights = {}
    for text in texts:
        path, separator, weight = text.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            separator = ""
        if not separator or not path:
            raise ConfigError(f"{option} must be PATH=WEIGHT, such as corpora/code=0.3, got {text}")
        weights[_join(folder, path)] = value
    return weights


def _parse_range(text: str) -> tuple[int, int]:
    """Return the positions of ``START:STOP``."""
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal()):
        raise ConfigError(f"--skip must be START:STOP, such as 120000:124000, got {text}")
    return int(start), int(stop)
