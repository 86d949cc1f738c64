"""Fixtures of the API tests: one server on the small model for most of them."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import Server, small_model


@pytest.fixture(scope="session")
def model():
    return small_model()


@pytest.fixture(scope="session")
def server(model):
    s = Server(model, "--model-id", "small", "--header-timeout", "2", "--idle-timeout", "5", "--heartbeat", "1", "--body-max", "1M")
    yield s
    s.stop()
