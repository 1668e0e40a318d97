"""What the kernel's BPF objects are, shown and changed with bpftool's words: `rawbpf prog`, `map`, `link`, ...

Verbs, options and, under -j and -p, field names and values are those of bpftool(8), so that scripts
written for it keep working. One module an object; a module has VERBS, {name: function(session, words)}.
"""
