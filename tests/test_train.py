"""Training: the same curve however often it is interrupted, what it may see, what it starts from, how it fails."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import CPU, TINY_AUX_LAYERS, document_of, greedy_answer, random_prompts
from outrider.core.config import TrainSection
from outrider.core.errors import InputError
from outrider.core.names import METRICS_FILE
from outrider.core.results import TrainResult
from outrider.export.stage import export
from outrider.formats.training import load_training
from outrider.store.documents import Store, StoreWriter
from outrider.store.manifest import Manifest
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel
from outrider.train import trainer
from outrider.train.data import answer_token_counts, coverage, draft_vocabulary, epoch_batches, split
from outrider.train.schedule import learning_rate
from outrider.train.trainer import CHECKPOINT_FILE, train
from pipeline.jobs import write_wider_target

_SETTINGS = TrainSection(
    draft_vocab_size=200, ttt_steps=3, epochs=3, batch_tokens=80, learning_rate=3e-3, held_out_fraction=0.2, evaluations=3, checkpoints=100
)


def _store(folder: Path, model: TargetModel, prompts: list[tuple[int, ...]], length: int = 20, **header: Any) -> Store:
    """A store of the target's greedy answers."""
    target = model.folder
    said = {
        "target_digest": target.digest,
        "hidden_size": target.hidden_size,
        "aux_layers": model.aux_layers,
        "final_norm_applied": True,
        "dtype": "float32",
        "template_hash": target.template_hash,
        "answers_sha256": "0",
        **header,
    }
    writer = StoreWriter(folder, Manifest.model_validate(said), shard_tokens=100)
    for number, prompt in enumerate(prompts):
        writer.add(document_of(model, prompt, greedy_answer(model, prompt, length), f"document:{number}"))
    writer.finish()
    return Store(folder)


@pytest.fixture(scope="module")
def store(tiny_model: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ten documents."""
    return _store(tmp_path_factory.mktemp("stores") / "ten", tiny_model, random_prompts(10, 300))


def _changed(**changes: Any) -> TrainSection:
    return TrainSection.model_validate(_SETTINGS.model_dump() | changes)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "tok_per_s"} for row in rows]


class _KilledError(Exception):
    """Stands for a kill at a known step."""


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original: Callable[[trainer.Trainer], dict[str, Any]] = trainer.Trainer._step

    def stops(self: trainer.Trainer) -> dict[str, Any]:
        if self._progress.step == step:
            raise _KilledError
        return original(self)

    monkeypatch.setattr(trainer.Trainer, "_step", stops)


@pytest.mark.parametrize("checkpoints", [100, 3])
def test_a_run_that_was_interrupted_is_the_straight_one_bit_for_bit(
    store: Store, tiny_target: TargetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    """With few checkpoints, steps after the last one are done again, and stand in the metrics once."""
    settings = _changed(checkpoints=checkpoints)
    straight = train(store, tiny_target, settings, tmp_path / "straight", CPU)
    for step in (2, 5, straight.num_steps - 1):
        with monkeypatch.context() as patched, pytest.raises(_KilledError):
            _kill_at(patched, step)
            train(store, tiny_target, settings, tmp_path / "killed", CPU)
    resumed = train(store, tiny_target, settings, tmp_path / "killed", CPU)
    assert straight.num_steps >= 9
    ours, theirs = (load_training(tmp_path / name / CHECKPOINT_FILE) for name in ("killed", "straight"))
    assert ours.step == theirs.step == straight.num_steps
    assert set(ours.drafter.tensors) == set(theirs.drafter.tensors)
    for name, tensor in theirs.drafter.tensors.items():
        assert torch.equal(ours.drafter.tensors[name], tensor), name
    # not the files' bytes: a pickle writes a string that is one object twice in another way than two equal ones
    for number, state in theirs.optimizer["state"].items():
        for name, value in state.items():
            assert torch.equal(ours.optimizer["state"][number][name], value), (number, name)
    assert ours.optimizer["param_groups"] == theirs.optimizer["param_groups"]
    assert (ours.identity, ours.record) == (theirs.identity, theirs.record)
    assert _metrics(tmp_path / "killed") == _metrics(tmp_path / "straight")
    assert resumed.model_copy(update={"tok_per_s": straight.tok_per_s, "checkpoint": straight.checkpoint}) == straight


def test_a_finished_training_is_left_as_it_is(store: Store, tiny_target: TargetFolder, tmp_path: Path) -> None:
    first = train(store, tiny_target, _SETTINGS, tmp_path, CPU)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert train(store, tiny_target, _SETTINGS, tmp_path, CPU) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_checkpoint_of_other_settings_is_not_continued(store: Store, tiny_target: TargetFolder, tmp_path: Path) -> None:
    train(store, tiny_target, _changed(max_steps=2), tmp_path, CPU)
    before = (tmp_path / CHECKPOINT_FILE).read_bytes()
    with pytest.raises(InputError, match="of another run"):
        train(store, tiny_target, _changed(max_steps=2, learning_rate=1e-3), tmp_path, CPU)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == before


def test_four_documents_are_learnt_by_heart(tiny_target: TargetFolder, tiny_model: TargetModel, tmp_path: Path) -> None:
    store = _store(tmp_path / "store", tiny_model, random_prompts(4, 300, seed=3))
    settings = _changed(draft_vocab_size=300, held_out_fraction=0.0, epochs=250, batch_tokens=400)
    result = train(store, tiny_target, settings, tmp_path / "out", CPU)
    last = [row for row in _metrics(tmp_path / "out") if "loss" in row][-1]
    assert len(last["accuracy_at"]) == 3
    assert min(last["accuracy_at"]) >= 0.95, last
    assert (result.held_out_loss, result.accuracy_at, result.vocab_coverage) == (None, (), None)


def test_held_out_documents_are_never_trained_on(
    store: Store, tiny_target: TargetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    evaluated: list[str] = []
    original = trainer.Trainer._loss

    def watched(self: trainer.Trainer, documents: list[Any]) -> Any:
        (trained if torch.is_grad_enabled() else evaluated).extend(document.id for document in documents)
        return original(self, documents)

    monkeypatch.setattr(trainer.Trainer, "_loss", watched)
    train(store, tiny_target, _SETTINGS, tmp_path, CPU)
    assert len(set(evaluated)) == 2
    assert not set(trained) & set(evaluated)
    assert set(trained) | set(evaluated) == set(store.document_ids)
    assert all(trained.count(name) == _SETTINGS.epochs for name in set(trained))


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 0), (0.01, 1), (0.2, 2), (0.99, 9)])
def test_a_share_is_held_out(store: Store, fraction: float, held_out: int) -> None:
    found = split(store, fraction, seed=0)
    assert len(found.held_out) == held_out
    assert sorted(found.training + found.held_out) == list(range(10))
    assert split(store, fraction, seed=0) == found


def test_batches_hold_each_document_once_within_the_limit(store: Store) -> None:
    orders = []
    for epoch in range(3):
        batches = epoch_batches(store, range(10), 80, seed=0, epoch=epoch)
        assert sorted(i for batch in batches for i in batch) == list(range(10))
        assert all(len(batch) == 1 or len(batch) * max(map(store.length, batch)) <= 80 for batch in batches)
        assert batches == epoch_batches(store, range(10), 80, seed=0, epoch=epoch)
        orders.append(batches)
    assert orders[0] != orders[1] != orders[2]
    assert all(len(batch) == 1 for batch in epoch_batches(store, range(10), 1, seed=0, epoch=0))


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ([0, 5, 2, 9], 2, [1, 3]),
        ([1, 5, 1, 1], 2, [0, 1]),  # a tie goes to the lowest id
        ([0, 0, 7, 0], 3, [0, 1, 2]),  # so do tokens never seen
        ([1, 1, 1, 1], 4, None),
        ([1, 1, 1, 1], 9, None),
    ],
)
def test_the_draft_vocabulary_is_the_most_frequent_tokens(counts: list[int], size: int, expected: list[int] | None) -> None:
    found = draft_vocabulary(torch.tensor(counts), size)
    assert (None if found is None else found.tolist()) == expected


def test_the_draft_vocabulary_counts_answers_of_training_documents_only(store: Store, tiny_target: TargetFolder, tmp_path: Path) -> None:
    result = train(store, tiny_target, _changed(max_steps=1, draft_vocab_size=20), tmp_path, CPU)
    found = split(store, 0.2, 0)
    expected = torch.zeros(300, dtype=torch.int64)
    for index in found.training:
        for token in store[index].input_ids[store[index].loss_mask].tolist():
            expected[token] += 1
    assert torch.equal(answer_token_counts(store, found.training, 300), expected)
    vocabulary = load_training(tmp_path / CHECKPOINT_FILE).drafter.draft_vocab
    wanted = draft_vocabulary(expected, 20)
    assert vocabulary is not None and wanted is not None
    assert torch.equal(vocabulary, wanted)
    assert result.vocab_coverage == coverage(answer_token_counts(store, found.held_out, 300), wanted)
    assert 0 < (result.vocab_coverage or 0) < 1


def test_coverage_without_tokens_is_none() -> None:
    assert coverage(torch.zeros(3, dtype=torch.int64), None) is None
    assert coverage(torch.tensor([1, 3, 0]), torch.tensor([1])) == 0.75
    assert coverage(torch.tensor([1, 3, 0]), None) == 1.0


# --- starting from a drafter -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(store: Store, tiny_target: TargetFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Path]:
    """A trained drafter: what training said of it, and its exported folder."""
    place = tmp_path_factory.mktemp("trained")
    result = train(store, tiny_target, _changed(epochs=30), place / "train", CPU)
    export(place / "train" / CHECKPOINT_FILE, tiny_target, place / "drafter", "midlayer", "float32", ())
    return result, place / "drafter"


def test_a_warm_start_begins_where_the_drafter_was(
    store: Store, tiny_target: TargetFolder, trained: tuple[TrainResult, Path], tmp_path: Path
) -> None:
    before, drafter = trained
    settings = _changed(init_from=drafter, learning_rate=1e-30, max_steps=1)  # too small a rate to move a float32
    after = train(store, tiny_target, settings, tmp_path, CPU)
    assert after.accuracy_at == before.accuracy_at
    assert after.held_out_loss == pytest.approx(before.held_out_loss)
    assert max(before.accuracy_at) > 0
    fresh = train(store, tiny_target, _changed(learning_rate=1e-30, max_steps=1), tmp_path / "fresh", CPU)
    warm_loss, fresh_loss = (_metrics(tmp_path / name)[0]["loss"] for name in ("", "fresh"))
    assert warm_loss < fresh_loss
    assert fresh.draft_vocab_size == after.draft_vocab_size == 200


def test_a_warm_start_refuses_other_layers(tiny_target: TargetFolder, trained: tuple[TrainResult, Path], tmp_path: Path) -> None:
    other_layers = TargetModel(tiny_target, torch.float32, CPU, (0, 2, 4))
    store = _store(tmp_path / "store", other_layers, random_prompts(3, 300))
    with pytest.raises(InputError, match="other layers") as caught:
        train(store, tiny_target, _changed(init_from=trained[1]), tmp_path / "out", CPU)
    assert str(list(TINY_AUX_LAYERS)) in caught.value.fix


@pytest.fixture
def wider_target(tmp_path: Path) -> TargetFolder:
    """Another target: as the tiny one, but wider."""
    return write_wider_target(tmp_path / "wider")


def test_a_warm_start_refuses_the_drafter_of_another_target(
    trained: tuple[TrainResult, Path], wider_target: TargetFolder, tmp_path: Path
) -> None:
    store = _store(tmp_path / "store", TargetModel(wider_target, torch.float32, CPU, TINY_AUX_LAYERS), random_prompts(3, 300))
    with pytest.raises(InputError, match="for another target"):
        train(store, wider_target, _changed(init_from=trained[1]), tmp_path / "out", CPU)


def test_a_store_of_another_target_is_refused(store: Store, wider_target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another target's states"):
        train(store, wider_target, _SETTINGS, tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_one_error_and_keeps_the_last_checkpoint(
    store: Store, tiny_target: TargetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []
    original = trainer.Trainer._loss

    def breaks_at_the_fourth(self: trainer.Trainer, documents: list[Any]) -> Any:
        loss, figures = original(self, documents)
        if self._progress.step == 4:
            kept.append((tmp_path / CHECKPOINT_FILE).read_bytes())
            return loss * float("nan"), figures
        return loss, figures

    monkeypatch.setattr(trainer.Trainer, "_loss", breaks_at_the_fourth)
    with pytest.raises(InputError, match="diverged at step 4"):
        train(store, tiny_target, _changed(evaluations=1), tmp_path, CPU)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == kept[0]
    assert load_training(tmp_path / CHECKPOINT_FILE).step == 4


def test_a_learning_rate_that_diverges_never_leaves_a_broken_checkpoint(store: Store, tiny_target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="diverged"):
        train(store, tiny_target, _changed(learning_rate=1e38, epochs=30, warmup_fraction=0.5), tmp_path, CPU)
    if (tmp_path / CHECKPOINT_FILE).exists():
        tensors = load_training(tmp_path / CHECKPOINT_FILE).drafter.tensors
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        assert broken == [], "the checkpoint that is kept holds numbers that are not finite"


def test_the_rate_rises_then_falls_to_a_twentieth() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert max(rates) == 1.0
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert 0.05 <= rates[-1] < 0.06
