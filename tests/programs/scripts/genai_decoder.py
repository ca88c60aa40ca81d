"""Texts by a model of onnxruntime-genai's builder, decoded as that does: with caches that grow, and
with one buffer for past and present. Under glnn the caches are on its device.
"""

import os
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is made here

import numpy as np
import onnxruntime as ort
import torch
from hosted import check_hosted
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, HEADS, WIDTH, ROOM = 300, 2, 16, 64
glnn = "GlnnExecutionProvider" in ort.get_available_providers()
DEVICE = "gpu" if glnn else "cpu"


def built(folder: Path) -> Path:
    """Return the ONNX file that the builder makes of a small seeded Llama, unless it is there."""
    source, target = folder / "genai" / "source", folder / "genai" / "model"
    if not (target / "model.onnx").exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=HEADS,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
        LlamaForCausalLM(config).save_pretrained(source)
        words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(source)
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
        options = ["-o", str(target), "-p", "fp32", "-e", "cpu", "-c", str(folder / "genai")]
        subprocess.run([*builder, *options], check=True)
    return target / "model.onnx"


def decode(session: ort.InferenceSession, shared: bool) -> np.ndarray:
    """Return the tokens of a greedy text. shared: whether present is written where past is read."""
    caches = [one.name for one in session.get_inputs() if one.name.startswith("past")]
    shape = [1, HEADS, ROOM if shared else 0, WIDTH]
    make = ort.OrtValue.ortvalue_from_shape_and_type
    past = {name: make(shape, np.float32, DEVICE, 0) for name in caches}
    present = {name: name.replace("past_key_values", "present") for name in caches}
    tokens = np.random.default_rng(1).integers(5, VOCABULARY, (1, 7))
    binding, made, length = session.io_binding(), [], 0
    for _ in range(40):
        length += tokens.shape[1]
        binding.clear_binding_outputs()
        binding.bind_cpu_input("input_ids", tokens)
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
        binding.bind_output("logits")
        for name, value in past.items():
            binding.bind_ortvalue_input(name, value)
            if shared:
                binding.bind_ortvalue_output(present[name], value)
            else:
                binding.bind_output(present[name], DEVICE)
        session.run_with_iobinding(binding)
        logits, *values = binding.get_outputs()
        past = past if shared else dict(zip(caches, values))
        tokens = logits.numpy()[:, -1:].argmax(-1)
        made.append(tokens)
        check_hosted(session)
    return np.concatenate(made, axis=1)


inputs, out = map(Path, sys.argv[1:])
session = ort.InferenceSession(str(built(inputs)), providers=["CPUExecutionProvider"])
np.savez(out, grown=decode(session, False), shared=decode(session, True))
