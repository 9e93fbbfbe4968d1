"""The lines around the tracebacks in the output of a rank: its agent sends them, and the conductor reads them."""

from __future__ import annotations

TRACEBACK = "Traceback (most recent call last):"
LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
ASIDE = (
    "Exception ignored ",
    "Exception in thread ",
    "Exception in callback ",
    "Exception occurred during processing of request ",
    "Unhandled exception in thread started by ",
    "Unhandled exception in client_connected_cb",
    "unhandled exception during asyncio.run() shutdown",
    "Error in atexit.",
    "Error in sys.",
    "--- Logging error ---",
    "Task exception was never retrieved",
    "Future exception was never retrieved",
)
"""Before the traceback of an exception that does not end the program: one of a thread, a callback, a handler."""
