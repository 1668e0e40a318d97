"""The kernel matrix: tests on stock Debian kernels, in QEMU virtual machines without a disk.

`kernels.py` fetches the kernels, `image.py` packs this host's Python with the checkout into an
initramfs, `guest.py` boots it and talks to it, `__main__.py` is the command.
"""
