"""Every real log, fed line by line: the phases in their order, how it ended, why, and what else it told."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.engines.line_times import LineTimes
from outrider.engines.log_events import Event, FailureEvent, NoteEvent, PhaseEvent, ProgressEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import LogRules
from outrider.engines.sglang.log_rules import LOG as SGLANG
from outrider.engines.vllm.log_rules import LOG as VLLM

_LOGS = Path(__file__).parent / "logs"


@dataclass(frozen=True)
class _Told:
    """What a log tells.

    Attributes:
        phases: each with the seconds since the log's first time, as far as its lines carry times.
        cause: id, phase and beginning of the title of the failure.
        frame: file and function of the frame that is shown.
        notes: their ids, in order.
        stopped: whether it was stopped on request.
    """

    phases: str
    state: str
    notes: str = ""
    cause: tuple[str, str, str] = ("", "", "")
    frame: str = ""
    stopped: bool = False


_CPU_PHASES = "config workers target_weights drafter_weights kv_cache serving ready"
_CPU_NOTES = "no-graphs scheduled-tokens runner-v1 embeddings-shared embeddings-kept aux-layers-from-config"
_SHARED = {
    "sglang-0.5.16-h200-eagle3-ready": _Told(
        "config@2 workers@21 target_weights@23 drafter_weights@24 kv_cache@24 graphs@25 serving@40 ready@43 token@45",
        "ready",
        "requests-capped sized",
        stopped=True,
    ),
    "sglang-0.5.16-h200-plain-ready": _Told(
        "config@0 workers@18 target_weights@20 kv_cache@21 graphs@21 serving@73 ready@80 token@82", "ready", "sized", stopped=True
    ),
    "sglang-0.5.16-model-path-missing": _Told(
        "",
        "failed",
        "",
        ("missing-model", "starting", "there is no model at /models/smol135"),
        "sglang/srt/utils/hf_transformers/config.py",
    ),
    "vllm-0.25.0-h200-eagle3-ready": _Told(
        "config@0 workers@36 target_weights@38 drafter_weights@39 compile@45 kv_cache@70 graphs@70 serving@94 ready@94 token@94",
        "ready",
        "draft-length runner-v2 attention-backend aux-layers-by-default",
        stopped=True,
    ),
    "vllm-0.25.0-h200-plain-ready": _Told(
        "config@0 workers@36 target_weights@39 compile@47 kv_cache@61 graphs@61 serving@152 ready@152 token@152",
        "ready",
        "runner-v2 attention-backend",
        stopped=True,
    ),
    "vllm-0.25.0-h200-missing-module": _Told(
        "", "failed", "", ("missing-module", "starting", "it cannot be imported: No module named 'xgrammar'"), "vllm/utils/import_utils.py"
    ),
    "vllm-0.32.0-cpu-eagle3-ready": _Told(
        "config@0 workers@20 target_weights@29 drafter_weights@31 kv_cache@32 serving@39 ready@39 token@50",
        "ready",
        "draft-length no-graphs scheduled-tokens runner-v1 embeddings-shared embeddings-kept",
        stopped=True,
    ),
    "vllm-0.32.0-cpu-plain-ready": _Told(
        "config@0 workers@29 target_weights@41 compile@44 kv_cache@175 serving@185 ready@185 token@185",
        "ready",
        "runner-v1 waiting",
        stopped=True,
    ),
    "vllm-0.32.0-cpu-mla-eagle3-no-common-block-size": _Told(
        "config@0 workers@8 target_weights@17 drafter_weights@19 kv_cache@20",
        "failed",
        "draft-length no-graphs scheduled-tokens runner-v1 attention-backend embeddings-shared embeddings-kept",
        ("no-common-block-size", "kv_cache", "target and drafter have attention of different kinds"),
        "vllm/v1/worker/utils.py",
    ),
    "vllm-0.32.0-cpu-extract-hidden-states-dies-on-first-request": _Told(
        "config@0 workers@10 target_weights@20 drafter_weights@22 kv_cache@23 serving@30 ready@30 token@30",
        "failed",
        "no-graphs scheduled-tokens runner-v1 aux-layers-from-config",
        ("pinned-memory", "token", "it needs pinned memory"),
        "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py",
    ),
}
_COMMITTED = {
    "sglang-0.5.16-eagle3-ready": _SHARED["sglang-0.5.16-h200-eagle3-ready"],
    "sglang-0.5.16-model-path-missing": _SHARED["sglang-0.5.16-model-path-missing"],
    "vllm-0.32.0-dies-on-first-request": _Told(
        _CPU_PHASES, "failed", _CPU_NOTES, ("worker-died", "ready", "its worker VllmWorker-0 died with exit code -6")
    ),
    "vllm-0.32.0-import-fails": _Told(
        "", "failed", "", ("missing-module", "starting", "it cannot be imported: libcudart.so.13"), "/opt/broken/torch.py"
    ),
    "vllm-0.32.0-out-of-memory": _Told(
        "config workers target_weights drafter_weights",
        "failed",
        _CPU_NOTES,
        ("out-of-memory-kv-cache", "drafter_weights", "out of memory: 1000.0 GiB asked for the KV cache, 7.27/9.71 GiB there"),
        "vllm/v1/worker/cpu_worker.py",
    ),
    "vllm-0.32.0-port-taken": _Told(
        "config", "failed", "", ("port-taken", "config", "its port is taken"), "vllm/entrypoints/launchers/launcher.py"
    ),
    "vllm-0.32.0-unknown-architecture": _Told(
        "config",
        "failed",
        "",
        ("unknown-architecture", "config", "it does not know the architecture 'FooEagle3'"),
        "vllm/engine/arg_utils.py",
    ),
    "vllm-0.32.0-unknown-tensor": _Told(
        "config workers target_weights drafter_weights",
        "failed",
        "no-graphs scheduled-tokens runner-v1",
        ("unexpected-weight", "drafter_weights", "the drafter or target holds a tensor that it does not know: foo"),
        "vllm/model_executor/models/utils.py",
    ),
    "vllm-0.32.0-worker-killed": _Told(
        _CPU_PHASES, "failed", _CPU_NOTES, ("worker-died", "ready", "its worker VllmWorker-0 died with exit code -9")
    ),
    "vllm-0.32.0-wrong-shape": _Told(
        "config workers target_weights drafter_weights",
        "failed",
        "no-graphs scheduled-tokens runner-v1",
        ("weight-shape", "drafter_weights", "a tensor has shape torch.Size([576, 1152])"),
        "vllm/model_executor/layers/linear.py",
    ),
}

# of real vLLM that was made to fail on purpose: id and phase of the failure, and a part of its title
_MADE_TO_FAIL = {
    "aux-layer-out-of-range": ("states-width", "ready", "read in the shape [-1, 192]"),
    "bad-speculative-config": ("speculative-config", "config", "num_draft_tokens: Unexpected keyword argument"),
    "cache-of-no-size": ("", "config", "invalid literal for int() with base 10: '0.001'"),
    "cache-too-large": ("out-of-memory-kv-cache", "drafter_weights", "4096.0 GiB asked for the KV cache"),
    "cut-weights": ("broken-weights", "drafter_weights", "a weight file is broken"),
    "extra-tensor": ("unexpected-weight", "drafter_weights", "layers.0.self_attn.rotary_emb.cos"),
    "four-aux-layers": ("worker-died", "ready", "VllmWorker-0 died with exit code -6"),
    "import-fails": ("missing-module", "starting", "cannot import name 'AddedToken'"),
    "max-length-too-long": ("context-length", "config", "serve 9999 tokens"),
    "missing-target": ("missing-model", "config", "/models/not-there"),
    "model-not-in-cache": ("hub-unreachable", "config", "not in the cache"),
    "no-tokenizer": ("tokenizer", "config", "no tokenizer"),
    "no-weights": ("missing-weight-file", "target_weights", "/models/target"),
    "port-in-use": ("port-taken", "config", "its port is taken"),
    "remote-code": ("remote-code", "config", "not allowed to run"),
    "tensor-of-wrong-shape": ("weight-shape", "drafter_weights", "self.org_vocab_size"),
    "unknown-flag": ("unknown-argument", "starting", "--speculative-model"),
    "unknown-method": ("speculative-config", "config", "method: Input should be 'ngram'"),
    "unregistered-architecture": ("unknown-architecture", "config", "'LlamaForCausalLMEagle4'"),
}
_MADE = "vllm-0.32.0-cpu-"


def _rules(name: str) -> LogRules:
    return SGLANG if name.startswith("sglang") else VLLM


def _fed(name: str, data: bytes) -> tuple[LogReader, list[Event]]:
    """The log line by line, as it is written, with the times of its lines."""
    reader = LogReader(_rules(name), {}, LineTimes(data[:8192]))
    events = [event for line in data.splitlines(keepends=True) for event in reader.feed(line, 0.0)]
    return reader, events + reader.end(0.0)


def _check(name: str, data: bytes, told: _Told) -> None:
    reader, events = _fed(name, data)
    timed = "@" in told.phases
    phases = [f"{e.phase}@{e.at_s:.0f}" if timed else e.phase for e in events if isinstance(e, PhaseEvent)]
    assert " ".join(phases) == told.phases
    assert " ".join(dict.fromkeys(event.id for event in events if isinstance(event, NoteEvent))) == told.notes
    failures = [event for event in events if isinstance(event, FailureEvent)]
    assert len(failures) == (told.state == "failed")
    for failure in failures:
        assert (failure.id, failure.phase) == told.cause[:2]
        assert failure.title.startswith(told.cause[2])
        assert failure.frame.split(":")[0] == told.frame
        assert failure.fix
    end = reader.verdict()
    assert (end.state, end.cause) == (told.state, failures[0].title if failures else None)
    assert reader.stopped == told.stopped
    progress = [event for event in events if isinstance(event, ProgressEvent)]
    assert all(event.phase in ("target_weights", "drafter_weights", "graphs") for event in progress)


@pytest.mark.parametrize("name", _SHARED)
def test_a_whole_real_log_tells_what_happened(name: str, shared: Path) -> None:
    _check(name, (shared / "logs" / f"{name}.log").read_bytes(), _SHARED[name])


@pytest.mark.parametrize("name", _COMMITTED)
def test_a_real_log_tells_what_happened(name: str) -> None:
    _check(name, (_LOGS / f"{name}.log").read_bytes(), _COMMITTED[name])


@pytest.mark.parametrize("name", _MADE_TO_FAIL)
def test_a_real_failure_is_told_while_it_happens(name: str) -> None:
    path = _LOGS / f"{_MADE}{name}.log"
    if not path.exists():
        pytest.skip(f"{path.name} is not kept")
    reader = LogReader(VLLM)
    events = reader.feed(path.read_bytes(), 0.0) + reader.feed(b"", 1.0)
    (failure,) = [event for event in events if isinstance(event, FailureEvent)]
    id_, phase, title = _MADE_TO_FAIL[name]
    assert (failure.id, failure.phase) == (id_, phase)
    assert title in failure.title
    assert bool(failure.fix) == bool(id_)


def test_every_log_of_a_kind_of_its_own_is_in_the_table() -> None:
    assert {path.stem for path in _LOGS.glob("*.log") if not path.stem.startswith(_MADE)} == set(_COMMITTED)


def test_every_whole_log_is_in_the_table(shared: Path) -> None:
    assert {path.stem for path in (shared / "logs").glob("*.log")} == set(_SHARED)


@pytest.mark.parametrize("name", [name for name, told in _COMMITTED.items() if told.state == "failed"])
def test_the_verdict_comes_before_the_process_has_ended(name: str) -> None:
    """Not only from the end of the log: a parent may live on for minutes."""
    reader = LogReader(_rules(name))
    reader.feed((_LOGS / f"{name}.log").read_bytes(), 0.0)
    reader.feed(b"", 1.0)
    assert reader.verdict().state == "failed"
