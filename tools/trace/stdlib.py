"""What of the standard library is written in the language itself: macros, as in bpftrace.

`macros_of(script)` parses them when a script names one. A macro of the script with the same name and as many
arguments comes before one of these. Names in messages are `stdlib/base.bt:...`, with the place in the script below.
"""

NAME = "stdlib/base.bt"

TEXT = """

// Ends the script with an error when a condition does not hold.
macro assert(cond, msg) {
  if (!cond) {
    errorf("assert failed: %s", msg);
    exit(1);
  }
}

// The same when the script is compiled.
macro static_assert(cond, msg) {
  if comptime (!cond) {
    fail(msg);
  }
}

// Relatives of a task: of the one at hand, or of a struct task_struct *.
macro ppid(task) { task.real_parent.pid }
macro ppid() { ppid(curtask) }
macro pcomm(task) { task.real_parent.comm }
macro pcomm() { pcomm(curtask) }
macro leader_tid(task) { task.group_leader.pid }
macro leader_tid() { leader_tid(curtask) }
macro leader_comm(task) { task.group_leader.comm }
macro leader_comm() { leader_comm(curtask) }

// The object of which `member` is at an address.
macro container_of(ptr, type, member) {
  $address = (void *)ptr;
  (type *)($address - offsetof(type, member))
}

macro default_str_length() { sizeof(str((int8 *)0)) }

// Strings are strings, and arrays of, and pointers to, int8.
macro assert_str(exp) {
  if comptime (!is_str(exp)) {
    if comptime is_array(exp) {
      static_assert(typeinfo((exp[0])) == typeinfo(int8), "string-like arrays must contain a char-like type");
    } else if comptime is_ptr(exp) {
      static_assert(typeinfo((exp[0])) == typeinfo(int8), "string-like pointers must point to a char-like type");
    } else {
      fail("string-like values must be either strings, arrays or pointers");
    }
  }
}
"""

NAMES = ("assert", "static_assert", "ppid", "pcomm", "leader_tid", "leader_comm", "container_of", "default_str_length",
         "assert_str")


def macros_of(text):
    """The Macro nodes for a script with this text: none when it names none of them."""
    if not any(name in text for name in NAMES):
        return []
    from .diagnostics import Source
    from .parser import parse
    return parse(Source(NAME, TEXT)).macros
