"""Everything a user can be told, as one small tree.

OutriderError
├── InputError           exit 2   a file, flag, configuration or machine that cannot be worked with
├── FindingFailed        exit 1   a check found that this cannot work
├── EngineFailed         exit 3   an engine died, hung or refused to start
└── MeasurementInvalid   exit 4   numbers were made that mean nothing

Each says what is wrong, the evidence for it, what it would lead to, and how to mend it.
"""

import errno


class OutriderError(Exception):
    """Base of all errors shown to a user without a traceback.

    Args:
        what: one sentence with the values.
        evidence: the file, line, header or reply that shows it.
        effect: what would happen otherwise.
        fix: what the user can do.
    """

    exit_code = 2

    def __init__(self, what: str, *, evidence: str = "", effect: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.evidence = evidence
        self.effect = effect
        self.fix = fix

    def lines(self) -> list[str]:
        """The error as printed: the sentence, then the parts that are known, one a line."""
        parts = (("evidence", self.evidence), ("effect", self.effect), ("fix", self.fix))
        return [f"error: {self.what}"] + [f"  {name:<9} {text}" for name, text in parts if text]


class InputError(OutriderError):
    """A file, flag, configuration or machine that cannot be worked with."""


class FindingFailed(OutriderError):
    """A check found that this target, drafter and engine cannot work together."""

    exit_code = 1


class EngineFailed(OutriderError):
    """An engine died, hung, or did not start."""

    exit_code = 3


class MeasurementInvalid(OutriderError):
    """A measurement whose numbers would mislead."""

    exit_code = 4


def from_os_error(error: OSError) -> OutriderError:
    """The clear form of an operating-system error: disk full, no permission, and the like."""
    where = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(
            "no space left on the disk" + (f" while writing {where}" if where else ""),
            evidence=str(error),
            effect="the stage stopped; what was finished is kept",
            fix="free space or choose another run folder, then run the same command again: it continues",
        )
    return InputError(f"{error.strerror or error}" + (f": {where}" if where else ""), evidence=str(error))
