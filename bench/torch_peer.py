#!/usr/bin/env python3
"""torch_peer.py: the speed of torch and transformers on the shapes that gpu.py measures, with random weights.

    torch_peer.py [--layers 32] [--decode 64] [--prompt 2048] [--sequences 1,64]

Llama 3.1 8B's shape in bf16, a static cache, the decode step compiled (CUDA graphs).  Prints one JSON object: {"torch", "transformers", "decode":
{sequences: tokens/s}, "prefill": tokens/s}, medians of three.
"""
import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

ROUNDS = 3


def open_model(layers):
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
                         vocab_size=128256, max_position_embeddings=131072, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model.eval()


def decode_rate(model, sequences, depth, tokens):
    """Tokens/s of all sequences together, `depth` positions behind each: what `tokens` more take generate(), which compiles its step for a static cache."""
    ids = torch.randint(0, 128000, (sequences, depth), device="cuda")

    def seconds(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, cache_implementation="static", max_length=depth + 3 * tokens,
                       max_new_tokens=None, stopping_criteria=[lambda got, scores, **_: torch.full((sequences,), got.shape[1] >= depth + count,
                                                                                                   device="cuda")])
        torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds(tokens)  # compiles
    return statistics.median(sequences * tokens / (seconds(2 * tokens) - seconds(tokens)) for _ in range(ROUNDS))


def prefill_rate(model, prompt):
    ids = torch.randint(0, 128000, (1, prompt), device="cuda")
    rates = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        rates.append(prompt / (time.perf_counter() - began))
    return statistics.median(rates[1:])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--decode", type=int, default=64)
    p.add_argument("--prompt", type=int, default=2048)
    p.add_argument("--sequences", default="1")
    a = p.parse_args()
    with torch.inference_mode():
        model = open_model(a.layers)
        out = {"torch": torch.__version__, "transformers": transformers.__version__, "prefill": prefill_rate(model, a.prompt), "decode": {}}
        for sequences in map(int, a.sequences.split(",")):
            out["decode"][sequences] = decode_rate(model, sequences, 32 if sequences == 1 else 1500, a.decode)
    print(json.dumps(out))


main()
