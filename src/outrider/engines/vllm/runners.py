"""The model runners of a vLLM: V1 (v1/worker/gpu_model_runner.py with v1/spec_decode) and V2 (v1/worker/gpu)."""

import ast
from collections.abc import Iterator
from typing import Final, Literal

from outrider.engines.facts import ImageToken, LayerKey, RunnerFacts
from outrider.engines.vllm.source import Source, called, dotted, key_read, names, place, strings

_V1: Final = "v1/worker/gpu_model_runner.py"
_V1_PROPOSERS: Final = ("v1/spec_decode/llm_base_proposer.py", "v1/spec_decode/eagle.py")
_V2: Final = "v1/worker/gpu/model_runner.py"
_V2_LAYERS: Final = "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"
_IMAGE_TOKEN: Final = "image_token_index"
_SET_LAYERS: Final = "set_aux_hidden_state_layers"
# keys that speak of the layers of other algorithms
_NOT_EAGLE: Final = ("dflash", "dspark")


def runners(source: Source) -> dict[str, RunnerFacts]:
    """The runners that know EAGLE-3, by name."""
    found: dict[str, RunnerFacts] = {}
    if "eagle3" in source.text(_V1):
        keys, keys_evidence = _layer_keys(source, _V1, "_get_eagle3_aux_layers_from_config")
        classes, classes_evidence = _drafter_classes(source)
        error = _interface_error(source, _V1)
        found["V1"] = RunnerFacts(keys, keys_evidence, _image_token(source), classes, classes_evidence, error, _v1_pipeline(source))
    if "eagle3" in source.text(_V2_LAYERS):
        keys, keys_evidence = _layer_keys(source, _V2_LAYERS, "get_eagle3_aux_layers_from_config")
        error = _interface_error(source, _V2_LAYERS)
        found["V2"] = RunnerFacts(keys, keys_evidence, None, None, "", error, _v2_pipeline(source))
    return found


def _layer_keys(source: Source, path: str, name: str) -> tuple[tuple[LayerKey, ...], str]:
    """Where the ids of aux layers are looked for, in the order of the source."""
    function = source.find(path, name)
    if function is None:
        calls = (node for node in ast.walk(source.tree(path)) if called(node) == _SET_LAYERS)
        call = next(calls, None)
        says = "the target's own layers, whatever the drafter's config says"
        return (), f"{place(path, call)} {says}" if call else f"no {name} and no {_SET_LAYERS} in vllm/{path}"
    reader = _LayerReader()
    for node in _in_order(function):
        reader.statement(node)
    kept = dict.fromkeys(key for key in reader.keys if not key.path.startswith(_NOT_EAGLE))
    return tuple(kept), place(path, function)


class _LayerReader:
    """Follows which names stand for which nested config, and which ids are read from where.

    Attributes:
        keys: in the order in which they are looked at.
    """

    def __init__(self) -> None:
        self.keys: list[LayerKey] = []
        self._holders: dict[str, tuple[str, ...]] = {"hf_config": ("",)}
        self._words: dict[str, tuple[str, ...]] = {}
        self._ids: dict[str, str] = {}

    def statement(self, node: ast.AST) -> None:
        """Look at one statement; they come in the order of the text."""
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and strings(node.iter):
            self._words[node.target.id] = strings(node.iter)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, shift = node.targets[0].id, _shift(node.value)
            self._shift_ids(node.value, shift)
            for holder, key in self._reads(node.value):
                if "layer_ids" in key:
                    self._ids[name] = f"{holder}.{key}".lstrip(".")
                    self.keys.append(LayerKey(self._ids[name], shift))
                else:
                    self._holders[name] = (*self._holders.get(name, ()), key)

    def _reads(self, value: ast.expr) -> Iterator[tuple[str, str]]:
        """Which keys an expression reads, and of which nested config."""
        for node in ast.walk(value):
            read = key_read(node)
            if read is None and isinstance(node, ast.Attribute) and node.attr.endswith("layer_ids"):
                read = (dotted(node.value), node.attr)
            if read and read[0] in self._holders:
                yield from ((holder, read[1]) for holder in self._holders[read[0]])
            elif called(node) == "getattr" and isinstance(node, ast.Call) and isinstance(node.args[1], ast.Name):
                yield from (("", word) for word in self._words.get(node.args[1].id, ()) if dotted(node.args[0]) in self._holders)

    def _shift_ids(self, value: ast.expr, shift: int) -> None:
        """`[i + 1 for i in NAME]`, where NAME was read before."""
        path = self._ids.get(dotted(value.generators[0].iter), "") if isinstance(value, ast.ListComp) else ""
        self.keys = [LayerKey(key.path, shift) if key.path == path else key for key in self.keys]


def _shift(value: ast.expr) -> int:
    """What `[i + 1 for i in …]` adds to each id."""
    added = value.elt.right if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.BinOp) else None
    return added.value if isinstance(added, ast.Constant) and isinstance(added.value, int) else 0


def _in_order(function: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node in the order of the text."""
    return iter(sorted((n for n in ast.walk(function) if isinstance(n, ast.stmt)), key=lambda n: (n.lineno, n.col_offset)))


def _image_token(source: Source) -> ImageToken | None:
    """`self.model.config.image_token_index = target_model.config.ATTRIBUTE`, under conditions on the target's class."""
    for path in _V1_PROPOSERS:
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.If) and called(node.test) == "supports_multimodal":
                chosen = dict(_chosen(node.body))
                if "" in chosen:
                    place_of = next(n for n in _in_order(node) if _token_read(n))
                    by_class = {name: attribute for name, attribute in chosen.items() if name}
                    return ImageToken(chosen[""], by_class, place(path, place_of))
    return None


def _chosen(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Target class → the attribute that is read for it; no class: for all others."""
    for statement in body:
        if attribute := _token_read(statement):
            yield "", attribute
        elif isinstance(statement, ast.If) and any(_token_read(inner) for inner in ast.walk(statement)):
            classes = [name for part in ast.walk(statement.test) for name in strings(part)]
            for inner in statement.body:
                yield from ((name, attribute) for name in classes if (attribute := _token_read(inner)))
            yield from _chosen(statement.orelse)


def _token_read(node: ast.AST) -> str:
    """The attribute of the target's config that one assignment reads; empty for any other statement."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == _IMAGE_TOKEN:
        return dotted(node.value).partition("target_model.config.")[2]
    return ""


def _drafter_classes(source: Source) -> tuple[tuple[str, ...] | None, str]:
    """`assert isinstance(MODEL, (Eagle3LlamaForCausalLM, …))`."""
    for path in _V1_PROPOSERS:
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Assert) and called(node.test) == "isinstance" and isinstance(node.test, ast.Call):
                asked = node.test.args[1]
                classes = tuple(dotted(part) for part in getattr(asked, "elts", [asked]))
                if any(name.startswith("Eagle3") for name in classes):
                    return classes, place(path, node)
    return None, ""


def _interface_error(source: Source, path: str) -> str:
    """What is raised where supports_eagle3 says no; before that was asked, what Python says of a method that is not there."""
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.If) and "supports_eagle3" in names(node.test):
            raised = next((inner for inner in ast.walk(node) if isinstance(inner, ast.Raise)), None)
            if raised and isinstance(raised.exc, ast.Call) and raised.exc.args:
                return f"{called(raised.exc)}: {' '.join(strings(raised.exc.args[0]))} ({place(path, raised)})"
    call = next((node for node in ast.walk(source.tree(path)) if called(node) == _SET_LAYERS), None)
    return f"AttributeError: no attribute '{_SET_LAYERS}' ({place(path, call)})" if call else ""


def _v1_pipeline(source: Source) -> Literal["none", "unknown"]:
    """None where aux states are asked for on the last stage only: the layers of the others are never captured."""
    wanted = "use_aux_hidden_state_outputs"
    asked = [node for node in ast.walk(source.tree(_V1)) if isinstance(node, ast.Assign) and _sets(node, wanted)]
    on_last = [
        inner
        for node in ast.walk(source.tree(_V1))
        if isinstance(node, ast.If) and "is_last_rank" in names(node.test)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Assign) and _sets(inner, wanted)
    ]
    return "none" if on_last and set(asked) == set(on_last) else "unknown"


def _sets(node: ast.Assign, attribute: str) -> bool:
    """Whether an attribute is set to anything but False."""
    is_off = isinstance(node.value, ast.Constant) and not node.value.value
    return not is_off and any(isinstance(target, ast.Attribute) and target.attr == attribute for target in node.targets)


def _v2_pipeline(source: Source) -> Literal["none", "listed", "unknown"]:
    """Some classes where these are asked whether they can, none where several stages are refused."""
    trees = (source.tree(_V2), source.tree(_V2_LAYERS))
    if any(called(node) == "verify_supports_aux_hidden_states_over_pp" for tree in trees for node in ast.walk(tree)):
        return "listed"
    for node in ast.walk(trees[0]):
        if isinstance(node, ast.Raise) and node.exc and "with pipeline parallel" in dotted(node.exc):
            return "none"
    return "unknown"
