"""Texts that Optimum's ORTModelForCausalLM goes on with, greedily: also by its bindings."""

import sys
from pathlib import Path

import numpy as np
import torch
from hosted import check_hosted
from optimum.onnxruntime import ORTModelForCausalLM
from optimum_models import exported, tokens

inputs, out = map(Path, sys.argv[1:])
results = {}
for name in ("llama", "gpt2"):
    for bound in (False, True):
        model = ORTModelForCausalLM.from_pretrained(exported(name, inputs), use_io_binding=bound)
        prompt = tokens(2, 7)
        mask = torch.ones_like(prompt)
        mask[1, :3] = 0  # the second text is shorter
        made = model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        results[f"{name} {bound}"] = made.sequences.numpy()
        results[f"{name} {bound} logits"] = torch.stack(made.logits).numpy()
        check_hosted(model.session)
np.savez(out, **results)
