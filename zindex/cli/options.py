"""Options that several commands have."""

from collections.abc import Callable

import click

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, such as tcp://10.0.0.1:8786; without it this machine does the work.",
)


def join_options(*options: Decorator) -> Decorator:
    """Return several options as one decorator, in their order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Of commands that write records: how their arrays are cut, and where the work is done.
record_store_options = join_options(
    click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True),
    click.option(
        "--chunk-nbytes", type=int, default=1 << 16, show_default=True, help="What is read at once."
    ),
    click.option(
        "--shard-nbytes", type=int, default=1 << 26, show_default=True, help="A multiple, per file."
    ),
    scheduler_option,
    click.option(
        "--processes",
        "num_processes",
        type=click.IntRange(1),
        help="Of this machine; one for each core if left out.",
    ),
)
