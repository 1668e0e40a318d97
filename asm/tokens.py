"""The words of an assembly statement, and what is made of several: numbers, registers, operators.

A `Tokens` is one statement cut into words, with a place among them; `statement.Statement` is its grammar.
Numbers are written as LLVM's assembler takes them: decimal, 0x, 0b, octal with a leading 0, characters, and
expressions of them with C's operators.
"""

import re

from .errors import AsmError

_NESTING = 32                # parentheses and signs within each other
_DIGITS = 200                # of one number
_BITS = 128                  # of what an expression comes to on its way


class Unexpected(Exception):
    """What stands at `start`..`end` of a statement is wrong."""

    def __init__(self, start, end, reason):
        self.start, self.end, self.reason = start, end, reason


# A string or character that is not closed is a word too, so that it is looked for once and named.
_TOKEN = re.compile(r"""
    (?P<space>[ \t]+)
  | (?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)(?![\w.])
  | (?P<name>[A-Za-z_.$][\w.$]*|[0-9]+[bf](?!\w))
  | (?P<char>'(?:\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)|[^\\'])')
  | (?P<string>"(?:\\.|[^"\\])*")
  | (?P<open>["'].*)
  | (?P<op><<=|>>=|\+=|-=|\*=|/=|%=|\|=|&=|\^=|==|!=|<=|>=|<<|>>|[-+*/%|&^<>=~()\[\],:\#@])
""", re.X)

REGISTER = re.compile(r"([rRwW])([0-9]{1,4})$")
_ESCAPES = {"n": 10, "t": 9, "r": 13, "0": 0, "\\": 92, "'": 39, '"': 34, "a": 7, "b": 8, "f": 12, "v": 11}
_PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


def _divide(a, b):
    """As C does: towards 0."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_ARITHMETIC = {"|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
               "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "+": lambda a, b: a + b,
               "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divide, "%": lambda a, b: a - b * _divide(a, b)}


class Tokens:
    """The words of one statement and a place among them. `symbols`: name -> number of .equ. `last`: the last register
    that there is; a listing of the kernel's has 11."""

    last = 10

    def __init__(self, text, symbols=None, start=0):
        self.text, self.symbols = text, symbols or {}
        self.tokens = tokens = []
        position, end = start, len(text)
        match = _TOKEN.match
        while position < end:
            found = match(text, position)
            if found is None:
                raise Unexpected(position, position + 1, "%r belongs to no statement" % text[position])
            kind = found.lastgroup
            if kind == "open":
                raise Unexpected(position, end, "a string that is opened and not closed" if text[position] == '"' else
                                 "one character, or an escape like '\\n', stands between quotes")
            if kind != "space":
                tokens.append((kind, found.group(), position, found.end()))
            position = found.end()
        tokens.append(("end", "", end, end + 1))
        self.at = self.depth = 0

    # reading

    def peek(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][1]

    def kind(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][0]

    def next(self):
        token = self.tokens[self.at]
        if token[0] == "end":
            self.fail("expected more")
        self.at += 1
        return token[1]

    def take(self, text):
        """Consumes the next token if it is `text`."""
        if self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def expect(self, *texts):
        token = self.tokens[self.at]
        if token[1] not in texts or token[0] == "end":
            self.fail("expected %s" % alternatives(texts))
        self.at += 1
        return token[1]

    def fail(self, reason, back=0):
        """Raises Unexpected at the next token, or at one `back` before it."""
        kind, text, start, end = self.tokens[max(self.at - back, 0)]
        raise Unexpected(start, end, reason + (", but the line ends" if kind == "end" else ""))

    def end(self):
        if self.kind() != "end":
            self.fail("expected nothing more on this line")

    # numbers

    def number(self, low=-1 << 63, high=(1 << 64) - 1, what="number"):
        """An expression of numbers, characters and .equ names within bounds."""
        start = self.tokens[self.at][2]
        value = self._expression(0)
        if not low <= value <= high:
            raise Unexpected(start, self.tokens[self.at - 1][3], "%s %d must be %d to %d" % (what, value, low, high))
        return value

    def imm(self):
        """A 32-bit immediate; the upper half of the unsigned range is taken as its bit pattern."""
        value = self.number(-1 << 31, (1 << 32) - 1, "immediate")
        return value - (1 << 32) if value >= 1 << 31 else value

    def _expression(self, level):
        value = self._unary()
        while self.kind() == "op" and _PRECEDENCE.get(self.peek(), -1) >= level:
            operator = self.next()
            right = self._expression(_PRECEDENCE[operator] + 1)
            if operator in ("/", "%") and not right:
                self.fail("division by zero", 1)
            if operator in ("<<", ">>") and not 0 <= right < 64:
                self.fail("a shift by %d" % right, 1)
            value = _ARITHMETIC[operator](value, right)
            if value.bit_length() > _BITS:
                self.fail("the number needs more than %d bits" % _BITS, 1)
        return value

    def _unary(self):
        self.depth += 1
        if self.depth > _NESTING:
            self.fail("more than %d signs and parentheses within each other" % _NESTING)
        value = self._operand()
        self.depth -= 1
        return value

    def _operand(self):
        if self.take("-"):
            return -self._unary()
        if self.take("+"):
            return self._unary()
        if self.take("~"):
            return ~self._unary()
        if self.take("("):
            value = self._expression(0)
            self.expect(")")
            return value
        kind, text = self.kind(), self.peek()
        if kind == "number":
            return self._literal(text)
        if kind == "char":
            self.at += 1
            value = unescape(text)
            if len(value) != 1:
                self.fail("a character of more than one byte", 1)
            return value[0]
        if kind == "name" and text in self.symbols:
            self.at += 1
            return self.symbols[text]
        if kind == "name":
            self.fail("expected a number; no .equ says what %s is" % text)
        self.fail("expected a number")

    def _literal(self, text):
        if len(text) > _DIGITS:
            self.fail("a number of %d digits" % len(text))
        self.at += 1
        if len(text) > 1 and text[0] == "0" and text.isdigit():
            if "8" in text or "9" in text:
                self.fail("a number that starts with 0 is octal", 1)
            return int(text, 8)
        return int(text, 0)

    # registers and operators

    def register(self, wanted="r"):
        """The number of a register; `wanted` lists the letters allowed."""
        found = REGISTER.match(self.peek())
        if not found or found.group(1).lower() not in wanted:
            self.fail("expected %s" % " or ".join("a register %s0 to %s10" % (w, w) for w in wanted))
        number = int(found.group(2))
        if number > self.last:
            self.fail("registers go from %s0 to %s10" % (found.group(1), found.group(1)))
        self.at += 1
        return number

    def at_register(self, wanted="rw"):
        found = REGISTER.match(self.peek()) if self.kind() == "name" else None
        return bool(found) and found.group(1).lower() in wanted and self.peek() not in self.symbols

    def operator(self, texts, prefix=True):
        """One of `texts`, `s/=` and the like possibly written apart."""
        signed = prefix and self.peek() == "s" and "s" + self.peek(1) in texts
        text = ("s" if signed else "") + self.peek(1 if signed else 0)
        if text not in texts:
            self.fail("expected one of %s" % " ".join(texts))
        self.at += 2 if signed else 1
        return text


def unescape(quoted):
    """The bytes of a quoted string or character, quotes included."""
    body, out, i = quoted[1:-1], bytearray(), 0
    escape = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.S)
    while i < len(body):
        end = body.find("\\", i)
        if end != i:
            end = len(body) if end < 0 else end
            out += body[i:end].encode()
            i = end
            continue
        found = escape.match(body, i)
        if found.group(1):
            out.append(int(found.group(1), 16))
        elif found.group(2):
            out.append(int(found.group(2), 8) & 255)
        elif found.group(3) in _ESCAPES:
            out.append(_ESCAPES[found.group(3)])
        else:
            raise AsmError("unknown escape \\%s; there are \\n \\t \\r \\0 \\\\ \\' \\\" \\a \\b \\f \\v \\xHH \\OOO" %
                           found.group(3))
        i = found.end()
    return bytes(out)


def alternatives(texts):
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]
