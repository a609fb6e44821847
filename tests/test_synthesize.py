"""Answers of a served target: what is its own, what it has really seen, and what a fault leaves behind."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from builders import greedy_answer
from outrider.core.errors import EngineFailed, InputError
from outrider.core.http import Server
from outrider.core.names import ANSWERS_FILE
from outrider.core.prompts import Conversation
from outrider.core.results import AnswerSet
from outrider.engines.engine import ServeSpec
from outrider.engines.environment import own_environment
from outrider.engines.reference import ENGINE
from outrider.engines.serving import running
from outrider.synthesize.answers import Sampling, answer_all
from outrider.synthesize.self_prompt import opening_ids, self_prompts
from outrider.synthesize.stage import Prompts, answer_training
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

_SAYS = "the road is clear"
_GREEDY = Sampling(max_tokens=24, temperature=0.0, concurrency=3)


def _serve(target: TargetFolder, log: Path) -> Any:
    return running(
        ENGINE, own_environment("reference", "this"), ServeSpec(target.path, None, 0, "float32", port=0, max_batch=4, threads=1), log
    )


@pytest.fixture(scope="module")
def url(tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny random target: its answers are gibberish and rarely end by themselves."""
    with _serve(tiny_target, tmp_path_factory.mktemp("server") / "log") as served:
        yield served


@pytest.fixture(scope="module")
def scripted(tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    """A target that answers everything alike, and ends by itself: its layers do nothing, its head knows what follows a token."""
    folder = tmp_path_factory.mktemp("scripted") / "scripted"
    model = LlamaForCausalLM.from_pretrained(tiny_target.path, dtype=torch.float32)
    tiny_target.tokenizer.save_pretrained(folder)
    chain = [tiny_target.ids("\n")[0], *tiny_target.ids(_SAYS), tiny_target.eos_token_ids[0]]
    assert len(set(chain)) == len(chain)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for token, following in pairwise(chain):
            embedded = model.model.embed_tokens.weight[token]
            model.lm_head.weight[following] = embedded / embedded.norm()
    model.save_pretrained(folder)
    return TargetFolder.open(folder)


@pytest.fixture(scope="module")
def scripted_url(scripted: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the scripted target."""
    with _serve(scripted, tmp_path_factory.mktemp("scripted-server") / "log") as served:
        yield served


def _answered(
    url: str, target: TargetFolder, conversations: list[Conversation], folder: Path, sampling: Sampling = _GREEDY
) -> tuple[AnswerSet, list[dict[str, Any]]]:
    """What `answer_all` returns, and the rows it wrote."""

    async def work() -> AnswerSet:
        async with Server(url) as server:
            return await answer_all("answers", server, await server.model(), target, conversations, folder, sampling)

    answers = asyncio.run(work())
    return answers, _rows(folder / ANSWERS_FILE)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _asked(name: str, *turns: str, system: str | None = None) -> Conversation:
    return Conversation(id=name, system=system, turns=turns)


def _questions(number: int) -> list[Conversation]:
    return [_asked(f"q:{n}", f"Is road {n} clear?") for n in range(number)]


def test_the_mask_covers_exactly_the_answers_tokens(url: str, tiny_target: TargetFolder, tiny_model: TargetModel, tmp_path: Path) -> None:
    conversations = [*_questions(4), _asked("s", "Clear?", system="Be brief.")]
    answers, rows = _answered(url, tiny_target, conversations, tmp_path)
    assert [row["id"] for row in rows] == [c.id for c in conversations]
    for conversation, row in zip(conversations, rows, strict=True):
        prompt = tiny_target.prompt_ids(conversation.messages([]))
        answer = greedy_answer(tiny_model, prompt, 24, tiny_target.eos_token_ids)
        assert row["input_ids"] == prompt + answer
        assert row["loss_mask"] == [0] * len(prompt) + [1] * len(answer)
        assert row["finish_reason"] == ("stop" if answer[-1] in tiny_target.eos_token_ids else "length")
        assert (row["token_ids_from"], row["temperature"], row["template_hash"]) == ("engine", 0.0, tiny_target.template_hash)
    assert answers.num_rows == 5
    assert answers.num_answer_tokens == sum(sum(row["loss_mask"]) for row in rows)
    assert answers.num_finished == sum(row["finish_reason"] == "stop" for row in rows)
    assert 1 <= answers.num_distinct_answers <= 5


def test_a_row_does_not_depend_on_which_others_are_asked(url: str, tiny_target: TargetFolder, tmp_path: Path) -> None:
    sampled = replace(_GREEDY, temperature=1.0, seed=3)
    _, some = _answered(url, tiny_target, _questions(2), tmp_path / "some", sampled)
    _, all_of_them = _answered(url, tiny_target, _questions(5), tmp_path / "all", replace(sampled, concurrency=1))
    _, other_seed = _answered(url, tiny_target, _questions(2), tmp_path / "seed", replace(sampled, seed=4))
    assert some == all_of_them[:2] != other_seed


def test_every_turn_is_answered_in_its_place(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    conversation = _asked("two", "Is the road clear?", "And now?", system="Look ahead.")
    answers, rows = _answered(scripted_url, scripted, [conversation], tmp_path)
    assert (answers.num_rows, answers.num_finished, answers.num_distinct_answers) == (1, 1, 1)
    row = rows[0]
    assert row["messages"] == conversation.messages([_SAYS, _SAYS])
    assert row["input_ids"] == scripted.ids(scripted.render(row["messages"]))[: len(row["input_ids"])]
    own = scripted.ids(_SAYS + "<|im_end|>")
    first, second = scripted.prompt_ids(conversation.messages([])), scripted.prompt_ids(conversation.messages([_SAYS]))
    between = len(second) - len(first) - len(own)
    assert between > 0
    assert row["loss_mask"] == [0] * len(first) + [1] * len(own) + [0] * between + [1] * len(own)
    assert row["finish_reason"] == "stop"


def test_an_answer_that_is_cut_off_ends_the_conversation(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    conversation = _asked("two", "Is the road clear?", "And now?")
    _, rows = _answered(scripted_url, scripted, [conversation], tmp_path, replace(_GREEDY, max_tokens=2))
    assert [row["finish_reason"] for row in rows] == ["length"]
    assert sum(rows[0]["loss_mask"]) == 2
    assert [m["role"] for m in rows[0]["messages"]] == ["user", "assistant"]


@contextmanager
def _template(target: TargetFolder, folder: Path, change: Callable[[str], str]) -> Iterator[TargetFolder]:
    """The target with another chat template."""
    shutil.copytree(target.path, folder)
    place = folder / "chat_template.jinja"
    place.write_text(change(place.read_text()))
    yield TargetFolder.open(folder)


def test_a_template_that_rewrites_earlier_answers_gives_a_row_for_each(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    with _template(scripted, tmp_path / "target", lambda text: text.replace("message['content']", "message['content'] | upper")) as target:
        conversation = _asked("two", "Is the road clear?", "And now?")
        answers, rows = _answered(scripted_url, target, [conversation], tmp_path / "answers")
        assert [row["id"] for row in rows] == ["two", "two#1"]
        assert answers.num_rows == 2
        own = target.ids(_SAYS + "<|im_end|>")
        for row, prompt in zip(rows, ([], [_SAYS]), strict=True):  # a row holds what the target has read and said, letter for letter
            seen = target.prompt_ids(conversation.messages(prompt))
            assert row["input_ids"] == seen + own
            assert row["loss_mask"] == [0] * len(seen) + [1] * len(own)
        assert rows[0]["template_hash"] == target.template_hash != scripted.template_hash


def test_a_template_that_refuses_a_role_is_one_clear_error(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    with _template(scripted, tmp_path / "target", lambda text: refusal + text) as target:
        conversations = [*_questions(2), _asked("s", "Clear?", system="Be brief.")]
        with pytest.raises(InputError, match="the chat template refuses"):
            _answered(scripted_url, target, conversations, tmp_path / "answers")


def test_two_files_of_one_name_are_refused(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    files = [tmp_path / name / "prompts.jsonl" for name in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps({"prompt": f"Asked in {file.parent.name}"}) + "\n")
    with pytest.raises(InputError, match="same name") as caught:
        asyncio.run(answer_training(scripted_url, scripted, Prompts(files, None, 0), _GREEDY, tmp_path / "out"))
    assert all(str(file) in caught.value.evidence for file in files)


def test_what_is_finished_is_not_asked_again(url: str, tiny_target: TargetFolder, tmp_path: Path) -> None:
    _, before = _answered(url, tiny_target, _questions(3), tmp_path)
    text = (tmp_path / ANSWERS_FILE).read_bytes()
    with _fake(_never_asked) as asked_again:
        _, after = _answered(asked_again, tiny_target, _questions(3), tmp_path)
    assert after == before
    assert (tmp_path / ANSWERS_FILE).read_bytes() == text


def test_training_prompts_are_taken_in_order_from_all_files(url: str, tiny_target: TargetFolder, tmp_path: Path) -> None:
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file in files:
        file.write_text("".join(json.dumps({"prompt": f"Road {n} of {file.stem}?"}) + "\n" for n in range(2)))
    answers, asked = asyncio.run(
        answer_training(url, tiny_target, Prompts(files, 3, 0), replace(_GREEDY, temperature=1.0), tmp_path / "out")
    )
    assert [c.id for c in asked] == ["one:1", "one:2", "two:1"]
    rows = _rows(tmp_path / "out" / answers.file.path)
    assert [row["id"] for row in rows] == [c.id for c in asked]
    assert all(row["temperature"] == 1.0 for row in rows)
    assert (answers.num_rows, answers.num_rejected_prompts) == (3, 0)


def test_nothing_to_answer_is_an_error(url: str, tiny_target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to answer"):
        asyncio.run(answer_training(url, tiny_target, Prompts([], None, 0), _GREEDY, tmp_path))


# --- self-prompting --------------------------------------------------------------------------------------------------


def test_the_opening_ends_where_the_users_words_begin(tiny_target: TargetFolder) -> None:
    opening = opening_ids(tiny_target)
    assert tiny_target.tokenizer.decode(opening) == "<|im_start|>user\n"
    assert tiny_target.prompt_ids([{"role": "user", "content": "clear"}])[: len(opening)] == opening


@pytest.mark.real
def test_the_opening_of_the_real_target_ends_where_the_users_words_begin(real_target: TargetFolder) -> None:
    opening = real_target.tokenizer.decode(opening_ids(real_target))
    assert real_target.render([{"role": "user", "content": "clear"}]).startswith(opening + "clear")


def test_a_template_that_changes_the_users_words_cannot_prompt_itself(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with (
        _template(tiny_target, tmp_path / "t", lambda text: text.replace("message['content']", "'fixed'")) as target,
        pytest.raises(InputError, match="does not show where"),
    ):
        opening_ids(target)


def test_self_prompts_are_distinct_and_without_special_tokens(scripted_url: str, scripted: TargetFolder, tmp_path: Path) -> None:
    async def work() -> list[Conversation]:
        async with Server(scripted_url) as server:
            return await self_prompts(server, await server.model(), scripted, 30, tmp_path, 4, seed=0)

    kept = asyncio.run(work())
    texts = [c.turns[0] for c in kept]
    assert len(texts) >= 2
    assert len(set(texts)) == len(texts) < 30
    assert len({c.id for c in kept}) == len(kept)
    for text in texts:
        assert len(text.split()) >= 3
        assert text == text.strip()
        assert not any(token in text for token in scripted.tokenizer.all_special_tokens)
    assert asyncio.run(work()) == kept


# --- faults that a right server cannot be brought to -------------------------------------------------------------------

Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@contextmanager
def _fake(reply: Reply) -> Iterator[str]:
    """A server whose completions are `reply`'s."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _send(self, {"data": [{"id": "fake"}]})

        def do_POST(self) -> None:
            reply(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _text_only(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    _send(handler, {"choices": [{"text": _SAYS, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}})


def _never_asked(_: BaseHTTPRequestHandler, __: dict[str, Any]) -> None:
    raise AssertionError("a finished row was asked for again")


def _breaks_off_after(number: int) -> Reply:
    left = [number]

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] < 0:
            handler.connection.close()
        else:
            _text_only(handler, body)

    return reply


def test_ids_of_a_server_that_tells_none_come_from_its_text(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with _fake(_text_only) as served:
        _, rows = _answered(served, tiny_target, _questions(1), tmp_path)
    own = [token for token, is_own in zip(rows[0]["input_ids"], rows[0]["loss_mask"], strict=True) if is_own]
    assert rows[0]["token_ids_from"] == "text"
    assert own == [*tiny_target.ids(_SAYS), tiny_target.eos_token_ids[0]]


def test_a_server_that_breaks_off_loses_no_finished_row(tiny_target: TargetFolder, tmp_path: Path) -> None:
    one_by_one = replace(_GREEDY, concurrency=1)
    with _fake(_breaks_off_after(2)) as served, pytest.raises(EngineFailed, match="broke off"):
        _answered(served, tiny_target, _questions(5), tmp_path, one_by_one)
    assert not (tmp_path / ANSWERS_FILE).exists()
    with _fake(_breaks_off_after(3)) as served:
        _, rows = _answered(served, tiny_target, _questions(5), tmp_path, one_by_one)
    assert [row["id"] for row in rows] == [c.id for c in _questions(5)]


def test_several_answers_that_break_off_at_once_are_one_error(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with _fake(_breaks_off_after(0)) as served, pytest.raises(EngineFailed, match="broke off"):
        _answered(served, tiny_target, _questions(6), tmp_path, replace(_GREEDY, concurrency=6))


def test_an_answer_that_is_not_of_this_api_is_an_error(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with _fake(lambda handler, _: _send(handler, {"no": "choices"})) as served, pytest.raises(EngineFailed, match="not of the OpenAI API"):
        _answered(served, tiny_target, _questions(1), tmp_path)


def test_no_server_is_an_error(tiny_target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="no server answers"):
        _answered("http://127.0.0.1:9", tiny_target, _questions(1), tmp_path)
