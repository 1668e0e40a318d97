"""Points whose context is struct pt_regs: what kprobes, uprobes, USDT and perf events share."""

from . import abi, memory
from .base import Point, SourceError, nearest


class RegistersPoint(Point):
    """The context starts with pt_regs. `at_entry` says whether it is the state at a function's
    first instruction, where the calling convention tells what the arguments are."""

    at_entry = False
    at_return = False

    @property
    def argument_count(self):
        return len(abi.host().arguments) + 16 if self.at_entry else 0

    @property
    def has_retval(self):
        return self.at_return

    def register(self, f, ctx, name):
        registers = abi.host().registers
        if name not in registers:
            raise SourceError("'%s' is not a valid register on this architecture (%s)"
                              % (name, abi.host().machine), nearest(name, registers))
        return f.load(ctx, registers[name], 8)

    def argument(self, f, ctx, n):
        if not self.at_entry:
            return super().argument(f, ctx, n)
        arguments = abi.host().arguments
        if n < len(arguments):
            return self.register(f, ctx, arguments[n])
        return self.stack_argument(f, ctx, n - len(arguments))

    def stack_argument(self, f, ctx, n):
        if not self.at_entry:
            return super().stack_argument(f, ctx, n)
        host = abi.host()
        sp = self.register(f, ctx, host.sp)
        return memory.read(f, sp, 8, False, self.user_space, host.stack_offset + 8 * n)

    def retval(self, f, ctx):
        if not self.at_return:
            return super().retval(f, ctx)
        return self.register(f, ctx, abi.host().result)

    def pc(self, f, ctx):
        return self.register(f, ctx, abi.host().pc)
