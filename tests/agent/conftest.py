"""Run folders and worker programs, as in tests of launchers."""

from tests.launch.conftest import no_process_is_left, program, run, short_grace

__all__ = ["no_process_is_left", "program", "run", "short_grace"]
