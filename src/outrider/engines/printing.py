"""A launch as a shell would take it, without starting anything."""

import os
import shlex
from collections.abc import Mapping

from outrider.engines.arguments import options
from outrider.engines.engine import Launch
from outrider.engines.servers import TAKEN_UP


def printed(launch: Launch, environ: Mapping[str, str] = os.environ) -> str:
    """The exact command: what its environment must say beside the user's own, then the command, one option a line.

    Args:
        environ: the user's own environment, whose variables win over those of the launch.
    """
    assignments = [f"{key}={shlex.quote(value)}" for key, value in sorted(launch.env.items()) if key not in environ or key in TAKEN_UP]
    start, *rest = options(launch.command)
    program = shlex.join([*start, *(rest.pop(0) if rest else ())])  # python -m MODULE
    return " \\\n    ".join([*assignments, program, *map(shlex.join, rest)])
