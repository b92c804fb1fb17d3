"""Options, parsers and output that several commands share.

An option has the name and type of the argument that it becomes, so that commands can pass their
options on unchanged.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from typing import Any

import click
import yaml
from click.core import ParameterSource

from zindex.errors import ConfigError
from zindex.wording import count_noun


class SourcesCommand(click.Command):
    """A command ``SOURCE... TARGET``, for which a single path is a source without a target."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            arguments = [each for each in self.params if isinstance(each, click.Argument)]
            found, _, _ = self.make_parser(ctx).parse_args(given)
            target = found.get(arguments[-1].name or "")
            if error.param is arguments[0] and isinstance(target, str):
                raise click.MissingParameter(ctx=ctx, param=arguments[-1]) from None
            raise


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

value = partial(click.option, show_default=True)


def choice(flag: str, values: Sequence[str], *names: str, **settings: Any) -> Decorator:
    """Return an option with one of a few values."""
    return value(flag, *names, type=click.Choice(values), **settings)


def first_choice(flag: str, values: Sequence[str], help: str | None = None) -> Decorator:
    """Return an option with one of a few values, the first by default."""
    return choice(flag, values, default=values[0], help=help)


def flag(name: str, help: str) -> Decorator:
    """Return an option without a value."""
    return value(name, is_flag=True, help=help)


def restart(remove: str) -> Decorator:
    """Return the option ``--restart`` of a command that only one process may run at a time."""
    return flag("--restart", f"{remove} first; no other process may be writing to it.")


def repeatable(flag: str, *names: str, metavar: str, help: str) -> Decorator:
    """Return an option that may be given several times."""
    return click.option(flag, *names, multiple=True, metavar=metavar, help=help)


def parsed(flag: str, *names: str, parse: Callable[[str, str], Any], **settings: Any) -> Decorator:
    """Return an option whose text, if any, is parsed by a function of the text and the flag."""

    def parse_text(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        return None if text is None else parse(text, flag)

    return value(flag, *names, callback=parse_text, **settings)


def mapping(
    flag: str, name: str, *, metavar: str, example: str, help: str, **settings: Any
) -> Decorator:
    """Return a repeatable option ``NAME=VALUE`` as a mapping; see `parse_pairs`."""

    def parse_texts(context: click.Context, parameter: click.Parameter, texts: Any) -> Any:
        return parse_pairs(texts, flag, example, **settings)

    return value(flag, name, multiple=True, metavar=metavar, callback=parse_texts, help=help)


def join(*options: Decorator) -> Decorator:
    """Return several options as one decorator, in their order."""
    return lambda command: reduce(lambda found, each: each(found), reversed(options), command)


def damage(what: str, effect: str) -> Decorator:
    """Return the option ``--on-damage`` of a command."""
    help = f"Whether {what} stop {effect}, or are skipped and counted."
    return first_choice("--on-damage", ["error", "skip"], help)


codec = first_choice("--codec", ["none", "zstd"])

generation = value(
    "--generation",
    type=click.IntRange(1),
    metavar="N",
    help="Generation of a growing store. [default: its head]",
)

scheduler = value(
    "--scheduler",
    "client",
    metavar="ADDRESS",
    help="Dask scheduler, such as tcp://10.0.0.1:8786; runs on this machine by default.",
)


#: Options of commands that name steps: the batch sizes of the training.
batches = join(
    value("--global-batch-size", type=int, metavar="B", help="Samples per step."),
    value("--micro-batch-size", type=int, help="Samples per rank and micro-batch."),
    value("--ranks", "num_ranks", type=int, help="Data-parallel ranks."),
)


def processes(help: str) -> Decorator:
    """Return the option ``--processes``."""
    return value("--processes", "num_processes", type=click.IntRange(1), help=help)


#: Options of commands that write records: chunks, shards and where the work runs.
record_store = join(
    codec,
    value("--chunk-nbytes", type=int, default=1 << 16, help="Bytes read at once."),
    value("--shard-nbytes", type=int, default=1 << 26, help="Bytes per file."),
    scheduler,
    processes("Processes on this machine. [default: one per core, one for small inputs]"),
)


def summary(*, timed: bool = False) -> Decorator:
    """Add ``--json`` to a command that returns facts, a text and optionally an exit code.

    Prints the text or, as JSON, the facts, with the duration of the command if ``timed``.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @value("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
        @wraps(command)
        def run(*arguments: Any, as_json: bool, **options: Any) -> None:
            start = time.monotonic()
            printed = command(*arguments, **options)
            if printed is None:
                return
            facts, text, *code = printed
            if timed:
                facts |= {"seconds": time.monotonic() - start}
            click.echo(json.dumps(facts, indent=2) if as_json else text)
            click.get_current_context().exit(*code)

        return run

    return decorate


def choose_processes(scheduler: str | None, num_processes: int | None) -> int | None:
    """Return the number of local processes; 0 chooses by size unless the user chose."""
    return 0 if scheduler is None and num_processes is None else num_processes


def use_record_store(
    *, chunk_nbytes: int, shard_nbytes: int, codec: Any, num_processes: int | None, **settings: Any
) -> dict[str, Any]:
    """Return the settings of a command with `record_store`, with a grid and its processes."""
    from zindex.store.layout import ChunkGrid

    processes = choose_processes(settings["client"], num_processes)
    grid = ChunkGrid(chunk_nbytes, shard_nbytes, codec)
    return settings | {"grid": grid, "num_processes": processes}


def one_or_all(sources: Sequence[str]) -> str | Sequence[str]:
    """Return a single source as a text, several as they are."""
    return sources[0] if len(sources) == 1 else sources


def require_text(text: str) -> str:
    """Return a text that must not be empty."""
    if not text:
        raise ValueError("a side of the sign = is empty")
    return text


def parse_pairs(
    texts: Sequence[str],
    flag: str,
    example: str,
    *,
    parse: Callable[[str], Any] = require_text,
    last: bool = False,
) -> dict[str, Any]:
    """Return the two sides of each ``NAME=VALUE``, split at the first or the last sign."""
    pairs: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.rpartition("=") if last else text.partition("=")
        try:
            pairs |= {require_text(sign and name): parse(value)}
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{flag} must be like {example}, got {text!r}: {error}") from error
    return pairs


def parse_lengths(text: str, flag: str, *, example: str) -> list[int]:
    """Return the numbers of ``N,N``."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{flag} must be numbers such as {example}, got {text}")
    return [int(part) for part in parts]


def refuse(context: click.Context, names: Sequence[str], why: str) -> None:
    """Raise if any of these options was given with a value other than its default."""
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in names and is_given and context.params[name] != parameter.default:
            raise ConfigError(f"{parameter.opts[0]} {why}")


keep_tokenizer = value(
    "--keep-tokenizer/--no-keep-tokenizer",
    default=True,
    help="Keep the files of the tokenizer in the store, or only its identity.",
)


def describe_records(store: Any) -> dict[str, Any]:
    """Return the facts common to all summaries of record stores."""
    return {
        "store": str(store.root),
        "fingerprint": store.fingerprint,
        "num_records": store.spec["num_records"],
        "num_files": store.spec["num_urls"],
        "num_skipped": store.attributes["num_skipped"],
    }


def describe_skipped(count: int) -> str:
    """Return the end of a sentence on damaged records, if there are any."""
    found = count_noun(count, "damaged record or file was", "damaged records or files were")
    return f"; {found} skipped" if count else ""
