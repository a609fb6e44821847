"""How SGLang is started."""

from outrider.engines.engine import Launch, ServeSpec
from outrider.engines.environment import Environment

_SERVED_NAME = "target"


def launch(environment: Environment, spec: ServeSpec) -> Launch:
    """The OpenAI-compatible server on loopback; the environment's own variables win over ours.

    The number of requests at once is always stated: with speculation and without that argument SGLang takes 48, without
    speculation far more, and the two could not be compared.
    """
    command = [str(environment.python), "-m", "sglang.launch_server"]
    command += ["--model-path", str(spec.target), "--served-model-name", _SERVED_NAME, "--host", "127.0.0.1", "--port", str(spec.port)]
    command += ["--dtype", spec.dtype, "--max-running-requests", str(spec.max_batch), "--enable-metrics"]
    if spec.drafter:
        command += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(spec.drafter)]
        # a chain of K tokens: SGLang counts the token that the drafter starts from among those it verifies
        k = spec.num_speculative_tokens
        command += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(k + 1)]
    env = {"HF_HUB_OFFLINE": "1"} | ({"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {})
    return Launch([*command, *spec.extra_args], env)
