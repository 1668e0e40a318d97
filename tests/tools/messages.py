"""What is said about scripts that are wrong or doubtful: (script, what is said). The texts are bpftrace 0.27.1's, which
the tests marked `peer` ask; the places are ours where bpftrace points into its own library."""

MESSAGES = [
    # casts
    ("begin { print((int8[4])(uint64)1); }", ['ERROR: Cannot cast from "uint64" to "int8[4]"']),
    ("begin { print((int32[])12345); }",
     ["ERROR: Cannot determine array size: the element size is incompatible with the cast integer size"]),
    ('begin { $x = (int8[4])"abc"; print((int64)$x); }', ['ERROR: Cannot cast from "int8[4]" to "int64"']),
    ('begin { print((string[3])"hello"); }', ['ERROR: Cannot cast from "string[6]" to "string[3]"']),
    ("begin { print((uint8[4])(int8[4])5); }", ['ERROR: Cannot cast from "int8[4]" to "uint8[4]"']),
    ("begin { print((int8)5); print((uint32)(uint32)7); }",
     ["WARNING: Unnecessary cast: expression is already of type int8",
      "WARNING: Unnecessary cast: expression is already of type uint32"]),
    ("enum level { LOW, MID = 10 }; begin { print((enum level)10); print((enum level)3); }",
     ["ERROR: Enum: level doesn't contain a variant value of 3"]),
    # maps: with and without keys
    ("begin { @g = 2; if (has_key(@g, 2)) { } }",
     ["ERROR: call to has_key() expects a map with explicit keys (non-scalar map)"]),
    ("begin { @g = 2; delete(@g, 2); }",
     ["ERROR: call to delete() with two arguments expects a map with explicit keys (non-scalar map)"]),
    ("begin { @g[1] = 2; delete(@g); }",
     ["ERROR: call to delete() with a single argument expects a map without explicit keys (scalar map)"]),
    ("begin { @g = 2; print(len(@g)); }",
     ["ERROR: call to len() expects a map with explicit keys (non-scalar map)"]),
    ("begin { @g = 2; for ($x : @g) { } }",
     ["ERROR: @g has no explicit keys (scalar map), and cannot be used for iteration"]),
    ("begin { @g[1] = 1; print(len(@g[1])); }", ["ERROR: call to len() expects a map, ustack, or kstack"]),
    ('begin { @g[1, "hi"] = 2; @g["a", 2] = 3; }',
     ["ERROR: Argument mismatch for @g: trying to access with arguments: '(string[2],int8)' when map expects "
      "arguments: '(int8,string[3])'"]),
    ('begin { @[1] = 1; if (has_key(@, "x")) { } }',
     ["ERROR: Argument mismatch for @: trying to access with arguments: 'string[2]' when map expects arguments: "
      "'int8'"]),
]
MESSAGES += [
    # variables
    ("begin { let $a; print(1); }", ["WARNING: Variable $a was never assigned to."]),
    ("begin { let $a: int32; print($a); }",
     ["WARNING: Variable used before it was assigned: $a", "WARNING: Variable $a was never assigned to."]),
    ("begin { let $a; $b = sizeof($a); $a = 5; print($b); }", []),
    ("begin { $x = 0; if (pid) { let $x = 1; } }",
     ["ERROR: Variable $x was already declared. Variable shadowing is not allowed.",
      "ERROR: This is the initial assignment."]),
    # statements
    ("begin { return; print(1); print(2); }", ["WARNING: Unreachable statement."]),
    ("begin { for ($i : 0..3) { break; print(1); } }", ["WARNING: Unreachable statement."]),
    ("begin { if (pid) { return } else { exit() } print(1); }", ["WARNING: Unreachable statement."]),
    ("begin { 1; pid; @a[1] = 2; delete(@a, 1); }", ["WARNING: Return value discarded."] * 3),
    ("begin { while (@i < 3) { @i++; } }", ["WARNING: While loops are deprecated and may be removed in the future."]),
    # numbers whose type does not hold them
    ("begin { let $a : int8 = 1; $b = (int64)3; $a = $b; }",
     ["WARNING: Expression of type: int64 being cast to type: int8. This may cause unexpected results. Use an explicit "
      "cast to suppress this warning."]),
    ("begin { $a = -1; $b = (uint64)1; if ($a < $b) { print(1); } }",
     ["WARNING: Expression of type: uint64 being cast to type: int64. This may cause unexpected results. Use an explicit "
      "cast to suppress this warning."]),
    ("begin { @a = pid; @b = (uint32)5; @c[1] = @a + nsecs; @s = sum(5); if (@s > 3) { print(@s * 2); } }", []),
    ("begin { $p = (int32 *)5; $q = (int8 *)6; if ($p == $q) { print(1); } }",
     ["WARNING: comparison of distinct pointer types: int32, int8", "WARNING: left (int32)", "WARNING: right (int8)"]),
    # maps
    ("let @a = hash(2); begin { print(1); }", ["WARNING: Unused map: @a"]),
    ("begin { @a = count(); @b = @a; }",
     ["ERROR: Map value 'count_t' cannot be assigned from one map to another. The function that returns this type must be "
      "called directly e.g. `@b = count();`."]),
    ("begin { @a = hist(5); @b = @a; }",
     ["ERROR: Map value 'hist_t' cannot be assigned from one map to another. The function that returns this type must be "
      "called directly e.g. `@b = hist(retval);`."]),
    ("begin { @a[1] = 1; for ($i : 0..3) { print(@a); } }",
     ["WARNING: Due to it's asynchronous nature using 'print()' in a loop can lead to unexpected behavior. The map will "
      "likely be updated before the runtime can 'print' it."]),
    ("begin { unroll (2) { @a++; print(@a); } }", []),
    ("begin { @a[1] = stats(2); print(@a, 1); }",
     ["WARNING: print()'s top and div arguments are ignored when used on stats() maps."]),
    ("begin { @x = hist(1); @x = hist(100, 2); }", ["ERROR: Different bits in a single hist unsupported"]),
    ("begin { @x = lhist(1, 0, 10, 1); @x = lhist(1, 0, 20, 1); }",
     ["ERROR: Different lhist bounds in a single map unsupported"]),
    # settings, calls
    ("config = { symbol_source = 2; strlen = 50 } begin { }",
     ["WARNING: symbol_source is deprecated and has no effect", "WARNING: strlen has been renamed, please use max_strlen"]),
    ("begin { hist(); }", ["ERROR: hist() must be assigned directly to a map"]),
    ("begin { printf(); join(); }", ["ERROR: printf() requires at least one argument (0 provided)",
                                     "ERROR: join() requires at least one argument (0 provided)"]),
    ("begin { ksym(); clear(5); exit(1, 2); }",
     ["ERROR: ksym() requires one argument (0 provided)", "ERROR: clear() expects a map argument",
      "ERROR: exit() takes up to one argument (2 provided)"]),
    ('begin { debugf("%d %d", 1, 2); }', [
        "WARNING: The debugf() builtin is not recommended for production use. For more information see bpf_trace_printk in "
        "bpf-helpers(7)."]),
    ('begin { debugf("%d %d %d %d", 1, 2, 3, 4); }', [
        "ERROR: cannot use more than 3 conversion specifiers",
        "WARNING: The debugf() builtin is not recommended for production use. For more information see bpf_trace_printk in "
        "bpf-helpers(7)."]),
    ("begin { print((a=1).b); }", ["ERROR: Record does not contain a field named 'b'"]),
]
