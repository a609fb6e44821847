"""The ground: configuration, errors, files that are whole or not at all, journals, the run folder, numbers."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from outrider.core.config import RunConfig, _explained, load_config
from outrider.core.errors import EngineFailed, FindingFailed, InputError, MeasurementInvalid, OutriderError, from_os_error
from outrider.core.files import file_digest, read_json, read_jsonl, value_digest, write_atomically
from outrider.core.journal import Journal
from outrider.core.record import RunFolder, output_file
from outrider.core.results import Acceptance, Frozen, OutputFile


class _Made(Frozen):
    file: OutputFile


def _config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


# --- configuration ---------------------------------------------------------------------------------------------------


def test_the_template_of_init_is_the_defaults(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "src" / "outrider" / "cli" / "run.toml").read_text()
    config = load_config(_config(tmp_path, text))
    expected = RunConfig.model_validate({"target": {"path": tmp_path / "target"}})
    assert config.target == expected.target
    assert config.synthesize.prompts == (tmp_path / "prompts.jsonl",)
    assert config.measure.prompts == {"workload": tmp_path / "held_out.jsonl"}
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines() if not line.startswith("# One run"))
    config = load_config(_config(tmp_path, uncommented))  # every line that is commented out is a key that exists, with a value it may have
    shown = {(section, key) for section, values in expected.model_dump().items() for key in values}
    assert shown == {(section, key) for section in type(config).model_fields for key in type(getattr(config, section)).model_fields}
    differing = {
        (section, key)
        for section, key in shown
        if getattr(getattr(config, section), key) != getattr(getattr(expected, section), key) and getattr(getattr(expected, section), key)
    }
    assert differing == set(), "the template shows another default than the code has"


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[target]\npath = 'x'\n[trian]\nepochs = 1\n", "trian", "train"),
        ("[target]\npath = 'x'\n[train]\nlearning_rat = 1.0\n", "train.learning_rat", "learning_rate"),
        ("[target]\npath = 'x'\n[extract]\nauxlayers = [1]\n", "extract.auxlayers", "aux_layers"),
        ("[target]\npath = 'x'\npth = 'y'\n", "target.pth", "path"),
        ("[target]\npath = 'x'\n[measure]\nnum_prompt = 3\n", "measure.num_prompt", "num_prompts"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, text: str, key: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config(_config(tmp_path, text))
    assert caught.value.what == f"unknown key {key}"
    assert caught.value.fix == f"did you mean {nearest}?"


def test_an_unknown_key_that_is_near_nothing_lists_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_config(_config(tmp_path, "[target]\npath = 'x'\n[export]\nzzzzzz = 1\n"))
    assert caught.value.fix == "known here: layer_names, dtype, engines"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[target]\npath = 3\n", "target.path"),
        ("[train]\nepochs = 1\n", "target"),
        ("target = 'x'\n", "target"),
        ("[target]\npath = 'x'\n[train]\nepochs = 0\n", "train.epochs"),
        ("[target]\npath = 'x'\n[train]\nlearning_rate = -1.0\n", "train.learning_rate"),
        ("[target]\npath = 'x'\n[train]\nheld_out_fraction = 1.0\n", "train.held_out_fraction"),
        ("[target]\npath = 'x'\n[engine]\ndtype = 'float64'\n", "engine.dtype"),
        ("[target]\npath = 'x'\n[synthesize]\nprompts = [3]\n", "synthesize.prompts.0"),
        ("[target]\npath = 'x'\n[measure.prompts]\nworkload = 3\n", "measure.prompts.workload"),
        ("[target]\npath = 'x'\n[train]\nlearning_rate = nan\n", "train.learning_rate"),
        ("[target]\npath = 'x'\n[train]\nlearning_rate = inf\n", "train.learning_rate"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InputError, match=f"wrong value at {place}:"):
        load_config(_config(tmp_path, text))


def test_relative_paths_count_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    text = "[target]\npath = 'x'\n[synthesize]\nprompts = ['a', '/b']\n[train]\ninit_from = '../d'\n[measure.prompts]\nw = 'c'\n"
    config = load_config(_config(tmp_path / "below", text))
    below = tmp_path / "below"
    assert config.target.path == below / "x"
    assert config.synthesize.prompts == (below / "a", Path("/b"))
    assert config.train.init_from == below / ".." / "d"
    assert config.measure.prompts == {"w": below / "c"}


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_configuration_or_one_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(data)
    with pytest.raises(InputError):
        load_config(path)


_TOML_VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*RunConfig.model_fields, "other"]), _TOML_VALUES))
@settings(max_examples=150, deadline=None)
def test_any_values_are_a_configuration_or_one_error(tables: dict[str, Any]) -> None:
    try:
        RunConfig.model_validate(tables)
    except ValidationError as error:
        assert isinstance(_explained(Path("run.toml"), error), InputError)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_each_error_has_its_exit_code() -> None:
    codes = {kind: kind("x").exit_code for kind in (InputError, FindingFailed, EngineFailed, MeasurementInvalid)}
    assert codes == {InputError: 2, FindingFailed: 1, EngineFailed: 3, MeasurementInvalid: 4}
    assert all(issubclass(kind, OutriderError) for kind in codes)


def test_an_error_prints_only_what_is_known() -> None:
    assert InputError("a", fix="b").lines() == ["error: a", "  fix       b"]
    assert InputError("a", evidence="e", effect="f", fix="b").lines() == ["error: a", "  evidence  e", "  effect    f", "  fix       b"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_where(number: int) -> None:
    error = from_os_error(OSError(number, os.strerror(number), "/a/b"))
    assert error.what == "no space left on the disk while writing /a/b"
    assert error.exit_code == 2 and "continues" in error.fix


def test_another_system_error_names_the_file() -> None:
    error = from_os_error(PermissionError(errno.EACCES, "Permission denied", "/a/b"))
    assert (error.what, error.exit_code) == ("Permission denied: /a/b", 2)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"two")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(InputError) as caught:
        list(read_jsonl(path, "the file"))
    assert caught.value.evidence.startswith(f"{path}:3:")
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(InputError) as caught:
        list(read_jsonl(path, "the file"))
    assert caught.value.evidence.startswith(f"{path}:2:")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(path, "the file")


def test_digests_do_not_depend_on_the_order_of_keys() -> None:
    assert value_digest({"a": 1, "b": (1, 2)}) == value_digest({"b": [1, 2], "a": 1}) != value_digest({"a": 1, "b": [2, 1]})


# --- journals --------------------------------------------------------------------------------------------------------


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=3), max_size=6), st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path: Path, rows: list[dict[str, str]], data: st.DataObject) -> None:
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    with Journal(path) as journal:
        for row in rows:
            journal.append(row)
    written = path.read_bytes()
    cut = data.draw(st.integers(0, len(written)))
    path.write_bytes(written[:cut])
    with Journal(path) as journal:
        assert journal.rows == rows[: written[:cut].count(b"\n")]
        journal.append({"new": "row"})
    with Journal(path) as journal:
        assert journal.rows == [*rows[: written[:cut].count(b"\n")], {"new": "row"}]


def test_a_row_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.append({"a": "ü\n\u2028\r"})
        assert [json.loads(line) for line in (tmp_path / "journal").read_bytes().split(b"\n")[:-1]] == [{"a": "ü\n\u2028\r"}]


# --- the run folder --------------------------------------------------------------------------------------------------


def _writes(content: str) -> Callable[[Path], _Made]:
    def work(folder: Path) -> _Made:
        (folder / "out").write_text(content)
        return _Made(file=output_file(folder / "out", folder))

    return work


def _must_not_run(_: Path) -> _Made:
    raise AssertionError("a stage that is there was run again")


def test_a_stage_with_the_same_inputs_is_taken(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    made, was_kept = run.stage("train", {"a": 1}, _Made, _writes("one"))
    assert not was_kept
    assert run.stage("train", {"a": 1}, _Made, _must_not_run) == (made, True)
    assert run.result("train", _Made) == made
    assert run.record("train").inputs == {"a": 1}


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_text("longer than before")])
def test_a_stage_whose_output_is_gone_or_cut_is_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    run = RunFolder(tmp_path)
    run.stage("train", {"a": 1}, _Made, _writes("one"))
    damage(tmp_path / "train" / "out")
    assert run.stage("train", {"a": 1}, _Made, _writes("one"))[1] is False
    assert (tmp_path / "train" / "out").read_text() == "one"


def test_files_of_other_inputs_are_moved_aside_each_time(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for inputs, content in ((1, "one"), (2, "two"), (1, "one"), (2, "two")):
        run.stage("train", {"a": inputs}, _Made, _writes(content))
    kept = sorted(p.read_text() for p in (tmp_path / "superseded").glob("*/out"))
    assert kept == ["one", "one", "two"]


def test_a_stage_that_failed_continues_in_its_own_files(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)

    def fails(folder: Path) -> _Made:
        (folder / "partial").write_text("half")
        raise InputError("disk full")

    with pytest.raises(InputError):
        run.stage("train", {"a": 1}, _Made, fails)
    assert not run.has("train")
    run.stage("train", {"a": 1}, _Made, _writes("one"))
    assert (tmp_path / "train" / "partial").read_text() == "half"
    assert not (tmp_path / "superseded").exists()


def test_a_result_is_not_taken_for_files_that_other_inputs_have_written_since(tmp_path: Path) -> None:
    """Run with one setting; change it and be killed in the stage; change it back: the files are the second setting's."""
    run = RunFolder(tmp_path)
    run.stage("train", {"rate": 1}, _Made, _writes("one"))

    def killed(folder: Path) -> _Made:
        (folder / "out").write_text("two")  # as a checkpoint of the same size
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.stage("train", {"rate": 2}, _Made, killed)
    result, _ = run.stage("train", {"rate": 1}, _Made, _writes("one"))
    assert file_digest(tmp_path / "train" / result.file.path) == result.file.sha256


def test_a_result_of_another_version_is_a_clear_error(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.stage("train", {"a": 1}, _Made, _writes("one"))
    raw = json.loads((tmp_path / "train.json").read_text())
    (tmp_path / "train.json").write_text(json.dumps({**raw, "unknown": 1}))
    with pytest.raises(InputError, match="not one that this version writes"):
        run.result("train", _Made)
    (tmp_path / "train.json").write_text("[]")
    with pytest.raises(InputError, match="not one that this version writes"):
        run.record("train")


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run.locked(), pytest.raises(InputError, match="another outrider works in") as caught, RunFolder(tmp_path).locked():
        pass
    assert caught.value.evidence == f"process {os.getpid()}"
    with run.locked():
        assert RunFolder.active == tmp_path


# --- numbers ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 12), st.lists(st.integers(0, 4), min_size=1, max_size=7), st.data())
def test_drafts_past_the_stop_are_not_counted(num_drafted: int, room: int, tokens: list[int], data: st.DataObject) -> None:
    emitted = tokens[: num_drafted + 1]
    stop_ids = data.draw(st.sets(st.integers(0, 4), max_size=2))
    counts, kept = Acceptance.of_step(len(emitted) - 1, emitted, num_drafted=num_drafted, room=room, stop_ids=stop_ids)
    expected: list[int] = []
    for token in emitted:
        if len(expected) == room or (expected and expected[-1] in stop_ids):
            break
        expected.append(token)
    assert kept == expected
    stopped = expected[-1] in stop_ids
    assert counts.num_draft_tokens == min(num_drafted, len(expected) if stopped else room)
    assert counts.num_accepted_tokens == min(len(emitted) - 1, counts.num_draft_tokens)
    assert counts.accepted_at == tuple(int(k < counts.num_accepted_tokens) for k in range(num_drafted))


def test_no_data_is_none() -> None:
    nothing = Acceptance()
    assert (nothing.acceptance_length, nothing.acceptance_rate, nothing.acceptance_at) == (None, None, ())


def test_counters_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="contradict"):
        Acceptance(num_verify_steps=1, num_draft_tokens=3, num_accepted_tokens=2, accepted_at=(1, 0, 0))
