"""A scripted engine: a parent with workers that do as they are told.

fake_server.py [OPTIONS] PORT serves on loopback after it has started its workers: two in its session, and one that
leaves it (`setsid`). All have PORT as their last argument, so that a test can count them.

--load-s S              how long it loads before it listens
--dies-after S          it ends with exit code 1, its workers left behind, S seconds after it listens
--hangs-after S         its health answers, nothing else does
--closes-port-after S   it lives, and listens no more
--ignores-term          neither it nor its workers end by SIGTERM
--wipes-environment     the worker that leaves has an empty environment
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_POLL_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("load-s", "dies-after", "hangs-after", "closes-port-after"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--ignores-term", action="store_true")
    parser.add_argument("--wipes-environment", action="store_true")
    parser.add_argument("--role", default="parent")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    if options.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.role == "parent":
        _parent(options)
    if options.role == "leaver":
        os.setsid()
    print(f"{options.role} is pid {os.getpid()}", flush=True)
    while True:  # whatever becomes of its parent
        time.sleep(60)


def _parent(options: argparse.Namespace) -> None:
    print("loading", flush=True)
    workers = [_worker(options, role) for role in ("worker", "worker", "leaver")]
    time.sleep(options.load_s or 0)
    handler = type("Handler", (_Handler,), {"hangs_from": time.monotonic() + (options.hangs_after or 1e9)})
    server = ThreadingHTTPServer(("127.0.0.1", options.port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    began = time.monotonic()
    while True:
        time.sleep(_POLL_S)
        age_s = time.monotonic() - began
        if options.dies_after is not None and age_s > options.dies_after:
            print("the core is lost", flush=True)
            os._exit(1)
        if options.closes_port_after is not None and age_s > options.closes_port_after:
            server.shutdown()
            server.server_close()
            options.closes_port_after = None
        if any(worker.poll() is not None for worker in workers):
            print("a worker is lost", flush=True)
            os._exit(1)


def _worker(options: argparse.Namespace, role: str) -> "subprocess.Popen[bytes]":
    flags = ["--ignores-term"] if options.ignores_term else []
    environment: dict[str, str] | None = {} if options.wipes_environment and role == "leaver" else None
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--role", role, *flags, str(options.port)]
    return subprocess.Popen(command, env=environment)


class _Handler(BaseHTTPRequestHandler):
    hangs_from = 0.0

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "target"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        while time.monotonic() > self.hangs_from:
            time.sleep(_POLL_S)
        self._answer({"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 8}})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main()
