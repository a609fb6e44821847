"""A target on disk: a safetensors folder with tokenizer and chat template. No torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import outrider.targets as families
from outrider.core.errors import InputError
from outrider.core.files import read_json
from outrider.core.plugins import load_plugin, plugin_ids
from outrider.formats.safetensors_file import TensorEntry, read_folder_headers
from outrider.targets.family import TargetFamily

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True)
class TargetFolder:
    """A target's folder, its config read and its weights' headers checked.

    Attributes:
        config: config.json as it stands.
        tensors: every tensor's header.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @classmethod
    def open(cls, path: Path) -> "TargetFolder":
        """Open a target.

        Raises:
            InputError: missing, not a model folder, or with truncated weights.
        """
        if not path.is_dir():
            raise InputError(
                f"no target at {path}",
                evidence="not a folder",
                fix="`outrider target import SRC DIR` makes one from a GGUF file or a Hugging Face folder",
            )
        config = read_json(path / "config.json", "the target's config")
        if not isinstance(config, dict) or "model_type" not in config:
            raise InputError("the target's config names no model_type", evidence=str(path / "config.json"))
        return cls(path, config, read_folder_headers(path))

    @property
    def text_config(self) -> dict[str, Any]:
        """The config of the language model: nested in a wrapper's, or the whole."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self._number("num_hidden_layers"))

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self._number("hidden_size"))

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self._number("vocab_size"))

    def _number(self, key: str) -> Any:
        value = self.text_config.get(key)
        if not isinstance(value, int):
            raise InputError(f"the target's config has no {key}", evidence=f"{self.path / 'config.json'}: {key} = {value!r}")
        return value

    @cached_property
    def family(self) -> TargetFamily:
        """The family by the text config's model_type.

        Raises:
            InputError: no family file names this type.
        """
        model_type = str(self.text_config.get("model_type") or self.config["model_type"])
        known: list[str] = []
        for plugin_id in plugin_ids(families):
            family = load_plugin(families, plugin_id, "TARGET", TargetFamily)
            if model_type in family.model_types:
                return family
            known += family.model_types
        raise InputError(
            f"target type {model_type} is not known",
            evidence=f"{self.path / 'config.json'}: model_type",
            fix=f"known: {', '.join(sorted(known))}; a family is one file below outrider/targets",
        )

    def tensor_named(self, names: tuple[str, ...]) -> TensorEntry | None:
        """The first of `names` that the checkpoint has."""
        return next((self.tensors[name] for name in names if name in self.tensors), None)

    @cached_property
    def digest(self) -> str:
        """Identity of the target: its config, every tensor's header, and the first and last 64 KiB of each weights file.

        Reading 547 GB for a name would cost more than the stage that asks for it.
        """
        digest = hashlib.sha256((self.path / "config.json").read_bytes())
        for name, entry in sorted(self.tensors.items()):
            digest.update(f"{name} {entry.dtype} {entry.shape}\n".encode())
        for file in sorted({entry.file for entry in self.tensors.values()}):
            with file.open("rb") as stream:
                digest.update(stream.read(_SAMPLE_BYTES))
                stream.seek(max(0, file.stat().st_size - _SAMPLE_BYTES))
                digest.update(stream.read())
        return digest.hexdigest()

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer with its chat template.

        Raises:
            InputError: none that loads, or one without a chat template.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise InputError("the target's tokenizer cannot be loaded", evidence=f"{self.path}: {str(error).splitlines()[0]}") from None
        if not tokenizer.chat_template:
            raise InputError(
                "the target's tokenizer has no chat template", evidence=str(self.path), fix="add chat_template.jinja to the folder"
            )
        return tokenizer

    def render(self, messages: Sequence[dict[str, str]], *, opens_answer: bool = False) -> str:
        """The chat template's text for `messages`; with `opens_answer`, up to where the target's answer begins.

        Raises:
            InputError: the template refuses them.
        """
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opens_answer))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InputError(f"the chat template refuses messages of roles {roles}", evidence=f"{self.path}: {error}") from None

    def ids(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens are written out."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a chat, up to where the target's answer begins."""
        return self.ids(self.render(messages, opens_answer=True))

    @cached_property
    def template_hash(self) -> str:
        """SHA-256 of the chat template."""
        return hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: the generation config's, else the config's, else the tokenizer's."""
        path = self.path / "generation_config.json"
        generation = read_json(path, "the generation config") if path.exists() else {}
        value = generation.get("eos_token_id", self.text_config.get("eos_token_id"))
        if value is None:
            value = self.tokenizer.eos_token_id
        ids = value if isinstance(value, list) else [value]
        return tuple(int(i) for i in ids if i is not None)
