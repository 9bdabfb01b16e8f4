#!/usr/bin/env python3
"""A server on this machine that answers huggingface_hub as the hub does, with a few repositories made from fixtures.

usage: hub_server.py FILE       (writes its address into FILE, and serves until it is ended)
"""
import hashlib
import http.server
import json
import os
import pathlib
import sys
import threading
import urllib.parse

MODELS = pathlib.Path(__file__).parent / "fixtures" / "models"
WEIGHTS = (".safetensors",)


def records(first, count):
    return "".join(
        json.dumps({"input_ids": [3 + (first + i) % 40, 5, 7, 11], "labels": [-100, 5, 7, 11]}) + "\n" for i in range(count)
    ).encode()


def files_of(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


CHATS = {
    "README.md": b"---\nlicense: apache-2.0\n---\n# Chats\n",
    "data/train-00000-of-00002.jsonl": records(0, 6),
    "data/train-00001-of-00002.jsonl": records(6, 6),
    "data/test-00000-of-00001.jsonl": records(12, 4),
}
# Repository -> revision -> files. A commit is the hash of its revision's name.
REPOSITORIES = {
    "models/tiny/llama": {"main": files_of(MODELS / "llama-sharded" / "model")},
    "models/tiny/qwen3": {"main": files_of(MODELS / "qwen3-tied" / "model")},
    "datasets/tiny/chats": {"main": CHATS, "v1": {**CHATS, "data/train-00001-of-00002.jsonl": records(20, 2)}},
}


def commit_of(repository, revision):
    return hashlib.sha1(f"{repository}@{revision}".encode()).hexdigest()


def is_large(name):
    return name.endswith(WEIGHTS)


def etag_of(name, content):
    """As the hub: Git's hash of a blob, or the SHA-256 of a file that Git LFS has."""
    if is_large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body, headers=(), status=200):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def revision_of(self, repository, text):
        text = urllib.parse.unquote(text)
        for name in REPOSITORIES[repository]:
            if text in (name, commit_of(repository, name)) or commit_of(repository, name).startswith(text):
                return name
        return None

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            repository, what, revision = "/".join(parts[1:4]), parts[4], parts[5]
        else:
            parts = parts if parts[0] == "datasets" else ["models", *parts]
            repository, what, revision = "/".join(parts[:3]), parts[3], parts[4]
        name = self.revision_of(repository, revision) if repository in REPOSITORIES else None
        if name is None:
            kind = "RevisionNotFound" if repository in REPOSITORIES else "RepoNotFound"
            return self.reply(b"{}", [("X-Error-Code", kind)], 404)
        files, commit = REPOSITORIES[repository][name], commit_of(repository, name)
        if what == "revision":
            body = {"id": repository.split("/", 1)[1], "sha": commit, "siblings": [{"rfilename": f} for f in files]}
            return self.reply(json.dumps(body).encode())
        if what == "tree":
            body = []
            for file, content in files.items():
                entry = {"type": "file", "path": file, "size": len(content), "oid": etag_of("", content)}
                if is_large(file):
                    entry["lfs"] = {"oid": etag_of(file, content), "size": len(content), "pointerSize": 134}
                body.append(entry)
            return self.reply(json.dumps(body).encode())
        file = urllib.parse.unquote("/".join(parts[5:]))
        if file not in files:
            return self.reply(b"", [("X-Error-Code", "EntryNotFound"), ("X-Repo-Commit", commit)], 404)
        content = files[file]
        return self.reply(content, [("ETag", f'"{etag_of(file, content)}"'), ("X-Repo-Commit", commit)])

    do_HEAD = do_GET


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    partial = pathlib.Path(sys.argv[1] + ".partial")
    partial.write_text(serve())
    os.replace(partial, sys.argv[1])
    threading.Event().wait()
