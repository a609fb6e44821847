"""What vLLM makes of a drafter's config, read from small methods in the shape of its own."""

import textwrap
from pathlib import Path

import pytest

from outrider.engines.facts import Rewrite
from preflight.vllm_tree import read


def rewrites_of(folder: Path, body: str) -> dict[str, tuple[str, str]]:
    """Type or architecture → what becomes of architecture and type, for a method with that body."""
    made = written(folder, body)
    return {word: (one.becomes, one.becomes_type) for one in made for word in (*one.types, *one.architectures)}


def written(folder: Path, body: str) -> tuple[Rewrite, ...]:
    method = "    @staticmethod\n    def hf_config_override(hf_config):\n" + textwrap.indent(textwrap.dedent(body), " " * 8)
    return read(folder, {"config/speculative.py": f"class SpeculativeConfig:\n{method}        return hf_config\n"}).rewrites


CHAIN = """
if hf_config.model_type in ("deepseek_v3", "glm_moe_dsa"):
    hf_config.model_type = "deepseek_mtp"
if hf_config.model_type == "deepseek_mtp":
    n_predict = getattr(hf_config, "num_nextn_predict_layers", None)
    hf_config.update({"n_predict": n_predict, "architectures": ["DeepSeekMTPModel"]})
"""


def test_a_chain_is_followed_to_its_end(tmp_path: Path) -> None:
    made = written(tmp_path, CHAIN)
    assert made == (
        Rewrite(("deepseek_mtp",), (), "DeepSeekMTPModel", "", "vllm/config/speculative.py:7"),
        Rewrite(("deepseek_v3", "glm_moe_dsa"), (), "DeepSeekMTPModel", "deepseek_mtp", "vllm/config/speculative.py:5"),
    )


def test_in_order_every_change_ends_where_the_method_ends(tmp_path: Path) -> None:
    body = ('use_new = hf_config.model_type in ("deepseek_v32",)\n' + CHAIN.replace('"glm_moe_dsa"', '"deepseek_v32"')).replace(
        '["DeepSeekMTPModel"]', '["NewMTPModel" if use_new else "DeepSeekMTPModel"]'
    )
    made = written(tmp_path, body)
    architecture, model_type = "LlamaForCausalLM", "deepseek_v32"
    for one in made:
        if model_type in one.types or architecture in one.architectures:
            architecture, model_type = one.becomes or architecture, one.becomes_type or model_type
    assert (architecture, model_type) == ("NewMTPModel", "deepseek_mtp")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        # by architecture, whichever of the names it goes by
        (
            'if hf_config.architectures[0] == "MiMoForCausalLM":\n    hf_config.model_type = "mimo_mtp"\n'
            '    hf_config.update({"architectures": ["MiMoMTPModel"]})\n    return hf_config\n',
            {"MiMoForCausalLM": ("MiMoMTPModel", "mimo_mtp")},
        ),
        (
            'first = hf_config.architectures[0]\nif first == "Large":\n    hf_config.update({"architectures": ["EagleLarge"]})\n',
            {"Large": ("EagleLarge", "")},
        ),
        # through a table, with an architecture that is named on the way
        (
            'if (arch := hf_config.architectures[0]) in ("A", "B"):\n    table = {"A": "AMTP", "B": "BMTP"}\n'
            '    hf_config.update({"architectures": [table[arch]]})\n',
            {"A": ("AMTP", ""), "B": ("BMTP", "")},
        ),
        # one or the other, and what stands behind `elif`
        (
            'if hf_config.model_type == "vl" or hf_config.architectures[0] == "VL":\n    hf_config.update({"architectures": ["X"]})\n'
            'elif hf_config.model_type == "flat":\n    hf_config.update({"architectures": ["Y"]})\n',
            {"vl": ("X", ""), "VL": ("X", ""), "flat": ("Y", "")},
        ),
        # a part of the type
        ('if "exaone" in hf_config.model_type:\n    hf_config.model_type = "exaone_mtp"\n', {"exaone": ("", "exaone_mtp")}),
        # changes that are gathered first
        (
            'if hf_config.model_type in ("v4", "v41"):\n    old = hf_config.model_type != "v41"\n    changes = {"n": 1}\n'
            '    if old:\n        changes["architectures"] = ["V4MTP"]\n    hf_config.update(changes)\n    hf_config.model_type = "mtp"\n',
            {"v4": ("V4MTP", "mtp"), "v41": ("", "mtp")},
        ),
    ],
)
def test_shapes_of_conditions(tmp_path: Path, body: str, found: dict[str, tuple[str, str]]) -> None:
    assert rewrites_of(tmp_path, body) == found


@pytest.mark.parametrize(
    "body",
    [
        # what hangs on more than type and architecture is not told
        'if hf_config.model_type == "nemotron_h" and hf_config.layers > 0:\n    hf_config.model_type = "nemotron_h_mtp"\n',
        'if hf_config.model_type == "s2":\n    hf_config.update({"architectures": ["Moe" if hf_config.moe else "Dense"]})\n',
        'if some(hf_config):\n    hf_config.model_type = "x"\nelse:\n    hf_config.model_type = "y"\n',
        "pass\n",
    ],
)
def test_what_cannot_be_told_is_left_out(tmp_path: Path, body: str) -> None:
    assert written(tmp_path, body) == ()


@pytest.mark.parametrize("text", [None, "", "class SpeculativeConfig:\n    def hf_config_override(:"])
def test_no_method_no_changes(tmp_path: Path, text: str | None) -> None:
    assert read(tmp_path, {"config/speculative.py": text}).rewrites == ()
