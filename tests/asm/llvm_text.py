"""LLVM's text of instructions beside ours: one spelling for both. What differs was measured with LLVM 21."""

import re

_SWAP = re.compile(r"atomic(?:64)?_(cmp)?xchg\(\((u32|u64) \*\)\((r\d+) ([+-]\d+)\), ")


def normal(line):
    """Numbers in decimal, no blanks in offsets, `goto` by offset, calls by number, narrow registers as r in memory
    operations, atomics named as LLVM does, pseudo loads by their source and low half."""
    line = re.sub(r"\s+<[^ <>]*>$", "", re.sub(r"\s+", " ", line.strip()))
    line = re.sub(r"\bpc([+-])", r"\1", line)
    line = re.sub(r"-?0x[0-9a-f]+", lambda n: str(int(n.group(), 16)), line)
    line = re.sub(r"([+-]) ?(\d+)", r"\1\2", line)
    line = _pseudo(line)
    line = re.sub(r"^call (?:[\w]+#)?(?:\+)?(-?\d+).*", r"call \1", line)
    line = _SWAP.sub(lambda m: "%sxchg%s(%s %s, " % (m[1] or "", "_64" if m[2] == "u64" else "32_32", m[3], m[4]), line)
    line = line.replace("atomic64_fetch", "atomic_fetch")
    if re.search(r"\(u(8|16|32) \*\)|xchg32", line):
        line = re.sub(r"\bw(\d+)", r"r\1", line)
    if "skb[r" in line:         # LLVM does not print the offset
        line = re.sub(r"skb\[(r\d+).*?\]", r"skb[\1]", line)
    if line.startswith("if ") or line.endswith(" ll"):
        bits = 32 if line.startswith("if ") else 64
        line = re.sub(r"(?<=[=<>&] )(-?\d+)", lambda n: str(int(n.group()) & (1 << bits) - 1), line)
    return line


def _pseudo(line):
    ours = re.match(r"(r\d+) = (map_fd|map_idx|btf_id|func)\[(-?\+?\d+)\](\[0\][+-]\d+)? ll$", line)
    if ours:
        source = {"map_fd": 1, "btf_id": 3, "func": 4, "map_idx": 5}[ours[2]] + bool(ours[4])
        return "ld_pseudo %s, %d, %d" % (ours[1], source, int(ours[3]) & 0xffffffff)
    return re.sub(r"^(ld_pseudo r\d+, \d+, )(-?\d+)$", lambda m: m[1] + str(int(m[2]) & 0xffffffff), line)


def listing(text):
    """{slot: instruction} of what `llvm-objdump -d` prints, bytes or not, for each section in turn."""
    sections, current = {}, None
    for line in text.splitlines():
        heading = re.match(r"Disassembly of section (.*):$", line)
        if heading:
            current = sections.setdefault(heading[1], {})
        found = re.match(r"\s+(\d+):\s+(?:(?:[0-9a-f]{2} ){8,16}\s*)?(\S.*)$", line)
        if found and "R_BPF" not in line:
            current[int(found[1])] = found[2]
    return sections
