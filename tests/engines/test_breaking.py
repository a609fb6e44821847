"""What broke real engines' start, watch, counts and measurement once: each test is one way in which it did."""

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

import outrider.engines.environments as environments
from outrider.core.errors import EngineFailed, InputError, MeasurementInvalid, OutriderError
from outrider.core.prompts import Conversation
from outrider.core.results import Acceptance, MeasureResult
from outrider.core.shell import GuardedProcess
from outrider.engines.engine import Answer, Engine, Launch, ServeSpec
from outrider.engines.environment import Environment, own_environment
from outrider.engines.log_rules import LineRule, LogRules
from outrider.engines.reference import ENGINE as REFERENCE
from outrider.engines.root_cause import root_cause
from outrider.engines.serving import engine_named, serving
from outrider.engines.vllm import ENGINE as VLLM
from outrider.engines.vllm.log_rules import LOG
from outrider.engines.watching import Watch, watched_of
from outrider.measure.arms import at_urls
from outrider.measure.stage import Terms, measure
from outrider.targets.folder import TargetFolder

_EOS, _K = 99, 3
_LOG = LogRules(fatal=(LineRule("the core is lost", "^the core is lost"),))


_SERVER = """
    import json, os, sys, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(*(models if self.path == "/v1/models" else (200, {})))
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, completion)
        def answer(self, status, value):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass

    models = 200, {"data": [{"id": "target"}]}
    completion = {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 8}}
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
"""


def _engine(script: str, timeout_s: float = 30.0) -> Engine:
    code = textwrap.dedent(_SERVER) + textwrap.dedent(script)
    return replace(
        REFERENCE,
        id="script",
        launch=lambda _, spec: Launch([sys.executable, "-u", "-c", code, str(spec.port)], {}),
        log=_LOG,
        ready_timeout_s=timeout_s,
    )


def _serving(script: str, tmp_path: Path, timeout_s: float = 30.0) -> Any:
    spec = ServeSpec(tmp_path, None, _K, "float32", 0)
    return serving(_engine(script, timeout_s), own_environment("script", "1"), spec, tmp_path / "log")


@contextmanager
def _watched(code: str, log: Path) -> Iterator[Watch]:
    command = [sys.executable, "-S", "-u", "-c", code]
    with GuardedProcess("engine script", command, log, os.environ) as process, Watch(watched_of(process, _LOG)) as watch:
        yield watch


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_that_is_removed_does_not_blind_the_watch(tmp_path: Path) -> None:
    """The watch's thread died of it: a lost engine ran on, and `outrider serve` waited for ever."""
    with _watched("import time; print('up'); time.sleep(1); print('the core is lost'); time.sleep(60)", tmp_path / "log") as watch:
        while b"up" not in (tmp_path / "log").read_bytes():
            time.sleep(0.05)
        (tmp_path / "log").unlink()
        assert watch.failure(10) is not None


def test_a_log_that_is_cut_short_does_not_blind_the_watch(tmp_path: Path) -> None:
    """As logrotate's copytruncate does: what was written before the old end was never read."""
    with _watched("import time; print('up' * 500); time.sleep(2); print('the core is lost'); time.sleep(60)", tmp_path / "log") as watch:
        while b"up" not in (tmp_path / "log").read_bytes():
            time.sleep(0.05)
        time.sleep(0.6)
        os.truncate(tmp_path / "log", 0)
        assert watch.failure(10) is not None


def test_what_was_survived_before_it_was_ready_is_not_the_cause(tmp_path: Path) -> None:
    """A plug-in that could not be loaded, an unavailable back-end: such tracebacks are in the log of a sound start."""
    script = """
    print("Traceback (most recent call last):\\nModuleNotFoundError: No module named 'optional'")
    def die():
        time.sleep(3)
        print("Traceback (most recent call last):\\nRuntimeError: out of blocks")
        os._exit(1)
    import threading
    threading.Thread(target=die).start()
    server.serve_forever()
    """
    with pytest.raises(EngineFailed) as caught, _serving(script, tmp_path) as served:
        failure = served.watch.failure(20)
        assert failure is not None
        raise failure
    assert "out of blocks" in caught.value.what


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        # another process writes into a traceback
        (
            "Process EngineCore:\nTraceback (most recent call last):\n  File 'x.py', line 3\n"
            'INFO:     127.0.0.1:3 - "POST /v1/completions HTTP/1.1" 200 OK\n    raise\nValueError: no block size\n',
            "ValueError: no block size",
        ),
        # one exception while another was handled: the second is what is meant
        (
            "Traceback (most recent call last):\n  File 'x.py'\nKeyError: 'kimi'\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File 'x.py'\nValueError: no such quantization\n",
            "ValueError: no such quantization",
        ),
        # Python says itself that it went on
        (
            "Exception ignored in: <function x at 0x1>\nTraceback (most recent call last):\n  File 'x.py'\nAttributeError: gone\n"
            "Traceback (most recent call last):\n  File 'x.py'\nValueError: the cause\n",
            "ValueError: the cause",
        ),
    ],
)
def test_the_cause_is_the_one_that_is_meant(log: str, cause: str) -> None:
    found = root_cause(log, LOG.failures)
    assert found is not None
    assert found.title == cause


def test_a_title_is_not_filled_with_none() -> None:
    found = root_cause("Failed to load model - not enough GPU memory. Try less\n", LOG.failures)
    assert found is not None
    assert found.title.startswith("out of memory") and "None" not in found.title


def _ended(process: GuardedProcess) -> int:
    while (code := process.exit_code) is None:
        time.sleep(0.05)
    return code


def test_a_command_that_is_not_there_is_told_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`engine add --base /nowhere/python` showed a traceback, and an error without a cause."""
    with GuardedProcess("x", ["/nowhere/python", "-m", "venv"], tmp_path / "log", os.environ) as process:
        assert _ended(process) != 0
    assert "/nowhere/python" in process.tail()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_engine_ends_with_its_guard_and_the_guards_second(tmp_path: Path) -> None:
    """`pkill -9 -f outrider` kills both, for both are called so, and left the engine."""
    with GuardedProcess("x", [sys.executable, "-S", "-c", "import time; time.sleep(60)"], tmp_path / "log", os.environ) as process:
        guard = psutil.Process(process.pid)
        while not (engines := [child for child in guard.children() if "outrider.core.guard" not in child.cmdline()]):
            time.sleep(0.05)
        for ours in [guard, *(child for child in guard.children() if child not in engines)]:
            ours.kill()
        gone, left = psutil.wait_procs(engines, timeout=5)
        for engine in left:
            engine.kill()
    assert gone and not left


def test_what_lies_in_the_current_folder_takes_no_packages_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout of vLLM, its folder `vllm` was started instead of the installed one; a psutil.py ended the guard."""
    (tmp_path / "psutil.py").write_text("raise SystemExit('the wrong psutil')\n")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('the wrong vllm')\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('vllm'))"]
    with GuardedProcess("x", command, tmp_path / "log", os.environ) as process:
        assert _ended(process) == 0, process.tail()
    assert str(tmp_path / "vllm") not in process.tail()


def test_a_server_that_wants_a_key_is_an_error(tmp_path: Path) -> None:
    """VLLM_API_KEY in the environment: /health answers, /v1/models does not. It was an unexpected KeyError."""
    with pytest.raises(OutriderError) as caught, _serving('models = 401, {"error": "Unauthorized"}\nserver.serve_forever()', tmp_path):
        pass
    assert caught.value.exit_code == 3
    assert "401" in caught.value.evidence


def test_an_answer_without_tokens_is_not_ready(tmp_path: Path) -> None:
    script = 'completion = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 0}}\nserver.serve_forever()'
    with pytest.raises(EngineFailed), _serving(script, tmp_path, timeout_s=3.0):
        pass


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """An installer that does nothing, and interpreters that all say that they hold vLLM 0.32.0; the commands that were run."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    commands: list[list[str]] = []
    monkeypatch.setattr(environments, "_run", lambda command, *_: commands.append(command))
    monkeypatch.setattr(environments, "_asked", _says("0.32.0"))
    return commands


def _says(version: str) -> Any:
    return lambda python, name, _: Environment(name, "vllm", "vllm", version, python, python.parent, ours=False)


@pytest.mark.parametrize("requirement", ["vllm @ https://host.example/wheels/vllm-0.32.0.whl", "vllm>=0.30", "vllm"])
def test_an_environment_is_named_after_one_version(installer: list[list[str]], requirement: str) -> None:
    """The slashes of a URL made a folder far below, which no list showed and `remove` did not delete."""
    with pytest.raises(InputError):
        environments.install(requirement, None, lambda _: None)
    assert not installer


def test_a_package_may_be_spelt_as_pip_allows(installer: list[list[str]]) -> None:
    assert environments.install("VLLM==0.32.0", None, lambda _: None).name == "vllm-0.32.0"


def test_a_second_add_leaves_the_first_ones_files(installer: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It began by deleting them."""
    folder = environments.home() / "engines" / "vllm-0.32.0"
    second = threading.Thread(target=_install_quietly)

    def run(command: list[str], *_: object) -> None:
        if not second.ident:
            (folder / "venv").mkdir()
            second.start()
            second.join(1.0)

    monkeypatch.setattr(environments, "_run", run)
    environments.install("vllm==0.32.0", None, lambda _: None)
    second.join()
    assert (folder / "venv").is_dir()


def _install_quietly() -> None:
    with suppress(InputError):  # told that another one installs is as good as having waited for it
        environments.install("vllm==0.32.0", None, lambda _: None)


def test_a_second_interpreter_of_the_same_version_does_not_replace_the_first(installer: list[list[str]], tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "python", tmp_path / "b" / "python"
    for python in (first, second):
        python.parent.mkdir()
        python.touch()
    environments.adopt(first)
    with suppress(InputError):  # refused is as good as listed beside it
        environments.adopt(second)
    assert first in {environment.python for environment in environments.all_environments()}


def test_a_lost_environment_does_not_take_the_others_with_it(installer: list[list[str]], tmp_path: Path) -> None:
    good, lost = tmp_path / "python", tmp_path / "lost"
    good.touch()
    environments.adopt(good)
    environments._record(replace(_says("0.1.0")(lost, "vllm-0.1.0", None), ours=False))
    assert environments.environment_for(engine_named("vllm"), "vllm-0.32.0", None).python == good
    assert "vllm-0.32.0" in {environment.name for environment in environments.all_environments()}


def test_an_engine_upgraded_in_place_is_called_by_its_version(
    installer: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").touch()
    environments.adopt(tmp_path / "python")
    monkeypatch.setattr(environments, "_asked", _says("0.40.0"))
    assert environments.environment_for(engine_named("vllm"), None, None).version == "0.40.0"


def _told(accepted: Sequence[int]) -> dict[str, Any]:
    """As vLLM 0.32.0 writes it: without the lists if there was no verify step."""
    lists = {"per_step_accepted": list(accepted), "per_step_drafted": [_K] * len(accepted)} if accepted else {}
    return {"speculative_decoding": {"num_spec_steps": len(accepted), "num_spec_tokens": _K, **lists}}


def test_an_answer_of_one_token_has_counts() -> None:
    stood_still = {f"vllm:spec_decode_num_{what}_total": 0.0 for what in ("drafts", "draft_tokens", "accepted_tokens")}
    assert VLLM.answer_acceptance(Answer([_EOS], 64, (_EOS,), _K, _told([]), None)) == Acceptance()
    assert VLLM.answer_acceptance(Answer([_EOS], 64, (_EOS,), _K, None, stood_still)) == Acceptance()
    assert VLLM.answer_acceptance(Answer([_EOS], 64, (_EOS,), _K, None, None)) is None


@dataclass
class _Arm:
    """A server that speaks as vLLM does; `answers` are (ids, accepted drafts of each step), by the prompt's last id."""

    answers: list[tuple[list[int], list[int]]]
    speculates: bool = True
    num_asked: int = 0

    def reply(self, prompt: Sequence[int]) -> bytes:
        self.num_asked += 1
        ids, accepted = self.answers[prompt[-1]]
        metrics = {"metrics": _told(accepted)} if self.speculates else {}
        events = [
            {"choices": [{"text": "x" * len(ids), "token_ids": ids, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": len(ids)}, **metrics},
        ]
        return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


@contextmanager
def _at_url(arm: _Arm) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"" if self.path == "/metrics" else b'{"data": [{"id": "target"}]}')

        def do_POST(self) -> None:
            self._answer(arm.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]))

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Target:
    eos_token_ids = (_EOS,)

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, int(messages[-1]["content"])]


def _measured(plain: _Arm, drafted: _Arm, folder: Path, concurrency: int = 1) -> MeasureResult:
    sets = {"s": [Conversation(id=f"p{n}", system=None, turns=(str(n),)) for n in range(len(plain.answers))]}
    with _at_url(plain) as plain_url, _at_url(drafted) as drafted_url:
        arms = at_urls(plain_url, drafted_url)
        return measure(VLLM, "1", arms, cast(TargetFolder, _Target()), sets, Terms(64, 0.0, concurrency, _K), folder)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_one_answer_of_one_token_does_not_undo_the_correction_of_all(tmp_path: Path, concurrency: int) -> None:
    """One immediate stop among the prompts, and drafts past every stop were counted, and all intervals were gone."""
    long = ([1, 2, 3, 4, 5, 6, _EOS], [3, 3])  # the second step ran two drafts past the stop
    answers = [*[long] * 7, ([_EOS], [])]
    found = _measured(_Arm(answers, speculates=False), _Arm(answers), tmp_path, concurrency).sets["s"]
    assert found.acceptance_length == pytest.approx(1 + 5 / 2)
    assert set(found.drafted.by_prompt) == {f"p{n}" for n in range(8)}
    assert found.acceptance_length_interval is not None


def test_a_server_that_did_not_speculate_is_asked_again(tmp_path: Path) -> None:
    """`start it with the drafter` was done, and the same command gave the same error from the old replies."""
    answers = [([1, 2, 3, 4, 5], [3])] * 3
    with pytest.raises(MeasurementInvalid):
        _measured(_Arm(answers, speculates=False), _Arm(answers, speculates=False), tmp_path)
    mended = _Arm(answers)
    found = _measured(_Arm(answers, speculates=False), mended, tmp_path)
    assert mended.num_asked >= 3
    assert found.acceptance_length == pytest.approx(4.0)


def test_an_answer_without_tokens_is_no_fault_of_ours(tmp_path: Path) -> None:
    """A resample that held only such answers of the plain server divided by zero."""
    plain = _Arm([([1, 2, 3, 4, 5], []), ([], [])], speculates=False)
    assert _measured(plain, _Arm([([1, 2, 3, 4, 5], [3])] * 2), tmp_path).sets["s"].num_prompts == 2
