"""script_model.py: a tiny model that writes given texts: each token has one successor.

Embeddings are unit vectors, attention and MLP are zero, and the head maps each unit vector to the token that follows.  A text is cut into pieces that
are all different, each a token of its own; the template ends with the start token of the script that the variable `script` names.
"""
import json
import os

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CALLS = ('<tool_call>\n{"name": "get_weather", "arguments": {"place": "Kiel", "days": 3}}\n</tool_call>\n'
         '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
SCRIPTS = [
    "<think>\nThe user asks for weather.\n</think>\n\nLet me look it up.\n" + CALLS,
    "Nothing but <tool_call> see below, and so on.",
    'So:\n<tool_call>\n{"name": "get_weather", "arguments": {"place": "Ki',
    "Plain words without anything special, \u00e4\u00f6\u00fc \U0001f30a at all.",
    CALLS.replace("</tool_call>\n", "</tool_call>\nAnd then\n"),
]
TEMPLATE = """{%- if tools %}<tools>{{ tools | tojson }}</tools> answer {"name": ..., "arguments": ...} in <tool_call></tool_call>, reason in <think></think>
{%- endif %}{%- for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}{%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{%- endfor %}
{%- endfor %}{%- if add_generation_prompt %}<|script{{ script | default(3) }}|>{%- endif %}"""


def cut(text, seen):
    """Pieces of about four characters, none of which is in seen."""
    pieces, at = [], 0
    while at < len(text):
        n = 3
        while text[at:at + n] in seen and at + n < len(text):
            n += 1
        pieces.append(text[at:at + n])
        at += n
        if pieces[-1] in seen:
            last = pieces.pop()
            pieces[-1] += last
        seen.add(pieces[-1])
    return pieces


def make(folder):
    base = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(base)}
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|end|>", "<|turn|>"] + [f"<|script{k}|>" for k in range(len(SCRIPTS))]
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    end = tokenizer.token_to_id("<|end|>")
    seen, follows = set(base), {}
    for k, text in enumerate(SCRIPTS):
        pieces = cut(text, seen)
        tokenizer.add_tokens([AddedToken(p, special=False, normalized=False) for p in pieces])
        chain = [tokenizer.token_to_id(f"<|script{k}|>"), *[tokenizer.token_to_id(p) for p in pieces], end]
        follows.update(zip(chain, chain[1:]))
    size = -(-tokenizer.get_vocab_size() // 64) * 64
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    head = np.zeros((size, size), np.float32)
    for a in range(size):
        head[follows.get(a, end), a] = 1
    zero, ones = np.zeros((size, size), np.float32), np.ones(size, np.float32)
    layer = {f"self_attn.{n}_proj": zero for n in "qkvo"} | {f"mlp.{n}_proj": np.zeros(s, np.float32) for n, s in
                                                            (("gate", (64, size)), ("up", (64, size)), ("down", (size, 64)))}
    weights = {"model.embed_tokens.weight": np.eye(size, dtype=np.float32), "lm_head.weight": head, "model.norm.weight": ones,
               "model.layers.0.input_layernorm.weight": ones, "model.layers.0.post_attention_layernorm.weight": ones,
               **{f"model.layers.0.{name}.weight": w.copy() for name, w in layer.items()}}
    save_file(weights, os.path.join(folder, "model.safetensors"))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": size, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": size // 64, "num_key_value_heads": size // 64, "head_dim": 64, "vocab_size": size, "max_position_embeddings": 4096,
              "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": end, "torch_dtype": "float32",
              "attention_bias": False, "mlp_bias": False}
    for name, content in (("config.json", config), ("generation_config.json", {"eos_token_id": end}),
                          ("tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": TEMPLATE})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(content, f)
    return folder
