"""A Hub on loopback: the few endpoints that an upload asks for, with the checks that the real one makes."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_right"


def _oid(name: str, content: bytes | None) -> str | None:
    """The digest of a file that is there, as git or its large file storage has it."""
    if content is None:
        return None
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class LocalHub:
    """Its repositories: files of every branch, whether they are private, and their commits."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, str, str]] = []
        self.heads: dict[tuple[str, str], str] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        self.asked.append(f"{method} {path}")
        if path.startswith("/objects/"):
            digest = path.removeprefix("/objects/")
            assert hashlib.sha256(body).hexdigest() == digest, "what was declared is what came"
            self.objects[digest] = body
            return 200, {}
        if path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            return (200, {"errors": [], "warnings": []}) if text.startswith("---\n") else (400, {})
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        return self._of_model(method, path, body)

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        owner, name = asked.get("organization"), asked["name"]
        identity = f"{owner}/{name}"
        if owner == "others":
            return 403, {"error": "You don't have the rights to create a model under this namespace"}
        if owner == "nobody":
            return 404, {"error": "Not found"}
        made = {"url": f"{self.url}/{identity}", "id": identity, "name": identity}
        if identity in self.branches:
            return 409, made
        self.branches[identity] = {"main": {".gitattributes": b""}}
        self.private[identity] = bool(asked.get("private") or asked.get("visibility") == "private")
        return 200, made

    def _of_model(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        lfs = re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path)
        if lfs:
            wanted = json.loads(body)["objects"]
            upload = [
                {**one, "actions": {"upload": {"href": f"{self.url}/objects/{one['oid']}"}}} for one in wanted
            ]
            return 200, {"transfer": "basic", "objects": upload}
        found = re.fullmatch(r"/api/models/([^/]+/[^/?]+)(?:/(\w+)/([^/?]+))?/?(?:\?.*)?", path)
        assert found, f"{method} {path} is not known here"
        identity, what, branch = found.groups()
        if identity not in self.branches:
            return 404, {"error": "Repository not found"}
        branches = self.branches[identity]
        match what:
            case None:
                head = self.heads.get((identity, "main"), "0" * 40)
                return 200, {"id": identity, "private": self.private[identity], "sha": head, "tags": []}
            case "revision":
                head = self.heads.get((identity, branch), "0" * 40)
                return 200, {"id": identity, "private": self.private[identity], "sha": head, "tags": []}
            case "branch":
                known = branch in branches
                branches.setdefault(branch, dict(branches["main"]))
                return (409 if known else 200), {}
            case "tree":
                return 200, [
                    {"type": "file", "path": name, "size": len(held), "oid": "0" * 40}
                    for name, held in branches[branch].items()
                ]
            case "preupload":
                return 200, {
                    "files": [
                        {
                            "path": one["path"],
                            "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                            "shouldIgnore": False,
                            "oid": _oid(one["path"], branches[branch].get(one["path"])),
                        }
                        for one in json.loads(body)["files"]
                    ]
                }
            case "commit":
                return self._commit(identity, branch, body)
        raise AssertionError(f"{method} {path} is not known here")

    def _commit(self, identity: str, branch: str, body: bytes) -> tuple[int, Any]:
        files = self.branches[identity][branch]
        message = ""
        for line in body.splitlines():
            one = json.loads(line)
            value = one["value"]
            match one["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise AssertionError(other)
        oid = hashlib.sha1(body).hexdigest()
        self.heads[identity, branch] = oid
        self.commits.append((identity, branch, message))
        return 200, {"commitUrl": f"{self.url}/{identity}/commit/{oid}", "commitOid": oid}


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Runs a Hub of no repositories."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            status, told = hub.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
            text = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
