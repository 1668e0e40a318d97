"""The words of a command line, read one after another as bpftool does; and what a command line may hold."""

from ..failure import Failure

STATUS = 255        # bpftool's, of anything that fails


def fail(message, status=STATUS):
    """The message is one line, whatever the words of the command line are that it repeats."""
    from rawbpf.elf.image import printable
    raise Failure(printable(message), status)


def is_prefix(word, full):
    """bpftool's rule: keywords may be cut short."""
    return bool(word) and full.startswith(word)


class Words:
    """The words that are left; what is missing or wrong is a Failure."""

    def __init__(self, words):
        self._words = list(words)

    def __bool__(self):
        return bool(self._words)

    def __len__(self):
        return len(self._words)

    def peek(self):
        return self._words[0] if self._words else ""

    def next(self, what):
        if not self._words:
            fail("%s is missing" % what)
        return self._words.pop(0)

    def take(self, *keywords):
        """The keyword that the next word is a prefix of (it is then passed), or None."""
        if self._words:
            for keyword in keywords:
                if is_prefix(self._words[0], keyword):
                    self._words.pop(0)
                    return keyword
        return None

    def need(self, *keywords):
        found = self.take(*keywords)
        if found is None:
            names = ["'%s'" % word for word in keywords]
            names = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            if self._words:
                fail("expected %s, got: '%s'" % (names, self._words[0]))
            fail("expected %s" % names)
        return found

    def number(self, what):
        word = self.next(what)
        try:
            value = int(word, 8) if len(word) > 1 and word[0] == "0" and word.isdigit() else int(word, 0)
        except ValueError:
            value = -1
        if not 0 <= value < 1 << 32:
            fail("can't parse %s as %s" % (word, what))
        return value

    def end(self):
        if self._words:
            fail("what is '%s'? nothing more was expected" % self._words[0])
