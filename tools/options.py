"""Command-line options from a table, by getopt_long's rules.

argparse costs 8 ms and 1.5 MB of every start; this is the part of it that the commands need:
short options that cluster (`-lv`), values attached or separate (`-p1`, `--pid=1`, `--pid 1`), long
options shortened to a unique prefix, options after operands, `--` as their end.
"""

from collections import namedtuple


class UsageError(Exception):
    """The command line is wrong; the text says how."""


class UnknownOption(UsageError):
    """There is no such option."""


# dest: key in the result. metavar: name of the value, "" for a flag. many: values collect in a list.
Option = namedtuple("Option", "dest short long metavar help many", defaults=(False,))


class Parsed:
    """`.values` (dest -> True, a string, or a list), `.operands`, `.rest` (what followed `--`)."""

    __slots__ = ("values", "operands", "rest")

    def __init__(self):
        self.values, self.operands, self.rest = {}, [], []

    def get(self, dest, default=None):
        return self.values.get(dest, default)


def _long(table, name):
    exact = [option for option in table if option.long == name]
    found = exact or [option for option in table if option.long and option.long.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError("option '--%s' is ambiguous: %s"
                         % (name, ", ".join("--" + option.long for option in found)))
    from difflib import get_close_matches
    near = get_close_matches(name, [option.long for option in table if option.long], 1)
    raise UnknownOption("unknown option '--%s'%s" % (name, "; did you mean '--%s'?" % near[0] if near else ""))


def _short(table, letter):
    for option in table:
        if option.short == letter:
            return option
    raise UnknownOption("unknown option '-%s'" % letter)


def parse(table, argv):
    """Split `argv` by `table` (a sequence of Options) into a `Parsed`; raises UsageError."""
    parsed = Parsed()
    words = iter(argv)

    def store(option, value):
        if option.many:
            parsed.values.setdefault(option.dest, []).append(value)
        else:
            parsed.values[option.dest] = value

    def value_of(option, shown, attached):
        if attached is not None:
            return attached
        value = next(words, None)
        if value is None:
            raise UsageError("option '%s' needs a value: %s" % (shown, option.metavar))
        return value

    for word in words:
        if word == "--":
            parsed.rest = list(words)
        elif word.startswith("--"):
            name, equals, attached = word[2:].partition("=")
            option = _long(table, name)
            if option.metavar:
                store(option, value_of(option, "--" + option.long, attached if equals else None))
            elif equals:
                raise UsageError("option '--%s' takes no value" % option.long)
            else:
                store(option, True)
        elif word.startswith("-") and word != "-":
            letters = word[1:]
            while letters:
                option = _short(table, letters[0])
                letters = letters[1:]
                if option.metavar:
                    store(option, value_of(option, "-" + option.short, letters or None))
                    break
                store(option, True)
        else:
            parsed.operands.append(word)
    return parsed


def describe(table):
    """The options' part of a help text."""
    lines = []
    for option in table:
        names = ", ".join(filter(None, (option.short and "-" + option.short, option.long and "--" + option.long)))
        if option.metavar:
            names += " " + option.metavar
        head = "  %-22s " % names
        if len(names) > 22:
            lines.append("  " + names)
            head = " " * 25
        for line in option.help.split("\n"):
            lines.append(head + line)
            head = " " * 25
    return "\n".join(lines) + "\n"
