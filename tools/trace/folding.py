"""What of a script is known at compile time: a mixin of resolve.Resolver."""
from . import ast, builtins, types

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
LOGICAL = ("&&", "||")


class Folding:
    """Constants of expressions."""

    def constant(self, node):
        """The int, bool or str that an expression is, or None."""
        if isinstance(node, (ast.Integer, ast.String, ast.Bool)):
            return node.value
        if isinstance(node, ast.Positional):
            return self.positional(node.index)
        if isinstance(node, ast.PositionalCount):
            return len(self.options.positional)
        if isinstance(node, (ast.Identifier, ast.Call)):
            entry = builtins.lookup(node.name)
            if entry is not None:
                return entry.constant(self, node)
            if isinstance(node, ast.Identifier):
                found = self.script.constant(node.name)
                return found and found[0]
            return None
        if isinstance(node, ast.Unary):
            value = self.constant(node.operand)
            if isinstance(value, str) or value is None or node.op == "*":
                return None
            if node.op == "!":
                return not value
            value = int(value)
            return -value if node.op == "-" else ~value & (1 << 64) - 1
        if isinstance(node, ast.Binary):
            return self._fold(node)
        if isinstance(node, ast.Ternary):
            chosen = self.constant(node.condition)
            if chosen is None or isinstance(chosen, str):
                return None
            return self.constant(node.then if chosen and node.then is not None else
                                 node.condition if chosen else node.otherwise)
        if isinstance(node, ast.Comptime):
            return self.constant(node.operand)
        if isinstance(node, (ast.Sizeof, ast.Offsetof)):
            return self.unit.sizes.get(id(node))
        if isinstance(node, ast.FieldAccess) and id(node.operand) in self.unit.infos:
            return self._info(node.operand).get(node.name)
        if isinstance(node, ast.ArrayAccess):
            text, index = self.constant(node.operand), self.constant(node.index)
            if isinstance(text, str) and isinstance(index, int):
                data = text.encode("utf-8", "surrogateescape") + b"\0"
                return (data[index] ^ 128) - 128 if 0 <= index < len(data) else None
            return None
        if isinstance(node, ast.Block) and not node.statements and node.value is not None:
            return self.constant(node.value)
        return None

    def _info(self, node):
        """The fields of a record that is known: typeinfo(), config."""
        info = self.unit.infos.get(id(node))
        return {element.name: element.value.value for element in info.elements} if info is not None else {}

    def _fold(self, node):
        op = node.op
        if isinstance(node.left, ast.Typeinfo) and isinstance(node.right, ast.Typeinfo) and op in ("==", "!="):
            return (self._info(node.left) == self._info(node.right)) == (op == "==")
        left = self.constant(node.left)
        if op in LOGICAL and left is not None and not isinstance(left, str):
            if bool(left) == (op == "||"):
                return op == "||"
        right = self.constant(node.right)
        if left is None or right is None:
            return None
        if isinstance(left, str) or isinstance(right, str):
            return self._fold_text(op, left, right)
        if op in COMPARISONS:
            return _compare(op, left, right)
        if op in LOGICAL:
            return bool(left and right) if op == "&&" else bool(left or right)
        left, right = int(left), int(right)
        if op in ("/", "%") and right == 0 or op in ("<<", ">>") and not 0 <= right < 64:
            self.error(node, "unable to fold literals due to overflow or underflow")
        value = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
                 "/": lambda: types.divide(left, abs(right)) * (1 if right > 0 else -1),
                 "%": lambda: abs(left) % abs(right) * (-1 if left < 0 else 1),
                 "&": lambda: left & right, "|": lambda: left | right, "^": lambda: left ^ right,
                 "<<": lambda: left << right, ">>": lambda: left >> right}[op]()
        if not -1 << 63 <= value < 1 << 64:
            self.error(node, "unable to fold literals due to overflow or underflow")
        return value


    @staticmethod
    def _fold_text(op, left, right):
        """Literal strings: compared, joined, or without their first bytes ("abc" + 1)."""
        data = [side.encode("utf-8", "surrogateescape") if isinstance(side, str) else side for side in (left, right)]
        if all(isinstance(side, bytes) for side in data):
            if op in COMPARISONS:
                return _compare(op, *data)
            return left + right if op == "+" else None
        text, number = data if isinstance(data[0], bytes) else data[::-1]
        if op != "+" or isinstance(number, bool) or number < 0:
            return None
        return text[number:].decode("utf-8", "surrogateescape")


def _compare(op, left, right):
    return {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right,
            ">": left > right, ">=": left >= right}[op]


def loop_by_callback(r, node):
    """Whether a `for` becomes a call of bpf_loop or bpf_for_each_map_elem with its body as a function of its own;
    short ranges with constant bounds are plain loops."""
    if not isinstance(node.iterable, ast.Range):
        return True
    first, end = r.constant(node.iterable.first), r.constant(node.iterable.end)
    return not (isinstance(first, int) and isinstance(end, int) and end - first <= 64)
