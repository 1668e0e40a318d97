"""Types that only the probed program's own debug information knows."""

import os

import pytest

SOURCE = """
struct inner { int a; char text[8]; };
struct outer { struct inner *both[2]; long last; };
typedef struct outer outer_t;
__attribute__((noinline)) int look(void *raw, outer_t *o) { return ((struct inner *)raw)->a + o->last; }
int main(void)
{
    struct inner one = { 11, "one" }, two = { 22, "two" };
    struct outer o = { { &one, &two }, 33 };
    return look(&one, &o) != 44;
}
"""


@pytest.mark.root
def test_structs_of_the_program(rawbpf, compile_c, monkeypatch):
    program = compile_c(SOURCE, "-g", "-O0", name="typed")
    monkeypatch.chdir(os.path.dirname(program))
    done = rawbpf("trace", "-q", "-c", "./typed", "-e", """uprobe:./typed:look {
        $inner = (struct inner *)arg0;
        let $both : struct inner *[2] = args.o->both;
        printf("%d %s %d %s\\n", $inner.a, $inner.text, $both[1]->a, $both[1]->text);
        print((sizeof(struct inner), sizeof(outer_t), ((outer_t *)arg1)->last));
    }""")
    assert (done.stdout, done.stderr) == ("11 one 22 two\n(12, 24, 33)\n\n\n", "")
