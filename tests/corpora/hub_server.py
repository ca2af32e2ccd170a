"""A small HTTP server with the part of the Hugging Face hub's API that streaming a dataset needs.

Run as `python hub_server.py FOLDER`: FOLDER/owner/name holds the files of a dataset. The first line that it prints
is its address; every request is logged to stderr.
"""

import json
import re
import sys
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = Path()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.repository_info(self.root / match[1], match[1])
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            self.tree(self.root / match[1], match[3] or "")
        elif match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.file(self.root / match[1] / match[3])
        else:
            self.answer(404, b"{}")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/]+)", unquote(urlsplit(self.path).path))
        if not match:
            return self.answer(404, b"{}")
        root = self.root / match[1]
        asked = parse_qs(body).get("paths") or (json.loads(body)["paths"] if body.startswith("{") else [])
        found = [self.entry(root, root / path) for path in asked if (root / path).exists()]
        return self.answer(200, json.dumps(found).encode(), "application/json")

    def repository_info(self, root: Path, name: str):
        if not root.is_dir():
            return self.answer(404, b'{"error": "Repository not found"}', "application/json", RepoNotFound=True)
        files = [{"rfilename": p.relative_to(root).as_posix()} for p in sorted(root.rglob("*")) if p.is_file()]
        info = {"_id": "1", "id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": files, "downloads": 0}
        return self.answer(200, json.dumps(info).encode(), "application/json")

    def tree(self, root: Path, folder: str):
        start = root / folder
        if not start.is_dir():
            return self.answer(404, b"{}", EntryNotFound=True)
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        paths = sorted(start.rglob("*") if recursive else start.iterdir())
        listing = [self.entry(root, path) for path in paths]
        return self.answer(200, json.dumps(listing).encode(), "application/json")

    def entry(self, root: Path, path: Path) -> dict:
        kind = "directory" if path.is_dir() else "file"
        size = path.stat().st_size if path.is_file() else 0
        oid = sha1(str(path).encode()).hexdigest()
        return {"type": kind, "path": path.relative_to(root).as_posix(), "oid": oid, "size": size}

    def file(self, path: Path):
        if not path.is_file():
            return self.answer(404, b"Entry not found", EntryNotFound=True)
        data = path.read_bytes()
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(match[1]), int(match[2] or len(data) - 1)
            part = data[start : end + 1]
            return self.answer(206, part, range=f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        return self.answer(200, data)

    def answer(self, status, body, kind="application/octet-stream", range=None, **errors):  # noqa: A002
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{sha1(body).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        if range:
            self.send_header("Content-Range", range)
        for error in errors:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    Hub.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
