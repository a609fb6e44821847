"""Bring a target into the one shape the rest works on: a safetensors folder with tokenizer and chat template."""

import os
import shutil
import struct
from pathlib import Path
from typing import Any

from outrider.core.errors import InputError, from_os_error
from outrider.targets.folder import TargetFolder

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "added_tokens.json",
)


def import_target(source: Path, folder: Path) -> TargetFolder:
    """Import a GGUF file, or a Hugging Face folder with safetensors or older weights.

    Args:
        source: `*.gguf`, or a folder with config.json.
        folder: where the target goes; it appears whole or not at all.

    Raises:
        InputError: no such source, a kind that is not known, damaged weights, or `folder` holds something else.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty", fix="choose another folder, or remove it first")
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        if source.is_file() and source.suffix == ".gguf":
            _from_gguf(source, aside)
        elif (source / "config.json").is_file():
            _from_folder(source, aside)
        else:
            raise InputError(
                f"{source} is neither a GGUF file nor a model folder", evidence="no *.gguf, no config.json", fix="check the path"
            )
        _check(aside)
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)
    except OSError as error:
        raise from_os_error(error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return TargetFolder.open(folder)


def _from_gguf(source: Path, folder: Path) -> None:
    """Dequantise a GGUF file. In transformers 5.16 on it stays packed unless asked; older ones lack that class."""
    import torch
    import transformers

    unpacked: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        unpacked["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32, **unpacked)
    except (ValueError, KeyError, IndexError, EOFError, NotImplementedError, struct.error) as error:
        raise InputError(
            f"{source.name} cannot be read as GGUF", evidence=f"{source}: {error}", fix="fetch it again, or use another file"
        ) from None
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _from_folder(source: Path, folder: Path) -> None:
    """Link or copy safetensors; convert older weights."""
    shutil.copy(source / "config.json", folder)
    for name in _TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder)
    weights = sorted(source.glob("*.safetensors")) + sorted(source.glob("*.safetensors.index.json"))
    for file in weights:
        _link_or_copy(file.resolve(), folder / file.name)
    if not weights:
        _convert_older_weights(source, folder)


def _link_or_copy(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:  # another file system, or one without links
        shutil.copy(file, to)


def _convert_older_weights(source: Path, folder: Path) -> None:
    import transformers

    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError("no weights that can be read", evidence=f"{source}: {str(error).splitlines()[0]}") from None
    model.save_pretrained(folder)


def _check(folder: Path) -> None:
    """The imported folder opens, and its template's special tokens are single tokens."""
    target = TargetFolder.open(folder)
    tokenizer = target.tokenizer
    text = str(tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.decode(ids) != text:
        raise InputError(
            "the imported tokenizer does not give its own template back",
            evidence=f"{text[:60]!r} became {tokenizer.decode(ids)[:60]!r}",
            effect="training and serving would see different tokens",
            fix="import from the Hugging Face folder instead",
        )
