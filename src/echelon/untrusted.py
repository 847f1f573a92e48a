"""Text that somebody else wrote: how it is shown without harm, and what may go into other programs' files and commands.

Run folders, hosts, recipes and cluster files may come from anybody. What they hold reaches a terminal, an ssh
configuration, a shell or a YAML file through the functions here, or not at all.
"""

from __future__ import annotations

import re

_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline: with ESC and CSI begin terminal commands
    "\u2028-\u202e\u2066-\u2069"  # line separators, and marks that show the text after them in another order
    "\ud800-\udfff]"  # halves of a character, which no terminal and no file takes
)


def printable(text: str) -> str:
    r"""The text with every character that a terminal would act on as its number, `\u001b`. JSON stays JSON."""
    return _HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
