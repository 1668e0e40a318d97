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
