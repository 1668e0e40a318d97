"""The assembler: a file of statements, labels and directives -> sections of instructions, maps and data.

    ; count calls per CPU
    .license "GPL"
    .map hits percpu_array key=4 value=8 max_entries=1
    .section tracepoint/syscalls/sys_enter_openat
    count:
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = map[hits] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        ...
    out:
        r0 = 0
        exit

Directives: .map NAME TYPE key=N value=N max_entries=N [flags=N ...]; .section NAME, .text, .data, .rodata,
.bss; .license TEXT; .equ NAME, EXPRESSION; .include FILE; .kfunc NAME, .ksym NAME (or their declarations in C);
.globl NAME; .weak NAME; in data sections .byte .short .long .quad (.2byte, .4byte, .8byte, ...) .ascii .string .asciz .zero .align; .insn
CODE, DST, SRC, OFF, IMM. Comments: `;`, `//`, `#` behind white space, `/* ... */`. What llvm-objdump,
bpftool and the verifier put before an instruction (slot numbers, opcodes, bytes, function headings) is
understood; bytes, where there are any, say what the instruction is. Directives that compilers emit for
other tools (.file, .type, .size, .p2align, .cfi_*, .loc, ...) are read over.
"""

import re

from .assembly import Assembly, Data, MapDefinition, Section
from .directives import directive, equ, read_text
from .errors import AsmError, AsmSyntaxError
from .fast import fast
from .instruction import decode
from .opcodes import CALL, LDDW
from .resolve import Resolver
from .statement import CallRef, Statement, SymbolRef
from .tokens import Unexpected

__all__ = ["Assembly", "Data", "MapDefinition", "Section", "assemble", "assemble_files", "instructions"]


def assemble(text, filename="<text>", strict=True):
    """Assembles text (str) -> Assembly; `filename` names it in errors and locates .include.

    strict: jumps must land on an instruction of their section. Errors are AsmSyntaxError.
    """
    return _Assembler(strict).run([(filename, text)])


def assemble_files(paths, strict=True):
    """Assembles several files as if they were one."""
    return assemble_sources([(path, read_text(path)) for path in paths], strict)


def assemble_sources(sources, strict=True):
    """The same of (filename, text) pairs."""
    return _Assembler(strict).run(sources)


def instructions(text, **options):
    """The instructions of a text with a single program section."""
    return assemble(text, **options).instructions()


_LINE_LIMIT = 1 << 16        # characters of one line
# A string that is not closed is one to the end of the line: what reads it says so.
_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*(?:"|\\?$)|'(?:\\.|[^'\\])')|;|//|/\*|(?:(?<=\s)|^)\#""")
_BYTES = re.compile(r"\s*\d+:\s+((?:[0-9a-f]{2} ){7}[0-9a-f]{2}(?: (?:[0-9a-f]{2} ){7}[0-9a-f]{2})?)(?:\s|$)")
_SLOT = re.compile(r"\s*(?:(?:subprog#|frame)\d+:\s*)?([0-9]{1,9}):\s*(?:[0-9.]{10}\s+)?(?:\(([0-9a-f]{2})\))?\s*")
_NUMBERED = re.compile(r"([0-9]{1,9}): \(([0-9a-f]{2})\) (.+)$").match
_HEADING = re.compile(r"(?:[0-9a-f]{8,16} <([^>]+)>|[A-Za-z_][\w \*]*[ *]([A-Za-z_]\w*)\([^()]*\)):$")
_LABEL = re.compile(r"\s*([A-Za-z_.$][\w.$]*|[0-9]{1,9}):(?!\S{0,200}\w\()\s*")
_RELOCATION = re.compile(r"\s*[0-9a-f]{16}:\s+(R_BPF_\w+)\s+(\S+?)(?:\+(0x[0-9a-f]{1,8}))?$")
_SECTION = re.compile(r"\s*\.section\s+[^\s,\";]+").match
_FOREIGN = re.compile(r"\.(BTF|debug|llvm|note|eh_frame|symtab|strtab|rel)")
_DATA_NAME = re.compile(r"(\.(data|rodata|bss)(\.|$)|license$|version$)")


class _Assembler:
    def __init__(self, strict):
        self.strict = strict
        self.result = Assembly()
        self.symbols = {}        # .equ
        self.places = {}         # every name -> where it is defined: (file, line, text)
        self.current = None      # Section, Data, or "ignored"
        self.files = []
        self.included = 0        # characters, by .include
        self.known = {}          # statements parsed before that mean the same everywhere
        self.comment = False     # inside /* */

    def run(self, sources):
        for filename, text in sources:
            self.file(filename, text)
        if self.comment:
            raise self._error(0, 1, "a comment is opened with /* and never closed")
        Resolver(self.result, self.strict).resolve()
        data = self.result.data.pop("license", None)
        if data is not None:
            self.result.license = bytes(data.content).partition(b"\0")[0].decode("utf-8", "replace")
        return self.result

    def file(self, filename, text):
        """Reads a file's lines."""
        self.files.append(filename)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise AsmError("%s: character %d is half of a surrogate pair" % (filename, error.start)) from None
        for number, line in enumerate(text.split("\n"), 1):
            stripped = line.strip()
            if not stripped:
                continue
            if line[-1] == "\r":
                line = line[:-1]
            self.line = (filename, number, line)
            if len(line) > _LINE_LIMIT:
                raise self._error(_LINE_LIMIT, _LINE_LIMIT + 1, "a line of more than %d characters" % _LINE_LIMIT)
            current = self.current
            if type(current) is Section and not self.comment:
                if ";" in stripped or "//" in stripped:     # if it is more than a comment, the long way finds out
                    stripped = stripped.partition(";")[0].partition("//")[0].rstrip() or stripped
                numbered = _NUMBERED(stripped)
                statement = numbered.group(3) if numbered else stripped
                made = fast(statement) or self.known.get(statement)
                if made is not None and self.symbols and made.ref is not None:
                    made = None  # what looks like a label may be a constant
                if made is not None and (numbered is None or current.first_slot is not None and int(
                        numbered.group(1)) == current.first_slot + current.slot and int(
                        numbered.group(2), 16) == made.code):
                    current.instructions.append(made)
                    current.lines.append(self.line)
                    current.slot += made.slots
                    continue
            self._line(line)
        self.files.pop()

    def _error(self, start, end, reason):
        filename, number, text = self.line
        return AsmSyntaxError(filename, number, start + 1, reason, text, end - start)

    # lines

    def _line(self, line):
        found = _RELOCATION.match(line)
        if found:
            return self._relocation(*found.groups())
        code = self._without_comments(line)
        if not code.strip():
            return
        try:
            self._statement(code)
        except Unexpected as problem:
            raise self._error(problem.start, problem.end, problem.reason) from None
        except AsmSyntaxError:
            raise
        except AsmError as problem:
            raise self._error(len(code) - len(code.lstrip()), len(code), str(problem)) from None

    def _without_comments(self, line):
        """The line with blanks for what is comment, so that columns stay."""
        out, at = "", 0
        named = _SECTION(line)
        if named and not self.comment:      # uprobe//bin/bash:readline has no comment in it
            out, at = line[:named.end()], named.end()
        while at < len(line):
            if self.comment:
                end = line.find("*/", at)
                if end < 0:
                    return out
                out += " " * (end + 2 - at)
                at, self.comment = end + 2, False
                continue
            found = _COMMENT.search(line, at)
            if found is None:
                return out + line[at:]
            if found.group(1):
                out += line[at:found.end()]
                at = found.end()
                continue
            out += line[at:found.start()]
            if found.group() != "/*":
                return out
            out += "  "
            at, self.comment = found.end(), True
        return out

    def _statement(self, code):
        found = _BYTES.match(code)
        if found:
            if type(self.current) is not Section:
                self._code_section(".text")
            for instruction in decode(bytes.fromhex(found.group(1)), "little"):
                self._append(instruction)
            return
        whole = code.strip()
        heading = _HEADING.match(whole) if whole.endswith(":") and len(whole) < 4096 else None
        if heading:
            name = heading.group(1) or heading.group(2)
            # of a demangled name what a label may be called
            return self._label(re.sub(r"^(?![A-Za-z_.$])|[^\w.$]", "_", name), code.index(name))
        if whole.startswith("Disassembly of section "):
            return self.open_section(whole[23:].rstrip(":"))
        if "file format elf64-bpf" in code:
            return
        start, opcode = 0, None
        while True:
            found = _SLOT.match(code, start)
            if found and (found.group(2) or found.group(1) and found.end() < len(code)):
                opcode = self._slot_prefix(found)
                start = found.end()
                break
            found = _LABEL.match(code, start)
            if not found or self.current == "ignored":
                break
            self._label(found.group(1), found.start(1))
            start = found.end()
        if opcode is not None:
            return self._append(self._parse(code, start, opcode))
        if start >= len(code.rstrip()):
            return
        word = re.match(r"\s*([.\w]*)", code[start:]).group(1)
        if word.startswith(".") and word != ".insn":
            return directive(self, word, code, code.index(word, start) + len(word))
        if self.current == "ignored":
            return
        if re.match(r"\s*[A-Za-z_]\w*\s*=(?!=)", code[start:]) and not re.match(r"\s*[rRwW][0-9]+\s*=", code[start:]):
            return equ(self, self.statement(code, start), "=")
        if type(self.current) is Data:
            raise Unexpected(start, len(code), "an instruction in the data section %s; .section NAME or .text "
                             "comes first" % self.current.name)
        if self.current is None:
            self._code_section(".text")
        self._append(self._parse(code, start))

    def statement(self, code, start):
        """What stands in `code` from `start` on, as words."""
        return Statement(code, self.symbols, start)

    def _parse(self, code, start, opcode=None):
        if opcode == LDDW and re.match(r"\s*r[0-9]+ = (0x)?[0-9a-f]+\s*$", code[start:]):
            code = code.rstrip() + " ll"
        statement = self.statement(code, start)
        if opcode is not None:
            statement.last = 11
        made = statement.instruction()
        if not self.symbols and opcode != LDDW and made.dst <= 10 and made.src <= 10:
            self.known[code[start:].strip()] = made
        if opcode is not None and made.code != opcode:
            raise Unexpected(start, len(code), "the opcode in parentheses is %02x, but this is %02x" % (
                opcode, made.code))
        return made

    def _slot_prefix(self, found):
        """`3: (15) `: remembers that this is slot 3; returns the opcode. `1: ` alone is a label as well."""
        number, opcode = int(found.group(1)), found.group(2)
        if self.current is None:
            self._code_section(".text")
        if type(self.current) is not Section:
            raise Unexpected(found.start(1), found.end(1), "a slot number in a section of data")
        section = self.current
        if opcode is None:
            section.numbered.setdefault(number, []).append(len(section.instructions))
            return None
        if section.first_slot is None:
            section.first_slot = number - section.slot
        expected = section.first_slot + section.slot
        if number != expected:
            raise Unexpected(found.start(1), found.end(1), "slot %d follows slot %d: what is between is missing"
                             % (number, expected - 1) if number > expected else
                             "slot %d comes again; the next one is %d" % (number, expected))
        return int(opcode, 16)

    def _append(self, instruction):
        section = self.current
        section.instructions.append(instruction)
        section.lines.append(self.line)
        section.slot += instruction.slots

    def _relocation(self, kind, name, offset):
        section = self.current
        if type(section) is not Section or not section.instructions:
            raise self._error(0, len(self.line[2]), "a relocation without an instruction")
        last = section.instructions[-1]
        ref = CallRef(name) if last.code == CALL else SymbolRef(name, int(offset or "0", 16))
        section.instructions[-1] = last._replace(imm=0, src=0, ref=ref)

    def _label(self, name, column):
        current = self.current
        if current is None:
            self._code_section(".text")
            current = self.current
        if current == "ignored":
            return
        if name.isdigit():
            if type(current) is Section:
                current.numbered.setdefault(int(name), []).append(len(current.instructions))
            return
        self.define(name, column)
        if type(current) is Section:
            current.labels[name] = len(current.instructions)
        else:
            current.symbols[name] = len(current.content)

    def define(self, name, column):
        """A name is taken: by a label, a constant, a map, a symbol."""
        if name in self.places:
            before = self.places[name]
            raise self._error(column, column + len(name), "%s is already defined at %s:%d" % (
                name, before[0], before[1]))
        self.places[name] = self.line

    # sections

    def _code_section(self, name):
        self.current = self.result.sections.setdefault(name, Section(name))

    def open_section(self, name):
        """What follows belongs to this section."""
        if not name or '"' in name or not name.isprintable():
            raise AsmError("%r is no name of a section" % name)
        if _FOREIGN.match(name):
            self.current = "ignored"
        elif _DATA_NAME.match(name):
            self.current = self.result.data.setdefault(name, Data(name))
        elif name in (".maps", "maps"):
            raise AsmError("maps are declared with .map NAME TYPE key=N value=N max_entries=N")
        else:
            self._code_section(name)
