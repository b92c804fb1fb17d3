"""Options that several commands have."""

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, such as tcp://10.0.0.1:8786; without it this machine does the work.",
)
