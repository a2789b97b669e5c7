"""Finds parameters, results and errors of public functions that no docstring explains.

A parameter is explained by an entry of `Args:` or `Attributes:`, by its name in backquotes, or by a reference to
another function ("see allreduce()", "as in Keras") in the docstring of the function; for a constructor, of its class.
A result is explained by a section `Returns:` or `Yields:`, or by a sentence with "Returns". An error that the function
itself raises is explained by its class, in a section `Raises:` or in a sentence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import griffe
import python_api

ENTRY = re.compile(r"^ +\*{0,2}(\w+)(?: \([^)]*\))?: ", re.MULTILINE)
REFERENCE = re.compile(r"\b[Ss]ee (?:there|docs/|[\w.]+\(\))|\bas (?:in )?[\w.]+\(\)|\b[Aa]s (?:Horovod|Keras|torch)")
RESULT = re.compile(r"\b(?:[Rr]eturn(?:s|ed)|[Yy]ields)\b")
NO_RESULT = ("None", "NoReturn", "Never")
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


def without_result(package: griffe.Module) -> list[str]:
    """Returns the functions that return something of which their docstring says nothing."""
    found = set()
    for function, text in functions(package):
        if CALLED_BY_FRAMEWORKS.match(function.path) or REFERENCE.search(text) or function.name == "__init__":
            continue
        if str(function.returns) not in NO_RESULT and not RESULT.search(text):
            found.add(function.path)
    return sorted(found)


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the syntax tree of a source file."""
    return ast.parse(path.read_text())


def raised_in(node: ast.AST) -> Iterator[str]:
    """Yields the names of the classes that a body raises, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            error = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            name = error.attr if isinstance(error, ast.Attribute) else getattr(error, "id", "")
            # Methods for subclasses raise NotImplementedError.
            if name.endswith(("Error", "Exception", "Exit", "Iteration")) and name != "NotImplementedError":
                yield name
        yield from raised_in(child)


def body_of(function: griffe.Function) -> ast.AST:
    """Returns the syntax tree of a function; an empty one if no source has it, as for constructors of dataclasses."""
    assert isinstance(function.filepath, Path)
    lines = range(function.lineno or 0, (function.endlineno or 0) + 1)
    nodes = [node for node in ast.walk(tree_of(function.filepath)) if isinstance(node, ast.FunctionDef)]
    return next((node for node in nodes if node.name == function.name and node.lineno in lines), ast.Pass())


def ancestors(name: str, bases: Mapping[str, list[str]]) -> set[str]:
    """Returns the names of a class of errors and of its bases, without those that any error has."""
    found = {name}.union(*(ancestors(base, bases) for base in bases.get(name, [])))
    return found - {"Exception", "SirtakiError"}


def unexplained_errors(package: griffe.Module) -> list[str]:
    """Returns one line for each function that raises errors whose docstring names neither their class nor a base."""
    found = []
    classes = package["errors"].classes.values() if "errors" in package.members else ()
    bases = {error.name: [str(base) for base in error.bases] for error in classes}
    for function, text in functions(package):
        if CALLED_BY_FRAMEWORKS.match(function.path) or REFERENCE.search(text):
            continue
        raised = set(raised_in(body_of(function)))
        missing = sorted(name for name in raised if not any(one in text for one in ancestors(name, bases)))
        if missing:
            found.append(f"{function.path}: {', '.join(missing)}")
    return sorted(set(found))
