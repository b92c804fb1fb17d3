"""Run a Megatron script on zindex: ``python -m zindex.megatron [--order scalable] SCRIPT ...``."""

import os
import runpy
import sys
from collections.abc import Sequence

import click

from zindex.errors import ZindexError
from zindex.megatron.install import install


@click.command(
    "python -m zindex.megatron",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--order",
    type=click.Choice(["megatron", "scalable"]),
    default="megatron",
    show_default=True,
    help="Order of the samples: Megatron's, or the scalable one.",
)
@click.option(
    "--store",
    type=click.Choice(["all", "minimal"]),
    default="all",
    show_default=True,
    help="minimal omits the arrays that the scalable order computes on read.",
)
@click.option(
    "--sft-rules",
    type=click.Choice(["0.14", "0.15", "0.16", "0.17", "main", "dev"]),
    help="Version of Megatron whose rules pack conversations (--sft); 0.17 applies to 0.18. "
    "[default: dev with hybrid or dynamic context parallelism, otherwise the installed version]",
)
@click.option(
    "--bert-rules",
    type=click.Choice(["0.17", "main"]),
    help="Version of Megatron whose random tokens BERT gets: from the tokenizer's order until "
    "0.17, from sorted ids since. [default: the installed version]",
)
@click.option(
    "--fim-draws",
    type=click.Choice(["keyed", "sequential"]),
    default="keyed",
    show_default=True,
    help="Random numbers of fill-in-the-middle (--fim-data): keyed by sample, or as Megatron draws "
    "them, to continue a run of Megatron.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_script(
    order: str,
    store: str,
    sft_rules: str | None,
    bert_rules: str | None,
    fim_draws: str,
    is_module: bool,
    script: str,
    arguments: Sequence[str],
) -> None:
    """Run a Megatron script, unmodified, with zindex's datasets instead of Megatron's."""
    try:
        own = {"sft_rules": sft_rules, "bert_rules": bert_rules}
        own = {name: rules for name, rules in own.items() if rules is not None}
        install(order=order, store=store, fim_draws=fim_draws, **own)
    except ZindexError as error:
        raise click.ClickException(str(error)) from error
    if not (is_module or os.path.exists(script)):
        raise click.ClickException(f"there is no script {script}; check the path, or give -m")
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(script)))
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name == "megatron":
            error.add_note(
                "zindex replaces the datasets of Megatron, which must be installed itself: install "
                "megatron-core, or import zindex.datasets in the script"
            )
        raise


if __name__ == "__main__":
    run_script(standalone_mode=True)
