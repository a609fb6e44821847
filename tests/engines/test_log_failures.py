"""The logs of real vLLM that was made to fail (`tests/proofs/real_failures.py`): what the table says of each is what is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.failure_recipes import RECIPES
from outrider.engines.log_events import FailureEvent, PhaseEvent
from outrider.engines.log_reader import LogReader
from outrider.engines.vllm.log_rules import LOG

_LOGS = Path(__file__).parent / "logs"
_EXPECTED: dict[str, dict[str, Any]] = json.loads((_LOGS / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", _EXPECTED)
def test_a_real_failure_is_read(name: str) -> None:
    expected, data = _EXPECTED[name], (_LOGS / name).read_bytes()
    assert expected["line"] in data.decode(), "the decisive line is in the log"
    reader = LogReader(LOG)
    events = reader.feed(data, 0.0) + reader.end(1.0)
    assert [event.phase for event in events if isinstance(event, PhaseEvent)] == expected["phases"]
    assert reader.verdict().state == expected["state"]
    failures = [event for event in events if isinstance(event, FailureEvent)]
    assert [failure.id for failure in failures] == [expected["failure"]] * (expected["state"] == "failed")


def test_each_kept_log_has_its_recipe_and_its_row() -> None:
    kept = {path.name for path in _LOGS.glob("vllm-0.32.0-cpu-*.log")}
    assert kept == set(_EXPECTED) == {f"vllm-0.32.0-cpu-{recipe.name}.log" for recipe in RECIPES}
    page = (_LOGS / "README.md").read_text(encoding="utf-8")
    assert all(f"| {recipe.name} | {recipe.done} |" in page for recipe in RECIPES)
