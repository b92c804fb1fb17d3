"""``zindex dedup``: jsonl files without duplicate and contaminated records."""

from dataclasses import asdict
from typing import Any

import click

from zindex.cli import options
from zindex.wording import count_noun


@click.command("dedup", cls=options.SourcesCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.value(
    "--near",
    type=float,
    metavar="SIMILARITY",
    help="Also drop records whose Jaccard similarity to an earlier one is at least this, such as "
    "0.8. [default: exact duplicates only]",
)
@options.value(
    "--field",
    metavar="NAME",
    help="Field to compare, with a text or messages. [default: texts and conversations as "
    "zindex tokenize reads them]",
)
@options.repeatable(
    "--decontaminate",
    metavar="FILE",
    help="Benchmark (jsonl, Parquet or text) whose n-grams no record may share; repeatable.",
)
@options.value("--ngram", type=int, default=13, help="Words of an n-gram.")
@options.flag("--list", "Write only the lists of what would be dropped.")
@options.value("--part-nbytes", type=int, default=1 << 25, help="Bytes of a file in TARGET.")
@options.damage("damaged lines", "the command")
@options.restart("Remove unfinished output at TARGET")
@options.scheduler
@options.processes("Processes on this machine. [default: one per core, one for small inputs]")
@options.summary(timed=True)
def dedup_command(
    sources: tuple[str, ...],
    target: str,
    list: bool,
    client: str | None,
    num_processes: int | None,
    **settings: Any,
) -> tuple[dict[str, Any], str]:
    """Drop duplicate and contaminated records of jsonl files.

    SOURCE is a jsonl file, a folder or a brace pattern, on a file system or in an object store.
    TARGET is the new folder: part-*.jsonl has the kept lines, unchanged and in order, and
    dropped/part-*.ndjson the dropped records, with what they duplicate. The first of several
    duplicates is kept. Resumes from finished parts.
    """
    from zindex.ingest.dedup.dedup import dedup

    found = dedup(
        options.one_or_all(sources),
        target,
        list_only=list,
        client=client,
        num_processes=options.choose_processes(client, num_processes),
        progress=True,
        **settings,
    )
    dropped = [
        *([f"{found.num_contaminated:,} contaminated"] if found.num_contaminated else ()),
        *([count_noun(found.num_exact, "exact duplicate")] if found.num_exact else ()),
        *([count_noun(found.num_near, "near duplicate")] if found.num_near else ()),
    ]
    verb = "would be kept" if list else "kept"
    lines = [
        f"{found.target}: {found.num_kept:,} of {count_noun(found.num_records, 'record')} {verb}, "
        f"{found.nbytes:,} bytes; dropped: "
        + (", ".join(dropped) or "none")
        + options.describe_skipped(found.num_skipped)
    ]
    for item in found.benchmarks:
        short = f", {item.num_short:,} too short to be found" if item.num_short else ""
        lines.append(
            f"  {item.file}: {count_noun(item.num_dropped, 'record')} of "
            f"{count_noun(item.num_ngrams, 'n-gram')} in "
            f"{count_noun(item.num_texts, 'text')}{short}"
        )
    return asdict(found), "\n".join(lines)
