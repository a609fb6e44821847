"""The engine's own arguments, as checks read them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import InputError
from outrider.engines.known import facts_of_version
from outrider.preflight.serve_args import parsed, split
from outrider.preflight.stage import preflight
from preflight.folders import write_drafter, write_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sound target and drafter."""
    folder = tmp_path_factory.mktemp("pair")
    return write_target(folder / "target"), write_drafter(folder / "drafter")


@pytest.mark.parametrize(
    ("text", "speculative"),
    [
        ("""--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'""", {"method": "eagle3", "num_speculative_tokens": 3}),
        ("""-sc '{"method": "eagle3"}'""", {"method": "eagle3"}),
        ("""--speculative_config='{"method": "eagle3"}'""", {"method": "eagle3"}),
        (
            "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3",
            {"method": "eagle3", "num_speculative_tokens": 3},
        ),
        ("--speculative-config.disable_padded_drafter_batch true", {"disable_padded_drafter_batch": True}),
        ("--spec-method eagle3 --spec-model /d --spec-tokens 4", {"method": "eagle3", "model": "/d", "num_speculative_tokens": 4}),
        ("--speculative-algorithm EAGLE3 --speculative-num-steps=3", {"algorithm": "EAGLE3", "num_steps": "3"}),
        ("--speculative-draft-model /d", {"draft_model_path": "/d"}),
        ("--port 8000 /models/target", {}),
    ],
)
def test_what_is_said_of_speculation(text: str, speculative: dict[str, object]) -> None:
    assert parsed(split(text)).speculative == speculative


def test_numbers_and_switches() -> None:
    arguments = parsed(split("-tp 8 --pipeline-parallel-size=2 --trust-remote-code --async-scheduling false --page-size 16"))
    assert arguments.number("tensor-parallel-size", 1) == 8 and arguments.number("pipeline-parallel-size", 1) == 2
    assert arguments.number("data-parallel-size", 1) == 1
    assert arguments.has("trust-remote-code") and not arguments.has("async-scheduling") and not arguments.has("enable-lora")
    assert parsed(split("--tp-size 4 --pp-size 2")).values == {"tensor-parallel-size": "4", "pipeline-parallel-size": "2"}


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", ""])
def test_a_count_that_is_none_is_an_input_error(value: str) -> None:
    with pytest.raises(InputError, match="whole number above 0"):
        parsed(["--tp", value]).number("tensor-parallel-size", 1)


@pytest.mark.parametrize("text", ["--speculative-config '{'", "--speculative-config '[1]'", "-sc " + "[" * 5000])
def test_a_speculative_config_that_is_no_object_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="--speculative-config is"):
        parsed(split(text))


def test_an_open_quote_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot be split"):
        split("--served-model-name 'mine")


_WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["--speculative-config", "--speculative-num-steps", "--speculative-algorithm", "--spec-tokens", "--tp", "--pp-size", "-sc"]
    ),
    st.text(max_size=12).map(lambda text: f"--speculative-{text}"),
    st.text(max_size=12).map(lambda text: f"--speculative-config.{text}"),
    st.dictionaries(st.text(max_size=4), st.one_of(st.text(max_size=4), st.integers(), st.none())).map(json.dumps),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_WORDS, max_size=6), st.booleans())
def test_any_arguments_end_in_findings_or_an_input_error(pair: tuple[Path, Path], arguments: list[str], is_sglang: bool) -> None:
    facts = facts_of_version("sglang", "0.5.11") if is_sglang else facts_of_version("vllm", "0.23.0")
    try:
        result = preflight(*pair, facts, arguments)
    except InputError as error:
        assert error.what
    else:
        assert result.model_dump_json()
