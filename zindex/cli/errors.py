"""Errors as lines of a terminal: options as they are typed, and no path twice."""

import errno
import re

import click

from zindex.io.system_errors import remedy_of

# Messages name an argument with its option: ``overwrite=True (--overwrite)``.
_NAMED = re.compile(r"(\w+(?:=\S+)?) \((--[a-z][^()]*)\)")
# What is wrong with a path; other system errors have the remedies of all readers and writers.
_PATH = "check the path and its permissions"
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: _PATH,
    errno.EISDIR: _PATH,
}


def name_options(message: str, command: click.Command) -> str:
    """Return a message with options as they are typed, in place of arguments of Python.

    Options that the command does not have are left out.

    Examples
    --------
    >>> command = click.Command("export", params=[click.Option(["--overwrite"])])
    >>> name_options("replace it with overwrite=True (--overwrite)", command)
    'replace it with --overwrite'
    >>> name_options("chunk_length (--chunk-length) must be above 0", command)
    'chunk_length must be above 0'
    """
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    parameters = [parameter for each in commands for parameter in each.params]
    known = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
    # Those of a training script are named as they are there.
    takes_all = command.context_settings.get("ignore_unknown_options", False)

    def choose(found: re.Match[str]) -> str:
        flags = found[2].split(" or ")
        typed = [flag for flag in flags if takes_all or flag.split()[0] in known]
        return " or ".join(typed) or found[1]

    return _NAMED.sub(choose, message)


def describe_refusal(error: OSError) -> str:
    """Return the line for a system error that the user can mend."""
    reason = error.strerror or "it fails"
    remedy = _REMEDIES.get(error.errno or 0) or remedy_of(error)
    if error.filename is None:
        return f"the system refuses to read or write a file: {reason}; {remedy}"
    if error.errno == errno.ENOENT:
        return f"{error.filename} does not exist, or its folder does not; {remedy}"
    return f"the system refuses {error.filename}: {reason}; {remedy}"
