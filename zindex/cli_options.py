"""Options that several commands have."""

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
