"""What is left out of URIs, and what must stay."""

from __future__ import annotations

import pytest

from lockstep.redact import redact


@pytest.mark.parametrize(
    "option",
    [
        "access_key=S", "secret_key=S", "api_key=S", "apikey=S", "key=S", "token=S", "pwd=S",
        "password=S", "sas_token=S", "sig=S", "Signature=S", "AWSAccessKeyId=S",
        "X-Amz-Security-Token=S", "X-Amz-Credential=S", "X-Goog-Signature=S",
    ],
)  # fmt: skip
def test_secrets(option: str) -> None:
    assert redact(f"see https://host/a?{option}&page=2") == "see https://host/a?page=2"
    assert redact(f"see https://host/a?page=2&{option}") == "see https://host/a?page=2"


@pytest.mark.parametrize("option", ["keywords=cats", "tokenizer=bert", "max_tokens=5", "design=1"])
def test_no_secrets(option: str) -> None:
    assert redact(f"https://host/a?{option}&page=2") == f"https://host/a?{option}&page=2"
