"""The one exception of this room: something cannot be encoded, decoded, assembled or compiled."""


class AsmError(Exception):
    """What is wrong, in one line; raised for every kind of bad input to `rawbpf.asm`."""


class AsmSyntaxError(AsmError):
    """A place in assembly text: `filename`, `line` and `column` (from 1), `reason`, the line's `text`."""

    def __init__(self, filename, line, column, reason, text, width=1):
        self.filename, self.line, self.column, self.reason, self.text = filename, line, column, reason, text
        # Tabs are kept so that the caret stands under its character.
        indent = "".join(c if c == "\t" else " " for c in text[:column - 1])
        super().__init__("%s:%d:%d: %s\n%s\n%s^%s" % (filename, line, column, reason, text, indent, "~" * (
            min(width, len(text) - column + 1) - 1)))
