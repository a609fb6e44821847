"""Prompt files, in the shapes the field uses: what is asked; assistant turns in them are dropped, the target answers itself.

{"messages": [{"role", "content"}, ...]}          OpenAI
{"conversations": [{"from", "value"}, ...]}       ShareGPT
{"prompt": "..."}  {"question": "..."}            plain
{"turns": ["...", ...]}                           MT-Bench and its kin
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from outrider.core.errors import InputError
from outrider.core.files import read_jsonl

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_PLAIN_KEYS = ("prompt", "question", "instruction")
_NGRAM_WORDS = 8


class Conversation(BaseModel):
    """What is asked of the target.

    Attributes:
        id: file stem and line number, or a name of its own.
        system: the system message, if the file gives one.
        turns: the user's messages, in order.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    system: str | None
    turns: tuple[str, ...]

    def messages(self, answers: Sequence[str]) -> list[dict[str, str]]:
        """The chat up to the turn after the given answers."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn, content in enumerate(self.turns[: len(answers) + 1]):
            messages.append({"role": "user", "content": content})
            if turn < len(answers):
                messages.append({"role": "assistant", "content": answers[turn]})
        return messages


def read_prompts(path: Path) -> list[Conversation]:
    """Read a prompt file; conversations that occur twice are taken once.

    Raises:
        InputError: missing, not JSONL, or a row of none of the shapes (the line is named).
    """
    found: dict[tuple[str | None, tuple[str, ...]], Conversation] = {}
    for number, row in read_jsonl(path, "the prompt file"):
        conversation = _conversation(row, f"{path.stem}:{number}", f"{path}:{number}")
        found.setdefault((conversation.system, conversation.turns), conversation)
    if not found:
        raise InputError("the prompt file holds no prompts", evidence=str(path))
    return list(found.values())


def first_turns(conversations: Sequence[Conversation], number: int) -> list[Conversation]:
    """The first `number` conversations, cut to their first turn: what a measurement asks."""
    return [c.model_copy(update={"turns": c.turns[:1]}) for c in conversations[:number]]


def _conversation(row: dict[str, Any], name: str, place: str) -> Conversation:
    if "messages" in row:
        return _from_messages([(m.get("role"), m.get("content")) for m in _objects(row["messages"], place)], name, place)
    if "conversations" in row:
        pairs = [(m.get("from", m.get("role")), m.get("value", m.get("content"))) for m in _objects(row["conversations"], place)]
        return _from_messages(pairs, name, place)
    if "turns" in row:
        turns = row["turns"] if isinstance(row["turns"], list) else [row["turns"]]
        return _from_messages([("user", turn) for turn in turns], name, place)
    for key in _PLAIN_KEYS:
        if key in row:
            return _from_messages([("user", row[key])], name, place)
    raise InputError(
        "a prompt row has no known shape",
        evidence=f"{place}: keys {', '.join(sorted(row)) or 'none'}",
        fix="use messages, conversations, turns, prompt or question",
    )


def _objects(value: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError("a prompt row's messages are not a list of objects", evidence=place)
    return value


def _from_messages(pairs: Iterable[tuple[Any, Any]], name: str, place: str) -> Conversation:
    system: str | None = None
    turns: list[str] = []
    for role, content in pairs:
        kind = _ROLES.get(str(role))
        if kind is None:
            raise InputError(f"a prompt row has the unknown role {role!r}", evidence=place, fix=f"known: {', '.join(_ROLES)}")
        if kind == "system":
            system = _text(content, place)
        elif kind == "user":
            turns.append(_text(content, place))
    if not turns:
        raise InputError("a prompt row has no user message", evidence=place)
    return Conversation(id=name, system=system, turns=tuple(turns))


def _text(content: Any, place: str) -> str:
    """The text of a message; OpenAI's list of text parts is joined."""
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.strip():
        raise InputError("a prompt row has a message without text", evidence=f"{place}: {str(content)[:60]!r}")
    return content


def ngrams(conversation: Conversation) -> set[tuple[str, ...]]:
    """The 8-grams of words of every turn, in lower case; of a shorter turn, the whole."""
    found: set[tuple[str, ...]] = set()
    for turn in conversation.turns:
        words = re.findall(r"\w+", turn.lower())
        found |= {tuple(words[i : i + _NGRAM_WORDS]) for i in range(max(1, len(words) - _NGRAM_WORDS + 1))}
    return found


def num_sharing_ngrams(measured: Iterable[Conversation], training: Iterable[Conversation]) -> int:
    """How many measured prompts share an 8-gram with any training prompt."""
    seen: set[tuple[str, ...]] = set()
    for conversation in training:
        seen |= ngrams(conversation)
    return sum(bool(ngrams(conversation) & seen) for conversation in measured)
