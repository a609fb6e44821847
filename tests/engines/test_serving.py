"""A start is watched: what fails is ended at once, with the cause; what is well is left alone. The engines here are scripts."""

import os
import re
import signal
import socket
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest

from outrider.core.errors import EngineFailed
from outrider.engines.engine import Engine, Launch, ServeSpec
from outrider.engines.environment import Environment, own_environment
from outrider.engines.log_events import Event, PhaseEvent
from outrider.engines.log_rules import LineRule, LogFailure, LogRules, PhaseRule
from outrider.engines.reference import ENGINE
from outrider.engines.serving import Served, serving
from outrider.engines.timings import timings_of

_ENVIRONMENT = own_environment("script", "1")
_LOST = "print('the core is lost'); "
_RAISED = "print('Traceback (most recent call last):\\n{}')"
_SERVER = """
    import json, os, sys, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, {"data": [{"id": "target"}]})
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            before_an_answer()
            self.answer(status, {"choices": [{"text": "x", "finish_reason": "length"}]})
        def answer(self, status, value):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass

    def serve():
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

    status = 200
    def before_an_answer():
        pass
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))


def _engine(script: str, timeout_s: float = 60.0) -> Engine:
    """An engine that is a script; `PORT` is its argument."""
    code = textwrap.dedent(_SERVER) + textwrap.dedent(script)

    def launch(_: Environment, spec: ServeSpec) -> Launch:
        return Launch([sys.executable, "-u", "-c", code, str(spec.port)], {"OUTRIDER_TEST_OWN": "from the launch"})

    failures = (LogFailure(r"OutOfMemoryError: (.+)", "out of memory: {0}", "a smaller one"),)
    phases = (PhaseRule("target_weights", "loading"),)
    log = LogRules(phases, fatal=(LineRule("the core is lost", "^the core is lost"),), failures=failures)
    return replace(ENGINE, id="script", launch=launch, log=log, ready_timeout_s=timeout_s)


def _command_of(served: Served) -> psutil.Process:
    """The engine's own process: beside it the guard has a second."""
    return next(p for p in psutil.Process(served.process.pid).children() if "outrider.core.guard" not in p.cmdline())


def _spec(tmp_path: Path, port: int = 0) -> ServeSpec:
    return ServeSpec(tmp_path, None, 3, "float32", port)


def _failure(script: str, tmp_path: Path, timeout_s: float = 60.0) -> EngineFailed:
    with pytest.raises(EngineFailed) as caught, serving(_engine(script, timeout_s), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log"):
        pass
    assert str(tmp_path / "log") in caught.value.fix
    return caught.value


def test_a_server_that_answers_is_ready_and_ends_with_the_block(tmp_path: Path) -> None:
    with serving(_engine("serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log") as served:
        assert httpx2.get(f"{served.url}/health", trust_env=False).status_code == 200
        assert served.watch.failure(0) is None
        child = _command_of(served)
    assert not child.is_running()


def test_a_fatal_line_ends_a_server_that_lives_on(tmp_path: Path) -> None:
    """As after a worker's death: the process is there, and would never answer."""
    started = time.monotonic()
    found = _failure(_LOST + _RAISED.format("ValueError: no block size") + "; time.sleep(600)", tmp_path)
    assert found.what == "engine script failed: ValueError: no block size"
    assert time.monotonic() - started < 30


def test_what_the_log_says_behind_the_fatal_line_is_waited_for(tmp_path: Path) -> None:
    script = _LOST + "time.sleep(0.6); " + _RAISED.format("torch.OutOfMemoryError: 3 GiB") + "; time.sleep(600)"
    found = _failure(script, tmp_path)
    assert (found.what, found.fix.split(";")[0]) == ("engine script failed: out of memory: 3 GiB", "a smaller one")


def test_an_end_with_exit_code_0_is_a_failure_all_the_same(tmp_path: Path) -> None:
    found = _failure("print('good bye')", tmp_path)
    assert found.what == "engine script ended with exit code 0"
    assert found.evidence == "good bye"


def test_a_server_that_is_up_and_refuses_its_first_request(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as caught, serving(_engine("status = 500; serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log"):
        pass
    assert "failed on its first request" in caught.value.what
    assert caught.value.evidence.startswith("500: ")


def test_a_server_that_dies_on_its_first_request(tmp_path: Path) -> None:
    script = """
    def before_an_answer():
        print('Traceback (most recent call last):\\nRuntimeError: shape [-1, 768] is invalid')
        os._exit(0)
    serve()
    """
    assert _failure(script, tmp_path).what == "engine script failed: RuntimeError: shape [-1, 768] is invalid"


def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found = _failure("print('loading'); time.sleep(600)", tmp_path, timeout_s=1.0)
    assert (found.what, found.evidence) == ("engine script was not ready after 1 s", "loading")


def test_a_failure_while_it_serves_replaces_the_error_of_who_waits(tmp_path: Path) -> None:
    """A client waits for an answer that will never come; the log tells why, and the client is set free."""
    script = """
    asked = 0
    def before_an_answer():
        global asked
        asked += 1
        if asked > 1:
            print('the core is lost\\nTraceback (most recent call last):\\nValueError: worker 3 is gone')
            time.sleep(600)
    serve()
    """
    started = time.monotonic()
    with pytest.raises(EngineFailed) as caught, serving(_engine(script), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log") as served:
        try:
            httpx2.post(f"{served.url}/v1/completions", json={}, timeout=300, trust_env=False)
        except httpx2.HTTPError as error:
            raise EngineFailed("the connection broke off") from error
    assert caught.value.what == "engine script failed: ValueError: worker 3 is gone"
    assert time.monotonic() - started < 60


def test_an_error_that_is_not_the_engines_leaves_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), serving(_engine("serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log"):
        raise KeyError("mine")


def test_a_killed_engine_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as caught, serving(_engine("serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log") as served:
        os.kill(_command_of(served).pid, signal.SIGKILL)
        failure = served.watch.failure(30)
        assert failure is not None
        raise failure
    assert re.search(r"exit code 137", caught.value.what)


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = serving(_engine("serve()"), _ENVIRONMENT, _spec(tmp_path, port), tmp_path / "log")
        with pytest.raises(EngineFailed, match=f"port {port} is taken") as caught, taken:
            pass
    assert caught.value.exit_code == 3
    assert not (tmp_path / "log").exists()


def test_the_users_own_variables_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for own, expected in ((None, "from the launch"), ("mine", "mine")):
        if own:
            monkeypatch.setenv("OUTRIDER_TEST_OWN", own)
        with serving(_engine("print(os.environ['OUTRIDER_TEST_OWN']); serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log"):
            pass
        assert (tmp_path / "log").read_text().splitlines()[0] == expected


def test_what_happens_is_told_and_usual_times_are_kept(tmp_path: Path) -> None:
    told: list[Event] = []
    engine, spec = _engine("print('loading'); time.sleep(2); serve()"), _spec(tmp_path)
    with serving(engine, _ENVIRONMENT, spec, tmp_path / "log", told.append):
        pass
    assert [event.phase for event in told if isinstance(event, PhaseEvent)] == ["target_weights", "ready", "token"]
    usual_s = timings_of(_ENVIRONMENT, tmp_path).usual_s()
    assert 1.5 < usual_s["target_weights"] < 10


def test_a_server_is_asked_again_where_that_is_wanted(tmp_path: Path) -> None:
    script = """
    asked = []
    def before_an_answer():
        asked.append(1)
        print(f"asked {len(asked)}")
    serve()
    """
    with serving(_engine(script), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log", probe_again_after_s=0.3):
        deadline = time.monotonic() + 20
        while "asked 3" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
    assert "asked 3" in (tmp_path / "log").read_text()


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    with serving(_engine("serve()"), _ENVIRONMENT, _spec(tmp_path), tmp_path / "log"):
        deadline = time.monotonic() + 5
        while threading.active_count() > before + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() == before + 1, "the watch only: a server that is ready is not asked any more"
    assert threading.active_count() == before
