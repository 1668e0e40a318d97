"""What every node of the syntax tree is (see ast.py), and what is done with whole trees."""


class Node:
    """A node is made of its span and the values of its class's `__slots__`, in that order; the last ones that
    have `defaults` may be left out. `fields` names the attributes that hold child nodes: a node, a list of
    nodes, or None."""

    __slots__ = ("span",)
    fields = defaults = ()

    def __init__(self, span, *values):
        names = self.__slots__
        missing = len(names) - len(values)
        if missing:
            if not 0 < missing <= len(self.defaults):
                raise TypeError("%s is made of span, %s" % (type(self).__name__, ", ".join(names)))
            values += self.defaults[-missing:]
        self.span = span
        for name, value in zip(names, values):
            setattr(self, name, value)

    def children(self):
        for name in self.fields:
            child = getattr(self, name)
            if child is None:
                continue
            if isinstance(child, list):
                yield from child
            else:
                yield child

    def walk(self):
        """This node and everything below it, parents first. Does not recurse."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(list(node.children())))

    def __repr__(self):
        from .printer import text
        return "<%s %s>" % (type(self).__name__, text(self))


def transform(node, change):
    """Replaces nodes below `node`, children first: each child becomes `change(child)` (which may
    return the child itself). Returns `change(node)`."""
    for name in node.fields:
        child = getattr(node, name)
        if child is None:
            continue
        if isinstance(child, list):
            child[:] = [transform(item, change) for item in child]
        else:
            new = transform(child, change)
            if new is not child:
                setattr(node, name, new)
    return change(node)


def clone(node):
    """A copy of the tree below `node`; spans and other values are shared."""
    new = object.__new__(type(node))
    for kind in type(node).__mro__[:-1]:
        for slot in kind.__slots__:
            if hasattr(node, slot):
                setattr(new, slot, getattr(node, slot))
    for name in node.fields:
        child = getattr(node, name)
        if isinstance(child, list):
            setattr(new, name, [clone(item) for item in child])
        elif child is not None:
            setattr(new, name, clone(child))
    return new
