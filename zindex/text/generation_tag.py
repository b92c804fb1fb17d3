"""The tag ``{% generation %}`` of chat templates: what stands in it the assistant generates."""

from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

# Variables whose values are written where a block begins and ends; nothing if they are not set.
_START, _STOP = "zindex_generation_start", "zindex_generation_stop"


class GenerationTag(Extension):
    """Writes a mark before and behind a block, where a template is given marks."""

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
        before, behind = (
            nodes.Output([nodes.Name(name, "load", lineno=line)], lineno=line)
            for name in (_START, _STOP)
        )
        # What is set in a block is not seen behind it.
        return [before, nodes.Scope(body, lineno=line), behind]
