"""Random scripts for fuzzing: from a grammar, from its tokens in any order, and plain bytes.

`script(random)` is a script whose names and types mostly fit together, so that many of them compile:
variables are set before they are read, a map keeps its kinds of key and value. `soup(random)` strings
tokens of the language together, `junk(random)` is anything, `damaged(random, script)` a script with
something cut, doubled or replaced. All take a `random.Random`, so that a seed gives the script again.
"""

INTS = ["pid", "tid", "uid", "gid", "cpu", "nsecs", "elapsed", "rand", "ncpus", "jiffies"]
TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARITHMETIC = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]
AGGREGATES = ["count()", "sum(%s)", "min(%s)", "max(%s)", "avg(%s)", "stats(%s)", "hist(%s)", "hist(%s, 2)", "lhist(%s, 0, 100, 10)",
              "lhist(%s, -50, 50, 25)", "tseries(%s, 1s, 5)", 'tseries(%s, 10ms, 3, "sum")', 'tseries(%s, 1m, 2, "min")']
UNREADABLE = ("stats", "hist", "lhist", "tseries")
LITERALS = ["0", "1", "2", "7", "10", "63", "64", "100", "127", "128", "255", "256", "1000", "32767", "65535", "65536", "1e6",
            "2147483647", "2147483648", "4294967295", "0x7f", "0xffffffffffffffff", "9223372036854775807", "1ms", "10us", "017"]
STRINGS = ['""', '"a"', '"abc"', '"a b"', '"%d"', '"\\n"', '"\\"q\\""', '"\\x41"', '"0123456789abcdef0123456789"', '"\u00e9"']
PROBES = ["BEGIN", "END", "begin", "interval:ms:10", "interval:1s", "profile:hz:99", "tracepoint:sched:sched_switch",
          "tracepoint:syscalls:sys_enter_read", "tracepoint:raw_syscalls:sys_enter", "self:signal:SIGUSR1"]

TOKENS = PROBES + INTS + TYPES + LITERALS + STRINGS + ARITHMETIC + COMPARISONS + AGGREGATES + list("{}()[];,.?:!~@$#=<>&|'\"\\/`%") + [
    "if", "else", "while", "unroll", "for", "let", "return", "break", "continue", "macro", "fn", "config", "import", "sizeof",
    "offsetof", "typeof", "typeinfo", "comptime", "struct", "union", "enum", "true", "false", "@", "@x", "@x[", "$x", "$1", "$#", "++",
    "--", "->", "..", "&&", "||", "+=", "<<=", "//", "/*", "*/", "#define A", "#if", "#endif", "\n", " ", "args", "retval", "printf(",
    "print(", "delete(", "_ =", "(int8)", "(a=1", "config = {", "let @m = hash(10);", "probe", "kprobe:f", "\u00e9", "\\x"]


def truth(text):
    """A condition as a number, so that variables and maps keep one type."""
    return "(int64)(%s)" % text


class Grammar:
    """One script in the making; `self.scopes` holds the variables that are set, by kind."""

    def __init__(self, random):
        self.random = random
        self.names = 0
        self.scopes = [{}]
        self.maps = {}          # name -> (kinds of keys, kind of value or the call of an aggregation)
        self.depth = 0
        self.loops = 0

    def pick(self, items):
        return items[self.random.randrange(len(items))]

    def chance(self, probability):
        return self.random.random() < probability

    def known(self, kind):
        return [name for scope in self.scopes for name, its in scope.items() if its == kind]

    # ---- expressions ----

    def integer(self):
        self.depth += 1
        make = self.pick(self.LEAVES if self.depth > 4 else self.LEAVES + self.NODES)
        text = make(self)
        self.depth -= 1
        return text

    def literal(self):
        return self.pick(LITERALS)

    def builtin(self):
        return self.pick(INTS)

    def variable(self):
        known = self.known("int")
        return self.pick(known) if known else self.literal()

    def map_value(self):
        names = [name for name, (_, value) in self.maps.items() if value == "int"]
        return self.access(self.pick(names)) if names else self.literal()

    def binary(self):
        return "%s %s %s" % (self.operand(), self.pick(ARITHMETIC), self.operand())

    def comparison(self):
        return truth("%s %s %s" % (self.operand(), self.pick(COMPARISONS), self.operand()))

    def logical(self):
        return truth("%s %s %s" % (self.operand(), self.pick(["&&", "||"]), self.operand()))

    def unary(self):
        op = self.pick(["-", "!", "~"])
        text = "%s%s" % (op, self.operand())
        return truth(text) if op == "!" else text

    def ternary(self):
        return "%s ? %s : %s" % (self.operand(), self.operand(), self.operand())

    def cast(self):
        return "(%s)%s" % (self.pick(TYPES), self.operand())

    def operand(self):
        text = self.integer()
        return "(%s)" % text if " " in text or text.startswith("-") else text

    def strings_compared(self):
        return truth("%s %s %s" % (self.string(), self.pick(["==", "!="]), self.string()))

    def tuple_item(self):
        return "(%s, %s).%d" % (self.integer(), self.integer(), self.random.randrange(2))

    def sizeof(self):
        return "sizeof(%s)" % self.pick(TYPES)

    def block(self):
        self.scopes.append({})
        text = "{ %s %s }" % (self.statement(), self.integer())
        self.scopes.pop()
        return text

    def choice(self):
        return "if (%s) { %s } else { %s }" % (self.integer(), self.integer(), self.integer())

    def of_texts(self):
        """Numbers that are made of strings."""
        a, b = self.string(), self.string()
        return self.pick(["strlen(%s)" % a, "strstr(%s, %s)" % (a, b), truth("strcontains(%s, %s)" % (a, b)), "strncmp(%s, %s, 3)" % (a, b),
                          "strcap(%s)" % a, 'strstr(%s, "b")' % a, "memcmp(%s, %s, 1)" % (a, b), "%s[0]" % self.pick(self.known("string") or ["comm"])])

    def known_now(self):
        """What is known when the script is compiled."""
        return self.pick([truth("is_literal(%s)" % self.integer()), truth("is_str(%s)" % self.string()), truth("is_integer(%s)" % self.integer()),
                          "config.max_map_keys", truth('kfunc_exist("bpf_rdonly_cast")'),
                          "offsetof(struct task_struct, pid)", "sizeof(struct list_head)", "comptime sizeof(%s)" % self.pick(TYPES), "(int32)BPF_MAP_TYPE_HASH",
                          "__NR_read", "AF_INET6"])

    def of_task(self):
        return self.pick(["ppid", "leader_tid", "curtask.pid", "curtask.group_leader.tgid", "len(kstack(3))", "(uint64)curtask & 0xff",
                          "cgroupid(\"/sys/fs/cgroup\")", "(int64)has_cpid"])

    def numbers_of_values(self):
        """A number out of an array, a record, an address of a network, a cast to bytes."""
        return self.pick(["((uint8[4])(uint32)%s)[%d]" % (self.operand(), self.random.randrange(4)), "(a=%s, b=%s).a" % (self.operand(), self.string()),
                          'pton("10.1.2.3")[%d]' % self.random.randrange(4), "bswap((uint16)%s)" % self.operand(), truth("(bool)%s" % self.operand()),
                          "*(int32 *)%s" % self.operand(), truth("((struct list_head *)%s).next != 0" % self.operand())])

    def aggregate(self):
        """An aggregation as a number."""
        names = [name for name, (_, value) in self.maps.items() if "(" in value and not value.startswith(UNREADABLE)]
        return "(int64)" + self.access(self.pick(names)) if names else self.literal()

    def has_key(self):
        names = [name for name, (keys, _) in self.maps.items() if keys]
        if not names:
            return "1"
        name = self.pick(names)
        return truth("has_key(%s, %s)" % (name, self.key(self.maps[name][0])))

    LEAVES = [literal, literal, builtin, variable, variable, map_value]
    NODES = [binary, binary, comparison, logical, unary, ternary, cast, operand, strings_compared, tuple_item, sizeof, has_key, of_texts, known_now,
             of_task, numbers_of_values, aggregate]

    def string(self):
        known = self.known("string")
        if self.depth < 4 and self.chance(0.15):
            self.depth += 1
            text = self.pick([lambda: "str_concat(%s, %s)" % (self.string(), self.string()), lambda: "strerror(%s)" % self.integer(),
                              lambda: "syscall_name(%s)" % self.integer(), lambda: "signal_name(%s)" % self.integer(),
                              lambda: "(%s ? %s : %s)" % (self.operand(), self.string(), self.string()), lambda: "{ %s %s }" % (self.statement(), self.string()),
                              lambda: "str(%s, %d)" % (self.operand(), self.random.randrange(1, 70))])()
            self.depth -= 1
            return text
        return self.pick(STRINGS + ["comm", "probe", "str($1)", "pcomm", "leader_comm", "probetype"] + known)

    def value(self, kind):
        if kind == "int":
            return self.integer()
        if kind == "string":
            return self.string()
        return "(%s, %s)" % (self.integer(), self.string())

    def key(self, kinds):
        values = [self.value(kind) for kind in kinds]
        return values[0] if len(values) == 1 else "(%s)" % ", ".join(values)

    def access(self, name):
        kinds = self.maps[name][0]
        return "%s[%s]" % (name, ", ".join(self.value(kind) for kind in kinds)) if kinds else name

    # ---- statements ----

    def new(self, sigil):
        self.names += 1
        return "%sv%d" % (sigil, self.names)

    def statements(self, count=None):
        count = self.random.randrange(1, 6) if count is None else count
        self.scopes.append({})
        text = " ".join(self.statement() for _ in range(count))
        self.scopes.pop()
        return text

    def statement(self):
        self.depth += 1
        makers = self.SIMPLE if self.depth > 3 else self.SIMPLE + self.COMPOUND
        text = self.pick(makers)(self)
        self.depth -= 1
        return text

    def assign(self):
        kind = self.pick(["int", "int", "int", "string", "tuple"])
        value = self.value(kind)
        name = self.new("$")
        self.scopes[-1][name] = kind
        return "%s%s = %s;" % (self.pick(["", "let "]), name, value)

    def update(self):
        known = self.known("int")
        if not known:
            return self.assign()
        name = self.pick(known)
        return self.pick(["%s++;" % name, "--%s;" % name, "%s %s= %s;" % (name, self.pick(ARITHMETIC), self.integer())])

    def map_store(self):
        if self.maps and self.chance(0.6):
            name = self.pick(list(self.maps))
        else:
            name = self.new("@")
            keys = [self.pick(["int", "int", "string"]) for _ in range(self.random.randrange(4))]
            self.maps[name] = (keys, self.pick(["int", "int", "string", self.pick(AGGREGATES)]))
        kind = self.maps[name][1]
        if "(" in kind:
            return "%s = %s;" % (self.access(name), kind % self.integer() if "%" in kind else kind)
        if kind == "int" and self.chance(0.4):
            return self.pick(["%s++;", "%s += 2;"]) % self.access(name)
        return "%s = %s;" % (self.access(name), self.value(kind))

    def map_call(self):
        if not self.maps:
            return self.map_store()
        name = self.pick(list(self.maps))
        calls = ["print(%s);" % name, "clear(%s);" % name, "zero(%s);" % name]
        keys = self.maps[name][0]
        if keys:
            calls += ["delete(%s, %s);" % (name, self.key(keys)), "print(%s, 3);" % name, "print(%s);" % self.access(name)]
        return self.pick(calls)

    def printing(self):
        return self.pick([
            lambda: 'printf("%%d %%s %%x\\n", %s, %s, %s);' % (self.integer(), self.string(), self.integer()),
            lambda: 'printf("%%5d|%%-10s|%%llu\\n", %s, %s, %s);' % (self.integer(), self.string(), self.integer()),
            lambda: "print(%s);" % self.integer(), lambda: "print((%s, %s));" % (self.integer(), self.string()),
            lambda: "print(%s);" % self.string(), lambda: 'time("%H");', lambda: "print((x=%s, y=%s));" % (self.integer(), self.string()),
            lambda: 'printf("%%s %%r %%p\\n", %s, buf(%s, 3), (int8 *)%s);' % (self.pick(["ustack(2)", "kstack(1)", "ntop(1)", "ksym(1)", "usym(1)",
                                                                              "macaddr(pton(\"::1\"))", "strftime(\"%H\", nsecs)", "username", "true"]),
                                                                    self.string(), self.operand()),
            lambda: self.pick(["warnf", "errorf"]) + '("%%d\\n", %s);' % self.integer(), lambda: 'assert(%s, "no");' % self.integer(), lambda: 'join(1);' if self.chance(0.02) else "print(1);",
        ])()

    def declared(self):
        """A variable with a type."""
        name, kind = self.new("$"), self.pick(TYPES)
        text = "let %s: %s = (%s)%s;" % (name, kind, kind, self.operand())
        self.scopes[-1][name] = "int"
        return text

    def find(self):
        """A key's value in a variable, in its own branch."""
        names = [name for name, (keys, value) in self.maps.items() if keys and value in ("int", "string")]
        if not names:
            return self.map_store()
        name, variable = self.pick(names), self.new("$")
        keys, kind = self.maps[name]
        key = self.key(keys)
        self.scopes.append({variable: kind})
        body = self.statements(2)
        self.scopes.pop()
        return "let %s; if (find(%s, %s, %s)) { %s }" % (variable, name, key, variable, body)

    def comptime_if(self):
        return "if comptime (%s) { %s } else { %s }" % (self.pick(["is_str(1)", "sizeof(uint64) == 8", 'probetype == "tracepoint"', "is_literal(2)"]),
                                                     self.statements(1), self.statements(1))

    def address(self):
        known = self.known("int")
        if not known:
            return self.assign()
        name = self.new("$")
        return "%s = &%s; print(*%s);" % (name, self.pick(known), name)

    def for_counted(self):
        """A range that is known when it runs."""
        name, end = self.new("$"), self.operand()
        self.scopes.append({name: "int"})
        body = self.statements(2)
        self.scopes.pop()
        return "for (%s : 0..(int8)(%s & 7)) { %s }" % (name, end, body)

    def if_(self):
        text = "if (%s) { %s }" % (self.integer(), self.statements())
        if self.chance(0.4):
            text += " else { %s }" % self.statements()
        return text

    def while_(self):
        name = self.new("$")
        self.loops += 1
        body = self.statements()
        self.loops -= 1
        return "let %s = 0; while (%s < %d) { %s++; %s }" % (name, name, self.random.randrange(1, 9), name, body)

    def unroll(self):
        return "unroll (%d) { %s }" % (self.random.randrange(1, 4), self.statements(2))

    def for_range(self):
        name = self.new("$")
        self.scopes.append({name: "int"})
        body = self.statements(2)
        self.scopes.pop()
        return "for (%s : 0..%d) { %s }" % (name, self.random.randrange(0, 9), body)

    def for_map(self):
        names = [name for name, kinds in self.maps.items() if kinds[0]]
        if not names:
            return self.map_store()
        name = self.new("$")
        return "for (%s : %s) { print(%s.0); }" % (name, self.pick(names), name)

    def inner(self):
        return "{ %s }" % self.statements(2)

    def leave(self):
        return self.pick(["if (%s) { break; }", "if (%s) { continue; }"]) % self.integer() if self.loops else "if (%s) { return; }" \
            % self.integer()

    SIMPLE = [assign, assign, update, map_store, map_store, map_call, printing, printing, declared, address]
    COMPOUND = [if_, if_, while_, unroll, for_range, for_map, inner, leave, find, comptime_if, for_counted]

    # ---- the whole ----

    def probe(self):
        points = ", ".join(self.pick(PROBES) for _ in range(self.pick([1, 1, 1, 2])))
        predicate = " /%s/" % self.integer() if self.chance(0.2) else ""
        return "%s%s { %s }" % (points, predicate, self.statements())

    def script(self):
        parts = []
        if self.chance(0.2):
            parts.append("#define A %s\n#ifdef A\nstruct s { int x; char y[A]; };\n#endif" % self.pick(["1", "8"]))
        if self.chance(0.2):
            parts.append("config = { max_strlen = %d; max_map_keys = %d; unstable_typeinfo = enable }"
                         % (self.pick([16, 64, 200, 1024]), self.pick([8, 128, 4096])))
        if self.chance(0.2):
            parts.append("macro m(x) { x + 1 }")
        parts += [self.probe() for _ in range(self.random.randrange(1, 4))]
        parts.append("BEGIN { %s exit(); }" % self.statements())
        return "\n".join(parts)


def script(random):
    return Grammar(random).script()


def soup(random):
    text = "".join(random.choice(TOKENS) + random.choice(["", " ", " "]) for _ in range(random.randrange(1, 60)))
    return random.choice(["", "BEGIN { ", "BEGIN { $x = ", "kprobe:f /"]) + text


def junk(random):
    size = random.randrange(200)
    if random.random() < 0.5:
        return bytes(random.randrange(256) for _ in range(size)).decode("utf-8", "surrogateescape")
    return "".join(chr(random.choice([random.randrange(32, 127), random.randrange(0x3000)])) for _ in range(size))


def damaged(random, text):
    """The script with one to four pieces removed, doubled, replaced by a token, or swapped."""
    for _ in range(random.randrange(1, 5)):
        a = random.randrange(len(text) + 1)
        b = min(len(text), a + random.choice([1, 1, 2, 5, 20]))
        piece = random.choice(["", text[a:b] * 2, random.choice(TOKENS), text[b:b + 9]])
        text = text[:a] + piece + text[b:]
    return text


def any_script(random):
    """One of all kinds."""
    kind = random.random()
    if kind < 0.3:
        return script(random)
    if kind < 0.65:
        return damaged(random, script(random))
    return soup(random) if kind < 0.9 else junk(random)
