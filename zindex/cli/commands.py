"""The command line: each command parses, calls one function and prints one summary.

Heavy modules are imported inside the commands, so that ``zindex --help`` answers at once.
"""

import errno
import json
import logging
import os
import runpy
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from zindex.cli.cluster import cluster, cluster_options, open_build_cluster
from zindex.cli.convert import convert, export
from zindex.cli.edit import edit
from zindex.cli.measure import bench
from zindex.cli.megatron import prepare_command
from zindex.cli.options import json_option, scheduler_option
from zindex.cli.pairs import count, merge
from zindex.cli.records import import_command
from zindex.cli.streaming import lengths
from zindex.cli.tokenize import tokenize_command
from zindex.errors import ConfigError, ZindexError

_EXISTING_FILE = click.Path(exists=True, dir_okay=False)
# What the system says of a path that cannot be, or of a place that takes no more.
_REFUSALS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT),
}


class _Group(click.Group):
    """A group that says in one line what zindex raised on purpose, and what a place refuses.

    Everything else it lets through.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except ZindexError as error:
            logging.getLogger("zindex").debug("the command failed", exc_info=True)
            raise click.ClickException(" ".join(str(error).split())) from error
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            logging.getLogger("zindex").debug("the command failed", exc_info=True)
            raise click.ClickException(
                f"the system refuses {error.filename or 'to read or write a file'}: "
                f"{error.strerror}; check the path, its permissions and the room there"
            ) from error


class _EchoHandler(logging.Handler):
    """Writes log records to whatever standard error is when they come."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        click.echo(self.format(record), err=True)


@click.group(name="zindex", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zindex", prog_name="zindex")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens, with times.")
def main(verbose: bool) -> None:
    """Zarr corpora, Dask-built indices and torch datasets for LLM pre-training."""
    _show_logs(verbose)


def _show_logs(verbose: bool) -> None:
    """Show zindex's progress lines on standard error; with ``verbose`` everybody's log."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(message)s"
    logger = logging.getLogger() if verbose else logging.getLogger("zindex")
    logging.getLogger("zindex").setLevel(logging.DEBUG if verbose else logging.INFO)
    if not any(isinstance(handler, _EchoHandler) for handler in logger.handlers):
        handler = _EchoHandler()
        handler.setFormatter(logging.Formatter(form))
        logger.addHandler(handler)


@main.command()
@click.argument("run_file", metavar="RUN.yaml")
@json_option
def plan(run_file: str, as_json: bool) -> None:
    """Show what a run needs and what of it is built.

    This writes nothing. RUN.yaml names the datasets, with weights, tokens or epochs if they are to
    be blended.
    """
    from zindex.config import load_config
    from zindex.report.journal_table import report_edits
    from zindex.report.plan_table import report_run

    config = load_config(run_file)
    report = report_run(config)
    edits = report_edits(config)
    if as_json:
        _print_json(report.to_json() | edits.to_json())
    else:
        click.echo("\n".join([report.to_text(), *edits.lines]))


@main.command()
@click.argument("run_file", metavar="RUN.yaml")
@scheduler_option
@cluster_options
@click.option(
    "--timeline",
    metavar="FILE",
    help="Write a trace of all tasks there, for Perfetto or chrome://tracing.",
)
@json_option
def build(
    run_file: str,
    scheduler: str | None,
    cluster: str | None,
    timeline: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build every index and every blend of a run.

    What is finished already is kept, also of a build that was stopped.
    """
    from zindex.building.run import build as run
    from zindex.config import load_config

    start = time.monotonic()
    config = load_config(run_file)
    if timeline is not None:
        _check_new_file(timeline)
    if cluster is None:
        results = run(config, scheduler, progress=True, timeline=timeline)
    else:
        if scheduler is not None:
            raise ConfigError("--scheduler and --cluster both say where to build; give one of them")
        with open_build_cluster(cluster, str(config.index), **options) as client:
            if client is None:  # another process of the launcher builds
                return
            results = run(config, client, progress=True, timeline=timeline)
    _show_results(config, results, start, as_json=as_json)


def _show_results(config: Any, results: Any, start: float, *, as_json: bool) -> None:
    """Print what a build did."""
    indices: list[dict[str, Any]] = []
    blends: list[dict[str, Any]] = []
    for (dataset, split), result in results.items():
        # Of a packed index the number is a result, of others it was decided ahead.
        numbers = result.store.attributes | result.store.spec
        fact = {
            "split": split,
            "store": str(result.store.root),
            "fingerprint": result.store.fingerprint,
            "num_samples": numbers["num_samples"],
            "num_shards": result.num_shards,
            "num_written": result.num_written,
        }
        if dataset is None:
            blends.append(fact | {"num_datasets": result.store.spec["num_datasets"]})
        else:
            indices.append({"dataset": dataset} | fact)
    seconds = time.monotonic() - start
    if as_json:
        _print_json({"indices": indices, "blends": blends, "seconds": seconds})
        return
    counts = [_count(len(indices), "index", "indices")]
    if blends:
        counts.append(_count(len(blends), "blend", "blends"))
    verb = "is" if len(results) == 1 else "are"
    num_written = sum(result.num_written for result in results.values())
    num_shards = sum(result.num_shards for result in results.values())
    click.echo(
        f"{' and '.join(counts)} {verb} built in {config.index}: {num_written} of {num_shards} "
        f"shards were written in {seconds:.1f} s"
        + (", the others were there" if num_written < num_shards else "")
    )


def _count(number: int, one: str, many: str) -> str:
    """Return a number and its noun."""
    return f"{number:,} {one if number == 1 else many}"


def _check_new_file(path: str) -> None:
    """Check before hours of work that a file can be written at their end."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise ConfigError(
            f"--timeline must be a file in a directory that you may write, got {path}; "
            "choose another one"
        )


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@click.pass_context
def verify(context: click.Context, paths: tuple[str, ...], as_json: bool) -> None:
    """Check every byte of stores.

    PATH is a store, a directory of stores, or a RUN.yaml, which stands for its indices and blends.
    Each damaged file gets one line, and the exit code is 1 if there is any.
    """
    from zindex.building.progress import open_progress
    from zindex.building.repairs.named_stores import find_stores
    from zindex.report.store_lines import describe_reports
    from zindex.store.verify import verify_store

    reports = []
    with open_progress(True) as shown:
        for named in [store for path in paths for store in find_stores(path)]:
            if named.is_begun:
                with shown.step(named.root.name, named.num_shards) as advance:
                    reports.append(verify_store(named.root, advance=advance))
            elif not as_json:
                click.echo(f"{named.root} is not built")
    if as_json:
        _print_json({"stores": [report.to_json() for report in reports]})
    else:
        click.echo("\n".join(describe_reports(reports)))
    context.exit(0 if all(report.is_sound for report in reports) else 1)


@main.command()
@click.argument("path")
@click.option(
    "--source",
    metavar="PATH",
    help="What it was made from: the prefix of the .bin/.idx pair of a token store, the token "
    "store or prefix of an index, the files of records or of keyed tokens.",
)
@json_option
def repair(path: str, source: str | None, as_json: bool) -> None:
    """Rebuild what is damaged of stores.

    PATH is a store, a directory of stores, or a RUN.yaml, which stands for its indices and blends
    and knows their sources. What is sound stays as it is, and what is rebuilt must be what was
    committed, bit for bit.
    """
    from zindex.building.repairs.repair import repair as run
    from zindex.report.store_lines import describe_repair

    results = run(path, source=source, progress=True)
    if as_json:
        _print_json({"stores": [result.to_json() for result in results]})
        return
    for result in results:
        click.echo(describe_repair(result))


@main.command("export-cache")
@click.argument("run_file", metavar="RUN.yaml")
@click.option(
    "--tokenizer",
    type=_EXISTING_FILE,
    required=True,
    help="JSON file of the tokenizer's unique_identifiers, as the training job has them.",
)
@click.option("--cache", metavar="DIR", help="Megatron's data cache path.")
@click.option(
    "--dataset-path",
    "dataset_paths",
    multiple=True,
    metavar="HERE=THERE",
    help="The path under which Megatron is given a dataset, by its path in the run; repeatable.",
)
def export_cache(
    run_file: str, tokenizer: str, cache: str | None, dataset_paths: tuple[str, ...]
) -> None:
    """Write built indices as Megatron Core's .npy caches.

    These are the caches of the datasets; the two arrays of a blend Megatron Core computes itself.
    """
    from zindex.building.export import export_cache as run
    from zindex.config import load_config

    written = run(
        load_config(run_file),
        cache,
        tokenizer=_read_identifiers(tokenizer),
        dataset_paths=dict(map(_parse_dataset_path, dataset_paths)),
    )
    for description in written:
        click.echo(description)


def _read_identifiers(path: str) -> dict[str, Any]:
    """Return the JSON object of a file; the order of its keys counts."""
    try:
        identifiers = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} must hold JSON: {error}") from error
    if not isinstance(identifiers, dict):
        raise ConfigError(
            f"{path} must hold a JSON object, got {type(identifiers).__name__}; "
            "write the tokenizer's unique_identifiers there"
        )
    return identifiers


def _parse_dataset_path(text: str) -> tuple[str, str]:
    """Return the two sides of ``HERE=THERE``."""
    here, separator, there = text.partition("=")
    if not here or not separator or not there:
        raise ConfigError(f"--dataset-path must be HERE=THERE, got {text!r}")
    return here, there


@main.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def quickstart(arguments: tuple[str, ...]) -> None:
    """Go from text to a falling loss on this machine."""
    missing = [name for name in ("torch", "xarray") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the quickstart needs {' and '.join(missing)}, which are not installed; "
            "install zindex[quickstart]"
        )
    sys.argv = ["zindex quickstart", *arguments]
    runpy.run_path(str(_find_quickstart()), run_name="__main__")


def _find_quickstart() -> Path:
    """Return the quickstart's file: the checkout's, or the copy that a wheel carries."""
    package = Path(__file__).resolve().parents[1]
    name = "01_quickstart.py"
    places = [package.parent / "examples" / name, package / "_examples" / name]
    for place in places:
        if place.exists():
            return place
    raise ConfigError(f"the quickstart must lie at {places[1]}, it does not; install zindex again")


for _command in (
    bench,
    cluster,
    convert,
    count,
    edit,
    export,
    import_command,
    lengths,
    merge,
    prepare_command,
    tokenize_command,
):
    main.add_command(_command)


def _print_json(value: Any) -> None:
    """Print a summary for programs."""
    click.echo(json.dumps(value, indent=2))
