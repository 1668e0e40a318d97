"""The code of `for` loops: plain ones, and those by bpf_loop and bpf_for_each_map_elem, whose bodies are functions of
their own. A mixin of lower.Lowering."""
from rawbpf.asm import ir

from . import ast, types
from .folding import loop_by_callback
from .place import Place


class LoopCode:
    """`_do_For`."""

    def _do_For(self, node):
        if isinstance(node.iterable, ast.Range):
            if loop_by_callback(self.r, node):
                self._loop_callback(node)
            else:
                self._for_range(node)
        else:
            self._for_map(node)

    def _for_range(self, node):
        """A loop whose bounds are known: the verifier walks it."""
        f = self.f
        var = self.unit.for_variables[id(node)]
        first, end = self.value(node.iterable.first), self.value(node.iterable.end)
        index = f.variable()
        f.set(index, first)
        test, body, following, done = f.block("for"), f.block("body"), f.block("next"), f.block("endfor")
        f.jump(test)
        f.position(test)
        f.branch("s<", index, end, body, done)
        f.position(body)
        self.scopes.append({node.variable.name: var})
        if var.captured:
            self._store_variable(var, index)
        else:
            var.place = f.variable()
            f.set(var.place, index)
        self.loops.append((done, following))
        self.block(node.body)
        self.loops.pop()
        self.scopes.pop()
        if not f.terminated:
            f.jump(following)
        f.position(following)
        f.set(index, f.alu("+", index, 1))
        f.jump(test)
        f.position(done)

    def _callback(self, node, params, frame, bind):
        """A Function with the body of a loop; bind(function) gives the loop variable its value."""
        outer = self.f, self.ctx, self.frame, self.inner_scratch, self.loops, self.exit, self.leave
        self.callbacks += 1
        f = self.f = ir.Function("%s_loop%d" % (outer[0].name, self.callbacks), params)
        f.span = node.span
        self.depth += 1
        for each in (*self.unit.variables.values(), *self.unit.for_variables.values()):
            if each.depth >= self.depth and not isinstance(each.place, int):
                each.place = None       # of the same body in another function: unroll makes several
        self.frame = f.params[frame]
        self.ctx = f.load(self.frame, 0, 8)
        self.inner_scratch = f.variable()
        f.set(self.inner_scratch, f.load(self.frame, 8, 8))
        more, stop, leave = f.block("more"), f.block("stop"), f.block("return")
        self.exit = self.leave = leave
        self.loops = [(stop, more)]
        var = self.unit.for_variables[id(node)]
        self.scopes.append({node.variable.name: var})
        bind(f, var)
        self.block(node.body)
        self.scopes.pop()
        if not f.terminated:
            f.jump(more)
        f.position(more)
        f.ret(0)
        f.position(stop)
        f.ret(1)
        f.position(leave)
        f.store(self.frame, 16, 1, 8)
        f.ret(1)
        self.f, self.ctx, self.frame, self.inner_scratch, self.loops, self.exit, self.leave = outer
        self.depth -= 1
        return f

    def _frame_address(self):
        return self.f.address(self.frame) if isinstance(self.frame, ir.Slot) else self.frame

    def _after_loop(self):
        """Leave the program when the loop's body said `return`."""
        f = self.f
        following = f.block("endfor")
        f.branch("!=", f.load(self.frame, 16, 8), 0, self.leave, following)
        f.position(following)

    def _loop_callback(self, node):
        """`for ($i : a..b)` by bpf_loop."""
        f = self.f
        if not self.script.machine.has_helper("bpf_loop", self.point.program_type):
            self.error(node, "A loop whose bounds are only known at run time needs Linux 5.17 (bpf_loop)",
                       ["give the range constant bounds of at most 64 turns"])
        first = f.copy(self.value(node.iterable.first))
        end = self.value(node.iterable.end)
        some, done = f.block("loop"), f.block("noloop")
        f.branch("s<", first, end, some, done)
        f.position(some)
        base = Place(self.frame, self.unit.for_variables[id(node)].start, types.INT64)
        f.store(base.base, base.off, first, 8)

        def bind(g, var):
            index = g.alu("+", g.load(self.frame, var.start, 8), g.params[0])
            if var.captured:
                self._store_variable(var, index)
            else:
                var.place = index

        body = self._callback(node, 2, 1, bind)
        f.call("bpf_loop", f.alu("-", end, first), f.func(body), self._frame_address(), 0)
        self._after_loop()
        f.jump(done)
        f.position(done)

    def _for_map(self, node):
        """`for ($kv : @x)` by bpf_for_each_map_elem."""
        f = self.f
        if not self.script.machine.has_helper("bpf_for_each_map_elem", self.point.program_type):
            self.error(node, "A loop over a map needs Linux 5.13 (bpf_for_each_map_elem)")
        storage = self.script.storage[node.iterable.name]

        def bind(g, var):
            if not var.captured:
                var.place = self.temporary(var.type)
            row = self._memory(var)
            key, value = var.type.elements
            self.copy(Place(g.params[1], 0, key), row.at(var.type.offsets[0], key))
            target = row.at(var.type.offsets[1], value)
            kind = storage.info.value_type
            if isinstance(kind, types.Aggregate):
                operand = self.aggregate_of(node, storage, g.params[1], g.params[2])
                g.store(target.base, target.off, operand, 8)
            else:
                self.copy(Place(g.params[2], 0, kind), target)

        body = self._callback(node, 4, 3, bind)
        f.call("bpf_for_each_map_elem", f.map(storage.kernel_map.name), f.func(body), self._frame_address(), 0)
        self._after_loop()
