"""Pages and examples draw secret noise, as their readers do; here its seed is fixed, so that no run differs."""

import random
import secrets
from types import SimpleNamespace

import pytest

from dpbilevel.privacy import noise


@pytest.fixture(autouse=True)
def fixed_secrets(monkeypatch):
    drawn = SimpleNamespace(token_bytes=random.Random(0).randbytes, token_hex=secrets.token_hex)
    monkeypatch.setattr(noise, "secrets", drawn)
