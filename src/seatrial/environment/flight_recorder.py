"""Where NCCL's flight recorder writes what ranks did last, once one of them hangs or fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from seatrial.folders import cache_folder, make_folders

BUFFER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""The variable that turns the recorder on, in operations that it keeps."""
_WANTED = (BUFFER, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
"""Variables of a user who wants its files; the second one is the name of newer versions of torch."""
_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_NOWHERE = "/proc"
"""A folder that is there, and in which nobody can make anything."""


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the user has turned the recorder on, or off by its variable, so that we leave it as it is."""
    return any(name in environ for name in _WANTED)


def recorder_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the beginning of the names of its files, unless the user has set it; make their folder.

    The default of older versions of torch is ``/tmp/nccl_trace_rank_``, and so a link of a neighbor's that torch would
    follow. This one is the default of newer versions, which make the folder; for a user without a home it is in a
    folder where nothing can be made.
    """
    if environ.get("TORCH_FR_DUMP_TEMP_FILE") or environ.get(_FILE):
        return {}
    folder = os.path.join(cache_folder(environ) or _NOWHERE, "torch")
    with contextlib.suppress(OSError):
        make_folders(folder)
    return {_FILE: os.path.join(folder, "comm_lib_trace_rank_")}
