"""What Optimum's ORTModelForSpeechSeq2Seq hears in a sound, by a Whisper of seeded weights."""

import sys
from pathlib import Path

import numpy as np
import torch
from hosted import check_hosted
from optimum.onnxruntime import ORTModelForSpeechSeq2Seq
from optimum_models import exported

inputs, out = map(Path, sys.argv[1:])
model = ORTModelForSpeechSeq2Seq.from_pretrained(exported("whisper", inputs))
sound = torch.randn(1, 16, 3000, generator=torch.Generator().manual_seed(2))
made = model.generate(sound, max_new_tokens=20, do_sample=False, eos_token_id=None)
check_hosted(model.encoder.session, model.decoder.session)
np.savez(out, heard=made.numpy())
