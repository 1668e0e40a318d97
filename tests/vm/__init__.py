"""The kernel matrix: tests on stock Debian kernels, in QEMU virtual machines without a disk.

`rawbpf.tools.vm` fetches the kernels, packs initramfs images and boots them, as it does for
`rawbpf verify`; `guest.py` packs the tests and compiles for the guest, `__main__.py` is the command.
"""
