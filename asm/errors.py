"""The one exception of this room: something cannot be encoded, decoded, assembled or compiled."""


_SHOWN = 240                 # characters of a line in an error


class AsmError(Exception):
    """What is wrong, in one line; raised for every kind of bad input to `rawbpf.asm`."""


class AsmSyntaxError(AsmError):
    """A place in assembly text: `filename`, `line` and `column` (from 1), `reason`, the line's `text`."""

    def __init__(self, filename, line, column, reason, text, width=1):
        self.filename, self.line, self.column, self.reason, self.text = filename, line, column, reason, text
        # Of a long line what is around the place; what a terminal would not show as one character is not sent to it.
        first = max(0, column - 1 - _SHOWN // 2) if len(text) > _SHOWN else 0
        shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in text[first:first + _SHOWN])
        before = shown[:column - 1 - first]
        # Tabs are kept so that the caret stands under its character.
        indent = "".join(c if c == "\t" else " " for c in before)
        super().__init__("%s:%d:%d: %s\n%s\n%s^%s" % (
            filename, line, column, "".join(c if c.isprintable() else "\ufffd" for c in reason), shown, indent,
            "~" * (min(width, len(shown) - len(before)) - 1)))
