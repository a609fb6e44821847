"""Ask vLLM's own check whether it takes types of targets: first as vLLM is, then with its plug-ins loaded.

ask_vllm_gate.py METHOD TYPE...

Prints one JSON object: {type: {"before": error or null, "after": error or null}}. What is asked is the validator that
vLLM's SpeculativeConfig was built with, on a configuration in which all but the target's type and the method has its
default.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any


def main(method: str, *model_types: str) -> None:
    """Write the answer where standard output was; vLLM's own log goes to standard error."""
    answer_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm.plugins import load_general_plugins

    before = {model_type: refusal(model_type, method) for model_type in model_types}
    load_general_plugins()
    answers = {model_type: {"before": before[model_type], "after": refusal(model_type, method)} for model_type in model_types}
    with answer_file:
        json.dump(answers, answer_file)


def refusal(model_type: str, method: str) -> str | None:
    """What vLLM says against a target of that type; None if it takes it."""
    from pydantic import ValidationError
    from vllm.config import SpeculativeConfig

    config: Any = object.__new__(SpeculativeConfig)
    for name, field in SpeculativeConfig.__pydantic_fields__.items():
        object.__setattr__(config, name, field.get_default(call_default_factory=True))
    target = SimpleNamespace(hf_text_config=SimpleNamespace(model_type=model_type))
    told = {"method": method, "num_speculative_tokens": 1, "target_model_config": target, "draft_model_config": None}
    for name, value in told.items():
        object.__setattr__(config, name, value)
    try:
        SpeculativeConfig.__pydantic_validator__.validate_python(config)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
