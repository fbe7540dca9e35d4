"""Modules of the library as syntax trees: what they import and which dotted names they use."""

import ast
from collections.abc import Iterator
from pathlib import Path

import dpbilevel

SOURCE = Path(dpbilevel.__file__).parent


MODULES = {
    ".".join(("dpbilevel", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imports(tree: ast.AST, module: str) -> Iterator[tuple[str, ast.stmt]]:
    """Full dotted names that a tree imports; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def dotted_uses(tree: ast.AST, module: str) -> Iterator[str]:
    """Full dotted names of all attributes that are used, with import aliases resolved: jnp.x is jax.numpy.x."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in aliases:
            yield ".".join([aliases[node.id], *reversed(names)])


def within(name: str, roots: set[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)
