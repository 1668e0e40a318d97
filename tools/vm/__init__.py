"""Other kernels than the running one: stock Debian kernels in QEMU virtual machines without a disk."""

# Series -> the Debian suite whose linux-image-cloud-amd64 has it.  "sid" is the newest there is.
SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "sid": "sid"}


def why_no_image(path):
    """What keeps a file from being a kernel that QEMU boots here, or "": it is an x86 bzImage ("HdrS" at 0x202,
    Documentation/arch/x86/boot.rst) or an ELF vmlinux (ET_EXEC of EM_X86_64)."""
    try:
        with open(path, "rb") as file:
            head = file.read(0x206)
    except OSError as error:
        return error.strerror
    if head[0x202:] == b"HdrS" or head[:6] == b"\x7fELF\x02\x01" and head[16:20] == b"\x02\x00\x3e\x00":
        return ""
    if head[0x38:0x3c] == b"ARM\x64":      # Documentation/arch/arm64/booting.rst
        return "a kernel of another architecture: it must be x86_64's, as this machine's Python"
    return "no kernel's image (bzImage or vmlinux)"
