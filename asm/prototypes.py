"""C declarations of the kernel's functions and variables: what .kfunc and .ksym say, and BTF made of it.

An object says of each kernel symbol which type it expects, and loaders refuse what does not fit the running kernel's
(libbpf compares kinds: integers of any size are alike, structs by being structs). A type here is a tuple:
("void",), ("int", name, bytes, signed), ("struct" | "union" | "enum", name), ("pointer", type),
("array", type, count), ("function", type of the result, (types of parameters)).
"""

VOID = ("void",)
_WORDS = {"int", "char", "short", "long", "unsigned", "signed"}
_QUALIFIERS = ("const", "volatile", "restrict")
_NAMED = {prefix + letter + str(bits) + suffix: (bits // 8, letter == "s")
          for prefix, suffix in (("", ""), ("__", "")) for letter in "us" for bits in (8, 16, 32, 64)}
_NAMED.update({"%sint%d_t" % (u, bits): (bits // 8, not u) for u in ("", "u") for bits in (8, 16, 32, 64)})
_NAMED.update({"bool": (1, False), "_Bool": (1, False), "size_t": (8, False), "ssize_t": (8, True),
               "gfp_t": (4, False), "pid_t": (4, True)})
_DEPTH, _PARAMETERS = 8, 32
_TYPE = "a C type (void, int, u64, struct NAME, ... and * behind it)"


def declaration(s):
    """The declaration that stands at a Tokens' place, up to the line's end -> (name, type)."""
    kind = _type(s)
    if s.kind() != "name":
        s.fail("expected the name that is declared")
    name = s.next()
    if s.take("("):
        kind = ("function", kind, _parameters(s))
    else:
        kind = _arrays(s, kind)
    s.end()
    return name, kind


def _type(s):
    while s.kind() == "name" and s.peek() in _QUALIFIERS:
        s.at += 1
    word = s.peek() if s.kind() == "name" else None
    if word in ("struct", "union", "enum"):
        s.at += 1
        if s.kind() != "name":
            s.fail("expected the name of the %s" % word)
        kind = (word, s.next())
    elif word == "void":
        s.at += 1
        kind = VOID
    elif word in _NAMED:
        s.at += 1
        kind = ("int", word, *_NAMED[word])
    elif word in _WORDS:
        kind = _integer(s)
    else:
        s.fail("expected " + _TYPE)
    stars = 0
    while True:
        if s.take("*"):
            stars += 1
            if stars > _DEPTH:
                s.fail("more than %d pointers to each other" % _DEPTH, 1)
            kind = ("pointer", kind)
        elif s.kind() == "name" and s.peek() in _QUALIFIERS:
            s.at += 1
        else:
            return kind


def _integer(s):
    words = []
    while s.kind() == "name" and s.peek() in _WORDS:
        words.append(s.next())
    size = 1 if "char" in words else 2 if "short" in words else 8 if "long" in words else 4
    return "int", " ".join(words), size, "unsigned" not in words


def _arrays(s, kind):
    counts = []
    while s.take("["):
        if len(counts) == _DEPTH:
            s.fail("more than %d dimensions" % _DEPTH, 1)
        counts.append(0 if s.peek() == "]" else s.number(0, (1 << 31) - 1, "number of elements"))
        s.expect("]")
    for count in reversed(counts):
        kind = ("array", kind, count)
    return kind


def _parameters(s, depth=0):
    out = []
    if depth == _DEPTH:
        s.fail("more than %d functions within each other" % _DEPTH)
    if s.take(")"):
        return ()
    while True:
        kind = _type(s)
        if s.peek() == "(" and s.peek(1) == "*":
            s.at += 2
            if s.kind() == "name":
                s.at += 1
            s.expect(")")
            s.expect("(")
            kind = ("pointer", ("function", kind, _parameters(s, depth + 1)))
        else:
            if s.kind() == "name":
                s.at += 1
            if s.peek() == "[":     # a parameter that is an array is a pointer
                kind = ("pointer", _arrays(s, kind)[1])
        if kind == VOID and s.peek() == ")" and not out:
            s.at += 1
            return ()
        out.append(kind)
        if len(out) > _PARAMETERS:
            s.fail("more than %d parameters" % _PARAMETERS, 1)
        if s.expect(",", ")") == ")":
            return tuple(out)


def write(btf, kind, known):
    """The id of a type in a BtfWriter; `known`: dict of the structs that were written for it before."""
    what = kind[0]
    if what == "void":
        return 0
    if what == "int":
        _, name, size, signed = kind
        return btf.integer(name, size, signed, "bool" if name in ("bool", "_Bool") else "")
    if what == "pointer":
        return btf.pointer(write(btf, kind[1], known))
    if what == "array":
        return btf.array(write(btf, kind[1], known), kind[2])
    if what == "function":
        return btf.prototype(write(btf, kind[1], known),
                             [("a%d" % i, write(btf, each, known)) for i, each in enumerate(kind[2])])
    if kind not in known:
        known[kind] = btf.enum(kind[1], []) if what == "enum" else btf.struct(kind[1], 0, [], what == "union")
    return known[kind]


def text(name, kind):
    """The declaration in C."""
    what = kind[0]
    if what == "pointer":
        inner = kind[1]
        return text("(*%s)" % name if inner[0] in ("function", "array") else "*" + name, inner)
    if what == "array":
        return text("%s[%d]" % (name, kind[2]), kind[1])
    if what == "function":
        return text("%s(%s)" % (name, ", ".join(text("", each) for each in kind[2]) or "void"), kind[1])
    return ("%s %s" % ("void" if what == "void" else kind[1] if what == "int" else " ".join(kind), name)).rstrip()
