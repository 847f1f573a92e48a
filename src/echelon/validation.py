"""What pydantic says about wrong input, in our words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any


def plain_message(details: Mapping[str, Any], known_keys: Sequence[str] = ()) -> str:
    """What is wrong with one value; a key that does not exist gets a suggestion from `known_keys`."""
    match details["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(details["loc"][-1]), known_keys, n=1, cutoff=0.6)
            return "there is no such key" + (f"; did you mean {near[0]!r}?" if near else "")
        case "missing":
            return "is missing"
    message = str(details["msg"]).partition(" after validation")[0].removeprefix("Value error, ")
    return re.sub(r"^\w+ should ", "must ", message)
