"""docs/nginx.conf, run by nginx in front of a server."""

import shlex
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from .processes import slow_server

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONF = Path(__file__).parents[2] / "docs/nginx.conf"
MAIN = """
daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    {temporary}
    {conf}
}}
"""

ONE = {"prompt": "0", "responses": ["w2", "w3 w4"]}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (NGINX and shutil.which("openssl")), reason="nginx or openssl is not installed"),
]


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """The address of nginx, the certificate, and the port of the server behind it."""
    folder = tmp_path_factory.mktemp("nginx")
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=scores.example -keyout key -out pem "
            "-addext subjectAltName=IP:127.0.0.1"
        ),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf, kinds = CONF.read_text(), ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    with slow_server("RECEIVE_SECONDS=1") as (_, address), (folder / "log").open("w") as log:
        own = address.rpartition(":")[2]
        for name, value in {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "127.0.0.1:8000": f"127.0.0.1:{own}",
            "/etc/ssl/certs/longrm.pem": str(folder / "pem"),
            "/etc/ssl/private/longrm.key": str(folder / "key"),
        }.items():
            assert conf.count(name) == 1
            conf = conf.replace(name, value)
        (folder / "nginx.conf").write_text(MAIN.format(conf=conf, temporary=temporary))
        command = [NGINX, "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr"]
        nginx = subprocess.Popen(command, stderr=log)
        try:
            until_open(nginx, port, folder / "log")
            yield f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=folder / "pem"), int(own)
        finally:
            nginx.terminate()
            nginx.communicate(timeout=60)


def until_open(nginx, port, log):
    deadline = time.monotonic() + 30
    while True:
        assert nginx.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_scores_and_the_page_over_tls(behind):
    address, context, _ = behind
    with httpx.Client(base_url=address, verify=context) as client:
        for origin, status in ((address, 200), ("https://foreign.example", 403)):
            answer = client.post("/v1/scores", json=ONE, headers={"Origin": origin})
            assert answer.status_code == status
        assert client.get("/").headers["content-type"].startswith("text/html")
        large = ONE | {"responses": ["w" * 2**21]}  # more than nginx keeps in memory
        assert client.post("/v1/scores", json=large).status_code == 200
        assert client.post("/v1/scores", content=b" " * (2**25 + 1)).status_code == 413


def test_requests_per_client_are_limited(behind):
    address, context, own = behind
    with httpx.Client(base_url=address, verify=context) as client:
        statuses = [client.get("/health").status_code for _ in range(200)]
    assert set(statuses) == {200, 429}
    assert httpx.get(f"http://127.0.0.1:{own}/health").status_code == 200
