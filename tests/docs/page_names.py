"""Finds names of Sirtaki in Python code that do not exist; a process of its own, since it imports every framework.

usage: page_names.py < JSON of {name: code}; prints JSON of {name: names that do not exist}
"""

from __future__ import annotations

import ast
import importlib
import json
import sys


def missing_names(tree: ast.AST) -> list[str]:
    """Returns the names of Sirtaki that the code imports or uses and that do not exist."""
    modules: dict[str, object] = {"hvd": importlib.import_module("sirtaki.torch")}
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "sirtaki":
                    module = importlib.import_module(name.name)
                    modules[name.asname or "sirtaki"] = module if name.asname else importlib.import_module("sirtaki")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sirtaki":
            module = importlib.import_module(node.module or "")
            missing += [f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name)]
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    names = [(node.value.id, node.attr) for node in used if isinstance(node.value, ast.Name)]
    missing += [f"{name}.{attr}" for name, attr in names if name in modules and not hasattr(modules[name], attr)]
    return missing


if __name__ == "__main__":
    print(json.dumps({name: missing_names(ast.parse(code)) for name, code in json.load(sys.stdin).items()}))
