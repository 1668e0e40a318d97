"""Debian packages as files: the tests take them the way `rawbpf verify --kernel` takes its kernels."""

from rawbpf.tools.vm.debian import CACHE, KEYRING, DebianError, Suite, locked, mirror

__all__ = ["CACHE", "KEYRING", "DebianError", "Suite", "locked", "mirror"]
