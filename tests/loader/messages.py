"""How many of the verifier's messages have a kind: of the kernels that `rawbpf verify --kernel` boots.

    python -m tests.loader.messages [-v] [SERIES...]

The messages are the format strings inside the kernel's image, around those of verifier.c; what is no reason for a
refusal (states, statistics, listings) is left out. -v lists those without a kind. Needs zstd for newer images.
"""

import re
import subprocess
import sys

from rawbpf.loader.refusals import kind_of
from rawbpf.loader.verifier import _STATE
from rawbpf.tools.vm import SUITES
from rawbpf.tools.vm.kernels import kernel

# Messages at both ends of the two places where the linker puts short and long strings of verifier.c.
SHORT = (b"R%d !read_ok", b"tail_call abusing")
LONG = (b"R%d has pointer with unsupported alu", b"The sequence of %d jumps", b"combined stack size of",
        b"processed %d insns", b"func_info BTF section", b"BPF_LD_[ABS|IND] instructions")
# Other strings that lie there: /proc's fields, the disassembler's, what is printed while it walks, other files'.
NO_REASON = re.compile(r"\w+:\t|\(7\) |BUG_|\d: safe$|[1-7][a-z]|# WARN|mark_reg_|frame 7: propag|SCC |topo_order|propagate_live| |"
                       r"expected=|tr R7|id=7 |mem_id=|max 7|@ |btf_vmlinux_value|missing BPF_LINK|bpf_prog_pack|ERROR: Timeout|"
                       r"Please fix|verifier log line|[1-7]BPF:")


def unpacked(image):
    """The vmlinux inside a bzImage (zstd or LZ4's legacy format)."""
    data = image.read_bytes()
    at = data.find(b"\x02!L\x18")
    if 0 <= at < 1 << 16:
        return _lz4(data, at + 4)
    return subprocess.run(["zstd", "-dc"], input=data[data.find(b"\x28\xb5\x2f\xfd"):], capture_output=True).stdout


def _lz4(data, at):
    out = bytearray()
    while at + 4 <= len(data):
        size = int.from_bytes(data[at:at + 4], "little")
        end = at + 4 + size
        if not 0 < size <= min(9 << 20, len(data) - at):
            break
        at += 4
        while at < end:
            token = data[at]
            count, at = _length(data, at + 1, token >> 4)
            out += data[at:at + count]
            at += count
            if at < end:
                back = data[at] | data[at + 1] << 8
                count, at = _length(data, at + 2, token & 15)
                start = len(out) - back
                out += (out[start:] * ((count + 4) // back + 1))[:count + 4] if back < count + 4 else out[start:start + count + 4]
    return bytes(out)


def _length(data, at, length):
    if length == 15:
        while True:
            length, at = length + data[at], at + 1
            if data[at - 1] != 255:
                break
    return length, at


def reasons(image):
    """The reasons for refusals in a kernel's image, their arguments filled in."""
    data, out = unpacked(image), []
    for ends in (SHORT, LONG):
        places = [place for place in map(data.find, ends) if place >= 0]
        for found in re.finditer(rb"[\t\n\x20-\x7e]{8,}(?=\0)", data[min(places) - 1500:max(places) + 3500]):
            text = found.group().decode()
            if text.endswith("\n"):
                out.append(_filled(text.strip("\n")))
    return [text for text in dict.fromkeys(out) if not NO_REASON.match(text) and not _STATE.match(text)]


def _filled(text):
    text = text.replace("invalid%s", "invalid write to").replace("invalid %s access", "invalid sock access")
    text = re.sub(r"%[-+ 0#]*\d*(?:\.\d+|\.\*)?(?:ll|l|h|hh|z)?[diux]|%p\w*", "7", text)
    return text.replace("%s", "bpf_x").replace("%*s", "").replace("%c", "c")


def main(words):
    total = known = 0
    for series in [word for word in words if word != "-v"] or SUITES:
        found = reasons(kernel(series))
        unknown = [text for text in found if kind_of(text) == "other"]
        print("%s: %d messages, %d without a kind" % (series, len(found), len(unknown)))
        if "-v" in words:
            print("".join("    %s\n" % text for text in unknown), end="")
        total, known = total + len(found), known + len(found) - len(unknown)
    print("%.1f %% of %d have a kind" % (100 * known / total, total))


if __name__ == "__main__":
    main(sys.argv[1:])
