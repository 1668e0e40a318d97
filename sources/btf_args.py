"""Points whose context is an array of 64-bit arguments described by BTF: fentry, fexit, raw
tracepoints."""

from .base import Point, SourceError


def slots(parameters):
    """[(Parameter, first slot)]: structs up to 16 bytes passed by value take two slots."""
    from rawbpf.elf import types

    result, slot = [], 0
    for parameter in parameters:
        result.append((parameter, slot))
        bare = types.strip(parameter.type)
        slot += max(1, (bare.size + 7) // 8) if isinstance(bare, types.Struct) else 1
    return result, slot


class BtfArgsPoint(Point):
    """`parameters` is the list of elf.types Parameters, None where there is no BTF."""

    parameters = None

    def arguments(self):
        from rawbpf.elf import types

        if self.parameters is None:
            raise SourceError("%s: this kernel has no BTF that describes the arguments; argN works"
                              % self.name)
        places, count = slots(self.parameters)
        return types.Struct("struct", self.struct_name, 8 * count,
                            [types.Field(p.name, p.type, 8 * slot) for p, slot in places])

    @property
    def struct_name(self):
        return self.name.replace(":", "__")

    @property
    def argument_count(self):
        if self.parameters is None:
            return 12  # as many as a tracepoint may have
        return slots(self.parameters)[1]

    def argument_type(self, n):
        if self.parameters is None:
            return None
        for parameter, slot in slots(self.parameters)[0]:
            if slot == n:
                return parameter.type
        return None

    def argument(self, f, ctx, n):
        if n >= self.argument_count:
            raise SourceError("%s has %d arguments: there is no arg%d"
                              % (self.name, self.argument_count, n))
        return f.load(ctx, 8 * n, 8)

    def field(self, f, ctx, field):
        from rawbpf.elf import types

        value = f.load(ctx, field.offset, 8)
        bare = types.strip(field.type)
        if isinstance(bare, (types.Int, types.Enum)) and bare.size in (1, 2, 4):
            return f.extend(value, bare.size, bare.signed)  # the upper bytes are the caller's rubbish
        if isinstance(bare, (types.Struct, types.Array, types.Float)):
            raise SourceError("%s: %s is no number" % (self.name, field.name))
        return value

    def field_load(self, f, ctx, field, offset, size, signed=False):
        if offset // 8 != (offset + size - 1) // 8:
            return None
        value = f.load(ctx, field.offset + offset // 8 * 8, 8)
        if offset % 8:
            value = f.alu(">>", value, offset % 8 * 8)
        return value if size == 8 else f.extend(value, size, signed)

    def field_address(self, f, ctx, field):
        return f.alu("+", ctx, field.offset)

    def args_address(self, f, ctx):
        return f.copy(ctx)

    def declarations(self):
        from . import kernel_btf

        return [kernel_btf.declaration(p.type, p.name) for p in self.parameters or ()]
