"""Blocks and statements of the script language."""

from . import ast
from .parser_expr import ExpressionParser

ASSIGNMENTS = {
    "=": "", "+=": "+", "-=": "-", "*=": "*", "/=": "/", "%=": "%", "&=": "&", "|=": "|", "^=": "^",
    "<<=": "<<", ">>=": ">>",
}
IMMUTABLE = ("Tuples and records are immutable once created. "
             "Consider creating a new value and assigning it instead.")


class StatementParser(ExpressionParser):

    def block(self, with_value=True):
        """`{ ... }`; `with_value` keeps a last expression without `;` as the block's value. None
        after an error."""
        start = self.start
        if not self.expect("{"):
            return None
        self.deeper()
        statements, value = [], None
        while self.value != "}" and self.kind != "end" and not self.errors:
            before = self.start
            if value is not None:
                statements.append(ast.ExprStatement(value.span, value))
                value = None
            handler = STATEMENTS.get(self.value)
            if handler:
                statements.append(handler(self))
            elif self.value == "_" and self.peek() == "=":
                statements.append(self.discard())
            elif self.kind == "variable" or self.kind == "map" or self.value == "$":
                value = self.assignment(statements)
            elif not self.match(";"):
                value = self.expression_statement(statements)
            if self.pos <= before:
                self.error("unexpected input in block")
                self.next()
        self.depth -= 1
        if self.errors or not self.expect("}"):
            return None
        span = self.span(start)
        if value is not None and not with_value:
            statements.append(ast.ExprStatement(value.span, effect(value)))
            value = None
        return ast.Block(span, statements, value)

    def expression_statement(self, statements):
        """Appends a statement, or returns the expression that ends the block."""
        start = self.start
        if self.value == "if" or self.value == "{":
            expr = self.primary()
        else:
            expr = self.expression()
        if self.value == "}":
            return expr
        span = self.span(start)
        if not self.match(";") and not isinstance(expr, (ast.If, ast.Block, ast.Ternary)):
            self.error("expected ';'")
        statements.append(ast.ExprStatement(span, effect(expr)))
        return None

    def assignment(self, statements):
        """A statement that starts with a variable or map: like `expression_statement`."""
        start = self.start
        expr = self.primary()
        if self.value in ASSIGNMENTS:
            statements.append(self.assign(start, expr))
            return None
        expr = self.postfix(expr)
        if self.value == "=":
            self.next()
            self.expression()
            immutable = isinstance(expr, (ast.TupleAccess, ast.FieldAccess))
            self.error(IMMUTABLE if immutable else "invalid assignment target", start, self.pos)
            return None
        expr = self.binary(expr, 1)
        if self.value == "?":
            expr = self.ternary(expr)
        if self.value == "}":
            return expr
        span = self.span(start)
        if not self.errors and not self.match(";"):
            self.error("expected ';'")
        statements.append(ast.ExprStatement(span, expr))
        return None

    def assign(self, start, target):
        op = ASSIGNMENTS[self.value]
        self.next()
        value = self.expression()
        span = self.span(start)
        self.end_of_statement()
        return ast.Assign(span, target, op, value)

    def end_of_statement(self):
        if self.value != "}":
            self.expect(";")

    def import_(self):
        start = self.start
        self.next()
        if self.kind != "string":
            self.error("expected string after 'import'")
            return None
        name = self._one_string()
        span = self.span(start)
        if not self.match(";"):
            self.error("expected ';' after import")
            return None
        return ast.Import(span, name)

    def discard(self):
        start = self.start
        self.next()
        self.next()
        expr = self.expression()
        span = self.span(start)
        self.end_of_statement()
        return ast.Discard(span, expr)

    def let(self):
        start = self.start
        self.next()
        if self.kind != "variable":
            self.error("expected variable after 'let'")
            return None
        variable = self.variable()
        span = self.span(start)
        declared = None
        if self.match(":"):
            declared = self.declared_type()
        declaration = ast.VarDecl(span, variable, declared)
        if self.match("="):
            value = self.expression()
            whole = self.span(start)
            self.end_of_statement()
            return ast.Assign(whole, declaration, "", value)
        self.end_of_statement()
        return declaration

    def while_(self):
        start = self.start
        self.next()
        condition = self.condition()
        body = self.block(False)
        return ast.While(self.span(start), condition, body)

    def unroll(self):
        start = self.start
        self.next()
        count = self.condition()
        body = self.block(False)
        return ast.Unroll(self.span(start), count, body)

    def for_(self):
        start = self.start
        self.next()
        parenthesis = self.match("(")
        if self.kind != "variable":
            self.error("expected variable in for loop")
            return None
        variable = self.variable()
        if not self.expect(":"):
            return None
        iterable = self.primary()
        if self.match(".."):
            end = self.primary()
            iterable = ast.Range(self.span(start), iterable, end)
        elif not isinstance(iterable, ast.Map):
            if not parenthesis or self.expect(")"):
                self.error("expected map or range in for loop")
            return None
        if parenthesis and not self.expect(")"):
            return None
        body = self.block(False)
        return ast.For(self.span(start), variable, iterable, body)

    def break_(self):
        return self.jump(ast.Break)

    def continue_(self):
        return self.jump(ast.Continue)

    def jump(self, kind):
        start = self.start
        self.next()
        self.end_of_statement()
        return kind(self.span(start))

    def return_(self):
        start = self.start
        self.next()
        value = None
        if self.value != ";" and self.value != "}":
            value = self.expression()
        self.end_of_statement()
        return ast.Return(self.span(start), value)


STATEMENTS = {
    "import": StatementParser.import_,
    "let": StatementParser.let,
    "while": StatementParser.while_,
    "unroll": StatementParser.unroll,
    "for": StatementParser.for_,
    "break": StatementParser.break_,
    "continue": StatementParser.continue_,
    "return": StatementParser.return_,
}


def effect(expr):
    """The expression as one whose value nobody wants: the values of blocks become statements."""
    if isinstance(expr, ast.Block):
        if expr.value is not None:
            expr.statements.append(ast.ExprStatement(expr.value.span, effect(expr.value)))
            expr.value = None
    elif isinstance(expr, ast.If):
        branch = expr
        while isinstance(branch, ast.If):
            effect(branch.then)
            branch = branch.otherwise
        if branch is not None:
            effect(branch)
    return expr
