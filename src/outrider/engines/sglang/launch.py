"""How SGLang is started: the same options in all versions from 0.5.2 on, see docs/proofs/launch-flags.md."""

from typing import Final

from outrider.core.errors import InputError
from outrider.engines.arguments import Option, joined, name_of, options
from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment

_SERVED_NAME: Final = "target"
_SYNONYMS: Final = {"--model": "--model-path", "--speculative-draft-model": "--speculative-draft-model-path"}
_INSTEAD: Final = {"--port": "--port to Outrider", "--model-path": "--target"}
_STEPS: Final = "--speculative-num-steps"
_DRAFT_TOKENS: Final = "--speculative-num-draft-tokens"


def launch(environment: Environment, spec: ServeSpec) -> Launch:
    """The OpenAI-compatible server on loopback; the user's arguments and the environment's own variables win over ours.

    The number of requests at once is always stated: with speculation and without that argument SGLang takes 48, without
    speculation far more, and the two could not be compared.

    Raises:
        InputError: an argument of the user's that only Outrider may set.
    """
    ours: list[Option] = [
        ("--model-path", str(spec.target)),
        ("--served-model-name", _SERVED_NAME),
        ("--host", "127.0.0.1"),
        ("--port", str(spec.port)),
        ("--dtype", spec.dtype),
        ("--max-running-requests", str(spec.max_batch)),
        ("--enable-metrics",),
    ]
    given = options(spec.extra_args)
    if spec.drafter:
        speculation = _speculation(spec)
        _require_chain(given, dict(speculation))
        ours += [("--speculative-draft-model-path", str(spec.drafter)), *speculation]
    env = {"HF_HUB_OFFLINE": "1"} | ({"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {})
    command = [str(environment.python), "-m", "sglang.launch_server"]
    return Launch([*command, *joined(ours, given, _SYNONYMS, _INSTEAD, "SGLang")], env)


def _speculation(spec: ServeSpec) -> list[tuple[str, str]]:
    """A chain of K tokens: SGLang counts the token that the drafter starts from among those it verifies."""
    k = spec.num_speculative_tokens
    return [("--speculative-algorithm", "EAGLE3"), (_STEPS, str(k)), ("--speculative-eagle-topk", "1"), (_DRAFT_TOKENS, str(k + 1))]


def _require_chain(given: list[Option], ours: dict[str, str]) -> None:
    """Refuse another K than the one that acceptance is counted with."""
    for option in given:
        name = name_of(option, _SYNONYMS)
        value = option[0].partition("=")[2] or " ".join(option[1:])
        if name in (_STEPS, _DRAFT_TOKENS) and value != ours[name]:
            raise InputError(
                f"{name} is {ours[name]} by num_speculative_tokens, and {value} in the arguments of SGLang",
                effect="acceptance would be counted with the wrong number",
                fix=f"say it once: --num-speculative-tokens {ours[_STEPS]} stands for {ours[name]} here",
            )
