"""The Jinja tag ``{% generation %}``, which marks what the assistant generates."""

from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

# Variables that are rendered at the beginning and the end of a block; unset ones are empty.
_START, _STOP = "zindex_generation_start", "zindex_generation_stop"


class GenerationTag(Extension):
    """Renders markers around a block if the template has them as variables."""

    tags = {"generation"}  # noqa: RUF012

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        environment.extend(zindex_has_generation=False, zindex_mark_names=(_START, _STOP))

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes of one block."""
        environment: Any = self.environment
        environment.zindex_has_generation = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, stop = (
            nodes.Output([nodes.Name(name, "load", lineno=line)], lineno=line)
            for name in (_START, _STOP)
        )
        # Variables that a block sets are local to it.
        return [start, nodes.Scope(body, lineno=line), stop]
