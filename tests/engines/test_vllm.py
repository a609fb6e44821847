"""Real vLLM on a CPU: right integration accepts every draft, and each way to fail is one clear error that leaves nothing."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from builders import write_drafter
from oracles import Oracle, embedding_oracle, state_oracle
from outrider.core.errors import EngineFailed
from outrider.core.http import Completion, Question, Server
from outrider.core.results import Acceptance
from outrider.engines.engine import Answer, ServeSpec
from outrider.engines.environment import Environment
from outrider.engines.serving import free_port, serving
from outrider.engines.vllm import ENGINE
from pipeline.jobs import OUTRIDER, environment, nothing_left, processes_of

_K, _MAX_TOKENS = 3, 100
_START_TIMEOUT_S = 300.0
_SMALL = ("--max-model-len", "512")


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path]:
    """The state oracle, and the folder of its sound drafter."""
    folder = tmp_path_factory.mktemp("states")
    oracle = state_oracle(folder)
    return oracle, write_drafter(oracle.drafter, folder / "drafter")


def _spec(oracle: Oracle, drafter: Path) -> ServeSpec:
    return ServeSpec(oracle.target.path, drafter, _K, "float32", 0, max_batch=4, extra_args=_SMALL)


async def _answered(url: str, prompt: tuple[int, ...], max_tokens: int) -> tuple[Completion, dict[str, float]]:
    """An answer, and how the counters rose."""
    async with Server(url) as server:
        before = ENGINE.counters(await server.metrics())
        completion = await server.stream(Question(await server.model(), prompt, max_tokens, 0.0, 0))
        after = ENGINE.counters(await server.metrics())
    return completion, {name: value - before.get(name, 0.0) for name, value in after.items()}


def _assert_all_accepted(url: str, prompt: tuple[int, ...]) -> None:
    completion, counters = asyncio.run(_answered(url, prompt, _MAX_TOKENS))
    assert completion.token_ids is not None
    raw = ENGINE.acceptance(counters)
    assert raw is not None
    assert raw.acceptance_rate == 1.0
    for metrics, counted in ((completion.metrics, None), (None, counters)):
        corrected = ENGINE.answer_acceptance(Answer(completion.token_ids, _MAX_TOKENS, (), _K, metrics, counted))
        # 1 token from the prefill, then 4 a step; the last step has room for 3
        assert corrected == Acceptance(num_verify_steps=25, num_draft_tokens=75, num_accepted_tokens=75, accepted_at=(25, 25, 25))


def test_the_embedding_oracle_accepts_everything(vllm: Environment, tmp_path: Path) -> None:
    oracle = embedding_oracle(tmp_path)
    drafter = write_drafter(oracle.drafter, tmp_path / "drafter")
    with serving(ENGINE, vllm, _spec(oracle, drafter), tmp_path / "log") as served:
        _assert_all_accepted(served.url, (3, 9, 40))


def test_the_state_oracle_accepts_everything_and_a_killed_worker_is_told(
    vllm: Environment, states: tuple[Oracle, Path], tmp_path: Path
) -> None:
    """One server for both: first it is right, then it loses its worker while it answers."""
    oracle, drafter = states
    with pytest.raises(EngineFailed) as caught, serving(ENGINE, vllm, _spec(oracle, drafter), tmp_path / "log") as served:
        _assert_all_accepted(served.url, (3, 9, 41))
        family = _session(served.process.pid)
        assert len(family) >= 3, "a server, an engine core and a worker"
        asyncio.run(_kill_a_worker_while_it_answers(served.url, family))
    assert "its worker VllmWorker-0 died" in caught.value.what
    assert str(tmp_path / "log") in caught.value.fix
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


async def _kill_a_worker_while_it_answers(url: str, family: list[psutil.Process]) -> None:
    worker = next(p for p in family if "Worker" in " ".join(p.cmdline()))
    async with Server(url) as server:
        worker.suspend()  # so that it has not answered yet when it is killed
        answer = asyncio.ensure_future(server.complete(Question("target", (3,), 400, 0.0, 0)))
        await asyncio.sleep(0.5)
        worker.send_signal(signal.SIGKILL)
        await answer


# --- each way to fail, through the command line -----------------------------------------------------------------------


@pytest.fixture
def serve(vllm: Environment, states: tuple[Oracle, Path], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs `outrider serve --engine vllm --force`, so that the engine itself fails, with exit code 3; gives what it said."""

    def run(drafter: Path, port: int = 0, **variables: str) -> str:
        target = states[0].target.path
        command = [str(OUTRIDER), "serve", "--engine", "vllm", "--force", "--dtype", "float32"]
        command += ["--target", str(target), "--drafter", str(drafter)]
        command += ["--port", str(port or free_port()), "--log", str(tmp_path / "server.log"), "--engine-args", " ".join(_SMALL)]
        done = subprocess.run(
            command, env=environment() | variables, capture_output=True, text=True, timeout=_START_TIMEOUT_S, cwd=tmp_path
        )
        assert done.returncode == 3, done.stderr
        assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
        return done.stderr

    yield run
    assert nothing_left(states[0].target.path), [p.cmdline() for p in processes_of(states[0].target.path)]


def test_an_engine_that_dies_at_import(serve: Callable[..., str], states: tuple[Oracle, Path], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    said = serve(states[1], PYTHONPATH=str(tmp_path / "broken"))
    assert "it cannot be imported: libcudart.so.13" in said


def test_a_port_that_is_taken(serve: Callable[..., str], states: tuple[Oracle, Path]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port} is taken" in serve(states[1], port)


def test_a_drafter_that_is_refused(serve: Callable[..., str], states: tuple[Oracle, Path], tmp_path: Path) -> None:
    said = serve(_with(states[0], tmp_path / "drafter", architectures=["FooEagle3"]))
    assert "it does not know the architecture 'FooEagle3'" in said


def test_an_engine_without_memory(serve: Callable[..., str], states: tuple[Oracle, Path]) -> None:
    assert "out of memory: 100000.0 GiB asked for the KV cache" in serve(states[1], VLLM_CPU_KVCACHE_SPACE="100000")


def test_an_engine_that_dies_on_its_first_request(serve: Callable[..., str], states: tuple[Oracle, Path], tmp_path: Path) -> None:
    """It loads, and is healthy: only an answer shows that four states do not fit a drafter that reads three."""
    said = serve(_with(states[0], tmp_path / "drafter", eagle_aux_hidden_state_layer_ids=[1, 2, 3, 5]))
    assert "engine vllm failed: " in said
    assert "server.log" in said


def _with(oracle: Oracle, folder: Path, **settings: object) -> Path:
    """The sound drafter's folder with other settings in its config."""
    write_drafter(oracle.drafter, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder
