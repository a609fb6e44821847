"""What engines do with a drafter's folder in all their versions, and so does not stand in `EngineFacts`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from outrider.engines.facts import EngineFacts


@dataclass(frozen=True)
class Behaviour:
    """How an engine reads a drafter. The defaults are the cautious ones, for an engine that is not listed.

    Attributes:
        rewritten_types: drafter model_types that it turns into another model, whatever the architecture.
        reads_model_prefix: whether `model.midlayer…` is read like `midlayer…`.
        shares_lm_head: whether it takes the target's head where the drafter has none.
        needs_aux_layers: whether it refuses a config that names no aux layers; else it takes 2, L / 2, L - 3.
        reads_nested_layers: whether ids in eagle_config alone are read, each plus one.
        counts_nested_layers: whether the width of `fc` is taken from the ids in eagle_config, else for three layers.
        needs_ascending_vocabulary: whether it refuses a d2t that names the target's ids out of order.
        missing: what a tensor that is not there leads to.
        unexpected: what a tensor that it does not know leads to.
        types_fix: what lifts its list of target types.
    """

    rewritten_types: tuple[str, ...] = ()
    reads_model_prefix: bool = False
    shares_lm_head: bool = False
    needs_aux_layers: bool = False
    reads_nested_layers: bool = False
    counts_nested_layers: bool = False
    needs_ascending_vocabulary: bool = False
    missing: str = "engines leave it random without a word, or refuse the folder"
    unexpected: str = "engines skip it without a word, or refuse the folder"
    types_fix: str = "another version of the engine"


# vllm: config/speculative.py hf_config_override; models/llama_eagle3.py load_weights, which returns nothing, so that the
# loader does not look for what is missing; LlamaModel.num_aux_hidden_states
_BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    "vllm": Behaviour(
        rewritten_types=("deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
        shares_lm_head=True,
        counts_nested_layers=True,
        missing="vLLM loads without a word and leaves it as it happens to be: nearly every draft is rejected",
        unexpected="the start ends after the target is loaded: there is no module or parameter of that name",
        types_fix="vLLM 0.22.0 or later has no such list; the gate target_interface has to pass as well",
    ),
    "reference": Behaviour(
        reads_model_prefix=True,
        needs_aux_layers=True,
        reads_nested_layers=True,
        needs_ascending_vocabulary=True,
        missing="the reference engine refuses the folder",
        unexpected="the reference engine refuses the folder",
    ),
}


def behaviour_of(facts: EngineFacts) -> Behaviour:
    """What the engine of these facts does."""
    return _BEHAVIOURS.get(facts.engine, Behaviour())
