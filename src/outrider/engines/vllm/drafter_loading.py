"""How a vLLM reads the weights and the config of an EAGLE-3 drafter: its drafter classes and the proposer that loads them."""

import ast
from collections.abc import Iterator
from typing import Final, Literal

from outrider.engines.facts import Loading
from outrider.engines.vllm.registry import MODELS
from outrider.engines.vllm.source import Source, called, dotted, key_read, names, place, strings

_LLAMA: Final = f"{MODELS}/llama_eagle3.py"
_MLA: Final = f"{MODELS}/deepseek_eagle3.py"
_DRAFTERS: Final = (_LLAMA, _MLA, f"{MODELS}/qwen3_eagle3.py")
_CLASS: Final = "Eagle3LlamaForCausalLM"
_PROPOSERS: Final = ("v1/spec_decode/llm_base_proposer.py", "v1/spec_decode/eagle.py")
_CONFIG_NAMES: Final = ("config", "self.config")
_NESTED: Final = "eagle_config"
_DEFAULTS: Final = ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers")


def loading(source: Source) -> Loading | None:
    """How the Llama drafter's weights are read; None if its class is not there, or not understood."""
    outer = source.find(_LLAMA, _CLASS)
    inner = source.find(_LLAMA, "LlamaModel")
    load = source.find(_LLAMA, "load_weights", outer) if outer else None
    layers = _assigned_layers(inner) if inner else None
    sharing = _sharing(source)
    if outer is None or inner is None or load is None or layers is None or sharing is None:
        return None
    shares_head, embedding, shared_at = sharing
    is_renamed = any(isinstance(n, ast.Constant) and n.value == "midlayer." for n in ast.walk(inner))
    evidence = [place(_LLAMA, load), place(_LLAMA, layers), shared_at]
    if silent := _drops_unknown(source, _MLA):
        evidence.append(f"{silent} drops unknown names of an MLA drafter without a word")
    return Loading(
        layer_names=("midlayer", "layers.0") if is_renamed else ("layers.0",),
        reads_model_prefix=not _adds_prefix_always(load),
        missing="refused" if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(load)) else "silent",
        unexpected="silent" if _drops_unknown(source, _LLAMA) else "refused",
        shares_head=shares_head,
        embedding=embedding,
        num_layers="many" if any(isinstance(n, ast.ListComp) for n in ast.walk(layers)) else "one",
        needs_draft_vocab_size=not _has_default(outer, "draft_vocab_size"),
        evidence=", ".join(evidence),
    )


def _assigned_layers(model: ast.AST) -> ast.Assign | None:
    """`self.layers = nn.ModuleList(…)`."""
    return next((n for n in ast.walk(model) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == "self.layers"), None)


def _adds_prefix_always(load: ast.AST) -> bool:
    """Whether `model.` is put before names without a look whether it stands there."""
    nodes = list(ast.walk(load))
    looked_for = [strings(n.args[0]) for n in nodes if isinstance(n, ast.Call) and called(n) in ("startswith", "removeprefix")]
    return ("model.",) not in looked_for and any(isinstance(n, ast.BinOp) and strings(n.left) == ("model.",) for n in nodes)


def _has_default(outer: ast.AST, key: str) -> bool:
    """`if getattr(self.config, KEY, None) is None: …`"""
    return any(isinstance(n, ast.If) and any(read and read[1] == key for read in map(key_read, ast.walk(n.test))) for n in ast.walk(outer))


def _sharing(source: Source) -> tuple[Literal["absent", "null", "never"], Literal["own", "target"], str] | None:
    """Whose head and embedding the drafter uses, and where that is decided; None if it could not be found.

    Before there were flags that tell whether a drafter has its own, the target's embedding was taken wherever the shapes are
    equal, and the target's head never (0.9.2 to 0.10.2) or wherever the shapes are equal (0.11.0).
    """
    path = next((path for path in _PROPOSERS if "embed_tokens" in source.text(path)), _PROPOSERS[0])
    tree = source.tree(path)
    flag = next((n for n in ast.walk(tree) if isinstance(n, ast.If) and key_read(n.test) == ("self.model", "has_own_lm_head")), None)
    if flag is not None:
        return "absent", "own", place(path, flag)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _is_not_eagle3(node.test):
            otherwise = [inner for statement in node.orelse for inner in ast.walk(statement) if isinstance(inner, ast.Assign)]
            if any(dotted(inner.targets[0]) == "self.model.lm_head" for inner in otherwise):
                return "absent", "target", f"{place(path, node)} the target's embedding and head wherever shapes are equal"
            return "never", "target", f"{place(path, node)} the target's embedding wherever shapes are equal"
    return None


def _is_not_eagle3(test: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.NotEq) and strings(n.comparators[0]) == ("eagle3",) for n in ast.walk(test)
    )


def _drops_unknown(source: Source, path: str) -> str:
    """Where a drafter skips a name that it does not know; empty if it does not."""
    for node in ast.walk(source.tree(path)):
        is_test = isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.NotIn)
        if is_test and isinstance(node, ast.If) and "params_dict" in names(node.test) and isinstance(node.body[0], ast.Continue):
            return place(path, node)
    return ""


def refuses_full_d2t(source: Source) -> bool:
    """Whether the parameter that takes d2t is made under a condition on the draft vocabulary's size (0.30.0 on)."""
    for node in ast.walk(source.tree(_LLAMA)):
        if isinstance(node, ast.If) and any(isinstance(n, ast.Attribute) and n.attr == "draft_vocab_size" for n in ast.walk(node.test)):
            made = [target for statement in node.body if isinstance(statement, ast.Assign) for target in statement.targets]
            if any(isinstance(target, ast.Attribute) and target.attr == "draft_id_to_target_id" for target in made):
                return True
    return False


def drops_duplicate_layers(source: Source) -> bool:
    """Whether layers are looked up one by one in what is to be captured, so that one that stands there twice counts once."""
    return any("in self.aux_hidden_state_layers" in source.text(f"{MODELS}/{name}.py") for name in ("interfaces", "llama"))


def default_layers(source: Source) -> tuple[str, ...]:
    """What is captured where the drafter's config names no layers, as formulas of L; empty if it could not be read."""
    for path in (f"{MODELS}/interfaces.py", f"{MODELS}/llama.py"):
        for name in _DEFAULTS:
            function = source.find(path, name)
            for node in ast.walk(function) if function else ():
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                    return tuple(ast.unparse(part).replace("num_layers", "L") for part in node.value.elts)
    return ()


def drafter_keys(source: Source) -> tuple[str, ...]:
    """The keys of a drafter's config that its classes read, nested ones dotted."""
    return tuple(sorted({key for path in _DRAFTERS for key in _keys(source.tree(path))}))


def _keys(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        read = key_read(node)
        if read and read[0] in _CONFIG_NAMES:
            yield read[1]
        elif read and read[0].rpartition(".")[2] == _NESTED:
            yield f"{_NESTED}.{read[1]}"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted(node.value) in _CONFIG_NAMES:
            yield node.attr
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and dotted(node.comparators[0]) == _NESTED:
            yield from (f"{_NESTED}.{key}" for key in strings(node.left))
