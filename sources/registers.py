"""Points whose context is struct pt_regs: what kprobes, uprobes, USDT and perf events share."""

from . import abi, memory
from .base import Point, SourceError, nearest


class RegistersPoint(Point):
    """The context starts with pt_regs. `at_entry` says whether it is the state at a function's
    first instruction, where the calling convention tells what the arguments are; `inside` that it is
    another instruction, where the argument registers can still be read, whatever they hold."""

    at_entry = False
    at_return = False
    inside = False

    @property
    def argument_count(self):
        count = len(abi.host().arguments)
        return count + 16 if self.at_entry else count if self.inside else 0

    @property
    def has_retval(self):
        return self.at_return

    def prototype(self):
        """The function's elf.types.Function where debug information describes it, else None."""
        return None

    def register(self, f, ctx, name):
        registers = abi.host().registers
        if name == "pc":
            name = abi.host().pc
        if name not in registers:
            raise SourceError("'%s' is not a valid register on this architecture (%s)"
                              % (name, abi.host().machine), nearest(name, registers))
        return f.load(ctx, registers[name], 8)

    def argument(self, f, ctx, n):
        if n >= self.argument_count:
            return super().argument(f, ctx, n)
        arguments = abi.host().arguments
        if n < len(arguments):
            return self.register(f, ctx, arguments[n])
        return self.stack_argument(f, ctx, n - len(arguments))

    def stack_argument(self, f, ctx, n):
        if not self.at_entry:
            return super().stack_argument(f, ctx, n)
        return self._stack(f, ctx, n, 8, False)

    def _stack(self, f, ctx, n, size, signed):
        host = abi.host()
        sp = self.register(f, ctx, host.sp)
        return memory.read(f, sp, size, signed, self.user_space, host.stack_offset + 8 * n)

    def retval(self, f, ctx):
        if not self.at_return:
            return super().retval(f, ctx)
        return self.register(f, ctx, abi.host().result)

    def retval_type(self):
        """Integers and pointers only: what one register holds."""
        from rawbpf.elf import types

        function = self.prototype() if self.at_return else None
        if function is None:
            return None
        bare = types.strip(function.returns)
        whole = isinstance(bare, (types.Int, types.Enum)) and bare.size in (1, 2, 4, 8)
        return function.returns if whole or isinstance(bare, types.Pointer) else None

    def pc(self, f, ctx):
        return self.register(f, ctx, abi.host().pc)

    # -- args by debug information

    def arguments(self):
        from rawbpf.elf import types

        function = self.prototype() if self.at_entry else None
        if function is None:
            return None
        fields = [types.Field(p.name or "arg%d" % n, p.type, 8 * n)
                  for n, p in enumerate(function.parameters)]
        return types.Struct("struct", "args_of_%s" % self.func, 8 * len(fields), fields)

    def field(self, f, ctx, field):
        from . import convention

        place = convention.places(self.prototype())[field.offset // 8]
        if place.reason:
            raise SourceError("%s of %s cannot be read: %s" % (field.name, self.name, place.reason))
        if place.register:
            value = self.register(f, ctx, place.register)
            return value if place.size == 8 else f.extend(value, place.size, place.signed)
        return self._stack(f, ctx, place.stack, place.size, place.signed)

    def field_address(self, f, ctx, field):
        from . import convention

        reason = convention.places(self.prototype())[field.offset // 8].reason
        raise SourceError("%s of %s cannot be read: %s" % (field.name, self.name, reason or "it is in a register, not in memory"))

    def args_key(self):
        """What must be equal for one program to read the `args` of several points."""
        function = self.prototype() if self.at_entry else None
        if function is None:
            return None
        return tuple((p.name, str(p.type)) for p in function.parameters)
