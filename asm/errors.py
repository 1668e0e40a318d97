"""The one exception of this room: something cannot be encoded, decoded, assembled or compiled."""


class AsmError(Exception):
    """What is wrong, in one line; raised for every kind of bad input to `rawbpf.asm`."""
