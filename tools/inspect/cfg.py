"""`prog dump xlated visual`: the control flow of a program as a DOT graph, laid out as bpftool's.

Blocks of a function are numbered by place, 0 and 1 being its entry and exit. An `exit` leads to the exit
(bpftool draws it to the next block).
"""

from .xlated import Names, instruction_text, listing

_EXIT, _CALL, _JA, _JA32, _JAX = 0x95, 0x85, 0x05, 0x06, 0x0d
_EDGE = '\tfn_%d_bb_%d:s -> fn_%d_bb_%d:n [style="solid,bold", color=black, weight=10, constraint=true];\n'
_ESCAPED = str.maketrans({letter: "\\" + letter for letter in '<>{}|&"\\'})


def jump_target(slot, instruction):
    """Slot that a jump goes to, or None when it is none."""
    code = instruction.code
    if code & 7 not in (5, 6) or code in (_EXIT, _CALL, 0x8d, _JAX):
        return None
    return slot + 1 + (instruction.imm if code == _JA32 else instruction.off)


def functions(items):
    """The listing cut into functions: at the targets of calls and of references to functions."""
    starts = {0}
    for slot, _, instruction in items:
        if instruction.code == _CALL and instruction.src == 1:
            starts.add(slot + 1 + instruction.off)
        elif instruction.code == 0x18 and instruction.src == 4:
            starts.add(slot + 1 + instruction.imm)
    parts = []
    for item in items:
        if item[0] in starts or not parts:
            parts.append([])
        parts[-1].append(item)
    return parts


def blocks(part):
    """[(items, [index of the blocks it goes to, or None for the exit])] of a function."""
    first, last = part[0][0], part[-1][0]
    leaders = {first}
    for index, (slot, _, instruction) in enumerate(part):
        target = jump_target(slot, instruction)
        if target is not None and first <= target <= last:
            leaders.add(target)
        if (target is not None or instruction.code in (_EXIT, _JAX)) and index + 1 < len(part):
            leaders.add(part[index + 1][0])
    found = []
    for item in part:
        if item[0] in leaders or not found:
            found.append([])
        found[-1].append(item)
    place = {block[0][0]: index for index, block in enumerate(found)}
    result = []
    for index, block in enumerate(found):
        slot, _, instruction = block[-1]
        following = index + 1 if index + 1 < len(found) else None
        target = jump_target(slot, instruction)
        if instruction.code == _EXIT:
            edges = [None]
        elif instruction.code == _JAX:
            edges = []              # wherever the table says
        elif target is None:
            edges = [following]
        elif instruction.code in (_JA, _JA32):
            edges = [place.get(target)]
        else:
            edges = [following, place.get(target)]
        result.append((block, edges))
    return result


def dot(program, flags=()):
    names = Names(program)
    items = list(listing(program, names))
    out = ['digraph "DOT graph for eBPF program" {\n']
    for number, part in enumerate(functions(items)):
        out.append('subgraph "cluster_%d" {\n\tstyle="dashed";\n\tcolor="black";\n\tlabel="func_%d ()";\n'
                   % (number, number))
        out.append('\tfn_%d_bb_0 [shape=Mdiamond,style=filled,label="ENTRY"];\n\n' % number)
        found = blocks(part)
        for index, (block, _) in enumerate(found):
            out.append('\tfn_%d_bb_%d [shape=record,style=filled,label="{\\\n%s}"];\n\n' % (
                number, index + 2, "| ".join(_label(item, part[0][0], names, flags) for item in block)))
        out.append('\tfn_%d_bb_1 [shape=Mdiamond,style=filled,label="EXIT"];\n\n' % number)
        out.append(_EDGE % (number, 0, number, 2))
        for index, (_, edges) in enumerate(found):
            for target in edges:
                out.append(_EDGE % (number, index + 2, number, 1 if target is None else target + 2))
        out.append('\tfn_%d_bb_0:s -> fn_%d_bb_1:n [style="invis", constraint=true];\n}\n' % (number, number))
    return "".join(out) + "}\n"


def _label(item, start, names, flags):
    """start: slot of the function, from which bpftool counts."""
    slot, raw, instruction = item
    text = ""
    line = names.line(slot)
    if line and line[1]:
        text += ("; %s" % line[1]).translate(_ESCAPED)
        if "linum" in flags:
            text += " [file:%s line_num:%d line_col:%d]" % (line[0].translate(_ESCAPED), line[2], line[3])
        text += "\\l\\\n| "
    text += "%d: %s\\l\\\n" % (slot - start, instruction_text(instruction, names).translate(_ESCAPED))
    if "opcodes" in flags:
        text += "\\ \\ \\ \\ %s\\l\\\n" % raw.hex(" ")
    return text
