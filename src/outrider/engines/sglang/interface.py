"""Which target classes hand out states for EAGLE-3, and which layers they capture for the ids of a drafter's config."""

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.engines.sglang.classes import Classes, ClassText, Method
from outrider.engines.sglang.source import Source, parsed

CAPTURE: Final = "set_eagle3_layers_to_capture"
# the drafter is given the target's embedding through one of these, right after both are loaded
_EMBEDDING: Final = ("get_embed_and_head", "get_embed_and_head_for_draft")
# (adds one somewhere, takes the ids as they stand somewhere, by which condition) → rule
_RULES: Final = {
    (True, False, ""): "plus_one",
    (False, True, ""): "literal",
    (True, True, "layer_ids[0] == 1"): "plus_one_if_first_is_1",
    (True, True, "max(layer_ids) == num_layers"): "plus_one_unless_largest_is_L",
}
_CONDITIONS: Final = tuple(condition for *_, condition in _RULES if condition)


@dataclass(frozen=True)
class Interface:
    """The target classes that can feed a drafter.

    Attributes:
        classes: that have both methods, inherited ones included.
        shifts: class → rule for its layer ids, `unknown` where its text is not understood.
        default_layers: what most of them capture without ids, as formulas of L.
    """

    classes: frozenset[str]
    evidence: str
    shifts: Mapping[str, str]
    default_layers: tuple[str, ...]


def interface_of(source: Source, models: Classes, targets: Mapping[str, ClassText]) -> Interface:
    """Read it from the model files; no class at all where nothing could be read."""
    found = {name: method for name, text in targets.items() if (method := _capture(models, text))}
    shifts = {name: _shift(models, targets[name], method) for name, method in found.items()}
    counted = Counter(layers for method in found.values() if (layers := _default_layers(method)))
    if not found:
        return Interface(frozenset(), f"no class with {CAPTURE} in sglang/srt/models", {}, ())
    first = found.get("LlamaForCausalLM") or next(iter(found.values()))
    half = [name for name, text in targets.items() if name not in found and models.method(text, CAPTURE)]
    evidence = (
        f"{source.place(first.owner.path, first.offset)} {CAPTURE}: {len(found)} of {len(targets)} target classes have it "
        f"and {_EMBEDDING[0]}" + (f"; without the latter: {', '.join(half)}" if half else "")
    )
    return Interface(frozenset(found), evidence, shifts, counted.most_common(1)[0][0] if counted else ())


def _capture(models: Classes, text: ClassText) -> Method | None:
    has_embedding = any(models.method(text, name) for name in _EMBEDDING)
    return models.method(text, CAPTURE) if has_embedding else None


def _shift(models: Classes, text: ClassText, method: Method) -> str:
    """The rule by which a method makes layers of ids; that of the class it passes them on to, where it does."""
    tree = parsed(textwrap.dedent(method.text))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if passed_on := re.fullmatch(rf"self\.(\w+)\.{CAPTURE}\(layer_ids\)", ast.unparse(call)):
            inner = _held(models, text, passed_on[1])
            further = models.method(inner, CAPTURE) if inner else None
            return _shift(models, inner, further) if inner and further and further != method else "unknown"
    written = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.expr)]
    adds = any(re.fullmatch(r"\[(\w+) \+ 1 for \1 in layer_ids\]", part) for part in written)
    as_they_stand = "list(layer_ids)" in written
    condition = next((condition for condition in _CONDITIONS if condition in written), "")
    return _RULES.get((adds, as_they_stand, condition), "unknown")


def _held(models: Classes, text: ClassText, attribute: str) -> ClassText | None:
    """The class whose instance a class keeps under a name."""
    for owner in models.lineage(text):
        for name in re.findall(rf"^\s+self\.{attribute} = (\w+)\(", owner.body, re.MULTILINE):
            if held := models.find(owner.path, name):
                return held
    return None


def _default_layers(method: Method) -> tuple[str, ...]:
    for node in ast.walk(parsed(textwrap.dedent(method.text))):
        if isinstance(node, ast.List) and node.elts and "num_layers" in ast.unparse(node):
            return tuple(ast.unparse(part).replace("num_layers", "L") for part in node.elts)
    return ()
