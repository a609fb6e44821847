"""What vLLM decides from configs alone, read from small trees."""

from pathlib import Path

import pytest

from preflight.vllm_tree import OLD_CONFIG, read

METHODS = """
from typing import Literal

MTPModelTypes = Literal["deepseek_mtp", "mtp"]
EagleModelTypes = Literal["eagle", "eagle3", MTPModelTypes]
SpeculativeMethod = Literal["ngram", EagleModelTypes]
Circle = Literal["a", Circle]


class SpeculativeConfig:
    num_speculative_tokens: int = None
    model: str | None = None
    _private: int = 0
    plain = 3

    def hf_config_override(hf_config):
        local: int = 1
        return hf_config
"""
OTHER_CLASS = """
class CacheConfig:
    def _verify_args(self):
        if self.blocks < 0:
            raise ValueError("too few")


"""


def test_the_methods_that_a_list_is_for(tmp_path: Path) -> None:
    one = read(
        tmp_path / "one", {"config/speculative.py": OLD_CONFIG.replace('self.method in ("eagle3", "dflash")', 'self.method == "eagle3"')}
    )
    two = read(tmp_path / "two", {"config/speculative.py": OLD_CONFIG})
    assert one.target_types and one.target_types.methods == ("eagle3",)
    assert two.target_types and two.target_types.methods == ("eagle3", "dflash")


def test_the_list_is_that_of_the_speculative_config_not_of_another_class(tmp_path: Path) -> None:
    listed = read(tmp_path, {"config/speculative.py": None, "config/__init__.py": OTHER_CLASS + OLD_CONFIG}).target_types
    assert listed is not None and listed.names == ("llama", "qwen")


def test_methods_are_those_of_literals_within_the_literal(tmp_path: Path) -> None:
    facts = read(tmp_path, {"config/speculative.py": METHODS})
    assert facts.methods == ("ngram", "eagle", "eagle3", "deepseek_mtp", "mtp")
    assert facts.methods_evidence == "vllm/config/speculative.py:6"


@pytest.mark.parametrize("text", [None, "", "SpeculativeMethod = (", METHODS.replace("SpeculativeMethod", "Word")])
def test_methods_that_cannot_be_read_are_none_at_all(tmp_path: Path, text: str | None) -> None:
    facts = read(tmp_path, {"config/speculative.py": text})
    assert facts.methods == () and "no SpeculativeMethod" in facts.methods_evidence


def test_a_literal_that_names_itself_ends(tmp_path: Path) -> None:
    text = METHODS.replace('Literal["a", Circle]', 'Literal["a", SpeculativeMethod]').replace('"ngram", Eagle', '"ngram", Circle, Eagle')
    assert read(tmp_path, {"config/speculative.py": text}).methods == ("ngram", "a", "eagle", "eagle3", "deepseek_mtp", "mtp")


def test_the_keys_of_the_speculative_config_are_its_fields(tmp_path: Path) -> None:
    assert read(tmp_path / "own", {"config/speculative.py": METHODS}).speculative_keys == ("num_speculative_tokens", "model")
    assert read(tmp_path / "gone", {"config/speculative.py": None}).speculative_keys == ()


@pytest.mark.parametrize(
    "table",
    [
        '_CONFIG_REGISTRY: dict[str, type] = {"chatglm": A, "mllama": B}',
        '_OVERRIDE = {"mllama": B}\n_CONFIG_REGISTRY: dict[str, type] = {"chatglm": A, **_OVERRIDE}',
        '_CONFIG_REGISTRY: dict[str, type] = LazyConfigDict(chatglm="A", **{"mllama": "B"})',
    ],
)
def test_config_types_in_every_shape_of_the_table(tmp_path: Path, table: str) -> None:
    assert read(tmp_path, {"transformers_utils/config.py": table}).config_types == ("chatglm", "mllama")


@pytest.mark.parametrize("table", [None, "_CONFIG_REGISTRY = load()", "_CONFIG_REGISTRY = {**_CONFIG_REGISTRY}", "_CONFIG_REGISTRY = {"])
def test_config_types_that_cannot_be_read_are_none_at_all(tmp_path: Path, table: str | None) -> None:
    assert read(tmp_path, {"transformers_utils/config.py": table}).config_types == ()
