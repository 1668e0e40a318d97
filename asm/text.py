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
.bss; .license TEXT; .equ NAME, EXPRESSION; .include FILE; .kfunc NAME, .ksym NAME; .globl NAME; in data
sections .byte .short .long .quad (.2byte, .4byte, .8byte, ...) .ascii .string .asciz .zero .align; .insn
CODE, DST, SRC, OFF, IMM. Comments: `;`, `//`, `#` behind white space, `/* ... */`. What llvm-objdump,
bpftool and the verifier put before an instruction (slot numbers, opcodes, bytes, function headings) is
understood; bytes, where there are any, say what the instruction is. Directives that compilers emit for
other tools (.file, .type, .size, .p2align, .cfi_*, .loc, ...) are read over.
"""

import os
import re
from collections import namedtuple

from .errors import AsmError, AsmSyntaxError
from .helpers import NUMBER
from .instruction import FuncRef, Instruction, KsymRef, Label, MapRef, decode, slot_numbers
from .opcodes import BPF_PSEUDO_BTF_ID, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_PSEUDO_KFUNC_CALL
from .opcodes import BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE, CALL, JA32, LDDW
from .statement import CallRef, Statement, SymbolRef, Unexpected, fast, unescape

MapDefinition = namedtuple("MapDefinition", "name type key_size value_size max_entries flags options")
MapDefinition.__doc__ = "A map that the program wants; `options`: dict of what else .map said (numbers)."

Line = namedtuple("Line", "filename number text")
Line.__doc__ = "Where an instruction was written."


class Section:
    """A program section: `instructions`, `lines` (a Line each), `labels`: dict name -> instruction index."""

    def __init__(self, name):
        self.name = name
        self.instructions, self.lines, self.labels = [], [], {}
        self.numbered = {}   # "1:" may be defined again and again
        self.first_slot = None
        self.slot = 0

    def functions(self):
        """dict name -> index of the functions: the start, what is called or referred to, what is global."""
        return {name: index for name, index in self.labels.items() if name in self.entries}


class Data:
    """A data section: `content`, `symbols`: dict name -> offset."""

    def __init__(self, name):
        self.name = name
        self.content, self.symbols, self.align = bytearray(), {}, 1


class Assembly:
    """What an assembly file says. `sections`, `data`: dicts by name; `maps`: dict name -> MapDefinition."""

    def __init__(self):
        self.sections, self.data, self.maps = {}, {}, {}
        self.license = None
        self.kfuncs, self.ksyms, self.globals = set(), set(), set()

    def section(self, name=None):
        """A program section by name; without one, the only one there is (.text, of functions, aside)."""
        if name is not None:
            if name not in self.sections:
                raise AsmError("no section %r; there are %s" % (name, ", ".join(self.sections) or "none"))
            return self.sections[name]
        programs = [s for s in self.sections.values() if s.name != ".text"] or list(self.sections.values())
        if len(programs) != 1:
            raise AsmError("which section? There are %s" % ", ".join(s.name for s in programs) if programs
                           else "there are no instructions")
        return programs[0]

    def instructions(self, name=None):
        """The instructions of a section, with the functions of .text that it calls behind them.

        Only MapRef and KsymRef are left to resolve.
        """
        return self.link(name)[0]

    def link(self, name=None):
        """(instructions, lines, dict function -> index of its first instruction)."""
        main = self.section(name)
        code, lines = list(main.instructions), list(main.lines)
        functions = dict(main.functions())
        text = self.sections.get(".text")
        if text is not None and text is not main and any(isinstance(i.ref, FuncRef) for i in code):
            functions.update((n, i + len(code)) for n, i in text.functions().items())
            code += text.instructions
            lines += text.lines
        slots = slot_numbers(code)
        for index, instruction in enumerate(code):
            if isinstance(instruction.ref, FuncRef):
                target = functions.get(instruction.ref.name)
                if target is None:
                    raise AsmError("%s: %s is in a section that is not part of this program" % (
                        _place(lines[index]), instruction.ref.name))
                code[index] = _relative(instruction, slots[target] - slots[index] - 1)
        return code, lines, functions


def _place(line):
    return "%s:%d" % (line.filename, line.number)


def _relative(instruction, off):
    return instruction._replace(imm=off & 0xFFFFFFFF if instruction.code == LDDW else off, ref=None)


def assemble(text, filename="<text>", strict=True):
    """Assembles text (str) -> Assembly; `filename` names it in errors and locates .include.

    strict: jumps must land on an instruction of their section. Errors are AsmSyntaxError.
    """
    return _Assembler(strict).run([(filename, text)])


def assemble_files(paths, strict=True):
    """Assembles several files as if they were one."""
    sources = []
    for path in paths:
        sources.append((path, _read(path)))
    return _Assembler(strict).run(sources)


def instructions(text, **options):
    """The instructions of a text with a single program section."""
    return assemble(text, **options).instructions()


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise AsmError("%s: %s" % (path, error.strerror)) from None
    except UnicodeDecodeError as error:
        raise AsmError("%s: byte %d is no UTF-8 text" % (path, error.start)) from None


_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])')|;|//|/\*|(?:(?<=\s)|^)\#""")
_BYTES = re.compile(r"\s*\d+:\s+((?:[0-9a-f]{2} ){7}[0-9a-f]{2}(?: (?:[0-9a-f]{2} ){7}[0-9a-f]{2})?)(?:\s|$)")
_SLOT = re.compile(r"\s*(?:subprog#\d+:|frame\d+:)?\s*(\d+):\s*(?:[0-9.]{10}\s+)?(?:\(([0-9a-f]{2})\))?\s*")
_NUMBERED = re.compile(r"(\d+): \(([0-9a-f]{2})\) (.+)$").match
_HEADING = re.compile(r"(?:[0-9a-f]{8,16} <([^>]+)>|[A-Za-z_][\w \*]*[ *]([A-Za-z_]\w*)\([^()]*\)):$")
_LABEL = re.compile(r"\s*([A-Za-z_.$][\w.$]*|[0-9]+):(?!\S*\w\()\s*")
_RELOCATION = re.compile(r"\s*[0-9a-f]{16}:\s+(R_BPF_\w+)\s+(\S+?)(?:\+(0x[0-9a-f]+))?$")
_IGNORED = re.compile(r"\.(file|type|size|p2align|balign|cfi_\w+|loc|addrsig\w*|ident|hidden|weak|local)(?!\w)")
_FOREIGN = re.compile(r"\.(BTF|debug|llvm|note|eh_frame|symtab|strtab|rel)")
_DATA_NAME = re.compile(r"(\.(data|rodata|bss)(\.|$)|license$|version$)")
_SIZES = {".byte": 1, ".2byte": 2, ".short": 2, ".half": 2, ".hword": 2, ".4byte": 4, ".long": 4, ".int": 4,
          ".word": 4, ".8byte": 8, ".quad": 8}


class _Assembler:
    def __init__(self, strict):
        self.strict = strict
        self.result = Assembly()
        self.symbols = {}        # .equ
        self.places = {}         # every name -> the Line that defines it
        self.current = None      # Section, Data, or "ignored"
        self.files = []
        self.known = {}          # statements parsed before that mean the same everywhere
        self.comment = False     # inside /* */

    def run(self, sources):
        for filename, text in sources:
            self._file(filename, text)
        if self.comment:
            raise self._error(0, 1, "a comment is opened with /* and never closed")
        self._resolve()
        self._license()
        return self.result

    def _file(self, filename, text):
        self.files.append(filename)
        for number, line in enumerate(text.split("\n"), 1):
            stripped = line.strip()
            if not stripped:
                continue
            self.line = (filename, number, line)
            current = self.current
            if type(current) is Section and not self.comment:
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
        heading = _HEADING.match(code.strip())
        if heading:
            name = heading.group(1) or heading.group(2)
            return self._label(name, code.index(name))
        if code.strip().startswith("Disassembly of section "):
            return self._open_section(code.strip()[23:].rstrip(":"))
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
        if start >= len(code.rstrip()):
            return
        word = re.match(r"\s*([.\w]*)", code[start:]).group(1)
        if word.startswith(".") and word != ".insn":
            return self._directive(word, code, start)
        if self.current == "ignored":
            return
        if re.match(r"\s*[A-Za-z_]\w*\s*=(?!=)", code[start:]) and not re.match(r"\s*[rRwW]\d+\s*=", code[start:]):
            return self._equ(Statement(code, self.symbols, start), "=")
        if type(self.current) is Data:
            raise Unexpected(start, len(code), "an instruction in the data section %s; .section NAME or .text "
                             "comes first" % self.current.name)
        if self.current is None:
            self._code_section(".text")
        self._append(self._parse(code, start, opcode))

    def _parse(self, code, start, opcode):
        if opcode == LDDW and re.match(r"\s*r\d+ = (0x)?[0-9a-f]+\s*$", code[start:]):
            code = code.rstrip() + " ll"
        made = Statement(code, self.symbols, start).instruction()
        if not self.symbols and opcode != LDDW:
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
        self._define(name, column)
        if type(current) is Section:
            current.labels[name] = len(current.instructions)
        else:
            current.symbols[name] = len(current.content)

    def _define(self, name, column):
        if name in self.places:
            before = self.places[name]
            raise self._error(column, column + len(name), "%s is already defined at %s:%d" % (
                name, before[0], before[1]))
        self.places[name] = self.line

    # directives

    def _code_section(self, name):
        self.current = self.result.sections.setdefault(name, Section(name))

    def _open_section(self, name):
        if _FOREIGN.match(name):
            self.current = "ignored"
        elif _DATA_NAME.match(name):
            self.current = self.result.data.setdefault(name, Data(name))
        elif name in (".maps", "maps"):
            raise AsmError("maps are declared with .map NAME TYPE key=N value=N max_entries=N")
        else:
            self._code_section(name)

    def _directive(self, word, code, start):
        rest = start + code[start:].index(word) + len(word)
        if _IGNORED.match(word):
            return
        if word in (".text", ".data", ".rodata", ".bss"):
            return self._open_section(word)
        if word == ".section":
            found = re.match(r'\s*("[^"]+"|[^\s,]+)', code[rest:])
            if not found:
                raise Unexpected(rest, len(code), "expected the name of a section")
            return self._open_section(found.group(1).strip('"'))
        if self.current == "ignored":
            return
        if word in (".string", ".asciz", ".ascii"):
            return self._string(Statement(code, self.symbols, rest), word != ".ascii")
        if word in _SIZES:
            return self._numbers(Statement(code, self.symbols, rest), _SIZES[word])
        handler = _DIRECTIVES.get(word)
        if handler is None:
            from difflib import get_close_matches
            near = get_close_matches(word, [*_DIRECTIVES, *_SIZES, ".section", ".string", ".text", ".data",
                                            ".rodata", ".bss", ".insn"], 2)
            raise Unexpected(rest - len(word), rest, "no directive %s%s" % (
                word, near and "; did you mean %s?" % " or ".join(near) or ""))
        handler(self, Statement(code, self.symbols, rest))

    def _name(self, s, what):
        if s.kind() != "name":
            s.fail("expected the name of %s" % what)
        return s.next()

    def _map(self, s):
        column = s.tokens[s.at][2]
        name = self._name(s, "a map")
        kind = self._name(s, "a map type (hash, array, percpu_array, ringbuf, ...)")
        options = {"key": 0, "value": 0, "max_entries": 0, "flags": 0}
        while s.kind() != "end":
            option = self._name(s, "an option (key=, value=, max_entries=, flags=, ...)")
            if option not in options and option not in ("pinning", "numa_node", "map_extra", "inner"):
                s.fail("expected key, value, max_entries, flags, pinning, numa_node, map_extra or inner", 1)
            s.expect("=")
            options[option] = s.next() if option == "inner" else s.number(0, (1 << 64) - 1, option)
            s.take(",")
        self._define(name, column)
        self.result.maps[name] = MapDefinition(name, kind.lower(), options.pop("key"), options.pop("value"),
                                               options.pop("max_entries"), options.pop("flags"), options)

    def _set_license(self, s):
        if s.kind() == "string":
            self.result.license = unescape(s.next()).decode("utf-8", "replace")
        else:
            self.result.license = self._name(s, "a license")
        s.end()

    def _license(self):
        data = self.result.data.pop("license", None)
        if data is not None:
            self.result.license = bytes(data.content).rstrip(b"\0").decode("utf-8", "replace")

    def _equ(self, s, separator=","):
        column = s.tokens[s.at][2]
        name = self._name(s, "a constant")
        s.expect(separator)
        value = s.number()
        s.end()
        if self.symbols.get(name) != value:
            self._define(name, column)
            self.symbols[name] = value
            self.known.clear()

    def _include(self, s):
        if s.kind() != "string":
            s.fail('expected the "name" of a file')
        start = s.tokens[s.at][2]
        name = unescape(s.next()).decode("utf-8", "replace")
        s.end()
        path = os.path.join(os.path.dirname(self.files[-1]), name)
        real = os.path.realpath(path)
        if any(os.path.realpath(f) == real for f in self.files):
            raise self._error(start, start + len(name) + 2, "%s includes itself: %s" % (
                name, " -> ".join([*self.files, path])))
        try:
            text = _read(path)
        except AsmError as error:
            raise self._error(start, start + len(name) + 2, str(error)) from None
        line = self.line
        self._file(path, text)
        self.line = line

    def _data(self, s):
        if type(self.current) is not Data:
            raise s.fail("data belongs in .data, .rodata or .bss; this is %s" % (
                self.current.name if self.current else "no section yet"))
        return self.current

    def _string(self, s, terminated):
        data = self._data(s)
        while True:
            if s.kind() != "string":
                s.fail('expected a "string"')
            data.content += unescape(s.next()) + (b"\0" if terminated else b"")
            if not s.take(","):
                return s.end()

    def _numbers(self, s, size):
        data = self._data(s)
        import sys
        while True:
            value = s.number(-1 << 8 * size - 1, (1 << 8 * size) - 1)
            data.content += (value & (1 << 8 * size) - 1).to_bytes(size, sys.byteorder)
            if not s.take(","):
                return s.end()

    def _zero(self, s):
        data = self._data(s)
        data.content += bytes(s.number(0, 1 << 24, "size"))
        s.end()

    def _align(self, s):
        size = s.number(1, 4096, "alignment")
        s.end()
        if size & size - 1:
            s.fail("expected a power of two", 1)
        if type(self.current) is Data:
            self.current.align = max(self.current.align, size)
            self.current.content += bytes(-len(self.current.content) % size)

    # references

    def _resolve(self):
        sections = self.result.sections
        for section in sections.values():
            section.entries = {name for name, index in section.labels.items() if index == 0}
        for name in self.result.globals:
            for section in sections.values():
                if name in section.labels:
                    section.entries.add(name)
        for section in sections.values():
            slots = slot_numbers(section.instructions)
            starts = set(slots[:-1]) if self.strict else ()
            for index, instruction in enumerate(section.instructions):
                ref = instruction.ref
                cls = instruction.code & 7
                if ref is not None:
                    resolved = self._reference(section, index, instruction, slots)
                    if resolved is not instruction:
                        section.instructions[index] = resolved
                elif starts and (cls == 5 or cls == 6):
                    self._check_jump(section, index, instruction, slots, starts)

    def _fail(self, section, index, reason, name=None):
        self.line = section.lines[index]
        text = self.line[2]
        start = text.rfind(name) if name and name in text else len(text) - len(text.lstrip())
        end = start + len(name) if name and name in text else len(text)
        raise self._error(start, end, reason)

    def _check_jump(self, section, index, instruction, slots, starts):
        code = instruction.code
        if code == CALL and instruction.src == BPF_PSEUDO_CALL or code == JA32:
            off = instruction.imm
        elif code & 0xF0 in (0x80, 0x90):
            return
        else:
            off = instruction.off
        target = slots[index] + 1 + off
        if target not in starts:
            reason = "outside the section's %d slots" % slots[-1] if not 0 <= target < slots[-1] else (
                "the second half of a 64-bit constant")
            self._fail(section, index, "this goes to slot %d, which is %s" % (target, reason))

    def _reference(self, section, index, instruction, slots):
        ref = instruction.ref
        if isinstance(ref, Label):
            return self._jump(section, index, instruction, slots)
        if isinstance(ref, CallRef):
            return self._call(section, index, instruction, slots)
        if isinstance(ref, (SymbolRef, FuncRef)):
            return self._symbol(section, index, instruction, slots)
        if isinstance(ref, MapRef) and self.strict and ref.name not in self.result.maps and (
                ref.name not in self.result.data) and self.result.maps:
            self._undefined(section, index, ref.name, "map", self.result.maps)
        return instruction

    def _undefined(self, section, index, name, what, known):
        from difflib import get_close_matches
        near = get_close_matches(name, list(known), 3)
        self._fail(section, index, "no %s %s%s" % (what, name, near and "; did you mean %s?" % " or ".join(near) or ""),
                   name)

    def _jump(self, section, index, instruction, slots):
        name = instruction.ref.name
        target = section.labels.get(name)
        if target is None and name[:-1].isdigit():
            places = section.numbered.get(int(name[:-1]), ())
            if name[-1] == "b":
                target = max((p for p in places if p <= index), default=None)
            else:
                target = min((p for p in places if p > index), default=None)
        if target is None:
            self._undefined(section, index, name, "label", section.labels)
        if target >= len(section.instructions) and self.strict:
            self._fail(section, index, "the label %s stands at the end of the section, where nothing is" % name, name)
        off = slots[target] - slots[index] - 1
        if instruction.code == JA32:
            return instruction._replace(imm=off, ref=None)
        if not -0x8000 <= off < 0x8000:
            self._fail(section, index, "%s is %d slots away; a jump reaches 32767 (gotol reaches further)" % (name, off),
                       name)
        return instruction._replace(off=off, ref=None)

    def _call(self, section, index, instruction, slots):
        name, result = instruction.ref.name, self.result
        if name in section.labels:
            section.entries.add(name)
            return instruction._replace(src=BPF_PSEUDO_CALL, imm=slots[section.labels[name]] - slots[index] - 1, ref=None)
        for other in result.sections.values():
            if name in other.labels:
                other.entries.add(name)
                return instruction._replace(src=BPF_PSEUDO_CALL, ref=FuncRef(name))
        if name in result.kfuncs:
            return instruction._replace(src=BPF_PSEUDO_KFUNC_CALL, ref=KsymRef(name))
        number = NUMBER.get(name)
        if number is None:
            known = {n: 0 for s in result.sections.values() for n in s.labels}
            self._undefined(section, index, name, "function", {**NUMBER, **known, **dict.fromkeys(result.kfuncs)})
        return instruction._replace(imm=number, ref=None)

    def _symbol(self, section, index, instruction, slots):
        result, ref = self.result, instruction.ref
        name, offset = ref.name, ref.offset if isinstance(ref, SymbolRef) else 0
        if not isinstance(ref, FuncRef):
            for data in result.data.values():
                if name in data.symbols or name == data.name:
                    return instruction._replace(src=BPF_PSEUDO_MAP_VALUE, ref=MapRef(
                        data.name, data.symbols.get(name, 0) + offset))
            if name in result.maps:
                src = BPF_PSEUDO_MAP_VALUE if offset else BPF_PSEUDO_MAP_FD
                return instruction._replace(src=src, ref=MapRef(name, offset or None))
            if name in result.ksyms:
                return instruction._replace(src=BPF_PSEUDO_BTF_ID, ref=KsymRef(name))
        if name in section.labels:
            section.entries.add(name)
            return _relative(instruction._replace(src=BPF_PSEUDO_FUNC), slots[section.labels[name]] - slots[index] - 1)
        for other in result.sections.values():
            if name in other.labels:
                other.entries.add(name)
                return instruction._replace(src=BPF_PSEUDO_FUNC, ref=FuncRef(name))
        known = [*result.maps, *result.ksyms, *(n for d in result.data.values() for n in d.symbols),
                 *(n for s in result.sections.values() for n in s.labels)]
        self._undefined(section, index, name, "symbol", known)


def _declaration(attribute, what):
    def handler(assembler, s):
        while True:
            getattr(assembler.result, attribute).add(assembler._name(s, what))
            if not s.take(","):
                return s.end()
    return handler


_DIRECTIVES = {
    ".map": _Assembler._map, ".license": _Assembler._set_license, ".equ": _Assembler._equ, ".set": _Assembler._equ,
    ".include": _Assembler._include, ".kfunc": _declaration("kfuncs", "a kfunc"),
    ".ksym": _declaration("ksyms", "a kernel symbol"), ".globl": _declaration("globals", "a function"),
    ".global": _declaration("globals", "a function"), ".zero": _Assembler._zero, ".skip": _Assembler._zero,
    ".space": _Assembler._zero, ".align": _Assembler._align,
}
