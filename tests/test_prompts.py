"""Prompt files in every shape, prompts that are shared, and the demo's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.errors import InputError
from outrider.core.prompts import Conversation, first_turns, ngrams, num_sharing_ngrams, read_prompts
from outrider.demo.job import NUM_GENERAL, NUM_MEASURED, NUM_TRAINING
from outrider.demo.prompts import GENERAL, measured_prompts, training_prompts, write_prompt_file
from outrider.targets.folder import TargetFolder


def _file(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _asked(*turns: str, system: str | None = None, name: str = "x") -> Conversation:
    return Conversation(id=name, system=system, turns=turns)


@pytest.mark.parametrize(
    ("row", "system", "turns"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, None, ("a",)),
        (
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "dropped"},
                    {"role": "user", "content": "b"},
                ]
            },
            "s",
            ("a", "b"),
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, None, ("ab",)),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "dropped"}]}, None, ("a",)),
        ({"conversations": [{"from": "system", "value": "s"}, {"role": "user", "content": "a"}]}, "s", ("a",)),
        ({"prompt": "a"}, None, ("a",)),
        ({"question": "a", "answer": "dropped"}, None, ("a",)),
        ({"instruction": "a"}, None, ("a",)),
        ({"turns": ["a", "b"]}, None, ("a", "b")),
        ({"turns": "a"}, None, ("a",)),
    ],
)
def test_each_shape_is_read(tmp_path: Path, row: dict[str, Any], system: str | None, turns: tuple[str, ...]) -> None:
    assert read_prompts(_file(tmp_path, row)) == [Conversation(id="prompts:1", system=system, turns=turns)]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"text": "a"},
        {"prompt": ""},
        {"prompt": "  "},
        {"prompt": None},
        {"prompt": 3},
        {"turns": []},
        {"turns": [3]},
        {"messages": []},
        {"messages": "a"},
        {"messages": [3]},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"conversations": [{"from": "human"}]},
    ],
)
def test_a_row_of_no_shape_names_its_line(tmp_path: Path, row: dict[str, Any]) -> None:
    path = _file(tmp_path, {"prompt": "a"}, row)
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert caught.value.evidence.startswith(f"{path}:2")


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n")
    with pytest.raises(InputError, match="holds no prompts"):
        read_prompts(path)


def test_a_conversation_that_occurs_twice_is_taken_once(tmp_path: Path) -> None:
    found = read_prompts(_file(tmp_path, {"prompt": "a"}, {"question": "a"}, {"prompt": "b"}, {"turns": ["a", "b"]}))
    assert [(c.id, c.turns) for c in found] == [("prompts:1", ("a",)), ("prompts:3", ("b",)), ("prompts:4", ("a", "b"))]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_MESSAGE = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(["user", "system", "x"]) | _JSON, "content": _JSON, "from": _JSON, "value": _JSON}
)
_ROW = st.dictionaries(
    st.sampled_from(["messages", "conversations", "turns", "prompt", "question", "instruction"]) | st.text(max_size=5),
    _JSON | st.lists(_MESSAGE, max_size=3),
    max_size=3,
)


@given(st.lists(_ROW, min_size=1, max_size=3))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_objects_are_conversations_or_one_error(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        found = read_prompts(_file(tmp_path, *rows))
    except InputError:
        return
    assert found and all(turn.strip() for c in found for turn in c.turns)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_conversations_or_one_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_prompts(path)


def test_the_chat_is_built_turn_by_turn() -> None:
    conversation = _asked("a", "b", system="s")
    system, first = {"role": "system", "content": "s"}, {"role": "user", "content": "a"}
    assert conversation.messages([]) == [system, first]
    answered = [system, first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "b"}]
    assert conversation.messages(["1"]) == answered
    assert conversation.messages(["1", "2"]) == [*answered, {"role": "assistant", "content": "2"}]


def test_a_measurement_asks_first_turns() -> None:
    assert first_turns([_asked("a", "b", name="1"), _asked("c", name="2"), _asked("d", name="3")], 2) == [
        _asked("a", name="1"),
        _asked("c", name="2"),
    ]


_EIGHT = "one two three four five six seven eight"


@pytest.mark.parametrize(
    ("measured", "training", "shares"),
    [
        (f"So {_EIGHT} nine", f"{_EIGHT} and more", True),
        (f"{_EIGHT.upper()}!", f"{_EIGHT.replace(' ', ', ')}?", True),
        ("one two three four five six seven x", f"{_EIGHT} nine", False),
        ("Hello there", "hello, there!", True),  # shorter than eight words: shared if it is the same
        ("Hello there", "hello there you", False),
    ],
)
def test_prompts_share_eight_words_in_a_row(measured: str, training: str, shares: bool) -> None:
    assert num_sharing_ngrams([_asked(measured)], [_asked("something else altogether"), _asked(training)]) == int(shares)


def test_every_turn_counts_for_sharing() -> None:
    assert num_sharing_ngrams([_asked("x", f"{_EIGHT}")], [_asked("y", f"{_EIGHT} z")]) == 1


def test_the_demos_prompts_are_distinct_and_share_no_ngram(tmp_path: Path) -> None:
    training, measured, general = training_prompts(NUM_TRAINING), measured_prompts(NUM_MEASURED), list(GENERAL[:NUM_GENERAL])
    assert (len(training), len(measured), len(general)) == (NUM_TRAINING, NUM_MEASURED, NUM_GENERAL)
    assert len({*training, *measured, *general}) == NUM_TRAINING + NUM_MEASURED + NUM_GENERAL
    sets = {"training": training, "measured": measured, "general": general}
    read = {}
    for name, prompts in sets.items():
        write_prompt_file(tmp_path / f"{name}.jsonl", prompts)
        read[name] = read_prompts(tmp_path / f"{name}.jsonl")
        assert [c.turns for c in read[name]] == [(prompt,) for prompt in prompts]
    seen = set().union(*(ngrams(c) for c in read["training"]))
    for c in (*read["measured"], *read["general"]):
        assert not ngrams(c) & seen, c.turns


@pytest.mark.real
def test_the_demos_prompts_share_no_eight_tokens_of_the_real_target(real_target: TargetFolder) -> None:
    def token_ngrams(prompt: str) -> set[tuple[int, ...]]:
        ids = real_target.ids(prompt)
        return {tuple(ids[i : i + 8]) for i in range(max(1, len(ids) - 7))}

    seen = set().union(*(token_ngrams(prompt) for prompt in training_prompts(NUM_TRAINING)))
    sharing = [p for p in (*measured_prompts(NUM_MEASURED), *GENERAL[:NUM_GENERAL]) if token_ngrams(p) & seen]
    assert sharing == []
