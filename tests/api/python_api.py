"""Lists the public Python API: the names of each public module with their signatures, read from the sources.

usage: python_api.py [--write]; --write refreshes python_api.txt instead of printing the list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / "adapters/python"
LIST = HERE / "python_api.txt"
COMMAND = ".venv/bin/python tests/api/python_api.py --write"

#: Modules that programs import. CONTRIBUTING.md says how their names may change; all other modules are internal.
PUBLIC = (
    "sirtaki",
    "sirtaki.elastic",
    "sirtaki.torch",
    "sirtaki.torch.ddp",
    "sirtaki.torch.fsdp",
    "sirtaki.torch.elastic",
    "sirtaki.torch.distributed",
    "sirtaki.lightning",
    "sirtaki.pytorch_lightning",
    "sirtaki.huggingface",
    "sirtaki.tensorflow",
    "sirtaki.tensorflow.elastic",
    "sirtaki.tensorflow.util",
    "sirtaki.tensorflow.keras",
    "sirtaki.keras",
    "sirtaki.keras.callbacks",
    "sirtaki.keras.elastic",
)


def load(folder: Path = PYTHON) -> griffe.Module:
    """Returns the package, read without importing it."""
    module = griffe.load(
        "sirtaki",
        search_paths=[folder],
        resolve_aliases=True,
        resolve_external=False,
        allow_inspection=False,
        docstring_parser="google",
    )
    assert isinstance(module, griffe.Module)
    return module


def packages(package: griffe.Module) -> Iterator[str]:
    """Yields the packages without an underscore in their path."""
    if package.is_init_module and not package.name.startswith("_"):
        yield package.path
        for module in package.modules.values():
            if not module.is_alias:
                yield from packages(module)


def names_of(module: griffe.Module) -> list[str]:
    """Returns the public names of a module: those of `__all__`, else those that it defines without an underscore."""
    if module.exports is not None:
        return sorted({str(name) for name in module.exports})
    return sorted(name for name, member in module.members.items() if not name.startswith("_") and not member.is_alias)


def value_line(value: griffe.Attribute, name: str) -> str:
    """Returns the line of a variable or property, with its type if the source has one."""
    return name if value.annotation is None else f"{name}: {value.annotation}"


def class_members(cls: griffe.Class, public: frozenset[str]) -> Iterator[tuple[str, griffe.Object]]:
    """Yields the members of a class, and those of its internal bases; public bases have lines of their own."""
    for key, member in sorted(cls.all_members.items()):
        target = member.final_target if member.is_alias else member
        assert isinstance(target, griffe.Object)
        owner = target.parent.path if target.parent else ""
        if target.path.startswith("sirtaki.") and (owner == cls.path or owner not in public):
            yield key, target


def class_lines(cls: griffe.Class, name: str, public: frozenset[str]) -> Iterator[str]:
    """Yields the line of a class, and one for each public member."""
    bases = ", ".join(str(base) for base in cls.bases)
    yield f"class {name}({bases})" if bases else f"class {name}"
    for key, member in class_members(cls, public):
        if isinstance(member, griffe.Function) and key == "__init__":
            yield f"  {member.signature(return_type=False)}"
        elif key.startswith("_"):
            continue
        elif isinstance(member, griffe.Function):
            yield f"  {member.signature(name=key)}"
        elif isinstance(member, griffe.Attribute):
            yield f"  {value_line(member, key)}"


def lines_of(name: str, member: griffe.Object, public: frozenset[str]) -> Iterator[str]:
    """Yields the lines of a public name."""
    if isinstance(member, griffe.Function):
        yield member.signature(name=name)
    elif isinstance(member, griffe.Class):
        yield from class_lines(member, name, public)
    elif isinstance(member, griffe.Attribute):
        yield value_line(member, name)
    else:
        yield f"module {name}"


def public_members(package: griffe.Module) -> Iterator[tuple[str, str, griffe.Object]]:
    """Yields module, name and definition of each public name."""
    for path in PUBLIC:
        module = package if path == package.path else package[path.removeprefix(f"{package.path}.")]
        for name in names_of(module):
            member = module.members[name]
            yield path, name, member.final_target if member.is_alias else member


def api_text(package: griffe.Module) -> str:
    """Returns the list; a name that an earlier module has already is one line."""
    seen: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    members = list(public_members(package))
    public = frozenset(member.path for _, _, member in members)
    for module, name, member in members:
        lines = sections.setdefault(module, [f"# {module}"])
        if member.path in seen:
            lines.append(f"{name} = {seen[member.path]}")
            continue
        seen[member.path] = f"{module}.{name}"
        lines += lines_of(name, member, public)
    return "\n\n".join("\n".join(lines) for lines in sections.values()) + "\n"


def main() -> int:
    """Command line."""
    text = api_text(load())
    if "--write" in sys.argv[1:]:
        LIST.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
