"""The oldest Python that rawbpf supports: 3.9, as Debian 11 has it, in a root of its own."""
