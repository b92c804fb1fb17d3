"""Tables and JSON of the edits of a run."""

from dataclasses import fields
from typing import Any

from zindex.config import RunConfig
from zindex.indexing.run_plan import plan_run
from zindex.inspection.tables.formatting import format_count, table_lines
from zindex.io import files
from zindex.io.objects import place_of
from zindex.maintenance.edits.journal import JOURNAL_PREFIX, JournalEntry, RunJournal, find_journals
from zindex.wording import count_noun

_COLUMNS = ("consumed", "skipped", "left", "drawn", "forgotten", "seen", "changed")
# Maximum number of datasets shown per edit.
_MAX_ROWS = 20


def report_edits(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the edits of all splits of a run, as JSON values and as lines; both may be empty.

    Parameters
    ----------
    config
        The run; without a journal, no dataset is opened.
    """
    names = files.list_names(place_of(config.index))
    if not any(name.startswith(JOURNAL_PREFIX) for name in names):
        return {}, []
    journals = find_journals(config, plan_run(config, require_bin=False))
    edits = {split: list(map(entry_json, each.entries)) for split, each in journals.items()}
    lines = [line for journal in journals.values() for line in journal_lines(journal)]
    return ({"edits": edits} if edits else {}), lines


def journal_lines(journal: RunJournal) -> list[str]:
    """Format the edits of one split: the changes and their certificates."""
    count = len(journal.entries)
    times = "once" if count == 1 else f"{count} times"
    lines = [
        f"{journal.split} was edited {times}: {count_noun(journal.state.num_samples, 'sample')} of "
        f"{journal.state.sequence_length:,} tokens, fingerprint {journal.fingerprint[:16]}"
        if count
        else f"{journal.split} was not edited: {count_noun(journal.state.num_samples, 'sample')}"
    ]
    for entry in journal.entries:
        lines += entry_lines(entry)
    return lines


def entry_lines(entry: JournalEntry) -> list[str]:
    """Format one edit."""
    lines = [f"edit {entry.number} at position {entry.position:,}: {_describe(entry)}"]
    rows = entry.certificate["datasets"]
    columns = [name for name in _COLUMNS if name in rows[0]]
    cells = [
        {"dataset": row["dataset"]} | {name: format_count(row.get(name, 0)) for name in columns}
        for row in rows[:_MAX_ROWS]
    ]
    lines += table_lines(cells, text_columns=("dataset",))
    if len(rows) > _MAX_ROWS:
        lines.append(f"and {len(rows) - _MAX_ROWS:,} more datasets; --json lists all")
    return lines


def _describe(entry: JournalEntry) -> str:
    """Describe the change of an edit."""
    change, datasets = entry.change, entry.state.datasets
    parts = [
        f"{datasets[int(number)]} to weight {weight:g}"
        for number, weight in change["reweight"].items()
    ]
    parts += [f"{path} added with weight {weight:g}" for path, weight in change["add"].items()]
    parts += [f"{datasets[number]} dropped" for number in change["drop"]]
    if change["skip"] is not None:
        parts.append(f"[{change['skip'][0]:,}, {change['skip'][1]:,}) skipped")
    if change["sequence_length"] is not None:
        parts.append(f"{change['sequence_length']:,} tokens per sample")
    if change.get("forget"):
        parts.append(f"{count_noun(sum(change['forget'].values()), 'document')} forgotten")
    if change["num_samples"] is not None:
        parts.append(f"{count_noun(change['num_samples'], 'sample')} in all")
    return ", ".join(parts)


def entry_json(entry: JournalEntry) -> dict[str, Any]:
    """Return one edit as JSON values, without the state of the run."""
    names = [field.name for field in fields(entry) if field.name != "state"]
    return {name: getattr(entry, name) for name in names}
