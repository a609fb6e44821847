"""What vLLM makes of a drafter's config before it looks its architecture up: `SpeculativeConfig.hf_config_override`.

The method is a long row of conditions on the model_type and the first architecture. It is run here, statement by
statement, on a config of which only one of the two is known; conditions on anything else cannot be told, and what stands
under them is left out.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from outrider.engines.facts import Rewrite
from outrider.engines.vllm.gates import config_file
from outrider.engines.vllm.source import Source, called, dotted

_METHOD: Final = "hf_config_override"
_ARGUMENT: Final = "hf_config"
_UNTOLD: Final = object()
# a name that no source mentions, for the half of the config that is not known
_OTHER: Final = "\0"


def rewrites(source: Source) -> tuple[Rewrite, ...]:
    """Every change, those to which another leads first: applied in order, or the first that fits, the outcome is the same."""
    path = config_file(source)
    method = source.find(path, _METHOD)
    if not isinstance(method, ast.FunctionDef):
        return ()
    found: dict[tuple[str, str, int], tuple[list[str], list[str]]] = {}
    for word in dict.fromkeys(_words(method)):
        for is_type, run in ((True, _Run(word, _OTHER)), (False, _Run(_OTHER, word))):
            run.statements(method.body)
            if run.changed_at is not None and run.is_told:
                becomes = run.architecture if run.architecture not in (word, _OTHER) else ""
                becomes_type = run.model_type if run.model_type not in (word, _OTHER) else ""
                found.setdefault((becomes, becomes_type, run.changed_at.lineno), ([], []))[not is_type].append(word)
    made = [
        (line, Rewrite(tuple(types), tuple(architectures), becomes, becomes_type, f"vllm/{path}:{line}"))
        for (becomes, becomes_type, line), (types, architectures) in found.items()
    ]
    results = {rewrite.becomes_type for _, rewrite in made}
    return tuple(rewrite for line, rewrite in sorted(made, key=lambda one: (results.isdisjoint(one[1].types), one[0])))


def _words(method: ast.FunctionDef) -> Iterator[str]:
    """Every string of its conditions."""
    for node in ast.walk(method):
        if isinstance(node, ast.If | ast.IfExp | ast.Assign):
            inside = node.value if isinstance(node, ast.Assign) else node.test
            for compare in ast.walk(inside):
                if isinstance(compare, ast.Compare):
                    constants = [n.value for n in ast.walk(compare) if isinstance(n, ast.Constant)]
                    yield from (value for value in constants if isinstance(value, str) and value)


@dataclass
class _Run:
    """The state of one run.

    Attributes:
        changed_at: the condition under which the config was changed first.
        is_told: whether every architecture that was set could be told.
    """

    model_type: str
    architecture: str
    changed_at: ast.If | None = None
    is_told: bool = True

    def __post_init__(self) -> None:
        self._values: dict[str, object] = {}
        self._within: ast.If | None = None

    def statements(self, body: list[ast.stmt]) -> bool:
        """Run statements; returns whether they ended with a return."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return True
            if isinstance(statement, ast.If):
                if self._branch(statement):
                    return True
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], self._value(statement.value))
            elif isinstance(statement, ast.Expr) and called(statement.value) == "update" and isinstance(statement.value, ast.Call):
                self._update(statement.value)
        return False

    def _branch(self, statement: ast.If) -> bool:
        holds = self._value(statement.test)
        if holds is _UNTOLD:
            return False
        outer, self._within = self._within, statement if holds else self._within
        returned = self.statements(statement.body if holds else statement.orelse)
        self._within = outer
        return returned

    def _assign(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Attribute) and dotted(target) == f"{_ARGUMENT}.model_type":
            self._change(self.architecture, value)
        elif isinstance(target, ast.Name):
            self._values[target.id] = value
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            table, key = self._values.get(target.value.id), self._value(target.slice)
            if isinstance(table, dict) and isinstance(key, str):
                table[key] = value

    def _update(self, call: ast.Call) -> None:
        changes = self._value(call.args[0]) if call.args and dotted(call.func) == f"{_ARGUMENT}.update" else None
        if isinstance(changes, dict) and "architectures" in changes:
            architectures = changes["architectures"]
            named = architectures[0] if isinstance(architectures, tuple) and architectures else _UNTOLD
            self.is_told = self.is_told and isinstance(named, str)
            self._change(named, self.model_type)

    def _change(self, architecture: object, model_type: object) -> None:
        if not isinstance(architecture, str) or not isinstance(model_type, str):
            return
        if (architecture, model_type) != (self.architecture, self.model_type):
            self.architecture, self.model_type = architecture, model_type
            self.changed_at = self.changed_at or self._within

    def _value(self, node: ast.expr) -> object:
        """What an expression is, as far as it can be told."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Tuple() | ast.List() | ast.Set():
                return tuple(self._value(part) for part in node.elts)
            case ast.Dict():
                return {self._value(key): self._value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
            case ast.Name():
                return self._values.get(node.id, _UNTOLD)
            case ast.NamedExpr():
                self._assign(node.target, self._value(node.value))
                return self._value(node.target)
            case ast.Attribute():
                return self.model_type if dotted(node) == f"{_ARGUMENT}.model_type" else _UNTOLD
            case ast.Subscript():
                return self._item(node)
            case ast.IfExp():
                test = self._value(node.test)
                return _UNTOLD if test is _UNTOLD else self._value(node.body if test else node.orelse)
            case ast.BoolOp() | ast.UnaryOp() | ast.Compare():
                return self._truth(node)
        return _UNTOLD

    def _item(self, node: ast.Subscript) -> object:
        if dotted(node.value) == f"{_ARGUMENT}.architectures":
            return self.architecture
        table, key = self._value(node.value), self._value(node.slice)
        return table.get(key, _UNTOLD) if isinstance(table, dict) and isinstance(key, str) else _UNTOLD

    def _truth(self, node: ast.BoolOp | ast.UnaryOp | ast.Compare) -> object:
        if isinstance(node, ast.BoolOp):
            told = [self._value(value) for value in node.values]
            deciding = isinstance(node.op, ast.Or)
            if any(value is not _UNTOLD and bool(value) is deciding for value in told):
                return deciding
            return _UNTOLD if _UNTOLD in told else not deciding
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand)
            return not value if isinstance(node.op, ast.Not) and value is not _UNTOLD else _UNTOLD
        left, right = self._value(node.left), self._value(node.comparators[0])
        if _UNTOLD in (left, right) or len(node.ops) > 1:
            return _UNTOLD
        match node.ops[0]:
            case ast.Eq() | ast.NotEq():
                return (left == right) is isinstance(node.ops[0], ast.Eq)
            case ast.In() | ast.NotIn() if isinstance(right, str | tuple | dict) and isinstance(left, str):
                return (left in right) is isinstance(node.ops[0], ast.In)
            case ast.Is() | ast.IsNot():
                return (left is right) is isinstance(node.ops[0], ast.Is)
        return _UNTOLD
