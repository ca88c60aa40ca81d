"""Formulas of scalar functions, as the table of functions has them: `a * sigmoid(b * a)`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

from glnn.errors import ShapeError, shown
from glnn.graph.function import Number

T = TypeVar("T")
NAMES = ("a", "b", "c", "d", "da", "db", "dc", "dd")
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.USub: "neg"},
    **{ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal"},
}


def read_formula(
    text: str,
    argument: Callable[[int], T],
    number: Callable[[Number], T],
    call: Callable[[str, tuple[T, ...]], T],
) -> T:
    """Parse the formula `text` and build it with the callbacks `argument`, `number` and `call`.

    a to d are arguments 0 to 3, da to dd arguments 4 to 7. Functions are called by their names;
    + - * / < <= > >= are add, sub, mul, div, less, less_equal, greater, greater_equal and neg.
    Raises ShapeError for anything else.
    """

    def made(node: ast.AST) -> T:
        match node:
            case ast.Name(id=name) if name in NAMES:
                return argument(NAMES.index(name))
            case ast.Constant(value=float() | int() as value):
                return number(value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float() | int() as value)):
                return number(-value)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                return call(OPERATORS[type(op)], (made(operand),))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return call(OPERATORS[type(op)], (made(left), made(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                return call(OPERATORS[type(op)], (made(left), made(right)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return call(name, tuple(map(made, arguments)))
        raise ShapeError(f"no formula of functions: {shown(text)}")

    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ShapeError(f"no formula of functions: {shown(text)}") from None
    return made(tree.body)
