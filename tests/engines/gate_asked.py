"""Runs under the Python of an old vLLM: builds its real configuration, here and in a spawned child.

gate_asked.py CASES: a JSON list of arguments of EngineArgs
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any


def said(case: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    try:
        config = EngineArgs(skip_tokenizer_init=True, **case).create_engine_config()
    except Exception as error:
        return {"error": str(error)}
    speculative, model = config.speculative_config, config.model_config
    return {
        "error": None,
        "model_type": model.hf_text_config.model_type,
        "use_mla": model.use_mla,
        "same_target": speculative.target_model_config is model,
        "kind": type(speculative.target_model_config).__name__,
        "rates": getattr(speculative, "synthetic_acceptance_rates", None),
    }


def child(cases: list[dict[str, Any]], answers: Connection) -> None:
    """As the engine's workers do: plug-ins first."""
    from vllm.plugins import load_general_plugins

    os.dup2(2, 1)
    load_general_plugins()
    answers.send([said(case) for case in cases])


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=child, args=(asked, theirs))
    worker.start()
    theirs.close()
    here = [said(case) for case in asked]
    in_child = ours.recv()
    worker.join()
    with out:
        json.dump({"parent": here, "child": in_child}, out)
