"""``zindex import``: tar and jsonl files to a Zarr store with random access."""

from typing import Any

import click

from zindex.cli import options
from zindex.inspection.tables.formatting import count_noun


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.choice("--kind", ["jsonl", "tar"], help="Format. [default: from names]")
@options.repeatable("--field", "fields", metavar="NAME", help="A field to keep; repeatable.")
@options.mapping(
    "--dtype",
    "dtypes",
    metavar="NAME=DTYPE",
    example="input_ids=int32",
    last=True,
    help="A field of flat lists of numbers, and their dtype; repeatable.",
)
@options.repeatable(
    "--meta", "meta_names", metavar="NAME", help="A field of .meta.jsonl to join; repeatable."
)
@options.value("--include-dirs", metavar="DIR,...", help="Further folders of tar files to read.")
@options.value("--part-nbytes", type=int, help="Bytes of a file that one task reads.")
@options.damage("damaged records", "the import")
@options.restart("Remove an unfinished import of TARGET")
@options.record_store
@options.summary(timed=True)
def import_command(
    sources: tuple[str, ...], target: str, fields: tuple[str, ...], **settings: Any
) -> tuple[dict[str, Any], str]:
    """Import tar or jsonl files for random access.

    SOURCE is a file, a folder or a brace pattern, on a file system or in an object store. TARGET is
    the store. Resumes from finished shards.
    """
    from zindex.ingest.records.import_records import import_records
    from zindex.store.records import KEY

    store = import_records(
        options.one_or_all(sources),
        target,
        fields=fields or None,
        progress=True,
        **options.use_record_store(**settings),
    )
    names = [field["name"] for field in store.spec["fields"] if field["name"] != KEY]
    facts = {
        **options.describe_records(store),
        "nbytes": sum(layout.nbytes for layout in store.layouts.values()),
        "fields": names,
    }
    return facts, (
        f"{facts['store']}: {facts['num_records']:,} records of "
        f"{count_noun(facts['num_files'], 'file')}, {facts['nbytes']:,} bytes, fields "
        f"{', '.join(names) or 'none'}{options.left_out(facts['num_skipped'])}"
    )
