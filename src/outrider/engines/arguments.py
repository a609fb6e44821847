"""Our arguments of an engine's command, and the user's: where both name the same one, the user's stays.

An option is the words from its name up to the next name: ("--dtype", "float32"), ("--dtype=float32",), ("--enforce-eager",).
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from outrider.core.errors import InputError

Option = tuple[str, ...]
# a name, and no negative number
_NAME = re.compile(r"--?[A-Za-z]")


def options(arguments: Iterable[str]) -> list[Option]:
    """Arguments as options; words before the first name are one without a name."""
    found: list[list[str]] = []
    for word in arguments:
        if not found or _NAME.match(word):
            found.append([])
        found[-1].append(word)
    return [tuple(words) for words in found]


def name_of(option: Option, synonyms: Mapping[str, str]) -> str:
    """The name in the one spelling that we compare: with `-` between its words, and the same for a switch that is taken back."""
    written = option[0].partition("=")[0]
    name = written.replace("_", "-") if written.startswith("--") else written
    name = synonyms.get(name, name)
    return f"--{name[5:]}" if name.startswith("--no-") else name


def joined(
    ours: Sequence[Option], given: Sequence[Option], synonyms: Mapping[str, str], instead: Mapping[str, str], engine: str
) -> list[str]:
    """Ours without those that the user gives, then the user's.

    Args:
        synonyms: another spelling → the name that we write.
        instead: a name that only we may write → what the user says in its place.

    Raises:
        InputError: the user gives one of those.
    """
    names = {name_of(option, synonyms): option for option in given}
    for name in names:
        if name in instead:
            raise InputError(
                f"{name} is not for the arguments of {engine}",
                evidence=" ".join(names[name]),
                effect="Outrider would look for another server than the one that was started",
                fix=f"leave it out, and say {instead[name]}",
            )
    kept = [option for option in ours if name_of(option, synonyms) not in names]
    return [word for option in (*kept, *given) for word in option]
