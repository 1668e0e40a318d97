"""Other kernels than the running one: stock Debian kernels in QEMU virtual machines without a disk."""

# Series -> the Debian suite whose linux-image-cloud-amd64 has it.  "sid" is the newest there is.
SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "sid": "sid"}
