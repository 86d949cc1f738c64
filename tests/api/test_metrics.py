"""test_metrics.py: what is exported, and that the dashboard asks for nothing else; histograms add up."""
import json
import os
import re
import shutil
import subprocess

import pytest
from serving import TOP


@pytest.fixture(scope="module")
def exported(server):
    server.json("/v1/completions", {"prompt": "one two one two one two one", "max_tokens": 30, "ignore_eos": True, "temperature": 0, "propose": "lookup",
                                    "propose_depth": 4})
    text = server.get("/metrics")
    series, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in types, name
            types[name] = kind
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name not in series, name
            series[name] = float(value)
    return series, types


def plain(name):
    return name.split("{")[0]


def test_every_series_has_a_type(exported):
    series, types = exported
    for name in series:
        base = plain(name)
        assert base in types or re.sub(r"_(bucket|sum|count)$", "", base) in types, name
    for name, kind in types.items():
        assert kind != "counter" or name.endswith("_total"), name


def test_what_is_there(exported):
    series, _ = exported
    for name in ("rhapsode_step_tokens_count", "vllm:iteration_tokens_total_sum", 'rhapsode_pages{state="live"}', 'rhapsode_pages{state="cached"}',
                 'rhapsode_sequences{state="preempted"}', 'rhapsode_sequences{state="prefill"}', 'rhapsode_sequences{state="decode"}',
                 'rhapsode_memory_bytes{space="host",component="weights",kind="live"}', 'rhapsode_memory_bytes{space="host",component="state",kind="planned"}',
                 "rhapsode_healthy", "rhapsode_cancelled_total", "vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count",
                 "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:spec_decode_num_drafts_total", 'rhapsode_guessed_total{position="0"}',
                 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'):
        assert name in series, name
    assert series["rhapsode_healthy"] == 1 and series['rhapsode_memory_bytes{space="host",component="weights",kind="live"}'] > 0
    assert series['rhapsode_guessed_total{position="0"}'] >= series['rhapsode_guessed_right_total{position="0"}']


def test_histograms_add_up(exported):
    series, types = exported
    for name in (n for n, kind in types.items() if kind == "histogram"):
        buckets = [(float(n.split('le="')[1].split('"')[0]), v) for n, v in series.items() if plain(n) == name + "_bucket"]
        assert [b for b, _ in buckets] == sorted(b for b, _ in buckets) and buckets[-1][0] == float("inf")
        assert [v for _, v in buckets] == sorted(v for _, v in buckets) and buckets[-1][1] == series[name + "_count"], name
    assert series["rhapsode_step_tokens_sum"] == series["rhapsode_rows_total"] and series["rhapsode_step_tokens_count"] <= series["rhapsode_steps_total"] + 1


def test_the_dashboard_asks_for_what_is_there(exported):
    series, types = exported
    path = os.path.join(TOP, "packaging", "grafana.json")
    if shutil.which("jq"):
        out = subprocess.run(["jq", "-r", ".panels[].targets[]?.expr", path], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    else:
        with open(path) as f:
            out = [t["expr"] for p in json.load(f)["panels"] for t in p.get("targets", [])]
    names = {n for expr in out for n in re.findall(r"\b(?:rhapsode|vllm)[a-zA-Z0-9_:]*", expr)}
    assert len(names) > 15
    known = {plain(n) for n in series} | set(types)
    assert names <= known, names - known
    for wanted in ("rhapsode_step_tokens_bucket", "rhapsode_memory_bytes", "rhapsode_pages", "rhapsode_guessed_right_total", "rhapsode_healthy"):
        assert wanted in names
