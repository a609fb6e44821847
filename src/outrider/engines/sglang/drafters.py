"""What SGLang makes of a drafter's config, which classes it has for drafters, and how it reads an EAGLE-3 drafter's weights."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from outrider.engines.facts import Loading, Rewrite
from outrider.engines.sglang.classes import ClassText
from outrider.engines.sglang.source import Source, at, strings

CONFIG: Final = "configs/model_config.py"
EAGLE3: Final = "models/llama_eagle3.py"
_EAGLE3_CLASSES: Final = (EAGLE3, "models/kimi_k25_eagle3.py")
# where the runner of the target looks for the layers that the drafter asks for
RUNNERS: Final = ("model_executor/model_runner_components/spec_aux_hidden_state.py", "model_executor/model_runner.py")
_WORKERS: Final = ("speculative/eagle_worker.py", "speculative/eagle_worker_v2.py")
# SGLang keeps drafters and targets in one registry: only their names tell them apart
_DRAFTER: Final = re.compile(r"eagle|nextn|mtp|dflash|dspark|draft|assistant", re.IGNORECASE)
_KEY: Final = re.compile(
    r"\bconfig\.(?P<plain>[a-z]\w*)|(?:getattr|hasattr)\(\s*config,\s*\"(?P<asked>\w+)\"|"
    r"eagle_config(?:\.get\(|\[)\s*\"(?P<nested>\w+)\""
)


def is_drafter(architecture: str) -> bool:
    """Whether an architecture of the registry is a drafter's."""
    return _DRAFTER.search(architecture) is not None


def of_eagle3(registered: Mapping[str, str]) -> dict[str, str]:
    """Those that can be run as EAGLE-3. No name is changed before it is looked up."""
    return {name: made for name, made in registered.items() if "eagle3" in name.lower()}


def drafters_evidence(source: Source, registered: Mapping[str, ClassText]) -> str:
    """Where the first EAGLE-3 drafter is defined, and what is made of a name that is not registered."""
    first = next((text for name, text in registered.items() if "eagle3" in name.lower()), None)
    if first is None:
        return "no EAGLE-3 drafter in sglang/srt/models"
    fallback = next(source.search(["model_loader/utils.py"], r"Cannot find model module"), None)
    unknown = f"; another name ends in `Cannot find model module` ({source.place(fallback[0], fallback[1].start())})" if fallback else ""
    return f"{source.place(first.path, first.offset)}, by the EntryClass of each model file{unknown}"


def rewrites(source: Source) -> tuple[Rewrite, ...]:
    """`if is_draft_model and hf_config.architectures[0] == "X": hf_config.architectures[0] = "Y"`, in order."""
    tree = source.tree(CONFIG)
    named = {
        node.targets[0].id: tuple(strings(node.value))
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List | ast.Tuple)
    }
    conditions = sorted((node for node in ast.walk(tree) if isinstance(node, ast.If)), key=lambda node: node.lineno)
    return tuple(
        Rewrite((), architectures, becomes, "", at(CONFIG, node.lineno))
        for node in conditions
        if _asks_for_a_drafter(node.test)
        if (architectures := tuple(_compared(node.test, named))) and (becomes := _becomes(node))
    )


def _asks_for_a_drafter(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "is_draft_model" for node in ast.walk(test))


def _compared(test: ast.expr, named: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The names that the first architecture is compared with."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and "architectures[0]" in ast.unparse(node.left):
            right = node.comparators[0]
            yield from named.get(right.id, ()) if isinstance(right, ast.Name) else strings(right)


def _becomes(node: ast.If) -> str | None:
    """What the architecture is last set to: behind inner conditions stands what holds otherwise."""
    set_to = [
        strings(inner.value)
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.Assign) and ".architectures" in ast.unparse(inner.targets[0])
        if isinstance(inner.value, ast.Constant | ast.List)
    ]
    return set_to[-1][0] if set_to and set_to[-1] else None


def loading(source: Source) -> Loading | None:
    """How the Llama drafter's weights are read; None if its file is not there or is not understood."""
    text = source.text(EAGLE3)
    body = text[text.find("def load_weights") :] if "def load_weights" in text else ""
    layers = _layer_names(text)
    embedding = next(source.search(list(_WORKERS), r"\.set_embed\(embed\)"), None)
    if not body or not layers or embedding is None:
        return None
    strict = "raise" in body
    return Loading(
        layer_names=layers,
        reads_model_prefix='f"model.{name}"' in body,
        missing="refused" if strict else "silent",
        unexpected="refused" if strict else "silent",
        shares_head="null" if "load_lm_head_from_target = True" in text else "never",
        embedding="target",
        num_layers="one" if "only supports 1 layer" in text else "many",
        needs_draft_vocab_size='getattr(config, "draft_vocab_size"' not in text,
        evidence=f"{source.place(EAGLE3, text.find('def load_weights'))}; {source.place(embedding[0], embedding[1].start())}",
    )


def _layer_names(text: str) -> tuple[str, ...]:
    """Before 0.5.12 the layer is called midlayer, later that name is mapped to layers.0."""
    if re.search(r"\"midlayer\":\s*\"layers\.0\"", text):
        return ("midlayer", "layers.0")
    return ("midlayer",) if "self.midlayer =" in text else ()


def drafter_keys(source: Source) -> tuple[str, ...]:
    """What is asked of a drafter's config by the EAGLE-3 classes and by what arranges the capture.

    What the layers ask that these classes are made of is not among it: some of it is overruled, as a bias of q, k and v.
    """
    found = {
        f"eagle_config.{match['nested']}" if match["nested"] else match["plain"] or match["asked"]
        for path in _EAGLE3_CLASSES
        for match in _KEY.finditer(source.text(path))
    }
    found |= {f"eagle_config.{match['nested']}" for path in RUNNERS for match in _KEY.finditer(source.text(path)) if match["nested"]}
    return tuple(sorted(found))
