"""The kernels of the matrix: those that `rawbpf verify --kernel` boots."""

from rawbpf.tools.vm import SUITES
from rawbpf.tools.vm.kernels import kernel

__all__ = ["SUITES", "kernel"]
