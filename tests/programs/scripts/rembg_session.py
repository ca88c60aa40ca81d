"""A mask of a picture by rembg's session class, with a small model in place of its own."""

import os
import sys

import numpy as np
import onnxruntime
from PIL import Image
from rembg import remove
from rembg.sessions.u2netp import U2netpSession

inputs, out = sys.argv[1:]
os.environ["U2NET_HOME"] = inputs


class Session(U2netpSession):
    """With the model that lies among the inputs."""

    @classmethod
    def download_models(cls, *args, **kwargs):
        return f"{inputs}/mask.onnx"


options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = Session("u2netp", options)
picture = Image.open(f"{inputs}/face.png")
(mask,) = session.predict(picture)
np.savez(out, mask=np.asarray(mask), cut=np.asarray(remove(picture, session=session)))
