"""What kinds of text some texts are, by magika."""

import sys

import numpy as np
from magika import Magika

inputs, out = sys.argv[1:]
texts = {
    "python": "import os\n\n\ndef main(path):\n    return [os.stat(p) for p in path]\n" * 20,
    "json": '{"name": "glnn", "kinds": [1, 2, 3], "more": {"a": null}}\n' * 20,
    "c": '#include <stdio.h>\n\nint main(void) {\n    return printf("%d", 1);\n}\n' * 20,
    "markdown": "# A head\n\nSome *words*, [a link](there), and a list:\n\n- one\n- two\n" * 20,
}
magika = Magika()
found = [magika.identify_bytes(text.encode()) for text in texts.values()]
np.savez(out, labels=[str(one.output.label) for one in found], scores=[one.score for one in found])
