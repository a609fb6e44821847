"""What is read from vLLM's source, against what its own classes say when they are imported, in its own interpreter."""

import json
import subprocess
from dataclasses import asdict
from typing import Any, Final

import pytest

from outrider.engines.environment import Environment
from outrider.engines.facts import EngineFacts
from outrider.engines.vllm.source_facts import facts_of

# prints what the installed vLLM says of the words that are on stdin
_ASK: Final = """
import dataclasses, importlib, json, sys
from typing import get_args

asked = json.load(sys.stdin)

from transformers import PretrainedConfig
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.model_executor.models import registry
from vllm.transformers_utils.config import _CONFIG_REGISTRY


def flat(literal):
    for part in get_args(literal):
        yield from [part] if isinstance(part, str) else flat(part)


def rewritten(model_type, architecture):
    config = type("Config", (PretrainedConfig,), {"model_type": model_type})(architectures=[architecture])
    config.num_nextn_predict_layers = config.mtp_num_hidden_layers = config.hc_count = 1
    config.layer_types = ["a"]
    try:
        config = SpeculativeConfig.hf_config_override(config)
    except Exception:  # it wants more of the config than there is
        return None
    return [config.architectures[0], config.model_type]


def served(module, name):
    module = module if module.startswith("vllm.") else "vllm.model_executor.models." + module
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception:  # a package that it needs is not there
        return None
    return [bool(getattr(found, flag, False)) for flag in ("supports_eagle3", "supports_multimodal")]


tables = {**registry._TEXT_GENERATION_MODELS, **registry._MULTIMODAL_MODELS}
json.dump(
    {
        "methods": sorted(flat(SpeculativeMethod)),
        "keys": sorted(field.name for field in dataclasses.fields(SpeculativeConfig)),
        "config_types": sorted(_CONFIG_REGISTRY),
        "types": {word: rewritten(word, "NoSuchModel") for word in asked["types"]},
        "architectures": {word: rewritten("no_such_type", word) for word in asked["architectures"]},
        "served": {architecture: served(*tables[architecture]) for architecture in asked["targets"] if architecture in tables},
    },
    sys.stdout,
)
"""


@pytest.fixture(scope="module")
def facts(vllm: Environment) -> EngineFacts:
    return facts_of(vllm)


@pytest.fixture(scope="module")
def said(vllm: Environment, facts: EngineFacts) -> dict[str, Any]:
    asked = {
        "types": [word for one in facts.rewrites for word in one.types] + ["llama", "qwen3"],
        "architectures": [word for one in facts.rewrites for word in one.architectures] + ["LlamaForCausalLMEagle3"],
        "targets": list(facts.targets),
    }
    done = subprocess.run([str(vllm.python), "-c", _ASK], input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_methods_keys_and_config_types(facts: EngineFacts, said: dict[str, Any]) -> None:
    assert said["methods"] == sorted(facts.methods)
    assert said["keys"] == sorted(facts.speculative_keys)
    assert said["config_types"] == sorted(facts.config_types)


def test_every_rewrite_that_it_makes_of_a_bare_config(facts: EngineFacts, said: dict[str, Any]) -> None:
    told = 0
    for one in facts.rewrites:
        for word in one.types:
            told += said["types"][word] is not None
            assert said["types"][word] in (None, [one.becomes or "NoSuchModel", one.becomes_type or word])
        for word in one.architectures:
            told += said["architectures"][word] is not None
            assert said["architectures"][word] in (None, [one.becomes or word, one.becomes_type or "no_such_type"])
    assert told > 40
    assert said["types"]["llama"] == ["NoSuchModel", "llama"]
    assert said["architectures"]["LlamaForCausalLMEagle3"] == ["LlamaForCausalLMEagle3", "no_such_type"]


def test_every_class_that_can_be_imported(facts: EngineFacts, said: dict[str, Any]) -> None:
    told = {architecture: flags for architecture, flags in said["served"].items() if flags is not None}
    interface = facts.interface_classes or frozenset()
    read = {name: [facts.targets[name] in interface, facts.targets[name] in facts.multimodal_classes] for name in told}
    assert read == told and len(told) > 100


def test_nothing_is_read_from_outside_the_package(facts: EngineFacts, vllm: Environment) -> None:
    kept = asdict(facts) | {"source": ""}
    assert str(vllm.packages) not in json.dumps(kept, default=sorted)
