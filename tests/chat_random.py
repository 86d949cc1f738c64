"""Random templates, rendered by Jinja2 and by ours: prints those that differ.

    python tests/chat_random.py --tool BUILD/tests/chat_tool [--seed 1] [--count 20000]

Uses the environment and variables of tests/fixtures/chat_fixtures.py.  Needs jinja2 only.
"""

import argparse
import copy
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("chat_fixtures", pathlib.Path(__file__).parent / "fixtures" / "chat_fixtures.py")
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)

NAMES = [n for n in fixtures.VARS if n not in ("big",)] + ["missing", "messages", "i", "x"]
STRINGS = ["''", "'a'", "'ab,c d'", "\"it's\"", "' x\\n'", "'é東'", "'%s'", "'{}'", "'<b>'", "','", "'role'", "'name'", "'Hello World'", "'a\\nb\\n\\nc'", "'12'", "'-3.5'", "'ß'"]
NUMBERS = ["0", "1", "2", "-1", "3", "7", "2.5", "0.1", "1e3", "10"]
FILTERS = ["upper", "lower", "capitalize", "title", "trim", "length", "count", "list", "first", "last", "reverse", "sort", "join", "join(',')", "join('-', attribute='name')", "default('D')", "default('D', true)", "d(1)", "int", "int(5)", "float", "abs", "round", "round(1)", "round(1, 'floor')", "string", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "safe", "e", "escape", "forceescape", "replace('a', 'bb')", "replace('l', '', 1)", "indent", "indent(2, true)", "indent(1, false, true)", "unique|list", "dictsort", "dictsort(false, 'value')", "items|list", "map('upper')|list", "map('string')|list", "map(attribute='name')|list", "map(attribute='age', default=0)|list", "map('length')|list", "map('int')|list", "select|list", "reject|list", "select('string')|list", "select('odd')|list", "reject('none')|list", "selectattr('name')|list", "selectattr('age', 'gt', 25)|list", "rejectattr('city')|list", "selectattr('role', 'equalto', 'user')|list", "groupby('age')|list", "batch(2)|list", "batch(2, 'z')|list", "slice(2)|list", "slice(2, 'f')|list", "sum", "sum(attribute='age')", "min", "max", "truncate(5)", "truncate(5, true)", "truncate(3, true, '')", "wordcount", "center(9)", "urlencode", "filesizeformat", "format(1)", "format('q', 2)", "attr('name')", "map('tojson')|join(' ')", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='age')", "unique(true)|list", "xmlattr_not_here if no else 1"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('ab ')", "lstrip('h')", "rstrip('o\\n')", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "rsplit()", "split('l')", "splitlines()", "splitlines(true)", "startswith('h')", "endswith('o')", "replace('l', 'L')", "replace('', '-')", "find('l')", "rfind('l')", "count('l')", "index('h')", "partition(' ')", "rpartition(' ')", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()", "zfill(6)", "ljust(6, '*')", "rjust(6)", "center(7, '.')", "removeprefix('h')", "removesuffix('o')", "get('x')", "get('zz', 1)", "items()|list", "keys()|list", "values()|list", "index(1)", "count(1)", "join(words)", "format(1, x=2)", "append(1)", "pop()", "copy()", "expandtabs(4)", "isascii()", "isidentifier()"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "divisibleby 2", "divisibleby(3)", "in [1, 'a', none]", "eq 1", "ne 'a'", "lt 3", "ge 2", "sameas none", "callable", "upper", "lower", "escaped", "filter", "test", "not none", "not string", "not defined"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
ATTRS = ["x", "y", "name", "role", "content", "a", "items", "missing"]
SLICES = ["[0]", "[-1]", "[1:]", "[:1]", "[::-1]", "[::2]", "[-2:]", "['x']", "['name']", "[9]", "[1:2]", "[true]", "[none]"]


class Gen:
    def __init__(self, rng):
        self.r = rng

    def expr(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([r.choice(NAMES)] * 5 + [r.choice(STRINGS)] * 2 + [r.choice(NUMBERS)] * 2 + ["true", "none", "[]", "{}", "()"])
        kind = r.randrange(16)
        a = self.expr(depth - 1)
        if kind < 4:
            return "%s|%s" % (self.paren(a), r.choice(FILTERS))
        if kind < 6:
            return "%s.%s" % (self.paren(a), r.choice(METHODS))
        if kind < 8:
            return "(%s %s %s)" % (a, r.choice(BINARY), self.expr(depth - 1))
        if kind == 8:
            return "(%s is %s)" % (self.paren(a), r.choice(TESTS))
        if kind == 9:
            return "(%s if %s else %s)" % (a, self.expr(depth - 1), self.expr(depth - 1))
        if kind == 10:
            return "%s.%s" % (self.paren(a), r.choice(ATTRS))
        if kind == 11:
            if not re.match(r"[a-z]", a) or a in ("true", "none"):
                a = r.choice(NAMES)  # slices of constants are folded with look-up rules of their own
            return "%s%s" % (self.paren(a), r.choice(SLICES))
        if kind == 12:
            return "[%s, %s]" % (a, self.expr(depth - 1))
        if kind == 13:
            return "{'k': %s, %s: 2}" % (a, r.choice(["'x'", "1", "none", "s", "n", "nil"]))
        if kind == 14:
            return r.choice(["(not %s)" % a, "(-%s)" % self.paren(a), "(%s,)" % a, "(%s if %s)" % (a, self.expr(depth - 1))])
        return "(%s %s %s)" % (r.choice(["'%s|%s'", "'%d'", "'%.2f'", "'%r'", "'%5s'", "'%-6s|'", "'%x'", "'{0} {1}'"]), "%", r.choice([a, "(%s, %s)" % (a, self.expr(0)), "(%s,)" % a]))

    def paren(self, e):
        return e if re.fullmatch(r"[a-z_]+", e) else "(%s)" % e

    def statement(self, depth):
        r = self.r
        kind = r.randrange(12)
        e = self.expr(r.choice([0, 1, 1, 1, 2]))
        if depth <= 0 or kind < 4:
            return "{{ %s }}%s" % (e, r.choice(["", " ", "\n", "|"]))
        body = "".join(self.statement(depth - 1) for _ in range(r.randrange(1, 3)))
        dash = [r.choice(["", "", "", "-"]) for _ in range(4)]
        nl = r.choice(["", "\n", "\n  "])
        if kind == 4:
            return "{%%%s if %s %s%%}%s%s{%%%s else %%}no{%% endif %s%%}%s" % (dash[0], e, dash[1], nl, body, dash[2], dash[3], nl)
        if kind == 5:
            return "%s{%%%s for i in %s %s%%}%s%s{%%%s endfor %s%%}%s" % (nl, dash[0], e, dash[1], body, r.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{% if loop.first %}{% continue %}{% endif %}", "{{ loop.nextitem }}", "{% break %}"]), dash[2], dash[3], nl)
        if kind == 6:
            return "{%%%s set x = %s %%}%s" % (dash[0], e, nl)
        if kind == 7:
            return "{%% set x %%}%s{%% endset %%}%s" % (body, nl)
        if kind == 8:
            return "{%% macro m%d(x, i=%s) %%}%s{%% endmacro %%}{{ m%d(%s) }}" % (depth, e, body, depth, self.expr(1))
        if kind == 9:
            return "{%% filter %s %%}%s{%% endfilter %%}" % (r.choice(["upper", "trim", "replace('a', 'b')", "indent"]), body)
        if kind == 10:
            return "{%% for i in %s if %s %%}%s{%% else %%}E{%% endfor %%}" % (e, self.expr(1), body)
        return "{%% with x = %s %%}%s{%% endwith %%}" % (e, body)


def layout(rng, depth=2):
    """White space, comments and tags with all their signs: only where text goes matters."""
    out = []
    for _ in range(rng.randrange(1, 7)):
        a, b, c, d = (rng.choice(["", "", "", "-", "+"]) for _ in range(4))
        text = "".join(rng.choice(["a", " ", "\n", "  ", "\t", "\r\n", "\r", "\u00a0", "\x0b", "{", "}", "%", "#", "-"]) for _ in range(rng.randrange(5)))
        kind = rng.randrange(8)
        if kind == 0:
            out.append("{%%%s set q = 1 %s%%}" % (a, b))
        elif kind == 1:
            out.append("{#%s c%s %s#}" % (a, text.replace("#}", ""), b))
        elif kind == 2:
            out.append("{{%s n %s}}" % (a, b if b != "+" else ""))
        elif kind == 3:
            out.append("{%%%s raw %s%%}%s{%%%s endraw %s%%}" % (a, b if b != "+" else "", text, c, d))
        elif kind == 4 and depth:
            out.append("{%%%s if t %s%%}%s%s{%%%s endif %s%%}" % (a, b, text, layout(rng, depth - 1), c, d))
        elif kind == 5 and depth:
            out.append("{%%%s for z in [1, 2] %s%%}%s%s{%%%s endfor %s%%}" % (a, b, text, layout(rng, depth - 1), c, d))
        else:
            out.append(text)
    return "".join(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--layout", action="store_true", help="vary white space and tags instead of expressions")
    parser.add_argument("--show", type=int, default=20)
    args = parser.parse_args()
    env = fixtures.environment()
    fresh = {**fixtures.VARS, "messages": fixtures.MESSAGES, "add_generation_prompt": True, "tools": None, "documents": None}
    tool = subprocess.Popen([args.tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TZ": "UTC"})
    rng = random.Random(args.seed)
    gen = Gen(rng)
    texts = errors = bad = skipped = 0
    for _ in range(args.count):
        template = layout(rng) if args.layout else "".join(gen.statement(2) for _ in range(rng.randrange(1, 4)))
        context = copy.deepcopy(fresh)  # Jinja2's indent changes a list it is given
        try:
            want = env.from_string(template).render(**context)
            want.encode()
        except Exception as e:
            want, why = None, "%s: %s" % (type(e).__name__, e)
        request = {"template": template, "messages": fixtures.MESSAGES, "add_generation_prompt": True, "variables": fixtures.VARS, "now_s": fixtures.NOW}
        tool.stdin.write(json.dumps(request).encode() + b"\n")
        tool.stdin.flush()
        line = tool.stdout.readline()
        if not line:
            sys.exit("the program ended on %r" % template)
        reply = json.loads(line)
        got = reply.get("text")
        if want is not None and re.search(r" at 0x[0-9a-f]+>|<class|<built-in|<bound|<function", want, re.I):
            skipped += 1
        elif got is None and re.search("64 bits|not supported in a chat", reply["error"]):
            skipped += 1
        elif want == got:
            texts += want is not None
            errors += want is None
        else:
            bad += 1
            if bad <= args.show:
                print("TEMPLATE %r\n  want %r\n  got  %r" % (template, want if want is not None else why, got if got is not None else reply["error"]))
    print("%d templates: %d equal texts, %d errors in both, %d skipped, %d differ" % (args.count, texts, errors, skipped, bad))
    sys.exit(1 if bad else 0)


main()
