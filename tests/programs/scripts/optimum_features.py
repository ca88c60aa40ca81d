"""Features of texts of several lengths by Optimum's ORTModelForFeatureExtraction."""

import sys
from pathlib import Path

import numpy as np
import torch
from hosted import check_hosted
from optimum.onnxruntime import ORTModelForFeatureExtraction
from optimum_models import exported, tokens

inputs, out = map(Path, sys.argv[1:])
model = ORTModelForFeatureExtraction.from_pretrained(exported("bert", inputs))
results = {}
for length in (3, 8, 11, 31):
    text = tokens(2, length)
    mask = torch.ones_like(text)
    mask[0, length - 2 :] = 0
    made = model(input_ids=text, attention_mask=mask)
    results[str(length)] = made.last_hidden_state.numpy()
    check_hosted(model.session)
np.savez(out, **results)
