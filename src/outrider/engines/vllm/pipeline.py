"""Which target classes of a vLLM hand aux states over from one pipeline stage to the next (0.30.0 on).

A flag of the inner decoder tells; the target's class says which decoder that is, or is a wrapper that names its language
model. A wrapper that takes its language model from the target's config is in no list: its source does not tell.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from outrider.engines.vllm.classes import Classes, Written
from outrider.engines.vllm.source import Source

_FLAG: Final = "supports_aux_hidden_states_over_pp"
_FLAG_SET: Final = re.compile(rf"^\s+{_FLAG}\s*(?::[^=\n]*)?=\s*(True|False)\b", re.MULTILINE)
_DECODER: Final = re.compile(r"self\.model\s*=\s*(?:self\.)?(\w+)\(|^\s+return\s+(\w+Model)\(", re.MULTILINE)
_LANGUAGE_MODEL: Final = re.compile(r"""\barchitectures=\[\s*["'](\w+)["']\s*,?\s*\]|self\.language_model\s*=\s*(\w+)\(""")
_DEEPEST: Final = 8


@dataclass(frozen=True)
class Served:
    """The class that a registry names for an architecture, and its module."""

    module: str
    name: str


def pipeline_classes(source: Source, classes: Classes, targets: Mapping[str, Served], served: Mapping[str, Served]) -> frozenset[str]:
    """The classes of targets that do, on one platform at least.

    Args:
        targets: those that are asked.
        served: all that the registry names, for wrappers that name their language model.
    """
    if _FLAG not in source.text("model_executor/models/interfaces.py"):
        return frozenset()
    return frozenset(made.name for made in targets.values() if _target_does(classes, served, made, 0))


def _target_does(classes: Classes, served: Mapping[str, Served], target: Served, depth: int) -> bool:
    return depth < _DEEPEST and any(_text_does(classes, served, text, depth) for text in classes.written(target.module, target.name))


def _text_does(classes: Classes, served: Mapping[str, Served], text: Written, depth: int) -> bool:
    decoders = [_attribute(text, one or other) for one, other in _DECODER.findall(text.text)]
    decoders = [name for name in decoders if classes.written(text.module, name)]
    if decoders:
        return any(_decoder_does(classes, text.module, name, 0) for name in decoders)
    if "self.language_model =" in text.text:
        models = list(_language_models(classes, served, text))
        return bool(models) and all(_target_does(classes, served, model, depth + 1) for model in models)
    return any(_target_does(classes, served, Served(text.module, base), depth + 1) for base in text.bases)


def _language_models(classes: Classes, served: Mapping[str, Served], text: Written) -> Iterator[Served]:
    """What a wrapper names, by a class of its file or by an architecture."""
    for architecture, name in _LANGUAGE_MODEL.findall(text.text):
        if architecture in served:
            yield served[architecture]
        elif name and classes.written(text.module, name):
            yield Served(text.module, name)


def _decoder_does(classes: Classes, module: str, name: str, depth: int) -> bool:
    """By the flag of the class, or of the nearest of its bases that sets it."""
    for text in classes.written(module, name) if depth < _DEEPEST else ():
        flag = _FLAG_SET.search(text.text)
        if flag[1] == "True" if flag else any(_decoder_does(classes, text.module, base, depth + 1) for base in text.bases):
            return True
    return False


def _attribute(text: Written, name: str) -> str:
    """What a class attribute such as `model_cls` stands for; any other name as it is."""
    found = re.search(rf"^\s+{name}\s*(?::[^=\n]*)?=\s*(\w+)\s*$", text.text, re.MULTILINE)
    return found[1] if found else name
