"""Which algorithm a drafter is of, and by which of the engine's methods it would be run."""

from collections.abc import Mapping
from typing import Any, Final

from outrider.preflight.serve_args import ServeArgs

# part of an architecture's name, in lower case → algorithm; the first that is found
_BY_ARCHITECTURE: Final = (
    ("peagle", "peagle"),
    ("eagle3", "eagle3"),
    ("dspark", "dspark"),
    ("dflash2", "dflash2"),
    ("dflash", "dflash"),
    ("mtp", "mtp"),
    ("nextn", "mtp"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
    ("eagle", "eagle"),
)
# by which a drafter with an EAGLE-3 architecture says that it drafts all tokens in one pass
_PARALLEL_TOKENS: Final = ("ptd_token_id", "pard_token")
_LONGEST: Final = 64
# algorithm → the word by which an engine runs it, where that is another one
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {"vllm": {"peagle": "eagle3", "dflash2": "dflash"}, "sglang": {"mtp": "eagle"}}


def algorithm_of(config: Mapping[str, Any]) -> str | None:
    """The algorithm that a drafter's config speaks of; None if it does not tell."""
    declared = config.get("speculators_model_type")
    if isinstance(declared, str):
        return _word(declared)
    named = config.get("architectures")
    names = [name.lower() for name in named if isinstance(name, str)] if isinstance(named, list) else []
    found = next((algorithm for part, algorithm in _BY_ARCHITECTURE if any(part in name for name in names)), None)
    if found == "eagle3" and any(config.get(key) is not None for key in _PARALLEL_TOKENS):
        return "peagle"
    if found is None and (config.get("draft_vocab_size") or config.get("eagle_aux_hidden_state_layer_ids")):
        return "eagle3"
    return found


def _word(text: str) -> str:
    """Whatever stands there, as a word that can be printed."""
    return text.encode("ascii", "backslashreplace").decode()[:_LONGEST].lower()


def method_of(engine: str, algorithm: str | None, chosen: str | None, arguments: ServeArgs) -> tuple[str | None, str]:
    """The method that the engine would be told, in its words and lower case, and where that comes from.

    Args:
        chosen: by `--method`; wins over everything.
    """
    given = arguments.speculative.get("method") or arguments.speculative.get("algorithm")
    for value, source in ((chosen, "--method"), (given, "the serve arguments")):
        if isinstance(value, str) and value:
            return _word(value), source
    return own_method(engine, algorithm), "the drafter's config"


def own_method(engine: str, algorithm: str | None) -> str | None:
    """The word by which an engine runs drafters of an algorithm."""
    return _WORDS.get(engine, {}).get(algorithm or "", algorithm)
