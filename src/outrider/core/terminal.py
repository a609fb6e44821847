"""Text from files and logs, as a terminal may be shown it."""


def visible(text: str) -> str:
    """The same text, in which control characters are written out and so do nothing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
