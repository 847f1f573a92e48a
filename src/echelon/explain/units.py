"""Numbers with their units, for people."""

from __future__ import annotations


def show_bytes(count: float) -> str:
    """With a unit that leaves one to three digits before the point."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def show_megabytes(num_bytes: int) -> str:
    """A size for people."""
    return f"{num_bytes / 1e6:,.1f} MB"


def show_rate(bytes_per_s: float) -> str:
    """A network rate in bits, as lines are sold."""
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def show_step(seconds: float) -> str:
    """A step's time."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def show_number(value: float | None) -> str:
    """A loss or a score; a dash if there is none."""
    return "-" if value is None else f"{value:.4g}"


def show_hours(hours: float) -> str:
    """Hours, or minutes if there are few."""
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


def show_duration(seconds: float) -> str:
    """A time span with its unit written out."""
    if seconds < 60:
        return f"{seconds:.3g} seconds"
    if seconds < 3600:
        return f"{seconds / 60:.3g} minutes"
    return f"{seconds / 3600:.3g} hours"


def show_share(share: float) -> str:
    """A percentage; small ones keep a digit."""
    return f"{share:.1%}" if 0 < abs(share) < 0.1 else f"{share:.0%}"


def show_count(count: float) -> str:
    return f"{count:,.0f}"


def show_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def show_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def show_times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def format_speed(per_second: float, unit: str) -> str:
    """Tokens or pictures a second."""
    return f"{per_second:,.0f} {'tokens' if 'token' in unit else unit}/s"
