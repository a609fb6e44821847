"""The ways in which real vLLM 0.32.0 on a CPU is made to fail, or is stopped."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GemmaConfig, GemmaForCausalLM, OPTConfig, OPTForCausalLM

from engines.real_failures import Place, Recipe, Running, Start

_REMOTE_CODE: Final = {"auto_map": {"AutoConfig": "configuration_odd.OddConfig", "AutoModelForCausalLM": "modeling_odd.OddModel"}}
_DIES_WITHIN_S, _ENDS_WITHIN_S, _HANGS_FOR_S, _COMPILES_WITHIN_S = 30.0, 90.0, 75.0, 150.0


def _sound(place: Place) -> Start:
    return Start(place.spec())


def _extra_tensor(place: Place) -> Start:
    place.change_tensors(lambda tensors: tensors | {"midlayer.self_attn.rotary_emb.cos": torch.ones(4)})
    return Start(place.spec())


def _wrong_shape(place: Place) -> Start:
    place.change_tensors(lambda tensors: tensors | {"lm_head.weight": tensors["lm_head.weight"][:-10].clone()})
    return Start(place.spec())


def _lost_tensor(place: Place) -> Start:
    def without_fc(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if name != "fc.weight"}

    place.change_tensors(without_fc)
    return Start(place.spec())


def _cut_weights(place: Place) -> Start:
    path = place.drafter / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return Start(place.spec())


def _no_weights(place: Place) -> Start:
    (place.target / "model.safetensors").unlink()
    return Start(place.plain())


def _unregistered(place: Place) -> Start:
    place.change_config(place.drafter, architectures=["LlamaForCausalLMEagle4"])
    return Start(place.spec())


def _missing_target(place: Place) -> Start:
    place.target = place.folder / "not-there"
    return Start(place.plain())


def _model_not_in_cache(place: Place) -> Start:
    place.target = Path("some-organisation/gated-model")
    return Start(place.plain())


def _remote_code(place: Place) -> Start:
    place.change_config(place.target, architectures=["OddModel"], model_type="odd", **_REMOTE_CODE)
    return Start(place.plain())


def _no_tokenizer(place: Place) -> Start:
    for path in place.target.glob("*token*"):
        path.unlink()
    return Start(place.plain())


def _port_in_use(place: Place) -> Start:
    spec = place.plain()
    place.take(spec.port)
    return Start(spec)


def _cache_too_large(place: Place) -> Start:
    return Start(place.spec(), {"VLLM_CPU_KVCACHE_SPACE": "4096"})


def _cache_too_small(place: Place) -> Start:
    place.change_config(place.target, max_position_embeddings=1_000_000)
    return Start(place.plain("--max-model-len", "1000000"), {"VLLM_CPU_KVCACHE_SPACE": "1"})


def _cache_of_no_size(place: Place) -> Start:
    return Start(place.spec(), {"VLLM_CPU_KVCACHE_SPACE": "0.001"})


def _too_long(place: Place) -> Start:
    return Start(place.plain("--max-model-len", "9999"))


def _four_aux_layers(place: Place) -> Start:
    place.change_config(place.drafter, eagle_aux_hidden_state_layer_ids=[1, 2, 3, 5])
    return Start(place.spec())


def _aux_layer_out_of_range(place: Place) -> Start:
    place.change_config(place.drafter, eagle_aux_hidden_state_layer_ids=[1, 3, 99])
    return Start(place.spec())


def _unknown_flag(place: Place) -> Start:
    return Start(place.plain("--speculative-model", "/models/drafter"))


def _bad_speculative_config(place: Place) -> Start:
    return Start(place.spec("--speculative-config", '{"method": "eagle3", "model": "/models/drafter", "num_draft_tokens": 3}'))


def _unknown_method(place: Place) -> Start:
    return Start(place.spec("--speculative-config", f'{{"method": "eagle4", "model": "{place.drafter}", "num_speculative_tokens": 3}}'))


def _import_fails(place: Place) -> Start:
    return Start(place.plain(), place.shadow("tokenizers", '__version__ = "0.23.3"\n'))


def _full_shared_memory(place: Place) -> Start:
    return Start(place.spec(), before=place.on_small_disk(Path("/dev/shm")))


def _full_cache_disk(place: Place) -> Start:
    disk = place.folder / "cache"
    disk.mkdir()
    variables = {"VLLM_CACHE_ROOT": str(disk), "TORCHINDUCTOR_CACHE_DIR": str(disk)}
    return Start(place.plain("--no-enforce-eager"), variables, place.on_small_disk(disk))


def _no_common_block_size(place: Place) -> Start:
    config: dict[str, Any] = {"num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64}
    config |= {"intermediate_size": 64, "moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "vocab_size": 420}
    config |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 6, "max_position_embeddings": 512}
    config |= {"q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    place.other_target(DeepseekV3ForCausalLM, DeepseekV3Config(**config))
    return Start(place.spec())


def _no_embedding_to_share(place: Place) -> Start:
    config = OPTConfig(vocab_size=420, hidden_size=64, word_embed_proj_dim=64, ffn_dim=64, num_hidden_layers=6, num_attention_heads=2)
    place.other_target(OPTForCausalLM, config)
    return Start(place.spec())


def _no_eagle3_interface(place: Place) -> Start:
    config: dict[str, Any] = {"vocab_size": 420, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "head_dim": 32}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512}
    place.other_target(GemmaForCausalLM, GemmaConfig(**config))
    return Start(place.spec())


def _quantisation(place: Place) -> Start:
    return Start(place.plain("--quantization", "bitsandbytes"))


def _quantisation_of_the_config(place: Place) -> Start:
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    place.change_config(place.target, quantization_config=quantised)
    return Start(place.plain())


def _three_ranks(place: Place) -> Start:
    return Start(place.spec("--tensor-parallel-size", "3"))


def _while_loading(number: int, process: str) -> Callable[[Running], None]:
    def then(running: Running) -> None:
        running.wait_for("Starting to load model")
        running.signal(number, process)

    return then


def _while_serving(number: int, process: str) -> Callable[[Running], None]:
    """Asked before and after: a lost process is often noticed only by who asks."""

    def then(running: Running) -> None:
        _ask_once(running)
        running.signal(number, process)
        running.ask()

    return then


def _ask_once(running: Running) -> None:
    running.ready()


RECIPES: Final = (
    Recipe("extra-tensor", "a drafter with a tensor more", _extra_tensor),
    Recipe("tensor-of-wrong-shape", "a drafter whose lm_head has ten rows less than its draft vocabulary", _wrong_shape),
    Recipe("lost-tensor", "a drafter without its fc, and one request", _lost_tensor, _ask_once, _DIES_WITHIN_S),
    Recipe("cut-weights", "a drafter whose weight file was cut in half", _cut_weights),
    Recipe("no-weights", "a target without a weight file", _no_weights),
    Recipe("unregistered-architecture", "a drafter whose config names an architecture that there is not", _unregistered),
    Recipe("missing-target", "a path that is not there", _missing_target),
    Recipe("model-not-in-cache", "a model of the hub, offline, that is not in the cache", _model_not_in_cache),
    Recipe("remote-code", "a target whose architecture comes as code of its own", _remote_code),
    Recipe("no-tokenizer", "a target without its tokenizer's files", _no_tokenizer),
    Recipe("port-in-use", "another process listens on its port", _port_in_use),
    Recipe("cache-too-large", "`VLLM_CPU_KVCACHE_SPACE=4096`", _cache_too_large),
    Recipe("cache-too-small", "`--max-model-len 1000000` with a KV cache of 1 GiB", _cache_too_small),
    Recipe("cache-of-no-size", "`VLLM_CPU_KVCACHE_SPACE=0.001`, which must be whole", _cache_of_no_size),
    Recipe("max-length-too-long", "`--max-model-len 9999` for a model of 512 positions", _too_long),
    Recipe("four-aux-layers", "four aux layers for a drafter whose fc takes three", _four_aux_layers, _ask_once, _DIES_WITHIN_S),
    Recipe("aux-layer-out-of-range", "aux layer 99 of a target of six", _aux_layer_out_of_range, _ask_once, _DIES_WITHIN_S),
    Recipe("unknown-flag", "`--speculative-model`, which old versions had", _unknown_flag),
    Recipe("bad-speculative-config", "a `--speculative-config` with a field that there is not", _bad_speculative_config),
    Recipe("unknown-method", "a `--speculative-config` with method eagle4", _unknown_method),
    Recipe("import-fails", "another package `tokenizers` on PYTHONPATH, which lacks what is imported", _import_fails),
    Recipe("full-shared-memory", "/dev/shm of 64 KiB", _full_shared_memory),
    Recipe("full-cache-disk", "the compiler's caches on a disk of 64 KiB", _full_cache_disk, wait_s=_COMPILES_WITHIN_S),
    Recipe("no-common-block-size", "a DeepSeek-V3 target with a Llama drafter", _no_common_block_size),
    Recipe("no-embedding-to-share", "an OPT target, whose embedding has a name of its own", _no_embedding_to_share),
    Recipe("no-eagle3-interface", "a Gemma target, whose class hands out no states", _no_eagle3_interface),
    Recipe("quantisation-unsupported", "`--quantization bitsandbytes`", _quantisation),
    Recipe("quantisation-of-config", "a target whose config says gptq, with unquantised weights", _quantisation_of_the_config),
    Recipe("heads-not-divisible", "`--tensor-parallel-size 3` for two heads", _three_ranks),
    Recipe(
        "worker-killed-serving", "SIGKILL to its worker while it served", _sound, _while_serving(signal.SIGKILL, "Worker"), _DIES_WITHIN_S
    ),
    Recipe(
        "worker-killed-loading", "SIGKILL to its worker while it loaded", _sound, _while_loading(signal.SIGKILL, "Worker"), _ENDS_WITHIN_S
    ),
    Recipe(
        "core-killed-serving", "SIGKILL to its core while it served", _sound, _while_serving(signal.SIGKILL, "EngineCore"), _DIES_WITHIN_S
    ),
    Recipe(
        "core-killed-loading", "SIGKILL to its core while it loaded", _sound, _while_loading(signal.SIGKILL, "EngineCore"), _ENDS_WITHIN_S
    ),
    Recipe(
        "server-killed-loading",
        "SIGKILL to the server while it loaded",
        _sound,
        _while_loading(signal.SIGKILL, "api_server"),
        _ENDS_WITHIN_S,
    ),
    Recipe(
        "stopped-loading", "SIGTERM to the server while it loaded", _sound, _while_loading(signal.SIGTERM, "api_server"), _ENDS_WITHIN_S
    ),
    Recipe(
        "stopped-ready", "SIGTERM to the server after it had answered", _sound, _while_serving(signal.SIGTERM, "api_server"), _ENDS_WITHIN_S
    ),
    Recipe(
        "worker-hangs",
        "SIGSTOP to its worker while it served, and a request",
        _sound,
        _while_serving(signal.SIGSTOP, "Worker"),
        _HANGS_FOR_S,
    ),
)
