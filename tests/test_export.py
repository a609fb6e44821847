"""Export: what each engine version can be told, and that the folder says it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders import TINY_AUX_LAYERS, random_drafter, write_tiny_target
from outrider.core.errors import FindingFailed, InputError
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.export.contracts import RULES, Rule, Wish, parse_engines, sglang_aux_layers
from outrider.export.stage import compare, export
from outrider.formats import llama_eagle3
from outrider.formats.training import TrainingCheckpoint, save_training
from outrider.targets import deepseek, llama
from outrider.targets.folder import TargetFolder

_DEFAULT = Wish((2, 16, 29), 32, "midlayer", llama.TARGET)
_OWN_LAYERS = replace(_DEFAULT, aux_layers=(3, 16, 29))
_EMBEDDINGS = replace(_DEFAULT, aux_layers=(0, 16, 29))
_LAST = replace(_DEFAULT, aux_layers=(2, 16, 32))
_LAYERS_0 = replace(_DEFAULT, layer_names="layers.0")


def _deepseek(*layers: int) -> Wish:
    """A target of such a depth that its default layers are the given ones, where that can be."""
    depth = layers[-1] + 3
    return Wish(layers, depth, "midlayer", deepseek.TARGET)


# for each rule, in its order: who runs into it with which wish, a version that does not, and a wish that does not (None: all do)
_CASES: tuple[tuple[str, str, Wish, Wish | None], ...] = (
    ("vllm==0.10.1", "vllm==0.10.2", _DEFAULT, None),
    ("vllm==0.11.0", "vllm==0.11.1", _OWN_LAYERS, _DEFAULT),
    ("vllm==0.17.1", "vllm==0.18.0", _EMBEDDINGS, _OWN_LAYERS),
    ("vllm==0.17.1", "vllm==0.18.0", _LAST, _OWN_LAYERS),
    ("sglang==0.5.11", "sglang==0.5.12", _LAYERS_0, _DEFAULT),
    ("sglang==0.5.10", "sglang==0.5.11", _OWN_LAYERS, _DEFAULT),
    ("sglang==0.5.16", "vllm==0.25.0", _EMBEDDINGS, _DEFAULT),
)


def test_every_rule_has_a_case() -> None:
    assert len(_CASES) == len(RULES)


@pytest.mark.parametrize(("rule", "case"), zip(RULES, _CASES, strict=True), ids=[f"{rule.engine}{rule.versions}" for rule in RULES])
def test_a_rule_stops_what_it_names_and_nothing_else(rule: Rule, case: tuple[str, str, Wish, Wish | None]) -> None:
    broken, later, wish, harmless = case
    with pytest.raises(InputError) as caught:
        sglang_aux_layers(wish, parse_engines((broken,)))
    assert caught.value.what == f"this drafter cannot be exported for {broken}"
    assert (caught.value.effect, caught.value.fix) == (rule.effect, rule.fix)
    assert str(list(wish.aux_layers)) in caught.value.evidence
    ids = sglang_aux_layers(wish, parse_engines((later,)))
    assert ids is None if 0 in wish.aux_layers else ids, "no SGLang can be told of layer 0: then the folder does not try"
    if harmless:
        assert sglang_aux_layers(harmless, parse_engines((broken,)))


def test_the_newest_of_all_take_the_default() -> None:
    named = parse_engines(())
    assert [str(engine) for engine in named] == ["vllm", "sglang", "reference"]
    assert sglang_aux_layers(_OWN_LAYERS, named) == [2, 15, 28]
    assert sglang_aux_layers(_LAYERS_0, named) == [1, 15, 28]


@pytest.mark.parametrize("name", ["tensorrt", "vllm==abc", "sglang==", "", "vllm=0.25", "VLLM"])
def test_an_engine_that_cannot_be_read_is_refused(name: str) -> None:
    if name == "sglang==":
        assert str(parse_engines((name,))[0]) == "sglang"  # no version: the newest
        return
    with pytest.raises(InputError):
        parse_engines((name,))


@pytest.mark.parametrize(
    ("engine", "layers", "ids"),
    [
        # up to 0.5.12 every id is raised by one
        ("sglang==0.5.12", (2, 30, 58), [1, 29, 57]),
        ("sglang==0.5.12", (3, 30, 58), [2, 29, 57]),
        ("sglang==0.5.12", (1, 30, 58), [0, 29, 57]),
        # from 0.5.13 on they are raised only if the first is 1, and taken as they are otherwise
        ("sglang==0.5.13", (2, 30, 58), [1, 29, 57]),
        ("sglang==0.5.13", (3, 30, 58), [3, 30, 58]),
        ("sglang==0.5.16", (5, 30, 58), [5, 30, 58]),
        ("sglang", (3, 30, 58), [3, 30, 58]),
    ],
)
def test_deepseek_ids_by_version(engine: str, layers: tuple[int, ...], ids: list[int]) -> None:
    assert sglang_aux_layers(_deepseek(*layers), parse_engines((engine,))) == ids


def test_layers_that_a_version_cannot_be_told_are_an_error() -> None:
    with pytest.raises(InputError, match="cannot be told to capture layers") as caught:
        sglang_aux_layers(_deepseek(1, 30, 58), parse_engines(("sglang==0.5.13",)))
    assert "sglang#25454" in caught.value.evidence


def test_two_versions_that_need_different_ids_are_an_error() -> None:
    with pytest.raises(InputError, match="one folder cannot name") as caught:
        sglang_aux_layers(_deepseek(3, 30, 58), parse_engines(("sglang==0.5.12", "sglang==0.5.13")))
    assert "sglang==0.5.12 needs [2, 29, 57]" in caught.value.evidence
    assert "sglang==0.5.13 needs [3, 30, 58]" in caught.value.evidence
    assert sglang_aux_layers(_deepseek(2, 30, 58), parse_engines(("sglang==0.5.12", "sglang==0.5.13"))) == [1, 29, 57]


# --- the folder ----------------------------------------------------------------------------------------------------------


def _checkpoint(folder: Path, target: TargetFolder, drafter: Eagle3Drafter, **record: Any) -> Path:
    said = {
        "target_digest": target.digest,
        "template_hash": target.template_hash,
        "aux_layers": list(drafter.config.aux_layers),
        "final_norm_applied": True,
        "num_trained_tokens": 1234,
        **record,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_training(folder / "checkpoint.pt", TrainingCheckpoint(drafter.checkpoint(), 7, {}, "identity", said))
    return folder / "checkpoint.pt"


@pytest.mark.parametrize("layer_names", ["midlayer", "layers.0"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_folder_holds_the_drafter(tiny_target: TargetFolder, tmp_path: Path, layer_names: str, dtype: str) -> None:
    drafter = random_drafter(tiny_target)
    result = export(_checkpoint(tmp_path, tiny_target, drafter), tiny_target, tmp_path / "drafter", layer_names, dtype, ())
    tensors = load_file(tmp_path / "drafter" / "model.safetensors")
    for name, tensor in drafter.checkpoint().tensors.items():
        stored = name.replace("midlayer", layer_names, 1)
        assert torch.equal(tensors[stored], tensor.to(getattr(torch, dtype))), name
    assert torch.equal(tensors["d2t"] + torch.arange(len(tensors["d2t"])), drafter.draft_vocab)
    assert tensors["t2d"].nonzero().flatten().tolist() == drafter.draft_vocab.tolist()
    assert (result.layer_names, result.engines) == (layer_names, ("vllm", "sglang", "reference"))
    assert result.weights.path == "drafter/model.safetensors"


def test_the_config_says_the_layers_to_each_engine(tiny_target: TargetFolder, tmp_path: Path) -> None:
    export(_checkpoint(tmp_path, tiny_target, random_drafter(tiny_target)), tiny_target, tmp_path / "drafter", "midlayer", "float32", ())
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TINY_AUX_LAYERS)  # vLLM takes them as layers run
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [layer - 1 for layer in TINY_AUX_LAYERS]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (300, 200)


def test_a_whole_vocabulary_writes_no_map(tiny_target: TargetFolder, tmp_path: Path) -> None:
    reduced = random_drafter(tiny_target)
    config = reduced.config.model_copy(update={"draft_vocab_size": 300})
    drafter = Eagle3Drafter(config, reduced.embed_tokens, None)
    export(_checkpoint(tmp_path, tiny_target, drafter), tiny_target, tmp_path / "drafter", "midlayer", "float32", ())
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "drafter" / "model.safetensors"))
    assert llama_eagle3.FORMAT.read(tmp_path / "drafter").draft_vocab is None


def test_the_record_goes_with_the_folder(tiny_target: TargetFolder, tmp_path: Path) -> None:
    export(_checkpoint(tmp_path, tiny_target, random_drafter(tiny_target)), tiny_target, tmp_path / "drafter", "midlayer", "float32", ())
    assert json.loads((tmp_path / "drafter" / "outrider.json").read_text()) == {
        "target_digest": tiny_target.digest,
        "template_hash": tiny_target.template_hash,
        "aux_layers": list(TINY_AUX_LAYERS),
        "final_norm_applied": True,
        "num_trained_tokens": 1234,
        "num_steps": 7,
    }


def test_the_same_checkpoint_gives_the_same_bytes(tiny_target: TargetFolder, tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, tiny_target, random_drafter(tiny_target))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        export(checkpoint, tiny_target, folder, "midlayer", "bfloat16", ())
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two


def test_a_checkpoint_of_another_target_is_refused(tiny_target: TargetFolder, tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, tiny_target, random_drafter(tiny_target), target_digest="other")
    with pytest.raises(InputError, match="trained for another target"):
        export(checkpoint, tiny_target, tmp_path / "drafter", "midlayer", "float32", ())
    assert not (tmp_path / "drafter").exists()


def test_what_an_engine_cannot_take_writes_nothing(tiny_target: TargetFolder, tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, tiny_target, random_drafter(tiny_target))
    assert TINY_AUX_LAYERS != (2, 3, 3)  # what that vLLM would capture of six layers, whatever the config says
    with pytest.raises(InputError, match=r"cannot be exported for vllm==0\.11\.0"):
        export(checkpoint, tiny_target, tmp_path / "drafter", "midlayer", "float32", ("vllm==0.11.0",))
    assert not (tmp_path / "drafter").exists()


def test_a_family_that_is_not_known_is_refused(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    checkpoint = _checkpoint(tmp_path, target, random_drafter(target))
    config = json.loads((target.path / "config.json").read_text())
    (target.path / "config.json").write_text(json.dumps(config | {"model_type": "never_heard_of"}))
    unknown = TargetFolder.open(target.path)
    checkpoint = _checkpoint(tmp_path, unknown, random_drafter(target))
    with pytest.raises(InputError, match="never_heard_of is not known"):
        export(checkpoint, unknown, tmp_path / "drafter", "midlayer", "float32", ())


def test_what_reads_back_otherwise_is_a_finding(tiny_target: TargetFolder, tmp_path: Path) -> None:
    written = random_drafter(tiny_target).checkpoint()
    changed = dict(written.tensors)
    changed["fc.weight"] = changed["fc.weight"] + 1
    vocabulary = written.draft_vocab
    assert vocabulary is not None
    for read, what in (
        (replace(written, tensors=changed), "fc.weight differs"),
        (replace(written, tensors={k: v for k, v in changed.items() if k != "fc.weight"}), "other tensors"),
        (replace(written, draft_vocab=vocabulary + 1), "draft vocabulary differs"),
        (replace(written, draft_vocab=None), "draft vocabulary differs"),
        (replace(written, config=written.config.model_copy(update={"rope_theta": 1.0})), "config reads back otherwise"),
    ):
        with pytest.raises(FindingFailed, match=what) as caught:
            compare(written, read, torch.float32, tmp_path)
        assert caught.value.exit_code == 1
    compare(written, written, torch.float32, tmp_path)
