"""Finds parameters of public functions that no docstring explains.

A parameter is explained by an entry of `Args:` or `Attributes:`, by its name in backquotes, or by a reference to
another function ("see allreduce()", "as in Keras") in the docstring of the function; for a constructor, of its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe
import python_api

ENTRY = re.compile(r"^ +\*{0,2}(\w+)(?: \([^)]*\))?: ", re.MULTILINE)
REFERENCE = re.compile(r"\b[Ss]ee (?:there|docs/|[\w.]+\(\))|\bas (?:in )?[\w.]+\(\)|\b[Aa]s (?:Horovod|Keras|torch)")
#: Frameworks call these: methods of the process group of torch, and callbacks.
CALLED_BY_FRAMEWORKS = re.compile(r"sirtaki\.torch\.distributed\.\w+\.|.*\.(?:on_\w+|set_model)$")


def text_of(*documented: griffe.Object) -> str:
    """Returns the docstrings of objects, joined."""
    return "\n".join(one.docstring.value for one in documented if one.docstring is not None)


def functions(package: griffe.Module) -> Iterator[tuple[griffe.Function, str]]:
    """Yields each public function and method with its documentation; that of a constructor is that of its class."""
    members = list(python_api.public_members(package))
    public = frozenset(member.path for _, _, member in members)
    for member in {member.path: member for _, _, member in members}.values():
        if isinstance(member, griffe.Function):
            yield member, text_of(member)
        elif isinstance(member, griffe.Class):
            for name, one in python_api.class_members(member, public):
                if isinstance(one, griffe.Function) and (name == "__init__" or not name.startswith("_")):
                    yield one, text_of(member, one) if name == "__init__" else text_of(one)


def unexplained(package: griffe.Module) -> list[str]:
    """Returns one line for each function with parameters that nothing explains."""
    found = []
    for function, text in functions(package):
        if CALLED_BY_FRAMEWORKS.match(function.path) or REFERENCE.search(text):
            continue
        known = set(ENTRY.findall(text)) | set(re.findall(r"`(\w+)", text))
        names = [one.name for one in function.parameters if one.name not in ("self", "cls") and one.name[0] != "_"]
        missing = [name for name in names if name not in known]
        if missing:
            found.append(f"{function.path}: {', '.join(missing)}")
    return sorted(set(found))
