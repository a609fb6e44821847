"""Reading a log as it is written: any bytes, in any pieces, of any number of processes; what is a failure and what was survived."""

import re
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from outrider.engines.line_times import LineTimes
from outrider.engines.log_events import AnyEvent, Event, FailureEvent, HealthEvent, NoteEvent, PhaseEvent, ProgressEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import PHASES, LogRules
from outrider.engines.sglang.log_rules import LOG as SGLANG
from outrider.engines.vllm.log_rules import LOG as VLLM

_LOGS = Path(__file__).parent / "logs"
_ENGINES = {"vllm": VLLM, "sglang": SGLANG}
_READY = [
    "(APIServer pid=1) INFO 12-01 01:00:00 [api_utils.py:1] non-default args: {'model': 'm'}",
    "(EngineCore pid=2) INFO 12-01 01:00:10 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m'",
    "(Worker_TP0 pid=3) INFO 12-01 01:00:20 [gpu_model_runner.py:1] Starting to load model m...",
    "(APIServer pid=1) INFO:     Application startup complete.",
]
_ANSWER = '(APIServer pid=1) INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK'
_DIED = (
    "(EngineCore pid=2) ERROR 12-01 02:00:00 [e.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
)


def _raised(process: str, exception: str, path: str = "/opt/engine/site-packages/vllm/v1/worker/utils.py") -> list[str]:
    """A logged traceback of vLLM's."""
    body = [
        "Traceback (most recent call last):",
        f'  File "{path}", line 7, in f',
        "    g()",
        '  File "/usr/lib/python3.11/asyncio/runners.py", line 118, in run',
        *exception.split("\n"),
    ]
    return [f"({process}) ERROR 12-01 01:30:00 [x.py:1] {line}" for line in body]


def _read(rules: LogRules, lines: Sequence[str], end: str = "\n") -> tuple[LogReader, list[Event]]:
    """What is told of a log that goes on: its end is not told."""
    reader = LogReader(rules)
    events = reader.feed("".join(line + end for line in lines).encode(), 0.0)
    return reader, events + reader.feed(b"", 5.0)


def _phases(events: Sequence[Event]) -> list[str]:
    return [event.phase for event in events if isinstance(event, PhaseEvent)]


def _failures(events: Sequence[Event]) -> list[FailureEvent]:
    return [event for event in events if isinstance(event, FailureEvent)]


# --- any bytes, in any pieces -----------------------------------------------------------------------------------------


def _telling_pieces(rules: LogRules) -> list[bytes]:
    literals = [r.literal for r in (*rules.fatal, *rules.stopped, *rules.answering)]
    literals += [r.literal for r in rules.phases] + [r.literal for r in rules.progress] + [r.literal for r in rules.notes]
    names = sorted(_LOGS.glob("*.log"))
    lines = [line for path in names for line in path.read_bytes().splitlines(keepends=True) if len(line) < 400]
    more = [
        b"\n",
        b"\r",
        b"\r\n",
        b"\x1b[36m",
        b"\x00\xff\xfe",
        b"Traceback (most recent call last):\n",
        b"ValueError: a\n",
        b"  indented\n",
    ]
    more += [
        b"During handling of the above exception, another\n",
        b"The above exception was the direct cause of\n",
        b"Exception ignored in: x\n",
    ]
    return [*more, *(literal.encode() for literal in literals), *lines[:: max(1, len(lines) // 300)]]


_LOG_LIKE = st.sampled_from(list(_ENGINES)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.lists(st.one_of(st.sampled_from(_telling_pieces(_ENGINES[name])), st.binary(max_size=20)), max_size=60).map(b"".join),
    )
)


def _events_of_pieces(rules: LogRules, data: bytes, cuts: Sequence[int]) -> list[Event]:
    reader = LogReader(rules, {"graphs": 5.0}, LineTimes(data[:8192]))
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    events = [event for a, b in pairwise(places) for event in reader.feed(data[a:b], 3.0)]
    return [*events, *reader.end(3.0), reader.verdict()]


@settings(max_examples=300, deadline=None)
@given(_LOG_LIKE, st.lists(st.integers(0, 10**6), max_size=30))
def test_any_bytes_in_any_pieces_tell_the_same(log: tuple[str, bytes], cuts: list[int]) -> None:
    name, data = log
    assert _events_of_pieces(_ENGINES[name], data, cuts) == _events_of_pieces(_ENGINES[name], data, [])


@pytest.mark.parametrize("path", sorted(_LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_real_log_byte_by_byte_tells_the_same(path: Path) -> None:
    rules, data = _ENGINES[path.stem.split("-")[0]], path.read_bytes()
    assert _events_of_pieces(rules, data, range(len(data))) == _events_of_pieces(rules, data, [])


@pytest.mark.parametrize("path", sorted(_LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_line_ends_and_colours_change_nothing(path: Path) -> None:
    rules, data = _ENGINES[path.stem.split("-")[0]], path.read_bytes()
    plain = _events_of_pieces(rules, data, [])
    assert _events_of_pieces(rules, data.replace(b"\n", b"\r\n"), []) == plain
    coloured = re.sub(rb"(?m)^(\(\w+ pid=\d+\))", b"\x1b[0;36m\\1\x1b[0;0m", data).replace(b"ERROR", b"\x1b[31mERROR\x1b[0m")
    assert _events_of_pieces(rules, coloured, []) == plain


def test_a_line_without_end_takes_no_memory() -> None:
    reader = LogReader(VLLM)
    tracemalloc.start()
    for _ in range(64):
        reader.feed(b"x" * (1 << 20), 0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert _phases(reader.feed(b"\n" + "\n".join(_READY).encode() + b"\n", 1.0))[-1] == "ready"


def test_many_processes_and_tracebacks_take_no_memory() -> None:
    reader = LogReader(VLLM)
    tracemalloc.start()
    for number in range(3000):
        reader.feed(
            "\n".join([*_raised(f"W pid={number}", "ValueError: a"), f"(V pid={number}) Traceback (most recent call last):\n"]).encode(),
            0.0,
        )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


# --- what is a failure ------------------------------------------------------------------------------------------------


def test_an_unknown_failure_shows_its_root_exception_and_frame() -> None:
    lines = [*_READY[:3], *_raised("Worker_TP0 pid=3", "ValueError: the moon is full")]
    lines += ["(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore failed to start."]
    lines += _raised("EngineCore pid=2", "RuntimeError: Worker failed with error 'the moon is full', please check the stack trace above")
    reader, events = _read(VLLM, lines)
    (failure,) = _failures(events)
    assert failure.title == "ValueError: the moon is full"
    assert failure.frame == "vllm/v1/worker/utils.py:7 in f"
    assert (failure.id, failure.fix, failure.phase) == ("", "", "target_weights")
    assert reader.verdict().state == "failed"


def test_a_traceback_before_it_is_ready_is_no_failure() -> None:
    reader, events = _read(VLLM, [*_READY[:3], *_raised("Worker_TP0 pid=3", "ImportError: no plug-in"), *_READY[3:]])
    assert _failures(events) == []
    assert (reader.verdict().state, reader.cause()) == ("ready", None)


def test_what_a_process_raised_before_it_went_on_is_not_the_cause() -> None:
    lines = [_READY[0], *_raised("EngineCore pid=2", "ImportError: no plug-in"), _READY[1]]
    lines += [
        "(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore failed to start.",
        *_raised("EngineCore pid=2", "ValueError: the real one"),
    ]
    (failure,) = _failures(_read(VLLM, lines)[1])
    assert failure.title == "ValueError: the real one"


def test_what_another_rank_does_meanwhile_does_not_hide_the_cause() -> None:
    lines = [*_READY[:2], *_raised("Worker_TP0 pid=3", "ValueError: rank 0 has it")]
    lines += ["(Worker_TP1 pid=4) INFO 12-01 01:00:21 [gpu_model_runner.py:1] Starting to load model m..."]
    lines += ["(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore failed to start."]
    lines += _raised("EngineCore pid=2", "Exception: WorkerProc initialization failed due to an exception in a background process.")
    (failure,) = _failures(_read(VLLM, lines)[1])
    assert failure.title == "ValueError: rank 0 has it"


def test_a_refused_request_is_not_why_a_worker_dies_later() -> None:
    lines = [*_READY, _ANSWER, *_raised("APIServer pid=1", "ValueError: the prompt is too long"), _ANSWER, _DIED]
    (failure,) = _failures(_read(VLLM, lines)[1])
    assert failure.title == "its worker VllmWorker-0 died with exit code -9"


def test_tracebacks_that_interleave_are_told_apart() -> None:
    first = _raised("Worker_TP0 pid=3", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    second = _raised("Worker_TP1 pid=4", "RuntimeError: Connection closed by peer", "/opt/engine/site-packages/vllm/distributed/d.py")
    woven = [line for pair in zip(first, second, strict=True) for line in pair]
    fatal = "(Worker_TP0 pid=3) ERROR 12-01 01:30:00 [x.py:1] WorkerProc failed to start."
    (failure,) = _failures(_read(VLLM, [*_READY[:3], fatal, *woven])[1])
    assert failure.id == "out-of-memory-weights"
    assert failure.frame == "vllm/v1/worker/utils.py:7 in f"


def test_a_scheduler_of_sglang_that_fails_is_told_with_its_last_line() -> None:
    lines = [
        "[2026-12-01 02:07:31] server_args=ServerArgs(model_path='m')",
        "[2026-12-01 02:07:51 TP0] Load weight begin. avail mem=139.09 GB",
        "[2026-12-01 02:07:51 TP1] Load weight begin. avail mem=139.09 GB",
        "[2026-12-01 02:07:52 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/engine/site-packages/sglang/srt/managers/scheduler.py", line 2630, in run_scheduler_process',
        "    scheduler = Scheduler(server_args, port_args)",
        '  File "/opt/engine/site-packages/sglang/srt/models/deepseek_v2.py", line 12, in load_weights',
        '  File "/opt/engine/site-packages/torch/nn/modules/module.py", line 1, in __getattr__',
        "AttributeError: 'DeepseekV3ForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
    ]
    reader = LogReader(SGLANG)
    (failure,) = _failures(reader.feed("".join(f"{line}\n" for line in lines).encode(), 0.0))
    assert (failure.id, failure.phase) == ("target-interface", "target_weights")
    assert failure.frame == "sglang/srt/models/deepseek_v2.py:12 in load_weights"
    after = b"\n[2026-12-01 02:07:53] Received sigquit from a child process. It usually means the child failed.\nKilled\n"
    assert _failures(reader.feed(after, 1.0)) == []


def test_a_process_that_the_system_killed_is_told() -> None:
    (failure,) = _failures(_read(SGLANG, ["[2026-12-01 02:07:31] server_args=ServerArgs(", "run.sh: line 3: 1234", "Killed"])[1])
    assert failure.id == "killed"


def test_ranks_of_torch_that_end_side_by_side_are_told_apart() -> None:
    body = ["Traceback (most recent call last):", '  File "<frozen runpy>", line 198, in _run_module_as_main']
    body += ['  File "/opt/engine/site-packages/vllm/worker.py", line 5, in load', "    x()", "ValueError: of rank {}"]
    woven = [f"[rank{rank}]: {line.format(rank)}" for line in body for rank in (1, 0)]
    (failure,) = _failures(_read(VLLM, [*_READY[:2], *woven])[1])
    assert (failure.title, failure.frame) == ("ValueError: of rank 1", "vllm/worker.py:5 in load")


@pytest.mark.parametrize(
    ("phase", "line", "id_"),
    [
        ("target_weights", "", "out-of-memory-weights"),
        ("kv_cache", "(Worker_TP0 pid=3) INFO 12-01 01:00:30 [w.py:1] Available KV cache memory: 2 GiB", "out-of-memory"),
        ("ready", _READY[3], "out-of-memory-serving"),
    ],
)
def test_out_of_memory_says_in_which_phase(phase: str, line: str, id_: str) -> None:
    lines = [*_READY[:3], *filter(None, [line]), *_raised("Worker_TP0 pid=3", "torch.OutOfMemoryError: CUDA out of memory.")]
    lines += ["(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore encountered a fatal error.", "(EngineCore pid=2) INFO on"]
    (failure,) = _failures(_read(VLLM, lines)[1])
    assert (failure.id, failure.phase) == (id_, phase)


def test_a_fatal_line_with_nothing_behind_it_is_told_within_a_second() -> None:
    reader = LogReader(VLLM)
    fatal = b"(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore encountered a fatal error.\n"
    assert _failures(reader.feed(fatal, 10.0)) == []
    (failure,) = _failures(reader.feed(b"", 10.5))
    assert failure.title == "EngineCore encountered a fatal error."


def test_an_exception_that_ends_the_main_process_is_told_at_once() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/vllm", line 8, in <module>',
        "    sys.exit(main())",
        '  File "/opt/engine/site-packages/vllm/entrypoints/cli/main.py", line 3, in main',
        "ModuleNotFoundError: No module named 'xgrammar'",
    ]
    reader = LogReader(VLLM)
    (failure,) = _failures(reader.feed("".join(f"{line}\n" for line in lines).encode(), 0.0))
    assert (failure.id, failure.frame) == ("missing-module", "vllm/entrypoints/cli/main.py:3 in main")
    # the same exception, caught where it was not expected to go on
    caught = [lines[0], '  File "/opt/engine/site-packages/vllm/plugins/x.py", line 8, in <module>', lines[-1]]
    assert _failures(_read(VLLM, [*caught, *_READY])[1]) == []


def test_what_pydantic_says_on_the_next_line_is_part_of_it() -> None:
    exception = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
        "  Value error, eagle3 is only supported for ['llama', 'qwen'] models. "
        "Got self.target_model_config.hf_text_config.model_type='kimi_k2' [type=value_error, input_value=ArgsKwargs(()), input_type=A]"
    )
    lines = ["Traceback (most recent call last):", '  File "<frozen runpy>", line 198, in _run_module_as_main', *exception.split("\n")]
    (failure,) = _failures(_read(VLLM, [_READY[0], *lines])[1])
    assert (failure.id, failure.title) == ("target-type", "it does not accept eagle3 for targets of type kimi_k2")


def test_the_field_that_pydantic_names_is_part_of_it() -> None:
    lines = ["Traceback (most recent call last):", '  File "<frozen runpy>", line 198, in _run_module_as_main']
    lines += ["pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig", "num_draft_tokens"]
    lines += ["  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=3, input_type=int]"]
    (failure,) = _failures(_read(VLLM, [_READY[0], *lines])[1])
    assert failure.title == "--speculative-config is refused: num_draft_tokens: Unexpected keyword argument"


def test_an_assertion_that_says_nothing_is_told_by_its_code() -> None:
    prefix = "(Worker_TP0 pid=3) ERROR 12-01 01:30:00 [x.py:1] "
    code, carets = "    assert loaded_weight.shape[0] == self.org_vocab_size", "           ^^^^^^^^^^^^^^^^^^^^^"
    frame = '  File "/opt/engine/site-packages/vllm/model_executor/layers/vocab.py", line 515, in weight_loader'
    body = [f"{prefix}{line}" for line in ("Traceback (most recent call last):", frame, code, carets, "AssertionError")]
    fatal = "(EngineCore pid=2) ERROR 12-01 01:30:01 [core.py:1] EngineCore failed to start."
    (failure,) = _failures(_read(VLLM, [*_READY[:3], *body, fatal])[1])
    assert failure.id == "weight-shape"
    assert "assert loaded_weight.shape[0] == self.org_vocab_size" in failure.title


def test_the_last_exception_of_a_log_that_ends_is_its_cause() -> None:
    reader, events = _read(VLLM, [*_READY[:3], *_raised("Worker_TP0 pid=3", "ValueError: last words")])
    assert _failures(events) == []  # it may be handled
    (failure,) = _failures(reader.end(9.0))
    assert failure.title == "ValueError: last words"


def test_a_server_that_is_stopped_ended_as_it_was() -> None:
    stop = "(APIServer pid=1) INFO 12-01 02:00:00 [launcher.py:100] [shutdown] API server: shutdown triggered"
    reader, events = _read(VLLM, [*_READY, stop, _DIED, *_raised("EngineCore pid=2", "RuntimeError: cancelled")])
    assert (_failures(events), reader.stopped, reader.verdict().state) == ([], True, "ready")
    early, _ = _read(VLLM, [*_READY[:3], stop])
    assert (early.verdict().state, early.verdict().cause) == ("failed", "it was stopped before it was ready")


def test_a_stop_after_a_failure_does_not_excuse_it() -> None:
    reader, events = _read(VLLM, [*_READY, _DIED, "(APIServer pid=1) INFO:     Shutting down"])
    assert (len(_failures(events)), reader.stopped, reader.verdict().state) == (1, False, "failed")


def test_an_answer_under_way_does_not_make_a_lost_engine_sound() -> None:
    reader, events = _read(VLLM, [*_READY, _DIED, _ANSWER, "(EngineCore pid=2) INFO 12-01 02:00:00 [e.py:1] on"])
    assert (len(_failures(events)), reader.verdict().state) == (1, "failed")
    assert "token" not in _phases(events)


def test_a_log_in_which_it_starts_once_more_begins_anew() -> None:
    reader, events = _read(VLLM, [*_READY, _DIED, "restarted by its supervisor", *_READY])
    assert _phases(events) == ["config", "workers", "target_weights", "ready"] * 2
    assert len(_failures(events)) == 1
    assert (reader.failure, reader.verdict().state) == (None, "ready")


# --- phases, progress, time -------------------------------------------------------------------------------------------


def test_the_second_weights_of_a_rank_are_the_drafters() -> None:
    ranks = [f"[2026-12-01 02:00:0{n} TP{rank}] Load weight begin. avail mem=139.09 GB" for n in range(2) for rank in range(4)]
    _, events = _read(SGLANG, ["[2026-12-01 02:00:00] server_args=ServerArgs(model_path='m')", *ranks])
    assert _phases(events) == ["config", "target_weights", "drafter_weights"]


def test_a_drafter_that_is_loaded_last_goes_through_cache_and_graphs_again() -> None:
    begin, pool, graphs = "Load weight begin. avail", "Memory pool end. avail", "Capture {}cuda graph begin. This can take up to"
    lines = ["server_args=ServerArgs(", begin, pool, graphs.format(""), begin, pool, graphs.format("draft ")]
    _, events = _read(SGLANG, [f"[2026-12-01 02:00:00] {line}" for line in lines])
    assert _phases(events) == ["config", "target_weights", "kv_cache", "graphs", "drafter_weights", "kv_cache", "graphs"]


def _bar(done: int, total: int, elapsed: str) -> bytes:
    return f"\rLoading safetensors checkpoint shards: {100 * done // total:3}% Completed | {done}/{total} [{elapsed}<?, ?it/s]\n".encode()


def test_the_time_left_comes_from_the_engines_own_bar_and_from_earlier_starts() -> None:
    reader = LogReader(VLLM, {"target_weights": 500.0, "compile": 60.0, "graphs": 30.0, "token": 1.0})
    reader.feed("\n".join(_READY[:2]).encode() + b"\n", 0.0)
    assert reader.left_s(1.0) is None  # nothing is known of this phase
    reader.feed(_READY[2].encode() + b"\n", 10.0)
    assert reader.left_s(110.0) == 400.0 + 90.0
    assert reader.left_s(9_999.0) == 90.0
    (event,) = [e for e in reader.feed(_bar(27, 64, "04:30"), 290.0) if isinstance(e, ProgressEvent)]
    assert (event.phase, event.done, event.total) == ("target_weights", 27, 64)
    assert event.left_s == pytest.approx(270.0 / 27 * 37 + 90.0)
    assert reader.left_s(300.0) == pytest.approx(360.0 + 90.0)
    reader.feed(_READY[3].encode() + b"\n", 700.0)
    assert reader.left_s(800.0) == 0.0


def test_without_earlier_starts_the_bar_alone_tells() -> None:
    reader = LogReader(VLLM)
    reader.feed("\n".join(_READY[:3]).encode() + b"\n" + _bar(0, 10, "00:00"), 100.0)
    assert reader.left_s(100.0) is None
    reader.feed(_bar(1, 10, "00:00"), 100.5)  # shorter than the bar's own seconds
    assert reader.left_s(100.5) == pytest.approx(4.5)


@example(["12-31 23:59:50", "01-01 00:00:10"], 20.0)
@example(["2026-12-01 02:07:29", "2026-12-01 02:08:29"], 60.0)
@example(["02-28 23:59:59", "02-29 00:00:00"], 1.0)
@example(["nothing", "01-01 00:00:10"], 0.0)
@example(["99-99 00:00:00", "12-01 00:00:00"], 0.0)
@given(st.just(["12-01 01:00:00", "no time"]), st.just(0.0))
def test_times_are_those_of_the_lines(lines: list[str], seconds: float) -> None:
    text = "\n".join(f"[{line}] x" for line in lines).encode()
    assert LineTimes(text)(text) == seconds


def test_a_line_without_time_has_that_of_the_one_before() -> None:
    data = "\n".join(_READY).encode() + b"\n"
    reader = LogReader(VLLM, {}, LineTimes(data))
    events = [event for line in data.splitlines(keepends=True) for event in reader.feed(line, 0.0)]
    assert [(e.phase, e.at_s) for e in events if isinstance(e, PhaseEvent)][-2:] == [("target_weights", 20.0), ("ready", 20.0)]


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_note_is_told_once_and_not_by_each_worker() -> None:
    said = "INFO 12-01 01:00:00 [g.py:1] Using auxiliary layers from speculative config: (2, 15, 27)"
    _, events = _read(VLLM, [f"(Worker_TP{n} pid={n}) {said}" for n in range(8)])
    (note,) = [event for event in events if isinstance(event, NoteEvent)]
    assert note.id == "aux-layers-from-config"
    assert "(2, 15, 27)" in note.title and note.line.startswith("Using auxiliary")


def test_the_last_lines_are_kept() -> None:
    reader, _ = _read(VLLM, [f"line {n}" for n in range(10_000)])
    assert reader.last_lines == [f"line {n}" for n in range(9_980, 10_000)]


def test_an_event_can_be_read_back() -> None:
    _, events = _read(VLLM, [*_READY, _DIED])
    for event in [*events, HealthEvent(what="no token for 30 s"), LogReader(VLLM).verdict()]:
        assert TypeAdapter(AnyEvent).validate_json(event.model_dump_json()) == event


@pytest.mark.parametrize("name", _ENGINES)
def test_rules_are_sound(name: str) -> None:
    rules = _ENGINES[name]
    assert {rule.phase for rule in rules.phases} <= set(PHASES)
    assert {"config", "workers", "target_weights", "drafter_weights", "kv_cache", "compile", "graphs", "serving", "ready", "token"} == {
        rule.phase for rule in rules.phases
    }
    for rule in rules.progress:
        assert {"done", "total"} <= set(re.compile(rule.pattern).groupindex)
    for failure in rules.failures:
        assert failure.id and failure.fix, failure.title
