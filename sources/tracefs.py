"""tracefs for sources: loader/tracefs.py, with its refusal as a SourceError."""

from .base import SourceError


def tracefs():
    """The loader's TraceFs of this host. SourceError says what would give access."""
    from rawbpf.loader import tracefs as lower
    from rawbpf.loader.errors import KernelError

    try:
        return lower.tracefs()
    except KernelError as error:
        raise SourceError(error.needs) from None
