"""What bpftrace's documentation says of the language and of its library, as scripts of our own with the results it states.

Each entry: a script, the lines that it prints, and its arguments. Scripts end after their BEGIN by an interval probe.
"""

import pytest

from tests.tools.forked import rawbpf

pytestmark = [pytest.mark.root, pytest.mark.slow]

S = "struct s { int x; int y[4]; struct { char c; union { short s; int i; } u; } in; }; "

LANGUAGE = {
    # sections and parts of a script
    "order of parts": ('#define RED "red"\nstruct q { int x; }\nconfig = { stack_mode = perf }\nlet @a = lruhash(100);\nmacro greet() { print(RED); }\n'
                       "begin { greet(); @a[1] = 1; clear(@a); }", ["red"]),
    "a label before a probe": ("here=begin { print(1); }", ["1"]),
    "two probes, one action": ("begin, end { print(probe); }", ["begin", "end"]),
    # parameters
    "named": ('begin { print((getopt("aa", 1), getopt("bb"))); }', ["(20, true)"], "--", "--aa=20", "--bb"),
    "named, all kinds": ('begin { print((getopt("aa", 10, "Description of aa"), getopt("bb", "hello"), getopt("cc"), getopt("dd", false))); }',
                         ["(10, bye, true, false)"], "--", "--cc", "--bb=bye"),
    "positional before and after the dashes": ("begin { print(($1, $2)); }", ["(p1, 20)"], "p1", "--", "20"),
    "number and text": ('begin { printf("I got %d, %s (%d args)\\n", $1, str($2), $#); }', ["I got 42, hello (2 args)"], "42", "hello"),
    "text from its second letter": ('begin { printf("%s\\n", str($1 + 1)); }', ["ello"], "hello"),
    "a parameter that was not given": ("begin { print(($1, str($2))); }", ["(0, )"]),
    # comments, conditions
    "comments": ("// one\nbegin { // two\n/*\n three\n\n*/\n print(/* four */ 1); }", ["1"]),
    "a ternary as a statement": ('begin { $a = 1; $a == 1 ? print("true") : print("false"); $b = $a > 0 ? $a : -1; print($b); }', ["true", "1"]),
    "else if": ('begin { $a = 2; if ($a == 1) { print("one"); } else if ($a == 2) { print("two"); } else { print("other"); } }', ["two"]),
    # config
    "config by three spellings": ("config = { BPFTRACE_MAX_STRLEN = 10; MAX_MAP_KEYS = 2; print_maps_on_exit = 0 } begin { @a = 1; print(config.max_strlen); }",
                                  ["10"]),
    # data types
    "a cast cuts": ('begin { $x = 1 << 16; printf("%d %d\\n", (uint16)$x, $x); }', ["0 65536"]),
    "literals are the smallest signed type": ("begin { print((sizeof(0), sizeof(-1), sizeof(128), sizeof(32768), sizeof(2147483648))); }", ["(1, 1, 2, 4, 8)"]),
    "a literal takes the other's sign": ("begin { $a = 1; $a = (uint64)2; print(typeinfo($a).full_type); }", ["uint64"]),
    "upcasts": ("begin { $a = 1; $b = -1000; $a = $b; print((typeinfo($a).full_type, $a)); }", ["(int16, -1000)"]),
    "types of the kernel": ("begin { $a = (uint64_t)1; print(typeinfo($a).full_type); }", ["uint64"]),
    "a string as its bytes": ('begin { $a = (int8[])"my"; print(($a[0], $a[1])); }', ["(109, 121)"]),
    "a predicate": ("begin /pid > 0/ { print(1); } begin /pid == 0/ { print(2); }", ["1"]),
    # literals
    "bases and separators": ("begin { print((0123, 0x10, 0X10, 2e3, 1_000_123_000, 123UL, 123LL)); }", ["(83, 16, 16, 2000, 1000123000, 123, 123)"]),
    "durations": ("begin { $a = 1m; print($a); print((1ns, 1us, 1ms, 1s, 1h, 1d)); }", [
        "60000000000", "(1, 1000, 1000000, 1000000000, 3600000000000, 86400000000000)"]),
    "a letter": ('begin { printf("Echo A: %c\\n", 65); }', ["Echo A: A"]),
    "escapes": ('begin { printf("a\\tb|\\101|\\x41\\n"); }', ["a\tb|A|A"]),
    # loops
    "for over a map": ("begin { @map[10] = 20; for ($kv : @map) { print($kv.0); print($kv.1); } clear(@map); }", ["10", "20"]),
    "for over a map of two keys": ("begin { @map[10, 11] = 20; for ($kv : @map) { print($kv.0.0); print($kv.0.1); print($kv.1); } clear(@map); }",
                                   ["10", "11", "20"]),
    "for over a range": ("begin { $a = 10; for ($i : 0..$a) { print($i); $a--; } }", [str(i) for i in range(10)]),
    "for without parentheses": ("begin { for $i : 1..4 { if ($i == 2) { continue; } print($i); } }", ["1", "3"]),
    "break and return": ("begin { for ($i : 0..10) { if ($i == 2) { break; } print($i); } for ($i : 0..10) { if ($i == 1) { return; } print($i); } print(9); }",
                         ["0", "1", "0"]),
    "unroll": ('begin { unroll(3) { print("Unrolled") } }', ["Unrolled"] * 3),
    # macros
    "macros": ('macro one() { 1 } macro add_one(x) { x + 1 } macro both($a, @b) { $a += 1; @b += 1; } macro thrice(x) { x; x; x; } '
               "macro add_two(x) { add_one(x) + 1 } macro p_cast(a, b) { (a*)b } "
               'begin { print(one()); print(one); $a = 10; print(add_one($a)); print(add_one(1 + 1)); @b = 5; both($a, @b); print($a + @b); '
               'thrice({ printf("hi") }); printf("\\n"); print(add_two(1)); print(p_cast(typeof(uint8), -1)); clear(@b); }',
               ["1", "1", "11", "3", "17", "hihihi", "3", "0xff"]),
    "a macro that evaluates once": ("macro add_one(x) { let $x = x; $x + 1 } begin { @n = 1; print(add_one(@n++)); print(@n + 0); clear(@n); }", ["2", "2"]),
    # operators
    "promotion": ("begin { $a = (uint32)5 + (uint8)3; print(($a, typeinfo((uint64)1 - (uint64)2).full_type)); }", ["(8, int64)"]),
    "subtraction is signed": ("begin { $a = (uint64)1 - (uint64)2; $b = (uint64)1 + (-2); print(($a, $b)); }", ["(-1, -1)"]),
    "assignment operators": ("begin { $a = 12; $a <<= 1; $a >>= 2; $a += 3; $a -= 1; $a *= 2; $a /= 4; $a %= 3; $a |= 8; $a &= 10; $a ^= 3; print($a); }", [
        str((lambda a: ((((((((a << 1) >> 2) + 3 - 1) * 2) // 4) % 3) | 8) & 10) ^ 3)(12))]),
    "increments": ("begin { $x = 10; $y = $x--; print(($x, $y)); $a = 10; $b = --$a; print(($a, $b)); }", ["(9, 10)", "(9, 9)"]),
    "block expressions": ("begin { let $a = { let $b = 1; $b }; print($a); _ = { 5 }; }", ["1"]),
    "logic": ("begin { print((1 && 0, 1 || 0, !1, 6 & 3, 6 | 3, 6 ^ 3, 1 << 4, 16 >> 2)); }", ["(false, true, false, 2, 7, 5, 16, 4)"]),
    # types
    "the postfix notation": ("begin { print((sizeof(int32*), sizeof(int32[4]), sizeof(int32*[4]), sizeof(int32[4]*), sizeof(int32*[4]*))); }",
                             ["(8, 16, 32, 8, 8)"]),
    "sizes of types and expressions": ("begin { print(sizeof(uint32)); print(sizeof({ $a = (int8)1; $a })); print(sizeof(uint32*[10])); }", ["4", "1", "80"]),
    "nothing in sizeof is run": ('begin { print(sizeof({ $a = (int8)1; print("hi"); $a })); }', ["1"]),
    "the address of a variable": ("begin { $a = 5; $b = &$a; print(*$b); }", ["5"]),
    "structs": (S + "begin { print((sizeof(struct s), offsetof(struct s, y), offsetof(struct s, in.u.s))); }", ["(28, 4, 24)"]),
    "tuples": ('begin { $a = (1, "hello"); $b = (3, 4, $a); print($a); print($b); print($b.0); print($a[1]); print($a[1 - 1]); print((1,)); }', [
        "(1, hello)", "(3, 4, (1, hello))", "3", "hello", "1", "(1)"]),
    "records": ('begin { $a = (color="green", size=2); print($a); print($a.size); $a = (size=10, color="blue"); print($a.color); }', [
        "{ .color = green, .size = 2 }", "2", "blue"]),
    "records are evaluated as written": ('begin { $a = (size={ print("first"); 20 }, color={ print("second"); "pink" }); print($a.size); }', [
        "first", "second", "20"]),
    "casts to arrays": ('begin { $a = (int8[8])12345; printf("%x %x\\n", $a[0], $a[1]); printf("%d\\n", (uint64)$a); }', ["39 30", "12345"]),
    "a cast to an array of bools": ("begin { @a = (bool[2])(uint16)1; print(@a); clear(@a); }", ["@a: [true,false]"]),
    "a cast without a size": ('begin { printf("first byte: %x\\n", ((int8[8])(uint64)12345)[0]); $a = (uint8[])(uint32)258; print($a); }', [
        "first byte: 39", "[2,1,0,0]"]),
    "an address as a number": ('begin { print((uint32)pton("127.0.0.1") == 0x100007f); }', ["true"]),
    "casts of names": ("begin { $y = (pid)*tid; $w = (cpu); print(($y == pid * tid, $w == cpu)); }", ["(true, true)"]),
    "names in types are types": ("macro uint64_t() { 1 } begin { $z = 5; print((sizeof(uint64_t), sizeof(uint64_t()))); }", ["(8, 1)"]),
    # variables and maps
    "scopes": ('begin { $a = 1; if ($a == 1) { $b = "hello"; $a = 2; } let $c; print(($a)); let $d: uint8; $d = 3; print($d); }', ["2", "3"]),
    "two keys are a tuple": ('begin { @[1, "a"]++; @[(1, "a")]++; print(@); clear(@); }', ["@[1, a]: 2"]),
    "per thread": ("begin { @start[tid] = nsecs; if (has_key(@start, tid)) { print(nsecs - @start[tid] < 1s); } delete(@start, tid); }", ["true"]),
    "maps cleared at the end": ("begin { @a = 1; @b[1] = 1; } end { clear(@a); clear(@b); }", []),
    "aggregates as numbers": ('begin { @c = count(); @s = sum(3); @s = sum(9); if (@s == 12) { printf("%d %d\\n", (int64)@c, (int64)@s); } clear(@c); clear(@s); }',
                              ["1 12"]),
}

STDLIB = {
    "bswap": ("begin { print((bswap((uint8)0x12), bswap((uint16)0x1234), bswap((uint32)0x12345678), bswap((uint64)0x0123456789abcdef))); }",
              ["(18, 13330, 2018915346, 17279655951921914625)"]),
    "buf and its formats": ('begin { $b = buf("\\x0a\\xfeA", 3); printf("%r|%rx|%rh\\n", $b, $b, $b); }', ["\\x0a\\xfeA|\\x0a\\xfe\\x41|0a fe 41"]),
    "clear": ("begin { @x[1] = 1; clear(@x); print(@x); }", []),
    "delete": ('begin { @a[1] = 1; print(delete(@a, 1)); if (delete(@a, 2)) { print("no"); } $did = delete(@a, 2); print($did); '
               '@s["hello"] = 1; delete(@s, "hello"); @t[1, 2] = 1; delete(@t, (1, 2)); @o["k"] = 1; delete(@o["k"]); @sc = 1; delete(@sc); }', ["true", "false"]),
    "exit with a code": ("begin { exit(1); }", []),
    "has_key": ('begin { @m[1, 2] = 1; if (!has_key(@m, (1, 3))) { print(("bye")); } clear(@m); }', ["bye"]),
    "find": ('begin { @map[2] = (1, "hello"); let $val; if (find(@map, 2, $val)) { print($val); } clear(@map); }', ["(1, hello)"]),
    "kinds of expressions": ('begin { $a = (uint8)1; print((is_integer(1), is_unsigned_integer($a), is_unsigned_integer(-1), is_str("a"), is_ptr((int8 *)0), '
                             'is_array(pton("1.1.1.1")), is_literal(1), is_literal("hello"))); }', ["(true, true, false, true, true, true, true, true)"]),
    "is_err": ("begin { print((is_err((int8 *)0xffffffffffffffff), is_err((int8 *)0xfffffffffffff001), is_err((int8 *)0xfffffffffffff000), is_err((int8 *)1))); }", ["(true, true, false, false)"]),
    "len": ("begin { @m[1] = 1; @m[2] = 1; print(len(@m)); clear(@m); }", ["2"]),
    "ntop": ('begin { print(ntop(pton("1.2.3.4"))); print(ntop(pton("::1"))); print(ntop(2, 0x0100007f)); }', ["1.2.3.4", "::1", "127.0.0.1"]),
    "macaddr": ('begin { print(macaddr("abcdef")); }', ["61:62:63:64:65:66"]),
    "offsetof of a nested field": ("struct Foo { struct { struct { struct { int d; } c; } b; } a; } begin { @x = offsetof(struct Foo, a.b.c.d); print(@x); clear(@x); }",
                                   ["@x: 0"]),
    "the largest of a map": ("begin { $i = 11; for $elem : 1..$i { @[$elem] = $elem - 1; } print(@, 2); clear(@); }", ["@[9]: 8", "@[10]: 9"]),
    "the largest, scaled": ("begin { for $i : 1..11 { @[$i] = $i; } print(@, 5, 2); clear(@); }", ["@[6]: 3", "@[7]: 3", "@[8]: 4", "@[9]: 4", "@[10]: 5"]),
    "print of values": ('begin { print(123); print("abc"); }', ["123", "abc"]),
    "names of enums": ('enum custom { CUSTOM_ENUM = 3, }; begin { $r = BPF_MAP_TYPE_HASH; printf("%d, %s, %s\\n", $r, $r, CUSTOM_ENUM); }',
                       ["1, BPF_MAP_TYPE_HASH, CUSTOM_ENUM"]),
    "the kind of a probe": ("begin { print((probe, probetype)); }", ["(begin, special)"]),
    "signal_name": ("#include <signal.h>\nbegin { print(signal_name(SIGINT)); }", ["Interrupt"]),
    "strerror": ("#include <errno.h>\nbegin { print(strerror(EPERM)); }", ["Operation not permitted"]),
    "syscall_name": ("#include <syscall.h>\nbegin { print(syscall_name(__NR_read)); }", ["read"]),
    "strings": ('begin { print((strlen("abc"), strcontains("haystack", "st"), strstr("haystack", "st"), strstr("haystack", "x"), str_concat("ab", "cd"), '
                'strncmp("abcd", "abxy", 2), strncmp("abcd", "abxy", 3) != 0)); }', ["(3, true, 3, -1, abcd, 0, true)"]),
    "memcmp": ('begin { print((memcmp("abc", "abc", 3), memcmp("abc", "abd", 3) < 0)); }', ["(0, true)"]),
    "zero": ("begin { @x[1] = 5; zero(@x); print(@x); @y = 1; }", ["@x[1]: 0", "", "", "@x[1]: 0", "@y: 1"]),
    "avg": ("begin { @y = avg(2); @y = avg(4); print(@y); if (@y == 3) { print(1); } clear(@y); }", ["@y: 3", "1"]),
    "count as a number": ('begin { @ = count(); @ = count(); printf("%d\\n", (int64)@); clear(@); }', ["2"]),
    "sum as a number": ('begin { @ = sum(5); @ = sum(6); printf("%d\\n", (int64)@); clear(@); }', ["11"]),
    "max and min": ("begin { @x = max(3); @x = max(33); @n = min(-2); @n = min(5); print(@x); print(@n); clear(@x); clear(@n); }", ["@x: 33", "@n: -2"]),
    "stats": ("begin { @b = stats(2); @b = stats(4); print(@b); clear(@b); }", ["@b: { .count = 2, .average = 3, .total = 6 }"]),
    "a map is printed as it is when its turn comes": ("begin { @ = 0; unroll(10) { print(@); @++; } }", ["@: 10"] * 10 + ["", "", "@: 10"]),
    "cgroups": ('begin { print(cgroupid("/sys/fs/cgroup") > 0); }', ["true"]),
    "times": ("begin { $m = nsecs(monotonic); $b = nsecs(boot); $t = nsecs(tai); $s = nsecs(sw_tai); print(($b >= $m, $t > $b, nsecs() >= $b)); }",
              ["(true, true, true)"]),
    "who": ("begin { print((pid == tid, pid() == pid, uid, gid, username, comm, cpu < ncpus, numaid() < 64, has_cpid, elapsed() < 10s)); }",
            ["(true, true, 0, 0, root, %s, true, true, false, true)"]),
}


def run(entry):
    script, expected, *arguments = entry
    done = rawbpf("trace", "-q", "-e", ("config = { unstable_typeinfo = enable } " if "typeinfo" in script else "") + script
                  + " interval:ms:1 { exit(); }", *arguments)
    assert b"ERROR" not in done.stderr, done.stderr.decode()
    text = done.stdout.decode().rstrip("\n")
    return text.split("\n") if text else []


@pytest.mark.parametrize("name", LANGUAGE)
def test_language(name):
    assert run(LANGUAGE[name]) == LANGUAGE[name][1]


@pytest.mark.parametrize("name", STDLIB)
def test_library(name):
    expected = STDLIB[name][1]
    if name == "who":
        with open("/proc/self/comm") as file:
            expected = [expected[0] % file.read().strip()]
    assert run(STDLIB[name]) == expected
