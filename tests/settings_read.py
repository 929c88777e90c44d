"""Which settings does the code read? A static look at every attribute that is taken from a settings
object.

The classes of an expression follow from annotations: a parameter or field `settings: HintSettings`,
a parameter of one of the package's own classes that has such a field, a call of `Config()`, a name
assigned from such an expression, and attributes of those. `x.weight` on anything else does not
count, so a field that shares its name with something used elsewhere is still found.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from composer_replication.core.config.base import Settings
from composer_replication.core.config.load_config import walk_fields
from composer_replication.core.config.root import Config

Names = frozenset[str]  # classes that an expression may be an instance of
NOTHING: Names = frozenset()


def settings_classes(group: type[Settings] = Config) -> dict[str, type[Settings]]:
    """Every settings class below Config, by name."""
    classes = {group.__name__: group}
    for field in group.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            classes |= settings_classes(field.annotation)
    return classes


CLASSES = settings_classes()


def annotated(annotation: ast.expr | None, among: Names) -> Names:
    """The classes that an annotation names (`X`, `X | None`, "X")."""
    if annotation is None:
        return NOTHING
    names = (
        (
            node.id
            if isinstance(node, ast.Name)
            else node.value
            if isinstance(node, ast.Constant)
            else None
        )
        for node in ast.walk(annotation)
    )
    return frozenset(name for name in names if isinstance(name, str) and name in among)


class Holders:
    """The package's own classes that hold settings: class -> attribute -> classes."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.of: dict[str, dict[str, Names]] = defaultdict(dict)
        nodes = [
            node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        ]
        for _ in range(3):  # a class that holds a holder is one too
            for node in nodes:
                self.of[node.name] |= dict(self._fields(node))
        self.by_attribute: dict[str, Names] = defaultdict(frozenset)
        for fields in self.of.values():
            for name, classes in fields.items():
                self.by_attribute[name] |= classes

    @property
    def known(self) -> Names:
        """Names that are worth following: settings and their holders."""
        return frozenset(CLASSES) | {name for name, fields in self.of.items() if fields}

    def _fields(self, node: ast.ClassDef) -> Iterator[tuple[str, Names]]:
        for item in node.body:
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and (names := annotated(item.annotation, self.known))
            ):
                yield item.target.id, names
            elif isinstance(item, ast.FunctionDef) and (
                names := annotated(item.returns, self.known)
            ):
                yield item.name, names


class Reader(ast.NodeVisitor):
    """Follows settings through one module and notes (class, field) of every read."""

    def __init__(self, holders: Holders) -> None:
        self.holders = holders
        self.scopes: list[dict[str, Names]] = [{}]
        # attributes of the class at hand, as its __init__ sets them
        self.of_self: dict[str, Names] = {}
        self.read: set[tuple[str, str]] = set()

    def classes_of(self, node: ast.expr) -> Names:
        """The possible classes of an expression."""
        if isinstance(node, ast.Name):
            return next(
                (scope[node.id] for scope in reversed(self.scopes) if node.id in scope), NOTHING
            )
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            return frozenset({name} & self.holders.known)
        if not isinstance(node, ast.Attribute):
            return NOTHING
        if (
            isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and node.attr in self.of_self
        ):
            return self.of_self[node.attr]
        owners = self.classes_of(node.value)
        if not owners:  # an object of a class that is not followed: whoever has such an attribute
            return self.holders.by_attribute.get(node.attr, NOTHING)
        return frozenset().union(*(self._attribute(owner, node.attr) for owner in owners))

    def _attribute(self, owner: str, name: str) -> Names:
        if owner not in CLASSES:
            return self.holders.of[owner].get(name, NOTHING)
        field = CLASSES[owner].model_fields.get(name)
        inner = field.annotation if field is not None else None
        return frozenset({inner.__name__} & CLASSES.keys()) if isinstance(inner, type) else NOTHING

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.of_self = self.of_self, dict(self.holders.of[node.name])
        self.generic_visit(node)
        self.of_self = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.scopes.append(
            {
                a.arg: names
                for a in arguments
                if (names := annotated(a.annotation, self.holders.known))
            }
        )
        self.generic_visit(node)
        self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for left, right in pairs:
                names = self.classes_of(right)
                if names and isinstance(left, ast.Name):
                    self.scopes[-1][left.id] = names
                elif names and isinstance(left, ast.Attribute):
                    self.of_self[left.attr] = names

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            self.read |= {(owner, node.attr) for owner in self.classes_of(node.value)}


def unread_settings(package: Path) -> list[str]:
    """Dotted names of the settings that no module outside core/config reads."""
    files = [p for p in package.rglob("*.py") if "config" not in p.relative_to(package).parts]
    trees = [
        ast.parse(p.read_text("utf-8"))
        for p in (*files, package / "core" / "config" / "load_config.py")
    ]
    holders = Holders(trees)
    read: set[tuple[str, str]] = set()
    for tree in trees:
        reader = Reader(holders)
        reader.visit(tree)
        read |= reader.read
    return [".".join(key) for key, _ in walk_fields() if (owner_of(key), key[-1]) not in read]


def owner_of(key: tuple[str, ...]) -> str:
    """The class that holds a dotted key's last part."""
    group: type[Settings] = Config
    for part in key[:-1]:
        inner = group.model_fields[part].annotation
        assert isinstance(inner, type) and issubclass(inner, Settings)
        group = inner
    return group.__name__
