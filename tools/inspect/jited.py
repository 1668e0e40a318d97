"""`prog dump jited`: the machine code of a program, decoded by rawbpf.asm.machinecode.

Laid out like bpftool's. Beyond it: what a call, a jump out of the function and the address of a map mean
(`<bpf_get_prandom_u32>`, `<map[id:7]>`; "symbol" in JSON).
"""

from rawbpf.asm.instruction import decode as decode_bpf
from rawbpf.asm.machinecode import decode
from rawbpf.loader.errors import KernelError

from . import objects
from .output import legible
from .prog import dumped_to_file, of_several, record, text
from .words import fail
from .xlated import Names

# Where the kernel's JITs keep r0 to r10: the destinations of 64-bit constants.
_REGISTERS = {
    "x86_64": ("rax", "rdi", "rsi", "rdx", "rcx", "r8", "rbx", "r13", "r14", "r15", "rbp"),
    "aarch64": ("x7", "x0", "x1", "x2", "x3", "x4", "x19", "x20", "x21", "x22", "x25"),
}
_M64 = (1 << 64) - 1


def _of_the_kernel(address):
    """With five levels of page tables (x86-64's LA57) its half begins at 0xff00..., on others later."""
    return address >> 56 == 0xff


class _Constants:
    """What the addresses in machine code are: the program's constants come there in the order of its
    instructions, in the registers that the JIT has for theirs."""

    def __init__(self, program, machine):
        self.waiting = []
        registers = _REGISTERS[machine]
        try:
            code = decode_bpf(program.xlated())
        except KernelError:
            return      # they may be blinded (net.core.bpf_jit_harden)
        for instruction in code:
            if instruction.code == 0x18 and instruction.dst < len(registers):
                low, high = instruction.imm & 0xffffffff, instruction.imm >> 32 & 0xffffffff
                text = {1: "map[id:%d]" % low, 2: "map[id:%d][0]+%d" % (low, high)}.get(instruction.src)
                self.waiting.append((registers[instruction.dst], text, instruction.imm & _M64))
        self.waiting.reverse()

    def meaning(self, register, value):
        """"map[id:7]", or None, of a constant that a register gets."""
        if not self.waiting:
            return None
        wanted, text, imm = self.waiting[-1]
        if wanted != register or (value != imm if text is None else not _of_the_kernel(value)):
            return None
        self.waiting.pop()
        return text


class _Function:
    """One function: its address (0: hidden), name, declaration and instructions."""

    def __init__(self, address, code, names, lines, constants, machine):
        self.address, self.code, self.machine = address, code, machine
        self.names, self.lines, self.constants = names, lines, constants
        found = names.symbols.resolve(address) if address else None
        self.name = found.name if found and not found.offset else "0x%016x" % address if address else "unknown"

    def instructions(self):
        """(MachineInstruction, operands with kernel addresses, symbol or None, source line or None)."""
        partial = {}
        for instruction in decode(self.code, self.machine):
            operands, symbol = instruction.operands, None
            if instruction.target is not None and self.address:
                there = self.address + instruction.target & _M64
                operands = tuple("0x%x" % there if operand == "0x%x" % (instruction.target & _M64) else operand
                                 for operand in operands)
                if not 0 <= instruction.target < len(self.code):
                    symbol = self.symbol(there)
            loaded = self._loaded(instruction, partial)
            if loaded:
                symbol = self.constants.meaning(*loaded) or self.symbol(loaded[1], exact=True)
            yield instruction, operands, symbol, self.lines.pop(self.address + instruction.offset, None)

    def _loaded(self, instruction, partial):
        """(register, value) that a constant is complete in after this instruction, or None."""
        name, operands = instruction.mnemonic, instruction.operands
        if self.machine == "x86_64":
            if name in ("mov", "movabs") and len(operands) == 2 and operands[0][:3] == "$0x" and operands[1][:1] == "%":
                return operands[1][1:], int(operands[0][1:], 16)
            return None
        # movz or movn, then movk for each further 16 bits
        if name in ("mov", "movk") and len(operands) >= 2 and operands[0][:1] == "x" and operands[1][:3] in ("#0x", "#-0"):
            value = int(operands[1][1:], 16) & _M64
            if name == "movk":
                shift = int(operands[2].split("#")[1]) if len(operands) > 2 else 0
                value = partial.get(operands[0], 0) & ~(0xffff << shift) | value << shift
            partial[operands[0]] = value
            return operands[0], value
        return None

    def symbol(self, address, exact=False):
        if not _of_the_kernel(address):
            return None
        found = self.names.symbols.resolve(address)
        if found is None or exact and found.offset:
            return None
        return found.name + ("+0x%x" % found.offset if found.offset else "")


def _functions(program, machine):
    code, names = program.jited(), Names(program)
    parts = program.jited_functions() or [(0, len(code))]
    lines = {}
    for address, record_of_line in zip(program.jited_line_info(), program.line_info()):
        lines.setdefault(address, names.line(record_of_line[0]))
    protos = sorted(names.functions)
    constants, at = _Constants(program, machine), 0
    for number, (address, size) in enumerate(parts):
        function = _Function(address, code[at:at + size], names, lines, constants, machine)
        function.proto = names.proto(protos[number]) if number < len(protos) else ""
        yield function
        at += size


def dump_programs(session, words, programs):
    if dumped_to_file(session, words, programs, lambda program: program.jited()):
        return None
    flags = set()
    while words:
        flags.add(words.need("opcodes", "linum"))
    machine = objects.machine()
    if machine not in _REGISTERS:
        fail("machine code of %s is not supported: 'file FILE' writes it, objdump -D -b binary reads that" % machine)
    several = len(programs) > 1
    if session.json is not None:
        session.json.value(of_several(programs, lambda program: _records(program, flags, machine)) if several else _records(programs[0], flags, machine))
        return None
    for number, program in enumerate(programs):
        if several:
            session.write(text(record(program)).split("\n")[0] + "\n")
        for function in _functions(program, machine):
            _plain(session.write, function, flags)
        if several and number + 1 < len(programs):
            session.write("\n")
    return None


def _plain(write, function, flags):
    if function.proto:
        write(function.proto + ":\n")
    write(function.name + ":\n")
    for instruction, operands, symbol, line in function.instructions():
        if line and line[1]:
            write("; %s%s\n" % (legible(line[1]), " [file:%s line_num:%d line_col:%d]" % (legible(line[0]), line[2], line[3])
                                if "linum" in flags else ""))
        shown = instruction._replace(operands=operands).text
        if not instruction.known:
            symbol = "not decoded"
        write("%4x:\t%s%s\n" % (instruction.offset, shown, "  <%s>" % symbol if symbol else ""))
        if "opcodes" in flags:
            raw = function.code[instruction.offset:instruction.offset + instruction.size]
            write("\t%s\n" % raw.hex(" "))
    write("\n")


def _records(program, flags, machine):
    for function in _functions(program, machine):
        fields = {"proto": function.proto} if function.proto else {}
        fields.update(name=function.name, insns=_instructions(function, flags))
        yield fields


def _instructions(function, flags):
    for instruction, operands, symbol, line in function.instructions():
        fields = {}
        if line:
            fields["src"] = line[1]
            if "linum" in flags:
                fields["file"], fields["line_num"], fields["line_col"] = line[0], line[2], line[3]
        fields.update(pc="0x%x" % instruction.offset, operation=instruction.mnemonic, operands=list(operands) or [None])
        if symbol:
            fields["symbol"] = symbol
        if not instruction.known:
            fields["known"] = False
        if "opcodes" in flags:
            raw = function.code[instruction.offset:instruction.offset + instruction.size]
            fields["opcodes"] = ["0x%02x" % byte for byte in raw]
        yield fields
