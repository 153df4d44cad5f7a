"""A real S3 server (moto) on loopback."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from patience import wait_until


@contextlib.contextmanager
def s3_server(bucket="data"):
    """boto3's client, with the bucket made, and the variables with which the program `aws` speaks to the server."""
    import boto3

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test",
                          region_name="us-east-1")

    def bucket_is_made():
        assert server.poll() is None, "the S3 server ended"
        try:
            return client.create_bucket(Bucket=bucket)
        except Exception:
            return None  # it does not listen yet

    try:
        wait_until(bucket_is_made)
        yield client, {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
    finally:
        server.terminate()
        server.wait(timeout=30)
