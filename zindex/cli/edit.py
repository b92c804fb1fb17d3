"""``zindex edit``, ``forget`` and ``gc``: change a run from a position on; clean a folder."""

import os
from functools import partial
from typing import Any

import click

from zindex.cli import options
from zindex.errors import ConfigError
from zindex.wording import count_noun


def parse_range(text: str, flag: str) -> tuple[int, int]:
    """Return the positions of ``START:STOP``."""
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal()):
        raise ConfigError(f"{flag} must be START:STOP, such as 120000:124000, got {text}")
    return int(start), int(stop)


_weights = partial(options.mapping, parse=float, last=True)


@click.command()
@click.argument("run_file", metavar="RUN.yaml")
@options.value(
    "--at", type=int, metavar="N", help="Position of the edit: number of samples consumed so far."
)
@_weights(
    "--reweight",
    "reweight",
    metavar="DATASET=WEIGHT",
    example="code=0.3",
    help="New weight of a dataset, by short name or path; others are unchanged; repeatable.",
)
@_weights(
    "--add",
    "add",
    metavar="PATH=WEIGHT",
    example="corpora/code=0.3",
    help="A new dataset; repeatable.",
)
@options.repeatable("--drop", metavar="DATASET", help="A dataset to remove; repeatable.")
@options.parsed("--skip", parse=parse_range, metavar="START:STOP", help="Positions to skip.")
@options.value("--sequence-length", type=int, help="Tokens per sample from that position on.")
@options.value("--num-samples", type=int, help="Samples of the whole run, including consumed ones.")
@options.first_choice("--split", ["train", "valid", "test"], "Split to edit.")
@options.flag("--verify", "Check the order of the whole run with its edits.")
@options.scheduler
@options.summary()
def edit(
    run_file: str, at: int | None, split: str, verify: bool, client: str | None, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Change a run from a position on, or show its edits.

    RUN.yaml stays unchanged: the edit is appended to a journal in the index folder and applied by
    every process that opens the run afterwards. Without changes, lists the edits.
    """
    from zindex.config import join_path, load_config
    from zindex.inspection.tables.journal_table import entry_json, entry_lines, journal_lines
    from zindex.maintenance.edits.edit import edit as run
    from zindex.maintenance.edits.journal import open_journal
    from zindex.maintenance.edits.verify_journal import verify_journal

    config = load_config(run_file)
    join = partial(join_path, os.path.dirname(run_file))
    settings["add"] = {join(path): weight for path, weight in settings["add"].items()}
    changes = {name: value for name, value in settings.items() if value or value == 0}
    facts: dict[str, Any] = {}
    if changes or at is not None:
        entry = run(config, at, split=split, client=client, **changes)
        lines, facts["edit"] = entry_lines(entry), entry_json(entry)
    else:
        journal = open_journal(config, split)
        lines, facts["edits"] = journal_lines(journal), list(map(entry_json, journal.entries))
    if verify:
        report = verify_journal(config, split=split, client=client)
        facts["verified"] = {"num_samples": report.num_samples, "num_skipped": report.num_skipped}
        skipped = count_noun(report.num_skipped, "position is", "positions are")
        lines.append(
            f"verified: {report.num_samples:,} positions have distinct samples, {skipped} skipped"
        )
    return facts, "\n".join(lines)


@click.command("forget")
@click.argument("run_file", metavar="RUN.yaml")
@click.argument("ids_file", metavar="IDS.txt")
@options.value("--at", type=int, metavar="N", help="Number of samples consumed so far; required.")
@options.flag("--dry-run", "Only list what was seen and what would change.")
@options.value(
    "--physically",
    metavar="FOLDER",
    help="Also write the corpora to FOLDER without the documents' tokens, and compare the rest.",
)
@options.batches
@options.first_choice("--split", ["train", "valid", "test"], "Split to edit.")
@options.scheduler
@options.summary()
def forget_command(run_file: str, ids_file: str, **settings: Any) -> tuple[dict[str, Any], str]:
    """Leave documents out of a run from a position on.

    IDS.txt has one DATASET:DOCUMENT per line, such as web:123. Prints the samples that were seen
    before the position, and appends an edit to the journal: later samples keep their positions and
    their other tokens. RUN.yaml stays unchanged.
    """
    from zindex.inspection.answers.forget import forget

    found = forget(run_file, ids_file, **settings)
    return found.to_json(), "\n".join(found.to_lines())


@click.command("compact")
@click.argument("store", metavar="STORE")
@options.value("--every", type=float, metavar="SECONDS", help="Repeat it, until interrupted.")
@options.value(
    "--keep-versions",
    type=int,
    metavar="N",
    help="First evict the records of all but the newest N policy versions.",
)
@options.summary()
def compact_command(
    store: str, every: float | None, keep_versions: int | None
) -> tuple[dict[str, Any], str]:
    """Compact a growing store.

    Moves the records of small generations to larger Zarr stores. Readers and writers may continue
    meanwhile, and states stay valid.
    """
    import time

    from zindex.growing.compaction import compact
    from zindex.growing.eviction import evict

    while True:
        evicted = None if keep_versions is None else evict(store, keep_versions=keep_versions)
        num_compactions = compact(store)
        text = f"{count_noun(num_compactions, 'store')} written in {store}"
        if every is None:
            return {"num_compactions": num_compactions, "eviction": evicted or None}, text
        click.echo(text, err=True)
        time.sleep(every)


@click.command("gc")
@click.argument("folder", metavar="FOLDER")
@options.repeatable(
    "--run", "runs", metavar="RUN.yaml", help="All runs that use FOLDER; their stores are kept."
)
@options.value("--hours", type=float, default=24.0, help="Minimum age of listed files.")
@options.repeatable(
    "--state",
    "states",
    metavar="STATE.json",
    help="States of single generations of a growing store; their records are kept.",
)
@options.flag("--remove", "Remove the listed files.")
@options.summary()
@click.pass_context
def collect(
    context: click.Context,
    /,
    folder: str,
    runs: tuple[str, ...],
    hours: float,
    states: tuple[str, ...],
    remove: bool,
) -> tuple[dict[str, Any], str]:
    """List or remove unused files of a folder of stores.

    Unused files are temporary files of killed writers, unfinished builds and, with --run, finished
    stores that none of the given runs uses. FOLDER may also be a growing store, in which they are
    compacted files, and evicted generations that no reader can reach.
    """
    from zindex.growing.eviction import find_unused, remove_unused
    from zindex.growing.growing_log import is_growing
    from zindex.inspection.tables.formatting import format_nbytes
    from zindex.loading.state import read_state
    from zindex.maintenance.garbage import find_garbage, remove_garbage

    found: list[Any]
    if is_growing(folder):
        options.refuse(context, ["runs"], f"must be left out for a growing store, {folder} is one")
        found = find_unused(folder, states=list(map(read_state, states)), hours=hours)
        if remove:
            remove_unused(found)
    else:
        options.refuse(context, ["states"], f"must come with a growing store, {folder} is none")
        found = list(find_garbage(folder, runs, hours=hours))
        if remove:
            found = remove_garbage(found)
    facts = [
        {"path": str(item.path), "reason": item.reason, "nbytes": item.nbytes} for item in found
    ]
    lines = [f"{item.path}: {item.reason}, {format_nbytes(item.nbytes)}" for item in found]
    verb = "removed" if remove else "unused; remove with --remove"
    count = count_noun(len(found), "file or folder", "files and folders")
    nbytes = format_nbytes(sum(item.nbytes for item in found))
    lines.append(f"{count}, {nbytes}, {verb}" if found else f"nothing is unused in {folder}")
    return {"garbage": facts, "is_removed": remove}, "\n".join(lines)
