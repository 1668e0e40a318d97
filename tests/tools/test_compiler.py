"""The compiler without a kernel: types, storage, errors, and the shape of the code it makes.

Errors are in bpftrace 0.27.1's words where it has such an error.
"""

import pytest

from rawbpf.tools.trace.compiler import Compiler
from rawbpf.tools.trace.diagnostics import ScriptError, Source
from rawbpf.tools.trace.machine import Machine
from rawbpf.tools.trace.parser import parse


class Box(Machine):
    """A machine with two CPUs and everything a new kernel has."""

    cpus, release, ringbuf, btf, kernel_reads, pid_namespace = 2, (6, 12), True, None, True, None
    lacks = ()

    def has_helper(self, name, program_type):
        return name not in self.lacks


def compiled(text, machine=None, **options):
    script = parse(Source("stdin", text))
    return Compiler(script, machine=machine or Box(), environment={}, **options).compile()


def error(text, **options):
    with pytest.raises(ScriptError) as caught:
        compiled(text, **options)
    return caught.value


def helpers(result, program=0):
    from rawbpf.asm.helpers import helper_name
    return [helper_name(i.imm) for i in result.programs[program].code.instructions
            if i.code == 0x85 and i.src == 0]


# --- maps -------------------------------------------------------------------------------------------

def test_scalars_are_addressed_without_a_lookup():
    result = compiled("BEGIN { @x = 1; @c = count(); @h = hist(5); print(@x); }")
    assert {name: info.storage for name, info in result.maps.items()} == {"@x": "data", "@c": "cpu", "@h": "cpu"}
    assert "bpf_map_lookup_elem" not in helpers(result)


def test_keyed_aggregates_have_a_value_for_each_cpu():
    result = compiled('BEGIN { @[pid, comm] = sum(1); @n["a"] = 5; }')
    assert result.maps["@"].storage == "percpu"
    assert result.kernel_maps["AT_"].map_type == "percpu_hash"
    assert result.kernel_maps["AT_"].key_size == 4 + 16
    assert result.kernel_maps["AT_n"].map_type == "hash"


def test_the_types_of_a_map_come_from_all_probes():
    result = compiled('BEGIN { @x["a"] = 1; } END { @x["longer than that"] = 70000; }')
    info = result.maps["@x"]
    assert info.key_type.size == 24 and info.value_type.name == "int32"


def test_a_declared_map_has_its_type_and_size():
    result = compiled("let @a = lruhash(100); BEGIN { @a[1] = 2; }")
    map = result.kernel_maps["AT_a"]
    assert (map.map_type, map.max_entries) == ("lru_hash", 100)


def test_max_map_keys_is_the_size_of_maps():
    result = compiled("config = { max_map_keys = 8 } BEGIN { @a[1] = 2; }")
    assert result.kernel_maps["AT_a"].max_entries == 8
    assert [(loss.kind, loss.name) for loss in result.losses] == [("map", "@a")]


def test_large_per_cpu_values_share_one_when_there_are_many_cpus():
    class Big(Box):
        cpus = 256
    result = compiled("BEGIN { @[1] = hist(5); @c[1] = count(); }", Big())
    assert result.maps["@"].storage == "hash" and result.maps["@c"].storage == "percpu"


def test_keys_fit_the_stack_on_kernels_that_want_that():
    class Old(Box):
        release = (5, 10)
    result = compiled("BEGIN { @[str(uptr(1)), str(uptr(2)), str(uptr(3)), comm] = count(); }", Old())
    assert result.kernel_maps["AT_"].key_size <= 512


# --- code ---------------------------------------------------------------------------------------------

def test_a_predicate_and_a_body_ask_once_who_is_running():
    result = compiled("interval:s:1 /pid == 5/ { @[pid, tid] = count(); }")
    assert helpers(result).count("bpf_get_current_pid_tgid") == 1


def test_comparing_comm_with_a_literal_takes_words():
    result = compiled('interval:s:1 /comm == "read_rand"/ { @ = count(); }')
    loads = [i for i in result.programs[0].code.instructions if i.code in (0x79, 0x69, 0x61, 0x71)]
    assert [i.code for i in loads][:2] == [0x79, 0x69]          # 8 bytes, then 2 (with the NUL)


def test_records_wake_nobody_but_exit_does():
    result = compiled('BEGIN { printf("x"); exit(); }')
    code = result.programs[0].code.instructions
    submits = [n for n, i in enumerate(code) if i.code == 0x85 and i.imm == 132]
    flags = [[i.imm for i in code[:n] if i.code == 0xb7 and i.dst == 2][-1] for n in submits]
    assert flags == [1, 2]              # BPF_RB_NO_WAKEUP, BPF_RB_FORCE_WAKEUP


def test_large_values_never_lie_on_the_stack():
    result = compiled('interval:s:1 { @[str(uptr(1)), str(uptr(2))] = count(); $x = str(uptr(3)); print($x); }')
    assert result.programs[0].code.stack_depth < 256
    assert result.kernel_maps["scratch"].value_size >= 3 * 1024


def test_records_of_the_perf_buffer_are_built_in_scratch_memory():
    result = compiled('BEGIN { printf("%d", 1); }', output="perf")
    assert "bpf_perf_event_output" in helpers(result) and "bpf_ringbuf_reserve" not in helpers(result)
    assert result.kernel_maps["events"].map_type == "perf_event_array"


def test_a_loop_over_a_map_is_a_function_of_its_own():
    result = compiled("BEGIN { @a[1] = 2; $n = 0; for ($kv : @a) { $n += $kv.1; } print($n); }")
    assert len(result.programs[0].code.functions) == 2


def test_constant_conditions_cost_nothing():
    one = compiled("BEGIN { if (1 == 2) { printf(\"a\"); } @ = 1; }")
    other = compiled("BEGIN { @ = 1; }")
    assert len(one.programs[0].code.instructions) == len(other.programs[0].code.instructions)


# --- events ---------------------------------------------------------------------------------------------

def test_printf_of_numbers_and_strings_is_a_batch():
    result = compiled('interval:s:1 { printf("%d %s|%lx\\n", pid, comm, nsecs); }')
    batch = result.events[0].batch
    import struct
    assert struct.calcsize("=" + batch.layout) == result.events[0].size
    assert batch.template == "%d %s|%x\n" and list(batch.texts) == [1]


def test_stacks_are_no_batch():
    assert compiled('interval:s:1 { printf("%s\\n", kstack); }').events[0].batch is None


# --- errors -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text,message", [
    ("BEGIN { foo(1); }", "Unknown function: 'foo'"),
    ("BEGIN { print(foo); }", "Unknown identifier: 'foo'"),
    ("BEGIN { print($x); }", "Undefined or undeclared variable: $x"),
    ("BEGIN { print(@x); }", "Undefined map: @x"),
    ("BEGIN { @x = 1; @x = \"a\"; }", "Type mismatch for @x: trying to assign value of type 'string[2]' when map "
                                      "already has a type 'int8'"),
    ("BEGIN { $x = 1; $x = \"a\"; }", "Type mismatch for $x: trying to assign value of type 'string[2]' when "
                                      "variable already has a type 'int8'"),
    ("BEGIN { @x = 1; @x[1] = 2; }", "@x used as a map with an explicit key (non-scalar map), previously used "
                                     "without an explicit key (scalar map)"),
    ("BEGIN { @x = count(); @x = 5; }", "Type mismatch for @x: trying to assign value of type 'int8' when map "
                                        "already has a type 'count_t'"),
    ("BEGIN { count(); }", "count() must be assigned directly to a map"),
    ("BEGIN { printf(\"%d\\n\"); }", "not enough arguments for format string (0 supplied, 1 expected)"),
    ("BEGIN { printf(\"%d\\n\", \"a\"); }", "unsupported format specifier for type 'string[2]': d"),
    ("BEGIN { print(10 / 0); }", "unable to fold literals due to overflow or underflow"),
    ("BEGIN { if (\"a\" == 1) { } }", "Type mismatch for '==': comparing string[2] with int8"),
    ("BEGIN { $t = (1, 2); print($t.5); }", "Invalid tuple index: 5. Found 2 elements in tuple."),
    ("BEGIN { break; }", "'break' statement is not allowed in a probe"),
    ("BEGIN { system(\"ls\"); }", "system() is an unsafe function being used in safe mode"),
    ("BEGIN { @ = lhist(1, 10, 5, 1); }", "lhist() min must be less than max (provided min 10 and max 5)"),
    ("BEGIN { print(retval); }", "The retval builtin can only be used with 'kretprobe' and 'uretprobe' and 'fentry' "
                                 "probes"),
    ("BEGIN { print(args.x); }", "The args builtin can only be used with tracepoint, rawtracepoint, fentry/fexit, "
                                 "and uprobe probes (special used here)"),
    ("BEGIN { for ($k : @nosuch) { } }", "Undefined map: @nosuch"),
    ("BEGIN { @x[1] = count(); @x[1]++; }", "Type mismatch for @x: trying to assign value of type 'uint64' when map already "
                                            "has a type 'count_t'"),
    ("BEGIN { print(-9223372036854775809); }", "negative value will underflow"),
    ("macro m(a) { if (a) { return; } } BEGIN { m(1); }", "'return' statement is not allowed in a macro"),
    ("BEGIN { let $a : string[1025]; $a = \"x\"; }", "String type is too long (over 1024 bytes): string[1025]"),
    ("let @a = hash(99999999999); BEGIN { @a[1] = 1; }", "map AT_a does not fit a BPF map: 99999999999 entries of 4 + 8 bytes, "
     "where values have up to 512 MiB and entries 32 bits"),
    ("BEGIN { let $a : int8[2000000000]; print($a); }", "map scratch_large does not fit a BPF map: 2 entries of 4 + 2000000000 bytes, "
     "where values have up to 512 MiB and entries 32 bits"),
    ("BEGIN { printf(\"%99999999999999999999d\", 1); }", "field width is over 65535: d"),
    ("BEGIN { printf(\"%-" + 5000 * "9" + "s\", 1); }", "field width is over 65535: s"),
    ("".join("macro m%d(a) { m%d(a) } " % (i, i + 1) for i in range(1000)) + "macro m1000(a) { a } BEGIN { m0(1); }",
     "macros are nested too deeply (more than 400 levels)"),
    ("#define A0 1\n" + "".join("#define A%d (A%d + 1)\n" % (i + 1, i) for i in range(1200)) + "BEGIN { print(A1200); }",
     "the expression is too long or nested too deeply (more than 1000 levels)"),
    ("BEGIN { let $a : uint8 = 300; }", "Type mismatch for $a: trying to assign value of type 'int16' when variable "
                                        "already has a type 'uint8'"),
])
def test_wrong_scripts(text, message):
    assert error(text).message == message


def test_every_error_points_at_its_place():
    found = error("BEGIN { $x = 1;\n  foo($x); }")
    assert (found.span.line, found.span.text) == (2, "foo($x)")


@pytest.mark.parametrize("text,hint", [("BEGIN { prntf(\"x\"); }", "printf"), ("BEGIN { print(pidd); }", "pid"),
                                       ("BEGIN { $count = 1; print($cuont); }", "$count")])
def test_names_that_are_nearly_right_are_suggested(text, hint):
    assert any(hint in each for each in error(text).hints)


def test_one_error_is_told_once():
    assert len(error("BEGIN { @x = foo(1); print(@x); $y = bar(); print($y + 1); }").diagnostics) == 2


def test_what_the_kernel_lacks_is_named_with_the_version_that_has_it():
    class Old(Box):
        release, lacks = (5, 10), ("bpf_for_each_map_elem", "bpf_loop", "bpf_map_lookup_percpu_elem")
    assert "5.13" in error("BEGIN { @a[1] = 2; for ($kv : @a) { print($kv); } }", machine=Old()).message
    assert "5.19" in error("BEGIN { @a[1] = count(); if (@a[1] > 2) { print(1); } }", machine=Old()).message


def test_locked_down_kernels_are_named():
    class Locked(Box):
        kernel_reads = False
    found = error("BEGIN { print(*(uint64 *)kptr(5)); }", machine=Locked())
    assert found.message.startswith("Reading kernel memory is not allowed here")


def test_a_number_without_sign_below_zero_is_worth_a_warning():
    result = compiled("BEGIN { if (nsecs < 0) { exit(); } }")
    assert "never true" in result.warnings[0].message


# --- sessions ----------------------------------------------------------------------------------------

class Sessions(Box):
    """A kernel with kprobe_multi and sessions, where every function can be joined."""

    def joined(self, entries, returns):
        return [*entries] if [p.function for p in entries] == [p.function for p in returns] else None


@pytest.mark.parametrize("text, programs", [
    ("kprobe:do_exit { @ = 1; } kretprobe:do_exit { @ = 2; }", 1),
    ("k:do_exit /pid == 1/ { @[tid] = nsecs; } kr:do_exit /@[tid]/ { delete(@, tid); for ($i : 0..@n) { print($i); } }", 1),
    ("kprobe:do_exit { for ($i : 0..@n) { print($i); } } kretprobe:do_exit { for ($i : 0..@n) { print($i); } @n = retval; }", 1),
    ("kprobe:do_exit { @ = 1; } kprobe:do_exit { @ = 3; } kretprobe:do_exit { @ = 2; }", 3),     # in the order of the script
    ("kprobe:do_exit { @ = 1; } kretprobe:do_exit { @a[probe] = 2; }", 2),
    ("kprobe:do_exit, kprobe:free_task { @ = 1; } kretprobe:do_exit { @ = 2; }", 2),
    ("kprobe:do_exit { @ = 1; } kretprobe:free_task { @ = 2; }", 2)])
def test_kprobe_and_kretprobe_of_a_function_are_one_session(monkeypatch, text, programs):
    from rawbpf.sources import kprobe
    monkeypatch.setattr(kprobe.Kprobe, "expand", lambda self, spec, target: [kprobe.KprobePoint(self, "", spec.function, 0)])
    monkeypatch.setattr(kprobe, "perf_cookies", lambda: True)      # which would ask the kernel that the tests run on
    result = compiled(text, Sessions())
    assert len(result.programs) == programs
    kfuncs = [i.ref.name for p in result.programs for i in p.code.instructions if i.code == 0x85 and i.src == 2]
    assert kfuncs == (["bpf_session_is_return"] if programs == 1 else [])
    if programs == 1 and "for" in text:
        assert len(result.programs[0].code.functions) == 1 + text.count("for (")
