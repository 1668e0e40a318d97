"""GNU objdump's reading of raw machine code, for comparison."""

import re
import shutil
import subprocess

_ONE = re.compile(r"^((?:rex\S* )?(?:sar|shr|shl|rol|ror|rcl|rcr)[bwlq]?) +((?:%\w+:)?[^,(]*(?:\([^)]*\))?)$")


def lines(code, path):
    """[(offset, text)] of x86-64 code by objdump; `path`: a file that may be written."""
    path.write_bytes(code)
    tool = shutil.which("objdump")
    assert tool, "objdump is missing: install binutils"
    done = subprocess.run([tool, "-D", "-b", "binary", "-m", "i386:x86-64", "-w", "--no-show-raw-insn", path],
                          stdout=subprocess.PIPE, universal_newlines=True, check=True)
    found = re.findall(r"^ *([0-9a-f]+):\t(.*)$", done.stdout, re.M)
    return [(int(offset, 16), _normal(text)) for offset, text in found]


def aarch64_lines(code, path, root):
    """As lines(), of AArch64 code; `root`: a folder with the binutils for it (Debian's, unpacked)."""
    path.write_bytes(code)
    done = subprocess.run([root / "usr/bin/aarch64-linux-gnu-objdump", "-D", "-z", "-b", "binary", "-m", "aarch64", path],
                          stdout=subprocess.PIPE, universal_newlines=True, check=True,
                          env={"LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu")})
    found = re.findall(r"^ *([0-9a-f]+):\t[0-9a-f]{8} \t(.*)$", done.stdout, re.M)
    return [(int(offset, 16), text.split("//")[0].split("; undefined")[0].rstrip()) for offset, text in found]


def _normal(text):
    text = text.split(" #")[0].strip()
    # before binutils 2.41 a shift by one does not show its count
    one = _ONE.match(text)
    return "%-6s $1,%s" % (one[1], one[2]) if one else text
