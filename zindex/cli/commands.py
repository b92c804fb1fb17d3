"""The command line: each command parses, calls one function and prints one summary.

Heavy modules are imported inside the commands, which keeps ``zindex --help`` fast.
"""

import errno
import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from zindex.cli import options
from zindex.cli.answers import (
    diff_command,
    find_command,
    info_command,
    ls_command,
    report_command,
    show_command,
    trace_command,
)
from zindex.cli.cluster import adapt_options, cluster, cluster_options, open_client
from zindex.cli.convert import convert, convert_cache, count, export, import_command, merge
from zindex.cli.dedup import dedup_command
from zindex.cli.edit import collect, compact_command, edit, forget_command
from zindex.cli.errors import describe_refusal, name_options
from zindex.cli.measure import bench, lengths
from zindex.cli.tokenize import tokenize_command
from zindex.errors import ConfigError, ZindexError
from zindex.wording import count_noun

# System errors that the user can fix: a wrong path, missing permissions, a full disk.
_REFUSALS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT),
}
# Shorter times of kernels are not named.
_NOTICED_SECONDS = 0.5
# Commands that resume from what they had finished.
_RESUMED = {
    *("build", "convert", "dedup", "export", "import", "merge", "prepare", "repair", "tokenize"),
}


class _InterruptedError(click.ClickException):
    """An interrupt from the terminal."""

    exit_code = 128 + signal.SIGINT
    word = "interrupted"

    def __init__(self, command: str | None) -> None:
        resumed = "; finished work is kept, run the same command to resume"
        super().__init__(f"{self.word}{resumed if command in _RESUMED else ''}")

    def show(self, file: Any = None) -> None:
        """Print one line."""
        click.echo(f"\n{self.message}", file, err=True)


class _TerminatedError(_InterruptedError):
    """SIGTERM, by which schedulers end jobs."""

    exit_code = 128 + signal.SIGTERM
    word = "terminated"


def _interrupt(number: int, frame: Any) -> None:
    """Interrupt the command, and silence what libraries log about its cancelled tasks."""
    logging.disable()
    raise KeyboardInterrupt(number)


class _Group(click.Group):
    """A group that prints zindex's errors and common system errors as one line.

    Other exceptions keep their traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            is_end = signal.SIGTERM in error.args
            kind = _TerminatedError if is_end else _InterruptedError
            raise kind(ctx.invoked_subcommand) from None
        except ZindexError as error:
            logging.getLogger("zindex").debug("the command failed", exc_info=True)
            message = " ".join(str(error).split())
            command = self.commands.get(ctx.invoked_subcommand or "", self)
            raise click.ClickException(name_options(message, command)) from error
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            logging.getLogger("zindex").debug("the command failed", exc_info=True)
            raise click.ClickException(describe_refusal(error)) from error


class _EchoHandler(logging.Handler):
    """Writes log records to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with options as they are typed."""
        text, context = self.format(record), click.get_current_context(silent=True)
        click.echo(text if context is None else name_options(text, context.command), err=True)


@click.group(name="zindex", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="zindex", prog_name="zindex")
@click.option("-v", "--verbose", is_flag=True, help="Log every step, with times.")
def main(verbose: bool) -> None:
    """Zarr corpora, Dask-built indices and torch datasets for LLM pre-training."""
    _show_logs(verbose)
    context = click.get_current_context()
    if os.environ.get("NO_COLOR"):
        context.color = False
    _take_kernel_times()
    context.call_on_close(_name_kernels)
    if threading.current_thread() is not threading.main_thread():
        return
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is handler and not (verbose and number == signal.SIGINT):
            signal.signal(number, _interrupt)
            context.call_on_close(partial(signal.signal, number, handler))


def _take_kernel_times() -> Any:
    """Return the times of kernels since the last call; None if none were imported."""
    kernels = sys.modules.get("zindex.kernels._jit")
    return kernels and kernels.take_times()


def _name_kernels() -> None:
    """Log how long kernels took to compile and to load, if a user noticed."""
    times = _take_kernel_times()
    if times and times.seconds_compiling + times.seconds_loading > _NOTICED_SECONDS:
        logging.getLogger("zindex").info(times.describe())


def _show_logs(verbose: bool) -> None:
    """Show zindex's progress on standard error; with ``verbose``, the logs of all libraries."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(message)s"
    logger = logging.getLogger() if verbose else logging.getLogger("zindex")
    logging.getLogger("zindex").setLevel(logging.DEBUG if verbose else logging.INFO)
    if not any(isinstance(handler, _EchoHandler) for handler in logger.handlers):
        handler = _EchoHandler()
        handler.setFormatter(logging.Formatter(form))
        logger.addHandler(handler)


@main.command()
@click.argument("run_file", metavar="RUN.yaml")
@options.summary()
def plan(run_file: str) -> tuple[dict[str, Any], str]:
    """Show the plan of a run and which parts of it are built.

    Writes nothing. RUN.yaml lists the datasets, with weights, tokens or epochs for a blend.
    """
    from zindex.config import load_config
    from zindex.inspection.tables.journal_table import report_edits
    from zindex.inspection.tables.plan_table import report_run

    config = load_config(run_file)
    report = report_run(config)
    edits, lines = report_edits(config)
    return report.to_json() | edits, "\n".join([report.to_text(), *lines])


@main.command()
@click.argument("run_file", metavar="RUN.yaml")
@cluster_options
@adapt_options
@options.flag("--inverse", "Store inverses of shuffles, too, for `zindex find` in milliseconds.")
@options.value(
    "--timeline",
    metavar="FILE",
    help="Write a trace of all tasks, for ui.perfetto.dev or chrome://tracing.",
)
@options.summary()
def build(
    run_file: str,
    inverse: bool,
    timeline: str | None,
    adapt: tuple[int, int] | None,
    **settings: Any,
) -> tuple[dict[str, Any], str] | None:
    """Build all indices and blends of a run.

    Resumes an interrupted build from its finished shards.
    """
    from zindex.config import load_config
    from zindex.indexing.run import build as run

    start = time.monotonic()
    config = load_config(run_file)
    if timeline is not None:
        _check_new_file(timeline)
    if adapt is not None:
        from zindex.cluster.adapt import count_nodes

        settings["num_nodes"] = count_nodes(config, *adapt)
    with open_client(str(config.index), **settings) as (builds, client):
        if not builds:
            return None
        results = run(config, client, inverse=inverse, progress=True, timeline=timeline)
    return _summarise(config, results, time.monotonic() - start)


def _summarise(config: Any, results: Any, seconds: float) -> tuple[dict[str, Any], str]:
    """Return the summary of a build."""
    indices: list[dict[str, Any]] = []
    blends: list[dict[str, Any]] = []
    for (dataset, split), result in results.items():
        # A packed index has its number of samples in its attributes, others in their plan.
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
    counts = [count_noun(len(indices), "index", "indices")]
    if blends:
        counts.append(count_noun(len(blends), "blend"))
    verb = "is" if len(results) == 1 else "are"
    num_written = sum(result.num_written for result in results.values())
    num_shards = sum(result.num_shards for result in results.values())
    return {"indices": indices, "blends": blends, "seconds": seconds}, (
        f"{' and '.join(counts)} {verb} built in {config.index}: {num_written} of {num_shards} "
        f"shards were written in {seconds:.1f} s"
        + (", the others already existed" if num_written < num_shards else "")
    )


@main.command(
    "prepare", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@options.choice(
    "--kind", ["gpt", "bert", "t5"], help="Kind of the model. [default: from the script's name]"
)
@options.first_choice(
    "--order", ["megatron", "scalable"], "Order of the samples; the training must use the same."
)
@options.first_choice(
    "--store",
    ["all", "minimal"],
    "minimal omits arrays that readers can compute in the scalable order.",
)
@cluster_options
@options.summary()
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGS]...")
def prepare_command(
    command_line: tuple[str, ...], kind: Any, order: Any, store: Any, **settings: Any
) -> tuple[dict[str, Any], str] | None:
    """Build all indices of a Megatron training job ahead of time.

    Pass the command line of the training job unchanged, with its script; arguments that do not
    concern data are ignored. The indices are written to its --data-cache-path.
    """
    from zindex.megatron.prepare import check_script, parse_arguments, prepare

    start = time.monotonic()
    check_script(command_line, kind)
    cache = parse_arguments(command_line, kind).values.data_cache_path
    with open_client(cache or ".", **settings) as (builds, client):
        if not builds:
            return None
        made = prepare(command_line, client=client, kind=kind, order=order, store=store)
    seconds = time.monotonic() - start
    num_phases = len({part.phase for part in made})
    lines = []
    for part in made:
        phase = f"phase {part.phase + 1}, " if num_phases > 1 else ""
        datasets = count_noun(part.num_datasets, "dataset")
        lines.append(f"{phase}{part.split}: {count_noun(part.num_samples, 'sample')} of {datasets}")
    lines.append(f"built in {cache} in {seconds:.1f} s")
    facts = {"cache": cache, "splits": [asdict(part) for part in made], "seconds": seconds}
    return facts, "\n".join(lines)


def _check_new_file(path: str) -> None:
    """Check, before a long build, that its timeline can be written."""
    from zindex.io.local import local_path

    folder = local_path(path, "a timeline").parent
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise ConfigError(
            f"--timeline must be a file in a directory that you may write, got {path}; "
            "choose another one"
        )


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@options.value("--key", metavar="PEM", help="Ed25519 public key that must have signed each store.")
@options.summary()
def verify(paths: tuple[str, ...], key: str | None) -> tuple[dict[str, Any], str, int]:
    """Verify every byte of stores against checksums.

    PATH is a store, a growing store, a directory of stores, or a RUN.yaml for all indices and
    blends of the run. Prints one line per damaged file and exits with 1 if there are any.
    """
    from zindex.execution.progress import open_progress
    from zindex.growing.inspection import find_all, verify_growing
    from zindex.inspection.tables.store_lines import describe_reports
    from zindex.store.verify import verify_store

    growing, stores = find_all(paths)
    reports, lines = [*map(verify_growing, growing)], list[str]()
    with open_progress(True) as shown:
        for named in stores:
            if named.is_begun:
                with shown.step(named.root.name, named.num_shards) as advance:
                    reports.append(verify_store(named.root, key=key, advance=advance))
            else:
                lines.append(f"{named.root} is not built")
    facts = {"stores": [report.to_json() for report in reports]}
    text = "\n".join([*lines, *describe_reports(reports)])
    return facts, text, 0 if all(report.is_sound for report in reports) else 1


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="STORE...")
@options.value("--key", metavar="PEM", required=True, help="Ed25519 private key: a PEM file.")
@options.summary()
def sign(paths: tuple[str, ...], key: str) -> tuple[dict[str, Any], str]:
    """Sign committed stores.

    The signature is written next to the plan of each store. "zindex verify --key" checks it;
    readers do not need it. Create a key with: openssl genpkey -algorithm ed25519 -out key.pem
    """
    from zindex.store.signature import sign_store

    signed = [(path, sign_store(path, key)) for path in paths]
    facts = {"stores": [{"store": path, "public_key": public} for path, public in signed]}
    return facts, "\n".join(f"{path} is signed by {public}" for path, public in signed)


@main.command()
@click.argument("path")
@options.value(
    "--source",
    metavar="PATH",
    help="Source of the store: the prefix of a .bin/.idx pair for a token store, a token store or "
    "prefix for an index, or the files of records or keyed tokens.",
)
@options.summary()
def repair(path: str, source: str | None) -> tuple[dict[str, Any], str]:
    """Rebuild damaged shards of stores.

    PATH is a store, a directory of stores, or a RUN.yaml for all indices and blends of the run and
    their sources. Intact files are not modified; rebuilt shards must be bit-identical to the
    committed ones.
    """
    from zindex.inspection.tables.store_lines import describe_repair
    from zindex.maintenance.repairs.repair import repair as run

    results = run(path, source=source, progress=True)
    facts = {"stores": [result.to_json() for result in results]}
    return facts, "\n".join(map(describe_repair, results))


def _read_identifiers(path: str, flag: str) -> dict[str, Any]:
    """Return the JSON object of a file, with its keys in order: they are part of the hash."""
    from zindex.io.files import read_file

    try:
        identifiers = json.loads(read_file(Path(path)))
    except ValueError as error:
        raise ConfigError(f"{path} must hold JSON: {error}") from error
    if not isinstance(identifiers, dict):
        raise ConfigError(
            f"{path} must hold a JSON object, got {type(identifiers).__name__}; "
            "write the tokenizer's unique_identifiers there"
        )
    return identifiers


@main.command("export-cache")
@click.argument("run_file", metavar="RUN.yaml")
@options.parsed(
    "--tokenizer",
    parse=_read_identifiers,
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    help="JSON file of the unique_identifiers of the training job's tokenizer.",
)
@options.value("--cache", metavar="DIR", help="Megatron's data cache path.")
@options.mapping(
    "--dataset-path",
    "dataset_paths",
    metavar="HERE=THERE",
    example="HERE=THERE",
    help="Path of a dataset in the run and in the Megatron job; repeatable.",
)
def export_cache(run_file: str, cache: str | None, **settings: Any) -> None:
    """Write built indices as Megatron Core's .npy caches.

    The arrays of a blend are not exported; Megatron Core computes them.
    """
    from zindex.config import load_config
    from zindex.indexing.export_cache import export_cache as run

    for description in run(load_config(run_file), cache, **settings):
        click.echo(description)


@main.command()
@options.flag("--shared", "Store them in the installed package for all users, as in an image.")
@options.summary(timed=True)
def warm(shared: bool) -> tuple[dict[str, Any], str]:
    """Compile kernels ahead of their first use.

    Otherwise the first build and the first batches on a machine compile them. They are cached in
    ~/.cache/zindex, or in NUMBA_CACHE_DIR, for this type of processor.
    """
    from zindex.kernels.warm import warm as run

    folder = run(shared=shared)
    return {"folder": str(folder)}, f"the compiled kernels are in {folder}"


@main.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def quickstart(arguments: tuple[str, ...]) -> None:
    """Train a tiny model, from text to a falling loss."""
    if find_spec("torch") is None:
        raise ConfigError(
            "the quickstart needs torch, which is not installed; install zindex[quickstart]"
        )
    path = _find_quickstart()
    sys.argv = ["zindex quickstart", *arguments]
    sys.path.insert(0, str(path.parent))  # as if it was run by itself
    runpy.run_path(str(path), run_name="__main__")


def _find_quickstart() -> Path:
    """Return the file of the quickstart: in the checkout, or the copy in the wheel."""
    package = Path(__file__).resolve().parents[1]
    name = "01_quickstart.py"
    places = [package.parent / "examples" / name, package / "_examples" / name]
    if place := next(filter(Path.exists, places), None):
        return place
    raise ConfigError(f"the quickstart must lie at {places[1]}, it does not; install zindex again")


_FILES = (
    *(convert, convert_cache, count, dedup_command, export, import_command, merge),
    tokenize_command,
)
_ANSWERS = (
    *(diff_command, find_command, info_command, ls_command, report_command, show_command),
    trace_command,
)
_EDITS = collect, compact_command, edit, forget_command
for _command in (*_FILES, *_ANSWERS, *_EDITS, bench, cluster, lengths):
    main.add_command(_command)
