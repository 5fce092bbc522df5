"""An S3 server on loopback for tests, and a connection to it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""

_buckets = itertools.count()


@contextlib.contextmanager
def serve() -> Iterator[int]:
    """An S3 server's port. It ends with its standard input, so also when this process is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.communicate()


def new_bucket() -> str:
    """A name nobody has used."""
    return f"bucket-{os.getpid()}-{next(_buckets)}"


def s3_uri(port: int, bucket: str) -> str:
    """A place in the bucket, with everything that is needed to get there."""
    return (
        f"s3://key:secret@{bucket}/some/prefix?endpoint_override=127.0.0.1:{port}"
        "&scheme=http&region=us-east-1&allow_bucket_creation=true"
    )


def s3_filesystem(port: int) -> Any:
    """The server's filesystem; what fails fails at once."""
    from pyarrow import fs

    return fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        access_key="key",
        secret_key="secret",
        allow_bucket_creation=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
