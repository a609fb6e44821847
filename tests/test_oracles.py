"""The oracle pairs: right integration accepts every draft, and each fault shows."""

from pathlib import Path

import pytest
import torch

from builders import CPU, document_of, write_drafter
from oracles import Oracle, drop_draft_vocab, embedding_oracle, shift_aux_layer, state_oracle
from outrider.core.results import Acceptance
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.replay import replay
from outrider.engines.reference.generation import Running, load_pair, speculate
from outrider.engines.reference.sampling import Request
from outrider.targets.folder import TargetFolder

_MAX_TOKENS = 100


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return embedding_oracle(tmp_path_factory.mktemp("embedding-oracle"))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return state_oracle(tmp_path_factory.mktemp("state-oracle"))


def _measure(
    target: TargetFolder, drafter: Eagle3Drafter, folder: Path, prompt: tuple[int, ...]
) -> tuple[list[int], Acceptance, Acceptance]:
    """(answer, acceptance in the engine, acceptance by replay), with the drafter read from a folder."""
    model, loaded = load_pair(target, write_drafter(drafter, folder), torch.float32, CPU)
    assert loaded is not None
    row = Running(Request(prompt, _MAX_TOKENS))
    counted = sum((counts for _, counts in speculate(model, loaded, row, 3)), Acceptance())
    return row.tokens, counted, replay(loaded, document_of(model, prompt, row.tokens), 3, (), _MAX_TOKENS)


def _assert_all_accepted(counts: Acceptance) -> None:
    assert counts.num_draft_tokens >= 64
    assert counts.acceptance_rate == 1.0
    assert counts.num_verify_steps == 25  # 1 token from the prefill, then 4 a step; the last step has room for 3


@pytest.mark.parametrize("prompt", [(0,), (3, 9, 40), (60, 1, 1, 1)])
def test_the_embedding_oracle_accepts_everything(embeddings: Oracle, tmp_path: Path, prompt: tuple[int, ...]) -> None:
    answer, in_engine, replayed = _measure(embeddings.target, embeddings.drafter, tmp_path / "drafter", prompt)
    assert answer == [(prompt[-1] + 7 * n) % 61 for n in range(1, _MAX_TOKENS + 1)]
    _assert_all_accepted(in_engine)
    _assert_all_accepted(replayed)


@pytest.mark.parametrize("prompt", [(1,), (3, 9, 41), (419, 1, 1, 1)])
def test_the_state_oracle_accepts_everything(states: Oracle, tmp_path: Path, prompt: tuple[int, ...]) -> None:
    answer, in_engine, replayed = _measure(states.target, states.drafter, tmp_path / "drafter", prompt)
    assert len(set(answer)) == _MAX_TOKENS, "the target must not go in a small circle"
    _assert_all_accepted(in_engine)
    _assert_all_accepted(replayed)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_wrong_aux_layer_shows(states: Oracle, tmp_path: Path, which: int, by: int) -> None:
    answer, in_engine, replayed = _measure(states.target, shift_aux_layer(states.drafter, which, by), tmp_path / "drafter", (3, 9, 41))
    assert len(answer) == _MAX_TOKENS
    for counts in (in_engine, replayed):
        assert counts.acceptance_rate is not None
        assert counts.acceptance_rate < 0.2


def test_draft_ids_taken_for_target_ids_show(states: Oracle, tmp_path: Path) -> None:
    _, in_engine, replayed = _measure(states.target, drop_draft_vocab(states.drafter), tmp_path / "drafter", (3, 9, 41))
    for counts in (in_engine, replayed):
        assert counts.acceptance_rate is not None
        assert counts.acceptance_rate < 0.2
