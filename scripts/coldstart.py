#!/usr/bin/env python3
"""Measures the function's cold start, stage by stage: its process, the first /next, the secret, the database, the answer.

Everything except AWS is real: a stub of the Runtime API, a stand-in for Secrets Manager over TLS, and a Postgres with TLS 1.3 and
SCRAM. Prints medians. With --share it also measures under a CPU quota like that of a small function."""

import argparse
import json
import os
import platform
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import local
import package
from tools import PROJECT, Unavailable

STAGES = ["next", "secret", "database", "answer"]
ANSWER_LIMIT_S = 30
PASSWORD = "cold-start"
CGROUPS = Path("/sys/fs/cgroup")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, help="by default the packaged one, which is built if it is not there")
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--share", type=float, default=0.15, help="of one core, for the runs under a quota; 0: none")
    arguments = parser.parse_args()
    program = arguments.program or _packaged()
    if not program.exists():
        raise Unavailable(f"{program} is missing")
    with ExitStack() as started:
        stage = Stage(started, program)
        results = {"whole machine": stage.measure(arguments.runs, {})}
        results["whole machine, the system's certificates"] = stage.measure(arguments.runs, stage.separate_bundles)
        quota = started.enter_context(Quota(arguments.share)) if arguments.share else None
        if quota and quota.works:
            results[f"{arguments.share} of a core"] = stage.measure(arguments.runs, {}, quota)
        elif quota:
            print("no cgroup can be written to here: nothing is measured under a CPU quota", file=sys.stderr)
    _show(program, results)


def _deployed():
    """Returns the variables that the template sets to a plain value."""
    variables = (PROJECT / "template.yaml").read_text().split("Variables:")[1].split("Resources:")[0]
    return {name: value.strip('"') for name, value in re.findall(r"^ +([A-Z_]+): ([^!].*)$", variables, re.MULTILINE)}


def _packaged():
    os.environ.setdefault("ARCH", {"aarch64": "arm64"}.get(platform.machine(), platform.machine()))
    program = PROJECT / "target" / package.target() / "lambda" / "tidegate-function"
    if not program.exists():
        package.build()
    return program


def _show(program, results):
    print(f"{program.name}: {program.stat().st_size / 1e6:.1f} MB; medians in ms since the process started")
    print(f"{'':45}" + "".join(f"{name:>10}" for name in STAGES) + "    CPU ms    RSS MB")
    for name, medians in results.items():
        row = "".join(f"{medians[stage]:10.1f}" for stage in STAGES)
        print(f"{name:45}{row}{medians['cpu_ms']:10.1f}{medians['rss_mb']:10.1f}")


class Stage:
    """The environment of the function, started once."""

    def __init__(self, started, program):
        self.program = program
        self.run = None
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-coldstart-")))
        authority, certificate, key = _certificates(folder)
        url = started.enter_context(local.postgres("--fast", "--tls", str(certificate), str(key)))["DATABASE_URL"]
        programs = local.build("--bin", "tidegate")
        migrate = {**local.environment(), "DATABASE_URL": url}
        local.output([programs / "tidegate", "migrate"], env=migrate)
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        local.Database(url).run(f"CREATE ROLE cold LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        secret = {"username": "cold", "password": PASSWORD, "host": "localhost", "dbname": "postgres", "port": self._relay(port), "sslmode": "verify-full"}
        secrets = _serve(started, _secrets(self, json.dumps(secret)), (certificate, key))
        self.environment = {
            "AWS_LAMBDA_FUNCTION_NAME": "cold",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256", "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "DATABASE_SECRET_ID": "cold",
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": f"https://localhost:{secrets}", "NO_PROXY": "localhost", **_deployed(),
        }
        # As deployed, the package's authorities, read once for both services; or two connectors, each after reading the system's.
        bundle = folder / "all.pem"
        bundle.write_text(package.keep_authorities().read_text() + authority.read_text())
        self.one_bundle = {"SSL_CERT_FILE": str(bundle)}
        self.separate_bundles = {"AWS_CA_BUNDLE": str(authority), "DATABASE_CA_FILE": str(authority)}

    def measure(self, runs, bundles, quota=None):
        """Returns the median of each stage. The first run only warms the file cache."""
        taken = [self._run(bundles or self.one_bundle, quota) for _ in range(runs + 1)][1:]
        return {name: round(statistics.median(run[name] for run in taken), 1) for name in taken[0]}

    def _run(self, bundles, quota):
        with ExitStack() as started:
            # Each run has its own runtime, because a killed function may have asked for another invocation.
            run = self.run = Run()
            runtime = {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{_serve(started, _runtime_api(run))}"}
            start = time.monotonic()
            process = subprocess.Popen([self.program], env={**self.environment, **bundles, **runtime}, stdout=subprocess.DEVNULL, preexec_fn=quota.enter if quota else None)
            try:
                if not run.answered.wait(ANSWER_LIMIT_S):
                    raise Unavailable(f"the function did not answer within {ANSWER_LIMIT_S} s")
                if run.failure:
                    raise Unavailable(f"the function failed: {run.failure}")
                taken = {name: 1000 * (run.seen[name] - start) for name in STAGES}
                return {**taken, "cpu_ms": _cpu_ms(process.pid), "rss_mb": _peak_memory_mb(process.pid)}
            finally:
                process.kill()
                process.wait()

    def _relay(self, port):
        """Opens a port in front of the database, and records when a connection arrives."""
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            while True:
                client, _ = listener.accept()
                self.run.note("database")
                server = socket.create_connection(("127.0.0.1", port))
                for one, other in ((client, server), (server, client)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=_copy, args=(one, other), daemon=True).start()
        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]


class Run:
    """Records when each stage of one cold start was first seen."""

    def __init__(self):
        self.seen = {}
        self.answered = threading.Event()
        self.failure = None

    def note(self, name):
        self.seen.setdefault(name, time.monotonic())


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def answer(self, body, headers, status=200):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass  # the function was killed


def _runtime_api(run):
    class Api(Quiet):
        def do_GET(self):
            if "next" in run.seen:
                time.sleep(ANSWER_LIMIT_S)  # there is only one invocation
                return
            run.note("next")
            deadline = str(int(1000 * (time.time() + 60)))
            headers = {"lambda-runtime-aws-request-id": "r", "lambda-runtime-deadline-ms": deadline}
            self.answer(b'{"action": "drain"}', headers)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path.endswith("/error"):
                run.failure = body.decode()
            run.note("answer")
            run.answered.set()
            self.answer(b"{}", {}, 202)
    return Api


def _secrets(stage, text):
    class Secrets(Quiet):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            stage.run.note("secret")
            body = json.dumps({"ARN": "arn", "Name": "cold", "VersionId": "v", "SecretString": text})
            self.answer(body.encode(), {"content-type": "application/x-amz-json-1.1"})
    return Secrets


def _serve(started, handler, tls=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    started.callback(server.shutdown)
    return server.server_address[1]


def _copy(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _certificates(folder):
    """Creates a certificate authority, and a certificate for localhost."""
    if not shutil.which("openssl"):
        raise Unavailable("openssl is missing: it makes the certificates (apt install openssl)")
    authority, certificate, key = folder / "ca.pem", folder / "server.crt", folder / "server.key"
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl("req", "-x509", *new_key, "-keyout", folder / "ca.key", "-out", authority, "-subj", "/CN=cold start", "-days", "2")
    _openssl("req", *new_key, "-keyout", key, "-out", folder / "csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    _openssl("x509", "-req", "-in", folder / "csr", "-CA", authority, "-CAkey", folder / "ca.key", "-CAcreateserial",
             "-extfile", folder / "names", "-out", certificate, "-days", "2")
    return authority, certificate, key


def _openssl(*arguments):
    local.quietly(["openssl", *arguments])


def _cpu_ms(pid):
    return 1000 * sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _peak_memory_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:"))


class Quota:
    """A control group, version 2, whose processes get a share of one core."""

    def __init__(self, share):
        self.works, self.folder = False, CGROUPS / f"tidegate-coldstart-{os.getpid()}"
        period = 20_000  # as for small functions: many short pauses
        try:
            self.folder.mkdir()
            (self.folder / "cpu.max").write_text(f"{int(share * period)} {period}")
            self.works = True
        except OSError:
            self._remove()

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def _remove(self):
        try:
            self.folder.rmdir()
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._remove()


if __name__ == "__main__":
    local.run_script(main)
