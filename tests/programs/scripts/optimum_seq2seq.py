"""Answers of Optimum's ORTModelForSeq2SeqLM, greedily and by beams, which reorder the caches."""

import sys
from pathlib import Path

import numpy as np
import torch
from hosted import check_hosted
from optimum.onnxruntime import ORTModelForSeq2SeqLM
from optimum_models import exported, tokens

inputs, out = map(Path, sys.argv[1:])
results = {}
for name in ("t5", "bart"):
    model = ORTModelForSeq2SeqLM.from_pretrained(exported(name, inputs))
    text = tokens(2, 9)
    for beams in (1, 3):
        made = model.generate(
            text,
            attention_mask=torch.ones_like(text),
            max_new_tokens=20,
            do_sample=False,
            num_beams=beams,
            eos_token_id=None,
        )
        results[f"{name} {beams}"] = made.numpy()
        check_hosted(model.encoder.session, model.decoder.session)
np.savez(out, **results)
