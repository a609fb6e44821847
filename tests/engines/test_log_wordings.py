"""Wordings of other versions than those whose logs are kept, as their sources write them: each is known for what it is."""

import pytest

from outrider.engines.log_events import Event, FailureEvent, NoteEvent, PhaseEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import LogRules
from outrider.engines.root_cause import cause_of, without_prefix
from outrider.engines.sglang.log_rules import LOG as SGLANG
from outrider.engines.vllm.log_rules import LOG as VLLM


def _events(rules: LogRules, *lines: str) -> list[Event]:
    reader = LogReader(rules)
    return reader.feed("".join(f"{line}\n" for line in lines).encode(), 0.0) + reader.feed(b"", 2.0)


_VLLM_NOTES = {
    "Overriding draft model max_position_embeddings from 2048 to the target model's max_model_len (8192); the draft shares the target's "
    "positional space.": ("draft-length", "reach 8192 instead of 2048"),
    "The draft model's max_model_len (2048) is smaller than the target model's (8192) and the V2 model runner can't skip speculation for "
    "longer sequences; reducing max_model_len to 2048.": ("length-reduced", "limited to 2048 tokens"),
    "Using Eagle3 auxiliary layers from config: (2, 30, 58)": ("aux-layers-from-config", "(2, 30, 58), as its config says"),
    "Detected EAGLE model with lm_head identical to the target model. Sharing target model lm_head weights with the draft model.": (
        "embeddings-shared",
        "the target's lm_head",
    ),
    "Detected MTP model. Sharing target model embedding weights with the draft model.": ("embeddings-shared", "the target's embedding"),
    "Detected EAGLE model with distinct embed_tokens weights. Keeping separate embedding weights from the target model.": (
        "embeddings-kept",
        "embedding weights of its own",
    ),
    "The EAGLE head's vocab embedding will be loaded separately from the target model.": ("embeddings-kept", "vocab embedding of its own"),
    "Assuming the EAGLE head shares the same vocab embedding with the target model.": ("embeddings-shared", "embedding"),
    "Loading EAGLE LM head weights from the target model.": ("embeddings-shared", "lm_head"),
    "CUDAGraphMode.FULL is not supported with FlashInferBackend backend (support: NEVER); setting cudagraph_mode=PIECEWISE because "
    "attention is compiled piecewise": ("graphs-fallback", "captured as PIECEWISE"),
    "KV connector X requires PIECEWISE CUDA graph mode due to layerwise operations. Overriding cudagraph_mode from FULL to PIECEWISE.": (
        "graphs-fallback",
        "captured as PIECEWISE",
    ),
    "Pooling models do not support full cudagraphs. Overriding cudagraph_mode to PIECEWISE.": ("graphs-fallback", "PIECEWISE"),
    "Skipping CUDA graph capture. To turn on CUDA graph capture, ensure `cudagraph_mode` was not manually set to `NONE`": (
        "no-graphs",
        "no CUDA",
    ),
    "Casting torch.bfloat16 to torch.float16.": ("cast", "torch.bfloat16 is served as torch.float16"),
    "Your device 'T4' (with compute capability 7.5) doesn't support torch.bfloat16. Falling back to torch.float16 for compatibility.": (
        "cast",
        "served as torch.float16",
    ),
    "Using Flash Attention backend on V1 engine.": ("attention-backend", "attention by Flash Attention"),
    "Using AttentionBackendEnum.FLASHINFER backend.": ("attention-backend", "attention by FLASHINFER"),
    "Using FLASH_ATTN attention backend out of potential backends: ('FLASH_ATTN', 'FLASHINFER')": ("attention-backend", "by FLASH_ATTN"),
    "Draft model does not support multimodal inputs, falling back to text-only mode": ("drafts-text-only", "does not see images"),
    "Model Runner V2 does not yet support dcp; using the V1 model runner instead.": ("runner-v1", "because V2 does not yet support dcp"),
}
_SGLANG_NOTES = {
    "Overriding the draft model's max_position_embeddings to 8192.": ("draft-length", "reach 8192"),
    "Warning: Target model's context_length (8192) is greater than the derived context_length (4096). This may lead to incorrect model "
    "outputs or CUDA errors.": ("context-length", "serves 8192 tokens, and a model's config stops at 4096"),
    "Disable piecewise CUDA graph because some layers do not apply Standard GQA": ("graphs-fallback", "some layers"),
    "Breakable CUDA graph is incompatible with DP attention; disabling prefill CUDA graph.": ("graphs-fallback", "DP attention"),
    "Cuda graph is disabled because of using torch native attention backend": ("no-graphs", "using torch native attention backend"),
    "Attention backend not explicitly specified. Use fa3 backend by default.": ("attention-backend", "attention by fa3"),
    "Attention backend not specified. Use flashinfer backend by default.": ("attention-backend", "attention by flashinfer"),
    "Use trtllm_mla as attention backend on sm100 for DeepseekV3ForCausalLM": ("attention-backend", "attention by trtllm_mla"),
    "Overlap scheduler is disabled because of using eagle3 or standalone speculative decoding.": ("no-overlap", "eagle3 or standalone"),
}


@pytest.mark.parametrize("said", _VLLM_NOTES)
def test_a_note_of_vllm(said: str) -> None:
    (note,) = [e for e in _events(VLLM, f"(Worker_TP0 pid=9) WARNING 12-01 01:00:00 [v.py:1] {said}") if isinstance(e, NoteEvent)]
    assert note.id == _VLLM_NOTES[said][0]
    assert _VLLM_NOTES[said][1] in note.title
    assert note.line == said


@pytest.mark.parametrize("said", _SGLANG_NOTES)
def test_a_note_of_sglang(said: str) -> None:
    (note,) = [event for event in _events(SGLANG, f"[2026-12-01 02:07:29 TP0] {said}") if isinstance(event, NoteEvent)]
    assert note.id == _SGLANG_NOTES[said][0]
    assert _SGLANG_NOTES[said][1] in note.title


_VLLM_STARTS = {
    "0.9.2": (
        "INFO 07-10 01:00:00 [api_server.py:1395] vLLM API server version 0.9.2",
        "INFO 07-10 01:00:09 [core.py:70] Initializing a V1 LLM engine (v0.9.2) with config: model='m'",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:20 [gpu_model_runner.py:1770] Starting to load model m...",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:30 [default_loader.py:272] Loading weights took 2.00 seconds",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:30 [gpu_model_runner.py:1782] Loading drafter model...",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:31 [default_loader.py:272] Loading weights took 0.10 seconds",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:36 [backends.py:519] Dynamo bytecode transform time: 4.00 s",
        "(VllmWorker rank=0 pid=7) INFO 07-10 01:00:50 [gpu_worker.py:232] Available KV cache memory: 60.00 GiB",
        "INFO 07-10 01:00:50 [kv_cache_utils.py:716] GPU KV cache size: 1,000 tokens",
        "Capturing CUDA graph shapes:   3%|▎         | 2/67 [00:00<00:20,  3.1it/s]",
        "INFO 07-10 01:01:20 [api_server.py:1457] Starting vLLM API server 0 on http://0.0.0.0:8000",
        "INFO:     Application startup complete.",
        'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK',
    ),
    "0.16.0": (
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 02-10 01:00:00 [utils.py:325] vLLM API server version 0.16.0",
        "\x1b[0;36m(EngineCore_DP0 pid=2)\x1b[0;0m INFO 02-10 01:00:09 [core.py:97] Initializing a V1 LLM engine (v0.16.0) with config: x",
        "\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m INFO 02-10 01:00:20 [gpu_model_runner.py:4033] Starting to load model m...",
        "\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m INFO 02-10 01:00:30 [gpu_model_runner.py:4060] Loading drafter model...",
        "\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m INFO 02-10 01:00:36 [backends.py:655] Using cache directory: /c for vLLM's torch.compile",
        "\x1b[0;36m(Worker_TP0 pid=3)\x1b[0;0m INFO 02-10 01:00:50 [gpu_worker.py:358] Available KV cache memory: 60.0 GiB",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51 [00:00<?, ?it/s]",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 02-10 01:01:20 [api_server.py:946] Starting vLLM API server 0 on http://0.0.0.0:8000",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO:     Application startup complete.",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 02-10 01:02:00 [loggers.py:259] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
        "Avg generation throughput: 9.0 tokens/s, Running: 1 reqs",
    ),
}
_WHOLE_START = ["config", "workers", "target_weights", "drafter_weights", "compile", "kv_cache", "graphs", "serving", "ready", "token"]


@pytest.mark.parametrize("version", _VLLM_STARTS)
def test_a_start_in_the_words_of_an_older_vllm(version: str) -> None:
    phases = [event.phase for event in _events(VLLM, *_VLLM_STARTS[version]) if isinstance(event, PhaseEvent)]
    assert phases == _WHOLE_START


_SGLANG_STARTS = {
    "0.5.2": (
        "server_args=ServerArgs(model_path='m')",
        "Init torch distributed begin.",
        "Load weight begin. avail mem=139 GB",
        "KV Cache is allocated. #tokens: 10, K size: 1.00 GB, V size: 1.00 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=9 GB",
        "Load weight begin. avail mem=9 GB",
        "Memory pool end. avail mem=9 GB",
        "Capture draft cuda graph begin. This can take up to several minutes. avail mem=9 GB",
        "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
        "The server is fired up and ready to roll!",
        "Decode batch. #running-req: 1, #token: 85",
    ),
    "0.5.23": (
        "server_args=ServerArgs(model_path='m')",
        "Init parallel begin.",
        "Load weight begin. avail mem=139 GB",
        "Load weight begin. avail mem=9 GB",
        "Memory pool end. avail mem=9 GB",
        "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1], avail mem=9 GB",
        "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
        "The server is fired up and ready to roll!",
        "Decode batch, #running-req: 1, #token: 85",
    ),
}
_TWICE = ["drafter_weights", "kv_cache", "graphs"]


@pytest.mark.parametrize("version", _SGLANG_STARTS)
def test_a_start_in_the_words_of_another_sglang(version: str) -> None:
    lines = [f"[2026-12-01 02:00:00 TP0] {line}" for line in _SGLANG_STARTS[version]]
    phases = [event.phase for event in _events(SGLANG, *lines) if isinstance(event, PhaseEvent)]
    first = ["kv_cache", "graphs"] if version == "0.5.2" else []  # the drafter is made when all is done for the target
    assert phases == ["config", "workers", "target_weights", *first, *_TWICE, "serving", "ready", "token"]


_EXCEPTIONS = {
    "ValueError: Eagle3 is only supported for ['llama', 'qwen'] models. Got self.target_model_config.hf_text_config.model_type='kimi_k2'": (
        "target-type",
        "it does not accept Eagle3 for targets of type kimi_k2",
    ),
    "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested": ("target-interface", "its class"),
    "ValueError: Following weights were not initialized from checkpoint: {'model.fc.weight'}": ("missing-weight", "{'model.fc.weight'}"),
    "FileNotFoundError: Weight files referenced in index but missing: ['a.safetensors']": ("missing-weight-file", "a.safetensors"),
    "AssertionError: Attempted to load weight (torch.Size([4])) into parameter (torch.Size([8]))": ("weight-shape", "torch.Size([8])"),
    "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=80). Reasons: {...}": (
        "attention-backend",
        "serves this model here: cuda",
    ),
    "ValueError: Head size 80 is not supported by FlashAttention. Supported head sizes are: [64]": ("head-size", "heads of size 80"),
    "ValueError: Unknown quantization method: nvfp9. Must be one of ['awq'].": ("quantisation", "nvfp9"),
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than "
    "the available KV cache memory (9.10 GiB). Based on": (
        "out-of-memory-kv-cache",
        "131072 tokens needs 16.00 GiB of KV cache, and 9.10 GiB",
    ),
    "ValueError: Free memory on device (9.0/139.8 GiB) on startup is less than desired GPU memory utilization (0.9, 125.8 GiB).": (
        "out-of-memory-at-start",
        "than it wants",
    ),
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:94, unhandled cuda error": ("nccl", "NCCL error in"),
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)": ("nccl", "unhandled system error"),
    "OSError: [Errno 28] No space left on device: '/home/user/.cache/x'": ("disk-full", "no space"),
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)": ("gated-model", "gated"),
    "ValueError: The repository m contains custom code which must be executed to correctly load the model.": (
        "remote-code",
        "code of its own",
    ),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).": ("cuda-driver", "driver"),
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device": (
        "cuda-architecture",
        "no code for this GPU",
    ),
    "RuntimeError: No CUDA GPUs are available": ("no-gpu", "no GPU"),
    "ValueError: The checkpoint you are trying to load has model type `kimi_k9` but Transformers does not recognize this architecture.": (
        "unknown-model-type",
        "transformers does not know",
    ),
    "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer": ("broken-weights", "broken"),
    "TimeoutError: RPC call to sample_tokens timed out.": ("worker-hangs", "sample_tokens"),
    "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.": ("worker-died", "EngineCore_DP0"),
    "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.": ("too-few-gpus", "8 GPUs, and 4"),
    "vllm: error: argument --kv-cache-dtype: invalid choice: 'fp9'": ("bad-argument", "invalid choice"),
}


@pytest.mark.parametrize("said", _EXCEPTIONS)
def test_an_exception_of_vllm(said: str) -> None:
    cause = cause_of(said, VLLM.failures)
    assert cause is not None
    assert cause.id == _EXCEPTIONS[said][0]
    assert _EXCEPTIONS[said][1] in cause.title
    assert "None" not in cause.title


@pytest.mark.parametrize(
    "line",
    [
        "(VllmWorker rank=1 pid=7) ERROR 07-10 01:00:20 [multiproc_executor.py:488] said",
        "\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0;0m ERROR 02-10 01:00:20 [core.py:1] said",
        "(RayWorkerWrapper pid=7, ip=192.0.2.7) ERROR 02-10 01:00:20 [worker.py:1] said",
        "2026-12-01T02:07:29.123456789Z (EngineCore pid=7) ERROR 12-01 02:07:29 [core.py:1] said",
        "vllm-1  | (EngineCore pid=7) ERROR 12-01 02:07:29 [core.py:1] said",
        "0: [2026-12-01 02:07:29 DP0 TP1] said",
        "[2026-12-01 02:07:29] said",
    ],
)
def test_a_line_is_read_without_what_stands_before_it(line: str) -> None:
    assert without_prefix(line) == "said"


def test_a_watchdog_that_only_warns_is_no_failure() -> None:
    said = "[2026-12-01 02:07:29] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft={})"
    assert [event for event in _events(SGLANG, said.format("True")) if isinstance(event, FailureEvent)] == []
    (failure,) = [event for event in _events(SGLANG, said.format("False")) if isinstance(event, FailureEvent)]
    assert failure.id == "hung"
