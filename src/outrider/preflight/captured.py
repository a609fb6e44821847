"""Which layers of the target an engine would capture for a drafter, and how many states it makes `fc` for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from outrider.preflight.check import Subject, whole
from outrider.preflight.plain_config import plain_config

KEY: Final = "eagle_aux_hidden_state_layer_ids"
NESTED_KEY: Final = f"eagle_config.{KEY}"
_COUNT: Final = "num_aux_hidden_states"
_DEFAULT_NUM_LAYERS: Final = 3
_LARGEST: Final = 2**31
# engine, whether the drafter has MLA → where the number of states that fc takes comes from, first found first
_COUNTED_BY: Final[Mapping[tuple[str, bool], tuple[str, ...]]] = {
    ("vllm", False): (_COUNT, NESTED_KEY),
    ("vllm", True): (_COUNT, NESTED_KEY),
    ("sglang", False): (_COUNT, NESTED_KEY),
    ("sglang", True): (NESTED_KEY, KEY),
    ("reference", False): (KEY, NESTED_KEY),
}
_ANY_PLACE: Final = (KEY, NESTED_KEY, _COUNT)
_Rule = Callable[[tuple[int, ...], int | None], tuple[int, ...]]
# rule of a target's class → layers run, from its ids and L
_RULES: Final[Mapping[str, _Rule]] = {
    "literal": lambda ids, _: ids,
    "plus_one": lambda ids, _: _plus_one(ids),
    "plus_one_if_first_is_1": lambda ids, _: _plus_one(ids) if ids[0] == 1 else ids,
    "plus_one_unless_largest_is_L": lambda ids, num_layers: ids if max(ids) == num_layers else _plus_one(ids),
}


def _plus_one(ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layer + 1 for layer in ids)


@dataclass(frozen=True)
class Captured:
    """What an engine captures.

    Attributes:
        layers: as layers run.
        key: of the drafter's config, dotted, where they come from; empty for the engine's default.
    """

    layers: tuple[int, ...]
    key: str


def captured_layers(subject: Subject) -> Captured | str:
    """By the rules of the engine's version, runner and class of the target; or why it cannot be told.

    No layers at all: none are named, and the engine has no default.
    """
    facts, runner = subject.facts, subject.runner_facts
    num_layers, config = whole(subject.text_config, "num_hidden_layers"), plain_config(subject)
    if runner is None:
        return f"where {subject.engine} looks for aux layers could not be read"
    for key in runner.layer_keys:
        if ids := layer_ids(valued(config, key.path)):
            rule = next((facts.layer_shifts[name] for name in subject.target_classes if name in facts.layer_shifts), None)
            if rule is None:
                return Captured(tuple(layer + key.shift for layer in ids), key.path)
            if rule not in _RULES:
                return f"by which rule {subject.engine} counts the layers of {subject.target_classes[0]} is not known here: {rule}"
            return Captured(_RULES[rule](ids, num_layers), key.path)
    if not facts.default_layers:
        return Captured((), "")
    if num_layers is None:
        return "the target's config does not say how many layers it has"
    layers = tuple(_by_formula(formula, num_layers) for formula in facts.default_layers)
    if None in layers:
        return f"the default layers of {subject.engine} are not known here: {', '.join(facts.default_layers)}"
    return Captured(tuple(layer for layer in layers if layer is not None), "")


def _by_formula(formula: str, num_layers: int) -> int | None:
    """`2`, `L // 2`, `L - 3`."""
    parts = formula.split()
    if len(parts) == 1 and parts[0].isdecimal():
        return int(parts[0])
    if len(parts) != 3 or parts[0] != "L" or not parts[2].isdecimal():
        return None
    other = int(parts[2])
    return {"//": num_layers // (other or 1), "-": num_layers - other, "+": num_layers + other}.get(parts[1])


def num_fc_states(subject: Subject, *, has_mla: bool) -> int:
    """How many target states the engine makes `fc` for."""
    facts, config = subject.facts, plain_config(subject)
    places = _COUNTED_BY.get((facts.engine, has_mla), _ANY_PLACE)
    if places[0] == _COUNT and _COUNT not in facts.drafter_keys:
        return _DEFAULT_NUM_LAYERS
    for place in places:
        count = whole(config, place) if place == _COUNT else len(layer_ids(valued(config, place)) or ())
        if count:
            return count
    return _DEFAULT_NUM_LAYERS


def valued(config: Mapping[str, Any], path: str) -> Any:
    """A config's value at a dotted path; None if there is none."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def layer_ids(value: Any) -> tuple[int, ...] | None:
    """A list of numbers that could be layers."""
    if isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and abs(n) < _LARGEST for n in value):
        return tuple(value)
    return None
