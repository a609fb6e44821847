"""The reference engine as a real process over HTTP."""

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from builders import greedy_answer
from outrider.core.errors import EngineFailed
from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import own_environment
from outrider.engines.reference import ENGINE
from outrider.engines.reference.generation import Running, speculate
from outrider.engines.reference.sampling import Request
from outrider.engines.serving import free_port, running
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

ENVIRONMENT = own_environment("reference", "this")
_K = 3
_PROMPT = [5, 6, 7]
_MANY = 8000  # tokens that take far longer than a test looks


def _spec(target: TargetFolder, drafter: Path | None = None, port: int = 0) -> ServeSpec:
    return ServeSpec(target.path, drafter, _K, "float32", port, max_batch=4, threads=1)


@pytest.fixture(scope="session")
def plain_url(tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny target alone."""
    with running(ENGINE, ENVIRONMENT, _spec(tiny_target), tmp_path_factory.mktemp("plain-server") / "log") as url:
        yield url


@pytest.fixture(scope="session")
def drafting_url(tiny_target: TargetFolder, tiny_taught_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny target with its taught drafter."""
    with running(ENGINE, ENVIRONMENT, _spec(tiny_target, tiny_taught_folder), tmp_path_factory.mktemp("drafting-server") / "log") as url:
        yield url


@pytest.fixture(params=["plain", "drafting"])
def url(request: pytest.FixtureRequest) -> str:
    """Either server: a client cannot tell them apart."""
    served: str = request.getfixturevalue(f"{request.param}_url")
    return served


def _client(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=20.0, trust_env=False)


def _complete(url: str, **body: Any) -> dict[str, Any]:
    """The whole reply to a completion, greedy unless said otherwise."""
    with _client(url) as client:
        reply = client.post("/v1/completions", json={"temperature": 0, "return_token_ids": True, **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def _stream(url: str, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed reply, without the last, which must be [DONE]."""
    with (
        _client(url) as client,
        client.stream("POST", path, json={"temperature": 0, "return_token_ids": True, "stream": True, **body}) as reply,
    ):
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def _counters(url: str) -> dict[str, float]:
    with _client(url) as client:
        return ENGINE.counters(client.get("/metrics").text)


def _num_running(url: str) -> float:
    with _client(url) as client:
        lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("reference_running_requests "))


def _comes_true(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_health_and_models(url: str, tiny_target: TargetFolder) -> None:
    with _client(url) as client:
        assert client.get("/health").status_code == 200
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [tiny_target.path.name]


def test_a_completion_of_token_ids(url: str, tiny_target: TargetFolder, tiny_model: TargetModel) -> None:
    reply = _complete(url, prompt=_PROMPT, max_tokens=12, ignore_eos=True)
    choice, expected = reply["choices"][0], greedy_answer(tiny_model, _PROMPT, 12)
    assert reply["object"] == "text_completion"
    assert choice["token_ids"] == expected
    assert choice["text"] == tiny_target.tokenizer.decode(expected, skip_special_tokens=True)
    assert choice["finish_reason"] == "length"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}


def test_token_ids_are_returned_only_when_asked_for(url: str) -> None:
    assert "token_ids" not in _complete(url, prompt=_PROMPT, max_tokens=2, return_token_ids=False)["choices"][0]


def test_a_completion_of_text_is_one_of_its_tokens(url: str, tiny_target: TargetFolder) -> None:
    ids = tiny_target.tokenizer("the road is clear", add_special_tokens=False)["input_ids"]
    of_text = _complete(url, prompt="the road is clear", max_tokens=6)
    assert of_text["choices"] == _complete(url, prompt=ids, max_tokens=6)["choices"]
    assert of_text["usage"]["prompt_tokens"] == len(ids)


def test_a_chat_is_the_completion_of_its_template(url: str, tiny_target: TargetFolder) -> None:
    text = "<|im_start|>user\nIs the road clear?<|im_end|>\n<|im_start|>assistant\n"
    expected = _complete(url, prompt=text, max_tokens=8)["choices"][0]
    body = {"messages": [{"role": "user", "content": "Is the road clear?"}], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    with _client(url) as client:
        reply = client.post("/v1/chat/completions", json=body).json()
    choice = reply["choices"][0]
    assert reply["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": expected["text"]}
    assert choice["token_ids"] == expected["token_ids"]
    pieces = _stream(url, "/v1/chat/completions", messages=body["messages"], max_tokens=8)[:-1]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == expected["text"]


def test_a_streamed_answer_is_the_whole_one_in_pieces(url: str) -> None:
    for prompt in (_PROMPT, [9, 200], [250, 31, 4, 4, 77]):
        whole = _complete(url, prompt=prompt, max_tokens=20, ignore_eos=True)
        *pieces, last = _stream(url, "/v1/completions", prompt=prompt, max_tokens=20, ignore_eos=True)
        choices = [piece["choices"][0] for piece in pieces]
        assert len(choices) > 2
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
        assert [i for choice in choices for i in choice["token_ids"]] == whole["choices"][0]["token_ids"]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert last["usage"] == whole["usage"]


def test_a_stop_token_ends_the_answer_and_belongs_to_it(url: str, tiny_model: TargetModel, tiny_target: TargetFolder) -> None:
    answer = greedy_answer(tiny_model, _PROMPT, 12)
    stop = next(token for token in answer[4:] if token not in answer[:4])
    expected = answer[: answer.index(stop) + 1]
    choice = _complete(url, prompt=_PROMPT, max_tokens=12, ignore_eos=True, stop_token_ids=[stop])["choices"][0]
    assert choice["token_ids"] == expected
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == tiny_target.tokenizer.decode(expected[:-1], skip_special_tokens=True)


def test_the_targets_own_end_ends_the_answer_unless_ignored(url: str, tiny_model: TargetModel, tiny_target: TargetFolder) -> None:
    (eos,) = tiny_target.eos_token_ids
    prompt = next(
        [i, j] for i in range(2, 300) for j in (5, 50) if eos in greedy_answer(tiny_model, [i, j], 8, [eos])[1:]
    )  # a prompt after which the random target ends by itself
    ended = _complete(url, prompt=prompt, max_tokens=8)["choices"][0]
    assert ended["token_ids"][-1] == eos
    assert ended["finish_reason"] == "stop"
    assert "<|im_end|>" not in ended["text"]
    ignored = _complete(url, prompt=prompt, max_tokens=12, ignore_eos=True)["choices"][0]
    assert ignored["token_ids"] == greedy_answer(tiny_model, prompt, 12)


def _ascii_answer(tiny_model: TargetModel, tiny_target: TargetFolder) -> tuple[list[int], list[str]]:
    """A prompt, and the texts of its answer's tokens, four of which in a row are plain ASCII."""
    for i in range(2, 300):
        answer = greedy_answer(tiny_model, [i, 5], 12)
        texts = [str(tiny_target.tokenizer.decode([token])) for token in answer]
        if all(text.isascii() and text.isprintable() and text for text in texts[2:5]) and 1 not in answer[:6]:
            return [i, 5], texts
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_that_spans_tokens_is_cut_off_whole(
    url: str, tiny_model: TargetModel, tiny_target: TargetFolder, streamed: bool
) -> None:
    prompt, texts = _ascii_answer(tiny_model, tiny_target)
    stop = "".join(texts[2:5])
    full = _complete(url, prompt=prompt, max_tokens=12, ignore_eos=True)["choices"][0]["text"]
    expected = full[: full.index(stop)]
    body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "stop": ["never said", stop]}
    if streamed:
        choices = [piece["choices"][0] for piece in _stream(url, "/v1/completions", **body)[:-1]]
    else:
        choices = _complete(url, **body)["choices"]
    assert "".join(choice["text"] for choice in choices) == expected
    assert choices[-1]["finish_reason"] == "stop"


def test_the_same_seed_gives_the_same_sampled_answer(url: str) -> None:
    def sampled(seed: int) -> Any:
        return _complete(url, prompt=_PROMPT, max_tokens=12, temperature=1.0, seed=seed)["choices"]

    assert sampled(4) == sampled(4)
    assert sampled(4) != sampled(5)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"{", "json"),
        (b"[]", ""),
        (b'"text"', ""),
        (b"\xff\xfe", ""),
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 8192}, "max_tokens"),
        ({"prompt": [1], "max_tokens": "many"}, "max_tokens"),
        ({"prompt": [1], "temperature": -1}, "temperature"),
        (b'{"prompt": [1], "max_tokens": 2, "temperature": NaN}', "temperature"),
        ({"prompt": [1], "top_p": 0}, "top_p"),
        ({"prompt": [1], "n": 2}, "n"),
        ({"prompt": [1], "seed": "x"}, "seed"),
        ({"prompt": [1], "max_tokens": 2, "seed": 1 << 70}, "seed"),
        ({"prompt": [1], "stop": 5}, "stop"),
    ],
)
def test_a_bad_body_is_refused_with_a_message(url: str, body: Any, names: str) -> None:
    with _client(url) as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = client.post("/v1/completions", content=content)
    assert reply.status_code == 400, reply.text
    assert names in reply.json()["error"]["message"].lower()


@pytest.mark.parametrize("messages", [[], "hello", [{"role": "user"}], [{"content": "x"}], [5]])
def test_bad_messages_are_refused_with_a_message(url: str, messages: Any) -> None:
    with _client(url) as client:
        reply = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


def test_concurrent_requests_get_what_they_get_alone(url: str, tiny_model: TargetModel, tiny_prompts: list[tuple[int, ...]]) -> None:
    def ask(i: int) -> list[int]:
        ids: list[int] = _complete(url, prompt=list(tiny_prompts[i]), max_tokens=5 + i, ignore_eos=True)["choices"][0]["token_ids"]
        return ids

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))
    assert answers == [greedy_answer(tiny_model, tiny_prompts[i], 5 + i) for i in range(10)]


def test_counters_are_the_sum_of_the_counts_in_process(
    drafting_url: str, tiny_target: TargetFolder, tiny_model: TargetModel, tiny_taught: Eagle3Drafter, tiny_prompts: list[tuple[int, ...]]
) -> None:
    before, expected, num_tokens = _counters(drafting_url), Acceptance(), 0
    for prompt in tiny_prompts[6:16]:
        _complete(drafting_url, prompt=list(prompt), max_tokens=16)
        row = Running(Request(prompt, 16, stop_ids=frozenset(tiny_target.eos_token_ids)))
        expected = sum((counts for _, counts in speculate(tiny_model, tiny_taught, row, _K)), expected)
        num_tokens += len(row.tokens)
    difference = {name: value - before[name] for name, value in _counters(drafting_url).items()}
    assert expected.num_accepted_tokens > 0
    assert ENGINE.acceptance(difference) == expected
    assert difference["reference_generation_tokens_total"] == num_tokens
    assert difference["reference_requests_total"] == 10


def test_a_plain_server_has_no_acceptance(plain_url: str) -> None:
    before = _counters(plain_url)
    _complete(plain_url, prompt=_PROMPT, max_tokens=6, ignore_eos=True)
    difference = {name: value - before[name] for name, value in _counters(plain_url).items()}
    assert ENGINE.acceptance(difference) is None
    assert difference["reference_generation_tokens_total"] == 6
    assert difference["reference_requests_total"] == 1


def test_a_client_that_goes_away_in_mid_stream_frees_its_place(url: str) -> None:
    before, others = _counters(url)["reference_generation_tokens_total"], _num_running(url)
    body = {"prompt": _PROMPT, "max_tokens": _MANY, "temperature": 0, "ignore_eos": True, "stream": True}
    with _client(url) as client, client.stream("POST", "/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)  # the iterator is kept: dropping it would close the connection
        assert _num_running(url) == others + 1
    assert _comes_true(lambda: _num_running(url) == others)
    assert _counters(url)["reference_generation_tokens_total"] - before < _MANY, "it was computed to its end"


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EngineFailed, match=str(port)), running(ENGINE, ENVIRONMENT, _spec(tiny_target, port=port), tmp_path / "log"):
            pass
    assert not (tmp_path / "log").exists()


def test_a_server_that_cannot_start_names_the_cause(tiny_target: TargetFolder, tmp_path: Path) -> None:
    missing = tmp_path / "no-such-drafter"
    with pytest.raises(EngineFailed) as caught, running(ENGINE, ENVIRONMENT, _spec(tiny_target, missing), tmp_path / "log"):
        pass
    assert "the drafter's config is missing" in caught.value.what
    assert str(missing) in caught.value.evidence
    assert "Traceback" not in caught.value.evidence


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_nothing_is_left_running_when_the_block_ends_in_mid_answer(tiny_target: TargetFolder, tmp_path: Path) -> None:
    """One client streams, another waits for a whole answer and leaves; then the block ends by an error."""
    before = _descendants()
    body = {"prompt": _PROMPT, "max_tokens": _MANY, "temperature": 0, "ignore_eos": True}
    with (
        pytest.raises(RuntimeError, match="the block"),
        running(ENGINE, ENVIRONMENT, _spec(tiny_target), tmp_path / "log") as url,
        _client(url) as client,
        client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)  # the iterator is kept: dropping it would close the connection
        with contextlib.suppress(httpx2.TimeoutException):
            httpx2.post(f"{url}/v1/completions", json=body, timeout=0.05, trust_env=False)
        started = _descendants() - before
        assert len(started) >= 2, "the guard and the server"
        raise RuntimeError("the block")
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_client_that_does_not_wait_for_a_whole_answer_frees_its_place_and_lets_the_server_end(
    tiny_target: TargetFolder, tmp_path: Path
) -> None:
    """The server ends when asked to: it is not held open by an answer that nobody will ever get."""
    port = free_port()
    body = {"prompt": _PROMPT, "max_tokens": _MANY, "temperature": 0, "ignore_eos": True}
    server = subprocess.Popen(ENGINE.launch(ENVIRONMENT, _spec(tiny_target, port=port)).command)
    try:
        url = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            with contextlib.suppress(httpx2.HTTPError), _client(url) as client:
                return client.get("/health").status_code == 200
            return False

        assert _comes_true(is_up, timeout_s=120)
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{url}/v1/completions", json=body, timeout=0.2, trust_env=False)
        assert _comes_true(lambda: _num_running(url) == 0)
        server.terminate()
        assert _comes_true(lambda: server.poll() is not None), "it did not end when asked to"
    finally:
        server.kill()
        server.wait()


def test_a_temperature_too_small_to_divide_by_is_still_answered(url: str) -> None:
    """Scores ÷ 1e-40 are infinite in float32: the request must be answered or refused, and must not stay for ever."""
    with _client(url) as client:
        reply = client.post("/v1/completions", json={"prompt": _PROMPT, "max_tokens": 3, "temperature": 1e-40})
        assert reply.status_code in (200, 400, 500)
        assert client.get("/health").status_code == 200
    assert _comes_true(lambda: _num_running(url) == 0)
