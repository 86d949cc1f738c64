"""output_oracle.py: random tool calls, written as text by Python itself, are read back to the same calls.

    python tests/output_oracle.py --tool BUILD/tests/chat_tool [--rounds N] [--templates FOLDER]

The writers are independent of our code: json.dumps, repr, and a few lines for each kind of tags.  With --templates every *.jinja file of the
folder is rendered by transformers (jinja2) with and without a turn that calls, and what it adds is read back; a template that cannot write
the call (no tool support, one call at most) is counted apart.  Prints counts; exits with 1 when a call is not read back.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

WORDS = ["Paris", "a b", "", "é😀", "say \"hi\"", "it's", "{x: [1, 2]}", "line\nbreak\ttab", "back\\slash\\n", "1.5", "true", "</p>", "<think>", "f(a=1)", "null", "\u0001"]


class Tool:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **q):
        self.p.stdin.write(json.dumps(q) + "\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


def value(r, depth=0):
    kind = r.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return "".join(r.choice(WORDS) for _ in range(r.randrange(3)))
    if kind == 3:
        return r.choice([0, -7, 10**12, 0.25, -1e-7, 3.5e20])
    if kind == 4:
        return r.choice([True, False])
    if kind == 5:
        return None
    if kind == 6:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    return {f"k{i}": value(r, depth + 1) for i in range(r.randrange(4))}


TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", list: "array", dict: "object"}


def call(r, i):
    args = {f"arg_{k}": value(r) for k in range(r.randrange(5))}
    schema = {"type": "object", "properties": {k: {"type": TYPES[type(v)]} for k, v in args.items()}}
    return f"tool_{i}", args, {"type": "function", "function": {"name": f"tool_{i}", "description": "d", "parameters": schema}}


def bare(v):
    return v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)


def gemma(v):
    if isinstance(v, str):
        return f'<|"|>{v}<|"|>'
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{gemma(x)}" for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(gemma, v)) + "]"
    return json.dumps(v)


def xml(name, args):
    return f"<function={name}>\n" + "".join(f"<parameter={k}>\n{bare(v)}\n</parameter>\n" for k, v in args.items()) + "</function>"


WRITERS = {
    "hermes": lambda calls, r: "\n".join("<tool_call>\n" + json.dumps({"name": n, "arguments": a}, ensure_ascii=r.random() < 0.5) + "\n</tool_call>" for n, a in calls),
    "json": lambda calls, r: json.dumps([{"name": n, "arguments": a} for n, a in calls], indent=r.choice([None, 1, 4])),
    "mistral": lambda calls, r: "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}" for n, a in calls),
    "qwen3_coder": lambda calls, r: "\n".join(f"<tool_call>\n{xml(n, a)}\n</tool_call>" for n, a in calls),
    "glm4": lambda calls, r: "\n".join(f"<tool_call>{n}\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{bare(v)}</arg_value>\n" for k, v in a.items()) + "</tool_call>"
                                       for n, a in calls),
    "gemma4": lambda calls, r: "".join(f"<|tool_call>call:{n}{gemma(a)}<tool_call|>" for n, a in calls),
    "lfm2": lambda calls, r: "<|tool_call_start|>[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls) + "]<|tool_call_end|>",
    "harmony": lambda calls, r: "<|start|>assistant".join(f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{json.dumps(a)}<|call|>" for n, a in calls),
}


def calls_of(reply):
    return [(e[1], json.loads(e[2])) if e[0] == "call" else e for e in reply["events"]]


def random_calls(tool, rounds):
    bad = 0
    r = random.Random(5)
    for fmt, write in WRITERS.items():
        for _ in range(rounds):
            made = [call(r, i) for i in range(1 + r.randrange(3))]
            calls = [(n, a) for n, a, _ in made]
            text = write(calls, r)
            got = calls_of(tool.ask(parse=text, format=fmt, tools=[t for _, _, t in made], step=r.choice([0, 1, 2, 5, 17])))
            if got != calls:
                bad += 1
                print(f"{fmt}: {text!r}\n  is read as {got}\n  instead of {calls}")
                break
    print(f"{len(WRITERS)} writers, {rounds} rounds each, {bad} failed")
    return bad


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def templates(tool, folder):
    from transformers.utils import chat_template_utils as ctu
    read = apart = 0
    args = {"city": "Saint-Étienne", "days": 3, "metric": True}
    fn = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}}, "required": ["city"]}}}
    user = {"role": "user", "content": "Hi"}
    turn = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": args}}]}
    for path in sorted(pathlib.Path(folder).rglob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        kw = {"chat_template": source, "tools": [fn], "bos_token": "<s>", "eos_token": "</s>"}
        try:
            before = ctu.render_jinja_template([[user]], add_generation_prompt=True, **kw)[0][0]
            after = ctu.render_jinja_template([[user, turn]], add_generation_prompt=False, **kw)[0][0]
        except Exception:  # the template refuses the conversation
            apart += 1
            continue
        cut = common(before, after)
        cut = max(after.rfind("<", 0, cut), 0) if cut < len(before) else cut  # a marker both begin with
        reply = tool.ask(parse=after[cut:], template=source, tools=[fn], prompt=before[:cut])
        good = ("get_weather", args) in calls_of(reply)
        read, apart = read + good, apart + (not good)
        if not good:
            print(f"apart: {path.name} ({reply['format']})")
    print(f"{read} templates' calls are read back, {apart} write none that is")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tool", required=True)
    p.add_argument("--rounds", type=int, default=300)
    p.add_argument("--templates")
    a = p.parse_args()
    tool = Tool(a.tool)
    if a.templates:
        templates(tool, a.templates)
    sys.exit(1 if random_calls(tool, a.rounds) else 0)


if __name__ == "__main__":
    main()
