"""Log, processes and answers watched together. The engines are scripts; their logs beside them are real ones."""

import io
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from outrider.core.errors import InputError
from outrider.core.shell import GuardedProcess
from outrider.engines.environment import own_environment
from outrider.engines.liveness import PATIENCE, Patience
from outrider.engines.log_events import EndEvent, Event, FailureEvent, HealthEvent, PhaseEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.log_rules import PHASES, LineRule, LogFailure, LogRules, Phase, PhaseRule
from outrider.engines.log_source import LocalLog, PipedLog
from outrider.engines.probing import Probe
from outrider.engines.serving import free_port
from outrider.engines.timings import Timings, keep, timings_of
from outrider.engines.vllm.log_rules import LOG as VLLM
from outrider.engines.watching import Watched, Watcher, end_of, watched_of

_RULES = LogRules(
    phases=(PhaseRule("config", "config"), PhaseRule("target_weights", "loading"), PhaseRule("ready", "serving now")),
    failures=(LogFailure(r"OutOfMemoryError: (.+)", "out of memory: {0}", "a smaller one", "out-of-memory"),),
    fatal=(LineRule("the core is lost", "^the core is lost"),),
    stopped=(LineRule("shutting down"),),
    answering=(LineRule("200 OK"),),
)
_SERVER = """
    import json, os, subprocess, sys, threading, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/metrics":
                self.answer(b"# TYPE x\\nvllm:generation_tokens_total{model_name=\\"m\\"} " + str(made()).encode())
            else:
                self.answer(json.dumps({"data": [{"id": "target"}]}).encode())
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            before_an_answer()
            self.answer(json.dumps({"choices": [{"text": "x"}]}).encode())
        def answer(self, body):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass

    def serve():
        print("serving now")
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

    def worker(title):
        code = "import time; time.sleep(600)"
        return subprocess.Popen([title, "-S", "-c", code], executable=sys.executable)

    def made():
        return 0
    def before_an_answer():
        pass
"""
_FOREVER = "threading.Event().wait()"


def _patience(silence_s: float, spinning_s: float = 1000.0) -> Mapping[Phase, Patience]:
    return dict.fromkeys(PHASES, Patience(silence_s, spinning_s))


@dataclass
class _Case:
    """A script that is watched, and what was told of it, with the time of each event."""

    process: GuardedProcess
    watcher: Watcher
    told: list[tuple[float, Event]] = field(default_factory=list)

    def until(self, is_so: Callable[[Event], bool], timeout_s: float = 30.0) -> Event:
        """Watch on until an event of this kind."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            events = self.watcher.step()
            self.told += [(time.monotonic(), event) for event in events]
            if found := next((event for event in events if is_so(event)), None):
                return found
            assert not self.watcher.is_over, self.told
            time.sleep(0.05)
        raise AssertionError(f"not told: {self.told}")

    def end(self, timeout_s: float = 30.0) -> EndEvent:
        found = self.until(lambda event: isinstance(event, EndEvent), timeout_s)
        assert isinstance(found, EndEvent)
        return found

    def failures(self) -> list[FailureEvent]:
        return [event for _, event in self.told if isinstance(event, FailureEvent)]


@contextmanager
def _case(
    script: str,
    tmp_path: Path,
    patience: Mapping[Phase, Patience] = PATIENCE,
    asked: bool = False,
    again_after_s: float | None = None,
    is_ours: bool = True,
) -> Iterator[_Case]:
    port, log = free_port(), tmp_path / "log"
    code = textwrap.dedent(_SERVER) + textwrap.dedent(script)
    with ExitStack() as stack:
        process = stack.enter_context(GuardedProcess("engine script", [sys.executable, "-u", "-c", code, str(port)], log, os.environ))
        probe = stack.enter_context(Probe(f"http://127.0.0.1:{port}", again_after_s)) if asked else None
        watched = watched_of(process, _RULES, probe=probe)
        yield _Case(process, Watcher(watched if is_ours else replace(watched, stop=None), patience=patience))


def _is_failure(event: Event) -> bool:
    return isinstance(event, FailureEvent)


def _is_phase(phase: Phase) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, PhaseEvent) and event.phase == phase


# --- ends -----------------------------------------------------------------------------------------------------------------


def test_an_engine_that_ends_silently(tmp_path: Path) -> None:
    with _case("print('loading'); time.sleep(1); os._exit(3)", tmp_path) as case:
        assert case.end() == EndEvent(state="failed", cause="it ended with exit code 3")
        assert [(f.id, f.phase, f.evidence) for f in case.failures()] == [("ended", "target_weights", "loading")]


def test_a_line_is_a_verdict_within_a_second_and_the_engine_is_ended(tmp_path: Path) -> None:
    script = f"print('loading'); time.sleep(1); print(f'at {{time.monotonic()}}\\nthe core is lost'); {_FOREVER}"
    with _case(script, tmp_path) as case:
        case.until(_is_failure)
        told_s = case.told[-1][0]
        assert case.end().cause == "the core is lost"
        assert case.process.exit_code is not None
        written_s = float((tmp_path / "log").read_text().split("at ")[1].split()[0])
    assert told_s - written_s < 1.0


def test_a_better_root_takes_the_place_of_the_first(tmp_path: Path) -> None:
    script = f"print('the core is lost'); time.sleep(1); print('Traceback (most recent call last):\\nOutOfMemoryError: 3 GiB'); {_FOREVER}"
    with _case(script, tmp_path) as case:
        assert case.end() == EndEvent(state="failed", cause="out of memory: 3 GiB")
        assert [failure.title for failure in case.failures()] == ["the core is lost", "out of memory: 3 GiB"]
        failure = case.watcher.failure()
    assert failure is not None
    assert failure.what == "engine script failed: out of memory: 3 GiB"
    assert failure.fix == f"a smaller one; see {tmp_path / 'log'}"


def test_a_worker_that_dies_under_a_live_parent(tmp_path: Path) -> None:
    script = f"lost = worker('VLLM::Worker_TP1'); kept = worker('VLLM::Worker_TP0'); print('up'); time.sleep(3); lost.kill(); {_FOREVER}"
    with _case(script, tmp_path) as case:
        assert case.end() == EndEvent(state="failed", cause="it lost its worker VLLM::Worker_TP1")
        assert case.failures()[0].id == "worker-died"


def test_what_the_log_says_of_a_dead_worker_goes_before(tmp_path: Path) -> None:
    script = f"""
    lost = worker('VLLM::EngineCore')
    time.sleep(3)
    lost.kill()
    time.sleep(0.3)
    print('the core is lost\\nTraceback (most recent call last):\\nOutOfMemoryError: of the host')
    {_FOREVER}
    """
    with _case(script, tmp_path) as case:
        assert case.end().cause == "out of memory: of the host"
        assert len(case.failures()) == 1


def test_a_worker_may_end_in_a_stop_that_was_asked_for(tmp_path: Path) -> None:
    script = "w = worker('VLLM::EngineCore'); print('serving now'); time.sleep(3); print('shutting down'); w.kill(); time.sleep(3)"
    with _case(script, tmp_path) as case:
        assert case.end() == EndEvent(state="ready", cause=None)
        assert not case.failures()
        failure = case.watcher.failure()
    # whoever wanted to use it is told all the same
    assert failure is not None and failure.what == "engine script was stopped: it ended with exit code 0"


def test_a_traceback_that_was_handled_is_not_why_it_is_killed_later(tmp_path: Path) -> None:
    script = f"""
    print('serving now')
    print('Traceback (most recent call last):\\nValueError: a bad request')
    print('POST /v1/completions 200 OK')
    {_FOREVER}
    """
    with _case(script, tmp_path) as case:
        case.until(_is_phase("ready"))
        engine = next(p for p in psutil.Process(case.process.pid).children() if "outrider.core.guard" not in p.cmdline())
        engine.kill()
        assert case.end() == EndEvent(state="failed", cause="it ended with exit code 137")


# --- hangs ----------------------------------------------------------------------------------------------------------------


def test_a_start_without_a_sign_of_life_hangs(tmp_path: Path) -> None:
    with _case(f"print('loading'); {_FOREVER}", tmp_path, _patience(3.0)) as case:
        end = case.end()
        assert end.state == "hung" and end.cause is not None
        assert end.cause.startswith("it hung in phase target_weights: no progress for ")
        assert "have not moved for " in case.failures()[0].evidence
        assert case.process.exit_code is not None


def test_a_start_that_reads_from_the_disk_and_logs_nothing_does_not(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 20))
    script = f"""
    print('loading')
    for _ in range(60):
        open({str(tmp_path / "weights")!r}, 'rb').read()
        time.sleep(0.2)
    serve()
    """
    with _case(script, tmp_path, _patience(6.0, 6.0), asked=True) as case:
        case.until(_is_phase("token"))
        assert case.watcher.is_ready and case.watcher.verdict is None
        assert case.watcher.seconds["target_weights"] == pytest.approx(12.0, abs=3.0)


def test_a_start_that_only_spins_is_given_more_time(tmp_path: Path) -> None:
    with _case("print('loading')\nwhile True: pass", tmp_path, _patience(4.0, 8.0)) as case:
        began_s = time.monotonic()
        assert case.end().state == "hung"
        assert time.monotonic() - began_s > 8.0
        assert "use the CPU, and nothing else moves" in case.failures()[0].evidence


def test_a_line_over_and_over_is_no_progress(tmp_path: Path) -> None:
    script = "print('loading')\nfor n in range(600): print(f'still waiting for 1 core, {n} s'); time.sleep(1)"
    with _case(script, tmp_path, _patience(3.0)) as case:
        assert case.end().state == "hung"


def test_lines_that_differ_are_progress(tmp_path: Path) -> None:
    script = f"print('loading')\nfor c in 'abcdefgh': print('layer ' + c); time.sleep(1)\nprint('serving now'); {_FOREVER}"
    with _case(script, tmp_path, _patience(3.0)) as case:
        case.until(_is_phase("ready"))
        assert case.watcher.verdict is None


def test_a_server_that_is_well_and_yields_nothing_hangs(tmp_path: Path) -> None:
    script = f"def before_an_answer(): {_FOREVER}\nserve()"
    with _case(script, tmp_path, _patience(3.0), asked=True) as case:
        end = case.end()
        assert end.state == "hung" and end.cause is not None and "well by its own word, and no token came" in end.cause
        assert not case.watcher.is_ready
        assert HealthEvent(what="/health answers 200; a token is asked for") in [event for _, event in case.told]


def test_a_server_that_makes_tokens_for_others_only_lets_us_wait(tmp_path: Path) -> None:
    script = """
    started = time.monotonic()
    def made(): return int(time.monotonic() - started)
    def before_an_answer(): time.sleep(12)
    serve()
    """
    with _case(script, tmp_path, _patience(2.0), asked=True) as case:
        case.until(_is_phase("token"))


def test_a_server_that_hangs_after_it_was_ready(tmp_path: Path) -> None:
    script = """
    asked = []
    def before_an_answer():
        asked.append(1)
        if len(asked) > 2: threading.Event().wait()
    serve()
    """
    with _case(script, tmp_path, _patience(3.0), asked=True, again_after_s=0.5) as case:
        case.until(_is_phase("token"))
        assert case.watcher.is_ready
        assert case.end().state == "hung"


def test_a_server_that_is_idle_does_not_hang(tmp_path: Path) -> None:
    with _case("serve()", tmp_path, _patience(2.0), asked=True) as case:
        case.until(_is_phase("token"))
        time.sleep(3)
        assert not case.watcher.step() and case.watcher.verdict is None


# --- what is not ours -----------------------------------------------------------------------------------------------------


def test_what_is_not_ours_is_not_ended(tmp_path: Path) -> None:
    with _case(f"print('the core is lost'); {_FOREVER}", tmp_path, is_ours=False) as case:
        assert case.end().state == "failed"
        assert case.process.exit_code is None


def test_a_server_whose_log_does_not_tell_of_its_start_does_not_hang(tmp_path: Path) -> None:
    """It was rotated away: the server has long been ready, and is idle."""
    with _case(f"print('POST /v1/completions 200 OK'); {_FOREVER}", tmp_path, _patience(2.0), is_ours=False) as case:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            case.watcher.step()
        assert case.watcher.verdict is None


def test_the_end_of_a_process_by_its_number() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as process:
        how_ended = end_of(process.pid)
        assert how_ended() == ""
        process.kill()
        time.sleep(0.3)
        assert how_ended() == "ended"  # though its parent has not asked yet
    with pytest.raises(InputError, match=f"there is no process {process.pid}"):
        end_of(process.pid)


@pytest.mark.parametrize(
    ("name", "state", "cause"),
    [("vllm-0.32.0-cpu-eagle3-ready", "ready", None), ("vllm-0.32.0-cpu-mla-eagle3-no-common-block-size", "failed", "block size")],
)
def test_a_real_log_from_a_pipe(shared: Path, name: str, state: str, cause: str | None) -> None:
    with (shared / "logs" / f"{name}.log").open("rb") as log:
        *_, last = Watcher(Watched("engine vllm", "standard input", PipedLog(log), LogReader(VLLM))).events()
    assert isinstance(last, EndEvent)
    assert last.state == state
    assert (cause is None and last.cause is None) or (cause is not None and last.cause is not None and cause in last.cause)


def test_a_log_that_is_written_while_it_is_watched(shared: Path, tmp_path: Path) -> None:
    """No process is known: it is missing at first, then its lines come, and the goal ends the watch."""
    path = tmp_path / "server.log"

    def write() -> None:
        time.sleep(1.0)
        shutil.copy(shared / "logs" / "vllm-0.32.0-cpu-eagle3-ready.log", path)

    writer = threading.Thread(target=write)
    writer.start()
    told = list(Watcher(Watched("engine vllm", str(path), LocalLog(path), LogReader(VLLM))).events("ready"))
    writer.join()
    assert isinstance(told[0], HealthEvent)
    assert [event.phase for event in told if isinstance(event, PhaseEvent)][-1] in ("ready", "token")
    assert told[-1] == EndEvent(state="ready", cause=None)


def test_a_log_that_ends_before_anything_is_clear() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"config\nloading\n")
    os.close(writing)
    with io.FileIO(reading) as raw, io.BufferedReader(raw) as stream:
        *_, last = Watcher(Watched("engine", "standard input", PipedLog(stream), LogReader(_RULES))).events()
    assert last == EndEvent(state="running", cause=None)


def test_a_stop_by_the_user_ends_the_watch_of_a_log_alone(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("config\nserving now\nshutting down\n")
    *_, last = Watcher(Watched("engine", "log", LocalLog(tmp_path / "log"), LogReader(_RULES))).events()
    assert last == EndEvent(state="ready", cause=None)


# --- what is learned from earlier starts ------------------------------------------------------------------------------------


def test_usual_times_are_those_of_the_same_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    environment = own_environment("script", "1")
    assert timings_of(environment, tmp_path / "target").usual_s() == {}
    for seconds in (10.0, 90.0, 12.0):
        keep(timings_of(environment, tmp_path / "target"), {"target_weights": seconds})
    assert timings_of(environment, tmp_path / "target").usual_s() == {"target_weights": 12.0}
    assert timings_of(environment, tmp_path / "other").usual_s() == {}
    assert timings_of(own_environment("script", "2"), tmp_path / "target").usual_s() == {}


def test_a_damaged_file_of_times_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    timings = timings_of(own_environment("script", "1"), tmp_path)
    keep(timings, {"workers": 3.0})
    (kept,) = (tmp_path / "home" / "timings").iterdir()
    kept.write_text(kept.read_text()[:40])
    assert timings_of(own_environment("script", "1"), tmp_path) == Timings(**timings.model_dump())
