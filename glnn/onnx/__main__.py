"""`python -m glnn.onnx`: the table of ONNX operators, as docs/onnx-operators.md has it."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from glnn.errors import GlnnError
from glnn.onnx.model_proto import package
from glnn.onnx.operator_table import markdown, operator_rows
from glnn.onnx.schemas import DOMAINS


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns the exit code."""
    parser = ArgumentParser("python -m glnn.onnx", description="List the ONNX operators known.")
    domains = ("ai.onnx", *DOMAINS[1:])
    parser.add_argument("--domain", choices=domains, help="only those of one operator set")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    try:
        onnx = package("the table of operators")
    except GlnnError as error:
        print(error, file=sys.stderr)
        return 2
    rows = [one for one in operator_rows(onnx) if options.domain in (None, one.domain)]
    if options.json:
        print(json.dumps([one.as_dict() for one in rows], indent=2))
    else:
        print(markdown(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
