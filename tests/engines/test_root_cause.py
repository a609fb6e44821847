"""The one cause in an engine's log: real logs of real failures, and whatever else stands in a log."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.root_cause import root_cause, without_prefix
from outrider.engines.vllm.log_rules import LOG

_LOGS = Path(__file__).parent / "logs"
_CAUSES = {
    "vllm-0.32.0-dies-on-first-request": "its worker VllmWorker-0 died with exit code -6",
    "vllm-0.32.0-import-fails": "it cannot be imported: libcudart.so.13: cannot open shared object file",
    "vllm-0.32.0-out-of-memory": "out of memory: 1000.0 GiB asked for the KV cache, 7.27/9.71 GiB there",
    "vllm-0.32.0-port-taken": "its port is taken",
    "vllm-0.32.0-unknown-architecture": "it does not know the architecture 'FooEagle3'",
    "vllm-0.32.0-unknown-tensor": "the drafter or target holds a tensor that it does not know: foo",
    "vllm-0.32.0-worker-killed": "its worker VllmWorker-0 died with exit code -9",
    "vllm-0.32.0-wrong-shape": "a tensor has shape torch.Size([576, 1152]), its config asks for torch.Size([576, 1728])",
}
# a process that ends by itself needs no line that says so
_END_BY_THEMSELVES = {"vllm-0.32.0-import-fails", "vllm-0.32.0-port-taken", "vllm-0.32.0-unknown-architecture"}


def _log(name: str) -> str:
    return (_LOGS / f"{name}.log").read_text()


def _fatal(log: str) -> list[str]:
    lines = map(without_prefix, log.splitlines())
    return [line for line in lines for rule in LOG.fatal if rule.literal in line and re.search(rule.pattern, line)]


@pytest.mark.parametrize("name", _CAUSES)
def test_a_real_log_gives_its_cause(name: str) -> None:
    found = root_cause(_log(name), LOG.failures)
    assert found is not None
    assert found.title.startswith(_CAUSES[name])
    assert found.fix
    assert found.evidence[:50] in _log(name)


@pytest.mark.parametrize("name", _CAUSES)
def test_a_log_of_a_lost_engine_has_a_fatal_line(name: str) -> None:
    assert bool(_fatal(_log(name))) == (name not in _END_BY_THEMSELVES)


def test_a_log_of_a_server_that_was_well_and_was_stopped_has_no_cause(shared: Path) -> None:
    names = ("vllm-0.32.0-cpu-eagle3-ready.log", "vllm-0.32.0-cpu-plain-ready.log", "vllm-0.25.0-h200-eagle3-ready.log")
    for name in names:
        log = (shared / "logs" / name).read_text(errors="replace")
        assert root_cause(log, LOG.failures) is None, name
        assert not _fatal(log), name


def test_an_unknown_exception_is_the_cause_itself() -> None:
    log = (
        "(Worker pid=7) ERROR 12-01 01:56:11 [worker.py:3] Traceback (most recent call last):\n"
        '(Worker pid=7) ERROR 12-01 01:56:11 [worker.py:3]   File "x.py", line 1, in f\n'
        "(Worker pid=7) ERROR 12-01 01:56:11 [worker.py:3] ValueError: no way to go on with 16\n"
        "Traceback (most recent call last):\n"
        '  File "y.py", line 2, in g\n'
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    found = root_cause(log, LOG.failures)
    assert found is not None
    assert (found.title, found.fix) == ("ValueError: no way to go on with 16", "")


def test_a_log_without_an_exception_gives_no_cause() -> None:
    assert root_cause("INFO: all is well\nValueError: not in a traceback\n", LOG.failures) is None


@given(st.text())
def test_any_text_ends_in_a_cause_or_none(text: str) -> None:
    for log in (text, f"Traceback (most recent call last):\n{text}"):
        found = root_cause(log, LOG.failures)
        assert found is None or found.title


@given(st.lists(st.sampled_from(_log("vllm-0.32.0-unknown-tensor").splitlines()), max_size=40))
def test_a_log_torn_anywhere_ends_in_a_cause_or_none(lines: list[str]) -> None:
    found = root_cause("\n".join(lines), LOG.failures)
    assert found is None or found.evidence
