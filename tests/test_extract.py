"""What extraction stores is what the target computes: every layer, every token, whatever shares its pass."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from builders import CPU, TINY_AUX_LAYERS
from outrider.core.errors import InputError
from outrider.core.names import MANIFEST_FILE
from outrider.core.results import StoreSummary
from outrider.extract.stage import Capture, extract, read_answers
from outrider.store.documents import Store, StoreWriter
from outrider.targets.folder import TargetFolder
from outrider.targets.model import TargetModel

_CAPTURE = Capture(dtype="float32", max_length=64, batch_tokens=128, shard_tokens=60)
# sums of 64 and 128 products in another order: measured at most 3e-5 for states of size up to 20
_TOLERANCE = 1e-4


def _assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def _write_answers(path: Path, target: TargetFolder, lengths: list[int], **changes: object) -> Path:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number, length in enumerate(lengths):
        ids = torch.randint(0, target.vocab_size, (length,), generator=generator).tolist()
        rows.append(
            {
                "id": f"row:{number}",
                "input_ids": ids,
                "loss_mask": [int(i >= 3) for i in range(length)],
                "template_hash": target.template_hash,
                **changes,
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def answers(tiny_target: TargetFolder, tmp_path: Path) -> Path:
    """Rows of many lengths, one of them longer than max_length."""
    return _write_answers(tmp_path / "answers.jsonl", tiny_target, [5, 40, 7, 4, 80, 21, 21, 6, 33])


def _extracted(model: TargetModel, answers: Path, folder: Path, capture: Capture = _CAPTURE) -> tuple[StoreSummary, Store]:
    summary = extract("states", model, answers, folder, capture)
    return summary, Store(folder)


@pytest.fixture(scope="module")
def every_layer(tiny_target: TargetFolder) -> TargetModel:
    """The tiny target, capturing at every boundary from the embeddings to the end."""
    return TargetModel(tiny_target, torch.float32, CPU, tuple(range(tiny_target.num_layers + 1)))


def test_states_are_those_that_transformers_gives(
    tiny_target: TargetFolder, every_layer: TargetModel, answers: Path, tmp_path: Path
) -> None:
    """transformers' last hidden state has been through the final norm; the one before it is taken from the layer itself."""
    model = AutoModelForCausalLM.from_pretrained(tiny_target.path, dtype=torch.float32, attn_implementation="eager").eval()
    before_norm: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    _, store = _extracted(every_layer, answers, tmp_path / "store")
    for index in range(len(store)):
        document = store[index]
        before_norm.clear()
        with torch.inference_mode():
            found = model(document.input_ids.unsqueeze(0).long(), output_hidden_states=True)
        for k in range(tiny_target.num_layers):
            _assert_close(document.aux[:, k], found.hidden_states[k][0])
        _assert_close(document.aux[:, tiny_target.num_layers], before_norm[0][0])
        _assert_close(document.last, found.hidden_states[-1][0])
        _assert_close(document.logsumexp, found.logits[0].logsumexp(-1))
        assert torch.equal(document.argmax.long(), found.logits[0].argmax(-1))


def test_the_embeddings_are_layer_0_exactly(tiny_target: TargetFolder, every_layer: TargetModel, answers: Path, tmp_path: Path) -> None:
    _, store = _extracted(every_layer, answers, tmp_path / "store")
    embed = every_layer.model.get_input_embeddings().weight
    assert torch.equal(store[1].aux[:, 0], embed[store[1].input_ids.long()].detach())


@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_what_shares_a_pass_does_not_change_states(tiny_model: TargetModel, answers: Path, tmp_path: Path, batch_tokens: int) -> None:
    _, store = _extracted(tiny_model, answers, tmp_path / "store", replace(_CAPTURE, batch_tokens=batch_tokens))
    for index in range(len(store)):
        document = store[index]
        alone = tiny_model.states(document.input_ids.unsqueeze(0).long())
        _assert_close(document.aux, alone.aux[0])
        _assert_close(document.last, alone.last[0])
        assert torch.equal(document.argmax.long(), tiny_model.logits(alone.last[0]).argmax(-1))


def test_rows_are_stored_in_order_and_cut_at_the_limit(tiny_model: TargetModel, answers: Path, tmp_path: Path) -> None:
    summary, store = _extracted(tiny_model, answers, tmp_path / "store")
    rows = read_answers(answers)
    assert store.document_ids == [row.id for row in rows]
    for index, row in enumerate(rows):
        assert store[index].input_ids.tolist() == list(row.input_ids[:64])
        assert store[index].loss_mask.tolist() == [bool(own) for own in row.loss_mask[:64]]
    assert summary.num_documents == len(rows)
    assert summary.num_tokens == sum(min(len(row.input_ids), 64) for row in rows)
    assert summary.num_supervised_tokens == sum(sum(row.loss_mask[:64]) for row in rows)
    assert summary.num_bytes == sum(path.stat().st_size for path in (tmp_path / "store").glob("*.safetensors"))


def test_the_manifest_says_what_the_states_are(tiny_target: TargetFolder, tiny_model: TargetModel, answers: Path, tmp_path: Path) -> None:
    _, store = _extracted(tiny_model, answers, tmp_path / "store", replace(_CAPTURE, dtype="bfloat16"))
    manifest = store.manifest
    assert manifest.aux_layers == TINY_AUX_LAYERS
    assert (manifest.target_digest, manifest.template_hash) == (tiny_target.digest, tiny_target.template_hash)
    assert (manifest.dtype, manifest.final_norm_applied, manifest.hidden_size) == ("bfloat16", True, 64)
    assert store[0].aux.dtype == store[0].last.dtype == torch.bfloat16
    assert store[0].logsumexp.dtype == torch.float32


def test_a_killed_extraction_goes_on_to_the_same_bytes(
    tiny_model: TargetModel, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(_CAPTURE, shard_tokens=30)
    _extracted(tiny_model, answers, tmp_path / "straight", small)
    write = StoreWriter._write_shard
    written: list[int] = []

    def killed_at_the_third(self: StoreWriter) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(1)
        write(self)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(StoreWriter, "_write_shard", killed_at_the_third)
        extract("states", tiny_model, answers, tmp_path / "killed", small)
    first = (tmp_path / "killed" / "shard-00000.safetensors").stat().st_mtime_ns
    _extracted(tiny_model, answers, tmp_path / "killed", small)
    assert (tmp_path / "killed" / "shard-00000.safetensors").stat().st_mtime_ns == first
    straight = {path.name: path.read_bytes() for path in (tmp_path / "straight").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").iterdir()} == straight
    assert len(straight) > 3


def test_answers_of_another_template_are_refused(tiny_target: TargetFolder, tiny_model: TargetModel, tmp_path: Path) -> None:
    path = _write_answers(tmp_path / "answers.jsonl", tiny_target, [5], template_hash="other")
    with pytest.raises(InputError, match="another chat template"):
        extract("states", tiny_model, path, tmp_path / "store", _CAPTURE)
    assert not (tmp_path / "store").exists()


def test_other_answers_do_not_go_into_the_same_store(
    tiny_target: TargetFolder, tiny_model: TargetModel, answers: Path, tmp_path: Path
) -> None:
    _extracted(tiny_model, answers, tmp_path / "store")
    manifest = (tmp_path / "store" / MANIFEST_FILE).read_bytes()
    other = _write_answers(tmp_path / "other.jsonl", tiny_target, [5, 9])
    with pytest.raises(InputError, match="holds other states"):
        extract("states", tiny_model, other, tmp_path / "store", _CAPTURE)
    assert (tmp_path / "store" / MANIFEST_FILE).read_bytes() == manifest


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("{}\n", "lacks a part"),
        ('{"id": "a", "input_ids": [1], "loss_mask": [1, 0], "template_hash": "x"}\n', "another length"),
        ('{"id": "a", "input_ids": ["x"], "loss_mask": [1], "template_hash": "x"}\n', "lacks a part"),
        ('{"id": "a", "input_ids": [1], "loss_mask": [1], "template_hash": "x"}\n' * 2, "an id twice"),
        ("nonsense\n", "not JSON"),
    ],
)
def test_a_file_that_holds_no_answers_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        read_answers(path)


@pytest.mark.parametrize("bad", [-1, 300])
def test_an_id_outside_the_vocabulary_is_refused(tiny_target: TargetFolder, tiny_model: TargetModel, tmp_path: Path, bad: int) -> None:
    path = _write_answers(tmp_path / "answers.jsonl", tiny_target, [5], input_ids=[1, 2, bad, 4, 5])
    with pytest.raises(InputError):
        extract("states", tiny_model, path, tmp_path / "store", _CAPTURE)


@pytest.mark.parametrize("layer", [-1, 7])
def test_a_layer_outside_the_target_is_refused(tiny_target: TargetFolder, layer: int) -> None:
    with pytest.raises(InputError, match=f"aux layer {layer} is outside"):
        TargetModel(tiny_target, torch.float32, CPU, (1, layer))


def test_a_disk_that_is_too_small_is_said_at_once(
    tiny_model: TargetModel, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 1000, 0))
    with pytest.raises(InputError, match="the disk has"):
        extract("states", tiny_model, answers, tmp_path / "store", _CAPTURE)
    assert not list((tmp_path / "store").glob("*.safetensors"))
