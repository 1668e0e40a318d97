"""usdt/PATH:PROVIDER:NAME sections: probes whose arguments programs read by tables, as libbpf's usdt.bpf.h does.

That header defines two maps. `__bpf_usdt_specs` says for each number how each argument is read (struct
__bpf_usdt_spec, whose layout is taken from the object's own BTF); the program gets the number as its attach cookie
or, before 5.15, by its address from `__bpf_usdt_ip_to_spec_id`. Each different argument string gets a number.
"""

import errno

from rawbpf.elf.pt_regs import PT_REGS

from . import kernel, link, perf
from .errors import KernelError, ObjectError
from .introduced import since
from .object_maps import value_codec

SPECS, ADDRESSES = "__bpf_usdt_specs", "__bpf_usdt_ip_to_spec_id"
_CONST, _REG, _REG_DEREF, _SIB = range(4)       # enum __bpf_usdt_arg_type


def attach(owner, program, target, pid=0, cookie=0):
    """The LinkGroup of an ObjectProgram on all places of a probe. pid: of one process only; cookie: what the
    program's bpf_usdt_cookie() gives."""
    from rawbpf.elf import stapsdt

    from . import features
    from .autoattach import Binary
    path, provider, name = _parts(target)
    binary = Binary(path)
    image, base = binary.image, binary.base
    notes = [note for note in stapsdt.notes(image) if (note.provider, note.name) == (provider, name)]
    if not notes:
        raise ObjectError("%s has no probe %s:%s" % (image.path, provider, name))
    for note in notes:
        if note.location_offset is None:
            raise ObjectError("%s: the probe %s:%s is not in the file" % (image.path, provider, name))
    numbers = [_number(owner, image, note, cookie) for note in notes]
    if features.has_link("uprobe_multi"):
        return link.LinkGroup([link.attach_uprobe_multi(
            program.program, binary.path, [base + note.location_offset for note in notes], cookies=numbers, pid=pid,
            ref_ctr_offsets=[base + note.semaphore_offset if note.semaphore_offset else 0 for note in notes])])
    cookies = not since((5, 15), "")
    if not cookies:
        if image.type != "EXEC":
            raise KernelError("attach to usdt:%s" % target, errno.EINVAL,
                              since((5, 15), "a USDT probe in a file that is loaded anywhere (an attach cookie)"))
        for note, number in zip(notes, numbers):
            _map(owner, ADDRESSES).update(note.location.to_bytes(8, "little"), number.to_bytes(4, "little"))
    group = link.LinkGroup()
    try:
        for note, number in zip(notes, numbers):
            semaphore = base + note.semaphore_offset if note.semaphore_offset else 0
            event = perf.PerfEvent.open(perf.uprobe(binary.path, base + note.location_offset,
                                                    ref_ctr_offset=semaphore), pid=pid or -1)
            try:
                group.add(link.attach_perf_event(program.program, event, number if cookies else None))
            except BaseException:
                event.close()
                raise
    except BaseException:
        group.close()
        raise
    return group


def _parts(target):
    path, _, rest = target.partition(":")
    provider, _, name = rest.partition(":")
    if not path or not provider or not name or ":" in name:
        raise ObjectError("usdt/%s: a probe is PATH:PROVIDER:NAME" % target)
    return path, provider, name


def _map(owner, name):
    found = owner.maps.get(name)
    if found is None or found.map is None:
        raise ObjectError("a usdt program needs the map %s of libbpf's usdt.bpf.h, which the object does not have" %
                          name)
    return found.map


def _number(owner, image, note, cookie):
    """The number of a note's argument string, entered into the table."""
    known = owner.__dict__.setdefault("_usdt_numbers", {})
    number = known.get((note.text, cookie))
    if number is not None:
        return number
    specs, number = _map(owner, SPECS), len(known)
    if number >= specs.max_entries:
        raise ObjectError("map %s: holds %d argument strings and there are more (BPF_USDT_MAX_SPEC_CNT)" % (
            SPECS, specs.max_entries))
    codec = value_codec(owner.file.btf.type(owner.maps[SPECS].definition.value_type), "map " + SPECS)
    arguments = [_argument(image, operand, "%s:%s, argument %d (%s)" % (note.provider, note.name, index, operand.text))
                 for index, operand in enumerate(note.arguments)]
    try:
        value = codec.encode({"args": arguments, "usdt_cookie": cookie, "arg_cnt": len(arguments)})
    except ValueError as error:
        raise ObjectError("usdt %s:%s: %s" % (note.provider, note.name, error)) from None
    specs.update(number, value)
    known[note.text, cookie] = number
    return number


def _argument(image, operand, what):
    """struct __bpf_usdt_arg_spec of an operand."""
    def offset(register):
        return PT_REGS[image.machine][register]
    fields = {"arg_signed": operand.signed, "arg_bitshift": 64 - 8 * operand.size}
    if operand.floating or operand.kind in ("vector", "unknown") or operand.relative or operand.register_shift:
        raise ObjectError("usdt %s: %s" % (what, operand.reason or (
            "floating-point and vector registers cannot be read by programs" if operand.floating or
            operand.kind == "vector" else "libbpf's tables cannot say such a place; rawbpf.sources.Usdt reads it")))
    if operand.kind == "constant":
        fields.update(arg_type=_CONST, val_off=operand.value)
    elif operand.kind == "register":
        fields.update(arg_type=_REG, reg_off=offset(operand.register))
    elif not operand.index and operand.register:
        fields.update(arg_type=_REG_DEREF, reg_off=offset(operand.register), val_off=operand.displacement)
    elif operand.register and operand.index_size == 8:
        fields.update(arg_type=_SIB, reg_off=offset(operand.register), val_off=operand.displacement,
                      idx_reg_off=offset(operand.index), scale_bitshift=operand.index_shift)
    else:
        raise ObjectError("usdt %s: libbpf's tables cannot say such a place; rawbpf.sources.Usdt reads it" % what)
    return fields
